//! Posting over a path, and what completes.
#![forbid(unsafe_code)]

use super::path::{Held, Xrc};
use crate::protocol::pending::LaneId;
use crate::protocol::wire::{HEADER_LEN, XrcHeader};
use crate::transport::endpoint::{EpId, QueuedRdma};
use crate::transport::wrid::{Kind, WrId};
use crate::transport::{SendBuf, Transport, Upcall};
use verbs::{Remote, SendFlags, Wc};

impl<C> Transport<C> {
    /// Posts the first `total` bytes of a buffer, header included, which is given its number.
    pub(crate) fn post_xrc(
        &mut self,
        lane: LaneId,
        mut buf: SendBuf,
        total: usize,
    ) -> Result<(), verbs::Error> {
        let Some(Some(ep)) = self.endpoints.get_mut(lane.peer as usize) else { return Ok(()) };
        if let Some(head) = buf.buf.as_mut_slice().first_chunk_mut::<HEADER_LEN>() {
            *head = XrcHeader::new(head[0], lane.queue, 0, ep.numbers.take()).emit();
        }
        self.post_over(lane, buf, total)
    }

    /// Posts a message that has its number, over the route that there is now.
    pub(crate) fn post_over(&mut self, lane: LaneId, buf: SendBuf, total: usize) -> Result<(), verbs::Error> {
        let (queue, to) = (usize::from(lane.queue), self.id_of(lane.peer));
        let Some(Some(ep)) = self.endpoints.get_mut(lane.peer as usize) else { return Ok(()) };
        let (Some(xrc), Some(way)) = (&mut self.xrc, &ep.route) else { return Ok(()) };
        let Some(&srq) = way.srqs.get(queue) else { return Ok(()) };
        let SendBuf { mut buf, class, share } = buf;
        stamp(buf.as_mut_slice(), way.label);
        let ticket = xrc.inflight.reserve();
        let wr = WrId::new(Kind::XrcSend, queue, ticket.generation, ticket.index);
        match way.qp.towards(srq).post_send(wr.0, buf, total as u32, SendFlags::SIGNALED) {
            Ok(buf) => {
                let (path, total) = (way.path, total as u32);
                xrc.inflight.fill(ticket, Held::Send { to, path, buf, share, total });
                xrc.count(path);
                self.count_posted(lane.peer);
                Ok(())
            }
            Err((buf, error)) => {
                xrc.inflight.cancel(ticket);
                self.give_back(SendBuf { buf, class, share });
                Err(error)
            }
        }
    }

    /// Posts an operation whose entry has been taken; false if none more may go on this path now.
    pub(crate) fn post_rdma_xrc(&mut self, index: u32, queue: usize, operation: QueuedRdma<C>) -> bool {
        let to = self.id_of(index);
        let Some(Some(ep)) = self.endpoints.get_mut(index as usize) else { return false };
        let (Some(xrc), Some(way)) = (&mut self.xrc, &ep.route) else { return false };
        let (Some(path), Some(&srq)) = (xrc.paths.get_mut(&way.path), way.srqs.get(queue)) else {
            return false;
        };
        if path.rdma >= self.config.rdma_depth {
            ep.rdma.push_front(operation);
            ep.lanes[queue].budget.release(1);
            path.wait(index);
            return false;
        }
        let ticket = xrc.inflight.reserve();
        let wr = WrId::new(Kind::XrcRdma, queue, ticket.generation, ticket.index);
        let remote = Remote { addr: operation.remote.0, rkey: operation.remote.1 };
        let posted =
            way.qp.towards(srq).post_rdma(operation.op, wr.0, operation.local, remote, SendFlags::SIGNALED);
        match posted {
            Ok(()) => {
                path.rdma += 1;
                let path = way.path;
                xrc.inflight.fill(ticket, Held::Rdma { to, path, operation });
                xrc.count(path);
                self.count_posted(index);
                self.stats.rdma += 1;
                true
            }
            Err(error) => {
                xrc.inflight.cancel(ticket);
                self.up.push_back(Upcall::Completed { cookie: operation.cookie, ok: false });
                self.fail(index, &format!("post of an RDMA operation failed: {error}"));
                false
            }
        }
    }

    fn id_of(&self, index: u32) -> EpId {
        EpId { index, generation: self.epochs.get(index as usize).copied().unwrap_or(0) }
    }

    /// A send completion that is not of a queue pair of one peer's own.
    #[inline(never)]
    pub(crate) fn sent_over_xrc(&mut self, wc: &Wc, id: WrId) {
        match id.kind() {
            Some(Kind::XrcSend | Kind::XrcRdma) => self.retire_xrc(wc, id),
            _ => self.stats.stale += 1,
        }
    }

    /// Gives back what waited for this completion.
    fn retire_xrc(&mut self, wc: &Wc, id: WrId) {
        let held = self.xrc.as_mut().and_then(|xrc| xrc.inflight.complete(id.index(), id.generation()));
        match held {
            Some(held) if wc.is_ok() => self.sent_xrc(held, id.queue()),
            Some(held) => self.unsent(wc, held, id.queue()),
            None => self.stats.stale += 1,
        }
    }

    fn sent_xrc(&mut self, held: Held<C>, queue: usize) {
        let (to, path) = held.names();
        match held {
            Held::Send { buf, share, .. } => {
                self.give_back(SendBuf { buf: buf.completed(), class: queue as u8, share });
                self.send_over(to, queue);
            }
            Held::Rdma { operation, .. } => {
                self.up.push_back(Upcall::Completed { cookie: operation.cookie, ok: true });
                self.rdma_over(to, path, queue);
            }
        }
        self.settle_path(to, path);
    }

    /// One work request less on the path.
    pub(crate) fn settle_path(&mut self, to: EpId, id: u32) {
        let broken = self.xrc.as_mut().is_some_and(|xrc| xrc.uncount(id));
        if broken {
            self.take_next(to.index);
        }
    }

    /// The endpoint is still the one that a work request was posted for.
    pub(crate) fn is_current(&self, to: EpId) -> bool {
        let there = self.endpoints.get(to.index as usize).is_some_and(Option::is_some);
        there && self.epochs.get(to.index as usize) == Some(&to.generation)
    }

    /// A message is out of the device's hands, whatever became of it.
    pub(crate) fn send_over(&mut self, to: EpId, queue: usize) {
        if self.is_current(to) {
            return self.send_done(to.index, queue);
        }
        if let Some(shared) = &mut self.queues[queue].shared
            && shared.send_slots.release(to.index)
        {
            self.pending.wake_queue(queue as u8);
            self.serve();
        }
    }

    /// The same of an operation. Endpoints that have waited for its place come before the one that
    /// had it.
    pub(crate) fn rdma_over(&mut self, to: EpId, path: u32, queue: usize) {
        if let Some(path) = self.xrc.as_mut().and_then(|xrc| xrc.paths.get_mut(&path)) {
            path.rdma -= 1;
        }
        // One that has been removed, or has failed, while it waited leaves the place to the next.
        while let Some(next) = self.next_with_rdma(path) {
            self.pump_rdma(next);
        }
        if self.is_current(to) {
            self.entry_free(to.index, queue);
        }
    }

    /// Takes the endpoint that has waited longest out of the queue, if the path has a place for an
    /// operation.
    fn next_with_rdma(&mut self, path: u32) -> Option<u32> {
        let path = self.xrc.as_mut()?.paths.get_mut(&path)?;
        if path.rdma < self.config.rdma_depth { path.waiting.pop_front() } else { None }
    }
}

/// Puts the label into a header that is complete but for it.
fn stamp(message: &mut [u8], label: u32) {
    if let Some(head) = message.first_chunk_mut::<HEADER_LEN>()
        && let Some(header) = XrcHeader::parse(*head)
    {
        *head = XrcHeader::new(header.tag(), header.queue(), label, header.number()).emit();
    }
}

impl<C> Held<C> {
    pub(crate) fn names(&self) -> (EpId, u32) {
        match self {
            Held::Send { to, path, .. } | Held::Rdma { to, path, .. } => (*to, *path),
        }
    }
}

impl<C> Xrc<C> {
    fn count(&mut self, id: u32) {
        if let Some(path) = self.paths.get_mut(&id) {
            path.outstanding += 1;
        }
    }

    /// One less in flight; true if the path is broken.
    fn uncount(&mut self, id: u32) -> bool {
        let Some(path) = self.paths.get_mut(&id) else { return true };
        path.outstanding -= 1;
        let broken = path.broken;
        if broken {
            self.forget_drained(id);
        }
        broken
    }
}
