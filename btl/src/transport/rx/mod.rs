//! Receiving: the sources of messages, the slots of receive buffers, what goes up.
#![forbid(unsafe_code)]

mod credit;
mod cts;
mod failed;
pub(super) mod qpns;
mod recv;
mod shared;
pub(super) mod slots;
mod xrc;
