//! Compares what the drop-in exports with what the distribution's libibverbs exports and what its programs import.
//!
//! `readelf` (binutils) reads the symbol tables. A program that is not installed is passed over, but not all of them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use softib_dropin::link::{self, Export};
use softib_dropin::preload::{Rule, rule, ruled_names};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARIES: &[&str] =
    &["libibverbs.so.1", "libmlx5.so.1", "libefa.so.1", "librdmacm.so.1", "libfabric.so.1"];
const PLUGINS: &[&str] = &["ucx/libuct_ib.so.0", "openmpi/lib/openmpi3/mca_btl_openib.so"];
const PROGRAMS: &[&str] = &["ibv_", "ib_send_", "ib_write_", "ib_read_", "ib_atomic_", "qperf", "rping"];

/// What names no object: the library that is preloaded leaves it to the real one.
const LEFT: &[&str] = &[
    "ibv_dofork_range",
    "ibv_dontfork_range",
    "ibv_event_type_str",
    "ibv_free_buf",
    "ibv_import_device",
    "ibv_is_fork_initialized",
    "ibv_node_type_str",
    "ibv_port_state_str",
    "ibv_rate_to_mbps",
    "ibv_rate_to_mult",
    "ibv_register_driver",
    "ibv_wc_status_str",
    "mbps_to_ibv_rate",
    "mult_to_ibv_rate",
];

fn library_folder() -> PathBuf {
    let installed = |folder: &PathBuf| folder.join("libibverbs.so.1").exists();
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    folders.map(PathBuf::from).into_iter().find(installed).expect("libibverbs1 is installed")
}

/// (name, version) of a file's dynamic symbols of libibverbs: imported ones, or exported ones.
fn symbols(file: &Path, imported: bool) -> BTreeSet<(String, String)> {
    symbols_of("IBVERBS_", file, imported)
}

fn symbols_of(prefix: &str, file: &Path, imported: bool) -> BTreeSet<(String, String)> {
    let output = Command::new("readelf").args(["--dyn-syms", "-W"]).arg(file).output().expect("readelf runs");
    let text = String::from_utf8(output.stdout).unwrap();
    let parse = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, version) = words.get(7)?.split_once('@')?;
        let version = version.trim_start_matches('@').to_owned();
        let fits = (words[6] == "UND") == imported && words[4] != "LOCAL";
        (fits && version.starts_with(prefix) && !name.is_empty()).then(|| (name.to_owned(), version))
    };
    text.lines().filter_map(parse).collect()
}

/// (name, version) of a file's dynamic symbols of librdmacm.
fn cm_symbols(file: &Path, imported: bool) -> BTreeSet<(String, String)> {
    symbols_of("RDMACM_", file, imported)
}

fn ours() -> BTreeSet<(String, String)> {
    link::exports().into_iter().map(|Export { name, node, .. }| (name.to_owned(), node.to_owned())).collect()
}

fn programs() -> Vec<PathBuf> {
    let ours = |name: &str| PROGRAMS.iter().any(|prefix| name.starts_with(prefix));
    let entries = std::fs::read_dir("/usr/bin").unwrap().map(|entry| entry.unwrap());
    entries.filter(|entry| entry.file_name().to_str().is_some_and(ours)).map(|entry| entry.path()).collect()
}

#[test]
fn every_symbol_of_the_distributions_library_is_there() {
    let theirs = symbols(&library_folder().join("libibverbs.so.1"), false);
    assert!(theirs.len() > 150, "{theirs:?}");
    let missing: Vec<_> = theirs.difference(&ours()).cloned().collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_symbol_that_the_distributions_programs_import_is_there() {
    let folder = library_folder();
    let libraries = LIBRARIES.iter().chain(PLUGINS).map(|name| folder.join(name));
    let (ours, mut seen) = (ours(), 0);
    for file in programs().into_iter().chain(libraries).filter(|file| file.exists()) {
        let wanted = symbols(&file, true);
        seen += usize::from(!wanted.is_empty());
        let missing: Vec<_> = wanted.difference(&ours).collect();
        assert!(missing.is_empty(), "{} imports {missing:?}", file.display());
    }
    assert!(seen > 3, "hardly any verbs program is installed");
}

#[test]
fn a_name_has_one_default_version_and_no_version_twice() {
    let exports = link::exports();
    let pairs: BTreeSet<(&str, &str)> = exports.iter().map(|export| (export.name, export.node)).collect();
    assert_eq!(pairs.len(), exports.len(), "a name is twice in one version");
    let names: BTreeSet<&str> = exports.iter().map(|export| export.name).collect();
    let defaults: Vec<&str> =
        exports.iter().filter(|export| export.default).map(|export| export.name).collect();
    assert_eq!(defaults.len(), names.len());
    let default = exports.iter().find(|export| export.name == "ibv_open_device" && export.default).unwrap();
    assert_eq!(default.node, "IBVERBS_1.1");
}

#[test]
fn every_public_name_is_told_apart_by_its_object_or_left_to_the_real_library() {
    let names: BTreeSet<&str> = link::exports().iter().map(|export| export.name).collect();
    assert!(ruled_names().all(|name| names.contains(name)), "a rule is for a name that does not exist");
    assert_eq!(ruled_names().count(), ruled_names().collect::<BTreeSet<_>>().len(), "a name has two rules");
    let public = link::exports().into_iter().filter(|export| export.node.starts_with("IBVERBS_1."));
    let real: BTreeSet<&str> =
        public.map(|export| export.name).filter(|name| rule(name) == Rule::Real).collect();
    let undecided: Vec<_> =
        real.iter().filter(|name| !LEFT.contains(name) && !name.starts_with("ibv_copy_")).collect();
    assert!(undecided.is_empty(), "{undecided:?}");
}

#[test]
fn the_private_interface_of_providers_and_historical_versions_stay_the_real_librarys() {
    for (export, _) in link::preload_exports() {
        let private = export.node.starts_with("IBVERBS_PRIVATE");
        assert!(!private || export.name == "ibv_query_gid_type", "{export:?}");
        assert!(export.node != "IBVERBS_1.0" || !["ibv_open_device", "ibv_reg_mr"].contains(&export.name));
    }
}

#[test]
fn the_connection_manager_has_every_symbol_of_the_distributions_library_and_programs() {
    let ours: BTreeSet<(String, String)> =
        softib::CM_CALLS.iter().map(|call| (call.name.to_owned(), call.node.to_owned())).collect();
    assert_eq!(ours.len(), softib::CM_CALLS.len(), "a name is twice");
    let theirs = cm_symbols(&library_folder().join("librdmacm.so.1"), false);
    assert!(theirs.len() > 60, "{theirs:?}");
    let missing: Vec<_> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for file in programs() {
        let wanted = cm_symbols(&file, true);
        let missing: Vec<_> = wanted.difference(&ours).collect();
        assert!(missing.is_empty(), "{} imports {missing:?}", file.display());
    }
}
