//! Compares every size, offset and constant of the crate with the installed `rdma/rdma_cma.h`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

#[path = "../../rdma-sys/tests/header/mod.rs"]
mod header;

use std::path::Path;

use header::{Fact, Header, every_struct_is_listed, type_facts};
use rdma_cm_sys::layout::{CONSTANTS, TYPES};

const CMA: Header = Header { include: "rdma/rdma_cma.h", package: "librdmacm-dev" };

/// A member of an anonymous union in C; checked as a field of its struct.
const UNLISTED: [&str; 1] = ["rdma_cm_event_param"];

#[test]
fn every_size_offset_and_constant_is_that_of_the_installed_header() {
    let mut facts: Vec<Fact> = TYPES.iter().flat_map(type_facts).collect();
    facts.extend(CONSTANTS.iter().map(|&(name, value)| (name.to_owned(), value)));
    CMA.confirms(&facts);
}

#[test]
fn every_struct_of_the_crate_is_in_the_list() {
    every_struct_is_listed(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), TYPES, &UNLISTED);
}
