//! Initiators that work on our memory by their own hand: a key that goes away waits for them.

use super::Engine;
use crate::errno::Errno;
use crate::shm::layout::{R_HAZARD, ring_entry};
use crate::shm::{keyed, mrtable, ring};
use std::time::{Duration, Instant};

/// An initiator works on a region for as long as a copy takes; only one that is stopped in the middle of it takes longer.
const BUSY: Duration = Duration::from_secs(10);

/// Waits until no initiator works on the region behind an invalidated key. EBUSY: one does not come to an end; the key stays
/// invalid, and the caller may wait again.
pub fn wait_for_initiators(engine: &Engine, key: u32) -> Result<(), Errno> {
    let start = Instant::now();
    let map = {
        let state = engine.enter();
        let map = state.w.segment.map.clone();
        // They copy to and from what they map without a fence of their own (`shm::mapped`).
        if mrtable::was_shared(&map, key) {
            state.inbound.barrier.all_senders();
        }
        map
    };
    for ring in 0..ring::limit(&map) {
        let Some((slot, incarnation)) = ring::sender(&map, ring) else { continue };
        let mut looks = 0u32;
        while keyed::is_used(map.u32(ring_entry(ring) + R_HAZARD), key) {
            std::thread::yield_now();
            looks += 1;
            if !looks.is_multiple_of(1024) {
                continue;
            }
            if engine.enter().w.peers.is_gone(slot, incarnation) {
                break;
            }
            if start.elapsed() >= BUSY {
                return Err(Errno::BUSY);
            }
        }
    }
    Ok(())
}
