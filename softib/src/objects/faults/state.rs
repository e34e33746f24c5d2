//! A plan under way.

use super::event::EventFault;
use super::plan::{Plan, When};
use crate::objects::work::{Fate, Work};
use rdma_sys::*;
use std::io::Write;
use std::time::{Duration, Instant};

/// How often each fault has struck.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Datagrams.
    pub dropped: u64,
    /// Datagrams.
    pub duplicated: u64,
    /// Datagrams.
    pub reordered: u64,
    /// Sends.
    pub delayed: u64,
    /// Sends that met a storm of RNR NAKs.
    pub rnr_storms: u64,
    /// Requests.
    pub errors: u64,
    /// Requests.
    pub cut: u64,
    /// Messages of RDMA-CM.
    pub late: u64,
    /// Times that the port went down.
    pub outages: u64,
    /// Asynchronous events that were raised, one for each object.
    pub events: u64,
    /// Calls.
    pub calls: u64,
}

#[derive(Debug)]
pub(crate) struct Faults {
    plan: Plan,
    dice: Dice,
    pub counts: Counts,
    started: Instant,
    /// Requests of connected queue pairs, and those among them that take a receive of a reliable one.
    requests: u64,
    receives: u64,
}

impl Faults {
    /// None for a plan that leaves traffic alone.
    pub fn start(plan: Plan) -> Option<Box<Faults>> {
        let dice = Dice(plan.seed);
        let fresh = || {
            let (counts, started) = (Counts::default(), timing::now());
            Box::new(Faults { plan: plan.clone(), dice, counts, started, requests: 0, receives: 0 })
        };
        plan.touches_traffic().then(fresh)
    }

    /// What will happen to a request that is being posted.
    pub fn decide(&mut self, kind: u32, work: &Work) -> Fate {
        let mut fate = if kind == IBV_QPT_UD { self.datagram() } else { self.request(kind, work) };
        if self.plan.delay > Duration::ZERO {
            self.counts.delayed += 1;
            fate.not_before = Some(timing::now() + self.plan.delay);
        }
        fate
    }

    /// Three throws for every datagram, so that one chance does not change the course of another.
    fn datagram(&mut self) -> Fate {
        let chances = [self.plan.drop, self.plan.duplicate, self.plan.reorder];
        let [lost, twice, late] = chances.map(|chance| self.dice.throw() < chance);
        let (late, twice) = (late && !lost, twice && !late && !lost);
        self.counts.dropped += u64::from(lost);
        self.counts.duplicated += u64::from(twice);
        self.counts.reordered += u64::from(late);
        Fate { lost, twice, late, ..Fate::default() }
    }

    fn request(&mut self, kind: u32, work: &Work) -> Fate {
        let strikes = |when: Option<When>, count: u64| when.is_some_and(|when| when.is(count));
        self.requests += 1;
        let (error, cut) = (strikes(self.plan.error, self.requests), strikes(self.plan.cut, self.requests));
        self.counts.errors += u64::from(error);
        self.counts.cut += u64::from(cut && !error);
        let ends_with = match (error, cut) {
            (true, _) => Some(IBV_WC_LOC_QP_OP_ERR),
            (false, true) => Some(IBV_WC_RETRY_EXC_ERR),
            _ => None,
        };
        Fate { ends_with, storm: self.storm(kind, work), ..Fate::default() }
    }

    fn storm(&mut self, kind: u32, work: &Work) -> Option<Duration> {
        let takes = [IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM].contains(&work.opcode);
        let (when, lasts) = self.plan.rnr.filter(|_| takes && kind != IBV_QPT_UC)?;
        self.receives += 1;
        let strikes = when.is(self.receives);
        self.counts.rnr_storms += u64::from(strikes);
        strikes.then_some(lasts)
    }

    /// By how much the next message of RDMA-CM is late, if it is.
    pub fn lateness(&mut self) -> Option<Duration> {
        let (chance, most) = self.plan.cm_late?;
        let (late, part) = (self.dice.throw() < chance, self.dice.throw());
        self.counts.late += u64::from(late);
        late.then(|| most * part / 1_000_000)
    }

    /// The next change of ports that is due: of those of which number (none: of all), and whether they come up.
    pub fn port_change(&mut self) -> Option<(Option<u8>, bool)> {
        let outage = self.plan.port_down?;
        let (now, down) = (timing::now() - self.started, self.counts.outages > 0);
        if !down && now >= outage.after {
            self.counts.outages += 1;
            return Some((outage.port, false));
        }
        if down && now >= outage.after + outage.lasts {
            self.plan.port_down = None;
            return Some((outage.port, true));
        }
        None
    }

    /// The next event that is due. Each is named once.
    pub fn event_due(&mut self) -> Option<EventFault> {
        let now = timing::now() - self.started;
        let due = self.plan.event.iter().position(|event| event.after <= now)?;
        Some(self.plan.event.remove(due))
    }

    /// When to look for a change of the port, or an event.
    pub fn next_change(&self) -> Option<Instant> {
        let outage = self.plan.port_down.map(|outage| {
            let lasts = if self.counts.outages > 0 { outage.lasts } else { Duration::ZERO };
            outage.after + lasts
        });
        let events = self.plan.event.iter().map(|event| event.after);
        events.chain(outage).min().map(|after| self.started + after)
    }

    /// The last word, if the plan asks for it.
    pub fn report(&self) {
        if self.plan.report {
            let line = format!("softib: faults of process {}: {:?}\n", std::process::id(), self.counts);
            // In one piece, for other processes write there, too; a closed standard error loses it.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }
}

/// A small generator (splitmix64's increment and finalizer): faults need repeatability, not secrecy.
#[derive(Debug, Clone, Copy)]
struct Dice(u64);

impl Dice {
    /// A number below a million.
    fn throw(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % 1_000_000) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_throws_the_same() {
        let throws = |seed| {
            std::iter::repeat_with({
                let mut dice = Dice(seed);
                move || dice.throw()
            })
            .take(100)
            .collect::<Vec<_>>()
        };
        assert_eq!(throws(1), throws(1));
        assert_ne!(throws(1), throws(2));
    }

    #[test]
    fn chances_come_true_as_often_as_they_say() {
        let mut dice = Dice(42);
        let hits = (0..100_000).filter(|_| dice.throw() < 200_000).count();
        assert!((19_500..20_500).contains(&hits), "{hits}");
    }
}
