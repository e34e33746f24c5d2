//! Fragments that cannot go yet: no connection, no credit, no work request.
//!
//! ```text
//!   peer 0   queue 0: f f f      parked until wake(): a credit came back
//!            queue 1: f          ready ┐
//!   peer 4   queue 0: f f        ready ├──> ring of peers with a ready lane ──> take() one fragment a turn
//!   peer 7   queue 2: f f f f f  busy  ┘         (back of the ring after its turn)
//! ```
//!
//! A lane is one (endpoint, queue). Order within a lane is kept: a caller that sends directly must
//! find the lane [idle](Pending::is_idle), and while a fragment is out on its turn the lane is
//! neither idle nor served again, so that callbacks which send may be entered from within a turn.
//! Peers take turns, one fragment each, or as many as the caller can send at once ([`Pending::next`]); the
//! lanes of a peer take turns within it. A lane that cannot go on is parked and costs nothing until it is woken.
//!
//! [`Shares`] caps what each peer may hold of a pool that all share, so that a stalled one cannot
//! starve the others.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

/// One queue of one endpoint. `peer` is the endpoint's small dense index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneId {
    /// Index of the endpoint.
    pub peer: u32,
    /// Index of the queue in the layout.
    pub queue: u8,
}

/// A fragment whose turn it is. End the turn with [`Pending::sent`], [`Pending::blocked`] or
/// [`Pending::deferred`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the lane stands still until the turn ends"]
pub struct Turn<T> {
    /// Where the fragment belongs.
    pub lane: LaneId,
    /// The oldest of its lane.
    pub fragment: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneState {
    /// Empty, or waits to be woken.
    Parked,
    /// Not empty, to be served.
    Ready,
    /// A fragment is out on its turn; `woken` says whether something became free meanwhile.
    Busy { woken: bool },
}

#[derive(Debug)]
struct Lane<T> {
    fragments: VecDeque<T>,
    state: LaneState,
}

impl<T> Lane<T> {
    const fn new() -> Self {
        Self { fragments: VecDeque::new(), state: LaneState::Parked }
    }

    /// Ready if there is something to serve.
    fn arm(&mut self) {
        self.state = if self.fragments.is_empty() { LaneState::Parked } else { LaneState::Ready };
    }

    fn wake(&mut self) {
        match self.state {
            LaneState::Parked => self.arm(),
            LaneState::Ready => {}
            LaneState::Busy { .. } => self.state = LaneState::Busy { woken: true },
        }
    }

    fn is_idle(&self) -> bool {
        self.fragments.is_empty() && !matches!(self.state, LaneState::Busy { .. })
    }
}

#[derive(Debug)]
struct Peer<T> {
    lanes: Vec<Lane<T>>,
    /// The lane that is asked first.
    next: usize,
    /// Stands in the ring.
    in_ring: bool,
}

impl<T> Peer<T> {
    const fn new() -> Self {
        Self { lanes: Vec::new(), next: 0, in_ring: false }
    }

    /// The next ready lane, round robin.
    fn ready_lane(&self) -> Option<usize> {
        let count = self.lanes.len();
        let order = (self.next..count).chain(0..self.next.min(count));
        order.into_iter().find(|&lane| self.lanes[lane].state == LaneState::Ready)
    }
}

/// All fragments of one module that wait.
#[derive(Debug)]
#[repr(C)] // in this order: whether anything waits is asked with every message
pub struct Pending<T> {
    /// Fragments in all lanes, those on their turn included.
    waiting: usize,
    peers: Vec<Peer<T>>,
    ring: VecDeque<u32>,
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Pending<T> {
    /// Nothing waits.
    pub const fn new() -> Self {
        Self { peers: Vec::new(), ring: VecDeque::new(), waiting: 0 }
    }

    /// Whether a fragment may be sent directly on `lane` without overtaking another.
    #[inline]
    pub fn is_idle(&self, lane: LaneId) -> bool {
        self.waiting == 0 || self.lane_is_idle(lane)
    }

    /// Fragments that wait, those on their turn included.
    #[inline]
    pub const fn len(&self) -> usize {
        self.waiting
    }

    /// Nothing waits in any lane.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Whether [`take`](Self::take) would return something: what the progress function asks.
    #[inline]
    pub fn is_ready(&self) -> bool {
        !self.ring.is_empty()
    }

    /// Appends a fragment to its lane. A lane that was idle waits for [`wake`](Self::wake).
    pub fn push(&mut self, lane: LaneId, fragment: T) {
        self.lane_or_new(lane).fragments.push_back(fragment);
        self.waiting += 1;
    }

    /// Puts a fragment in front of its lane, which is on no turn: it has been sent, and is to be sent again.
    pub fn push_front(&mut self, lane: LaneId, fragment: T) {
        self.lane_or_new(lane).fragments.push_front(fragment);
        self.waiting += 1;
    }

    /// Takes the oldest fragment of a lane that is on no turn: it is not to be sent any more.
    pub fn pull(&mut self, lane: LaneId) -> Option<T> {
        let lanes = self.peers.get_mut(lane.peer as usize).map(|peer| &mut peer.lanes)?;
        let lane = lanes.get_mut(usize::from(lane.queue))?;
        let fragment = lane.fragments.pop_front()?;
        if lane.state == LaneState::Ready {
            lane.arm();
        }
        self.waiting -= 1;
        Some(fragment)
    }

    /// Something that this lane may have waited for is free again: a credit, a work request.
    #[inline]
    pub fn wake(&mut self, lane: LaneId) {
        if self.waiting != 0 {
            self.wake_lanes(lane.peer, |queue| queue == usize::from(lane.queue));
        }
    }

    /// All lanes of a peer: it is connected.
    pub fn wake_peer(&mut self, peer: u32) {
        self.wake_lanes(peer, |_| true);
    }

    /// One queue of all peers: a send on a shared receive queue completed.
    pub fn wake_queue(&mut self, queue: u8) {
        for peer in 0..self.peer_count() {
            self.wake_lanes(peer, |lane| lane == usize::from(queue));
        }
    }

    /// Everything: something that all share is free again.
    pub fn wake_all(&mut self) {
        (0..self.peer_count()).for_each(|peer| self.wake_peer(peer));
    }

    /// The next fragment to try, round robin over peers with a ready lane.
    pub fn take(&mut self) -> Option<Turn<T>> {
        while let Some(index) = self.ring.pop_front() {
            let Some(peer) = self.peers.get_mut(index as usize) else { continue };
            peer.in_ring = false;
            let Some(queue) = peer.ready_lane() else { continue };
            peer.next = queue + 1;
            let lane = &mut peer.lanes[queue];
            let fragment = lane.fragments.pop_front();
            lane.state = LaneState::Busy { woken: false };
            self.join_ring(index);
            if let Some(fragment) = fragment {
                // A lane index never exceeds the u8 that created it.
                return Some(Turn { lane: LaneId { peer: index, queue: queue as u8 }, fragment });
            }
        }
        None
    }

    /// More fragments stand behind the one whose turn it is.
    pub fn has_more(&self, lane: LaneId) -> bool {
        let lanes = self.peers.get(lane.peer as usize).map(|peer| &peer.lanes);
        let lane = lanes.and_then(|lanes| lanes.get(usize::from(lane.queue)));
        lane.is_some_and(|lane| matches!(lane.state, LaneState::Busy { .. }) && !lane.fragments.is_empty())
    }

    /// The fragment of this lane's turn is gone, and the next one goes in the same turn.
    pub fn next(&mut self, lane: LaneId) -> Option<T> {
        let lanes = self.peers.get_mut(lane.peer as usize).map(|peer| &mut peer.lanes)?;
        let lane = lanes.get_mut(usize::from(lane.queue))?;
        if !matches!(lane.state, LaneState::Busy { .. }) {
            return None;
        }
        let fragment = lane.fragments.pop_front()?;
        self.waiting -= 1;
        Some(fragment)
    }

    /// The fragment of this lane's turn is gone; the lane is served again.
    pub fn sent(&mut self, lane: LaneId) {
        self.end_turn(lane, |lane, _| lane.arm());
    }

    /// The lane cannot go on: the fragment returns to its front, and the lane waits for
    /// [`wake`](Self::wake) (unless that has come during the turn).
    pub fn blocked(&mut self, turn: Turn<T>) {
        self.waiting += 1;
        self.end_turn(turn.lane, |lane, woken| {
            lane.fragments.push_front(turn.fragment);
            if woken { lane.arm() } else { lane.state = LaneState::Parked }
        });
    }

    /// Nothing at all can go now (say, no buffer): the fragment returns to its front, the peer
    /// keeps its turn, and the caller stops serving for now.
    pub fn deferred(&mut self, turn: Turn<T>) {
        let LaneId { peer, queue } = turn.lane;
        self.waiting += 1;
        self.end_turn(turn.lane, |lane, _| {
            lane.fragments.push_front(turn.fragment);
            lane.arm();
        });
        if let Some(state) = self.peers.get_mut(peer as usize) {
            state.next = usize::from(queue);
            self.ring.retain(|&index| index != peer);
            self.ring.push_front(peer);
        }
    }

    /// Takes all fragments of a peer that failed or left, queue by queue, each in order. A fragment
    /// on its turn is not among them: the caller that ends that turn must look at the endpoint.
    pub fn drain(&mut self, peer: u32) -> Vec<(u8, T)> {
        let Some(state) = self.peers.get_mut(peer as usize) else { return Vec::new() };
        let mut drained = Vec::new();
        for (queue, lane) in (0..=u8::MAX).zip(&mut state.lanes) {
            drained.extend(lane.fragments.drain(..).map(|fragment| (queue, fragment)));
            if lane.state == LaneState::Ready {
                lane.state = LaneState::Parked;
            }
        }
        state.in_ring = false;
        self.ring.retain(|&index| index != peer);
        self.waiting -= drained.len();
        drained
    }

    fn lane_is_idle(&self, lane: LaneId) -> bool {
        let lanes = self.peers.get(lane.peer as usize).map(|peer| &peer.lanes);
        lanes.and_then(|lanes| lanes.get(usize::from(lane.queue))).is_none_or(Lane::is_idle)
    }

    fn peer_count(&self) -> u32 {
        u32::try_from(self.peers.len()).unwrap_or(u32::MAX)
    }

    fn lane_or_new(&mut self, LaneId { peer, queue }: LaneId) -> &mut Lane<T> {
        let (peer, queue) = (peer as usize, usize::from(queue));
        if self.peers.len() <= peer {
            self.peers.resize_with(peer + 1, Peer::new);
        }
        let lanes = &mut self.peers[peer].lanes;
        if lanes.len() <= queue {
            lanes.resize_with(queue + 1, Lane::new);
        }
        &mut lanes[queue]
    }

    fn wake_lanes(&mut self, peer: u32, which: impl Fn(usize) -> bool) {
        let Some(state) = self.peers.get_mut(peer as usize) else { return };
        let lanes = state.lanes.iter_mut().enumerate();
        lanes.filter(|(queue, _)| which(*queue)).for_each(|(_, lane)| lane.wake());
        self.join_ring(peer);
    }

    /// Puts a peer with a ready lane at the back of the ring, once.
    fn join_ring(&mut self, index: u32) {
        let Some(peer) = self.peers.get_mut(index as usize) else { return };
        if !peer.in_ring && peer.ready_lane().is_some() {
            peer.in_ring = true;
            self.ring.push_back(index);
        }
    }

    /// Ends a turn that is out; anything else is a caller's mistake and changes nothing.
    fn end_turn(&mut self, id: LaneId, settle: impl FnOnce(&mut Lane<T>, bool)) {
        let lanes = self.peers.get_mut(id.peer as usize).map(|peer| &mut peer.lanes);
        let Some(lane) = lanes.and_then(|lanes| lanes.get_mut(usize::from(id.queue))) else { return };
        let LaneState::Busy { woken } = lane.state else { return };
        settle(lane, woken);
        self.waiting -= 1;
        self.join_ring(id.peer);
    }
}

/// Why a peer gets nothing from the shared pool now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The pool is empty.
    #[error("the shared pool is empty")]
    Empty,
    /// This peer holds its share.
    #[error("the peer holds its share of the pool")]
    Share,
}

/// Who holds how much of a pool that all peers share.
///
/// A peer may hold at most `per_peer`, and never more than is left for the others (a dynamic
/// threshold): one peer that takes and never gives back stops at half of the pool, `n` of them
/// leave an `n+1`-th of it.
#[derive(Clone, Debug)]
pub struct Shares {
    free: u32,
    per_peer: u32,
    held: Vec<u32>,
    /// Of those that are held: so many more than the pool has.
    beyond: u32,
}

impl Shares {
    /// A pool of `capacity`, of which one peer holds at most `per_peer`.
    pub const fn new(capacity: u32, per_peer: u32) -> Self {
        Self { free: capacity, per_peer, held: Vec::new(), beyond: 0 }
    }

    /// Takes one for `peer`.
    ///
    /// # Errors
    /// [`Refused`]; nothing is taken then.
    #[inline]
    pub fn take(&mut self, peer: u32) -> Result<(), Refused> {
        if self.take_again(peer) { Ok(()) } else { self.take_first(peer) }
    }

    /// The same for one who has held some before; `false`: it has not, or nothing is left for it.
    #[inline(always)] // with every message
    pub fn take_again(&mut self, peer: u32) -> bool {
        let most = self.per_peer.min(self.free);
        let held = self.held.get_mut(peer as usize).filter(|held| **held < most);
        let taken = held.map(|held| *held += 1).is_some();
        self.free -= u32::from(taken);
        taken
    }

    /// The same, if [more stays free](Self::is_plenty) than any one peer may hold.
    #[inline(always)] // with every message
    pub fn take_plenty(&mut self, peer: u32) -> bool {
        let Some(left) = self.free.checked_sub(1) else { return false };
        let Some(held) = self.held.get_mut(peer as usize) else { return false };
        // What a peer may hold is less than what is free.
        let taken = left > self.per_peer && *held < self.per_peer;
        if taken {
            *held += 1;
            self.free = left;
        }
        taken
    }

    #[inline(never)]
    fn take_first(&mut self, peer: u32) -> Result<(), Refused> {
        if self.held.len() > peer as usize || self.per_peer.min(self.free) == 0 {
            return Err(if self.free == 0 { Refused::Empty } else { Refused::Share });
        }
        self.hold(peer);
        self.free -= 1;
        Ok(())
    }

    /// Takes one for `peer` whatever the others hold, and if it is one more than the pool has.
    pub fn take_beyond(&mut self, peer: u32) {
        match self.free.checked_sub(1) {
            Some(free) => self.free = free,
            None => self.beyond += 1,
        }
        self.hold(peer);
    }

    fn hold(&mut self, peer: u32) {
        let index = peer as usize;
        if self.held.len() <= index {
            self.held.resize(index + 1, 0);
        }
        self.held[index] += 1;
    }

    /// Gives one back that `peer` held.
    pub fn release(&mut self, peer: u32) {
        self.release_many(peer, 1);
    }

    /// What `peer` holds.
    pub fn held(&self, peer: u32) -> u32 {
        self.held.get(peer as usize).copied().unwrap_or(0)
    }

    /// Gives back `count` that `peer` held.
    #[inline]
    pub fn release_many(&mut self, peer: u32, count: u32) {
        let held = self.held.get_mut(peer as usize).filter(|held| **held >= count);
        debug_assert!(held.is_some(), "peer {peer} gives back what it does not hold");
        if let Some(held) = held {
            *held -= count;
            let back = count.min(self.beyond);
            self.beyond -= back;
            self.free += count - back;
        }
    }

    /// What no peer holds.
    pub const fn free(&self) -> u32 {
        self.free
    }

    /// More is free than any one peer may hold.
    #[inline]
    pub const fn is_plenty(&self) -> bool {
        self.free > self.per_peer
    }
}
