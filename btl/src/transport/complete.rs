//! Send completions, and completions of either kind that are errors.
//!
//! Every work request has one completion, successful, failed or flushed; each gives back what waited for it.
#![forbid(unsafe_code)]

use super::inflight::Waiting;
use super::qpns::Owner;
use super::state::State;
use super::wrid::{Kind, WrId};
use super::{BATCH, SendBuf, Transport, Upcall};
use verbs::{Wc, WcStatus};

impl<C> Transport<C> {
    /// A receive came back with an error: flushed, or the reason why its queue pair is in ERR.
    #[cold]
    pub(super) fn receive_failed(&mut self, wc: &Wc, id: WrId) {
        let (slot, queue) = (id.index(), id.queue());
        match id.kind() {
            Some(Kind::RecvCts) => {
                if let Some(buf) = self.cts_buffers.remove(&slot) {
                    self.cts_pool.put(buf.completed());
                }
                self.fail_with(slot, wc);
            }
            Some(Kind::RecvPeer) => {
                let Some(s) = self.slots.at(id) else { return self.stats.stale += 1 };
                let endpoint = s.endpoint;
                if let Some(buf) = s.posted.take() {
                    self.drop_slot(queue, slot, buf.completed());
                }
                if !self.may_have_left(endpoint, wc) {
                    self.fail_with(endpoint, wc);
                }
            }
            Some(Kind::RecvXrc) => {
                if let Some(shared) = &mut self.queues[queue].shared {
                    shared.posted -= 1;
                }
                self.give_up(wc);
            }
            Some(Kind::RecvShared) => {
                let owner = self.qpns.find(wc.qp_num());
                if let Some(shared) = &mut self.queues[queue].shared {
                    shared.posted -= 1;
                }
                self.give_up(wc);
                if let Some(Owner::Lane { endpoint, .. }) = owner {
                    self.fail_with(endpoint, wc);
                }
            }
            _ => self.stats.stale += 1,
        }
    }

    /// Looks at the send completions; how many there were.
    pub(super) fn poll_sends(&mut self) -> usize {
        let got = match self.send_cq.poll(&mut self.send_wcs) {
            Ok(got) => got.min(BATCH),
            Err(error) => self.cq_broken(&error),
        };
        for index in 0..got {
            let wc = self.send_wcs[index];
            self.sent(&wc);
        }
        got
    }

    #[inline]
    pub(super) fn sent(&mut self, wc: &Wc) {
        let id = WrId(wc.wr_id());
        if id.is(Kind::SendInline) {
            match self.generations.get(id.index() as usize) {
                Some(generation) if *generation == id.generation() => self.send_done(id.index(), id.queue()),
                _ => return self.stats.stale += 1,
            }
        } else if id.is(Kind::Send) || id.is(Kind::Rdma) {
            return self.retire(wc, id);
        } else {
            return self.sent_over_xrc(wc, id);
        }
        if !wc.is_ok() {
            self.fail_with(id.index(), wc);
        }
    }

    /// Gives back what waited for this completion.
    pub(super) fn retire(&mut self, wc: &Wc, id: WrId) {
        let endpoint = match self.inflight.complete(id.index(), id.generation()) {
            Some(Waiting::Send { endpoint, buf, share }) => {
                self.give_back(SendBuf { buf: buf.completed(), class: id.queue() as u8, share });
                self.send_done(endpoint, id.queue());
                endpoint
            }
            Some(Waiting::Rdma { endpoint, cookie }) => {
                self.up.push_back(Upcall::RdmaDone { cookie, ok: wc.is_ok() });
                self.rdma_done(endpoint, id.queue());
                endpoint
            }
            None => return self.stats.stale += 1,
        };
        if !wc.is_ok() {
            self.fail_with(endpoint, wc);
        }
    }

    /// A work request failed. A flushed one only follows another that says why, and that may still be in the queue.
    #[cold]
    fn fail_with(&mut self, index: u32, wc: &Wc) {
        if wc.status() == WcStatus::Flushed && self.is_alive(index) && self.outstanding != 0 && !self.seeking
        {
            // We may be in the middle of a batch: it is looked at to its end afterwards.
            let batch = self.send_wcs;
            self.seeking = true;
            while self.poll_sends() != 0 && self.is_alive(index) {}
            self.seeking = false;
            self.send_wcs = batch;
        }
        self.fail(index, &format_args!("work request on {}: {}", wc.qp_num(), wc.status()));
    }

    /// On iWARP a peer that takes its connections down, in its MPI_Finalize, takes our queue pairs along. What it means the connection manager
    /// says, whose word is on its way; a send that is lost with them says something else.
    fn may_have_left(&self, index: u32, wc: &Wc) -> bool {
        let endpoint = self.endpoints.get(index as usize).and_then(|ep| ep.as_deref());
        wc.status() == WcStatus::Flushed && endpoint.is_some_and(|ep| ep.first.is_some())
    }

    fn is_alive(&self, index: u32) -> bool {
        matches!(self.endpoints.get(index as usize), Some(Some(ep)) if ep.state != State::Failed)
    }

    #[cold]
    pub(super) fn cq_broken(&mut self, error: &verbs::Error) -> usize {
        self.all_broken(&format!("completion queue broken: {error}"));
        0
    }
}
