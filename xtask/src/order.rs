//! `cargo xtask order`: writes `btl/link/order.ld`, by which the linker puts the plugin's functions in order.
//!
//! The kernel maps code in windows of 64 KiB around each page that is executed. In the order of the compiler a job that starts touches all of
//! them, so that a process has all of the plugin's code in its memory. So functions stand together by when they run:
//!
//! ```text
//!   opening   until the first peers have been added, when all of it is unmapped (btl/src/mca/startup.rs), and never again
//!   again     then, and in jobs of a few messages, but not in between
//!   messages  with messages of the usual kinds, in an order by which they lie well in the first cache (lines.rs)
//!   waiting   from then on until the end of MPI_Init: all that a process has in its memory that has not sent anything
//!   later     in jobs of a few messages
//!   rest
//! ```
//! Which functions these are is what `valgrind --tool=callgrind` counted in such jobs over three layouts. The hashes in their names, which change
//! with the compiler, are left out where no other function has the same name. A function that is not found, or that is not in the list, costs
//! memory, nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::args::{Args, Options};
use crate::lines::{self, Counts, Profile};
use crate::packages::{self, Package};
use crate::workspace::Workspace;
use crate::{build, ways};
use e2e::failure::Context;
use e2e::machine::SegmentFolder;
use e2e::process::Limits;
use e2e::programs::Programs;
use e2e::{OpenMpi, Result, say, tell};

/// What `order` understands.
pub const OPTIONS: Options = Options { flags: &["no-install"], values: &[], words: false };

/// Where the order is, from the repository's root.
const FILE: &str = "btl/link/order.ld";
const VALGRIND: Package =
    Package { name: "valgrind", why: "callgrind, which tells what runs", proof: "valgrind" };
/// So many that tables and queues grow beyond their first size.
const RANKS: usize = 16;
/// Option of callgrind: a file for what ran before the code was unmapped.
const UNMAPPED: &str = "--dump-before=*startup*unmap_all*";
const DEADLINE: Limits = Limits { deadline: Duration::from_secs(300), silence: None };

/// Functions, as the symbol table names them.
type Names = BTreeSet<String>;

/// `cargo xtask order`.
pub fn command(args: Args) -> Result<()> {
    let workspace = Workspace::find()?;
    packages::ensure(&[&packages::MPI[..], &[VALGRIND]].concat(), !args.flag("no-install"))?;
    let plugin = build::build(&workspace, false)?;
    let aliases = Aliases::read(&plugin)?;
    let mut groups = Groups::of(counted(&workspace)?.map(|functions| aliases.patterns(&functions)));
    groups.take(messages(&workspace, &plugin, &aliases)?);
    let path = workspace.root.join(FILE);
    std::fs::write(&path, groups.script()).context(format_args!("cannot write {}", path.display()))?;
    say!("{}: functions by when they run, {:?}", path.display(), groups.counts());
    Ok(())
}

/// What runs until the first peers have been added, from then on until the end of MPI_Init, later, and what runs until the first peers have been
/// added over layouts that are not the default.
fn counted(workspace: &Workspace) -> Result<[Names; 4]> {
    let mpi = OpenMpi::in_path();
    let program = Programs::new(&mpi, &workspace.root, &workspace.target)?.compiled("memory")?;
    let segments = SegmentFolder::create()?;
    let mut counted = [const { Names::new() }; 4];
    for (index, way) in ways::of(&mpi).filter(|way| way.name.starts_with("oxib")).enumerate() {
        tell!("{}", way.name);
        let folder = fresh(workspace.target.join("order").join(index.to_string()))?;
        let job = way.job(&mpi, workspace, segments.path(), RANKS, Path::new("valgrind"));
        let (out, program) =
            (format!("--callgrind-out-file={}/%p", folder.display()), program.to_string_lossy());
        let callgrind =
            ["-q", "--tool=callgrind", "--demangle=no", UNMAPPED, "--dump-after=PMPI_Init", &out, &program];
        job.arguments(callgrind).expect_success(DEADLINE)?;
        for (name, text) in texts(&folder)? {
            // Each process has a file for what ran until each of the two, and one for the rest.
            let when = match name.rsplit_once('.') {
                Some((_, "1")) if index != 0 => 3,
                Some((_, "1")) => 0,
                Some((_, "2")) => 1,
                _ => 2,
            };
            counted[when].extend(functions(&text));
        }
    }
    Ok(counted)
}

/// Messages of which it matters where the code lies: what `pingpong` measures, in which function of its, whether rings are used, and a weight.
const KINDS: [(&str, &str, bool, f64); 10] = [
    ("8", "bounce", true, 2.0),
    ("8", "bounce", false, 0.5),
    ("200", "bounce", true, 1.0),
    ("1000", "bounce", true, 0.5),
    ("1000", "bounce", false, 0.5),
    ("8000", "bounce", true, 0.5),
    ("16000", "bounce", true, 0.5),
    ("rate:8", "stream", true, 2.0),
    ("rate:1000", "stream", true, 1.0),
    ("both:8", "cross", true, 1.0),
];
/// Milliseconds of each.
const MILLISECONDS: &str = "300";

/// What the functions that messages execute are called, in their order.
fn messages(workspace: &Workspace, plugin: &Path, aliases: &Aliases) -> Result<Vec<String>> {
    let mpi = OpenMpi::in_path();
    let program = Programs::new(&mpi, &workspace.root, &workspace.target)?.compiled("pingpong")?;
    let segments = SegmentFolder::create()?;
    let table = Command::new("nm").arg("-S").arg(plugin).output().context("cannot run nm")?;
    let symbols = lines::symbols(&String::from_utf8_lossy(&table.stdout));
    let way = ways::of(&mpi).find(|way| way.name == "oxib").context("no way over oxib")?;
    let mut profiles = Vec::new();
    for (index, (word, function, has_rings, weight)) in KINDS.into_iter().enumerate() {
        tell!("messages: {word}");
        let folder = fresh(workspace.target.join("order").join(format!("messages-{index}")))?;
        let job = way.job(&mpi, workspace, segments.path(), 2, Path::new("valgrind"));
        let job = job.parameter("btl_oxib_use_eager_rdma", if has_rings { "1" } else { "0" });
        let (out, function) = (
            format!("--callgrind-out-file={}/%p", folder.display()),
            format!("--toggle-collect={function}*"),
        );
        let callgrind = ["-q", "--tool=callgrind", "--demangle=no", "--dump-instr=yes", &function, &out];
        let words = [&program.to_string_lossy(), MILLISECONDS, word];
        job.arguments(callgrind).arguments(words).expect_success(DEADLINE)?;
        let counts = texts(&folder)?.into_iter().map(|(_, text)| Counts::of(&text));
        profiles.extend(counts.filter_map(|counts| Profile::of(&counts, &symbols, weight)));
    }
    let hot: Names = profiles.iter().flat_map(Profile::functions).cloned().collect();
    let units = aliases.patterns(&hot).into_iter().map(|unit| {
        let functions = aliases.called(&unit);
        (unit, functions)
    });
    Ok(lines::arrange(&units.collect(), &symbols, &profiles))
}

fn fresh(folder: PathBuf) -> Result<PathBuf> {
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).context(format_args!("cannot create {}", folder.display()))?;
    Ok(folder)
}

/// The files of a folder: their names and what they say.
fn texts(folder: &Path) -> Result<Vec<(String, String)>> {
    let entries = std::fs::read_dir(folder).context(format_args!("cannot read {}", folder.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let named = paths.map(|path| {
        let text = std::fs::read_to_string(&path).context(format_args!("cannot read {}", path.display()))?;
        Ok((path.to_string_lossy().into_owned(), text))
    });
    named.collect()
}

/// The functions in a file of callgrind's that have run. A name stands behind its number where it comes first, `fn=(12) main`, also as one that
/// is called, `cfn=(12) main`; all that are called have run.
fn functions(profile: &str) -> Names {
    let values = profile.lines().filter_map(|line| line.strip_prefix("cfn=").or(line.strip_prefix("fn=")));
    values.filter_map(|value| Some(value.split_once(' ')?.1.to_owned())).collect()
}

/// The plugin's functions.
struct Aliases {
    /// The names of each address, by each of them: equal functions are one, under the names of all, and only one of these is its section's.
    names: BTreeMap<String, Names>,
    /// Patterns that are of several functions: one for each type that a generic function is made for.
    shared: Names,
}

impl Aliases {
    fn read(plugin: &Path) -> Result<Aliases> {
        let output = Command::new("nm").arg(plugin).output().context("cannot run nm")?;
        Ok(Aliases::of(&String::from_utf8_lossy(&output.stdout)))
    }

    fn of(table: &str) -> Aliases {
        let mut at: BTreeMap<&str, Names> = BTreeMap::new();
        for line in table.lines() {
            if let [address, "t" | "T", name] = line.split(' ').collect::<Vec<_>>()[..] {
                at.entry(address).or_default().insert(name.to_owned());
            }
        }
        let of_each =
            |names: &Names| names.iter().map(|name| (name.clone(), names.clone())).collect::<Vec<_>>();
        let (mut once, mut shared) = (Names::new(), Names::new());
        for names in at.values() {
            let patterns: Names = names.iter().map(|name| pattern(name)).collect();
            shared.extend(patterns.intersection(&once).cloned());
            once.extend(patterns);
        }
        Aliases { names: at.values().flat_map(of_each).collect(), shared }
    }

    /// What the sections of those of these functions that are the plugin's are called: in any build, if no others are called like that.
    fn patterns(&self, functions: &Names) -> Names {
        let names = functions.iter().filter_map(|name| self.names.get(name)).flatten();
        let of_name = |name: &String| Some(pattern(name)).filter(|pattern| !self.shared.contains(pattern));
        names.map(|name| of_name(name).unwrap_or_else(|| name.clone())).collect()
    }

    /// One name of each function that a pattern is of.
    fn called(&self, unit: &str) -> Vec<String> {
        let is_so = |names: &&Names| names.iter().any(|name| name == unit || pattern(name) == unit);
        let of: BTreeSet<&Names> = self.names.values().filter(is_so).collect();
        of.into_iter().filter_map(|names| names.first().cloned()).collect()
    }
}

/// A symbol without the hashes that tell builds apart: `17h0123456789abcdefE` at the end, or `CsgEmfK2I1SDS_` before a crate's name.
fn pattern(symbol: &str) -> String {
    if symbol.starts_with("_ZN") {
        return symbol.rfind("17h").map_or_else(|| symbol.to_owned(), |at| format!("{}17h*", &symbol[..at]));
    }
    let mut parts = symbol.split("Cs");
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let hash = part.find('_').filter(|at| (8..=13).contains(at));
        result.push_str("Cs");
        result.push_str(if hash.is_some() { "*" } else { "" });
        result.push_str(&part[hash.unwrap_or(0)..]);
    }
    result
}

/// Patterns of functions by when they run; each is in one group.
struct Groups {
    opening: Names,
    again: Names,
    messages: Vec<String>,
    waiting: Names,
    later: Names,
}

impl Groups {
    fn of([opening, waiting, later, others]: [Names; 4]) -> Groups {
        let opening: Names = opening.difference(&waiting).cloned().collect();
        let is_new = |name: &&String| !opening.contains(*name) && !waiting.contains(*name);
        Groups {
            again: opening.intersection(&later).cloned().collect(),
            later: later.union(&others).filter(is_new).cloned().collect(),
            opening: opening.difference(&later).cloned().collect(),
            messages: Vec::new(),
            waiting,
        }
    }

    /// These functions stand together, in their order.
    fn take(&mut self, messages: Vec<String>) {
        for group in [&mut self.opening, &mut self.again, &mut self.waiting, &mut self.later] {
            group.retain(|name| !messages.contains(name));
        }
        self.messages = messages;
    }

    fn counts(&self) -> [(&'static str, usize); 5] {
        self.all().map(|(when, names)| (when, names.len()))
    }

    fn all(&self) -> [(&'static str, Vec<&String>); 5] {
        [
            ("opening", self.opening.iter().collect()),
            ("again", self.again.iter().collect()),
            ("messages", self.messages.iter().collect()),
            ("waiting", self.waiting.iter().collect()),
            ("later", self.later.iter().collect()),
        ]
    }

    fn script(&self) -> String {
        // Cold functions are in sections of names like `.text.unlikely.` and the symbol.
        let row = |name: &String| format!("    *(.text*{name})\n");
        // What stays mapped lies in as few windows as it fits in.
        let align = |when: &str| if when == "messages" { "    . = ALIGN(0x10000);\n" } else { "" };
        // Each of the standard library's begins at a line, too, as those of ours do.
        let begin = |when: &str| if when == "messages" { "    . = ALIGN(64);\n" } else { "" };
        let group = |(when, names): (&str, Vec<&String>)| {
            let rows: String = names.into_iter().map(|name| begin(when).to_owned() + &row(name)).collect();
            format!("    /* {when} */\n{}{rows}", align(when))
        };
        // Where the hashes are others, functions that have them in their names stand together at least.
        let names = self.all().into_iter().flat_map(|(_, names)| names);
        let alike: Names = names
            .map(|name| (name, pattern(name)))
            .filter(|(name, pattern)| *name != pattern)
            .map(|(_, pattern)| pattern)
            .collect();
        let groups = self.all().map(group).concat() + &group(("named alike", alike.iter().collect()));
        format!(
            "/* Written by `cargo xtask order`: the order of the plugin's functions (xtask/src/order.rs). */\n\
             SECTIONS\n{{\n  .plt : {{ *(.plt) }}\n  .text :\n  {{\n    *(.text)\n{groups}    *(.text.*)\n  }}\n}}\n\
             INSERT AFTER .init;\n\
             /* What only unwinding reads, behind what is read. */\n\
             SECTIONS\n{{\n  .gcc_except_table : {{ *(.gcc_except_table .gcc_except_table.*) }}\n}}\nINSERT AFTER .eh_frame;\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_left_out_of_a_symbol() {
        assert_eq!(pattern("_ZN3btl4open17h0123456789abcdefE"), "_ZN3btl4open17h*");
        assert_eq!(
            pattern("_RNvMs8_NtCsjrHSEGnQ3l9_3std4pathNtB5_4Path"),
            "_RNvMs8_NtCs*_3std4pathNtB5_4Path"
        );
        assert_eq!(pattern("mca_btl_oxib_component"), "mca_btl_oxib_component");
    }

    #[test]
    fn of_functions_that_are_named_alike_the_one_that_runs_is_named_with_its_hash() {
        let [one, two, alone] = [
            "_ZN3any1f17h0123456789abcdefE",
            "_ZN3any1f17h0123456789abcde0E",
            "_ZN3any1g17h0123456789abcdefE",
        ];
        let aliases = Aliases::of(&format!("10 t {one}\n20 t {two}\n30 t {alone}\n"));
        let ran = [one, alone].map(str::to_owned).into();
        assert_eq!(aliases.patterns(&ran), Names::from([one.to_owned(), "_ZN3any1g17h*".to_owned()]));
    }

    #[test]
    fn each_function_is_in_the_group_of_the_times_when_it_runs() {
        let names = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Names>();
        let mut groups = Groups::of([names("a b c d"), names("b e"), names("b c e f"), names("a f g")]);
        let all = |groups: &Groups| {
            groups.all().map(|(when, names)| (when, names.into_iter().cloned().collect::<Vec<_>>().join(" ")))
        };
        let expected =
            [("opening", "a d"), ("again", "c"), ("messages", ""), ("waiting", "b e"), ("later", "f g")];
        assert_eq!(all(&groups), expected.map(|(when, text)| (when, text.to_owned())));
        groups.take(["g", "b", "h"].map(str::to_owned).into());
        let expected =
            [("opening", "a d"), ("again", "c"), ("messages", "g b h"), ("waiting", "e"), ("later", "f")];
        assert_eq!(all(&groups), expected.map(|(when, text)| (when, text.to_owned())));
    }

    #[test]
    fn the_functions_of_a_profile_that_are_the_plugins_are_taken_under_all_their_names() {
        let profile = "ob=(1) /x/a.so\nfn=(1) _one\n1 2\ncfn=(2) _two\ncalls=1 2\nfn=(2)\n3 4\nfn=(3) main\n";
        let functions = functions(profile);
        assert_eq!(functions, ["_one", "_two", "main"].map(str::to_owned).into());
        let aliases = Aliases::of("10 t _two\n10 t _same\n20 T _other\n30 d _one\n");
        assert_eq!(aliases.patterns(&functions), Names::from(["_two".to_owned(), "_same".to_owned()]));
    }
}
