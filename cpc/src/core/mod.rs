//! What every connection manager needs once: random numbers from a seed, timers, a window for requests, requests that wait for their
//! endpoint, when what happened, and the shape of a table of transitions.
#![forbid(unsafe_code)]

pub(crate) mod parking;
pub(crate) mod rng;
pub(crate) mod table;
pub(crate) mod timeline;
pub(crate) mod timers;
pub(crate) mod window;
