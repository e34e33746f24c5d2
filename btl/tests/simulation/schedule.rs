//! What a seed stands for: processes, their settings, a plan of faults.

use crate::common::config;
use crate::common::rng::Rng;
use mca_btl_oxib::protocol::layout::DEFAULT;
use mca_btl_oxib::transport::config::{Bound, Config, Signalling};
use softib::faults::{Outage, Plan, When};
use std::time::Duration;

const LAYOUTS: [&str; 10] = [
    DEFAULT,
    "P,128,256,192,128,4:S,2048,1024,1008,64,256,48:S,65536,512,496,32,128,24",
    "P,128,64,48,32,4:P,8192,16,8,4",
    "P,128,1,0,1,2:P,20000,2,1,1,2",
    "P,64,1,0,1,2:P,4096,1,0,1,2:P,20000,2,1,1,2",
    "P,20000,3,2,1,3",
    "S,128,4,2,8:S,20000,4,2,8",
    "S,128,16,12,2:P,2048,2,1,2,2:S,20000,4,3,1",
    "X,128,4,2,8:X,20000,4,2,8",
    "X,128,64,48,16:X,2048,2,1,2,2:X,20000,4,3,1",
];

pub struct Setting {
    pub config: Config,
    pub sides: usize,
    /// Connections may break: others take their place. Over X queues they are made anew in another way, which lets an endpoint fail.
    pub breaks: bool,
    /// Of the device.
    pub ports: usize,
    pub plan: Plan,
}

/// From this seed on the device has two ports, and connections may go over either.
pub const TWO_PORTS: u64 = 1_000_000;

pub fn setting(rng: &mut Rng, two_ports: bool) -> Setting {
    let layout = LAYOUTS[rng.below(LAYOUTS.len())];
    let mut config = config(layout);
    (config.pool_limit, config.pool_grow) = ([0, 2, 5, 64, 1024][rng.below(5)], 4);
    let (most, most_bytes) = ([0, 1, 16, 64][rng.below(4)], [0, 4096, 1 << 20][rng.below(3)]);
    config.signalling = Signalling { most, most_bytes };
    config.hold = Bound::of_peer([1, 4, 64][rng.below(3)]);
    config.reconnects = 8;
    let (has_p, breaks) = (layout.contains('P'), !layout.contains('X'));
    let (sides, mut plan) = (2 + rng.below(2), plan(rng, has_p, breaks));
    if let Some(outage) = plan.port_down.as_mut().filter(|_| two_ports) {
        outage.port = [None, Some(1), Some(2)][rng.below(3)];
    }
    Setting { config, sides, breaks, ports: if two_ports { 2 } else { 1 }, plan }
}

/// Half of all runs have a fabric without faults, whose requests take the short ways.
fn plan(rng: &mut Rng, has_p: bool, breaks: bool) -> Plan {
    let mut plan = Plan { seed: rng.next(), ..Plan::default() };
    if rng.below(2) == 0 {
        return plan;
    }
    let mut percent = |most: usize| if rng.below(2) == 0 { 0 } else { rng.below(most * 10_000) as u32 };
    (plan.drop, plan.duplicate, plan.reorder) = (percent(40), percent(30), percent(30));
    if rng.below(4) == 0 {
        plan.delay = Duration::from_micros(1 + rng.next() % 300);
    }
    // A per-peer queue does not meet with a peer that is not ready: its sends fail then.
    if !has_p && rng.below(2) == 0 {
        plan.rnr = Some((when(rng, 8), Duration::from_micros(50 + rng.next() % 5000)));
    }
    if breaks {
        break_requests(rng, &mut plan);
    }
    plan
}

/// Requests that fail, on our side or because the peer's does not answer, and a port that flaps.
fn break_requests(rng: &mut Rng, plan: &mut Plan) {
    if rng.below(2) == 0 {
        plan.error = Some(when(rng, 24));
    }
    if rng.below(2) == 0 {
        plan.cut = Some(when(rng, 24));
    }
    if rng.below(4) == 0 {
        let (after, lasts) =
            (Duration::from_micros(rng.next() % 20_000), Duration::from_micros(rng.next() % 900_000));
        plan.port_down = Some(Outage { after, lasts, port: None });
    }
}

/// The n-th, or every n-th, but not too often.
fn when(rng: &mut Rng, least: u64) -> When {
    if rng.below(2) == 0 { When::At(1 + rng.next() % 100) } else { When::Every(least + rng.next() % 100) }
}
