//! The face that Open MPI sees: one exported component, its parameters, its output.
//!
//! ```text
//!   Open MPI --register--> params    table -> variables, help, documentation
//!            --open------>           variables -> Params, or one clear message
//!            --init------> entry     the transport's own init makes the modules
//!            --progress--> entry
//!            --close-----> entry
//! ```
//!
//! A component that has nothing to offer, in a job that never asked for it, starts nothing and says
//! nothing.

/// Whether other threads sleep.
mod asleep;
mod callbacks;
/// The exported component and its life.
pub mod component;
/// Counters as performance variables.
pub mod counters;
/// Files of device parameters.
mod device_files;
/// What the component calls of the rest.
pub mod entry;
mod frag;
/// No panic crosses into C.
pub mod guard;
mod handle;
/// What is released of the process's memory.
mod hooks;
/// The `log` crate, through Open MPI's output.
pub mod log;
/// Ranges of memory, from any thread to readers.
mod marks;
/// The exchange of addresses.
pub mod modex_io;
mod module;
/// The parameters, one table.
pub mod params;
mod peers;
mod registrations;
/// Messages that a user must see.
pub mod show;
mod start;
/// The code of the start, unmapped when it has run.
mod startup;
mod timelines;
/// The user's values, the files', the defaults.
mod tuned;
