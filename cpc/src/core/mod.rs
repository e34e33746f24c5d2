//! What every connection manager needs once: random numbers from a seed, one table of timers, when what happened.
#![forbid(unsafe_code)]

pub(crate) mod rng;
pub(crate) mod timeline;
pub(crate) mod timers;
