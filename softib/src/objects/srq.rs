//! Shared receive queues.

use super::CBox;
use super::recvq::RecvQ;
use super::xrc::XrcSrq;
use rdma_sys::ibv_srq;

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    /// What programs know it by.
    pub c: CBox<ibv_srq>,
    /// Index of its context.
    pub context: usize,
    /// Index of its protection domain.
    pub pd: usize,
    /// Its receives.
    pub queue: RecvQ,
    /// Fires SRQ_LIMIT_REACHED once when fewer receives are left; 0: not armed.
    pub limit: u32,
    /// Queue pairs that receive through it.
    pub users: u32,
    /// Asynchronous events of it that the program has been given.
    pub async_events: u32,
    /// Set for an XRC SRQ.
    pub xrc: Option<XrcSrq>,
}
