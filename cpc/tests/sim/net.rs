//! Virtual time, numbers from one seed, and a network that misbehaves.
//!
//! The world says what a packet is and what becomes of one that arrives, its manager which faults
//! are drawn. Everything follows from the seed: a world that is dropped by a failing test prints
//! it.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::faults::{Fault, Odds, Plan};

/// One way through the network without a fault.
pub const HOP: Duration = Duration::from_micros(10);
/// A datagram that waits to be overtaken waits no longer than this.
const SWAP_HOPS: u32 = 300;

/// When a packet arrives, and a number that keeps the order of those that were sent.
type Place = (Instant, u64);

pub struct Net<T> {
    pub now: Instant,
    pub start: Instant,
    pub odds: Odds,
    pub plan: Plan,
    /// Datagrams that were sent.
    pub sent: u64,
    pub steps: u64,
    /// Processes that the plan has start anew.
    pub restarts: VecDeque<usize>,
    queue: BTreeMap<Place, T>,
    /// A datagram that waits to be overtaken.
    held: Option<Place>,
    sequence: u64,
    /// The manager's name, for messages.
    name: &'static str,
    pub first_seed: u64,
    seed: u64,
    /// How many lower bits of the generator's numbers are not used.
    shift: u32,
}

/// Says how to do it again.
impl<T> Drop for Net<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (name, seed, at, sent) = (self.name, self.first_seed, self.elapsed(), self.sent);
            eprintln!("{name}: world of seed {seed}, {at:?} after its start, {sent} datagrams");
        }
    }
}

impl<T> Net<T> {
    pub fn new(name: &'static str, seed: u64, shift: u32) -> Net<T> {
        let start = Instant::now();
        Net {
            now: start,
            start,
            odds: Odds::default(),
            plan: Plan::default(),
            sent: 0,
            steps: 0,
            restarts: VecDeque::new(),
            queue: BTreeMap::new(),
            held: None,
            sequence: 0,
            name,
            first_seed: seed,
            seed,
            shift,
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    /// The next state of the generator, whose upper bits are the random ones.
    pub fn advance(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.seed
    }

    pub fn random(&mut self) -> u64 {
        let state = self.advance();
        let x = state ^ state >> 29;
        x.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ x >> 32
    }

    pub fn draw(&mut self) -> u64 {
        self.random() >> self.shift
    }

    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.draw()).unwrap() % limit
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        percent > 0 && self.draw() % 100 < percent
    }

    /// When the next packet arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.queue.keys().next().map(|&(at, _)| at)
    }

    /// The next packet, if it has arrived by now.
    pub fn arrived(&mut self) -> Option<T> {
        let first = self.queue.first_entry()?;
        (first.key().0 <= self.now).then(|| first.remove())
    }

    pub fn schedule(&mut self, after: Duration, packet: T) -> Place {
        self.schedule_at(self.now + after, packet)
    }

    pub fn schedule_at(&mut self, at: Instant, packet: T) -> Place {
        self.sequence += 1;
        let place = (at, self.sequence);
        self.queue.insert(place, packet);
        place
    }
}

impl<T: Clone> Net<T> {
    /// Sends a datagram, which the planned fault hits, or else the one that is drawn.
    pub fn send(&mut self, packet: T, draw: impl FnOnce(&mut Self) -> Option<Fault>) {
        let number = self.sent;
        self.sent += 1;
        let planned = self.plan.faults.remove(&number);
        let fault = planned.or_else(|| draw(self));
        let overtaken = self.held.take();
        match fault {
            Some(Fault::Drop) => {}
            Some(Fault::Duplicate) => {
                self.schedule(HOP, packet.clone());
                self.schedule(HOP * 3, packet);
            }
            Some(Fault::Swap) => self.held = Some(self.schedule(HOP * SWAP_HOPS, packet)),
            Some(Fault::Delay(hops)) => {
                self.schedule(HOP * (hops + 1), packet);
            }
            None => {
                self.schedule(HOP, packet);
            }
        }
        if let Some(late) = overtaken.and_then(|place| self.queue.remove(&place)) {
            self.schedule(HOP + Duration::from_nanos(1), late);
        }
        self.restarts.extend(self.plan.restarts.remove(&number));
    }
}
