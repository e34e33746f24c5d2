//! Bytes from a peer or a user, any bytes: what each parser must do with them; and operations in any order, decoded from bytes.
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
//! | `device_ini`   | a file of device parameters                              | `btl::protocol::device_ini`         |
//! | `settings`     | the environment that softib is configured by             | `softib::port::Settings`, `softib::faults::Plan` |
//! | `header`       | a message of the transport                               | `btl::protocol::wire`               |
//! | `cell`         | cells that a process writes into the ring of another one | softib, as far as a completion       |
//! | `endpoint`     | events of an endpoint, and the ends of its streams       | `btl::transport::endpoint`          |
//! | `ibcm`, `rdmacm`, `xrc` | a history of processes and their network, in virtual time | the managers' machines      |
//! | `transport`    | what processes do with transports over softib            | `btl::transport`, all of it         |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::undocumented_unsafe_blocks,
    reason = "a body fails by panicking, and so do the worlds that it shares with the tests of softib, cpc and btl"
)]

#[path = "../../softib/tests/common/mod.rs"]
mod common;
#[path = "../../softib/tests/common/xrc.rs"]
mod xrc;

#[path = "../../cpc/tests/sim/mod.rs"]
mod sim;

mod cell;
mod datagram;
mod device_ini;
mod endpoint;
mod header;
mod histories;
mod layout;
mod modex;
mod private_data;
mod settings;
mod transport;

/// One target: its name, which is its corpus's folder, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 13] = [
    ("cell", cell::run),
    ("datagram", datagram::run),
    ("device_ini", device_ini::run),
    ("endpoint", endpoint::run),
    ("header", header::run),
    ("ibcm", histories::ibcm),
    ("layout", layout::run),
    ("modex", modex::run),
    ("private_data", private_data::run),
    ("rdmacm", histories::rdmacm),
    ("settings", settings::run),
    ("transport", transport::run),
    ("xrc", histories::xrc),
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
