//! The C face: control functions for the table, data path functions for `ibv_context.ops`.
//!
//! Each `extern "C"` function guards against unwinding, turns pointers into references or indices, and calls a safe
//! function. Programs vouch for the pointers they pass, as in libibverbs.
//!
//! ```text
//! guard     panics and errors at the border       handle   from C structs to objects
//! limits    longest queues                        listing  device list, names, GUIDs
//! command   command descriptors                   event    completion and asynchronous events
//! create    PD, CQ, channel                       srq      SRQs
//! address   address handles                       port     port, GID and P_Key queries
//! memory    regions                               rereg    memory regions that change
//! dm        device memory                         domain   thread domains, parent domains
//! values    attributes of QPs                     binding  binds of memory windows, checked
//! ops       send requests                         receive  receives
//! window    memory windows                        poll     poll, arm
//! cq_ex     completions field by field            multicast queue pairs that listen to groups
//! xrc       XRC domains and SRQs                  shared_qp receive QPs that belong to a domain
//! queue     QPs: create, modify, query, destroy   qp_ex    requests call by call
//! device    contexts, queries                     import   objects once more
//! table     the driver table
//! ```

pub mod address;
pub mod binding;
pub mod command;
pub mod cq_ex;
pub mod create;
pub mod device;
pub mod dm;
pub mod domain;
pub mod event;
pub mod guard;
pub mod handle;
pub mod import;
pub mod limits;
pub mod listing;
pub mod memory;
pub mod multicast;
pub mod ops;
pub mod poll;
pub mod port;
pub mod qp_ex;
pub mod queue;
pub mod receive;
pub mod rereg;
pub mod shared_qp;
pub mod srq;
pub mod table;
pub mod values;
pub mod window;
pub mod xrc;
