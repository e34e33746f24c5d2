//! Handlers of the side that is asked, and of both sides once their values are known.

use std::time::Instant;

use super::state::{Incoming, Refused, State};
use super::{Call, Machine};
use crate::core::machine::Role;
use crate::wire::Qpns;
use crate::wire::refusal::Refusal;
use crate::{ConnectCause, Step, StreamNum};

impl Machine {
    /// Request, where nothing of ours is under way: answers it.
    pub(super) fn accept(&mut self, slot: usize, request: &Incoming, now: Instant) {
        self.set_deadline(slot, None);
        self.answer(slot, *request, now);
    }

    pub(super) fn answer(&mut self, slot: usize, request: Incoming, now: Instant) {
        self.mark(slot, Step::ReqReceived, now);
        self.links[slot].since = now;
        self.take_id(slot, request.id);
        self.need_qps(slot, Some(request), now);
    }

    /// Request, where ours is not out yet: the peer's is the one that stands.
    pub(super) fn adopt(&mut self, slot: usize, request: &Incoming, now: Instant) {
        self.set_deadline(slot, None);
        self.close_id(slot);
        self.leave_window(slot, now);
        if matches!(self.links[slot].state, State::Creating { .. }) {
            // The QPs are being made already.
            self.mark(slot, Step::ReqReceived, now);
            self.take_id(slot, request.id);
            self.links[slot].state = State::Creating { request: Some(*request) };
            return;
        }
        self.answer(slot, *request, now);
    }

    /// ReqSent + Request: two requests cross. The one of the lower address stands.
    pub(super) fn merge(&mut self, slot: usize, request: &Incoming, now: Instant) {
        self.stats.raced += 1;
        if self.local.address.outranks(&self.links[slot].address) {
            self.links[slot].crossed = true;
            return self.refuse(request.id, Refusal::Crossing);
        }
        if self.local.id_per_qp {
            return self.hold_crossing(slot, *request);
        }
        // The peer refuses ours; its end of it goes with our id.
        self.adopt(slot, request, now);
    }

    /// Creating + Refused, Broken or Disconnected: the request that we were about to answer is gone.
    pub(super) fn request_gone(&mut self, slot: usize, now: Instant) {
        let State::Creating { request } = self.links[slot].state else { return };
        match request {
            Some(_) if !self.links[slot].wanted => {
                self.close_id(slot);
                self.links[slot].state = State::Idle;
            }
            _ => self.retry(slot, "it has let go of its request", now),
        }
    }

    /// Connect, while the peer's request is being answered: remembered, in case that comes to nothing.
    pub(super) fn note_connect(&mut self, slot: usize, _: Instant) {
        self.links[slot].wanted = true;
    }

    /// Both sides' values are known: takes the QPs up.
    pub(super) fn bring_up(
        &mut self,
        slot: usize,
        (remote, stream): (Qpns, StreamNum),
        role: Role,
        now: Instant,
    ) {
        self.set_deadline(slot, None);
        self.refuse_crossing(slot, Refusal::Late);
        self.leave_window(slot, now);
        self.agree(slot, role, stream);
        let link = &mut self.links[slot];
        link.state = State::ToRts { remote, role, early: false };
        let (key, id) = (link.key, link.id);
        if let Some(id) = id {
            self.call(Call::BringUp { key, id, remote });
        }
    }

    /// ToRts + FirstData: the peer is up before we are.
    pub(super) fn note_data(&mut self, slot: usize, _: Instant) {
        if let State::ToRts { early, .. } = &mut self.links[slot].state {
            *early = true;
        }
    }

    /// ToRts + QpsUp: says so.
    pub(super) fn qps_up_done(&mut self, slot: usize, now: Instant) {
        let State::ToRts { remote, role, early } = self.links[slot].state else { return };
        let (Some(id), Some(hello)) = (self.links[slot].id, self.hello(slot)) else { return };
        if !self.local.id_per_qp {
            self.mark(slot, Step::QpsUp, now);
        }
        match role {
            // The device has said it for us.
            Role::Active if self.local.id_per_qp => self.first_up(slot, remote, role, now),
            Role::Active => {
                self.mark(slot, Step::RtuSent, now);
                self.call(Call::Establish { id });
                self.first_up(slot, remote, role, now);
            }
            Role::Passive => {
                self.mark(slot, Step::RepSent, now);
                self.links[slot].state = State::RepSent { remote };
                self.set_deadline(slot, Some(now + self.params.connect_timeout));
                self.call(Call::Accept { id, hello });
                if early {
                    self.confirm_by_data(slot, now);
                }
            }
        }
    }

    /// ToRts + QpsDown: reports it; the peer is told.
    pub(super) fn bring_up_failed(&mut self, slot: usize, error: &str, now: Instant) {
        if let Some(id) = self.links[slot].id.take() {
            self.refuse(id, Refusal::NoResources);
        }
        self.fail(slot, ConnectCause::Verbs(error.to_owned()), now);
    }

    pub(super) fn confirm(&mut self, slot: usize, now: Instant) {
        self.mark(slot, Step::RtuReceived, now);
        self.confirmed(slot, now);
    }

    pub(super) fn confirmed(&mut self, slot: usize, now: Instant) {
        if let State::RepSent { remote } = self.links[slot].state {
            self.first_up(slot, remote, Role::Passive, now);
        }
    }

    /// RepSent + FirstData: as good as the confirmation; the connection manager is told.
    pub(super) fn confirm_by_data(&mut self, slot: usize, now: Instant) {
        self.stats.first_data += 1;
        if let Some(id) = self.links[slot].id {
            self.call(Call::Notify { id });
        }
        self.confirmed(slot, now);
    }

    /// ToRts, RepSent or Joining + Refused: the QPs are spent, so this endpoint is. A peer that destroys its id without a word of ours
    /// has removed its endpoint, or started anew: it has left, and may come again.
    pub(super) fn refused_before_up(&mut self, slot: usize, refused: &Refused, now: Instant) {
        match refused {
            Refused::Other(_) => self.dreq_received(slot, now),
            refused => self.fail(slot, ConnectCause::Refused(refused.to_string()), now),
        }
    }

    pub(super) fn broken_before_up(&mut self, slot: usize, why: &str, now: Instant) {
        self.fail(slot, ConnectCause::Verbs(why.to_owned()), now);
    }

    pub(super) fn not_confirmed(&mut self, slot: usize, now: Instant) {
        let elapsed = now.saturating_duration_since(self.links[slot].since);
        let why = "it does not confirm the connection".to_owned();
        self.fail(slot, ConnectCause::Unreachable { why, tries: 1, elapsed }, now);
    }

    /// ToRts, RepSent or Connected + Request. With the very QPs that we are connected to it is late: it crossed ours, and its sender
    /// has answered. With others the peer has started anew; what we hold leads nowhere. The request waits for a new link.
    pub(super) fn superseded(&mut self, slot: usize, request: &Incoming, now: Instant) {
        if self.links[slot].is_with(request) {
            self.stats.late += 1;
            return self.refuse(request.id, Refusal::Late);
        }
        self.dreq_received(slot, now);
        self.park_request(slot, request, now);
    }

    /// Disconnected + Request: waits for a new link.
    pub(super) fn park_request(&mut self, slot: usize, request: &Incoming, now: Instant) {
        let peer = self.links[slot].peer;
        self.park(peer, *request, now);
    }

    /// Failed + Request: this endpoint is spent.
    pub(super) fn refuse_spent(&mut self, _: usize, request: &Incoming, _: Instant) {
        self.refuse(request.id, Refusal::Failed);
    }
}
