//! iWARP: an id, and so a connection, for each queue pair.
//!
//! ```text
//!   first queue    as everywhere: crossing requests, layouts, new starts are settled there     ToRts / RepSent
//!   the others     the active side asks for all of them at once, saying whose they are         Joining
//!                  all are up: who sends first is told, and the endpoint is connected          Connected
//! ```
//! One of them refused, broken or late, and the whole endpoint is given up: its queue pairs cannot be used again. Nor can those of a first
//! connection that came to nothing, so each try makes its own, and the transport hears of those that serve (`BringUp`).

use std::time::Instant;

use verbs::cm::Token;

use super::action::First;
use super::state::{Incoming, Input, JoinRequest, Own, State, Stream};
use super::{Call, IdEvent, Machine, Owner};
use crate::core::machine::Role;
use crate::wire::Qpns;
use crate::wire::join::Join;
use crate::wire::refusal::Refusal;
use crate::{ConnectCause, Step};

impl Machine {
    /// The first connection is up; on iWARP the others follow.
    pub(super) fn first_up(&mut self, slot: usize, remote: Qpns, role: Role, now: Instant) {
        if !self.local.id_per_qp {
            return self.connected(slot, State::Connected { remote });
        }
        let link = &mut self.links[slot];
        let (key, to) = (link.key, link.address);
        link.streams = vec![Stream::default(); remote.as_slice().len() - 1];
        link.state = State::Joining { remote, role };
        self.set_deadline(slot, Some(now + self.params.connect_timeout));
        if role == Role::Active {
            for queue in 1..remote.as_slice().len() {
                let id = self.draw_id();
                self.take_stream(slot, queue, id);
                self.call(Call::Resolve { key, id, to });
            }
        }
        self.join_if_all_up(slot, now);
    }

    fn take_stream(&mut self, slot: usize, queue: usize, id: Token) {
        self.links[slot].streams[queue - 1].id = Some(id);
        self.own.by_id.insert(id, Owner::Stream(slot, queue));
    }

    fn join_if_all_up(&mut self, slot: usize, now: Instant) {
        let link = &self.links[slot];
        let State::Joining { remote, role } = link.state else { return };
        if link.streams.iter().all(|stream| stream.up) {
            let first = if role == Role::Active { First::Us } else { First::Peer };
            let key = link.key;
            self.call(Call::Order { key, first });
            self.mark(slot, Step::QpsUp, now);
            self.connected(slot, State::Connected { remote });
        }
    }

    /// Something happened to the id of queue `queue`.
    pub(super) fn stream_event(&mut self, slot: usize, queue: usize, event: IdEvent<'_>, now: Instant) {
        let lost = |why: &str| format!("connection {} of its queues: {why}", queue + 1);
        match event {
            IdEvent::AddrResolved => self.stream_resolved(slot, queue, |id, _| Some(Call::Route { id })),
            IdEvent::RouteResolved => {
                self.stream_resolved(slot, queue, |id, join| Some(Call::Join { id, join: join? }));
            }
            IdEvent::Response(_) | IdEvent::Established => self.input(slot, &Input::StreamUp(queue), now),
            IdEvent::Refused(why) => self.input(slot, &Input::StreamLost(lost(&why.to_string())), now),
            IdEvent::Broken(why) | IdEvent::Unconfirmed(why) => {
                self.input(slot, &Input::StreamLost(lost(why)), now);
            }
            IdEvent::Disconnected => self.input(slot, &Input::StreamLost(lost("it has gone")), now),
        }
    }

    /// A step on the active side's way to a further connection.
    fn stream_resolved(
        &mut self,
        slot: usize,
        queue: usize,
        then: impl FnOnce(Token, Option<Join>) -> Option<Call>,
    ) {
        let link = &self.links[slot];
        let State::Joining { remote, role: Role::Active } = &link.state else {
            return self.stats.ignored += 1;
        };
        let join = link.qpns.and_then(|qpns| Join::new(queue, self.local.name, &qpns, remote));
        if let Some(call) = link.streams[queue - 1].id.and_then(|id| then(id, join)) {
            self.call(call);
        }
    }

    pub(super) fn stream_up(&mut self, slot: usize, queue: &usize, now: Instant) {
        self.links[slot].streams[queue - 1].up = true;
        self.join_if_all_up(slot, now);
    }

    /// Joining + StreamLost: the others are of no use without it.
    pub(super) fn stream_lost(&mut self, slot: usize, why: &str, now: Instant) {
        self.fail(slot, ConnectCause::Refused(why.to_owned()), now);
    }

    pub(super) fn join_late(&mut self, slot: usize, now: Instant) {
        let link = &self.links[slot];
        let up = 1 + link.streams.iter().filter(|stream| stream.up).count();
        let why = format!("only {up} of {} connections came up", 1 + link.streams.len());
        let elapsed = now.saturating_duration_since(link.since);
        self.fail(slot, ConnectCause::Unreachable { why, tries: 1, elapsed }, now);
    }

    /// A request for a further connection has come in.
    pub(super) fn join_request(&mut self, id: Token, join: Join, now: Instant) {
        match self.slot_of_peer(join.name) {
            Some(slot) => self.input(slot, &Input::Join(JoinRequest { id, join }), now),
            None => self.refuse(id, Refusal::UnknownPeer),
        }
    }

    /// Joining + Join: one of those that we wait for, or one of another time.
    pub(super) fn take_join(&mut self, slot: usize, request: &JoinRequest, now: Instant) {
        let JoinRequest { id, join } = request;
        let link = &self.links[slot];
        let (queue, name) = (usize::from(join.queue), link.peer);
        let expected = match (&link.state, &link.qpns) {
            (State::Joining { remote, role: Role::Passive }, Some(ours)) => {
                Join::new(queue, name, remote, ours).map(|expected| (expected, ours.as_slice()[queue]))
            }
            _ => None,
        };
        let vacant = link.streams.get(queue - 1).is_some_and(|stream| stream.id.is_none());
        match expected {
            Some((expected, qpn)) if vacant && expected == *join => {
                self.take_stream(slot, queue, *id);
                self.call(Call::AcceptJoin { id: *id, qpn });
            }
            _ => self.refuse_join(slot, request, now),
        }
    }

    /// RepSent + Join: the peer goes on, so it is up; its word of that is behind.
    pub(super) fn confirm_by_join(&mut self, slot: usize, request: &JoinRequest, now: Instant) {
        self.confirmed(slot, now);
        self.take_join(slot, request, now);
    }

    /// Join, where none is waited for.
    pub(super) fn refuse_join(&mut self, _: usize, request: &JoinRequest, _: Instant) {
        self.stats.late += 1;
        self.refuse(request.id, Refusal::Late);
    }

    /// ReqSent + Request on iWARP, where the peer's stands: its turn comes when it has refused ours, for until then our first queue pair is
    /// taken.
    pub(super) fn hold_crossing(&mut self, slot: usize, request: Incoming) {
        if let Some(older) = self.links[slot].crossing.replace(request) {
            self.refuse(older.id, Refusal::Late);
        }
        self.own.by_id.insert(request.id, Owner::Crossing(slot));
    }

    /// A try with our queue pairs has come to nothing: a device may take one that was refused to the error state.
    pub(super) fn discard_qps(&mut self, slot: usize) {
        if self.local.id_per_qp {
            self.links[slot].qpns = None;
        }
    }

    /// Our request has come to nothing. True: the peer's, which stands, is answered in its place.
    pub(super) fn answer_crossing(&mut self, slot: usize, now: Instant) -> bool {
        let Some(request) = self.links[slot].crossing.take() else { return false };
        self.set_deadline(slot, None);
        self.close_id(slot);
        self.leave_window(slot, now);
        self.answer(slot, request, now);
        true
    }

    /// Refuses the request that waits for its turn, if there is one.
    pub(super) fn refuse_crossing(&mut self, slot: usize, why: Refusal) {
        if let Some(request) = self.links[slot].crossing.take() {
            self.refuse(request.id, why);
        }
    }

    /// Gives back all ids but the first connection's.
    pub(super) fn close_streams(&mut self, slot: usize) {
        let ids: Vec<Token> = self.links[slot].stream_ids().collect();
        ids.into_iter().for_each(|id| self.close_one(id));
        self.links[slot].streams.clear();
    }

    /// Takes all connections down, or agrees to that.
    pub(super) fn disconnect_all(&mut self, slot: usize) {
        let link = &self.links[slot];
        let ids: Vec<Token> = link.id.into_iter().chain(link.stream_ids()).collect();
        ids.into_iter().for_each(|id| self.call(Call::Disconnect { id }));
    }
}

impl Own {
    fn stream_ids(&self) -> impl Iterator<Item = Token> {
        self.streams.iter().filter_map(|stream| stream.id)
    }
}
