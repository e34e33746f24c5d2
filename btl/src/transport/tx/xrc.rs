//! Sending over a path: numbers and places for operations, and what completes.
#![forbid(unsafe_code)]

use crate::transport::Transport;
use crate::transport::channel::{Connection, Held, LineId};
use verbs::Completion;

impl<C> Transport<C> {
    /// Takes a place for an operation on the path of this endpoint; if there is none, the endpoint
    /// waits for its turn.
    pub(crate) fn take_place(&mut self, index: u32) -> bool {
        let Some(ep) = self.endpoints.get(index) else { return false };
        let (Some(xrc), Some(route)) = (&mut self.xrc, &ep.route) else { return false };
        let Some(path) = xrc.paths.get_mut(&route.path) else { return false };
        let there_is = path.rdma < self.port.config.rdma_depth;
        if there_is {
            path.rdma += 1;
        } else {
            path.wait(index);
        }
        there_is
    }

    /// Gives a place back that no operation was posted for.
    #[cold]
    pub(crate) fn release_place(&mut self, index: u32) {
        let Some(ep) = self.endpoints.get(index) else { return };
        let (Some(xrc), Some(route)) = (&mut self.xrc, &ep.route) else { return };
        if let Some(path) = xrc.paths.get_mut(&route.path) {
            path.rdma -= 1;
        }
    }

    /// A send completion of an XRC send queue pair.
    #[inline(never)]
    pub(crate) fn sent_over_xrc(&mut self, wc: &Completion, path: u32, id: LineId) {
        let mut last = false;
        while !last {
            let Some((held, is_last)) = self.retire_from(path, id) else { return self.stats.stale += 1 };
            last = is_last;
            let to = held.target().0;
            if wc.is_ok() || !last {
                self.sent_xrc(held, wc, path);
            } else {
                self.unsent(wc, held, path);
            }
            self.settle_path(to, path);
        }
    }

    /// What the oldest line of a path holds, if it is not behind `id`, and whether it is that one.
    /// Nothing goes inline over a path.
    fn retire_from(&mut self, path: u32, id: LineId) -> Option<(Held<C>, bool)> {
        let path = self.xrc.as_mut()?.paths.get_mut(&path)?;
        let (line, last) = path.channel.ledger.retire(id.line())?;
        Some((self.held.try_remove(line.gives_back as usize)?, last))
    }

    fn sent_xrc(&mut self, held: Held<C>, by: &Completion, path: u32) {
        match held {
            Held::Message { to, queue, buf, share, .. } => {
                self.take_sent(buf, by, (queue, share));
                self.send_over(to, queue.into());
            }
            Held::Operation { to, queue, operation } => {
                self.up.completed(operation.cookie, true);
                self.rdma_over(to, path, queue.into());
            }
        }
    }

    /// A work request of the path has been dealt with.
    pub(crate) fn settle_path(&mut self, to: Connection, id: u32) {
        let Some(xrc) = &mut self.xrc else { return };
        if xrc.paths.get(&id).is_none_or(|path| path.broken) {
            xrc.forget_drained(id);
            self.take_next(to.index);
        }
    }

    /// A message is out of the device's hands, whatever became of it.
    pub(crate) fn send_over(&mut self, to: Connection, queue: usize) {
        if self.endpoints.has(to) {
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
    pub(crate) fn rdma_over(&mut self, to: Connection, path: u32, queue: usize) {
        if let Some(path) = self.xrc.as_mut().and_then(|xrc| xrc.paths.get_mut(&path)) {
            path.rdma -= 1;
        }
        // One that has been removed, or has failed, while it waited leaves the place to the next.
        while let Some(next) = self.next_with_rdma(path) {
            self.pump_rdma(next);
        }
        if self.endpoints.has(to) {
            self.entry_free(to.index, queue);
        }
    }

    /// Takes the endpoint that has waited longest out of the queue, if the path has a place for an
    /// operation.
    fn next_with_rdma(&mut self, path: u32) -> Option<u32> {
        let path = self.xrc.as_mut()?.paths.get_mut(&path)?;
        if path.rdma < self.port.config.rdma_depth { path.waiting.pop_front() } else { None }
    }
}
