//! The raw libibverbs ABI: types, constants, inline verbs and the control path as a table.
//!
//! Nothing here links to rdma-core. A verbs program talks to its library in two ways:
//!
//! ```text
//!   control path   ibv_open_device, ibv_create_qp, ...   exported symbols        -> [`Table`]
//!   data path      ibv_post_send, ibv_poll_cq, ...       pointers in ibv_context -> [`inline`]
//! ```
//!
//! The data path is pure struct-pointer code, so one set of inline verbs serves every device whose library hands
//! out real `ibv_context`, `ibv_qp`, ... structs. The control path is a table of function pointers.
//! The loader in `verbs` fills it from `libibverbs.so.1`, or the linked-in software device with its
//! own functions.
//!
//! Names are C's, exactly. C enums are integer aliases with constants, never Rust enums: the values are foreign and
//! a newer library may send new ones. `__be16`/`__be32`/`__be64` are plain integers in network byte order; the field's
//! comment says so. Layouts are asserted at compile time in [`layout`] and compared with the distribution's header by
//! `tests/layout.rs`, both from one list.
//!
//! | file        | what                                                                    |
//! |-------------|-------------------------------------------------------------------------|
//! | `device`    | device, context, the ops table, the extended context                     |
//! | `attr`      | device and port attributes, GIDs                                         |
//! | `memory`    | protection domains, memory regions and windows, access flags             |
//! | `cq`        | completions, completion queues and channels                              |
//! | `srq`, `qp` | receive pools, queue pairs, XRC domains and their attributes             |
//! | `wr`        | work requests                                                            |
//! | `ah`        | address handles and the GRH                                              |
//! | `event`     | asynchronous events                                                      |
//! | `inline`    | the verbs that `verbs.h` defines inline                                  |
//! | `table`     | the control path, one function pointer a verb                            |
//!
//! Source: `infiniband/verbs.h` of rdma-core (public ABI IBVERBS_1.x, which only grows).

#![allow(non_camel_case_types, non_snake_case)]
// These structs are foreign memory: some are concurrently written by the library (mutexes, event counts), and most
// hold unions. Printing them is a decision of the layer above.
#![allow(missing_debug_implementations)]

#[macro_use]
mod macros;

pub mod ah;
pub mod attr;
pub mod cq;
pub mod device;
pub mod event;
pub mod inline;
pub mod layout;
pub mod memory;
pub mod qp;
pub mod srq;
pub mod table;
pub mod wr;

pub use ah::*;
pub use attr::*;
pub use cq::*;
pub use device::*;
pub use event::*;
pub use inline::*;
#[doc(hidden)]
pub use macros::c_name;
pub use memory::*;
pub use qp::*;
pub use srq::*;
pub use table::*;
pub use wr::*;
