//! `cargo xtask order`: writes `btl/link/order.ld`, by which the linker puts the plugin's functions in order.
//!
//! The kernel maps code in windows of 64 KiB around each page that is executed. In the order of the compiler a job that starts touches all of
//! them, so that a process has all of the plugin's code in its memory. So what runs before the end of MPI_Init stands together, behind it what else runs in
//! jobs of a few messages, then the rest.
//!
//! Which functions these are is what `valgrind --tool=callgrind` counted in such jobs over three layouts. The hashes in their names, which change
//! with the compiler, are left out. A function that is not found, or that is not in the list, costs memory, nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::args::{Args, Options};
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
const RANKS: usize = 3;
const DEADLINE: Limits = Limits { deadline: Duration::from_secs(300), silence: None };

/// Functions, as the symbol table names them.
type Names = BTreeSet<String>;

/// `cargo xtask order`.
pub fn command(args: Args) -> Result<()> {
    let workspace = Workspace::find()?;
    packages::ensure(&[&packages::MPI[..], &[VALGRIND]].concat(), !args.flag("no-install"))?;
    let plugin = build::build(&workspace, false)?;
    let aliases = Aliases::read(&plugin)?;
    let (start, all) = counted(&workspace)?;
    let (start, all) = (aliases.patterns(&start), aliases.patterns(&all));
    let later: Names = all.difference(&start).cloned().collect();
    let path = workspace.root.join(FILE);
    std::fs::write(&path, script(&start, &later)).context(format_args!("cannot write {}", path.display()))?;
    say!("{}: {} functions of the start, {} further ones", path.display(), start.len(), later.len());
    Ok(())
}

/// What runs until the end of MPI_Init, and what runs at all.
fn counted(workspace: &Workspace) -> Result<(Names, Names)> {
    let mpi = OpenMpi::in_path();
    let program = Programs::new(&mpi, &workspace.root, &workspace.target)?.compiled("memory")?;
    let segments = SegmentFolder::create()?;
    let (mut start, mut all) = (Names::new(), Names::new());
    for (index, way) in ways::of(&mpi).filter(|way| way.name.starts_with("oxib")).enumerate() {
        tell!("{}", way.name);
        let folder = fresh(workspace.target.join("order").join(index.to_string()))?;
        let job = way.job(&mpi, workspace, segments.path(), RANKS, Path::new("valgrind"));
        let (out, program) =
            (format!("--callgrind-out-file={}/%p", folder.display()), program.to_string_lossy());
        let callgrind = ["-q", "--tool=callgrind", "--demangle=no", "--dump-after=PMPI_Init", &out, &program];
        job.arguments(callgrind).expect_success(DEADLINE)?;
        for (name, text) in texts(&folder)? {
            let functions = functions(&text);
            // Of each process, the file of what ran first, and that of the rest. X queues are not the default.
            if name.ends_with(".1") && index == 0 {
                start.extend(functions.iter().cloned());
            }
            all.extend(functions);
        }
    }
    Ok((start, all))
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

/// The names of each address: equal functions are one, under the names of all, and only one of these is its section's.
struct Aliases(BTreeMap<String, Names>);

impl Aliases {
    fn read(plugin: &Path) -> Result<Aliases> {
        let output = Command::new("nm").arg(plugin).output().context("cannot run nm")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut at: BTreeMap<&str, Names> = BTreeMap::new();
        for line in text.lines() {
            if let [address, "t" | "T", name] = line.split(' ').collect::<Vec<_>>()[..] {
                at.entry(address).or_default().insert(name.to_owned());
            }
        }
        let of_each =
            |names: &Names| names.iter().map(|name| (name.clone(), names.clone())).collect::<Vec<_>>();
        Ok(Aliases(at.values().flat_map(of_each).collect()))
    }

    /// What the sections of those of these functions that are the plugin's are called in any build.
    fn patterns(&self, functions: &Names) -> Names {
        functions.iter().filter_map(|name| self.0.get(name)).flatten().map(|name| pattern(name)).collect()
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

fn script(start: &Names, later: &Names) -> String {
    // Cold functions are in sections of names like `.text.unlikely.` and the symbol.
    let rows = |names: &Names| names.iter().map(|name| format!("    *(.text*{name})\n")).collect::<String>();
    format!(
        "/* Written by `cargo xtask order`: the order of the plugin's functions (xtask/src/order.rs). */\n\
         SECTIONS\n{{\n  .plt : {{ *(.plt) }}\n  .text :\n  {{\n    *(.text)\n    /* Until the end of MPI_Init. */\n{}    /* Later. */\n{}    *(.text.*)\n  }}\n}}\n\
         INSERT AFTER .init;\n\
         /* What only unwinding reads, behind what is read. */\n\
         SECTIONS\n{{\n  .gcc_except_table : {{ *(.gcc_except_table .gcc_except_table.*) }}\n}}\nINSERT AFTER .eh_frame;\n",
        rows(start),
        rows(later)
    )
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
    fn the_functions_of_a_profile_that_are_the_plugins_are_taken_under_all_their_names() {
        let profile = "ob=(1) /x/a.so\nfn=(1) _one\n1 2\ncfn=(2) _two\ncalls=1 2\nfn=(2)\n3 4\nfn=(3) main\n";
        let functions = functions(profile);
        assert_eq!(functions, ["_one", "_two", "main"].map(str::to_owned).into());
        let both = Names::from(["_two".to_owned(), "_same".to_owned()]);
        let aliases = Aliases(both.iter().map(|name| (name.clone(), both.clone())).collect());
        assert_eq!(aliases.patterns(&functions), both);
    }
}
