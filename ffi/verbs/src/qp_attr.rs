//! Attributes of queue pairs, and which of them each transition takes (ibv_modify_qp(3), IBTA 11.2.5.2).

use crate::cq::Cq;
use crate::mr::Access;
use crate::srq::Srq;
use crate::types::{Gid, Lid, Mtu, Psn, QKey, Qpn};
use rdma_sys as sys;
use std::sync::Arc;

/// Service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// The sending side of XRC: no receives, so `recv_cq` and `srq` are not used. Each request names an SRQ.
    XrcSend,
}

/// Sizes of a queue pair; the device may grant more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Send work requests outstanding.
    pub max_send_wr: u32,
    /// Receives outstanding; 0 with a shared queue.
    pub max_recv_wr: u32,
    /// Pieces of a send.
    pub max_send_sge: u32,
    /// Pieces of a receive.
    pub max_recv_sge: u32,
    /// Bytes of an inline send.
    pub max_inline: u32,
}

/// What a queue pair is made of.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Service.
    pub kind: QpKind,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// Shared receive queue, if it draws from one.
    pub srq: Option<Arc<Srq>>,
    /// Sizes.
    pub cap: QpCap,
    /// Every send completes visibly.
    pub sig_all: bool,
}

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// Fresh.
    Reset,
    /// May post receives.
    Init,
    /// Receives.
    Rtr,
    /// Sends.
    Rts,
    /// Draining its sends.
    Sqd,
    /// Send queue in error (datagrams).
    Sqe,
    /// Flushes everything.
    Err,
    /// A value of `ibv_qp_state` that we do not know.
    Other(u32),
}

impl QpState {
    pub(crate) fn from_sys(state: u32) -> QpState {
        match state {
            sys::IBV_QPS_RESET => QpState::Reset,
            sys::IBV_QPS_INIT => QpState::Init,
            sys::IBV_QPS_RTR => QpState::Rtr,
            sys::IBV_QPS_RTS => QpState::Rts,
            sys::IBV_QPS_SQD => QpState::Sqd,
            sys::IBV_QPS_SQE => QpState::Sqe,
            sys::IBV_QPS_ERR => QpState::Err,
            other => QpState::Other(other),
        }
    }
}

/// RESET to INIT.
#[derive(Clone, Copy, Debug)]
pub struct InitAttr {
    /// Port, from 1.
    pub port: u8,
    /// Index into its P_Key table.
    pub pkey_index: u16,
    /// What peers may do (connected services).
    pub access: Access,
    /// Key of the datagram service.
    pub qkey: QKey,
}

/// INIT to RTR of a connected service.
#[derive(Clone, Copy, Debug)]
pub struct RtrAttr {
    /// Path MTU, the lower of both ends.
    pub mtu: Mtu,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// Its first packet's number.
    pub rq_psn: Psn,
    /// RDMA reads and atomics that we answer at a time.
    pub max_dest_rd_atomic: u8,
    /// Coded delay that we ask for when no receive is posted.
    pub min_rnr_timer: u8,
    /// The way to the peer.
    pub path: AhAttr,
}

/// RTR to RTS of a reliable connection.
#[derive(Clone, Copy, Debug)]
pub struct RtsAttr {
    /// Our first packet's number.
    pub sq_psn: Psn,
    /// Coded acknowledgement timeout.
    pub timeout: u8,
    /// Retries without an answer, 0 to 7.
    pub retry_cnt: u8,
    /// Retries while the peer has no receive, 7 without end.
    pub rnr_retry: u8,
    /// RDMA reads and atomics that we start at a time.
    pub max_rd_atomic: u8,
}

/// The way to a port.
#[derive(Clone, Copy, Debug)]
pub struct AhAttr {
    /// Our port.
    pub port: u8,
    /// Its LID; 0 on Ethernet.
    pub dlid: Lid,
    /// Service level.
    pub sl: u8,
    /// Its GID, our index, hop limit: on Ethernet, and between subnets.
    pub gid: Option<(Gid, u8, u8)>,
}

impl AhAttr {
    pub(crate) fn to_sys(self) -> sys::ibv_ah_attr {
        let mut attr =
            sys::ibv_ah_attr { dlid: self.dlid.0, sl: self.sl, port_num: self.port, ..Default::default() };
        if let Some((gid, index, hop_limit)) = self.gid {
            attr.is_global = 1;
            attr.grh.dgid = gid.to_sys();
            attr.grh.sgid_index = index;
            attr.grh.hop_limit = hop_limit;
        }
        attr
    }
}

/// Attributes and the mask that names them.
pub(crate) type Change = (sys::ibv_qp_attr, u32);

fn to(state: u32) -> Change {
    let attr = sys::ibv_qp_attr { qp_state: state, ..Default::default() };
    (attr, sys::IBV_QP_STATE)
}

pub(crate) fn init(kind: QpKind, a: &InitAttr) -> Change {
    let (mut attr, mut mask) = to(sys::IBV_QPS_INIT);
    attr.port_num = a.port;
    attr.pkey_index = a.pkey_index;
    mask |= sys::IBV_QP_PORT | sys::IBV_QP_PKEY_INDEX;
    if kind == QpKind::Ud {
        attr.qkey = a.qkey.0;
        mask |= sys::IBV_QP_QKEY;
    } else {
        attr.qp_access_flags = a.access.bits();
        mask |= sys::IBV_QP_ACCESS_FLAGS;
    }
    (attr, mask)
}

pub(crate) fn rtr(kind: QpKind, a: &RtrAttr) -> Change {
    let (mut attr, mut mask) = to(sys::IBV_QPS_RTR);
    attr.path_mtu = a.mtu as u32;
    attr.dest_qp_num = a.dest_qpn.0;
    attr.rq_psn = a.rq_psn.0;
    attr.ah_attr = a.path.to_sys();
    mask |= sys::IBV_QP_PATH_MTU | sys::IBV_QP_DEST_QPN | sys::IBV_QP_RQ_PSN | sys::IBV_QP_AV;
    if kind == QpKind::Rc {
        attr.max_dest_rd_atomic = a.max_dest_rd_atomic;
        attr.min_rnr_timer = a.min_rnr_timer;
        mask |= sys::IBV_QP_MAX_DEST_RD_ATOMIC | sys::IBV_QP_MIN_RNR_TIMER;
    }
    (attr, mask)
}

pub(crate) fn rts(kind: QpKind, a: &RtsAttr) -> Change {
    let (mut attr, mut mask) = to(sys::IBV_QPS_RTS);
    attr.sq_psn = a.sq_psn.0;
    mask |= sys::IBV_QP_SQ_PSN;
    if matches!(kind, QpKind::Rc | QpKind::XrcSend) {
        attr.timeout = a.timeout;
        attr.retry_cnt = a.retry_cnt;
        attr.rnr_retry = a.rnr_retry;
        attr.max_rd_atomic = a.max_rd_atomic;
        mask |= sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_MAX_QP_RD_ATOMIC;
    }
    (attr, mask)
}

pub(crate) fn datagram_rtr() -> Change {
    to(sys::IBV_QPS_RTR)
}

pub(crate) fn datagram_rts(psn: Psn) -> Change {
    let (mut attr, mask) = to(sys::IBV_QPS_RTS);
    attr.sq_psn = psn.0;
    (attr, mask | sys::IBV_QP_SQ_PSN)
}

pub(crate) fn error() -> Change {
    to(sys::IBV_QPS_ERR)
}
