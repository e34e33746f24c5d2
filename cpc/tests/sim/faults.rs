//! What the simulated network does to datagrams, and when processes of the world start anew.

use std::collections::HashMap;

use super::net::Net;

/// What happens to one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Drop,
    Duplicate,
    /// Arrives right after the next datagram of any sender.
    Swap,
    /// Arrives this many hops later: behind others, or behind a repetition.
    Delay(u32),
}

/// Chances in percent, for datagrams that no planned fault hits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Odds {
    pub drop: u64,
    pub duplicate: u64,
    pub delay: u64,
    /// One bit of a datagram flips. A real fabric's CRC lets none of these through.
    pub corrupt: u64,
}

/// Draws once for each kind of fault.
pub fn draw_each<T>(net: &mut Net<T>) -> Option<Fault> {
    let odds = net.odds;
    if net.chance(odds.drop) {
        Some(Fault::Drop)
    } else if net.chance(odds.duplicate) {
        Some(Fault::Duplicate)
    } else if net.chance(odds.delay) {
        Some(Fault::Delay(net.below(30_000) as u32))
    } else {
        None
    }
}

/// Faults by the number of the datagram that they hit; restarts of a node, right after a datagram
/// has left.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub faults: HashMap<u64, Fault>,
    pub restarts: HashMap<u64, usize>,
}

/// One thing that may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    Fault(u64, Fault),
    Restart(u64, usize),
}

pub fn restarts(mishaps: &[Mishap]) -> bool {
    mishaps.iter().any(|mishap| matches!(mishap, Mishap::Restart(..)))
}

impl Plan {
    pub fn of(mishaps: &[Mishap]) -> Plan {
        let mut plan = Plan::default();
        for mishap in mishaps {
            match *mishap {
                Mishap::Fault(number, fault) => drop(plan.faults.insert(number, fault)),
                Mishap::Restart(number, node) => drop(plan.restarts.insert(number, node)),
            }
        }
        plan
    }
}

/// The exhaustive search looks at so many datagrams.
pub const FIRST: u64 = 8;
/// Beyond the first time-out of ibcm.
pub const LONG: u32 = 11_000;

/// All ways to let up to `left` things go wrong with the first [`FIRST`] datagrams of two nodes:
/// each datagram may be dropped, doubled, overtaken or late, and one of the two processes may start
/// anew right after it.
pub fn plans(left: u32, each: &mut dyn FnMut(&[Mishap])) {
    extend(0, left, &mut Vec::new(), each);
}

fn extend(from: u64, left: u32, plan: &mut Vec<Mishap>, each: &mut dyn FnMut(&[Mishap])) {
    each(plan);
    if left == 0 {
        return;
    }
    // Even places are faults of a datagram, odd ones restarts after it.
    for place in from..FIRST * 2 {
        for mishap in mishaps(place) {
            plan.push(mishap);
            extend(place + 1, left - 1, plan, each);
            plan.pop();
        }
    }
}

fn mishaps(place: u64) -> Vec<Mishap> {
    let number = place / 2;
    if place.is_multiple_of(2) {
        [Fault::Drop, Fault::Duplicate, Fault::Swap, Fault::Delay(LONG)]
            .map(|f| Mishap::Fault(number, f))
            .to_vec()
    } else {
        [0, 1].map(|node| Mishap::Restart(number, node)).to_vec()
    }
}
