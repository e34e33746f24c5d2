//! Pending fragments: order within a lane, turns across peers, re-entrance, and shares of a common
//! pool.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use std::collections::{BTreeMap, VecDeque};

use mca_btl_oxib::protocol::pending::{LaneId, Pending, Refused, Shares, Turn};
use proptest::prelude::*;

fn lane(peer: u32, queue: u8) -> LaneId {
    LaneId { peer, queue }
}

fn take(pending: &mut Pending<u32>) -> Turn<u32> {
    pending.take().expect("a ready fragment")
}

#[test]
fn a_fragment_waits_until_its_lane_is_woken() {
    let mut pending = Pending::new();
    assert!(pending.is_idle(lane(3, 1)));
    pending.push(lane(3, 1), 7);
    assert!(!pending.is_idle(lane(3, 1)) && pending.is_idle(lane(3, 0)));
    assert!(!pending.is_empty() && !pending.is_ready());
    pending.wake(lane(3, 0));
    assert_eq!(pending.take(), None, "another lane was woken");
    pending.wake(lane(3, 1));
    assert!(pending.is_ready());
    let turn = take(&mut pending);
    assert_eq!((turn.lane, turn.fragment), (lane(3, 1), 7));
    pending.sent(turn.lane);
    assert!(pending.is_empty() && pending.is_idle(lane(3, 1)) && !pending.is_ready());
}

#[test]
fn nobody_overtakes_a_fragment_that_is_out_on_its_turn() {
    let mut pending = Pending::new();
    pending.push(lane(0, 0), 1);
    pending.wake_peer(0);
    let turn = take(&mut pending);
    assert!(!pending.is_idle(lane(0, 0)), "a callback that sends must queue up");
    pending.push(lane(0, 0), 2);
    pending.wake(lane(0, 0));
    assert_eq!(pending.take(), None, "and the lane is not served twice");
    pending.blocked(turn);
    assert_eq!(take(&mut pending).fragment, 1, "the wake that came during the turn is not lost");
    pending.sent(lane(0, 0));
    assert_eq!(take(&mut pending).fragment, 2);
}

#[test]
fn a_deferred_fragment_keeps_its_turn() {
    let mut pending = Pending::new();
    for peer in 0..3 {
        pending.push(lane(peer, 0), peer);
    }
    pending.wake_all();
    let turn = take(&mut pending);
    assert_eq!(turn.fragment, 0);
    pending.deferred(turn);
    let order: Vec<u32> = std::iter::from_fn(|| {
        let turn = pending.take()?;
        pending.sent(turn.lane);
        Some(turn.fragment)
    })
    .collect();
    assert_eq!(order, [0, 1, 2]);
}

#[test]
fn one_queue_of_all_peers_can_be_woken() {
    let mut pending = Pending::new();
    for (peer, queue) in [(0, 0), (0, 1), (5, 1), (6, 0)] {
        pending.push(lane(peer, queue), peer);
    }
    pending.wake_queue(1);
    let (first, second) = (take(&mut pending), take(&mut pending));
    assert_eq!((first.lane, second.lane), (lane(0, 1), lane(5, 1)));
    assert_eq!(pending.take(), None);
}

#[test]
fn a_failed_peer_gives_everything_back_in_order_and_the_others_go_on() {
    let mut pending = Pending::new();
    for (queue, fragment) in [(1, 10), (0, 1), (1, 11), (0, 2)] {
        pending.push(lane(4, queue), fragment);
    }
    pending.push(lane(5, 0), 99);
    pending.wake_all();
    let out = take(&mut pending);
    assert_eq!((out.lane, out.fragment), (lane(4, 0), 1));
    assert_eq!(pending.drain(4), [(0, 2), (1, 10), (1, 11)]);
    pending.sent(out.lane);
    assert_eq!(take(&mut pending).fragment, 99);
    assert_eq!((pending.take(), pending.len()), (None, 1));
    assert_eq!(pending.drain(77), []);
}

#[test]
fn ending_a_turn_that_is_not_out_changes_nothing() {
    let mut pending = Pending::new();
    pending.push(lane(0, 0), 1);
    pending.sent(lane(0, 0));
    pending.sent(lane(9, 9));
    assert_eq!((pending.next(lane(0, 0)), pending.has_more(lane(9, 9))), (None, false));
    assert_eq!(pending.len(), 1);
}

/// What `Pending` should do, said plainly.
#[derive(Default)]
struct Model {
    lanes: BTreeMap<(u32, u8), (VecDeque<u32>, bool)>,
    out: Vec<Turn<u32>>,
    /// For each peer, which others the ring served since it became ready or was served.
    waited: BTreeMap<u32, Vec<u32>>,
    next: u32,
}

impl Model {
    fn is_out(&self, id: (u32, u8)) -> bool {
        self.out.iter().any(|turn| (turn.lane.peer, turn.lane.queue) == id)
    }

    fn ready_peers(&self) -> Vec<u32> {
        let ready = |id: &(u32, u8)| {
            let (fragments, woken) = &self.lanes[id];
            *woken && !fragments.is_empty() && !self.is_out(*id)
        };
        let mut peers: Vec<u32> = self.lanes.keys().filter(|id| ready(id)).map(|id| id.0).collect();
        peers.dedup();
        peers
    }

    fn after_step(&mut self) {
        let ready = self.ready_peers();
        self.waited.retain(|peer, _| ready.contains(peer));
        for peer in ready {
            self.waited.entry(peer).or_default();
        }
    }

    fn push(&mut self, pending: &mut Pending<u32>, id: LaneId) {
        self.next += 1;
        pending.push(id, self.next);
        let busy = self.is_out((id.peer, id.queue));
        let (fragments, woken) = self.lanes.entry((id.peer, id.queue)).or_default();
        // An idle lane waits, whatever woke it before.
        *woken &= busy || !fragments.is_empty();
        fragments.push_back(self.next);
    }

    fn wake(&mut self, pending: &mut Pending<u32>, id: LaneId) {
        pending.wake(id);
        let busy = self.is_out((id.peer, id.queue));
        if let Some((fragments, woken)) = self.lanes.get_mut(&(id.peer, id.queue)) {
            *woken |= busy || !fragments.is_empty();
        }
    }

    fn take(&mut self, pending: &mut Pending<u32>) -> Result<(), TestCaseError> {
        let ready = self.ready_peers();
        let Some(turn) = pending.take() else {
            prop_assert!(ready.is_empty(), "peers {:?} are ready and none is served", ready);
            return Ok(());
        };
        let peer = turn.lane.peer;
        prop_assert!(ready.contains(&peer));
        let (fragments, woken) = self.lanes.get_mut(&(peer, turn.lane.queue)).expect("a lane with fragments");
        prop_assert!(*woken);
        prop_assert_eq!(fragments.pop_front(), Some(turn.fragment), "order within the lane");
        *woken = false;
        self.waited.remove(&peer);
        for (waiting, served) in &mut self.waited {
            prop_assert!(!served.contains(&peer), "peer {} is served twice while {} waits", peer, waiting);
            served.push(peer);
        }
        self.out.push(turn);
        Ok(())
    }

    /// The next fragment of a lane goes in the turn of the one before it.
    fn next(&mut self, pending: &mut Pending<u32>, which: usize) -> Result<(), TestCaseError> {
        let count = self.out.len();
        let Some(turn) = self.out.get_mut(which % count.max(1)) else { return Ok(()) };
        let (fragments, _) = self.lanes.get_mut(&(turn.lane.peer, turn.lane.queue)).expect("it was out");
        prop_assert_eq!(pending.has_more(turn.lane), !fragments.is_empty());
        let next = pending.next(turn.lane);
        prop_assert_eq!(next, fragments.pop_front(), "order within the lane");
        if let Some(fragment) = next {
            turn.fragment = fragment;
        }
        Ok(())
    }

    fn end(&mut self, pending: &mut Pending<u32>, which: usize, sent: bool) {
        if self.out.is_empty() {
            return;
        }
        let turn = self.out.swap_remove(which % self.out.len());
        let (fragments, woken) = self.lanes.get_mut(&(turn.lane.peer, turn.lane.queue)).expect("it was out");
        if sent {
            *woken = true;
            pending.sent(turn.lane);
        } else {
            fragments.push_front(turn.fragment);
            pending.blocked(turn);
        }
    }
}

proptest! {
    #[test]
    fn any_schedule_keeps_order_serves_who_is_ready_and_lets_nobody_be_passed_twice(
        steps in proptest::collection::vec((0..11_u8, 0..5_u32, 0..3_u8), 0..600),
    ) {
        let mut pending = Pending::new();
        let mut model = Model::default();
        for (step, peer, queue) in steps {
            match step {
                0..=2 => model.push(&mut pending, lane(peer, queue)),
                3..=4 => model.wake(&mut pending, lane(peer, queue)),
                5..=6 => model.take(&mut pending)?,
                7..=8 => model.end(&mut pending, peer as usize, true),
                9 => model.end(&mut pending, peer as usize, false),
                _ => model.next(&mut pending, peer as usize)?,
            }
            model.after_step();
            let waiting: usize = model.lanes.values().map(|(fragments, _)| fragments.len()).sum();
            prop_assert_eq!(pending.len(), waiting + model.out.len());
        }
    }

    #[test]
    fn saturated_peers_are_served_equally(peers in 1..12_u32, queues in 1..4_u8, rounds in 1..40_u32) {
        let mut pending = Pending::new();
        for peer in 0..peers {
            for queue in 0..queues {
                (0..=rounds).for_each(|fragment| pending.push(lane(peer, queue), fragment));
            }
        }
        pending.wake_all();
        let mut served = vec![vec![0_u32; queues.into()]; peers as usize];
        for _ in 0..peers * rounds {
            let turn = take(&mut pending);
            served[turn.lane.peer as usize][usize::from(turn.lane.queue)] += 1;
            pending.sent(turn.lane);
        }
        for lanes in served {
            prop_assert_eq!(lanes.iter().sum::<u32>(), rounds, "max/min over peers is 1");
            let (least, most) = (lanes.iter().min(), lanes.iter().max());
            prop_assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1));
        }
    }

    #[test]
    fn a_peer_that_returns_slowly_is_served_by_its_returns_and_slows_nobody(
        fast in 2..8_u32,
        every in 2..20_usize,
    ) {
        let mut pending = Pending::new();
        for peer in 0..=fast {
            (0..2000).for_each(|fragment| pending.push(lane(peer, 0), fragment));
        }
        pending.wake_all();
        let mut served = vec![0_usize; fast as usize + 1];
        for tick in 0..1000_usize {
            let turn = take(&mut pending);
            let (peer, lane) = (turn.lane.peer, turn.lane);
            // Peer 0 has a credit every so many ticks only.
            if peer == 0 && tick % every != 0 {
                pending.blocked(turn);
            } else {
                served[peer as usize] += 1;
                pending.sent(lane);
            }
            if tick % every == every - 1 {
                pending.wake(self::lane(0, 0));
            }
        }
        let (least, most) = (served[1..].iter().min(), served[1..].iter().max());
        prop_assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{:?}", served);
        prop_assert!(served[0] <= 1000 / every + 1);
    }

    #[test]
    fn shares_are_conserved_capped_and_never_refuse_a_newcomer_while_something_is_free(
        capacity in 0..64_u32,
        per_peer in 1..64_u32,
        steps in proptest::collection::vec((any::<bool>(), 0..6_u32), 0..300),
    ) {
        let mut shares = Shares::new(capacity, per_peer);
        for (take, peer) in steps {
            let (free, held) = (shares.free(), shares.held(peer));
            if take {
                match shares.take(peer) {
                    Ok(()) => prop_assert_eq!((shares.free(), shares.held(peer)), (free - 1, held + 1)),
                    Err(Refused::Empty) => prop_assert_eq!(free, 0),
                    Err(Refused::Share) => prop_assert!(held > 0 && (held >= per_peer || held >= free)),
                }
            } else if held > 0 {
                shares.release(peer);
            }
            let out: u32 = (0..6).map(|peer| shares.held(peer)).sum();
            prop_assert_eq!(shares.free() + out, capacity);
            prop_assert!(shares.held(peer) <= per_peer);
        }
    }

    #[test]
    fn stalled_peers_leave_a_share_for_the_next(stalled in 1..8_u32, capacity in 8..512_u32) {
        let mut shares = Shares::new(capacity, u32::MAX);
        for peer in 0..stalled {
            while shares.take(peer).is_ok() {}
        }
        // Each stops at what it leaves free: halving, rounded up for the taker.
        prop_assert!(shares.free() >= capacity >> stalled);
        let newcomer = (0..).take_while(|_| shares.take(stalled).is_ok()).count();
        prop_assert!(newcomer >= 1 || capacity >> stalled == 0);
    }
}

#[test]
fn what_is_sent_again_goes_first_and_what_is_not_to_be_sent_any_more_counts_no_more() {
    let (mut pending, id) = (Pending::new(), lane(0, 0));
    pending.push(id, 2);
    pending.push_front(id, 1);
    pending.push(id, 3);
    assert_eq!(pending.len(), 3);
    assert_eq!((pending.pull(id), pending.len()), (Some(1), 2));
    pending.wake(id);
    assert_eq!((pending.pull(id), pending.pull(id), pending.pull(id)), (Some(2), Some(3), None));
    assert!(pending.is_empty() && pending.take().is_none(), "the lane is not ready any more");
    pending.push(id, 4);
    pending.wake(id);
    assert_eq!(take(&mut pending).fragment, 4, "nor on a turn");
    assert_eq!(pending.pull(lane(7, 3)), None);
}

/// A pool of 4, of which one peer may hold 2: more is taken beyond it, and what comes back fills what was beyond first.
#[test]
fn what_is_taken_beyond_the_pool_comes_back_before_anything_is_free() {
    let mut shares = Shares::new(4, 2);
    assert!(shares.is_plenty());
    (0..6).for_each(|_| shares.take_beyond(1));
    assert_eq!((shares.held(1), shares.free(), shares.is_plenty()), (6, 0, false));
    assert_eq!(shares.take(2), Err(Refused::Empty));
    shares.release_many(1, 3);
    assert_eq!((shares.held(1), shares.free()), (3, 1), "two of the three were beyond");
    shares.release_many(1, 1);
    assert_eq!((shares.free(), shares.is_plenty()), (2, false), "as many as one peer may hold");
    shares.release(1);
    assert_eq!((shares.held(1), shares.free(), shares.is_plenty()), (1, 3, true));
}
