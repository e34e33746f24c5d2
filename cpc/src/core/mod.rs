//! What every connection manager needs once: random numbers from a seed, one table of timers, when what happened,
//! and the shape of a table of transitions.
#![forbid(unsafe_code)]

pub(crate) mod rng;
pub(crate) mod table;
pub(crate) mod timeline;
pub(crate) mod timers;
