//! Sending: what goes out, what waits, and what each completion gives back.
#![forbid(unsafe_code)]

mod complete;
mod control;
/// What a flush waits for.
pub mod flush;
pub(super) mod path;
mod post;
mod rdma;
mod replay;
mod send;
mod xrc;
