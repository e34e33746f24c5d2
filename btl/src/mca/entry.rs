//! What the component calls when Open MPI calls it: the way into the transport.

use super::params::Params;
use super::show::Refusal;
use crate::transport::stats::Stats;
use opal_sys::{Abi, mca_btl_base_module_t};
use std::ffi::c_int;

/// The transport's side of the component.
#[derive(Debug)]
pub struct Entry {
    /// Puts the callbacks into the template module. It comes before the parameters are registered:
    /// Open MPI registers those of put and get only for a module that has them.
    pub functions: fn(&mut mca_btl_base_module_t),
    /// Opens devices and makes one module per port; `threads`: MPI_THREAD_MULTIPLE was asked for.
    /// The modules live until [`close`](Self::close).
    pub init: fn(&Params, &'static Abi, threads: bool) -> Result<Vec<*mut mca_btl_base_module_t>, Refusal>,
    /// Moves things on; returns how many completions it saw. It guards itself ([`super::guard`]): most calls only glance.
    pub progress: fn() -> c_int,
    /// What all ports have counted, those included that are closed.
    pub counters: fn() -> Stats,
    /// After the last module's finalize, or after an init without modules. Joins what is left.
    pub close: fn(),
}

/// The transport of this build.
pub static TRANSPORT: Entry = Entry {
    functions: super::start::functions,
    init: super::start::init,
    progress: super::start::progress,
    counters: super::start::counters,
    close: super::start::close,
};
