//! Transitions of queue pairs that a connection manager has prepared.

use crate::qp_attr::{Change, QpState};
use crate::types::Qpn;
use rdma_sys as sys;

/// Attributes for one transition, as the connection manager negotiated them, and what the caller changes in them.
#[derive(Clone, Copy)]
pub struct Prepared {
    attr: sys::ibv_qp_attr,
    mask: u32,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "to {}, mask {:#x}", self.state_name(), self.mask)
    }
}

impl Prepared {
    pub(super) fn new(attr: sys::ibv_qp_attr, mask: u32) -> Prepared {
        Prepared { attr, mask }
    }

    pub(crate) fn change(&self) -> Change {
        (self.attr, self.mask)
    }

    pub(crate) fn state_name(&self) -> &'static str {
        match QpState::from_sys(self.attr.qp_state) {
            QpState::Rtr => "RTR",
            QpState::Rts => "RTS",
            _ => "its next state",
        }
    }

    /// For another queue pair of the same connection.
    pub fn to_qpn(mut self, qpn: Qpn) -> Prepared {
        self.attr.dest_qp_num = qpn.0;
        self
    }

    /// RTR: the delay that we ask for when no receive is posted; the connection manager says 0, which means 655 ms.
    pub fn with_min_rnr_timer(mut self, code: u8) -> Prepared {
        self.attr.min_rnr_timer = code;
        self
    }

    /// RTR: RDMA reads that we serve at a time, at most.
    pub fn with_reads_served(mut self, most: u8) -> Prepared {
        self.attr.max_dest_rd_atomic = self.attr.max_dest_rd_atomic.min(most);
        self
    }

    /// RTS: coded acknowledgement timeout, retries, RNR retries (7 without end).
    pub fn with_retries(mut self, timeout: u8, retries: u8, rnr_retries: u8) -> Prepared {
        (self.attr.timeout, self.attr.retry_cnt, self.attr.rnr_retry) = (timeout, retries, rnr_retries);
        self
    }

    /// RTS: RDMA reads that we have outstanding, at most.
    pub fn with_reads_outstanding(mut self, most: u8) -> Prepared {
        self.attr.max_rd_atomic = self.attr.max_rd_atomic.min(most);
        self
    }
}
