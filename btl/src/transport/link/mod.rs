//! Connections: from a peer's name to an endpoint that flows, and back.
#![forbid(unsafe_code)]

mod alternate;
mod close;
mod connect;
mod ending;
mod itself;
mod keepalive;
mod opening;
mod renew;
mod resume;
mod unlist;

pub use close::Removal;
pub use connect::{AddError, Settled};
pub(super) use keepalive::Keepalive;
pub(super) use renew::Renewal;
