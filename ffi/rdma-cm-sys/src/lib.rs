//! The raw librdmacm ABI: types, constants and the calls as a table.
//!
//! Nothing here links to rdma-core. The [`Table`] is filled by the loader in `verbs` from `librdmacm.so.1`, or by the
//! linked-in software device with its own functions; both hand out the structs declared here.
//!
//! ```text
//!   rdma_event_channel <── fd, events ── rdma_cm_id ── connect, accept, disconnect ──> the peer's rdma_cm_id
//!                                          │ route: both addresses, path
//!                                          └ verbs, qp: real verbs objects
//! ```
//!
//! Names are C's, exactly. C enums are integer aliases with constants, never Rust enums: the values are foreign and a
//! newer library may send new ones. Layouts are asserted at compile time in [`layout`] and compared with the
//! distribution's header by `tests/layout.rs`, both from one list.
//!
//! | file     | what                                                |
//! |----------|-----------------------------------------------------|
//! | `types`  | ids, channels, events, parameters                   |
//! | `table`  | one function pointer a call                         |
//! | `layout` | sizes and offsets, and the list of all constants    |
//! | `address`| socket addresses: C's and ours, and this host's     |
//!
//! Source: `rdma/rdma_cma.h` of rdma-core (public ABI RDMACM_1.x, which only grows).

#![allow(non_camel_case_types)]
// These structs are foreign memory, and most hold unions. Printing them is a decision of the layer above.
#![allow(missing_debug_implementations)]

pub mod address;
pub mod layout;
pub mod table;
pub mod types;

pub use table::*;
pub use types::*;
