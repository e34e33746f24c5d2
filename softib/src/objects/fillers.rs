//! Initiators that place messages in posted receives of ours by their own hand (`datapath::initiator::filling`): a queue pair that takes no more messages waits
//! for them, for its program may use the buffers for something else then.

use super::peers::Peers;
use crate::shm::cell::destination;
use crate::shm::map::Map;
use crate::shm::ring::{self, filled};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// One fills a receive for as long as a copy takes; only one that is stopped in the middle of it takes longer.
const BUSY: Duration = Duration::from_secs(10);

/// Looks before the clock is asked, and whether the process lives.
const LOOKS: u32 = 1024;

/// Waits until no process fills a receive of queue pair `index` of ours, which has said that it takes no more messages. One that is stopped in the middle of it
/// is waited for no longer than [`BUSY`].
pub fn wait(map: &Map, peers: &mut Peers, (index, generation): (usize, u32)) {
    // Who looks at the queue pair's row after this sees that it is closed, or has said before what it fills.
    fence(Ordering::SeqCst);
    let filled = filled(destination(index, generation));
    for row in 0..ring::limit(map) {
        if ring::is_filling(map, row, filled) {
            wait_for_one(map, peers, (row, filled));
        }
    }
}

#[cold]
fn wait_for_one(map: &Map, peers: &mut Peers, (row, filled): (usize, u32)) {
    let (start, mut looks) = (Instant::now(), 0u32);
    while ring::is_filling(map, row, filled) {
        std::thread::yield_now();
        looks = looks.wrapping_add(1);
        if !looks.is_multiple_of(LOOKS) {
            continue;
        }
        let Some((slot, incarnation)) = ring::sender(map, row) else { return };
        if peers.is_gone(slot, incarnation) {
            return;
        }
        if start.elapsed() >= BUSY {
            return log::warn!(
                "the process in slot {slot} has been writing to a posted receive for {} s, probably because it is stopped; the buffer \
                 may change after the receive has been flushed",
                BUSY.as_secs()
            );
        }
    }
}
