//! What the managers' handlers are made of: links and their ends, deadlines, the window, what is
//! reported.

use std::time::Instant;

use super::action::Action;
use super::kinds::{Kinds, QpInputs};
use super::machine::{Core, Dismissal, Endpoint, Link, PeerProtocol, Protocol, Role};
use super::timers::Timer;
use crate::wire::Qpns;
use crate::{
    ConnectCause, ConnectError, EndpointCommand, EndpointKey, ProcessName, Step, StreamNum, Timeline,
};

impl<P: Protocol> Core<P> {
    /// True if an endpoint of `peer` can be added under `key`; if it cannot, that is reported.
    pub(crate) fn admits(&mut self, key: EndpointKey, peer: ProcessName) -> bool {
        let misuse = if peer == self.me {
            "it is this process itself"
        } else if self.by_peer.contains_key(&peer) || self.endpoints.contains_key(&key) {
            "it has an endpoint already"
        } else {
            return true;
        };
        self.report_failure(key, peer, ConnectCause::Misuse(misuse));
        false
    }

    /// Lists an endpoint under its key and its peer's name.
    pub(crate) fn list(&mut self, key: EndpointKey, peer: ProcessName, own: P::Endpoint) {
        self.endpoints.insert(key, Endpoint { peer, steps: Timeline::default(), own });
        self.by_peer.insert(peer, key);
    }

    pub(crate) fn add_link(
        &mut self,
        key: EndpointKey,
        peer: ProcessName,
        state: P::State,
        own: P::Link,
        now: Instant,
    ) -> usize {
        let stream = StreamNum::NONE;
        let (deadline, in_window, tries, failed) = (None, false, 0, false);
        self.links.insert(Link {
            key,
            peer,
            state,
            deadline,
            in_window,
            since: now,
            tries,
            failed,
            stream,
            own,
        })
    }

    /// Something happens to a link.
    pub(crate) fn input(&mut self, slot: usize, input: &P::Input<'_>, now: Instant) {
        let handler = P::handler(&self.links[slot].state, input);
        handler(self, slot, input, now);
    }

    /// The handler of cells where nothing is to be done.
    pub(crate) fn ignore(&mut self, _slot: usize, _input: &P::Input<'_>, _now: Instant) {
        self.stats.ignored += 1;
    }

    pub(crate) fn call(&mut self, call: P::Call) {
        self.actions.push_back(Action::Call(call));
    }

    /// Notes when a step of the endpoint's connection happened.
    pub(crate) fn mark(&mut self, slot: usize, step: Step, now: Instant) {
        if let Some(endpoint) = self.endpoints.get_mut(&self.links[slot].key) {
            endpoint.steps.mark(step, now);
        }
    }

    /// The link's [`Protocol::TIMEOUT`] comes at this time.
    pub(crate) fn set_deadline(&mut self, slot: usize, at: Option<Instant>) {
        let old = std::mem::replace(&mut self.links[slot].deadline, at);
        self.timers.move_to(Timer::Link(slot), old, at);
    }

    /// Puts a link at the end of those that wait for a place.
    pub(crate) fn queue(&mut self, slot: usize, now: Instant) {
        self.window.push((slot, self.links[slot].key));
        self.start_queued(now);
    }

    /// Starts queued links while there are places. One that has moved on since is skipped.
    pub(crate) fn start_queued(&mut self, now: Instant) {
        while let Some((slot, key)) = self.window.next() {
            let link = self.links.get(slot).filter(|link| link.key == key);
            if link.is_some_and(|link| link.state.kind() == P::QUEUED) {
                (P::HOOKS.start)(self, slot, now);
            }
        }
    }

    /// The link's request goes out.
    pub(crate) fn enter_window(&mut self, slot: usize) {
        self.window.enter();
        self.links[slot].in_window = true;
    }

    /// The link's request has had its first answer, or its first silence: the next may go out. So a
    /// peer that is slow or gone holds a place for one time-out only.
    pub(crate) fn leave_window(&mut self, slot: usize, now: Instant) {
        if std::mem::take(&mut self.links[slot].in_window) {
            self.window.leave();
            self.start_queued(now);
        }
    }

    /// Nothing of the exchange is left but the link itself.
    pub(crate) fn end(&mut self, slot: usize, now: Instant) {
        self.set_deadline(slot, None);
        (P::HOOKS.release)(self, slot, now);
        self.leave_window(slot, now);
    }

    /// Drops the link. A handler, too: of inputs after which the peer needs to hear nothing (more).
    pub(crate) fn forget(&mut self, slot: usize, now: Instant) {
        self.end(slot, now);
        let link = self.links.remove(slot);
        (P::HOOKS.forgotten)(self, slot, &link);
    }

    /// Gives the link up and reports why.
    pub(crate) fn fail(&mut self, slot: usize, cause: ConnectCause, now: Instant) {
        self.links[slot].state = P::FAILED;
        self.end(slot, now);
        let (key, peer) = (self.links[slot].key, self.links[slot].peer);
        self.report_failure(key, peer, cause);
    }

    /// Gives the link up, of which all is known.
    pub(crate) fn end_failed(&mut self, slot: usize, now: Instant) {
        self.end(slot, now);
        self.links[slot].state = P::FAILED;
    }

    pub(crate) fn report_failure(&mut self, key: EndpointKey, peer: ProcessName, cause: ConnectCause) {
        self.stats.failed += 1;
        self.actions.push_back(Action::Failed { key, error: ConnectError { peer, cause } });
    }

    /// Refuses the request of `peer` that waits for an endpoint.
    pub(super) fn dismiss(&mut self, peer: ProcessName, why: Dismissal) {
        if let Some(request) = self.parked.take(peer, &mut self.timers) {
            (P::HOOKS.refuse_parked)(self, request, why);
        }
    }
}

/// What the managers with one link an endpoint share: ibcm and rdmacm.
impl<P: PeerProtocol> Core<P>
where
    for<'a> P::Input<'a>: QpInputs,
{
    /// The endpoint, which has just been added, goes on with this stream if its peer does.
    pub fn goes_on_with(&mut self, key: EndpointKey, stream: StreamNum) {
        if let Some(endpoint) = self.endpoints.get(&key) {
            let slot = endpoint.own;
            self.links[slot].stream = stream;
        }
    }

    /// The peer has said which stream it goes on with, or which one it is to be.
    pub(crate) fn agree(&mut self, slot: usize, role: Role, theirs: StreamNum) {
        let link = &mut self.links[slot];
        link.stream = match role {
            Role::Active => theirs,
            Role::Passive => link.stream.agreed(theirs),
        };
        let (key, stream) = (link.key, link.stream);
        self.actions.push_back(Action::Agreed { key, stream });
    }

    /// The answer to `CreateQps`: the QPs' numbers, or why there are none.
    pub fn qps_created(&mut self, key: EndpointKey, qpns: Result<Qpns, String>, now: Instant) {
        self.input_by_key(key, &QpInputs::qps_created(qpns), now);
    }

    /// The answer to `BringUp`.
    pub fn qps_up(&mut self, key: EndpointKey, outcome: Result<(), String>, now: Instant) {
        self.input_by_key(key, &QpInputs::qps_up(outcome), now);
    }

    pub(crate) fn command_link(&mut self, key: EndpointKey, command: EndpointCommand, now: Instant) {
        if let Some(input) = QpInputs::command(command) {
            self.input_by_key(key, &input, now);
        }
    }

    /// Creating + QpsMade: sends our request, or answers the peer's if one came meanwhile.
    pub(crate) fn qps_ready(&mut self, slot: usize, &qpns: &Qpns, now: Instant) {
        if qpns.as_slice().len() != (P::PEER_HOOKS.layout)(&self.local).count() {
            return self.fail(slot, ConnectCause::Misuse("its queue pairs do not match the layout"), now);
        }
        self.mark(slot, Step::QpsCreated, now);
        (P::PEER_HOOKS.take_qps)(self, slot, qpns, now);
    }

    /// Where the endpoint stands; `None` once it is removed. For logs and tests.
    pub fn state(&self, key: EndpointKey) -> Option<<P::State as Kinds>::Kind> {
        self.slot_of(key).map(|slot| self.links[slot].state.kind())
    }

    pub(crate) fn slot_of(&self, key: EndpointKey) -> Option<usize> {
        self.endpoints.get(&key).map(|endpoint| endpoint.own)
    }

    pub(crate) fn slot_of_peer(&self, peer: ProcessName) -> Option<usize> {
        self.by_peer.get(&peer).and_then(|&key| self.slot_of(key))
    }

    /// Something happens to the link of an endpoint.
    pub(crate) fn input_by_key(&mut self, key: EndpointKey, input: &P::Input<'_>, now: Instant) {
        match self.slot_of(key) {
            Some(slot) => self.input(slot, input, now),
            None => self.stats.ignored += 1,
        }
    }

    /// Removes the endpoint of a link; its key and its peer may have another one already.
    pub(crate) fn unlist(&mut self, slot: usize, key: EndpointKey) {
        if let Some(endpoint) = self.endpoints.get(&key).filter(|endpoint| endpoint.own == slot) {
            self.by_peer.remove(&endpoint.peer);
            self.endpoints.remove(&key);
        }
    }

    /// Unlist, where the peer has neither asked nor answered: the endpoint is forgotten. In other states the main thread has been told what is
    /// under way, or is about to be.
    pub(crate) fn unlist_unanswered(&mut self, slot: usize, now: Instant) {
        let key = self.links[slot].key;
        self.forget(slot, now);
        self.actions.push_back(Action::Unlisted { key });
    }

    /// Remove, where the peer may have a connection: asks it to let go.
    pub(crate) fn disconnect(&mut self, slot: usize, now: Instant) {
        self.unlist(slot, self.links[slot].key);
        (P::PEER_HOOKS.start_disconnect)(self, slot, now);
    }

    /// Abandon, where the peer may have a connection: it must not wait for what never comes. The
    /// endpoint stays known, to refuse requests.
    pub(crate) fn abandon(&mut self, slot: usize, now: Instant) {
        self.links[slot].failed = true;
        (P::PEER_HOOKS.start_disconnect)(self, slot, now);
    }

    /// Remove of an endpoint that was abandoned: the rest goes as if it had been removed at once.
    pub(crate) fn unlist_abandoned(&mut self, slot: usize, _: Instant) {
        self.links[slot].failed = false;
        self.unlist(slot, self.links[slot].key);
    }

    /// The peer has left: nothing of the exchange is kept.
    pub(crate) fn left(&mut self, slot: usize, now: Instant) {
        self.end(slot, now);
        self.links[slot].state = P::LEFT;
        self.actions.push_back(Action::Disconnected { key: self.links[slot].key });
    }

    /// Both sides are up.
    pub(crate) fn connected(&mut self, slot: usize, state: P::State) {
        self.set_deadline(slot, None);
        self.stats.connected += 1;
        self.links[slot].state = state;
        self.actions.push_back(Action::Connected { key: self.links[slot].key });
    }
}
