//! Every layout that ships in `configs/` parses, says why it is there, and holds the limits that it
//! is used with.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use mca_btl_oxib::protocol::layout::{DEFAULT, Kind, Layout};

/// File, kinds of its queues, index of the smallest per-peer queue.
const SHIPPED: &[(&str, &str, Option<usize>)] = &[
    ("default.conf", "PSSS", Some(0)),
    ("iwarp.conf", "PPP", Some(0)),
    ("many-queues.conf", "PSPSPSPSPSPSPSS", Some(0)),
    ("mixed.conf", "SPSP", Some(1)),
    ("p-only.conf", "PPPP", Some(0)),
    ("s-only.conf", "SSSS", None),
    ("small-eager.conf", "PPS", Some(0)),
    ("tiny-windows.conf", "PPPP", Some(0)),
    ("x-only.conf", "XXXX", None),
];

const PREFIX: &str = "btl_oxib_";
const DEFAULT_EAGER_LIMIT: usize = 12288;
const DEFAULT_MAX_SEND_SIZE: usize = 65536;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../configs")
}

fn read(file: &str) -> String {
    fs::read_to_string(folder().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The `name = value` lines, without our prefix.
fn parameters(file: &str) -> BTreeMap<String, String> {
    let text = read(file);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line.split_once('=').unwrap_or_else(|| panic!("{file}: no '=' in {line}"));
            let name = name.trim().strip_prefix(PREFIX);
            let name = name.unwrap_or_else(|| panic!("{file}: not a parameter of oxib: {line}"));
            (name.to_owned(), value.trim().to_owned())
        })
        .collect()
}

fn bytes(parameters: &BTreeMap<String, String>, name: &str, default: usize) -> usize {
    parameters.get(name).map_or(default, |value| value.parse().expect("a number of bytes"))
}

fn layout(file: &str) -> Layout {
    let parameters = parameters(file);
    let text = parameters.get("receive_queues").unwrap_or_else(|| panic!("{file}: no receive_queues"));
    Layout::parse(text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn the_folder_holds_exactly_the_layouts_that_the_tests_know() {
    let entries = fs::read_dir(folder()).expect("configs");
    let mut files: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".conf"))
        .collect();
    files.sort();
    let known: Vec<&str> = SHIPPED.iter().map(|(file, ..)| *file).collect();
    assert_eq!(files, known);
}

#[test]
fn every_layout_parses_is_spelled_out_and_holds_its_limits() {
    for &(file, kinds, smallest_p) in SHIPPED {
        let layout = layout(file);
        let letter = |kind: &Kind| match kind {
            Kind::PerPeer { .. } => 'P',
            Kind::Shared(_) => 'S',
            Kind::Xrc(_) => 'X',
        };
        let found: String = layout.queues().iter().map(|queue| letter(&queue.kind)).collect();
        assert_eq!((found.as_str(), layout.smallest_p()), (kinds, smallest_p), "{file}");
        let parameters = parameters(file);
        assert_eq!(parameters["receive_queues"], layout.to_string(), "{file}: spell every field out");
        let eager = bytes(&parameters, "eager_limit", DEFAULT_EAGER_LIMIT);
        let send = bytes(&parameters, "max_send_size", DEFAULT_MAX_SEND_SIZE);
        assert_eq!(layout.check_limits(eager, send), Ok(()), "{file}");
    }
}

#[test]
fn the_default_file_spells_out_the_built_in_default() {
    assert_eq!(layout("default.conf").to_string(), DEFAULT);
}

#[test]
fn every_file_begins_with_its_reason_and_shows_its_use() {
    for &(file, ..) in SHIPPED {
        let text = read(file);
        let comments: Vec<&str> = text.lines().take_while(|line| line.starts_with('#')).collect();
        assert!(comments.len() >= 5, "{file}: give the reason");
        assert!(
            text.contains(&format!("mpirun --mca mca_base_param_files configs/{file} ")),
            "{file}: show the use"
        );
        assert!(text.lines().all(|line| !line.starts_with('#') || line.len() <= 130), "{file}: long lines");
    }
}
