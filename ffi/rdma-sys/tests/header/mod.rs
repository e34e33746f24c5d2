//! What an installed C header says of sizes, offsets and constants, beside what a crate of raw bindings declares.
//!
//! A C program, written here from the crate's own list, prints what the C compiler makes of the header. Values come back
//! in the order of the questions, one a line. The tests of `rdma-cm-sys` use this file, too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rdma_sys::layout::Type;

/// A C expression, and the value that the crate believes in.
pub type Fact = (String, i64);

/// A header, and the Debian package that has it.
pub struct Header {
    pub include: &'static str,
    pub package: &'static str,
}

/// Structs that later releases of rdma-core have appended fields to; the function that fills one is told, or says, how much there is of it:
/// `ibv_port_attr` (56: active_speed_ex), `ibv_qp_ex` (45: wr_atomic_write, wr_flush).
const GROWN: [&str; 2] = ["sizeof(struct ibv_port_attr)", "sizeof(struct ibv_qp_ex)"];

impl Header {
    /// Fails unless C agrees with every fact; what has grown since may be larger there.
    pub fn confirms(&self, facts: &[Fact]) {
        let answers = self.ask_c(facts);
        assert_eq!(answers.len(), facts.len());
        let grown = |fact: &Fact, c: i64| GROWN.contains(&fact.0.as_str()) && c > fact.1;
        let differ = facts.iter().zip(answers).filter(|(fact, c)| fact.1 != *c && !grown(fact, *c));
        let wrong: Vec<String> =
            differ.map(|((expression, ours), c)| format!("{expression}: {c} in C, {ours} here")).collect();
        assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), facts.len(), wrong.join("\n"));
    }

    /// What C says to each expression.
    fn ask_c(&self, facts: &[Fact]) -> Vec<i64> {
        self.require();
        let questions: String =
            facts.iter().map(|(c, _)| format!("    printf(\"%lld\\n\", (long long)({c}));\n")).collect();
        let program = format!(
            "#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n#include <{}>\n\
             int main(void) {{\n{questions}    return 0;\n}}\n",
            self.include
        );
        let (binary, made) = compile("layout_facts", &program);
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(
            made.status.success(),
            "the header lacks something that the crate declares; a header older than rdma-core 44 may\n{said}"
        );
        let answers = Command::new(binary).output().unwrap();
        String::from_utf8(answers.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Fails with the remedy when the header is not there.
    fn require(&self) {
        let Header { include, package } = self;
        let program = format!("#include <{include}>\nint main(void) {{ return 0; }}\n");
        let (_, made) = compile("layout_probe", &program);
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(
            made.status.success(),
            "this test compares with {include}, which cc cannot use here: install Debian's {package}\n{said}"
        );
    }
}

/// Size of a type, and offset and size of each of its fields.
pub fn type_facts(ty: &Type) -> Vec<Fact> {
    let c = ty.c;
    let mut facts = vec![(format!("sizeof({c})"), ty.size as i64)];
    for field in ty.fields {
        let name = field.c.trim_start_matches("r#");
        facts.push((format!("offsetof({c}, {name})"), field.offset as i64));
        facts.push((format!("sizeof((({c} *)0)->{name})"), field.size as i64));
    }
    facts
}

fn compile(name: &str, program: &str) -> (PathBuf, Output) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (dir.join(format!("{name}.c")), dir.join(name));
    std::fs::write(&source, program).unwrap();
    let made = Command::new("cc").arg("-w").arg("-o").arg(&binary).arg(&source).output();
    (
        binary,
        made.expect("this test needs a C compiler: install Debian's gcc, or put another `cc` in the PATH"),
    )
}

/// Fails unless every struct and union that the sources in `src` declare with fields of C is listed or excepted, and the other way
/// round.
pub fn every_struct_is_listed(src: &Path, types: &[Type], except: &[&str]) {
    let listed: BTreeSet<&str> = types.iter().map(|ty| ty.rust).collect();
    let mut seen = 0;
    let files = std::fs::read_dir(src).unwrap().map(|entry| entry.unwrap().path());
    for file in files.filter(|path| !path.ends_with("layout.rs")) {
        let source = std::fs::read_to_string(&file).unwrap();
        for name in declared(&source) {
            seen += 1;
            let known = listed.contains(name) || except.contains(&name);
            assert!(known, "{name} of {} is not in layout.rs", file.display());
        }
    }
    assert_eq!(seen, types.len() + except.len());
}

/// Names of the structs and unions that a source file declares with fields of C.
fn declared(source: &str) -> impl Iterator<Item = &str> {
    let blocks = ["pub struct ", "pub union "];
    source.lines().filter_map(move |line| {
        let rest = blocks.iter().find_map(|block| line.strip_prefix(block))?;
        rest.strip_suffix(" {")
    })
}
