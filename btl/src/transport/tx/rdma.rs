//! Put and get: RDMA WRITE and READ on the last queue's queue pair.
//!
//! An operation that cannot be posted now waits in order; it is never refused for want of a
//! resource, because ob1 would park it where only another completion wakes it.
#![forbid(unsafe_code)]

use crate::protocol::pending::LaneId;
use crate::transport::Transport;
use crate::transport::channel::{Operation, Request};
use crate::transport::endpoint::EpId;
use crate::transport::port::depth::CONTROL_WQES;
use verbs::{RKey, RdmaOp, Sge};

impl<C> Transport<C> {
    /// Starts reading or writing `local.len` bytes of the peer's memory. The cookie comes back with
    /// `Upcall::Completed`; it comes back at once (`Err`) if the endpoint is lost.
    pub fn rdma(
        &mut self,
        id: EpId,
        op: RdmaOp,
        local: Sge,
        remote: (u64, RKey),
        cookie: C,
    ) -> Result<(), C> {
        match self.endpoints.named_mut(id) {
            Some(ep) if !ep.state().is_over() => {
                ep.rdma.push_back(Operation { op, local, remote, cookie });
            }
            _ => return Err(cookie),
        }
        self.want_send(id.index);
        self.pump_rdma(id.index);
        Ok(())
    }

    /// Posts what waits, as far as work queue entries go.
    pub(crate) fn pump_rdma(&mut self, index: u32) {
        let queue = self.port.layout().largest();
        loop {
            let Some(ep) = self.endpoints.get_mut(index) else { return };
            if !ep.state().flows() || ep.rdma.is_empty() {
                return;
            }
            // What messages are entitled to stays free: the send queue holds both
            // (`depth::send_depth`).
            if ep.rdma_out >= self.port.config.rdma_depth
                || !ep.lanes[queue].budget.acquire_leaving(CONTROL_WQES)
            {
                return;
            }
            let path = ep.route.as_ref().map(|route| route.path);
            if let Some(path) = path
                && !self.paths.take_place(path, index, self.port.config.rdma_depth)
            {
                return self.endpoints.release_entry(index, queue);
            }
            self.post_next_rdma(index, queue, path);
        }
    }

    /// Posts the operation that has waited longest; its entry, and its place on the path if it goes
    /// over one, have been taken.
    fn post_next_rdma(&mut self, index: u32, queue: usize, path: Option<u32>) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        let Some(operation) = ep.rdma.pop_front() else { return };
        let lane = LaneId { peer: index, queue: queue as u8 };
        match self.post::<0>(lane, Request::Operation(operation)) {
            Ok(()) => {
                self.stats.rdma += 1;
                if path.is_none()
                    && let Some(ep) = self.endpoints.get_mut(index)
                {
                    ep.rdma_out += 1;
                }
            }
            Err(error) => {
                if let Some(path) = path {
                    self.paths.release_place(path);
                }
                self.fail(index, &format!("post of an RDMA operation failed: {error}"));
            }
        }
    }

    /// Hands `cookie` back by `Upcall::Completed`, as if an operation that began now were over at
    /// once.
    #[cold]
    pub fn later(&mut self, cookie: C) {
        self.up.completed(cookie, true);
    }

    /// An RDMA operation over the peer's own queue pair completed: its entry is free again.
    #[inline]
    pub(crate) fn rdma_done(&mut self, index: u32, queue: usize, op: RdmaOp) {
        if let Some(ep) = self.endpoints.get_mut(index) {
            ep.rdma_out -= 1;
            if let (RdmaOp::Read, Some(channel)) = (op, &mut ep.lanes[queue].channel) {
                channel.read_done();
            }
        }
        self.entry_free(index, queue);
    }
}
