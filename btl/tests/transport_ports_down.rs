//! A port of two that goes down, in virtual time: when connections leave it, and when they stay (protocol.md 4.7).
//!
//! `wait` lets so much time pass; the main threads of these sides look around each millisecond of it. The devices repeat requests over a
//! port that is down for half a second, so none has failed when a connection leaves after a tenth of that.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::watchdog::Watchdog;
use btl_testing::{World, config};
use mca_btl_oxib::transport::config::Config;
use mca_btl_oxib::transport::stats::Stats;
use softib::faults::{self, EventFault};
use softib::port::{Settings, configure};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const LAYOUTS: [&str; 2] = ["P,128,64,48,32,4:P,8192,16,8,4", "S,128,16,12,8:S,20000,16,12,8"];
const BOTH: [usize; 2] = [0, 1];

/// What ends with a test.
struct Held {
    _turn: MutexGuard<'static, ()>,
    _watchdog: Watchdog,
}

/// Two processes whose devices have two ports, and that are not connected.
fn strangers(layout: &str) -> (World, Held) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::new("a port that is down", Duration::from_secs(60));
    configure(Settings { ports: 2, ..Settings::default() }).unwrap();
    let config = Config { reconnects: 8, ..config(layout) };
    let mut world = World::simulated(1, vec![config; 2]);
    for (from, to) in [(0, 1), (1, 0)] {
        world.add(from, to);
    }
    (world, Held { _turn, _watchdog })
}

/// The same, when they have talked over the first.
fn world(layout: &str) -> (World, Held) {
    let (mut world, held) = strangers(layout);
    world.send(0, 1, 8);
    world.send(1, 0, 8);
    world.drain();
    (world, held)
}

fn wait(world: &mut World, who: &[usize], milliseconds: u64) {
    for _ in 0..milliseconds {
        world.pace.as_mut().unwrap().wait(Duration::from_millis(1));
        who.iter().for_each(|side| world.poll(*side));
    }
}

fn of_each(world: &World, count: impl Fn(&Stats) -> u64) -> [u64; 2] {
    BOTH.map(|side| count(&world.sides[side].transport.stats))
}

/// Connections that have gone over to another port, by side.
fn moves(world: &World) -> [u64; 2] {
    of_each(world, |stats| stats.port_changes)
}

fn all_arrives(world: &mut World) {
    world.until("every message arrives", |w| w.nothing_waits() && w.model.is_empty());
    world.balance();
    assert!(world.sides.iter().all(|side| side.failed.is_empty()), "{}", world.books());
}

/// Messages pass, and both leave.
fn end(mut world: World) {
    world.send(0, 1, 8);
    world.send(1, 0, 5000);
    all_arrives(&mut world);
    world.all_part();
    world.close();
}

#[test]
fn a_connection_without_traffic_leaves_a_port_that_stays_down() {
    for layout in LAYOUTS {
        let (mut world, _held) = world(layout);
        faults::set_ports(Some(1), false).unwrap();
        wait(&mut world, &BOTH, 90);
        assert_eq!(moves(&world), [0, 0], "{layout}: the port may be back at once");
        wait(&mut world, &BOTH, 30);
        assert_eq!(moves(&world), [1, 1], "{layout}: {}", world.books());
        end(world);
    }
}

#[test]
fn messages_under_way_go_over_the_other_port_before_their_requests_have_failed() {
    for layout in LAYOUTS {
        let (mut world, _held) = world(layout);
        faults::set_ports(Some(1), false).unwrap();
        for (from, len) in [(0, 8), (1, 5000), (0, 5000), (1, 8), (0, 8)] {
            world.send(from, 1 - from, len);
        }
        wait(&mut world, &BOTH, 150);
        assert!(world.model.is_empty(), "{layout}: {}", world.books());
        assert_eq!(of_each(&world, |stats| stats.reconnects), [1, 1], "{layout}: {}", world.books());
        end(world);
    }
}

#[test]
fn a_port_that_is_down_for_a_moment_moves_nothing() {
    for layout in LAYOUTS {
        let (mut world, _held) = world(layout);
        for _ in 0..3 {
            faults::set_ports(Some(1), false).unwrap();
            world.send(0, 1, 8);
            world.send(1, 0, 5000);
            wait(&mut world, &BOTH, 70);
            faults::set_ports(Some(1), true).unwrap();
            wait(&mut world, &BOTH, 50);
        }
        all_arrives(&mut world);
        assert_eq!(moves(&world), [0, 0], "{layout}: {}", world.books());
        assert_eq!(of_each(&world, |stats| stats.reconnects), [0, 0], "{layout}: {}", world.books());
        end(world);
    }
}

#[test]
fn when_both_ports_are_down_connections_stay_until_one_of_them_is_up() {
    for (layout, back) in LAYOUTS.into_iter().flat_map(|layout| [(layout, 1), (layout, 2)]) {
        let (mut world, _held) = world(layout);
        faults::set_port(false).unwrap();
        world.send(0, 1, 8);
        wait(&mut world, &BOTH, 300);
        assert_eq!(moves(&world), [0, 0], "{layout}: {}", world.books());
        faults::set_ports(Some(back), true).unwrap();
        wait(&mut world, &BOTH, 20);
        let expected = [u64::from(back == 2); 2];
        assert_eq!(moves(&world), expected, "{layout}, port {back} is back: {}", world.books());
        end(world);
    }
}

/// The peer has not looked at its port's event when it is asked over the other port: it follows without waiting for itself.
#[test]
fn a_peer_that_has_not_heard_of_the_port_follows_at_once() {
    for (layout, first) in LAYOUTS.into_iter().flat_map(|layout| [(layout, 0), (layout, 1)]) {
        let (mut world, _held) = world(layout);
        world.send(0, 1, 8);
        world.send(1, 0, 8);
        faults::set_ports(Some(1), false).unwrap();
        wait(&mut world, &[first], 120);
        let mut expected = [0, 0];
        expected[first] = 1;
        assert_eq!(moves(&world), expected, "{layout}: {}", world.books());
        wait(&mut world, &BOTH, 20);
        assert_eq!(moves(&world), [1, 1], "{layout}: {}", world.books());
        assert!(world.model.is_empty(), "{layout}: {}", world.books());
        end(world);
    }
}

/// Where a port goes down its addresses change, which says nothing of its being up.
#[test]
fn a_port_that_is_down_stays_so_when_its_addresses_change() {
    let (mut world, _held) = world(LAYOUTS[0]);
    faults::set_ports(Some(1), false).unwrap();
    faults::raise(EventFault::named("gid-change", 1).unwrap()).unwrap();
    wait(&mut world, &BOTH, 120);
    assert_eq!(moves(&world), [1, 1], "{}", world.books());
    end(world);
}

/// A side that has heard that all of its stream has come, and whose peer has said nothing more, needs no connection.
#[test]
fn a_connection_whose_end_is_agreed_upon_goes_as_it_is() {
    for layout in LAYOUTS {
        let (mut world, _held) = world(layout);
        world.all_part();
        faults::set_ports(Some(1), false).unwrap();
        wait(&mut world, &BOTH, 150);
        assert_eq!(of_each(&world, |stats| stats.reconnects), [0, 0], "{layout}: {}", world.books());
        world.close();
    }
}

/// One side has had its request accepted at the first port, leaves that because it is down, and asks at the other; the peer hears of all that when
/// the port is up again. It follows; or it has asked itself, and goes there when its own request is given up.
#[test]
fn a_request_at_the_other_port_is_answered_though_one_at_the_first_was_accepted() {
    let cases = (0..24).map(|case| (LAYOUTS[case % 2], case / 2 % 2, case / 4 % 2 == 0, case / 8));
    for (layout, first, asks_too, lasts) in cases {
        let (mut world, _held) = strangers(layout);
        world.send(first, 1 - first, 8);
        if asks_too {
            world.send(1 - first, first, 8);
        }
        wait(&mut world, &[], 1);
        faults::set_ports(Some(1), false).unwrap();
        wait(&mut world, &[first], 1 + lasts as u64);
        faults::set_ports(Some(1), true).unwrap();
        wait(&mut world, &[first], 10);
        wait(&mut world, &BOTH, 3000);
        let case = format!("{layout}, side {first} looks first, both ask {asks_too}, down for {lasts}");
        assert!(world.model.is_empty(), "{case}: {}", world.books());
        end(world);
    }
}

/// The event that the port is down and the one that it is up again are looked at together.
#[test]
fn a_connection_that_comes_up_stays_at_a_port_that_was_down_when_nothing_was_looked_at() {
    for layout in LAYOUTS {
        let (mut world, _held) = strangers(layout);
        world.send(0, 1, 8);
        wait(&mut world, &BOTH, 1);
        faults::set_ports(Some(1), false).unwrap();
        faults::set_ports(Some(1), true).unwrap();
        wait(&mut world, &BOTH, 100);
        assert!(world.model.is_empty(), "{layout}: {}", world.books());
        assert_eq!(moves(&world), [0, 0], "{layout}: {}", world.books());
        end(world);
    }
}

/// Its new endpoint begins at the first port, whichever the last one went over, and what it asks is looked at together with the end of that.
#[test]
fn a_peer_that_is_back_is_answered_at_the_first_port_though_its_last_connection_went_over_the_other() {
    for layout in LAYOUTS {
        let (mut world, _held) = world(layout);
        faults::set_ports(Some(1), false).unwrap();
        wait(&mut world, &BOTH, 150);
        faults::set_ports(Some(1), true).unwrap();
        world.send(0, 1, 8);
        all_arrives(&mut world);
        world.leave(1, 0);
        world.add(1, 0);
        world.send(1, 0, 8);
        wait(&mut world, &[1], 5);
        wait(&mut world, &BOTH, 50);
        assert!(world.model.is_empty(), "{layout}: {}", world.books());
        end(world);
    }
}

/// A request at the first port waits for its peer, which does not hear that it was given up, for that port is down; the connection comes up over the
/// other port. The next request at the first port is another one.
#[test]
fn a_request_is_answered_where_one_that_was_given_up_still_waits() {
    for layout in LAYOUTS {
        let (mut world, _held) = world(layout);
        faults::set_ports(Some(1), false).unwrap();
        wait(&mut world, &BOTH, 150);
        faults::set_ports(Some(1), true).unwrap();
        world.send(0, 1, 8);
        all_arrives(&mut world);
        for goes_down in [true, false] {
            world.leave(0, 1);
            world.add(0, 1);
            world.send(0, 1, 8);
            wait(&mut world, &[0], 5);
            if goes_down {
                faults::set_ports(Some(1), false).unwrap();
            }
            wait(&mut world, &BOTH, 50);
            assert!(world.model.is_empty(), "{layout}, goes down {goes_down}: {}", world.books());
            faults::set_ports(Some(1), true).unwrap();
            wait(&mut world, &BOTH, 5);
        }
        end(world);
    }
}
