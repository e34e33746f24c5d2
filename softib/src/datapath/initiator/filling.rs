//! SENDs of long messages to receives whose buffers are mapped here: one copy, by our own hand, into the posted buffer itself. The cell says how long the
//! message is.
//!
//! ```text
//!   initiator                                      target
//!   consumes the receive                           its queue pair ends: not open any more (qptable)
//!   fills = its queue pair; fence; still open?     fence
//!   hazard = the region;    fence; still valid?    waits while fills == the queue pair (`objects::fillers`)
//!   copies                                         gives the buffers back to its program
//!   hazard = 0; fills = 0; the cell                a region that goes away waits for the hazard word, as ever
//! ```
//! What is not as it should be goes through the ring, and the target finds out what. Only receives of queue pairs are filled, not those of an SRQ that are
//! reached over XRC, for which no queue pair of the target waits.

use super::mapped::{Memory, memory_of};
use crate::extras::mappings;
use crate::objects::peer::{Link, Peer};
use crate::objects::sges::gather;
use crate::shm::buffers::{Buffer, Buffers, LEAST};
use crate::shm::keyed;
use crate::shm::mapped::Mapped;
use crate::shm::mrtable;
use crate::shm::ring::filled;
use rdma_sys::{IBV_ACCESS_LOCAL_WRITE, ibv_sge};

/// Messages of so many bytes may be placed into buffers of the peer by our own hand.
#[inline(always)]
pub fn is_long(len: u32) -> bool {
    len >= LEAST
}

/// Places a message of `len` bytes, whose buffers may be read, in the receive at `pos`, which it has consumed. False: it goes through the ring.
#[inline(never)] // the way of short ones stays short
pub fn fill(link: &mut Link, peer: &mut Peer, (pos, len): (u32, u32), sges: &[ibv_sge]) -> bool {
    let Some(buffer) = buffer_of(link, peer, pos).filter(|buffer| buffer.len >= len) else { return false };
    let is_known = link.filling.window.as_deref().is_some_and(|window| is_it(window, buffer.lkey));
    if !is_known && !find(link, peer, buffer) {
        return false;
    }
    let Some(window) = link.filling.window.as_deref() else { return false };
    let Some(place) = window.place(buffer.addr, len) else { return false };
    keyed::begin(peer.ring.fills(), filled(link.dst));
    let holds = window.begin() && link.is_current();
    if holds {
        gather(sges, 0, len as usize, place.as_ptr());
    }
    window.end();
    keyed::end(peer.ring.fills());
    let is_lost = window.is_lost();
    if is_lost {
        link.filling.window = None;
    }
    holds && !is_lost
}

/// Where a consumed receive has its buffer, if its owner says so.
#[inline]
fn buffer_of(link: &mut Link, peer: &Peer, pos: u32) -> Option<Buffer> {
    let queue = link.place.as_ref()?;
    // Who reads messages where they lie in the ring saves the copy as well, without the posted buffer's lines.
    let may_ask = || !peer.is_self() && !mappings::are_checked() && !peer.ring.is_read_in_place();
    let open = |offset| {
        let (map, within) = peer.memory(offset, Buffers::bytes(queue.size))?;
        within.is_multiple_of(64).then(|| Buffers::new(map, within, queue.size))
    };
    link.filling.buffer((queue, pos), may_ask, open)
}

/// It is the one with this key, and its peer lives.
#[inline]
fn is_it(window: &Mapped, lkey: u32) -> bool {
    window.row.key() == lkey && window.is_alive()
}

/// Looks whether the region that a buffer is in is mapped here; it is the one that is filled from now on.
#[cold]
fn find(link: &mut Link, peer: &mut Peer, buffer: Buffer) -> bool {
    link.filling.window = None;
    let granted = |exposed: &mrtable::Exposed| {
        let region = &exposed.region;
        region.pd == link.view.pd && region.access & IBV_ACCESS_LOCAL_WRITE != 0 && exposed.qpn == 0
    };
    let Some(exposed) = mrtable::look_up(&peer.map, buffer.lkey).filter(granted) else { return false };
    match memory_of(peer, &exposed) {
        Memory::Mapped(map, within) => {
            let window = Mapped::new((&peer.map, &peer.live), &exposed, (&map, within), &peer.ring);
            link.filling.window = Some(Box::new(window));
        }
        Memory::Apart => {
            if let Some(queue) = &link.place {
                link.filling.give_up(queue);
            }
        }
        Memory::Unknown => {}
    }
    link.filling.window.is_some()
}
