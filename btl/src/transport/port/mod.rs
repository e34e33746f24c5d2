//! A port: the device, what is opened on it for all peers, and its events.
#![forbid(unsafe_code)]

pub(super) mod buffer;
/// What a transport is told from outside.
pub mod config;
pub(super) mod depth;
/// Which device and port a transport runs on.
pub mod device;
mod domain;
/// Entries of the completion queues that connections have reserved.
pub mod entries;
/// What the device tells.
pub mod events;
mod gids;
/// Which ports are near to the process.
pub mod near;
mod open;
mod opened;
pub(super) mod queue;

pub use domain::{Domain, DomainError};
pub(super) use open::{OpenError, Opened};
pub(super) use opened::OpenPort;
