//! Every input that fuzzing has kept, replayed: what held for it once holds still.

#![allow(clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use std::path::{Path, PathBuf};

fn inputs(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    inputs.sort();
    inputs
}

fn replay(target: &str) {
    let inputs = inputs(target);
    assert!(inputs.len() >= 8, "the corpus of {target} has {} inputs", inputs.len());
    for path in inputs {
        let data = std::fs::read(&path).expect("an input");
        std::panic::catch_unwind(|| fuzz::run(target, &data))
            .unwrap_or_else(|_| panic!("{target} fails with {}", path.display()));
    }
}

#[test]
fn every_kept_datagram_is_read_as_it_is_written_or_refused() {
    replay("datagram");
}

#[test]
fn every_kept_private_data_is_read_as_it_is_written_or_refused() {
    replay("private_data");
}

#[test]
fn every_kept_address_message_is_read_as_it_is_written_or_refused() {
    replay("modex");
}

#[test]
fn every_kept_layout_is_sane_or_refused_with_its_place() {
    replay("layout");
}

#[test]
fn every_kept_message_is_read_alike_on_both_paths() {
    replay("header");
}

#[test]
fn every_kept_run_of_cells_leaves_memory_alone_and_completes_each_receive_once_at_most() {
    replay("cell");
}

#[test]
fn each_target_has_a_corpus_and_a_program() {
    for (target, _) in fuzz::TARGETS {
        let program =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("libfuzzer/fuzz_targets/{target}.rs"));
        assert!(program.is_file(), "{} is missing", program.display());
        assert!(!inputs(target).is_empty());
    }
}
