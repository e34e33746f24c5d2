//! ibcm: connections by the InfiniBand CM protocol over a UD queue pair of our own.
//!
//! No kernel CM, no IP address and no rights are needed: the datagrams have the format of the IB specification (IBTA vol. 1,
//! chapter 12), but they travel between the UD queue pairs of the job's processes, whose addresses are in the modex. It does not
//! talk to a kernel's ib_cm.
//!
//! # The exchange
//! One exchange connects all queue pairs of an endpoint. REQ and REP carry up to 15 QPNs, the process name, the queue layout
//! and the number of the stream in 56 bytes of private data, behind them the layout's fingerprint and what fits of its text, and one starting PSN for all QPs.
//!
//! ```text
//!   active                                     passive
//!   QPs made, INIT, CTS receive posted
//!   REQ (id W) ------------------------------> QPs made, INIT, CTS receive posted
//!                                              RTR, RTS
//!   RTR, RTS <------------------ REP (id L, W)
//!   Connected                                                        1 round trip
//!   RTU (W, L) ------------------------------> Connected             1 1/2 round trips
//!   CTS <------------------------------------- CTS                   2 round trips
//! ```
//! A fragment of the active side leaves after one round trip with shared queues only, and after two where a clear-to-send is
//! awaited. The passive side is in RTS before it replies, but is not reported as connected before it knows that the peer is up:
//! by the RTU, or by the first data ([`crate::Service::first_data`]), which cover a late or lost RTU.
//!
//! # What keeps it right
//! * **Loss**: REQ, REP and DREQ are repeated with exponential back-off and seeded jitter, a bounded number of times. A repeated REQ
//!   is answered by the same REP, a repeated REP by the same RTU. Failure is reported with its reason.
//! * **Crossing requests**: of two REQs that cross, the one of the lower modex address stands ([`crate::wire::listener::Address::outranks`]); its
//!   sender ignores the other's, whose sender answers as if it had not asked. Two REQs, one REP, one RTU, no extra round trip.
//! * **Incarnations**: every datagram carries the incarnations of sender and receiver, which are in the modex; every exchange has an id at
//!   each end, from a counter with a random start. A datagram of a former process, endpoint or exchange matches none and is counted.
//!   Each side remembers the last id that a peer opened: an older REQ is stale, and rejected as such; its sender, if
//!   it is still there, asks again under a new id.
//! * **Half-open connections**: a REP, RTU or DREQ for an exchange that is gone is answered (REJ, REJ, DREP), so a side that holds
//!   half a connection learns of it. A new REQ from a connected peer means that it has started anew: the old connection is
//!   reported as disconnected, the REQ waits for the new endpoint.
//! * **Unknown peers**: with direct modex a REQ may come from a process that has no endpoint here yet. It is kept and acknowledged
//!   (MRA), the main thread is told, and the REQ is served when the endpoint is added; after a deadline it is refused.
//! * **Layouts**: number, kind and fingerprint of the queues travel in every REQ and REP; unlike ones are refused (REJ), and both sides report both.
//! * **Storms**: only so many REQs wait for their first answer at a time; one that is not answered at once gives its place to the
//!   next, so a stopped peer holds up no other.
//! * **The end**: DREQ, DREP, and a TimeWait in which late datagrams are still answered. Crossing DREQs answer each other. Nothing
//!   waits for a dead peer: repetitions are bounded, and so is [`crate::Service::close`].
//!
//! # The parts
//! [`machine`]: the protocol, without I/O. [`crate::wire`]: bytes to values and back, the modex blob among them. `driver::ibcm`: the
//! driver on the helper thread, over the UD queue pair of `driver::datagrams`.

/// The protocol.
pub mod machine;

pub use crate::config::datagram::Params;
pub use crate::driver::Q_KEY;
