//! The connection to a node: one send queue pair for all links to the processes there.
//!
//! ```text
//!   Making ---made---> SenderCreated --first REP--> ToRts --raised--> Connected --last link gone--> given back
//!      \______________ the link that asks over it has failed or is gone: given back, those who wait begin anew
//! ```
//! One process of a node is asked for all. If it is slow (the first time-out passes: it may be stopped, or
//! have said that it takes longer), it goes on by itself, and the next is asked over a path of its own; then two at a time, then four: there may
//! be as many who have not had their time as there are slow ones. So a link waits one time-out for each doubling at the
//! most, however many stand in line before it, and a node that answers has one path. The first that is up is the node's. A link that still
//! asks over another one then moves over to it (`join_others`).
//!
//! A path that breaks (`retire`) is no longer the node's; it stays until its last link has left it.

use std::collections::VecDeque;
use std::time::Instant;

use verbs::{Psn, Qpn};

use super::Machine;
use super::action::{Call, PathId};
use super::state::State;
use crate::core::machine::Ticket;
use crate::wire::domain::Place;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The send queue pair is being made.
    Making,
    /// It exists; one link, the carrier, asks over it.
    SenderCreated,
    /// It is on its way to RTS.
    ToRts,
    /// It is connected to this receive queue pair.
    Connected(Qpn),
}

#[derive(Debug)]
pub(super) struct Path {
    pub(super) place: Place,
    pub(super) stage: Stage,
    pub(super) qpn: Qpn,
    pub(super) psn: Psn,
    /// The link that asks over it; its only one until it is up.
    pub(super) carrier: usize,
    /// The process that is asked has not answered in time.
    slow: bool,
    /// Links that use it.
    users: u32,
}

/// A node that links of ours want to go to.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// The path that new links use.
    up: Option<PathId>,
    /// Paths that are not up, of processes that are not slow.
    fresh: u32,
    /// Paths that are not up, of processes that are.
    slow: u32,
    /// Links that wait until one is up, or for their turn to ask.
    waiting: VecDeque<Ticket>,
}

impl Machine {
    /// Puts a link that wants to connect where it has to wait; its turn may come at once.
    pub(super) fn line_up(&mut self, slot: usize, now: Instant) {
        self.links[slot].state = State::Queued;
        self.links[slot].since = now;
        let (ticket, peer) = ((slot, self.links[slot].key), self.links[slot].peer);
        if self.own.leaving.contains_key(&peer) {
            // The peer must have heard of the end of our last endpoint before it hears of this one.
            return;
        }
        match self.own.nodes.get_mut(&self.links[slot].address.place()) {
            Some(node) if !node.is_open() => node.waiting.push_back(ticket),
            _ => self.window.push(ticket),
        }
        self.start_queued(now);
    }

    /// A link's turn: asks over the connection to its node, or begins that.
    pub(super) fn begin(&mut self, slot: usize, now: Instant) {
        let ticket = (slot, self.links[slot].key);
        let place = self.links[slot].address.place();
        let node = self.own.nodes.entry(place).or_default();
        if let Some(path) = node.up {
            self.enter_window(slot);
            self.attach(slot, path);
            self.first_req(slot, now);
        } else if node.is_open() {
            node.fresh += 1;
            self.enter_window(slot);
            self.open_path(slot, place);
        } else {
            node.waiting.push_back(ticket);
        }
    }

    fn open_path(&mut self, slot: usize, place: Place) {
        self.own.last_path = self.own.last_path.wrapping_add(1);
        let (id, psn) = (PathId(self.own.last_path), Psn(self.rng.next_u32() & 0xff_ffff));
        let path =
            Path { place, stage: Stage::Making, qpn: Qpn(0), psn, carrier: slot, slow: false, users: 0 };
        self.own.paths.insert(id, path);
        self.attach(slot, id);
        self.links[slot].state = State::Creating;
        self.stats.senders += 1;
        self.call(Call::MakeSender { path: id });
    }

    fn attach(&mut self, slot: usize, id: PathId) {
        self.own.last_epoch = self.own.last_epoch.wrapping_add(1);
        (self.links[slot].path, self.links[slot].epoch) = (Some(id), self.own.last_epoch);
        if let Some(path) = self.own.paths.get_mut(&id) {
            path.users += 1;
        }
    }

    /// A link does not use its path any more; the last one gives it back.
    pub(super) fn detach(&mut self, slot: usize, now: Instant) {
        let Some(id) = self.links[slot].path.take() else { return };
        let Some(path) = self.own.paths.get_mut(&id) else { return };
        path.users -= 1;
        if path.users == 0 {
            self.end_path(id, now);
        }
    }

    fn end_path(&mut self, id: PathId, now: Instant) {
        self.retire(id);
        let Some(path) = self.own.paths.remove(&id) else { return };
        if !path.is_up()
            && let Some(node) = self.own.nodes.get_mut(&path.place)
        {
            node.uncount(path.slow);
        }
        self.call(Call::DropSender { path: id });
        self.wake(path.place, now);
    }

    /// New links shall not use this path.
    pub(super) fn retire(&mut self, id: PathId) {
        let Some(path) = self.own.paths.get(&id) else { return };
        if let Some(node) = self.own.nodes.get_mut(&path.place)
            && node.up == Some(id)
        {
            node.up = None;
        }
    }

    /// The path is up, and the node has one: those who have waited for that ask.
    pub(super) fn path_up(&mut self, id: PathId, receiver: Qpn, now: Instant) {
        let Some(path) = self.own.paths.get_mut(&id) else { return };
        path.stage = Stage::Connected(receiver);
        let (place, slow) = (path.place, path.slow);
        let Some(node) = self.own.nodes.get_mut(&place) else { return };
        node.uncount(slow);
        node.up.get_or_insert(id);
        self.wake(place, now);
    }

    /// No other process of its node may be asked because of this link.
    pub(super) fn holds_up_others(&self, slot: usize) -> bool {
        let path = self.links[slot].path.and_then(|id| self.own.paths.get(&id));
        path.is_some_and(|path| !path.is_up() && !path.slow)
    }

    /// The process that the link asks takes its time: the next of its node shall not wait for it.
    pub(super) fn mark_slow(&mut self, slot: usize, now: Instant) {
        let Some(path) = self.links[slot].path.and_then(|id| self.own.paths.get_mut(&id)) else { return };
        if path.is_up() || std::mem::replace(&mut path.slow, true) {
            return;
        }
        let place = path.place;
        if let Some(node) = self.own.nodes.get_mut(&place) {
            node.fresh -= 1;
            node.slow += 1;
        }
        self.wake(place, now);
    }

    /// Moves a link that asks over a path of its own to the one that its node has meanwhile; false if there is none.
    pub(super) fn move_to_node_path(&mut self, slot: usize, now: Instant) -> bool {
        let Some(own) = self.links[slot].path.and_then(|id| self.own.paths.get(&id)) else { return false };
        let up = self.own.nodes.get(&own.place).and_then(|node| node.up);
        match up.filter(|_| !own.is_up()) {
            Some(up) => {
                self.detach(slot, now);
                self.attach(slot, up);
                true
            }
            None => false,
        }
    }

    /// Links that wait for this node are queued again; the node is forgotten if nothing is left of it.
    fn wake(&mut self, place: Place, now: Instant) {
        let Some(node) = self.own.nodes.get_mut(&place) else { return };
        self.window.extend(node.waiting.drain(..));
        if node.up.is_none() && node.fresh == 0 && node.slow == 0 {
            self.own.nodes.remove(&place);
        }
        self.start_queued(now);
    }
}

impl Node {
    /// A link may ask now.
    fn is_open(&self) -> bool {
        self.up.is_some() || self.fresh < self.slow.max(1)
    }

    fn uncount(&mut self, slow: bool) {
        let count = if slow { &mut self.slow } else { &mut self.fresh };
        *count -= 1;
    }
}

impl Path {
    fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Connected(_))
    }

    /// The receive queue pair, once it is known.
    pub(super) fn receiver(&self) -> Option<Qpn> {
        match self.stage {
            Stage::Connected(receiver) => Some(receiver),
            Stage::Making | Stage::SenderCreated | Stage::ToRts => None,
        }
    }
}
