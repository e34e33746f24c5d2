//! Memory that the peer shares with us (`objects::shared`): RDMA WRITE and READ are copies by our own hand, without a system call.
//!
//! The hazard word of our ring says which region we work on, as with other copies (`direct`), without a fence where the peer's deregistration makes
//! us execute one.

use super::direct::needed;
use crate::extras::mappings;
use crate::objects::grant::Grant;
use crate::objects::peer::{Link, Peer};
use crate::objects::work::Work;
use crate::shm::mapped::Mapped;
use crate::shm::mrtable;
use rdma_sys::*;

/// Looks whether a key is of a region that the peer shares with us, and that we may write to.
#[cold]
pub fn open<'a>(link: &'a mut Link, peer: &Peer, qpn: u32, rkey: u32) -> Option<&'a mut Mapped> {
    link.apart = rkey;
    let exposed =
        mrtable::look_up(&peer.map, rkey).filter(|_| !peer.is_self() && !mappings::are_checked())?;
    let grant = Grant { access: link.view.access, pd: link.view.pd, qpn };
    grant.permits(&exposed, IBV_ACCESS_REMOTE_WRITE, exposed.region.addr, 0)?;
    let window = map(peer, &exposed)?;
    link.apart = 0;
    Some(link.window.insert(Box::new(window)))
}

/// A region of the peer, mapped. None: it is not shared, or there can't be one.
fn map(peer: &Peer, exposed: &mrtable::Exposed) -> Option<Mapped> {
    let offset = (exposed.shared != 0).then_some(exposed.shared as usize)?;
    let place = peer.memory(offset, exposed.region.len.try_into().ok()?)?;
    Some(Mapped::new((&peer.map, &peer.live), exposed, place, &peer.ring))
}

/// Moves the data of a request by our own hand, if its memory is mapped here. None: it is not, or not granted, and nothing has happened.
pub fn moved_mapped(peer: &Peer, grant: &Grant, work: &Work, sges: &[ibv_sge]) -> Option<()> {
    if peer.is_self() || mappings::are_checked() {
        return None;
    }
    let (addr, rkey) = work.remote.memory();
    let exposed = mrtable::look_up(&peer.map, rkey).filter(|exposed| exposed.shared != 0)?;
    grant.permits(&exposed, needed(work), addr, work.len.into())?;
    let window = map(peer, &exposed)?;
    let first = window.place(addr, work.len)?;
    let holds = window.begin();
    let mut at = first;
    for sge in sges.iter().filter(|_| holds) {
        // SAFETY: the buffers are in memory of ours with the rights that the request needs (checked), and all of them together have as many bytes
        // as are at `first`, so each lies inside.
        unsafe {
            match work.opcode {
                IBV_WR_RDMA_READ => window.read(at, sge.addr as *mut u8, sge.length),
                _ => window.write(sge.addr as *const u8, at, sge.length),
            }
            at = at.add(sge.length as usize);
        }
    }
    window.end();
    holds.then_some(())
}
