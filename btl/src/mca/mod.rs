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
//! A component that has nothing to offer, in a job that never asked for it, starts nothing and says nothing.

mod callbacks;
pub mod component;
pub mod entry;
mod frag;
pub mod guard;
mod handle;
pub mod log;
pub mod modex_io;
mod module;
pub mod params;
mod peers;
pub mod show;
mod start;
