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

/// What the driver has to do.
pub mod action;
mod api;
mod handlers;
/// States and inputs, without their data.
pub mod kinds;
/// The machine itself: endpoints, links, hooks.
pub mod machine;
pub(crate) mod parking;
pub(crate) mod rng;
/// Counters.
pub mod stats;
/// The macros of the tables.
pub mod table;
pub(crate) mod timeline;
pub(crate) mod timers;
pub(crate) mod window;
