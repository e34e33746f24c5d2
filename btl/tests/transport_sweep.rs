//! The n-th call fails: for every function of verbs and of RDMA-CM, and for system calls of ours (sweep/system.rs), a ping-pong
//! of two transports, from the opening of their ports to the end, in which one call fails once.
//!
//! ```text
//!   test ──starts, one a point──> point: two transports, SOFTIB_FAULTS=fail=create_qp:3:ENOMEM     in a folder of its own
//! ```
//!
//! However it ends, it ends soon, without a panic, and leaves nothing: no descriptor, no thread, no file. It is a success in which every
//! message and every byte has arrived and the books balance, or there is a message that names the call, what it was about and what to do.
//!
//! A selection of the points runs with the other tests; `OXIB_SWEEP=all` runs the whole, `OXIB_SWEEP=system` all system calls, `OXIB_SWEEP=ibcm:create_qp:3:ENOMEM` one, with its output.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

#[path = "sweep/system.rs"]
mod system;

use btl_testing::child::{TempDir, role};
use btl_testing::memory::Memory;
use btl_testing::sweep::{Spy, Sweep, tell};
use btl_testing::watchdog::Watchdog;
use btl_testing::{Side, World, config, job, try_open};
use mca_btl_oxib::transport::config::Config;
use softib::port::{LinkLayer, Settings, configure};
use std::time::{Duration, Instant};
use verbs::RdmaOp;

const LAYOUT: &str = "P,128,32,16,8:S,8192,32,16,32";
const OF_IWARP: &str = "P,128,32,16,8:P,8192,16,8,4";
const OF_XRC: &str = "X,128,32,16,32:X,8192,32,16,32";

/// How connections come up.
const MANAGERS: [&str; 4] = ["ibcm", "rdmacm", "iwarp", "xrc"];

/// No point needs as long, unless it hangs: time-outs of connections are a second.
const PATIENCE: Duration = Duration::from_secs(10);
/// When an endpoint has failed, its peer hears of it, or has to find out by its time-outs.
const SOON: Duration = Duration::from_millis(500);
const LEN: usize = 1 << 16;

const SYSTEM: Spy = Spy { errnos: system::ERRNOS, counts: system::counts, arm: system::arm };

fn settings(manager: &str) -> Config {
    let layout = match manager {
        "iwarp" => OF_IWARP,
        "xrc" => OF_XRC,
        _ => LAYOUT,
    };
    // Small, so that they have to grow.
    let mut config = Config { cq_size: 40, ..config(layout) };
    if manager == "iwarp" {
        configure(Settings { link_layers: vec![LinkLayer::Iwarp], ..Settings::default() }).unwrap();
    }
    if ["rdmacm", "iwarp"].contains(&manager) {
        config.cpc.include = vec!["rdmacm".to_owned()];
        config.cpc.rdmacm.address = Some("127.0.0.1".parse().unwrap());
    }
    config
}

/// The world, and what has kept it from carrying everything.
fn play(manager: &str) -> Result<(), String> {
    let config = settings(manager);
    let mut sides = Vec::new();
    for name in (job()..).take(2) {
        let transport = try_open(config.clone(), name)?;
        sides.push(Side::new(transport, name, 2));
    }
    // Its watchdog is a thread of the test's own.
    system::arm(false);
    let mut world = World::of("sweep", config.layout, sides);
    system::arm(true);
    let outcome = connect(&mut world).and_then(|()| exchange(&mut world));
    let ids: Vec<_> = world.sides.iter().map(|side| side.to.clone()).collect();
    for (side, ids) in world.sides.iter_mut().zip(ids) {
        let ids: Vec<_> = ids.into_iter().flatten().collect();
        side.transport.remove(&ids);
    }
    world.close();
    outcome
}

fn connect(world: &mut World) -> Result<(), String> {
    for (from, to) in [(0, 1), (1, 0)] {
        world.sides[from].transport.listen().map_err(|error| error.to_string())?;
        let (name, adverts) = (world.sides[to].name, world.sides[to].adverts.clone());
        let id = world.sides[from].transport.add(name, &adverts).map_err(|error| error.to_string())?;
        world.sides[from].to[to] = Some(id);
    }
    Ok(())
}

/// Messages of both queues to and fro, a put and a get.
fn exchange(world: &mut World) -> Result<(), String> {
    let near = Memory::try_new(&world.sides[0].transport, vec![1; LEN])?;
    let far = Memory::try_new(&world.sides[1].transport, vec![2; LEN])?;
    // As many as have to go from buffers before a queue pair gets memory for them.
    for round in 0..10 {
        for (from, to) in [(0, 1), (1, 0)] {
            [8, 100, 1000, 8000].into_iter().for_each(|len| world.send(from, to, len + round));
        }
        done(world, |w| w.nothing_waits() && w.model.is_empty())?;
    }
    let (id, half) = (world.id(0, 1), LEN / 2);
    for (cookie, op, at) in [(1, RdmaOp::Write, 0), (2, RdmaOp::Read, half)] {
        let begun = world.sides[0].transport.rdma(id, op, near.local(at, half), far.remote(at), cookie);
        begun.map_err(|_| "the endpoint is lost".to_owned())?;
    }
    done(world, |w| w.sides[0].rdma.len() == 2)?;
    if world.sides[0].rdma.iter().any(|(_, ok)| !ok) {
        return done(world, |_| false);
    }
    assert!(
        near.bytes[half..].iter().chain(&far.bytes[..half]).eq([[2; 1 << 15], [1; 1 << 15]].as_flattened())
    );
    done(world, |w| {
        w.complete();
        w.imbalance().is_none()
    })
}

/// Polls until it is true. An error: an endpoint has failed, and the other one had time to hear of it.
fn done(world: &mut World, mut is: impl FnMut(&mut World) -> bool) -> Result<(), String> {
    let (begin, mut first) = (Instant::now(), None);
    while !is(world) {
        world.step();
        let failed: Vec<&String> = world.sides.iter().flat_map(|s| &s.failed).map(|(_, why)| why).collect();
        let since = failed.first().map(|_| first.get_or_insert_with(Instant::now).elapsed());
        if failed.len() == 2 || since.is_some_and(|since| since > SOON) {
            return Err(format!("{failed:?}"));
        }
        assert!(begin.elapsed() < PATIENCE, "no end: {}", world.books());
    }
    Ok(())
}

#[test]
fn child_main() {
    if role().as_deref() != Some("point") {
        return;
    }
    let _watchdog = Watchdog::new("the point", PATIENCE * 2);
    let manager = std::env::var("OXIB_SWEEP_MANAGER").unwrap();
    tell(SYSTEM, || play(&manager));
}

#[test]
fn whichever_call_fails_once_the_end_is_soon_clean_and_explained() {
    let sweep = Sweep::asked(SYSTEM);
    for manager in MANAGERS {
        let dir = TempDir::new("sweep");
        sweep.run(manager, &dir.0);
    }
    sweep.conclude();
}
