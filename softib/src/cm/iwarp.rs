//! Connections on an iWARP port: each is a stream of one queue pair, which the device itself takes to RTS.
//!
//! ```text
//!   active                                              passive
//!   connect, its QP in INIT     ── REQ ────────────>    CONNECT_REQUEST
//!   QP to RTS, ESTABLISHED      <──────────── REP ──    accept: QP to RTS, ESTABLISHED
//!   QP to ERR, DISCONNECTED     <── DREQ, or end ──>    QP to ERR, DISCONNECTED
//! ```
//! The queue pair is the id's own, or the one whose number stands in the parameters of `rdma_connect` and `rdma_accept`. The passive
//! side hears of its end first: it may not send before the active side has ([`crate::datapath::iwarp`]).

use super::world::{Id, State};
use super::{device, qp};
use crate::abi::queue;
use crate::errno::Errno;
use crate::objects::qp::Stream;
use rdma_sys::{IBV_QPS_RTR, IBV_QPS_RTS};

/// Whether the id's queue pair can be connected. EINVAL: there is none, or it is not in INIT.
pub fn check(id: &Id) -> Result<(), Errno> {
    queue::check_idle(id.ours.qpn)
}

/// Takes the id's queue pair to RTS, both sides being known.
pub fn bring_up(id: &Id, stream: Stream) -> Result<(), Errno> {
    let steps = [qp::wire_attributes(id, IBV_QPS_RTR)?, qp::wire_attributes(id, IBV_QPS_RTS)?];
    queue::connect_stream(id.ours.qpn, &steps, stream)
}

/// The id's request was refused, or nothing came of it: its queue pair goes to ERR, as with the kernel's siw.
pub fn spend(id: &Id) {
    if device::is_iwarp() && id.state == State::Asked && id.socket.is_some() {
        queue::end_stream(id.ours.qpn);
    }
}

/// The connection is over, if there was one.
pub fn end(id: &Id) {
    if device::is_iwarp() && id.theirs.is_some() {
        queue::end_stream(id.ours.qpn);
    }
}
