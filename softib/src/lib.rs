//! A software RDMA device between the processes of one host, with the libibverbs ABI.
//!
//! ```text
//!    program ──> abi       C structs and functions: control path (table), data path (ops);  cm: librdmacm's calls
//!                 │
//!              engine      one per process: lock, progress, device thread;  faults: what goes wrong on demand
//!                 │
//!             datapath     initiator and responder: what requests and messages do
//!                 │
//!              objects     QPs, CQs, SRQs, MRs, ... as Rust structs
//!                 │
//!              fabric      who this process is: nodes, devices, ports;  extras: memory that only some programs ask for
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
mod datapath;
mod engine;
/// Errors.
#[doc(hidden)]
pub mod errno;
mod extras;
mod fabric;
/// Faults on demand, for tests.
pub mod faults;
mod objects;
mod reason;
/// What processes share.
#[doc(hidden)]
pub mod shm;

/// The node, the devices and the ports of this process.
pub mod port {
    pub use crate::abi::device::configure;
    pub use crate::abi::port::gid_type;
    pub use crate::fabric::{
        LinkLayer, PortAddress, Settings, SettingsError, Variable, header_sum, link_layer, link_layer_of,
        prefix_of,
    };
}

pub use abi::extras::dm::{import_dm, unimport_dm};
pub use abi::extras::import::{import_device, import_mr, import_pd, unimport_mr, unimport_pd};
pub use abi::extras::multicast::{attach_mcast, detach_mcast};
pub use abi::extras::rereg::rereg_mr;
pub use abi::listing::{is_device, number_of as device_number};
pub use abi::memory::reg_mr_iova;
pub use abi::qp_ex::qp_to_qp_ex;
pub use abi::table::driver_table;
pub use cm::cm_table;
pub use cm::exports::{CM_CALLS, CmCall};

/// The directory of the segments (SOFTIB_DIR, default /dev/shm): processes that agree in it, in the boot id and in the user can
/// reach each other.
pub fn segment_dir() -> String {
    shm::folder::configured().to_string_lossy().into_owned()
}

pub use engine::{check_address_space, registered_bytes, reserve, stats};
pub use objects::world::Stats;
pub use reason::{Carrier, carry_reasons, mute_reasons, take_reason};
