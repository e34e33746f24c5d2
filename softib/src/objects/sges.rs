//! Gather and scatter lists: copies between them and a piece of memory, mostly of a ring.

use crate::shm::cell::Found;
use crate::shm::copy;
use rdma_sys::ibv_sge;

/// Bytes of a list of a few pieces.
#[inline(always)]
pub fn length(sges: &[ibv_sge]) -> u64 {
    let mut len = 0;
    for sge in sges {
        len += u64::from(sge.length);
    }
    len
}

/// Copies `len` bytes of a gather list, from `skip` on, to `to`.
#[inline]
pub fn gather(sges: &[ibv_sge], skip: usize, len: usize, to: *mut u8) {
    if let [one] = sges {
        let from = (one.addr as usize + skip) as *const u8;
        // SAFETY: the caller of post_send vouches for its buffers until the completion (checked against its MR unless
        // inline), and `to` has room for len bytes.
        return unsafe { copy::copy_out(from, to, len) };
    }
    gather_many(sges, skip, len, to);
}

/// Copies all of a gather list, piece by piece.
#[inline(always)]
pub fn gather_all(sges: &[ibv_sge], to: *mut u8) {
    let (last, to) = gather_headers(sges, to);
    match last {
        // SAFETY: as in gather().
        [one] => unsafe { copy::copy_out(one.addr as *const u8, to, one.length as usize) },
        many => gather_list(many, to),
    }
}

/// The same without a call, of what fits a cell.
#[inline(always)]
pub fn gather_short(sges: &[ibv_sge], to: *mut u8) {
    let (last, to) = gather_headers(sges, to);
    match last {
        // SAFETY: as in gather(); it fits a cell.
        [one] => unsafe { copy::copy_to_cell(one.addr as *const u8, to, one.length as usize) },
        many => gather_list(many, to),
    }
}

/// Copies two headers, if a list of three pieces begins with such; the rest, and where it goes.
#[inline(always)]
fn gather_headers(sges: &[ibv_sge], to: *mut u8) -> (&[ibv_sge], *mut u8) {
    let is_header = |sge: &ibv_sge| (8..=16).contains(&sge.length);
    match sges {
        [first, second, last] if is_header(first) && is_header(second) => {
            let at = to.wrapping_add(first.length as usize);
            // SAFETY: as in gather(); the caller has made room for all pieces, and both have 8 to 16 bytes (checked above).
            unsafe {
                copy::copy_words(first.addr as *const u8, to, first.length as usize);
                copy::copy_words(second.addr as *const u8, at, second.length as usize);
            }
            (std::slice::from_ref(last), at.wrapping_add(second.length as usize))
        }
        all => (all, to),
    }
}

/// As [`gather`], past the caches but for short pieces.
#[inline(never)]
pub fn gather_past(sges: &[ibv_sge], skip: usize, len: usize, to: *mut u8) {
    each_piece(sges, skip, len, |from, done, here| {
        // SAFETY: as in gather(); done + here <= len.
        unsafe {
            match here {
                0..ALL_PAST => copy::copy_out(from, to.add(done), here),
                _ => copy::stream(from, to.add(done), here),
            }
        }
    });
}

/// The payload of an atomic WRITE.
pub fn word_of(sges: &[ibv_sge]) -> u64 {
    let mut bytes = [0u8; size_of::<u64>()];
    gather(sges, 0, bytes.len(), bytes.as_mut_ptr());
    u64::from_ne_bytes(bytes)
}

/// A piece from here on is written past the caches by [`gather_past`].
const ALL_PAST: usize = 4 << 10;

#[inline(never)]
fn gather_list(sges: &[ibv_sge], mut to: *mut u8) {
    for sge in sges {
        // SAFETY: as in gather(); the caller has made room for all pieces.
        unsafe { copy::copy_out(sge.addr as *const u8, to, sge.length as usize) };
        to = to.wrapping_add(sge.length as usize);
    }
}

fn gather_many(sges: &[ibv_sge], skip: usize, len: usize, to: *mut u8) {
    each_piece(sges, skip, len, |from, done, here| {
        // SAFETY: as in gather(); done + here <= len.
        unsafe { copy::copy_out(from, to.add(done), here) };
    });
}

/// Of `len` bytes of a gather list, from `skip` on, each piece: where it is, how many bytes are before it, how many it has.
fn each_piece(sges: &[ibv_sge], mut skip: usize, len: usize, mut take: impl FnMut(*const u8, usize, usize)) {
    let mut done = 0;
    for sge in sges {
        let length = sge.length as usize;
        let here = length.saturating_sub(skip).min(len - done);
        if here > 0 {
            take((sge.addr as usize + skip) as *const u8, done, here);
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
