//! Every input that fuzzing has kept, replayed: what held for it once holds still.

#![allow(clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod replay;

use replay::{inputs, replay};
use std::path::Path;

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
fn every_kept_file_of_device_parameters_applies_or_is_refused_with_its_place() {
    replay("device_ini");
}

#[test]
fn every_kept_environment_is_possible_or_its_variable_is_named() {
    replay("settings");
}

#[test]
fn every_kept_order_of_events_leaves_an_endpoint_that_keeps_its_promises() {
    replay("endpoint");
}

#[test]
fn every_kept_history_of_ibcm_ends_in_connections_or_reports() {
    replay("ibcm");
}

#[test]
fn every_kept_history_of_rdmacm_ends_in_connections_or_reports() {
    replay("rdmacm");
}

#[test]
fn every_kept_history_of_xrc_ends_in_connections_or_reports() {
    replay("xrc");
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
