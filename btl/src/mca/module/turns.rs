//! With several threads, messages of one lane go up one after another: their callbacks run with no
//! lock held, so the lock alone keeps no order.
//!
//! ```text
//!   taken under the lock --> lane free: its turn, and up         callback returns, or enters the module again --> lane free
//!                        --> lane busy: waits behind its turn    what waited is taken before anything newer
//! ```
//!
//! A message has gone up when its callback has returned or has called one of the module's
//! functions: one thread alone gets the next message no earlier either, from a progress within the
//! callback. So a callback that waits for later messages gets them, whichever thread looks around.
//! One that waits without entering the module (asleep while another thread makes progress) gives
//! its turn up after [`PATIENCE`]; nothing else depends on time.
//!
//! Threads that find a lane busy put its messages aside and go on: no thread waits for a turn.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a callback may hold up its lane without a sign of life: far above what a busy machine
/// takes the processor from a thread.
const PATIENCE: Duration = Duration::from_secs(1);

/// Names one turn of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// A lane, and the callback of its that runs.
#[derive(Debug)]
struct Turn<L> {
    lane: L,
    ticket: Ticket,
    /// When another thread first looked around while messages waited.
    noticed: Option<Instant>,
}

/// The turns of all lanes, and the messages that wait for theirs. There are no more turns than
/// threads.
#[derive(Debug)]
pub struct Turns<L, M> {
    turns: Vec<Turn<L>>,
    /// Messages that wait for a turn that runs, oldest first, each with its lane.
    waiting: VecDeque<(Ticket, L, M)>,
    /// Messages whose lane has become free, oldest first, each with its lane.
    ready: VecDeque<(L, M)>,
    issued: u64,
}

impl<L: Copy + PartialEq, M> Turns<L, M> {
    /// Nothing runs.
    pub fn new() -> Self {
        Turns { turns: Vec::new(), waiting: VecDeque::new(), ready: VecDeque::new(), issued: 0 }
    }

    /// A callback runs on a turn.
    #[inline(always)] // whenever a thread enters
    pub fn are_running(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Nothing waits.
    #[inline]
    pub fn hold_up_nothing(&self) -> bool {
        self.ready.is_empty() && self.waiting.is_empty()
    }

    /// Messages are ready whose lanes have become free: they are older than any that is to come.
    #[inline]
    pub fn are_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A message may go up now, on this turn; or it waits for the turn of its lane that runs.
    #[inline]
    pub fn begin(&mut self, lane: L, message: M) -> Option<(M, Ticket)> {
        if let Some(turn) = self.turns.iter().find(|turn| turn.lane == lane) {
            self.waiting.push_back((turn.ticket, lane, message));
            return None;
        }
        self.issued += 1;
        let ticket = Ticket(self.issued);
        self.turns.push(Turn { lane, ticket, noticed: None });
        Some((message, ticket))
    }

    /// The message of this turn has gone up, if it has not been found to have before.
    #[inline]
    pub fn end(&mut self, ticket: Ticket) {
        let Some(at) = self.turns.iter().position(|turn| turn.ticket == ticket) else { return };
        self.turns.swap_remove(at);
        if !self.waiting.is_empty() {
            self.release(ticket);
        }
    }

    /// What has waited for this turn is ready.
    #[cold]
    fn release(&mut self, ended: Ticket) {
        let all = std::mem::take(&mut self.waiting).into_iter();
        let (released, waiting): (VecDeque<_>, _) = all.partition(|&(ticket, ..)| ticket == ended);
        self.waiting = waiting;
        // Older than what is left of the lane among the ready ones: that has been looked at since.
        for (_, lane, message) in released.into_iter().rev() {
            self.ready.push_front((lane, message));
        }
    }

    /// The oldest message whose lane is free, on a turn of its own. What it leaves behind waits for
    /// a turn that runs.
    pub fn next(&mut self) -> Option<(M, Ticket)> {
        while let Some((lane, message)) = self.ready.pop_front() {
            let begun = self.begin(lane, message);
            if begun.is_some() {
                return begun;
            }
        }
        None
    }

    /// Ends the turns whose callbacks have held up messages for too long; whether there was one. To
    /// be asked when there is nothing else to do.
    pub fn end_overdue(&mut self, now: impl Fn() -> Instant) -> bool {
        let mut overdue = None;
        let waiting = &self.waiting;
        let waits = |turn: &&mut Turn<L>| waiting.iter().any(|&(ticket, ..)| ticket == turn.ticket);
        for turn in self.turns.iter_mut().filter(waits) {
            let noticed = *turn.noticed.get_or_insert_with(&now);
            if now().duration_since(noticed) >= PATIENCE {
                overdue = Some(turn.ticket);
            }
        }
        overdue.is_some_and(|ticket| {
            self.end(ticket);
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_lane_has_one_turn_at_a_time_and_others_go_on() {
        let mut turns = Turns::new();
        assert!(!turns.are_running());
        let (_, first) = turns.begin('a', 1).unwrap();
        assert!(turns.are_running() && turns.hold_up_nothing());
        assert_eq!(turns.begin('a', 2), None);
        assert!(!turns.hold_up_nothing(), "it waits for a turn");
        assert!(turns.begin('b', 1).is_some());
        assert_eq!(turns.next(), None);
        turns.end(first);
        assert!(!turns.hold_up_nothing(), "it is ready");
        let (message, second) = turns.next().unwrap();
        assert_eq!(message, 2);
        turns.end(first);
        assert_eq!(turns.begin('a', 3), None, "a turn ends once");
        turns.end(second);
        assert_eq!(turns.next().map(|(message, _)| message), Some(3));
    }

    #[test]
    fn a_callback_that_sleeps_gives_its_turn_up() {
        let (mut turns, start) = (Turns::new(), Instant::now());
        let at = |ms| move || start + Duration::from_millis(ms);
        let (_, asleep) = turns.begin('a', 1).unwrap();
        assert!(!turns.end_overdue(at(5000)), "nothing waits for it");
        turns.begin('a', 2);
        assert!(!turns.end_overdue(at(10_000)));
        assert!(!turns.end_overdue(at(10_999)));
        assert!(turns.end_overdue(at(11_000)));
        let (message, second) = turns.next().unwrap();
        assert_eq!(message, 2);
        turns.end(asleep);
        assert_eq!(turns.begin('a', 3), None, "it has no turn any more to end");
        turns.end(second);
    }

    proptest! {
        /// Whatever threads do: each lane's messages begin in their order, all of them, and never
        /// two at once.
        #[test]
        fn every_message_goes_up_once_and_in_order(steps in prop::collection::vec((0u8..3, 0usize..3, any::<prop::sample::Index>()), 1..300)) {
            let (mut turns, mut arrived, mut gone_up) = (Turns::new(), [0; 3], [0; 3]);
            let mut running: Vec<(usize, Ticket)> = Vec::new();
            let mut up = |running: &mut Vec<(usize, Ticket)>, (lane, number): (usize, u32), ticket| {
                assert!(running.iter().all(|(other, _)| *other != lane), "two at once");
                assert_eq!(number, gone_up[lane], "lane {lane}");
                gone_up[lane] += 1;
                running.push((lane, ticket));
            };
            for (step, lane, which) in steps {
                match step {
                    // A thread looks around: what is ready comes before what is new.
                    0 => {
                        let next = turns.next().or_else(|| {
                            arrived[lane] += 1;
                            turns.begin(lane, (lane, arrived[lane] - 1))
                        });
                        if let Some((message, ticket)) = next {
                            up(&mut running, message, ticket);
                        }
                    }
                    1 if !running.is_empty() => {
                        let (_, ticket) = running.swap_remove(which.index(running.len()));
                        turns.end(ticket);
                    }
                    _ => if let Some((message, ticket)) = turns.next() {
                        up(&mut running, message, ticket);
                    }
                }
            }
            loop {
                running.drain(..).for_each(|(_, ticket)| turns.end(ticket));
                let Some((message, ticket)) = turns.next() else { break };
                up(&mut running, message, ticket);
            }
            prop_assert_eq!(gone_up, arrived);
        }
    }
}
