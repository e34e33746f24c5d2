//! The connection manager: librdmacm's calls for the software device, between the processes of one user on one host.
//!
//! ```text
//!    program ──> api, endpoint, srq, id,    the C functions; sync: calls that wait for their event
//!                addrinfo
//!                   │
//!        resolve, listen, connect, multicast    what calls and messages do to an id      qp, queues, device: its verbs objects
//!                   │
//!             channel, alarm                events; one pollable descriptor a channel, and its deadlines
//!                   │
//!          late, carrier, message           packets between processes
//! ```
//! No kernel module, no daemon, no thread. Addresses are those of this host: every interface, and loopback. A port is a lock in a
//! file (`shm::ports`), a listener a socket in SOFTIB_DIR (`carrier`), a connection of ids a connection of sockets, whose
//! end the kernel reports however a process ends. Everything else goes through the device's own verbs, as in librdmacm.
//!
//! Where the real one is generous or strict, so is this: private data limits, fields padded to their size, events of a destroyed id
//! discarded, `rdma_destroy_id` waiting for acknowledgements, RNR timer 0. AF_IB and rsockets are not offered.

mod address;
/// `rdma_getaddrinfo`, `rdma_freeaddrinfo`.
pub mod addrinfo;
mod alarm;
/// `rdma_create_id` and most other calls.
pub mod api;
mod carrier;
mod channel;
mod connect;
mod device;
/// `rdma_create_ep`, `rdma_get_request`, `rdma_destroy_ep`.
pub mod endpoint;
/// The names of librdmacm.so.1.
pub mod exports;
mod id;
mod iwarp;
mod late;
mod limits;
mod listen;
mod message;
mod multicast;
/// `rdma_event_str`.
pub mod names;
mod qp;
mod queues;
mod resolve;
mod srq;
mod sync;
mod table;
mod world;

pub use table::cm_table;

/// Reasons of rejections (IBTA 12.6.7.2), and states of datagram look-ups (IBTA 12.11.2).
mod reject {
    /// There is no listener.
    pub const INVALID_SERVICE_ID: i32 = 8;
    /// The program refuses.
    pub const CONSUMER: i32 = 28;
    /// What iWARP has for all of them.
    pub const IWARP: i32 = -libc::ECONNREFUSED;
    /// Of a datagram id: there is no listener.
    pub const SIDR_UNSUPPORTED: i32 = 1;
    /// Of a datagram id: the program refuses.
    pub const SIDR_REJECT: i32 = 2;
}
