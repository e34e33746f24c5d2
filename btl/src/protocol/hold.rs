//! Messages that are held back (seed 003): received, their credits applied, and not executed,
//! because too many answers to their sender wait already.
//!
//! ```text
//!   received ──> answers to its sender within the bound, none of its messages held ──> executed, its buffer posted again, its credit returned
//!           └──> held, peer by peer ──> the answers are out: executed, peers in turn
//!                                  └──> nothing else moves: one of them is executed all the same
//! ```
//! A held message returns no credit, so its sender comes to stand still when its window is used up.
//! What waits is bounded so: answers by [`Bound`] and what one message may answer, held messages by
//! the windows of the peers. Two peers that hold each other's messages go on by the last rule, one
//! message at a time, whose answers are beyond the bound.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

/// How many answers may wait before messages are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Answers to one peer.
    pub peer: u32,
    /// Answers to all peers.
    pub all: u32,
}

impl Bound {
    /// This many to one peer, and sixteen times as many to all.
    pub const fn of_peer(peer: u32) -> Bound {
        Bound { peer, all: peer.saturating_mul(16) }
    }

    /// A message may be executed whose sender has `to_peer` answers waiting, of `in_all`.
    pub const fn permits(self, to_peer: u32, in_all: u32) -> bool {
        to_peer <= self.peer && in_all <= self.all
    }
}

/// The messages that are held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[repr(C)] // in this order: whether any is held is asked with every message
pub struct Hold<M> {
    len: usize,
    /// Peers that have messages here, the one that was served last at the end; their messages,
    /// oldest first.
    peers: VecDeque<(u32, VecDeque<M>)>,
}

impl<M> Default for Hold<M> {
    fn default() -> Self {
        Hold { peers: VecDeque::new(), len: 0 }
    }
}

impl<M> Hold<M> {
    /// Nothing is held.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Messages that are held.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Messages of this peer are held: what comes now is behind them.
    pub fn has(&self, peer: u32) -> bool {
        self.peers.iter().any(|(held, _)| *held == peer)
    }

    /// Holds a message, behind those of its peer.
    pub fn put(&mut self, peer: u32, message: M) {
        self.len += 1;
        match self.peers.iter_mut().find(|(held, _)| *held == peer) {
            Some((_, messages)) => messages.push_back(message),
            None => self.peers.push_back((peer, VecDeque::from([message]))),
        }
    }

    /// The oldest message of the next peer that `may` have one executed; peers take turns.
    pub fn next(&mut self, may: impl Fn(u32) -> bool) -> Option<M> {
        let at = self.peers.iter().position(|(peer, _)| may(*peer))?;
        let (peer, mut messages) = self.peers.remove(at)?;
        let message = messages.pop_front();
        if !messages.is_empty() {
            self.peers.push_back((peer, messages));
        }
        self.len -= usize::from(message.is_some());
        message
    }

    /// Everything that is held of a peer, oldest first: it is gone.
    pub fn take_all(&mut self, peer: u32) -> VecDeque<M> {
        let at = self.peers.iter().position(|(held, _)| *held == peer);
        let messages = at.and_then(|at| self.peers.remove(at)).map(|(_, messages)| messages);
        let messages = messages.unwrap_or_default();
        self.len -= messages.len();
        messages
    }
}
