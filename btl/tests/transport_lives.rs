//! One side ends and begins anew, as MPI sessions do: another address, another XRC domain, the same
//! name. The other side is told its former address for ever, as by a modex that is out of date;
//! only the newcomer's request says where it is.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{ECHO, World, config, open};
use mca_btl_oxib::protocol::layout::DEFAULT;

const LAYOUTS: [&str; 3] = [DEFAULT, "S,128,64,48,8:S,65536,16", "X,128,64:X,65536,16"];

/// What is told of the side stays as it was.
fn begin_anew(world: &mut World, layout: &str, rank: usize) {
    for other in 0..world.sides.len() {
        world.model.forget(rank, other);
        world.model.forget(other, rank);
    }
    for id in world.sides[rank].transport.ids() {
        world.until("the others have heard that it ends", |w| !w.sides[rank].transport.drain(id));
    }
    let side = &mut world.sides[rank];
    let former = std::mem::replace(&mut side.transport, open(config(layout), side.name));
    former.close();
    side.to.fill(None);
}

/// The newcomer asks, and is answered from within the receive callback.
fn ask(world: &mut World, from: usize, to: usize) {
    let message = world.model.message(100, ECHO);
    world.send_message(from, to, message);
    world.until("the question and its answer arrive", |w| w.nothing_waits() && w.model.is_empty());
}

#[test]
fn a_process_that_begins_anew_is_answered_by_one_that_knows_its_former_address_only() {
    for layout in LAYOUTS {
        let mut world = World::new("anew", layout, 3);
        for _ in 0..3 {
            begin_anew(&mut world, layout, 1);
            for other in [0, 2] {
                world.add(1, other);
                ask(&mut world, 1, other);
            }
        }
        world.no_failures();
        world.close();
    }
}

/// What was up before is over with the former life; what waited for it is not sent to the later
/// one.
#[test]
fn a_process_that_begins_anew_after_messages_is_connected_anew() {
    for layout in LAYOUTS {
        let mut world = World::new("anew after messages", layout, 3);
        for _ in 0..3 {
            ask(&mut world, 0, 1);
            ask(&mut world, 2, 1);
            begin_anew(&mut world, layout, 1);
            for other in [0, 2] {
                world.add(1, other);
                ask(&mut world, 1, other);
            }
        }
        world.no_failures();
        world.close();
    }
}
