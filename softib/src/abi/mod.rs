//! The C face: control functions for the table, data path functions for `ibv_context.ops`.
//!
//! Each `extern "C"` function guards against unwinding, turns pointers into references or indices, and calls a safe
//! function. Programs vouch for the pointers they pass, as in libibverbs.
//!
//! ```text
//! guard     panics and errors at the border       handle   from C structs to objects
//! limits    longest queues                        listing  device list, names, GUIDs
//! event     completion and asynchronous events    create   PD, CQ, channel
//! srq       SRQs                                  memory   regions
//! address   address handles                       port     port, GID and P_Key queries
//! values    attributes of QPs                     queue    QPs: create, modify, query, destroy
//! ops       send requests                         receive  receives
//! poll      poll, arm                             cq_ex    completions field by field
//! xrc       XRC domains and SRQs                  shared_qp receive QPs that belong to a domain
//! qp_ex     requests call by call                 extras   what few programs ask for
//! faulty    the data path under a plan of faults  device   contexts, queries
//! table     the driver table
//! ```

pub mod address;
pub mod cq_ex;
pub mod create;
pub mod device;
pub mod event;
pub mod extras;
pub mod faulty;
pub mod guard;
pub mod handle;
pub mod limits;
pub mod listing;
pub mod memory;
pub mod ops;
pub mod poll;
pub mod port;
pub mod qp_ex;
pub mod queue;
pub mod receive;
pub mod shared_qp;
pub mod srq;
pub mod table;
pub mod values;
pub mod xrc;
