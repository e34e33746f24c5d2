//! Handlers of links that send: from the wish to connect to the peer's SRQ numbers.

use std::time::Instant;

use super::path::Stage;
use super::state::{Known, Remote, State};
use super::{Call, Machine};
use crate::wire::xrc::{Message, Rep, Req};
use crate::wire::{CommId, Dreq, Mra, Reason, Rej, Stage as RejStage};
use crate::{ConnectCause, Step};

impl Machine {
    /// Creating + SenderCreated: asks, for itself and for all who wait for this node.
    pub(super) fn qps_ready(&mut self, slot: usize, now: Instant) {
        self.mark(slot, Step::QpsCreated, now);
        self.first_req(slot, now);
    }

    /// Sends our request for the first time over its path.
    pub(super) fn first_req(&mut self, slot: usize, now: Instant) {
        self.links[slot].tries = 0;
        self.send_req(slot, now);
    }

    /// Sends our request for the (`tries` + 1)-th time.
    fn send_req(&mut self, slot: usize, now: Instant) {
        self.links[slot].state = State::ReqSent;
        self.links[slot].quiet_until = None;
        self.arm(slot, now);
        self.mark(slot, Step::ReqSent, now);
        if let Some(req) = self.request(slot) {
            self.send(slot, Message::Req(req));
        }
    }

    fn request(&self, slot: usize) -> Option<Req> {
        let (link, local) = (&self.links[slot], &self.local);
        let path = self.own.paths.get(&link.path?)?;
        Some(Req {
            head: self.req_head(slot, path.psn),
            name: local.name,
            layout: local.layout,
            sender: path.qpn,
            receiver: path.receiver(),
            epoch: link.epoch,
            ended: self.own.unanswered.get(&link.peer).copied().unwrap_or(CommId::NONE),
            domain: local.address.domain,
        })
    }

    /// ReqSent + Timeout: asks again, unless it has been asked often enough.
    pub(super) fn repeat_req(&mut self, slot: usize, now: Instant) {
        self.leave_window(slot, now);
        self.mark_slow(slot, now);
        if let Some(until) = self.links[slot].quiet_until.take().filter(|&until| until > now) {
            return self.set_deadline(slot, Some(until));
        }
        if !self.may_repeat(slot, now) {
            return self.time_out(slot, now);
        }
        self.move_to_node_path(slot, now);
        self.send_req(slot, now);
    }

    /// ReqSent + Rep: the first answer of a node brings the send queue pair up; later ones only bring SRQ numbers.
    pub(super) fn replied(&mut self, slot: usize, rep: &Rep, now: Instant) {
        self.mark(slot, Step::RepReceived, now);
        if rep.layout != self.local.layout {
            return self.unlike(slot, rep, now);
        }
        if self.links[slot].known.is_some_and(|known| known.label != rep.label) {
            // What had been sent before is lost with the endpoint that it was sent to.
            return self.peer_replaced_endpoint(slot, rep, now);
        }
        let epoch = self.links[slot].epoch;
        let Some(id) = self.links[slot].path.filter(|_| epoch == rep.epoch) else {
            return self.stats.stale += 1;
        };
        // Whatever has ended before: the peer knows.
        self.own.unanswered.remove(&self.links[slot].peer);
        if self.move_to_node_path(slot, now) {
            self.leave_window(slot, now);
            return self.first_req(slot, now);
        }
        let Some(path) = self.own.paths.get_mut(&id) else { return };
        match path.stage {
            Stage::Connected(receiver) if receiver == rep.receiver => self.up(slot, rep, now),
            Stage::SenderCreated if path.carrier == slot => {
                path.stage = Stage::ToRts;
                let psn = path.psn;
                self.settle(slot, now);
                self.links[slot].state = State::ToRts { rep: *rep };
                let (receiver, depth, address) = (rep.receiver, rep.depth, self.links[slot].address);
                self.call(Call::RaiseSender { path: id, receiver, psn, depth, address });
            }
            // It names another receive queue pair than our REQ.
            _ => self.stats.stale += 1,
        }
    }

    fn unlike(&mut self, slot: usize, rep: &Rep, now: Instant) {
        let (ours, theirs) = (self.local.layout, rep.layout);
        self.stats.layout_refused += 1;
        self.reject(slot, rep.local, RejStage::Rep, Reason::Layout(ours));
        self.fail(slot, ConnectCause::Layout { ours, theirs }, now);
    }

    /// The answer is in: nothing is awaited, and the next may ask.
    pub(super) fn settle(&mut self, slot: usize, now: Instant) {
        self.set_deadline(slot, None);
        self.leave_window(slot, now);
    }

    fn up(&mut self, slot: usize, rep: &Rep, now: Instant) {
        self.settle(slot, now);
        let remote = Remote::from(rep);
        self.links[slot].state = State::Connected { remote };
        self.links[slot].known = Some(Known { remote, label: rep.label });
        self.stats.connected += 1;
        let (key, path) = (self.links[slot].key, self.links[slot].path);
        if let Some(path) = path {
            let (srqs, label) = (rep.srqs, rep.label);
            self.call(Call::Route { key, path, srqs, label });
        }
    }

    /// ToRts + SenderUp: this endpoint is connected, and its node is.
    pub(super) fn qps_up_done(&mut self, slot: usize, now: Instant) {
        let State::ToRts { rep } = self.links[slot].state else { return };
        let Some(path) = self.links[slot].path else { return };
        self.mark(slot, Step::QpsUp, now);
        self.up(slot, &rep, now);
        self.path_up(path, rep.receiver, now);
    }

    /// ToRts + SenderDown: reports it and rejects.
    pub(super) fn bring_up_failed(&mut self, slot: usize, error: &str, now: Instant) {
        if let Some(remote) = self.links[slot].state.remote() {
            self.reject(slot, remote.id, RejStage::Rep, Reason::NoResources);
        }
        self.fail(slot, ConnectCause::Verbs(error.to_owned()), now);
    }

    /// ReqSent + Mra: the peer has our request and needs more time.
    pub(super) fn wait_longer(&mut self, slot: usize, mra: &Mra, now: Instant) {
        self.leave_window(slot, now);
        let until = self.more_time(slot, mra, now);
        self.links[slot].quiet_until = Some(until);
        // Others of its node wait no longer than if it had said nothing.
        let usual = now + self.params.wait(0);
        let holds_up = self.holds_up_others(slot) && usual < until;
        self.set_deadline(slot, Some(if holds_up { usual } else { until }));
    }

    /// ReqSent + Rej: begins anew if only what it was based on was outdated, else gives up.
    pub(super) fn rejected(&mut self, slot: usize, rej: &Rej, now: Instant) {
        match rej.reason {
            Reason::Stale | Reason::InvalidCommId => self.renew_request(slot, rej.reason, now),
            Reason::NoReceiver(epoch) => self.renew_path(slot, epoch, now),
            Reason::Layout(theirs) => {
                self.fail(slot, ConnectCause::Layout { ours: self.local.layout, theirs }, now);
            }
            reason => self.fail(slot, ConnectCause::Rejected(reason), now),
        }
    }

    /// ReqSent + Dreq: the peer had replied, and has removed its endpoint since; its REP may still be on the way and
    /// must find the old id gone.
    pub(super) fn dreq_overtook_rep(&mut self, slot: usize, dreq: &Dreq, now: Instant) {
        self.answer_dreq(slot, dreq, now);
        self.renew_request(slot, Reason::Stale, now);
    }

    /// The same request under a new id, if it never led to anything; `reason` is reported if that has not helped often enough.
    fn renew_request(&mut self, slot: usize, reason: Reason, now: Instant) {
        if self.links[slot].known.is_some() {
            self.leave_window(slot, now);
            return self.peer_left(slot, now);
        }
        if self.may_renew(slot, reason, now) {
            self.renew_id(slot);
            self.send_req(slot, now);
        }
    }

    /// The receive queue pair at the other end is gone: another connection to the node is needed.
    fn renew_path(&mut self, slot: usize, epoch: u32, now: Instant) {
        if (self.links[slot].epoch ^ epoch) & 0x00ff_ffff != 0 {
            return self.stats.stale += 1;
        }
        self.stats.gone += 1;
        if self.may_renew(slot, Reason::NoReceiver(epoch), now) {
            self.leave_path(slot, now);
        }
    }

    /// Connected + Renew: the send queue pair has broken; the link wants another one.
    pub(super) fn renew_link(&mut self, slot: usize, now: Instant) {
        self.links[slot].renewals = 0;
        self.leave_path(slot, now);
    }

    fn leave_path(&mut self, slot: usize, now: Instant) {
        if let Some(path) = self.links[slot].path {
            self.retire(path);
        }
        self.connect_anew(slot, now);
    }

    /// Whatever the link waits for, it waits for something else now.
    pub(super) fn connect_anew(&mut self, slot: usize, now: Instant) {
        self.settle(slot, now);
        self.links[slot].state = State::Queued;
        self.detach(slot, now);
        self.line_up(slot, now);
    }

    /// Rep for a request that is no more: its sender shall not keep a handle for it.
    pub(super) fn disown(&mut self, slot: usize, rep: &Rep, _: Instant) {
        self.stats.stale += 1;
        self.send(slot, Message::Rej(Rej::of_stray_rep(rep.local)));
    }
}
