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

/// `ibv_create_ah`, `ibv_destroy_ah`.
pub mod address;
/// `ibv_create_cq_ex`.
pub mod cq_ex;
/// `ibv_alloc_pd`, `ibv_create_comp_channel`, `ibv_create_cq`, and their ends.
pub mod create;
/// `ibv_open_device`, `ibv_close_device`, `ibv_query_device`.
pub mod device;
/// `ibv_get_cq_event`, `ibv_get_async_event`, and their acknowledgements.
pub mod event;
/// Memory windows, device memory, parent domains, imports, multicast.
pub mod extras;
/// `ibv_context.ops` under a plan of faults.
pub mod faulty;
/// Panics and errors at the border.
pub mod guard;
/// Indices behind C structs.
pub mod handle;
/// `max_cqe`, `max_qp_wr`.
pub mod limits;
/// `ibv_get_device_list`, `ibv_get_device_name`, `ibv_get_device_guid`.
pub mod listing;
/// `ibv_reg_mr`, `ibv_dereg_mr`, `ibv_advise_mr`, `ibv_alloc_null_mr`.
pub mod memory;
/// `ibv_post_send`.
pub mod ops;
/// `ibv_poll_cq`, `ibv_req_notify_cq`.
pub mod poll;
/// `ibv_query_port`, `ibv_query_gid`, `ibv_query_pkey`.
pub mod port;
/// `ibv_create_qp_ex`, `ibv_qp_to_qp_ex`.
pub mod qp_ex;
/// `ibv_create_qp`, `ibv_modify_qp`, `ibv_query_qp`, `ibv_destroy_qp`.
pub mod queue;
/// `ibv_post_recv`, `ibv_post_srq_recv`.
pub mod receive;
/// `ibv_open_qp`.
pub mod shared_qp;
/// `ibv_create_srq`, `ibv_modify_srq`, `ibv_query_srq`, `ibv_destroy_srq`.
pub mod srq;
/// The functions behind `verbs::Driver`.
pub mod table;
/// The checks of `ibv_modify_qp`.
pub mod values;
/// `ibv_open_xrcd`, `ibv_create_srq_ex`, `ibv_get_srq_num`, `ibv_close_xrcd`.
pub mod xrc;
