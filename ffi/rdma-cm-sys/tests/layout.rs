//! Compares every size, offset and constant of the crate with the installed `rdma/rdma_cma.h`.
//!
//! A C program, written here from the crate's own list, prints what the C compiler makes of the header. Values come back
//! in the order of the questions, one a line.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rdma_cm_sys::layout::{CONSTANTS, TYPES};
use rdma_sys::layout::Type;

/// A C expression, and the value that the crate believes in.
type Fact = (String, i64);

/// A member of an anonymous union in C; checked as a field of its struct.
const ANONYMOUS: [&str; 1] = ["rdma_cm_event_param"];

fn type_facts(ty: &Type) -> Vec<Fact> {
    let c = ty.c;
    let mut facts = vec![(format!("sizeof({c})"), ty.size as i64)];
    for field in ty.fields {
        let name = field.c.trim_start_matches("r#");
        facts.push((format!("offsetof({c}, {name})"), field.offset as i64));
        facts.push((format!("sizeof((({c} *)0)->{name})"), field.size as i64));
    }
    facts
}

fn constant_facts() -> Vec<Fact> {
    CONSTANTS.iter().map(|&(name, value)| (name.to_owned(), value)).collect()
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

/// Fails with the remedy when the header is not there.
fn require_header() {
    let (_, made) = compile("layout_probe", "#include <rdma/rdma_cma.h>\nint main(void) { return 0; }\n");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(
        made.status.success(),
        "this test compares with rdma/rdma_cma.h, which cc cannot use here: install Debian's librdmacm-dev\n{said}"
    );
}

/// What C says to each expression.
fn ask_c(facts: &[Fact]) -> Vec<i64> {
    require_header();
    let questions: String =
        facts.iter().map(|(c, _)| format!("    printf(\"%lld\\n\", (long long)({c}));\n")).collect();
    let program = format!(
        "#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n#include <rdma/rdma_cma.h>\n\
         int main(void) {{\n{questions}    return 0;\n}}\n"
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

#[test]
fn every_size_offset_and_constant_is_that_of_the_installed_header() {
    let mut facts: Vec<Fact> = TYPES.iter().flat_map(type_facts).collect();
    facts.extend(constant_facts());
    let answers = ask_c(&facts);
    assert_eq!(answers.len(), facts.len());
    let wrong: Vec<String> = facts
        .iter()
        .zip(answers)
        .filter(|((_, ours), c)| ours != c)
        .map(|((expression, ours), c)| format!("{expression}: {c} in C, {ours} here"))
        .collect();
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), facts.len(), wrong.join("\n"));
}

/// Names of the structs and unions that a source file declares with fields of C.
fn declared(source: &str) -> impl Iterator<Item = &str> {
    let blocks = ["pub struct ", "pub union "];
    source.lines().filter_map(move |line| {
        let rest = blocks.iter().find_map(|block| line.strip_prefix(block))?;
        rest.strip_suffix(" {")
    })
}

#[test]
fn every_struct_of_the_crate_is_in_the_list() {
    let listed: BTreeSet<&str> = TYPES.iter().map(|ty| ty.rust).collect();
    let files = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    let mut seen = 0;
    for file in files.map(|entry| entry.unwrap().path()).filter(|path| !path.ends_with("layout.rs")) {
        let source = std::fs::read_to_string(&file).unwrap();
        for name in declared(&source) {
            seen += 1;
            let known = listed.contains(name) || ANONYMOUS.contains(&name);
            assert!(known, "{name} of {} is not in layout.rs", file.display());
        }
    }
    assert_eq!(seen, TYPES.len() + ANONYMOUS.len());
}
