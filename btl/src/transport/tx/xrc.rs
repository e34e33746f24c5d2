//! Sending over a path: what completes.
//!
//! The marker behind what is not signalled goes to the SRQ of the last message, and would fail if its process had left. It has not:
//! before a process leaves, it has our end of stream or our acknowledgement of its own (protocol.md 4.5), which is signalled
//! and comes behind all other messages to it.
#![forbid(unsafe_code)]

use super::Tx;
use super::path::Paths;
use super::replay::reason;
use crate::transport::Transport;
use crate::transport::channel::{Connection, GivesBack, Held, LineId};
use crate::transport::endpoint::Endpoint;
use verbs::{Completion, RdmaOp, WcStatus};

impl<C> Tx<C> {
    /// What the oldest line of a path holds, unless it is a marker, if it is not behind `id`; and whether it is
    /// that one. Nothing goes inline over a path.
    fn retire_from(&mut self, paths: &mut Paths, path: u32, id: LineId) -> Option<(Option<Held<C>>, bool)> {
        let path = paths.get_mut(path)?;
        let (line, last) = path.channel.ledger.retire(id.line())?;
        self.awaited -= u32::from(line.is_signalled());
        if let GivesBack::Held(key) = line.gives_back() {
            return Some((Some(self.held.try_remove(key as usize)?), last));
        }
        path.markers -= 1;
        self.outstanding -= 1;
        Some((None, last))
    }
}

impl<C> Transport<C> {
    /// A send completion of an XRC send queue pair.
    #[inline(never)]
    pub(crate) fn sent_over_xrc(&mut self, wc: &Completion, path: u32, id: LineId) {
        let (mut count, mut last) = (0, false);
        while !last {
            let retired = self.retire_over_xrc(wc, path, id);
            let Some((run, ends)) = retired else { return self.stats.stale += 1 };
            (count, last) = (count + run, ends);
        }
        self.stats.note_run(count);
    }

    /// Retires the oldest line, and with a message those behind it that went to the same peer over the same queue: how many, and whether
    /// the one that has completed is among them. `None`: there is none up to that one.
    fn retire_over_xrc(&mut self, wc: &Completion, path: u32, id: LineId) -> Option<(u16, bool)> {
        if wc.is_ok() {
            let run = self.tx.retire_run(&mut self.paths.get_mut(path)?.channel.ledger, wc, id);
            if let Some((to, queue)) = run.to {
                self.sends_over(to, queue.into(), run.count);
                self.settle_path(Some(to), path);
                return Some((run.count, run.last));
            }
        }
        let (held, last) = self.tx.retire_from(&mut self.paths, path, id)?;
        match held {
            Some(held) => self.sent_over_path(wc, held, path, wc.is_ok() || !last),
            None => self.marked(wc, path),
        }
        Some((1, last))
    }

    fn sent_over_path(&mut self, wc: &Completion, held: Held<C>, path: u32, ok: bool) {
        let to = held.target().0;
        if ok {
            self.retire_from_path(held, wc, path, true);
        } else {
            self.unsent(wc, held, path);
        }
        self.settle_path(Some(to), path);
    }

    /// A marker has completed. One that fails tells that the process is gone that it went to: the one that was asked whether it is
    /// there; of one behind other messages it is not known who that is.
    fn marked(&mut self, wc: &Completion, path: u32) {
        let asked = self.paths.get_mut(path).and_then(|path| path.asked.take());
        if !wc.is_ok() {
            let failed = asked.filter(|_| wc.status() != WcStatus::Flushed);
            self.break_path(path, failed, &reason(wc));
        }
        self.settle_path(None, path);
    }

    /// A work request of a path is over; `ok`: it has been carried out.
    pub(crate) fn retire_from_path(&mut self, held: Held<C>, by: &Completion, path: u32, ok: bool) {
        match held {
            Held::Message { to, queue, buf, share, .. } => {
                self.tx.take_sent(buf, by, (queue, share));
                self.sends_over(to, queue.into(), 1);
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
    pub(crate) fn settle_path(&mut self, to: Option<Connection>, id: u32) {
        if self.paths.is_broken(id) {
            self.paths.forget_drained(id);
            let Some(to) = to else { return };
            if let Some(route) = self.endpoints.get_mut(to.index).and_then(Endpoint::next_route) {
                self.take_route(to.index, route);
            }
        }
    }

    /// `count` messages are out of the device's hands, whatever became of them.
    pub(crate) fn sends_over(&mut self, to: Connection, queue: usize, count: u16) {
        if self.endpoints.has(to) {
            return self.sends_done(to.index, queue, count);
        }
        if self.tx.release_slots(to.index, queue, count) {
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
            self.entries_free(to.index, queue, 1);
        }
    }
}
