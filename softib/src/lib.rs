//! A software RDMA device between the processes of one host, with the libibverbs ABI.
//!
//! ```text
//!    program ──> abi       C structs and functions: control path (table), data path (ops)
//!                 │
//!              objects     QPs, CQs, SRQs, MRs, ... as Rust structs
//!            send  deliver the initiator's side and the target's side of a message; rdma: one-sided operations; xrc: both for XRC
//!                 │
//!              engine      one per process: lock, progress, device thread
//!                 │
//!               shm        the segment: rings, receive queues, QP and MR tables, liveness
//! ```
//!
//! No daemon, no kernel module, no root: each process has a segment in /dev/shm (SOFTIB_DIR), and peers map each
//! other's. A send consumes a receive in the target's segment by its own hand and puts the payload into the ring of
//! the process pair; the target's poll, or its device thread, places it. Between two polling processes there is no system call
//! per message.
//!
//! Users take [`driver_table`] and see real `ibv_context`, `ibv_qp`, ... structs; [`cm_table`] holds librdmacm's calls for the
//! same device (`cm`).

mod abi;
mod clock;
mod cm;
mod deliver;
mod dm;
mod engine;
#[doc(hidden)]
pub mod errno;
pub mod faults;
mod iwarp;
mod objects;
mod paging;
pub mod port;
mod rdma;
mod rdma_ring;
mod reason;
mod send;
#[doc(hidden)]
pub mod shm;
mod window;
mod xrc;

pub use abi::dm::{import_dm, unimport_dm};
pub use abi::import::{import_device, import_mr, import_pd, unimport_mr, unimport_pd};
pub use abi::listing::{is_device, number_of as device_number};
pub use abi::memory::reg_mr_iova;
pub use abi::multicast::{attach_mcast, detach_mcast};
pub use abi::qp_ex::qp_to_qp_ex;
pub use abi::rereg::rereg_mr;
pub use abi::table::driver_table;
pub use cm::cm_table;
pub use cm::exports::{CM_CALLS, CmCall};

/// The directory of the segments (SOFTIB_DIR, default /dev/shm): processes that agree in it, in the boot id and in the user can
/// reach each other.
pub fn segment_dir() -> String {
    shm::folder::configured().to_string_lossy().into_owned()
}

pub use engine::world::Stats;
pub use engine::{check_address_space, reserve, stats};
pub use reason::{Carrier, carry_reasons, mute_reasons, take_reason};
