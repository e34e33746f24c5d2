//! Datagrams to a multicast group: one to each queue pair, of any process on the wire, that listens to it; the sender's own
//! among them. Nothing waits: who has no room or no receive misses it.
//!
//! The sender asks all segments there are who listens. That is a look at a directory and at a page or two of each process that it does
//! not talk to otherwise: multicast is for finding each other, not for speed.

use super::datagram::Datagram;
use crate::objects::groups::group_of;
use crate::objects::work::Step;
use crate::objects::world::World;
use crate::shm::groups::{Group, listeners};
use crate::shm::layout::{DOMAIN_SLOTS, FIXED_LEN};
use crate::shm::segment;
use rdma_sys::IBV_WC_SUCCESS;

/// The queue pair number that stands for all that listen (IBTA 10.5.2).
pub const QPN: u32 = 0xff_ffff;

/// Sends a datagram to all that listen.
pub fn send(w: &mut World, datagram: &Datagram<'_>) {
    let to = &datagram.to;
    let Ok(group) = group_of(w.ports.card(datagram.port()).link_layer, to.dgid, to.dlid) else { return };
    // Packets to a group have a global route header (IBTA 8.3).
    if !to.global {
        return;
    }
    for slot in segment::slots(w.peers.dir()).into_iter().filter(|slot| *slot < DOMAIN_SLOTS) {
        for index in members(w, slot, &group) {
            let World { peers, ports, stats, .. } = w;
            let Ok(peer) = peers.reach(slot) else { break };
            let offered = datagram.offer(ports, peer, index, None, &mut stats.doorbells);
            if offered != Some(Step::Done(IBV_WC_SUCCESS)) {
                stats.ud_dropped += 1;
            }
        }
    }
}

/// The queue pairs of the process in `slot` that listen to a group.
fn members(w: &mut World, slot: usize, group: &Group) -> Vec<usize> {
    if let Some(peer) = w.peers.attached(slot)
        && peer.alive()
    {
        return listeners(&peer.map, group);
    }
    w.peers.glance(slot, FIXED_LEN).map(|map| listeners(&map, group)).unwrap_or_default()
}
