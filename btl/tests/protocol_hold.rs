//! Messages that are held back (seed 003), against a model, and searched exhaustively.
//!
//! The search: three sides with windows of one or two messages to each other, of which any may send floods, messages that are answered
//! twice, to their sender and to the third side. Every schedule of sends, arrivals and executions is walked. In every state: credits
//! are conserved, no more answers wait than the bound and the executions that it did not stop allow, and unless all is done, something
//! other than a new flood can be done. Each such step brings the end nearer (a flood becomes two answers, an answer nothing), so there is
//! no deadlock.

#![allow(clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use std::collections::{BTreeMap, HashSet, VecDeque};

use mca_btl_oxib::protocol::hold::{Bound, Hold};
use proptest::prelude::*;

const SIDES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Flood,
    Answer,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Side {
    /// Floods to come, answers that wait, and credits, by receiver.
    floods: [u8; SIDES],
    answers: [u8; SIDES],
    credits: [u8; SIDES],
    hold: Hold<(usize, Kind)>,
    /// Messages that were executed because nothing else moved.
    trickled: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    sides: [Side; SIDES],
    /// What is under way, by sender and receiver.
    channels: [[VecDeque<Kind>; SIDES]; SIDES],
}

impl State {
    fn new(window: u8, floods: [[u8; SIDES]; SIDES]) -> State {
        let side = |floods| Side {
            floods,
            answers: [0; SIDES],
            credits: [window; SIDES],
            hold: Hold::default(),
            trickled: 0,
        };
        State { sides: floods.map(side), channels: Default::default() }
    }

    fn may(&self, side: usize, peer: usize, bound: Bound) -> bool {
        let answers = &self.sides[side].answers;
        bound.permits(answers[peer].into(), answers.iter().copied().map(u32::from).sum())
    }

    fn send(&self, from: usize, to: usize, kind: Kind) -> State {
        let mut next = self.clone();
        let side = &mut next.sides[from];
        side.credits[to] -= 1;
        match kind {
            Kind::Flood => side.floods[to] -= 1,
            Kind::Answer => side.answers[to] -= 1,
        }
        next.channels[from][to].push_back(kind);
        next
    }

    /// The upper layer gets a message; its buffer is posted again, and its credit is the sender's.
    fn execute(&mut self, side: usize, (from, kind): (usize, Kind)) {
        self.sides[from].credits[side] += 1;
        if kind == Kind::Flood {
            self.sides[side].answers[from] += 1;
            self.sides[side].answers[SIDES - side - from] += 1;
        }
    }

    fn receive(&self, side: usize, from: usize, bound: Bound) -> State {
        let mut next = self.clone();
        let kind = next.channels[from][side].pop_front().expect("a message");
        if next.sides[side].hold.has(from as u32) || !next.may(side, from, bound) {
            next.sides[side].hold.put(from as u32, (from, kind));
        } else {
            next.execute(side, (from, kind));
        }
        next
    }

    /// The step that a side has, other than a flood, an answer and a message that has come.
    fn held(&self, side: usize, bound: Bound) -> Option<State> {
        let mut next = self.clone();
        if let Some(message) = next.sides[side].hold.next(|peer| self.may(side, peer as usize, bound)) {
            next.execute(side, message);
            return Some(next);
        }
        let moves =
            (0..SIDES).any(|peer| !self.channels[peer][side].is_empty() || self.can_answer(side, peer));
        let message = if moves { None } else { next.sides[side].hold.next(|_| true) }?;
        next.sides[side].trickled += 1;
        next.execute(side, message);
        Some(next)
    }

    fn can_answer(&self, side: usize, to: usize) -> bool {
        self.sides[side].answers[to] != 0 && self.sides[side].credits[to] != 0
    }

    /// What can come next without a new flood.
    fn due(&self, bound: Bound) -> Vec<State> {
        let mut next = Vec::new();
        for side in 0..SIDES {
            for peer in (0..SIDES).filter(|peer| *peer != side) {
                if self.can_answer(side, peer) {
                    next.push(self.send(side, peer, Kind::Answer));
                }
                if !self.channels[peer][side].is_empty() {
                    next.push(self.receive(side, peer, bound));
                }
            }
            next.extend(self.held(side, bound));
        }
        next
    }

    fn floods(&self) -> Vec<State> {
        let pairs = (0..SIDES).flat_map(|from| (0..SIDES).map(move |to| (from, to)));
        let ready = pairs.filter(|(from, to)| {
            let side = &self.sides[*from];
            side.floods[*to] != 0 && side.credits[*to] != 0 && side.answers[*to] == 0
        });
        ready.map(|(from, to)| self.send(from, to, Kind::Flood)).collect()
    }

    fn is_done(&self) -> bool {
        let idle = |side: &Side| side.hold.is_empty() && side.answers == [0; SIDES];
        self.sides.iter().all(idle) && self.channels.iter().flatten().all(VecDeque::is_empty)
    }

    fn check(&self, bound: Bound) {
        for side in &self.sides {
            let answers: u32 = side.answers.iter().copied().map(u32::from).sum();
            let most = bound.all + 2 * (1 + u32::from(side.trickled));
            assert!(answers <= most, "{answers} answers wait, {most} at most: {self:?}");
        }
    }
}

fn search(window: u8, bound: Bound, floods: [[u8; SIDES]; SIDES]) -> (usize, bool) {
    let first = State::new(window, floods);
    let (mut seen, mut todo) = (HashSet::from([first.clone()]), vec![first]);
    let mut trickled = false;
    while let Some(state) = todo.pop() {
        state.check(bound);
        let due = state.due(bound);
        assert!(state.is_done() || !due.is_empty(), "nothing moves: {state:?}");
        trickled |= state.sides.iter().any(|side| side.trickled != 0);
        for next in due.into_iter().chain(state.floods()) {
            if seen.insert(next.clone()) {
                todo.push(next);
            }
        }
    }
    (seen.len(), trickled)
}

#[test]
fn peers_that_flood_each_other_and_answer_twice_never_stand_still_within_the_bound() {
    let mut trickled = false;
    for window in 1..=2 {
        for (peer, all) in [(0, 0), (0, 1), (1, 2)] {
            for floods in [
                [[0, 2, 0], [2, 0, 0], [0; 3]],
                [[0, 1, 1], [1, 0, 0], [1, 0, 0]],
                [[0, 3, 0], [0; 3], [0; 3]],
            ] {
                let (states, did) = search(window, Bound { peer, all }, floods);
                assert!(states > 20, "{states} states");
                trickled |= did;
            }
        }
    }
    assert!(trickled, "no state in which two sides held each other's messages");
}

proptest! {
    #[test]
    fn what_is_held_comes_back_once_in_the_order_of_its_peer_and_peers_take_turns(
        steps in prop::collection::vec((0u32..4, 0u8..8), 1..200),
    ) {
        let mut hold = Hold::default();
        let mut model: BTreeMap<u32, VecDeque<usize>> = BTreeMap::new();
        for (number, (peer, what)) in steps.into_iter().enumerate() {
            match what {
                0..4 => {
                    hold.put(peer, (peer, number));
                    model.entry(peer).or_default().push_back(number);
                }
                4..7 => {
                    let got = hold.next(|other| other != peer);
                    let allowed = model.iter().any(|(other, messages)| *other != peer && !messages.is_empty());
                    prop_assert_eq!(got.is_some(), allowed);
                    if let Some((from, message)) = got {
                        prop_assert!(from != peer);
                        prop_assert_eq!(model.get_mut(&from).and_then(VecDeque::pop_front), Some(message));
                    }
                }
                _ => {
                    let got: Vec<_> = hold.take_all(peer).into_iter().map(|(_, message)| message).collect();
                    let expected: Vec<_> = model.remove(&peer).unwrap_or_default().into();
                    prop_assert_eq!(got, expected);
                }
            }
            prop_assert_eq!(hold.len(), model.values().map(VecDeque::len).sum::<usize>());
            prop_assert_eq!(hold.has(peer), model.get(&peer).is_some_and(|messages| !messages.is_empty()));
        }
        while hold.next(|_| true).is_some() {}
        prop_assert!(hold.is_empty());
    }
}

#[test]
fn messages_are_executed_until_more_answers_wait_than_the_bound() {
    let bound = Bound::of_peer(2);
    assert_eq!((bound.peer, bound.all), (2, 32));
    let permitted = [(0, 0), (2, 32), (3, 3), (2, 33)].map(|(to_peer, all)| bound.permits(to_peer, all));
    assert_eq!(permitted, [true, true, false, false]);
}

#[test]
fn a_hold_is_empty_until_a_message_is_put_there_and_after_it_is_out() {
    let mut hold = Hold::default();
    assert!(hold.is_empty() && !hold.has(7));
    hold.put(7, 'a');
    assert!(!hold.is_empty() && hold.has(7));
    assert_eq!((hold.next(|_| false), hold.next(|_| true)), (None, Some('a')));
    assert!(hold.is_empty() && !hold.has(7));
}
