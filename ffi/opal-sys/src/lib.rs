//! The part of Open MPI's component ABI (MCA, OPAL, BTL) that a BTL needs, written by hand.
//!
//! Nothing here links to Open MPI. A plugin is loaded by a process that already holds libopen-pal, whose
//! soname differs between releases, so every symbol is looked up at run time. That also lets unit tests,
//! benches and tools link this crate where no Open MPI exists.
//!
//! ```text
//!   Base    what every release has in the same shape: output, MCA variables
//!     |
//!   Abi     Base + checked class sizes + the common BTL symbols + one Family
//!     |
//!   Family  a table of functions for what differs: modex, receive callback, host names
//!             v4_1   Open MPI 4.1 (BTL 3.1): `opal_pmix`, four-argument receive callback
//! ```
//!
//! Types carry their C names. Layouts are asserted at compile time here and compared with the installed
//! headers by `tests/layout.rs`. Sources: `opal/mca/btl/btl.h`, `opal/mca/mca.h`, `opal/class/opal_object.h`,
//! `opal/datatype/opal_convertor.h`, `opal/dss/dss_types.h`, `opal/util/proc.h` of v4.1.4, and `btl.h` of v5.0.5.
#![allow(non_camel_case_types)]
#![allow(missing_debug_implementations, reason = "foreign structures have nothing to print")]

mod abi;
mod base;
mod btl;
mod class;
mod convertor;
mod family;
mod mca;
mod process;
mod status;
mod symbols;
mod v4_1;

pub use abi::{Abi, AbiError};
pub use base::{Base, StringVar};
pub use btl::*;
pub use class::*;
pub use convertor::*;
pub use family::{Family, ModexError, NoReceiver};
pub use mca::*;
pub use process::*;
pub use status::*;
