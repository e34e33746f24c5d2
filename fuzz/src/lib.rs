//! Bytes from a peer, any bytes: what each parser must do with them.
//!
//! ```text
//!   fuzz/src/             the bodies: a function of bytes that panics if something does not hold
//!   fuzz/corpus/TARGET/   inputs that reach different code, one a file; tests/corpora.rs replays them in every `cargo xtask test`
//!   fuzz/libfuzzer/       the same bodies as programs of cargo-fuzz: `cargo xtask fuzz TARGET`
//! ```
//!
//! | target         | the bytes are                                            | code that reads them                |
//! |----------------|----------------------------------------------------------|-------------------------------------|
//! | `datagram`     | a datagram of ibcm or xrc                                | `cpc::wire::datagram`               |
//! | `private_data` | the private data of a CM message of rdmacm               | `cpc::wire::{Hello, join, refusal}` |
//! | `modex`        | an address message of a port, as a process publishes it  | `btl::protocol::modex`, the managers' blobs |
//! | `layout`       | a `receive_queues` string                                | `btl::protocol::layout`             |
//! | `header`       | a message of the transport                               | `btl::protocol::wire`               |
//! | `cell`         | cells that a process writes into the ring of another one | softib, as far as a completion       |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::undocumented_unsafe_blocks,
    reason = "a body fails by panicking, and so do the helpers that it shares with softib's tests"
)]

#[path = "../../softib/tests/common/mod.rs"]
mod common;
#[path = "../../softib/tests/common/xrc.rs"]
mod xrc;

mod cell;
mod datagram;
mod header;
mod layout;
mod modex;
mod private_data;

/// One target: its name, which is its corpus's folder, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 6] = [
    ("cell", cell::run),
    ("datagram", datagram::run),
    ("header", header::run),
    ("layout", layout::run),
    ("modex", modex::run),
    ("private_data", private_data::run),
];

/// Runs the body of target `name`.
///
/// # Panics
/// Something does not hold for `data`, or there is no such target.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|(target, _)| *target == name);
    let (_, body) = target.unwrap_or_else(|| panic!("no fuzz target {name}"));
    body(data);
}
