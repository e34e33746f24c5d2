//! RDMA verbs, safe: owned objects over whichever device the process has.
//!
//! ```text
//!   Driver ──devices()──> Device ──open()──> Context ──> Pd ──> Mr, Pool (Buf, Posted), Srq, Qp, Ah
//!   rdma-core by dlopen, or                     └──────> Cq, CompChannel, async events
//!   a software device's table                 └──────> Xrcd ──> XrcRecvQp, Srq
//! ```
//!
//! Every object keeps its parents alive, so the order of destruction is right by itself. `Drop` never panics: what a
//! device refuses to give back is logged and left. The data path ([`Cq::poll`], `post_*`) builds its work request on the
//! stack, allocates nothing and is inlined down to the driver's function pointer.
//!
//! Memory is safe by ownership: a [`Buf`] is ours and can be read and written; posting it turns it into a [`Posted`],
//! which cannot; its [`Completion`], which only a poll makes, turns it back (`posted` says what that proves). An [`Outbox`] has many messages at a time, and its memory is there as long as its queue pair. Memory of others is registered with the unsafe [`Mr::register`], whose
//! caller promises that it outlives the registration; keys keep everyone else out of it.

mod ah;
mod chain;
/// Ids, event channels and their events.
pub mod cm;
mod context;
mod cq;
mod descriptor;
mod driver;
mod error;
mod event;
mod landing;
mod loader;
mod mr;
mod ops;
mod outbox;
mod placed;
mod pool;
mod posted;
mod qp;
mod qp_attr;
mod recv;
mod request;
/// Threads without signals.
pub mod signals;
mod srq;
mod types;
mod wc;
mod xrc;
mod xrcd;

pub use ah::Ah;
pub use chain::{SendChain, Sent};
pub use context::{Atomics, Context, Device, DeviceAttr, PortAttr, PortState};
pub use cq::{Broken, CompChannel, Cq, CqId};
pub use driver::Driver;
pub use error::{Error, Explain, explain_errors};
pub use event::{AsyncEvent, EventKind, Subject};
pub use landing::{Landing, Place, Watch, WordRead};
pub use mr::{Access, Mr, Pd, locked_memory};
pub use outbox::{Outbox, Part, Room};
pub use pool::{Buf, Pool, PoolConfig, PoolError};
pub use posted::{Destroyed, Posted, SEND_COUNT};
pub use qp::{Pieces, Qp, QpHandle, ShortWriter};
pub use qp_attr::{AhAttr, InitAttr, QpCap, QpInit, QpKind, QpState, RtrAttr, RtsAttr};
pub use recv::{Filling, Lent, Recv, RecvList, RecvQueue, Unposted};
pub use request::{AtomicOp, RdmaOp, Remote, SendFlags, Sge};
pub use srq::{Srq, SrqId};
pub use types::{Gid, GidType, LKey, Lid, LinkLayer, Mtu, Psn, QKey, Qpn, RKey, SrqNum};
pub use wc::{Completion, Completions, Wc, WcOpcode, WcStatus};
pub use xrc::{XrcRecvQp, XrcSend};
pub use xrcd::{Xrcd, XrcdOpen};
