//! Handlers of the side that asks: from the wish to connect to the reply, and new tries.

use std::time::{Duration, Instant};

use super::state::{Incoming, Refused, State};
use super::{Call, Machine, RdmaCm};
use crate::core::action::Action;
use crate::core::machine::{Link, Role};
use crate::wire::refusal::Refusal;
use crate::wire::{Hello, Qpns};
use crate::{ConnectCause, Step};

/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

impl Machine {
    /// Idle + Connect: takes a place in the queue, and its turn if it has come.
    pub(super) fn enqueue(&mut self, slot: usize, now: Instant) {
        let link = &mut self.links[slot];
        (link.wanted, link.tries, link.since) = (true, 0, now);
        self.again(slot, now);
    }

    /// Pausing + Timeout: the next try, when there is a place for it.
    pub(super) fn again(&mut self, slot: usize, now: Instant) {
        self.links[slot].state = State::Queued;
        self.queue(slot, now);
    }

    /// The link's turn: resolves the peer's address.
    pub(super) fn resolve(&mut self, slot: usize, now: Instant) {
        self.enter_window(slot);
        let id = self.draw_id();
        self.take_id(slot, id);
        let link = &mut self.links[slot];
        link.state = State::Resolving;
        let (key, to) = (link.key, link.address);
        self.set_deadline(slot, Some(now + self.params.resolve_timeout));
        self.call(Call::Resolve { key, id, to });
    }

    pub(super) fn route(&mut self, slot: usize, now: Instant) {
        let Some(id) = self.links[slot].id else { return };
        self.links[slot].state = State::Routing;
        self.set_deadline(slot, Some(now + self.params.resolve_timeout));
        self.call(Call::Route { id });
    }

    /// Routing + RouteResolved: the QPs, unless a former try has left them.
    pub(super) fn open(&mut self, slot: usize, now: Instant) {
        self.set_deadline(slot, None);
        self.mark(slot, Step::Resolved, now);
        self.need_qps(slot, None, now);
    }

    /// Goes on with the QPs there are, or asks for them.
    pub(super) fn need_qps(&mut self, slot: usize, request: Option<Incoming>, now: Instant) {
        let link = &mut self.links[slot];
        link.state = State::Creating { request };
        if link.qpns.is_some() {
            return self.proceed(slot, now);
        }
        let key = link.key;
        self.call(Call::CreateQps { key });
    }

    /// Sends our request, or answers the peer's if one came meanwhile.
    pub(super) fn take_qps(&mut self, slot: usize, qpns: Qpns, now: Instant) {
        self.links[slot].qpns = Some(qpns);
        self.proceed(slot, now);
    }

    fn proceed(&mut self, slot: usize, now: Instant) {
        let State::Creating { request } = self.links[slot].state else { return };
        match request {
            Some(Incoming { qpns, stream, .. }) => self.bring_up(slot, (qpns, stream), Role::Passive, now),
            None => self.send_req(slot, now),
        }
    }

    fn send_req(&mut self, slot: usize, now: Instant) {
        let (Some(id), Some(hello)) = (self.links[slot].id, self.hello(slot)) else { return };
        self.links[slot].state = State::ReqSent;
        self.stats.asked += 1;
        self.mark(slot, Step::ReqSent, now);
        self.set_deadline(slot, Some(now + self.params.connect_timeout));
        self.call(Call::Connect { id, hello });
    }

    /// Creating + QpsFailed: reports it; a peer that asked is told.
    pub(super) fn create_failed(&mut self, slot: usize, error: &str, now: Instant) {
        let State::Creating { request } = self.links[slot].state else { return };
        if let Some(request) = request {
            self.refuse(request.id, Refusal::NoResources);
            self.links[slot].id = None;
        }
        self.fail(slot, ConnectCause::Verbs(error.to_owned()), now);
    }

    /// ReqSent + Response: the peer is up; so shall we be, if it is who we meant.
    pub(super) fn replied(&mut self, slot: usize, hello: &Hello, now: Instant) {
        self.mark(slot, Step::RepReceived, now);
        if hello.layout != self.local.layout {
            let (ours, theirs) = (self.local.layout, hello.layout);
            self.stats.layout_refused += 1;
            return self.give_up(slot, Refusal::Layout(ours), ConnectCause::Layout { ours, theirs }, now);
        }
        if hello.name != self.links[slot].peer {
            let why = format!("process {} listens at its address", hello.name);
            return self.give_up(slot, Refusal::Malformed, ConnectCause::Stranger(why), now);
        }
        self.bring_up(slot, (hello.qpns, hello.stream), Role::Active, now);
    }

    /// ReqSent + Malformed: the reply is not one of ours.
    pub(super) fn malformed_rep(&mut self, slot: usize, now: Instant) {
        let why = "what listens at its address is not of this program".to_owned();
        self.give_up(slot, Refusal::Malformed, ConnectCause::Stranger(why), now);
    }

    /// Refuses the reply and fails.
    fn give_up(&mut self, slot: usize, why: Refusal, cause: ConnectCause, now: Instant) {
        if let Some(id) = self.links[slot].id.take() {
            self.refuse(id, why);
        }
        self.fail(slot, cause, now);
    }

    /// ReqSent + Refused: waits for the peer's own request, tries again, or gives up, as the reason says.
    pub(super) fn refused(&mut self, slot: usize, refused: &Refused, now: Instant) {
        match refused {
            Refused::ByPeer(Refusal::Crossing) => self.yield_to_peer(slot, now),
            Refused::ByPeer(Refusal::Layout(theirs)) => {
                let (ours, theirs) = (self.local.layout, *theirs);
                self.stats.layout_refused += 1;
                self.fail(slot, ConnectCause::Layout { ours, theirs }, now);
            }
            Refused::ByPeer(Refusal::Late) => {
                self.retry(slot, "it takes itself for connected already", now);
            }
            Refused::ByPeer(reason) => self.fail(slot, ConnectCause::Refused(reason.to_string()), now),
            Refused::NotListening if self.links[slot].crossed => self.moved(slot, now),
            Refused::NotListening => self.retry(slot, "no process listens at its address", now),
            Refused::Other(reason) => self.retry(slot, &format!("rejected with reason {reason}"), now),
        }
    }

    /// The peer has asked, but does not listen where we know it: it has started anew, and waits for what it takes for our request.
    fn moved(&mut self, slot: usize, now: Instant) {
        let peer = self.links[slot].peer;
        self.dreq_received(slot, now);
        self.actions.push_back(Action::UnknownPeer { peer });
    }

    /// The peer's request is on its way here, and stands.
    fn yield_to_peer(&mut self, slot: usize, now: Instant) {
        self.discard_qps(slot);
        if self.answer_crossing(slot, now) {
            return;
        }
        self.close_id(slot);
        self.links[slot].state = State::Yielding;
        self.set_deadline(slot, Some(now + self.params.connect_timeout));
        self.leave_window(slot, now);
    }

    /// A try has come to nothing.
    pub(super) fn retry(&mut self, slot: usize, why: &str, now: Instant) {
        self.discard_qps(slot);
        if self.answer_crossing(slot, now) {
            return;
        }
        self.close_id(slot);
        self.leave_window(slot, now);
        let link = &mut self.links[slot];
        link.tries += 1;
        let tries = link.tries;
        if tries > self.params.max_retries {
            let elapsed = now.saturating_duration_since(link.since);
            let cause = ConnectCause::Unreachable { why: why.to_owned(), tries, elapsed };
            return self.fail(slot, cause, now);
        }
        self.stats.retried += 1;
        self.links[slot].state = State::Pausing;
        let pause = self.params.retry_pause.saturating_mul(1 << (tries - 1).min(16)).min(LONGEST_PAUSE);
        let pause = self.rng.jitter(pause);
        self.set_deadline(slot, Some(now + pause));
    }
}

impl Link<RdmaCm> {
    /// True if the link is connected, or about to be, to these very queue pairs.
    pub(super) fn is_with(&self, request: &Incoming) -> bool {
        self.state.remote() == Some(&request.qpns)
    }
}
