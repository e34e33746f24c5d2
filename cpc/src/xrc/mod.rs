//! xrc: connections of X layouts. One send queue pair leads to all processes of a node.
//!
//! The processes of a job on one node share an XRC domain, which is named by a file. A process that has something to send to
//! one of them makes a send queue pair; the one it asks first makes the receive queue pair for it, which belongs to the
//! domain: the others only take a handle of it each, and say which shared receive queues are theirs.
//!
//! ```text
//!   process A                                            node N, domain D
//!   send qp S ────────────────────────> receive qp R ──> SRQs of process B   made R, has a handle
//!             one for (port of N, D)                └──> SRQs of process C   has a handle
//! ```
//! # The exchange
//! The datagrams and their way are ibcm's, with a mark of their own. Every direction is opened by who sends in it, so requests
//! that cross do not concern each other.
//!
//! ```text
//!   A                                          B                        C
//!   S made, INIT
//!   REQ (id W, S, no receiver) --------------> R made, RTR
//!   S to RTR, RTS <---- REP (L, W, R, SRQs)
//!   connected to B
//!   REQ (id X, S, receiver R) -----------------------------------------> handle of R
//!   connected to C <------------------------------ REP (M, X, R, SRQs)
//! ```
//! # What keeps it right
//! * **One connection a node**: its key is the remote port and the domain. Endpoints that want to connect while it is on its way wait
//!   for it, and then only learn SRQ numbers. If the process that was asked first does not answer at once, the next is asked
//!   over a send queue pair of its own, then two more, then four: a slow or stopped process holds up no other for more than its first
//!   time-out. A slow one moves over to the connection that is up by then.
//! * **No receiver**: a process sends its SRQ numbers only when it has a handle of R. If R is gone (its last holder has left), the answer is
//!   a refusal that says so, and the requester begins anew with a new S.
//! * **A broken connection** ([`crate::Service::renew`]): the transport says of each endpoint whether it is to go on; those ask
//!   again, over a new S, and who is asked replaces what it had.
//! * **Restarts**: incarnations of a process grow. A request of a later one teaches where that is, and ends what was with the former one; one of
//!   a former one is stale.
//! * **A DREQ that was never answered**: a process that has given up repeating it says in its next REQ which exchanges are over, so that
//!   the peer does not take the messages of a new endpoint for repetitions of the old one's.
//! * **Loss, unknown peers, layouts, storms, the end**: as with ibcm. DREQ goes to each process, for each has a handle; S
//!   goes with the last endpoint, R with the last handle.
//!
//! # The parts
//! [`machine`]: the protocol, without I/O. `driver::xrc`: the driver that ties it to queue pairs and datagrams on the helper thread.
//! In [`crate::wire`]: `xrc`, bytes to values and back; `domain`, the modex blob.

/// The protocol.
pub mod machine;

pub use crate::config::datagram::Params;
pub use crate::wire::domain::DomainId;
