//! What an iWARP device does otherwise: RDMA over TCP (RFC 5040, 5041, 5044).
//!
//! ```text
//!   initiator                                  responder
//!   rdma_connect ─────── MPA request ────────> rdma_accept: its queue pair is in RTS, but silent (Waits)
//!   queue pair in RTS  <── MPA reply ─────────
//!   (Opens)  first request of any kind ──────> from now on it may send, too (Free)
//! ```
//! * A queue pair is one TCP stream. The connection manager takes it from INIT to RTS; `ibv_modify_qp` cannot.
//! * The responder may not send before something has come over the stream (RFC 5044, 7.1): a request that it posts before
//!   fails, and so does its queue pair. Some adapters would hold it back, and others send it and break the connection.
//! * No receive for a message: no RNR, no second try, the connection is lost.
//! * The target of a READ is written to by the peer: its region needs the right to be (ibv_reg_mr(3)).
//! * RC only; no immediate data, no atomics, no memory windows, no XRC.
#![forbid(unsafe_code)]

use crate::errno::Errno;
use crate::objects::mr::Mrs;
use crate::objects::qp::{Qp, Stream};
use crate::objects::world::World;
use crate::shm::qptable;
use rdma_sys::*;

/// A request of a queue pair that is not free yet. Some(status): it fails with this.
#[cold]
pub fn first_request(qp: &mut Qp, w: &mut World) -> Option<u32> {
    let fine = match qp.stream {
        Stream::Free => return None,
        Stream::Opens => open(qp, w),
        Stream::Waits => qptable::is_opened(&w.segment.map, qp.index, qp.generation),
    };
    if !fine {
        let peer_is_gone = qp.stream == Stream::Opens;
        return Some(if peer_is_gone { IBV_WC_RETRY_EXC_ERR } else { IBV_WC_LOC_QP_OP_ERR });
    }
    qp.stream = Stream::Free;
    // The state stays; what follows goes straight out.
    qp.set_state(qp.state, w);
    None
}

/// Tells the responder's queue pair that its stream is open.
fn open(qp: &mut Qp, w: &mut World) -> bool {
    let me = (qp.num, w.segment.incarnation);
    let Some(link) = qp.link.as_mut() else { return false };
    let Ok(peer) = w.peers.connected(link) else { return false };
    if !link.is_open(peer, me) {
        return false;
    }
    qptable::mark_opened(&peer.map, link.index, link.view.generation);
    true
}

/// What a program may do with `ibv_modify_qp`: the way to RTS is the connection manager's.
pub fn check(from: u32, to: u32) -> Result<(), Errno> {
    match (from, to) {
        (IBV_QPS_RESET | IBV_QPS_INIT, IBV_QPS_INIT) | (_, IBV_QPS_RESET) => Ok(()),
        (from, IBV_QPS_ERR) if from != IBV_QPS_RESET => Ok(()),
        (IBV_QPS_RTS, IBV_QPS_RTS) => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

/// Whether there are such requests; a READ has one buffer (max_sge_rd).
pub fn offers(opcode: u32, buffers: i32) -> bool {
    matches!(opcode, IBV_WR_SEND | IBV_WR_RDMA_WRITE) || opcode == IBV_WR_RDMA_READ && buffers == 1
}

/// The device's attributes, as far as they are others than those of an InfiniBand device.
pub fn limit(attr: &mut ibv_device_attr) {
    attr.device_cap_flags = IBV_DEVICE_SYS_IMAGE_GUID;
    attr.atomic_cap = IBV_ATOMIC_NONE;
    attr.max_sge_rd = 1;
    (attr.max_mw, attr.max_ah, attr.max_pkeys) = (0, 0, 0);
    (attr.max_mcast_grp, attr.max_mcast_qp_attach, attr.max_total_mcast_qp_attach) = (0, 0, 0);
}

/// Whether a READ may put its answer there.
pub fn may_read_into(mrs: &Mrs, sges: &[ibv_sge]) -> bool {
    sges.iter().all(|sge| sge.length == 0 || mrs.takes_remote_writes(sge.lkey))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_reach_init_error_and_reset_but_not_rtr_and_rts() {
        assert!(check(IBV_QPS_RESET, IBV_QPS_INIT).is_ok());
        assert!(check(IBV_QPS_INIT, IBV_QPS_RTR).is_err());
        assert!(check(IBV_QPS_RTR, IBV_QPS_RTS).is_err());
        assert!(check(IBV_QPS_RTS, IBV_QPS_SQD).is_err());
        assert!(check(IBV_QPS_RTS, IBV_QPS_ERR).is_ok() && check(IBV_QPS_RESET, IBV_QPS_ERR).is_err());
        assert!(check(IBV_QPS_ERR, IBV_QPS_RESET).is_ok());
    }
}
