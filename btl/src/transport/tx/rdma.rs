//! Put and get: RDMA WRITE and READ on the last queue's queue pair.
//!
//! An operation that cannot be posted now waits in order; it is never refused for want of a
//! resource, because ob1 would park it where only another completion wakes it.
#![forbid(unsafe_code)]

use super::inflight::Waiting;
use crate::transport::endpoint::state::State;
use crate::transport::endpoint::{EpId, QueuedRdma};
use crate::transport::port::depth::CONTROL_WQES;
use crate::transport::wrid::{Kind, WrId};
use crate::transport::{Transport, Upcall};
use verbs::{RKey, RdmaOp, Remote, SendFlags, Sge};

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
        match self.endpoint(id) {
            Some(ep) if !matches!(ep.state, State::Failed | State::Closed) => {
                ep.rdma.push_back(QueuedRdma { op, local, remote, cookie });
            }
            _ => return Err(cookie),
        }
        self.want_send(id.index);
        self.pump_rdma(id.index);
        Ok(())
    }

    /// Posts what waits, as far as work queue entries go.
    pub(crate) fn pump_rdma(&mut self, index: u32) {
        let queue = self.layout.largest();
        loop {
            let Some(Some(ep)) = self.endpoints.get_mut(index as usize) else { return };
            if !ep.state.flows() || ep.rdma.is_empty() {
                return;
            }
            // What messages are entitled to stays free: the send queue holds both
            // (`open::send_depth`).
            if ep.rdma_out >= self.config.rdma_depth || !ep.lanes[queue].budget.acquire_leaving(CONTROL_WQES)
            {
                return;
            }
            let Some(operation) = ep.rdma.pop_front() else { return };
            if ep.route.is_some() {
                if !self.post_rdma_xrc(index, queue, operation) {
                    return;
                }
            } else {
                self.post_rdma(index, queue, operation);
            }
        }
    }

    fn post_rdma(&mut self, index: u32, queue: usize, operation: QueuedRdma<C>) {
        let Some(Some(ep)) = self.endpoints.get_mut(index as usize) else { return };
        let Some(qp) = &ep.lanes[queue].qp else { return };
        let ticket = self.inflight.reserve();
        let wr = WrId::new(Kind::Rdma, queue, ticket.generation, ticket.index);
        let remote = Remote { addr: operation.remote.0, rkey: operation.remote.1 };
        // The owner goes in first: the device may complete before the post returns.
        self.inflight.fill(ticket, Waiting::Rdma { endpoint: index, cookie: operation.cookie });
        match qp.post_rdma(operation.op, wr.0, operation.local, remote, SendFlags::SIGNALED) {
            Ok(()) => {
                ep.outstanding += 1;
                ep.rdma_out += 1;
                self.outstanding += 1;
                self.stats.rdma += 1;
            }
            Err(error) => {
                if let Some(Waiting::Rdma { cookie, .. }) =
                    self.inflight.complete(ticket.index, ticket.generation)
                {
                    self.up.push_back(Upcall::Completed { cookie, ok: false });
                }
                self.fail(index, &format!("post of an RDMA operation failed: {error}"));
            }
        }
    }

    /// Hands `cookie` back by `Upcall::Completed`, as if an operation that began now were over at
    /// once.
    #[cold]
    pub fn later(&mut self, cookie: C) {
        self.up.push_back(Upcall::Completed { cookie, ok: true });
    }

    /// An RDMA operation over the peer's own queue pair completed: its entry is free again.
    #[inline]
    pub(crate) fn rdma_done(&mut self, index: u32, queue: usize) {
        if let Some(Some(ep)) = self.endpoints.get_mut(index as usize) {
            ep.rdma_out -= 1;
        }
        self.entry_free(index, queue);
    }
}
