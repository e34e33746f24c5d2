//! Shared receive queues.

use super::CBox;
use super::recvq::RecvQ;
use super::xrc::XrcSrq;
use rdma_sys::ibv_srq;

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    pub c: CBox<ibv_srq>,
    pub context: usize,
    pub pd: usize,
    pub queue: RecvQ,
    /// Fires SRQ_LIMIT_REACHED once when fewer receives are left; 0: not armed.
    pub limit: u32,
    pub users: u32,
    pub async_events: u32,
    /// Set for an XRC SRQ.
    pub xrc: Option<XrcSrq>,
}
