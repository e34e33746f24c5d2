//! Compares every size, offset and constant of the crate with the installed `infiniband/verbs.h`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

mod header;

use std::path::Path;

use header::{Fact, Header, every_struct_is_listed, type_facts};
use rdma_sys::layout::{CONSTANTS, TYPES};
use rdma_sys::{IBV_ALLOCATOR_USE_DEFAULT, VERBS_ABI_IS_EXTENDED};

const VERBS: Header = Header { include: "infiniband/verbs.h", package: "libibverbs-dev" };

/// C has no name for the first three: each is one member of an anonymous union, and checked as a field of its struct. The last two
/// are ours. (The table of functions is too, but a macro declares it.)
const UNLISTED: [&str; 5] =
    ["ibv_wc_imm", "ibv_send_wr_imm", "ibv_send_wr_rare", "device_with_slack", "ShortWrite"];

fn constant_facts() -> Vec<Fact> {
    let named = CONSTANTS.iter().copied().flatten().map(|&(name, value)| (name.to_owned(), value));
    let pointers = [
        ("(intptr_t)__VERBS_ABI_IS_EXTENDED".to_owned(), VERBS_ABI_IS_EXTENDED as i64),
        ("(intptr_t)IBV_ALLOCATOR_USE_DEFAULT".to_owned(), IBV_ALLOCATOR_USE_DEFAULT as i64),
    ];
    named.chain(pointers).collect()
}

#[test]
fn every_size_offset_and_constant_is_that_of_the_installed_header() {
    let mut facts: Vec<Fact> = TYPES.iter().flat_map(type_facts).collect();
    facts.extend(constant_facts());
    VERBS.confirms(&facts);
}

#[test]
fn every_struct_of_the_crate_is_in_the_list() {
    every_struct_is_listed(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), TYPES, &UNLISTED);
}
