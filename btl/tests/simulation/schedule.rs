//! What a seed stands for: processes, their settings, a plan of faults.

use btl_testing::config;
use btl_testing::rng::Rng;
use mca_btl_oxib::protocol::layout::{DEFAULT, IWARP};
use mca_btl_oxib::transport::config::{Bound, Config, Eager, Signalling};
use softib::faults::{Outage, Plan, When};
use softib::port::{LinkLayer, Settings};
use std::net::IpAddr;
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

/// An iWARP device has per-peer queues only.
const IWARP_LAYOUTS: [&str; 4] =
    ["P,65536,64,48,16", IWARP, "P,64,1,0,1,2:P,4096,1,0,1,2:P,20000,2,1,1,2", "P,20000,3,2,1,3"];

pub struct Setting {
    pub config: Config,
    pub sides: usize,
    /// Connections may break: others take their place. Over X queues they are made anew in another way, which lets an endpoint fail.
    /// On iWARP, and without `reconnects`, none do.
    pub breaks: bool,
    /// A side may leave and come back, while the other keeps its endpoint.
    pub leaves: bool,
    pub device: Settings,
    pub plan: Plan,
}

/// From this seed on the device has two ports, and connections may go over either.
pub const TWO_PORTS: u64 = 1_000_000;
/// From this seed on connections are made by rdmacm, of two ports those over the first; the device is of any kind.
pub const RDMACM: u64 = 2_000_000;
/// From this seed on its messages may be late, too.
pub const LATE: u64 = 3_000_000;
/// From this seed on no connection takes the place of another: those of datagrams for even seeds, of rdmacm for odd ones. No message of RDMA-CM is
/// late: a request to a queue pair that is gone fails at once in softib, on a network after many times as long as a message takes.
pub const FINAL: u64 = 4_000_000;
/// From this seed on messages by eager RDMA have checksums, those of every second one or so.
pub const CHECKED: u64 = 5_000_000;

/// From this seed on send rings differ: there is none, one, or they are short; and connections that break are replaced in every second one.
pub const RINGED: u64 = 10_000_000;

/// With 35 % of the datagrams lost, of 1300 exchanges one loses 13 requests or their answers in a row, of 100,000 one loses 21 (seed 198639), and of
/// 2.7 million one loses 27. More would take longer than what waits may.
const RETRIES: u32 = 26;

pub fn setting(rng: &mut Rng, seed: u64) -> Setting {
    let over_rdmacm = is_of_rdmacm(seed);
    let (device, layout) = if over_rdmacm { of_rdmacm(rng) } else { of_datagrams(rng, seed) };
    let mut config = config(layout);
    if over_rdmacm {
        config.cpc.rdmacm.address = Some(own_address());
        config.cpc.rdmacm.priority = 100;
    } else {
        config.cpc.exclude = vec!["rdmacm".to_owned()];
    }
    (config.cpc.ibcm.max_retries, config.cpc.xrc.max_retries) = (RETRIES, RETRIES);
    (config.pool_limit, config.pool_grow) = ([0, 2, 5, 64, 1024][rng.below(5)], 4);
    let (most, most_bytes) = ([0, 1, 16, 64][rng.below(4)], [0, 4096, 1 << 20][rng.below(3)]);
    config.signalling = Signalling { most, most_bytes };
    config.hold = Bound::of_peer([1, 4, 64][rng.below(3)]);
    let reconnects = seed < FINAL || seed >= RINGED && rng.below(2) == 0;
    config.reconnects = if reconnects { 8 } else { 0 };
    let is_iwarp = device.link_layers == [LinkLayer::Iwarp];
    let (has_p, leaves) = (layout.contains('P'), !layout.contains('X') && !is_iwarp);
    let breaks = leaves && config.reconnects != 0;
    let (sides, mut plan) = (2 + rng.below(2), plan(rng, has_p, breaks));
    if let Some(outage) = plan.port_down.as_mut().filter(|_| device.ports == 2) {
        outage.port = [None, Some(1), Some(2)][rng.below(3)];
    }
    if (LATE..FINAL).contains(&seed) && rng.below(4) != 0 {
        let most = Duration::from_micros([50, 2000, 100_000, 1_500_000][rng.below(4)]);
        plan.cm_late = Some((rng.below(700_000) as u32, most));
    }
    if seed >= FINAL {
        let (slots, threshold) = ([4, 16, 256][rng.below(3)], [1, 3, 16][rng.below(3)]);
        let (most, cooling) = ([0, 1, 4][rng.below(3)], [128, 1 << 16][rng.below(2)]);
        let checks = seed >= CHECKED && rng.below(2) == 0;
        config.eager = Some(Eager { slots, threshold, most, cooling, checks });
    }
    if seed >= RINGED {
        config.send_rings = [(0, 64), (1 << 16, 64), (1 << 16, 1), (4096, 64)][rng.below(4)];
    }
    Setting { config, sides, breaks, leaves, device, plan }
}

/// Whether rdmacm makes the connections of this seed.
pub fn is_of_rdmacm(seed: u64) -> bool {
    if seed >= FINAL { seed % 2 == 1 } else { seed >= RDMACM }
}

/// Of this process alone: another simulation at the same time takes the same ports, and which of two sides has the higher one counts.
fn own_address() -> IpAddr {
    let [a, b, c, _] = std::process::id().to_le_bytes();
    IpAddr::from([127, 1 + c % 254, b, a])
}

/// A device and a layout for ibcm or xrc.
fn of_datagrams(rng: &mut Rng, seed: u64) -> (Settings, &'static str) {
    let ports = if (TWO_PORTS..FINAL).contains(&seed) { 2 } else { 1 };
    (Settings { ports, ..Settings::default() }, LAYOUTS[rng.below(LAYOUTS.len())])
}

/// A device and a layout for rdmacm.
fn of_rdmacm(rng: &mut Rng) -> (Settings, &'static str) {
    let kinds = [LinkLayer::InfiniBand, LinkLayer::Ethernet, LinkLayer::Iwarp];
    let kind = kinds[rng.below(kinds.len())];
    // ibcm serves the second one, which iWARP devices do not have.
    let ports = if kind == LinkLayer::Iwarp { 1 } else { 1 + rng.below(2) };
    let device = Settings { ports, link_layers: vec![kind], ..Settings::default() };
    let fit: Vec<&str> = LAYOUTS.into_iter().filter(|layout| !layout.contains('X')).collect();
    let layouts = if kind == LinkLayer::Iwarp { &IWARP_LAYOUTS[..] } else { &fit };
    (device, layouts[rng.below(layouts.len())])
}

/// Half of all runs have a fabric without faults, whose requests take the short ways.
fn plan(rng: &mut Rng, has_p: bool, breaks: bool) -> Plan {
    let mut plan = Plan { seed: rng.word(), ..Plan::default() };
    if rng.below(2) == 0 {
        return plan;
    }
    let mut percent = |most: usize| if rng.below(2) == 0 { 0 } else { rng.below(most * 10_000) as u32 };
    (plan.drop, plan.duplicate, plan.reorder) = (percent(40), percent(30), percent(30));
    if rng.below(4) == 0 {
        plan.delay = Duration::from_micros(1 + rng.word() % 300);
    }
    // A per-peer queue does not meet with a peer that is not ready: its sends fail then.
    if !has_p && rng.below(2) == 0 {
        plan.rnr = Some((when(rng, 8), Duration::from_micros(50 + rng.word() % 5000)));
    }
    if breaks {
        break_requests(rng, &mut plan);
    }
    plan
}

/// Requests that fail, on our side or because the peer's does not answer, and a port that flaps.
fn break_requests(rng: &mut Rng, plan: &mut Plan) {
    if rng.below(2) == 0 {
        plan.error = Some(out_of_step(when(rng, 24)));
    }
    if rng.below(2) == 0 {
        plan.cut = Some(out_of_step(when(rng, 24)));
    }
    if rng.below(4) == 0 {
        let (after, lasts) =
            (Duration::from_micros(rng.word() % 20_000), Duration::from_micros(rng.word() % 900_000));
        plan.port_down = Some(Outage { after, lasts, port: None });
    }
}

/// A request that breaks its connection is sent again over the next one, with all others that wait. If there are n of them with the opening of the
/// connection, and every n-th fails, it is the same one each time, and no number of `reconnects` is enough (seed 155477).
fn out_of_step(when: When) -> When {
    match when {
        When::Every(n) => When::About(n),
        When::At(_) | When::About(_) => when,
    }
}

/// The n-th, or every n-th, but not too often.
fn when(rng: &mut Rng, least: u64) -> When {
    if rng.below(2) == 0 { When::At(1 + rng.word() % 100) } else { When::Every(least + rng.word() % 100) }
}
