//! rdmacm: connections by RDMA-CM, between IP addresses.
//!
//! It needs an IP address on the RDMA port and a connection manager: the kernel's, through librdmacm, or the software device's.
//! In return the network's own manager does the work: it repeats what is lost, finds the path, and knows every kind of port.
//!
//! # The exchange
//! One id connects all queue pairs of an endpoint. Request and reply carry the QPNs, the process name, the queue layout and
//! the number of the stream in 56 bytes of private data ([`crate::wire::Hello`]); the starting PSN, one for all QPs, and the path are the
//! connection manager's, and reach the QPs through `rdma_init_qp_attr`. What it leaves at the slowest value, or cannot know, is set
//! again: RNR timer, RNR retries, timeouts, the peer's QPNs.
//!
//! ```text
//!   active                                        passive (its listener is in the modex)
//!   resolve address, resolve route
//!   QPs made, INIT, CTS receive posted
//!   rdma_connect ---------- REQ ----------------> CONNECT_REQUEST: QPs made, INIT, CTS receive posted
//!                                                 RTR, RTS
//!   CONNECT_RESPONSE <----- REP ----------------- rdma_accept
//!   RTR, RTS, rdma_establish, Connected
//!                    ------ RTU ----------------> ESTABLISHED, Connected
//! ```
//!
//! # What keeps it right
//! * **Crossing requests**: of two, the one of the lower modex address stands ([`Address::outranks`](crate::wire::ip::Address::outranks)): its sender refuses the
//!   other's, whose sender answers with the QPs that it has. A request that arrives after its sender has already answered ours
//!   carries the QPNs that we are connected to, and is refused as late, not taken for a new start.
//! * **Data before ESTABLISHED** stand in for it ([`crate::Service::first_data`]), and the connection manager is told.
//! * **A peer that starts anew**, **peers that are not known yet**, **unlike layouts**: as with ibcm.
//! * **Loss** is the connection manager's; what it gives up (UNREACHABLE, no route, no listener) is tried again after a pause with
//!   jitter, a bounded number of times.
//! * **Storms**: only so many requests are under way at a time.
//! * **The end**: `rdma_disconnect`, and a deadline. Nothing waits for a dead peer: openib's finalize did.
//!
//! # iWARP
//! A connection ends at one queue pair, and the device takes it to RTS. The first queue's is made as above and settles everything;
//! then its active side asks for the others, all at once, with private data that say whose they are ([`crate::wire::join`]). When all are up,
//! the transport is told who has to send first: the active side, on every queue pair ([`crate::Event::Order`]). Of two crossing
//! requests the one that stands is answered when the other is refused. Queue pairs of a try that came to nothing are not used again (the
//! kernel's siw takes them to the error state). There is no RNR: layouts with
//! shared queues, where a message may find no receive, are refused.
//!
//! Two calls of the helper thread may take longer on the kernel's siw: `rdma_connect`, which connects the TCP socket, and `rdma_destroy_id` of an
//! id whose request is out, which waits for the peer's answer, 10 s at most. A crossing request is held for that reason, too: no id is
//! destroyed before its answer is there.
//!
//! # The parts
//! [`machine`]: the protocol, without I/O. `driver::rdmacm`: the driver that ties it to ids on the helper thread. In [`crate::wire`]:
//! `ip`, the modex blob; `refusal`, why a request is refused; `join`, whose a further connection is.

/// The protocol.
pub mod machine;

pub use crate::config::rdmacm::Params;
