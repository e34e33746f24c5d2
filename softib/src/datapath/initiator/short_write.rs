//! The short way of an RDMA WRITE of one buffer to memory that the peer shares with us: a copy, as it is posted.

use super::mapped::open;
use super::short::{Short, complete_write};
use crate::objects::peer::Link;
use crate::objects::qp::Qp;
use crate::objects::world::World;
use crate::shm::cells::{each_line_of, prefetch_to_write};
use crate::shm::copy::SHORT;
use crate::shm::mapped::Mapped;
use rdma_sys::*;
use std::ops::RangeInclusive;
use std::ptr::NonNull;

/// An RDMA WRITE of one buffer on a connected RC queue pair with nothing queued, to memory that is mapped here.
#[inline(always)]
pub fn write_mapped(qp: &mut Qp, w: &mut World, wr: &ibv_send_wr, sge: &ibv_sge) -> Short {
    let inline = wr.send_flags & IBV_SEND_INLINE != 0;
    let may_read =
        if inline { sge.length <= qp.cap.max_inline_data } else { w.mrs.allows(sge, qp.pd as u32, false) };
    // SAFETY: the caller has seen that it is a WRITE, so the program has filled this member of the union.
    let rdma = unsafe { wr.wr.rdma };
    if !may_read || !may_write(qp) {
        return Short::Other;
    }
    if write_over(qp, w, sge, (rdma.remote_addr, rdma.rkey)) { written(qp, w, wr, sge) } else { Short::Other }
}

/// Copies a buffer to memory of the peer's that is mapped here. False: it is not, and nothing has happened. The caller has seen that the queue pair
/// is connected, nothing is queued, and that the buffer may be read.
#[inline(always)]
pub fn write_over(qp: &mut Qp, w: &mut World, sge: &ibv_sge, (addr, rkey): (u64, u32)) -> bool {
    let Some(window) = find(qp, w, rkey) else { return write_to_file(qp, w, sge, (addr, rkey)) };
    let Some(place) = window.place(addr, sge.length) else { return false };
    let holds = copy_to(window, sge, place);
    if holds {
        window.expect_more(place, w.in_burst);
    }
    holds
}

/// Copies a buffer to a place in a window. False: its region is gone.
#[inline(always)]
fn copy_to(window: &mut Mapped, sge: &ibv_sge, place: NonNull<u8>) -> bool {
    let holds = window.begin();
    if holds {
        // SAFETY: the program vouches for its buffer until the request is over. The peer had granted the region when it was looked at, and that has
        // not changed.
        unsafe { window.write(sge.addr as *const u8, place, sge.length) };
    }
    window.end();
    holds
}

/// The same where the memory may be of a file that the peer's program has mapped.
#[inline(never)]
fn write_to_file(qp: &mut Qp, w: &mut World, sge: &ibv_sge, (addr, rkey): (u64, u32)) -> bool {
    let Some(link) = qp.link.as_mut().filter(|link| link.is_current()) else { return false };
    let Some(window) = link.file.as_mut().filter(|window| is_it(window, rkey)) else { return false };
    let Some(place) = window.place(addr, sge.length) else { return false };
    if !copy_to(window, sge, place) || window.is_lost() {
        link.file = None;
        return false;
    }
    window.expect_more(place, w.in_burst);
    true
}

/// A WRITE has been carried out.
#[inline(always)]
fn written(qp: &mut Qp, w: &mut World, wr: &ibv_send_wr, sge: &ibv_sge) -> Short {
    count(w);
    qp.sq_posted = qp.sq_posted.wrapping_add(1);
    if qp.sig_all || wr.send_flags & IBV_SEND_SIGNALED != 0 {
        complete_write(qp, w, wr.wr_id, sge.length);
    }
    Short::Sent
}

/// The same in pieces, of a request that has no completion and takes no entry of the send queue: it is over when this returns, or nothing has
/// happened. Whether it has been carried out.
///
/// # Safety
/// The pieces are readable.
#[inline(always)]
pub unsafe fn write_short(
    qp: &mut Qp,
    w: &mut World,
    &ShortWrite { head, head_len, body, body_len }: &ShortWrite,
    last: u64,
    (remote_addr, rkey): (u64, u32),
) -> bool {
    let front = head_len.wrapping_add(body_len);
    let fits = head_len <= SHORT && body_len <= LONG;
    if !fits || !has_nothing_queued(qp) || !remote_addr.is_multiple_of(WORD as u64) {
        return false;
    }
    let Some(window) = find(qp, w, rkey) else { return false };
    let Some(place) = window.place(remote_addr.wrapping_sub(front as u64), (front + WORD) as u32) else {
        return false;
    };
    if ASKED.contains(&front) && !w.in_burst {
        each_line_of(place, front, prefetch_to_write);
    }
    let holds = window.begin();
    if holds {
        // SAFETY: the caller vouches for the buffers. The peer had granted the region when it was looked at, and that has not changed.
        unsafe {
            match body_len {
                0..LONG_BODY => window.write_pieces([(head, head_len), (body, body_len)], last, place),
                _ => window.write_long([(head, head_len), (body, body_len)], last, place),
            }
        }
    }
    window.end();
    if holds {
        if front <= SHORT {
            window.expect_more(place, w.in_burst);
        } else {
            window.expect_as_long(place, front + WORD, w.in_burst);
        }
        count(w);
    }
    holds
}

/// The longest body of a short write.
const LONG: usize = 16 << 10;

/// A body from here on may go past the caches.
const LONG_BODY: usize = 4 << 10;

/// Writes of so many bytes before the word ask for all of their lines before they copy. A reader may look at those of a shorter one all the time,
/// which takes them back; of a longer one more are wanted than the processor asks for at a time.
const ASKED: RangeInclusive<usize> = 249..=2048;

/// Bytes of a word.
const WORD: usize = 8;

/// It is a connected RC queue pair with nothing queued, and its send queue has an entry.
#[inline(always)]
fn may_write(qp: &Qp) -> bool {
    has_nothing_queued(qp) && qp.sq_posted.wrapping_sub(qp.sq_retired) < qp.cap.max_send_wr
}

/// It is a connected RC queue pair, and all that was posted to it has been carried out.
#[inline(always)]
fn has_nothing_queued(qp: &Qp) -> bool {
    qp.writes && qp.sq.is_empty()
}

/// The region with this key of a peer that lives, if the peer shares it with us.
#[inline(always)]
fn find<'a>(qp: &'a mut Qp, w: &mut World, rkey: u32) -> Option<&'a mut Mapped> {
    let link = qp.link.as_mut().filter(|link| link.is_current())?;
    if link.window.as_ref().is_none_or(|window| !is_it(window, rkey)) {
        return find_anew(link, w, qp.attr.dest_qp_num, rkey);
    }
    link.window.as_mut()
}

/// It is the one with this key, and its peer lives.
#[inline(always)]
fn is_it(window: &Mapped, rkey: u32) -> bool {
    window.row.key() == rkey && window.is_alive()
}

/// The same where another one, or none, was written to last, or the peer's word of life is another one.
#[inline(never)]
fn find_anew<'a>(link: &'a mut Link, w: &mut World, qpn: u32, rkey: u32) -> Option<&'a mut Mapped> {
    let is_file = link.file.as_deref().is_some_and(|window| is_it(window, rkey));
    if is_file || link.apart == rkey {
        return None;
    }
    let peer = w.peers.at_hand(link)?;
    open(link, peer, qpn, rkey)
}

/// One more has been carried out.
#[inline(always)]
fn count(w: &mut World) {
    w.in_burst = true;
    w.stats.rdma_direct += 1;
}
