//! Sending over a path: what completes.
#![forbid(unsafe_code)]

use super::Tx;
use super::path::Paths;
use crate::transport::Transport;
use crate::transport::channel::{Connection, GivesBack, Held, LineId};
use crate::transport::endpoint::Endpoint;
use verbs::{Completion, RdmaOp};

impl<C> Tx<C> {
    /// What the oldest line of a path holds, if it is not behind `id`, and whether it is that one.
    /// Nothing goes inline over a path.
    fn retire_from(&mut self, paths: &mut Paths, path: u32, id: LineId) -> Option<(Held<C>, bool)> {
        let (line, last) = paths.get_mut(path)?.channel.ledger.retire(id.line())?;
        self.awaited -= u32::from(line.is_signalled());
        let GivesBack::Held(key) = line.gives_back() else { return None };
        Some((self.held.try_remove(key as usize)?, last))
    }
}

impl<C> Transport<C> {
    /// A send completion of an XRC send queue pair.
    #[inline(never)]
    pub(crate) fn sent_over_xrc(&mut self, wc: &Completion, path: u32, id: LineId) {
        let mut last = false;
        while !last {
            let oldest = self.tx.retire_from(&mut self.paths, path, id);
            let Some((held, is_last)) = oldest else { return self.stats.stale += 1 };
            last = is_last;
            let to = held.target().0;
            if wc.is_ok() || !last {
                self.retire_from_path(held, wc, path, true);
            } else {
                self.unsent(wc, held, path);
            }
            self.settle_path(to, path);
        }
    }

    /// A work request of a path is over; `ok`: it has been carried out.
    pub(crate) fn retire_from_path(&mut self, held: Held<C>, by: &Completion, path: u32, ok: bool) {
        match held {
            Held::Message { to, queue, buf, share, .. } => {
                self.tx.take_sent(buf, by, (queue, share));
                self.send_over(to, queue.into());
            }
            Held::Rdma { to, queue, rdma } => {
                self.up.completed(rdma.cookie, ok);
                self.rdma_over(to, path, queue.into(), rdma.op == RdmaOp::Read);
            }
            Held::Atomic { to, queue, buf, fetch } => {
                self.fetched(to, (buf, by), fetch, ok);
                self.rdma_over(to, path, queue.into(), true);
            }
        }
    }

    /// A work request of the path has been dealt with.
    pub(crate) fn settle_path(&mut self, to: Connection, id: u32) {
        if self.paths.is_broken(id) {
            self.paths.forget_drained(id);
            if let Some(route) = self.endpoints.get_mut(to.index).and_then(Endpoint::next_route) {
                self.take_route(to.index, route);
            }
        }
    }

    /// A message is out of the device's hands, whatever became of it.
    pub(crate) fn send_over(&mut self, to: Connection, queue: usize) {
        if self.endpoints.has(to) {
            return self.send_done(to.index, queue);
        }
        if self.tx.release_slots(to.index, queue, 1) {
            self.serve();
        }
    }

    /// The same of an operation. Endpoints that have waited for its place come before the one that
    /// had it.
    pub(crate) fn rdma_over(&mut self, to: Connection, path: u32, queue: usize, fetched: bool) {
        self.paths.release_place(path);
        if fetched && let Some(path) = self.paths.get_mut(path) {
            path.channel.read_done();
        }
        // One that has been removed, or has failed, while it waited leaves the place to the next; one
        // that finds no place for what it has goes to the end.
        for _ in 0..self.paths.waiting(path) {
            let Some(next) = self.paths.next_waiting(path, self.port.config.rdma_depth) else { break };
            self.pump_rdma(next);
        }
        if self.endpoints.has(to) {
            self.entry_free(to.index, queue);
        }
    }
}
