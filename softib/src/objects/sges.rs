//! Gather and scatter lists: copies between them and a piece of memory, mostly of a ring.

use crate::shm::cell::Found;
use crate::shm::copy;
use rdma_sys::ibv_sge;

/// Copies `len` bytes of a gather list, from `skip` on, to `to`.
#[inline]
pub fn gather(sges: &[ibv_sge], skip: usize, len: usize, to: *mut u8) {
    if let [one] = sges {
        let from = (one.addr as usize + skip) as *const u8;
        // SAFETY: the caller of post_send vouches for its buffers until the completion (checked against its MR unless
        // inline), and `to` has room for len bytes.
        return unsafe { copy::copy(from, to, len) };
    }
    gather_many(sges, skip, len, to);
}

/// Copies all of a gather list, piece by piece.
#[inline(always)]
pub fn gather_all(sges: &[ibv_sge], to: *mut u8) {
    match sges {
        // SAFETY: as in gather().
        [one] => unsafe { copy::copy(one.addr as *const u8, to, one.length as usize) },
        many => gather_list(many, to),
    }
}

/// The same without a call, of what fits a cell.
#[inline(always)]
pub fn gather_short(sges: &[ibv_sge], to: *mut u8) {
    // SAFETY: as in gather(); the caller has made room for all pieces.
    gather_each(sges, to, |from, to, len| unsafe { copy::copy_short(from, to, len) });
}

fn gather_list(sges: &[ibv_sge], to: *mut u8) {
    // SAFETY: as in gather(); the caller has made room for all pieces.
    gather_each(sges, to, |from, to, len| unsafe { copy::copy(from, to, len) });
}

#[inline(always)]
fn gather_each(sges: &[ibv_sge], mut to: *mut u8, copy: impl Fn(*const u8, *mut u8, usize)) {
    for sge in sges {
        copy(sge.addr as *const u8, to, sge.length as usize);
        to = to.wrapping_add(sge.length as usize);
    }
}

fn gather_many(sges: &[ibv_sge], mut skip: usize, len: usize, to: *mut u8) {
    let mut done = 0;
    for sge in sges {
        let length = sge.length as usize;
        let here = length.saturating_sub(skip).min(len - done);
        if here > 0 {
            // SAFETY: as in gather(); done + here <= len.
            unsafe {
                std::ptr::copy_nonoverlapping((sge.addr as usize + skip) as *const u8, to.add(done), here)
            };
        }
        skip = skip.saturating_sub(length);
        done += here;
    }
}

/// Copies a cell's payload into a checked scatter list, `skip` bytes into it; returns how much of it fitted.
pub fn spread(sges: &[ibv_sge], mut skip: usize, found: &Found) -> usize {
    let (mut done, len) = (0, found.head.len as usize);
    for sge in sges {
        let length = sge.length as usize;
        let here = length.saturating_sub(skip).min(len - done);
        if here > 0 {
            let to = (sge.addr as usize + skip) as *mut u8;
            // SAFETY: skip + here <= sge.length, inside a valid MR with local write (checked by the caller); done + here <= len.
            unsafe { std::ptr::copy_nonoverlapping(found.payload.add(done), to, here) };
        }
        skip = skip.saturating_sub(length);
        done += here;
    }
    done
}
