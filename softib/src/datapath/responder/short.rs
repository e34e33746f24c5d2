//! The counterpart of `initiator::send_short`: a message that a caller polls for goes from the ring into
//! its buffer, and its completion to the poller, with no queue in between.

use super::placing::From;
use crate::objects::mr::Mrs;
use crate::objects::qp::{Qps, Usual};
use crate::objects::recvq::RecvQ;
use crate::objects::srq::Srq;
use crate::objects::world::World;
use crate::shm::cell::{Found, Head, flag, op};
use crate::shm::cells::{each_line, prefetch};
use crate::shm::copy::{copy, copy_short};
use crate::shm::layout::QPS;
use crate::shm::placed;
use rdma_sys::*;
use slab::Slab;
use std::mem::MaybeUninit;

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Short {
    /// A completion has been handed over.
    Taken,
    /// The same, and `State::tell_sender` is to be called.
    TakenDue,
    /// A completion has been handed over, and its message lies in the ring.
    Placed,
    /// A message was given to the program where it lies: `State::settle_lent`.
    Lent,
    /// There is nothing to do.
    Nothing,
    /// There is something for `State::poll_careful`.
    Careful,
    /// The same for `State::poll_over_xrc`.
    OverXrc,
    /// There is something for the general way.
    Other,
}

/// Of a payload that stays where it is, so many bytes are asked for at once: the program reads the first line, decides, and then the rest.
const EXPECTED: u32 = 2048;

/// Leaves a payload where it is, for the program to read it there. False: it reads another one.
#[inline(always)]
fn leave(payload: *const u8, len: u32) -> bool {
    let word = placed::word();
    let free = word.at().is_null();
    if free {
        word.set(payload.cast_mut());
        each_line(payload, len.min(EXPECTED), prefetch);
    }
    free
}

/// The flags that make no difference.
const fn harmless(inline: bool) -> u32 {
    Head::meaning(0, flag::SOLICITED | if inline { 0 } else { flag::BULK }, 0)
}

/// Where usual messages to a connected queue pair go.
#[derive(Debug)]
pub struct Way<'a> {
    queue: &'a mut RecvQ,
    /// With so many receives left, or fewer, the general way goes on.
    limit: u32,
    num: u32,
    pd: u32,
}

impl<'a> Way<'a> {
    /// The way of a whole SEND to a connected queue pair that completes to queue `cq`.
    ///
    /// # Errors
    /// Something is not as it usually is, and who finds out what.
    #[inline(always)]
    pub fn find<const INLINE: bool>(
        (qps, srqs): (&'a mut Qps, &'a mut Slab<Srq>),
        cq: usize,
        from: From,
        head: &Head,
    ) -> Result<Way<'a>, Short> {
        let Some(qp) = qps.get_mut(head.dst as usize % QPS) else {
            return Err(if INLINE && head.op & op::XRC != 0 { Short::OverXrc } else { Short::Other });
        };
        let (incarnation, src_qpn, meaning) = (from.incarnation, head.src_qpn, meaning::<INLINE>(head));
        if qp.usual != (Usual { incarnation, src_qpn, meaning, cq }) {
            return Err(Short::Other);
        }
        let (num, pd) = (qp.num, qp.pd as u32);
        match (qp.rq.as_mut(), qp.srq) {
            (Some(queue), _) => Ok(Way { queue, limit: 0, num, pd }),
            (None, Some(key)) => {
                let srq = srqs.get_mut(key).ok_or(Short::Other)?;
                // The one that makes the limit tell is left to the general way.
                Ok(Way { queue: &mut srq.queue, limit: srq.limit, num, pd })
            }
            _ => Err(Short::Other),
        }
    }

    /// Places a message that goes this way, and writes its completion, if there are receives left.
    #[inline(always)]
    pub fn place<const INLINE: bool>(
        &mut self,
        mrs: &Mrs,
        head: &Head,
        payload: (*const u8, u32),
        to: &mut MaybeUninit<ibv_wc>,
    ) -> Short {
        if self.queue.outstanding <= self.limit {
            return Short::Other;
        }
        place::<INLINE>((self.queue, mrs, self.pd), self.num, head, payload, to)
    }
}

/// Completes the receive of a message that its sender has placed, to a connected queue pair that completes to queue `cq`. None: something is not as it
/// usually is, nothing has happened yet, and the general way finds out.
#[inline(never)] // the way of answers stays short
pub fn take_filled(
    (qps, w): (&mut Qps, &mut World),
    cq: usize,
    from: From,
    found: &Found,
    to: &mut MaybeUninit<ibv_wc>,
) -> Option<()> {
    let len = found.number()?;
    let head = Head { op: op::SEND, flags: found.head.flags | flag::FIRST | flag::LAST, ..found.head };
    let way = Way::find::<false>((qps, &mut w.srqs), cq, from, &head).ok()?;
    if way.queue.outstanding <= way.limit {
        return None;
    }
    let next = way.queue.next(head.pos).filter(|next| len <= next.buffer().length)?;
    to.write(completion(next.take(), len, (way.num, head.src_qpn)));
    Some(())
}

/// Of a receive.
#[inline(always)]
fn completion(wr_id: u64, byte_len: u32, (qp_num, src_qp): (u32, u32)) -> ibv_wc {
    ibv_wc { wr_id, opcode: IBV_WC_RECV, byte_len, qp_num, src_qp, ..Default::default() }
}

/// What a cell says that two messages of one way have in common.
#[inline(always)]
pub fn meaning<const INLINE: bool>(head: &Head) -> u32 {
    Head::meaning(head.op, head.flags, head.dst) & !harmless(INLINE)
}

/// Places a whole SEND, whose `payload` has `head.len` bytes, to a connected queue pair that completes to queue `cq`, and writes its
/// completion. `Other`: something is not as it usually is, nothing has happened yet, and the general way (`responder::cell`) finds out.
/// `INLINE`: the payload is in the cell, and if the buffer's region has to be looked up, that is left to the careful way. One of
/// `placed_from` bytes and more may stay where it is.
#[inline(always)]
pub fn take_short<const INLINE: bool>(
    qps: &mut Qps,
    w: &mut World,
    cq: usize,
    from: From,
    head: &Head,
    payload: (*const u8, u32),
    to: &mut MaybeUninit<ibv_wc>,
) -> Short {
    let World { srqs, mrs, .. } = w;
    match Way::find::<INLINE>((qps, srqs), cq, from, head) {
        Ok(mut way) => way.place::<INLINE>(mrs, head, payload, to),
        Err(short) => short,
    }
}

/// Fills the receive that a message has consumed, with buffers of protection domain `pd`, and writes its completion, on queue pair `num`.
#[inline(always)]
pub fn place<const INLINE: bool>(
    (queue, mrs, pd): (&mut RecvQ, &Mrs, u32),
    num: u32,
    head: &Head,
    (payload, placed_from): (*const u8, u32),
    to: &mut MaybeUninit<ibv_wc>,
) -> Short {
    let vouched = queue.vouches(head.pos, mrs.withdrawn);
    let Some(next) = queue.next(head.pos) else { return Short::Other };
    let buffer = next.buffer();
    if INLINE && !vouched {
        return Short::Careful;
    }
    if head.len > buffer.length || !vouched && !mrs.allows(buffer, pd, true) {
        return Short::Other;
    }
    let placed = !INLINE && head.len >= placed_from && leave(payload, head.len);
    // SAFETY: inside the posted buffer (checked), which lies in a valid MR of this PD with local write (checked); the
    // program vouches for registered memory. The payload is len readable bytes.
    unsafe {
        let (to, len) = (buffer.addr as *mut u8, head.len as usize);
        match INLINE {
            true => copy_short(payload, to, len),
            false if placed => {}
            false => copy(payload, to, len),
        }
    }
    let wc = completion(next.take(), head.len, (num, head.src_qpn));
    to.write(ibv_wc { wc_flags: if placed { IBV_WC_PLACED } else { 0 }, ..wc });
    if placed { Short::Placed } else { Short::Taken }
}
