//! The connection to a node: one send queue pair for all links to the processes there.
//!
//! ```text
//!   Making ---made---> Made --first TELL--> Rising --raised--> Up --last link gone--> given back
//!      \______________ the link that asks for all has failed or is gone: given back, those who wait begin anew
//! ```
//! A path that breaks (`retire`) is no longer the one that new links find; it stays until its last link has left it.

use std::collections::VecDeque;
use std::time::Instant;

use verbs::{Psn, Qpn};

use super::state::State;
use super::{Action, Machine};
use crate::ibcm::wire::CommId;
use crate::xrc::address::Place;

/// Names a send queue pair of this process, once and for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u32);

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The send queue pair is being made.
    Making,
    /// It exists; one link asks over it.
    Made,
    /// It is on its way to RTS.
    Rising,
    /// It is connected to this receive queue pair.
    Up(Qpn),
}

#[derive(Debug)]
pub(super) struct Path {
    pub(super) place: Place,
    pub(super) stage: Stage,
    pub(super) qpn: Qpn,
    pub(super) psn: Psn,
    /// The link that asks for all.
    pub(super) carrier: usize,
    /// Links that use it.
    users: u32,
    /// Links that wait until it is up.
    waiting: VecDeque<CommId>,
}

impl Machine {
    /// Puts a link that wants to connect where it has to wait; its turn may come at once.
    pub(super) fn line_up(&mut self, slot: usize, now: Instant) {
        self.links[slot].state = State::Queued;
        self.links[slot].since = now;
        let (id, peer) = (self.links[slot].local, self.links[slot].peer);
        if self.leaving.contains_key(&peer) {
            // The peer must have heard of the end of our last endpoint before it hears of this one.
            return;
        }
        match self.current(slot) {
            Some(path) if !path.is_up() => path.waiting.push_back(id),
            _ => self.ready.push_back(id),
        }
        self.start_ready(now);
    }

    /// The path that a link would use now.
    fn current(&mut self, slot: usize) -> Option<&mut Path> {
        let id = self.current.get(&self.links[slot].address.place())?;
        self.paths.get_mut(id)
    }

    /// Starts links while there are places in the window. One that has moved on since is skipped.
    pub(super) fn start_ready(&mut self, now: Instant) {
        while self.in_window < self.params.window.max(1) {
            let Some(id) = self.ready.pop_front() else { return };
            let Some(&slot) = self.by_id.get(&id) else { continue };
            if matches!(self.links[slot].state, State::Queued) {
                self.begin(slot, now);
            }
        }
    }

    /// A link's turn: asks over the connection to its node, or begins that.
    fn begin(&mut self, slot: usize, now: Instant) {
        let id = self.links[slot].local;
        let place = self.links[slot].address.place();
        match self.current.get(&place).copied() {
            Some(path) if self.paths[&path].is_up() => {
                self.take_place(slot);
                self.attach(slot, path);
                self.ask(slot, 0, now);
            }
            Some(path) => {
                if let Some(path) = self.paths.get_mut(&path) {
                    path.waiting.push_back(id);
                }
            }
            None => {
                self.take_place(slot);
                self.open_path(slot, place);
            }
        }
    }

    fn take_place(&mut self, slot: usize) {
        self.in_window += 1;
        self.links[slot].in_window = true;
    }

    /// The request has had its first answer, or its first silence: the next may go out. So a peer that is slow or
    /// gone holds a place for one timeout only.
    pub(super) fn leave_window(&mut self, slot: usize, now: Instant) {
        if std::mem::take(&mut self.links[slot].in_window) {
            self.in_window -= 1;
            self.start_ready(now);
        }
    }

    fn open_path(&mut self, slot: usize, place: Place) {
        self.last_path = self.last_path.wrapping_add(1);
        let (id, psn) = (PathId(self.last_path), Psn(self.rng.next_u32() & 0xff_ffff));
        let path = Path {
            place,
            stage: Stage::Making,
            qpn: Qpn(0),
            psn,
            carrier: slot,
            users: 0,
            waiting: VecDeque::new(),
        };
        self.paths.insert(id, path);
        self.current.insert(place, id);
        self.attach(slot, id);
        self.links[slot].state = State::Opening;
        self.stats.senders += 1;
        self.actions.push_back(Action::MakeSender { path: id });
    }

    fn attach(&mut self, slot: usize, id: PathId) {
        self.links[slot].path = Some(id);
        if let Some(path) = self.paths.get_mut(&id) {
            path.users += 1;
        }
    }

    /// A link does not use its path any more; the last one gives it back.
    pub(super) fn detach(&mut self, slot: usize, now: Instant) {
        let Some(id) = self.links[slot].path.take() else { return };
        let Some(path) = self.paths.get_mut(&id) else { return };
        path.users -= 1;
        if path.users == 0 {
            self.end_path(id, now);
        }
    }

    fn end_path(&mut self, id: PathId, now: Instant) {
        self.retire(id);
        let Some(path) = self.paths.remove(&id) else { return };
        self.ready.extend(path.waiting);
        self.actions.push_back(Action::DropSender { path: id });
        self.start_ready(now);
    }

    /// New links shall not use this path.
    pub(super) fn retire(&mut self, id: PathId) {
        let Some(path) = self.paths.get(&id) else { return };
        if self.current.get(&path.place) == Some(&id) {
            self.current.remove(&path.place);
        }
    }

    /// The path is up: those who have waited for it ask.
    pub(super) fn path_up(&mut self, id: PathId, receiver: Qpn, now: Instant) {
        let Some(path) = self.paths.get_mut(&id) else { return };
        path.stage = Stage::Up(receiver);
        self.ready.extend(std::mem::take(&mut path.waiting));
        self.start_ready(now);
    }
}

impl Path {
    pub(super) fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up(_))
    }

    /// Links wait for it.
    pub(super) fn holds_up_others(&self) -> bool {
        !self.is_up() && !self.waiting.is_empty()
    }

    /// The receive queue pair, once it is known.
    pub(super) fn receiver(&self) -> Option<Qpn> {
        match self.stage {
            Stage::Up(receiver) => Some(receiver),
            Stage::Making | Stage::Made | Stage::Rising => None,
        }
    }
}
