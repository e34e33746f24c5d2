//! Handlers of the side that is asked: from the peer's REQ to its RTU, and the merging of crossing requests.

use std::time::Instant;

use super::state::{Remote, State};
use super::{Call, Machine};
use crate::Step;
use crate::core::machine::Role;
use crate::exchange::Received;
use crate::wire::time::{decode_time, encode_time};
use crate::wire::{Message, Mra, Reason, Rep, Req, Stage};

impl Machine {
    /// Idle or Queued + ReqNew: makes QPs to answer with.
    pub(super) fn accept(&mut self, slot: usize, Received { req, .. }: &Received<Req>, now: Instant) {
        self.note_seen(slot, req.head.local);
        self.mark(slot, Step::ReqReceived, now);
        self.note_response(slot, req);
        let link = &mut self.links[slot];
        (link.since, link.state) = (now, State::Creating { request: Some(requester(req)) });
        let key = link.key;
        self.call(Call::CreateQps { key });
    }

    /// Creating + ReqNew: our own request has not gone out, so the peer's is the one; or it is newer than the one at hand.
    pub(super) fn adopt(&mut self, slot: usize, Received { req, .. }: &Received<Req>, now: Instant) {
        self.mark(slot, Step::ReqReceived, now);
        self.note_seen(slot, req.head.local);
        self.note_response(slot, req);
        self.links[slot].state = State::Creating { request: Some(requester(req)) };
    }

    /// ReqSent + ReqNew: two requests have crossed. The lower address's stands, the higher's is answered as if it had
    /// never asked; both sides decide from the same two modex addresses, so nothing more has to be said. A request of ours that went to
    /// a former incarnation of the peer has crossed nothing.
    pub(super) fn merge(&mut self, slot: usize, Received { req, .. }: &Received<Req>, now: Instant) {
        self.stats.raced += 1;
        self.mark(slot, Step::ReqReceived, now);
        let State::ReqSent { asked, .. } = self.links[slot].state else { return };
        let address = &self.links[slot].address;
        if asked != address.incarnation || !address.is_outranked_by(&self.local.address) {
            self.links[slot].since = now;
            self.note_response(slot, req);
            self.bring_up(slot, requester(req), Role::Passive, now);
        }
    }

    /// The QPs are up: says so. Only the peer's RTU, or data from it, says that it is up as well.
    pub(super) fn reply(&mut self, slot: usize, remote: Remote, early: bool, now: Instant) {
        self.mark(slot, Step::RepSent, now);
        self.send_rep(slot, &remote);
        if early {
            return self.connected(slot, State::Connected { remote, role: Role::Passive });
        }
        let link = &mut self.links[slot];
        (link.state, link.tries) = (State::RepSent { remote }, 0);
        self.arm(slot, now);
    }

    fn send_rep(&mut self, slot: usize, remote: &Remote) {
        let Some(hello) = self.hello(slot) else { return };
        let endpoint = &self.links[slot];
        let rep = Rep {
            local: endpoint.local,
            remote: remote.id,
            hello,
            queues: self.local.queues,
            psn: endpoint.psn,
            depth: self.local.terms.depth,
            rnr_retry: self.local.terms.rnr_retry & 7,
            srq: self.local.srq,
        };
        self.send(slot, Message::Rep(rep));
    }

    /// RepSent + ReqDup: the REP was lost or is under way; one for one, so no peer can be flooded with it.
    pub(super) fn repeat_rep(&mut self, slot: usize, _: Instant) {
        let State::RepSent { remote } = self.links[slot].state else { return };
        self.stats.repeated += 1;
        self.send_rep(slot, &remote);
    }

    /// RepSent + Timeout: repeats the REP, unless it has been sent often enough.
    pub(super) fn repeat_rep_or_fail(&mut self, slot: usize, now: Instant) {
        let State::RepSent { remote } = self.links[slot].state else { return };
        if !self.may_repeat(slot, now) {
            self.reject(slot, remote.id, Stage::Other, Reason::Timeout);
            return self.time_out(slot, now);
        }
        self.send_rep(slot, &remote);
        self.arm(slot, now);
    }

    /// RepSent + Mra: the peer has our REP and needs more time.
    pub(super) fn reply_later(&mut self, slot: usize, mra: &Mra, now: Instant) {
        if mra.stage != Stage::Rep {
            return self.stats.ignored += 1;
        }
        self.extend_deadline(slot, mra, now);
    }

    /// The peer asks for more time: see `more_time`.
    pub(super) fn extend_deadline(&mut self, slot: usize, mra: &Mra, now: Instant) {
        let until = self.more_time(slot, mra, now);
        self.set_deadline(slot, Some(until));
    }

    /// Creating or ToRts + ReqDup: the request is being worked at; its sender shall know, and wait.
    pub(super) fn acknowledge_req(&mut self, slot: usize, _: Instant) {
        match self.links[slot].state {
            State::Creating { request: Some(remote) } | State::ToRts { remote, role: Role::Passive, .. } => {
                self.send_mra(slot, &remote, Stage::Req)
            }
            _ => self.stats.ignored += 1,
        }
    }

    /// ToRts + Rep: the same for a reply that is being worked at; another one is of an exchange that is no more.
    pub(super) fn acknowledge_or_disown_rep(&mut self, slot: usize, rep: &Rep, now: Instant) {
        match self.links[slot].state {
            State::ToRts { remote, role: Role::Active, .. } if remote.id == rep.local => {
                self.send_mra(slot, &remote, Stage::Rep);
            }
            _ => self.disown_rep(slot, rep, now),
        }
    }

    fn send_mra(&mut self, slot: usize, remote: &Remote, stage: Stage) {
        let (local, remote) = (self.links[slot].local, remote.id);
        let service_timeout = encode_time(self.params.mra_wait);
        self.send(slot, Message::Mra(Mra { local, remote, stage, service_timeout }));
    }

    /// How long the peer takes to answer us.
    fn note_response(&mut self, slot: usize, req: &Req) {
        self.links[slot].response = decode_time(req.head.response_timeout);
    }

    /// RepSent + Rtu: both sides are up.
    pub(super) fn confirm(&mut self, slot: usize, now: Instant) {
        self.mark(slot, Step::RtuReceived, now);
        self.confirmed(slot);
    }

    fn confirmed(&mut self, slot: usize) {
        let State::RepSent { remote } = self.links[slot].state else { return };
        self.connected(slot, State::Connected { remote, role: Role::Passive });
    }

    /// RepSent + FirstData: data can't come from a peer that is not up; they stand in for a late or lost RTU.
    pub(super) fn confirm_by_data(&mut self, slot: usize, _: Instant) {
        self.stats.first_data += 1;
        self.confirmed(slot);
    }

    /// ToRts + FirstData: remembered until the QPs are reported up.
    pub(super) fn note_data(&mut self, slot: usize, _: Instant) {
        if let State::ToRts { early, .. } = &mut self.links[slot].state {
            *early = true;
        }
    }
}

fn requester(req: &Req) -> Remote {
    Remote::new(req.head.local, &req.hello, req.head.psn, req.head.depth)
}
