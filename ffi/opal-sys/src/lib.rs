//! The part of Open MPI's component ABI (MCA, OPAL, BTL) that a BTL needs, written by hand.
//!
//! Nothing here links to Open MPI. A plugin is loaded by a process that already holds libopen-pal, whose
//! soname differs between releases, so every symbol is looked up at run time. That also lets unit tests,
//! benches and tools link this crate where no Open MPI exists.
//!
//! ```text
//!   Base    what every release has in the same shape: output, MCA variables
//!     |
//!   Abi     Base + a checked build + the common BTL symbols + one Family
//!     |
//!   Family  a table of functions for what differs: modex, receive callback, host names
//!             v4_1   Open MPI 4.1 (BTL 3.1): `opal_pmix`, four-argument receive callback
//!             v5_0   Open MPI 5.0 (BTL 3.3): PMIx itself, receive callback with one descriptor
//! ```
//!
//! Types carry their C names. Layouts are asserted at compile time here and compared with the installed
//! headers by `tests/layout.rs`. Sources: `opal/mca/btl/btl.h`, `opal/mca/mca.h`, `opal/class/opal_object.h`,
//! `opal/datatype/opal_convertor.h`, `opal/util/proc.h` of v4.1.4 and v5.0.7, `opal/dss/dss_types.h` of v4.1.4,
//! `pmix_common.h` of PMIx 5.0.7.
#![allow(non_camel_case_types)]
#![allow(missing_debug_implementations, reason = "foreign structures have nothing to print")]

mod abi;
mod base;
mod btl;
mod checks;
mod class;
mod convertor;
mod error;
mod family;
mod mca;
mod memory;
mod process;
mod status;
mod symbols;
mod v4_1;
mod v5_0;

pub use abi::Abi;
pub use base::{Base, CounterClass, CounterVar, ReadCounterFn, StringVar};
pub use btl::*;
pub use class::*;
pub use convertor::*;
pub use error::AbiError;
pub use family::{Family, ModexError, NoReceiver, Tray};
pub use mca::*;
pub use memory::{LeavePinned, MemoryHooks, opal_mem_hooks_callback_fn_t};
pub use process::*;
pub use status::*;
