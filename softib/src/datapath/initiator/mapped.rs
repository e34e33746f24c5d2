//! Memory that the peer shares with us (`objects::shared`), or that its program has as a mapping of a file (`objects::mapped_files`): RDMA WRITE and READ are
//! copies by our own hand, without a system call, and atomics are instructions of our processor.
//!
//! The hazard word of our ring says which region we work on, as with other copies (`direct`), without a fence where the peer's deregistration makes
//! us execute one.

use super::direct::{may_reach, needed, probe};
use crate::extras::mappings;
use crate::objects::grant::Grant;
use crate::objects::mapped_files::Use;
use crate::objects::peer::{Link, Peer};
use crate::objects::sges::word_of;
use crate::objects::work::{Remote, WORD, Work};
use crate::shm::backing::{Backing, has_locked};
use crate::shm::copy::{copy, write_in_order};
use crate::shm::keyed;
use crate::shm::map::Map;
use crate::shm::mapped::Mapped;
use crate::shm::mrtable::{self, Exposed};
use rdma_sys::*;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Looks whether a key is of a region that is mapped here, and that we may write to; it is what is written to from now on. None: it is not, or it is a
/// file.
#[cold]
pub fn open<'a>(link: &'a mut Link, peer: &mut Peer, qpn: u32, rkey: u32) -> Option<&'a mut Mapped> {
    let exposed = exposed_to_us(link, peer, rkey)?;
    let grant = Grant { access: link.view.access, pd: link.view.pd, qpn };
    grant.permits(&exposed, IBV_ACCESS_REMOTE_WRITE, exposed.region.addr, 0)?;
    let (map, within) = mapping_of(link, peer, &exposed)?;
    let window = Mapped::new((&peer.map, &peer.live), &exposed, (&map, within), &peer.ring);
    if exposed.shared == 0 {
        link.file = Some(Box::new(window));
        return None;
    }
    map.populate(within, exposed.region.len as usize);
    Some(link.window.insert(window))
}

/// Whether the memory of a request is mapped here.
pub fn is_mapped(link: &mut Link, peer: &mut Peer, work: &Work) -> bool {
    let exposed = exposed_to_us(link, peer, work.remote.memory().1);
    exposed.is_some_and(|exposed| mapping_of(link, peer, &exposed).is_some())
}

/// Carries a request out by our own hand, if its memory is mapped here. None: it is not, or not granted, and nothing has happened.
pub fn moved_mapped(
    (link, peer): (&mut Link, &mut Peer),
    grant: &Grant,
    work: &Work,
    sges: &[ibv_sge],
) -> Option<()> {
    let (addr, rkey) = work.remote.memory();
    let exposed = exposed_to_us(link, peer, rkey)?;
    grant.permits(&exposed, needed(work), addr, work.len.into())?;
    let (map, within) = mapping_of(link, peer, &exposed)?;
    let at = map.place(within + (addr - exposed.region.addr) as usize, work.len as usize);
    let is_word = matches!(work.remote, Remote::Word { .. });
    if is_word && !(addr | at.as_ptr() as u64).is_multiple_of(WORD.into()) {
        return None;
    }
    keyed::begin(peer.ring.hazard(), rkey);
    let holds = mrtable::look_up(&peer.map, rkey) == Some(exposed);
    if holds {
        match work.remote {
            Remote::Word { first, swap, .. } => change(at, work.opcode, [first, swap], sges),
            _ => copy_all(at, work.opcode, sges),
        }
    }
    keyed::end(peer.ring.hazard());
    (holds && !map.is_lost_behind_copy()).then_some(())
}

/// What a key names of another process, unless it is known not to be mapped, or is asked at each request whether memory is the one that was registered.
#[inline]
fn exposed_to_us(link: &Link, peer: &Peer, rkey: u32) -> Option<Exposed> {
    if link.apart == rkey || peer.is_self() || mappings::are_checked() {
        return None;
    }
    mrtable::look_up(&peer.map, rkey)
}

/// Where a region of the peer is mapped. None: it is not, or, of a file, it has not been used often enough to look.
fn mapping_of(link: &mut Link, peer: &mut Peer, exposed: &Exposed) -> Option<(Arc<Map>, usize)> {
    match memory_of(peer, exposed) {
        Memory::Mapped(map, within) => return Some((map, within)),
        Memory::Apart => link.apart = exposed.region.key,
        Memory::Unknown => {}
    }
    None
}

/// What the memory of a region of a peer is.
#[derive(Debug)]
pub enum Memory {
    /// It is mapped here, from this place on.
    Mapped(Arc<Map>, usize),
    /// It is private, or can't be mapped.
    Apart,
    /// It has not been used often enough to look, or its owner says what can't be.
    Unknown,
}

/// The same of a region.
pub fn memory_of(peer: &mut Peer, exposed: &Exposed) -> Memory {
    if exposed.shared != 0 {
        let len = exposed.region.len.try_into().ok();
        let place = len.and_then(|len| peer.memory(exposed.shared as usize, len));
        return place.map_or(Memory::Unknown, |(map, within)| Memory::Mapped(map.clone(), within));
    }
    match peer.files.note(exposed, timing::now) {
        Use::Mapped(map, within) => return Memory::Mapped(map.clone(), within),
        Use::Apart => return Memory::Apart,
        Use::Look => look(peer, exposed),
        Use::Seldom => {}
    }
    Memory::Unknown
}

/// Looks whether a region that is used often is of a file that can be mapped.
#[cold]
fn look(peer: &mut Peer, exposed: &Exposed) {
    let (region, began) = (&exposed.region, timing::now());
    // What peers may write to, its owner may, too (ibv_reg_mr(3)).
    let is_writable = region.access & IBV_ACCESS_LOCAL_WRITE != 0;
    // What is registered on demand follows the mappings of the program.
    let may_be = may_reach(peer) && region.len != 0 && region.access & IBV_ACCESS_ON_DEMAND == 0;
    let is_it = may_be && (probe(peer) || has_locked(peer.pid, &peer.file));
    let memory = exposed.base..exposed.base.saturating_add(region.len);
    let found = is_it.then(|| Backing::find(peer.pid, &memory, is_writable)).flatten();
    let now = timing::now();
    peer.files.set(exposed, (found, is_writable), (now, now - began));
}

/// Copies from or to the buffers of a request, which are in memory of ours with the rights that it needs, and have as many bytes as are at `place`.
fn copy_all(place: NonNull<u8>, opcode: u32, sges: &[ibv_sge]) {
    let mut at = place.as_ptr();
    for sge in sges {
        let len = sge.length as usize;
        // SAFETY: the buffers have been checked, and all of them together have as many bytes as are at `place`, so each lies inside.
        unsafe {
            match opcode {
                IBV_WR_RDMA_READ => copy(at, sge.addr as *mut u8, len),
                _ => write_in_order(sge.addr as *const u8, at, len),
            }
            at = at.add(len);
        }
    }
}

/// Carries an atomic out on the word at `place`, which is aligned, as its owner does for others (`responder::rdma`). The buffers take the value before, or
/// have the one to be written.
fn change(place: NonNull<u8>, opcode: u32, [first, swap]: [u64; 2], sges: &[ibv_sge]) {
    // SAFETY: an aligned word of a mapping that is only reached by atomics and copies, and outlives this.
    let word = unsafe { AtomicU64::from_ptr(place.as_ptr().cast()) };
    let before = match opcode {
        IBV_WR_ATOMIC_WRITE => return word.store(word_of(sges), Ordering::SeqCst),
        IBV_WR_ATOMIC_FETCH_AND_ADD => word.fetch_add(first, Ordering::SeqCst),
        _ => match word.compare_exchange(first, swap, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(before) | Err(before) => before,
        },
    };
    let bytes = before.to_ne_bytes();
    let mut rest = &bytes[..];
    for sge in sges {
        let (piece, behind) = rest.split_at(rest.len().min(sge.length as usize));
        // SAFETY: the program vouches for its buffers, which are in memory of ours that may be written to (checked).
        unsafe { copy(piece.as_ptr(), sge.addr as *mut u8, piece.len()) };
        rest = behind;
    }
}
