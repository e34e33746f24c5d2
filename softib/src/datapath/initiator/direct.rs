//! RDMA WRITE and READ by the initiator's own hand: it checks the key in the target's table, says which region it works on (hazard word of
//! its ring, so that the target's dereg waits), and moves the data with process_vm_writev/readv.

use crate::errno::Errno;
use crate::extras::mappings;
use crate::fabric::{Copies, guid};
use crate::objects::grant::Grant;
use crate::objects::mr::Mrs;
use crate::objects::peer::Peer;
use crate::objects::work::Work;
use crate::shm::layout::{H_NONCE, H_PROBE};
use crate::shm::{copy, keyed, mrtable};
use rdma_sys::*;
use std::sync::atomic::Ordering;

/// READ and the fetching atomics need resources of the responder (max_rd_atomic of the initiator, max_dest_rd_atomic there).
pub fn is_answered_with_data(work: &Work) -> bool {
    work.fetches()
}

/// The rights that a request needs of the target's memory (IBV_ACCESS_*).
pub fn needed(work: &Work) -> u32 {
    match work.opcode {
        IBV_WR_RDMA_READ => IBV_ACCESS_REMOTE_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => IBV_ACCESS_REMOTE_ATOMIC,
        _ => IBV_ACCESS_REMOTE_WRITE,
    }
}

/// Moves the data with the initiator's own hands. Err: a completion status.
///
/// A damaged entry in a peer's table is known by its checksum; our own memory is not touched on the word of a table that others can
/// write to, so `own` is asked for it.
pub fn direct(peer: &mut Peer, own: &Mrs, grant: &Grant, work: &Work, sges: &[ibv_sge]) -> Result<(), u32> {
    let (addr, rkey) = work.remote.memory();
    if mappings::are_checked() && !sges.iter().all(|sge| is_as_registered(own, sge)) {
        return Err(IBV_WC_LOC_PROT_ERR);
    }
    keyed::begin(peer.ring.hazard(), rkey);
    let exposed = if peer.is_self() { own.exposed(rkey) } else { mrtable::look_up(&peer.map, rkey) };
    let (need, len) = (needed(work), u64::from(work.len));
    let place = exposed.and_then(|exposed| {
        let place = grant.permits(&exposed, need, addr, len)?;
        mappings::are_as_registered(peer.pid, &exposed.region, place, len).then_some(place)
    });
    let moved = place.map_or(Err(Errno(libc::EFAULT)), |place| transfer(peer, work, place, sges));
    keyed::end(peer.ring.hazard());
    peer.ring.count_move();
    match moved {
        Ok(()) => Ok(()),
        Err(Errno(libc::ESRCH)) => Err(IBV_WC_RETRY_EXC_ERR),
        Err(_) => Err(IBV_WC_REM_ACCESS_ERR),
    }
}

/// Whether a buffer is in memory that is still the one of its key; what is not in registered memory is our own.
#[cold]
fn is_as_registered(own: &Mrs, sge: &ibv_sge) -> bool {
    let len = u64::from(sge.length);
    let region = own.find(sge.lkey).filter(|region| region.covers(sge.addr, len));
    region.is_none_or(|region| mappings::ours_are_as_registered(region, sge.addr, len))
}

fn transfer(peer: &mut Peer, work: &Work, mut remote: u64, sges: &[ibv_sge]) -> Result<(), Errno> {
    let reading = work.opcode == IBV_WR_RDMA_READ;
    for sge in sges.iter().filter(|sge| sge.length > 0) {
        let len = sge.length as usize;
        if peer.is_self() {
            copy_own(sge.addr, remote, len, reading);
        } else {
            copy_remote(peer.pid, sge.addr, remote, len, reading)?;
        }
        remote = remote.wrapping_add(len as u64);
    }
    Ok(())
}

fn copy_own(local: u64, remote: u64, len: usize, reading: bool) {
    let (from, to) = if reading { (remote, local) } else { (local, remote) };
    let (from, to) = (from as *const u8, to as *mut u8);
    let apart = local.abs_diff(remote) >= len as u64;
    // SAFETY: both ranges lie in valid MRs of this process with the rights needed (checked by the callers); only `copy` is given
    // ranges that overlap.
    unsafe {
        if reading || !apart { std::ptr::copy(from, to, len) } else { copy::write_in_order(from, to, len) }
    };
}

fn copy_remote(pid: i32, local: u64, remote: u64, len: usize, reading: bool) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        // To the kernel each is a copy of its own, behind the one before it. Of the peer's ranges each would cost another look at its pages.
        let body = if reading { len } else { copy::body(remote, len).max(done) };
        let mine = [part(local, done, body), part(local, body, len)];
        let theirs = part(remote, done, len);
        // SAFETY: the local range is a buffer that the program vouches for (checked against its MR); the remote one is
        // touched by the kernel on behalf of its owner's registration (checked).
        let moved = unsafe {
            match reading {
                true => libc::process_vm_readv(pid, mine.as_ptr(), 1, &theirs, 1, 0),
                false => libc::process_vm_writev(pid, mine.as_ptr(), 2, &theirs, 1, 0),
            }
        };
        match moved {
            -1 if Errno::last().0 == libc::EINTR => {}
            -1 => return Err(Errno::last()),
            0 => return Err(Errno(libc::EFAULT)),
            moved => done += moved as usize,
        }
    }
    Ok(())
}

/// The bytes from `start` to `end` of a range, which may be anywhere if a peer has said where it is: the kernel refuses what is no memory.
fn part(base: u64, start: usize, end: usize) -> libc::iovec {
    libc::iovec { iov_base: (base as usize).wrapping_add(start) as *mut _, iov_len: end - start }
}

/// What SOFTIB_CMA says about this peer: `0` never, `node` within a node.
pub fn may_reach(peer: &Peer) -> bool {
    match Copies::from_environment() {
        Ok(Copies::Never) => false,
        Ok(Copies::WithinNode) => peer.cards[0].guid == guid(0),
        // What cannot be understood keeps the device from being opened.
        Ok(Copies::Late | Copies::Anywhere) | Err(_) => true,
    }
}

/// Whether process_vm_* reaches the peer: found by reading its nonce where it says a copy is.
pub fn probe(peer: &mut Peer) -> bool {
    if let Some(known) = peer.reachable {
        return known;
    }
    if !may_reach(peer) {
        peer.reachable = Some(false);
        return false;
    }
    let at = peer.map.u64(H_PROBE).load(Ordering::Relaxed);
    let mut copy = [0u8; 16];
    let read = copy_remote(peer.pid, copy.as_mut_ptr() as u64, at, copy.len(), true);
    let reachable = read.is_ok() && copy == peer.map.read::<16>(H_NONCE);
    peer.reachable = Some(reachable);
    reachable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_says_is_at_the_end_of_all_addresses_is_no_memory() {
        let (me, mut buf) = (std::process::id().cast_signed(), [7u8; 16]);
        for at in [u64::MAX, u64::MAX - 3, u64::MAX - 15, u64::MAX - 16] {
            for reading in [true, false] {
                let copied = copy_remote(me, buf.as_mut_ptr() as u64, at, buf.len(), reading);
                assert_eq!(copied, Err(Errno(libc::EFAULT)), "{at:#x}, reading {reading}");
            }
        }
        assert_eq!(buf, [7; 16]);
    }
}
