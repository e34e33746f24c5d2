//! What every connection manager needs once.
//!
//! ```text
//!   rng  timers  timeline  window  parking  stats      each a tool of its own
//!   action                what a machine asks of its driver
//!   machine               what a manager has of its own, and where it and the core keep what they know
//!   handlers  api         what the managers' handlers are made of; what the driver calls
//!   kinds  table          what the core knows of states and inputs; the macros that make a manager's table
//! ```
#![forbid(unsafe_code)]

pub mod action;
mod api;
mod handlers;
pub mod kinds;
pub mod machine;
pub(crate) mod parking;
pub(crate) mod rng;
pub mod stats;
pub mod table;
pub(crate) mod timeline;
pub(crate) mod timers;
pub(crate) mod window;
