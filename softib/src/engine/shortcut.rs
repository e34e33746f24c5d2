//! The shortcut of a poll: a message that a hot ring holds for an empty completion queue goes straight to the poller.
//!
//! ```text
//!   ring ──> posted buffer, caller's ibv_wc            (this file)
//!   ring ──> posted buffer, completion queue ──> poll  (the general way: everything else)
//! ```
//!
//! The turn stays with a hot ring while it has messages, and goes to another one that has some when it has none. Now and then it is passed on
//! all the same, and announced rings are looked for, so that a ring that never runs dry keeps none from being read.

use super::inbound::Inbound;
use super::state::State;
use crate::datapath::initiator::take_answer;
use crate::datapath::responder::{
    From, Short, Way, answer_short, meaning, take_filled, take_over_xrc, take_short,
};
use crate::objects::cq::Cq;
use crate::objects::qp::Qps;
use crate::objects::world::{Stats, World};
use crate::shm::cell::{Head, INLINE_MAX, PAST, op};
use crate::shm::ring::RecvRing;
use rdma_sys::{ibv_cq, ibv_wc};
use std::mem::MaybeUninit;

/// Other rings are looked for once in so many messages of a ring that always has one.
const LOOK_AROUND: u32 = 64;

/// A poll that expects an answer (`World::expected`) looks for it once in so many times: each look may take the line from its sender.
const LOOK_EVERY: u32 = 3;

/// One of several hot rings that has had nothing in so many looks that found nothing is not looked at any more, for each costs all such looks.
/// That senders are told takes a system call.
const COOL_AFTER: u32 = 1 << 16;

impl State {
    /// Polls queue `key` for one completion, as far as the shortcut leads. Nothing is called on this way when a message has come, so that
    /// all of it stays in registers; what is rarely needed is the caller's to ask for. `WAITS`: the program has had nothing from this poll
    /// yet, so there is time to get ready for the next message, and to look for other rings.
    #[inline(always)]
    pub fn poll_short<const WAITS: bool>(&mut self, key: usize, to: &mut MaybeUninit<ibv_wc>) -> Short {
        let State { qps, inbound, w, .. } = self;
        w.in_burst = false;
        let open = w.cqs.get(key).is_some_and(Cq::is_open);
        if !open || !w.is_quiet() || w.lender.is_some() {
            return if w.lender.is_some() { Short::Lent } else { Short::Other };
        }
        let Some(Some(ring)) = inbound.rings.get_mut(inbound.turn) else { return Short::Other };
        let Some((head, payload)) = ring.front() else {
            if !WAITS {
                return Short::Nothing;
            }
            ring.await_next();
            return inbound.look_around(&mut w.stats);
        };
        if !WAITS {
            ring.expect_more();
        }
        if let Some(careful) = careful(ring, &head) {
            return careful;
        }
        let from = From { incarnation: ring.incarnation };
        let taken = take_short::<true>(qps, w, key, from, &head, (payload, u32::MAX), to);
        if taken != Short::Taken {
            return taken;
        }
        if ring.consume_quietly() { Short::TakenDue } else { Short::Taken }
    }

    /// The same behind a message, for as many as there is room for in `out`; how many completions have been handed over, and what came of the
    /// next one. What several messages of one sender have in common is looked at once.
    #[inline(always)]
    pub fn poll_run(&mut self, key: usize, out: &mut [MaybeUninit<ibv_wc>]) -> (usize, Short) {
        let State { qps, inbound, w, .. } = self;
        let open = w.cqs.get(key).is_some_and(Cq::is_open);
        if !open || !w.is_quiet() || w.lender.is_some() {
            return (0, if w.lender.is_some() { Short::Lent } else { Short::Other });
        }
        let Some(Some(ring)) = inbound.rings.get_mut(inbound.turn) else { return (0, Short::Other) };
        let (World { srqs, mrs, .. }, from) = (w, From { incarnation: ring.incarnation });
        let (mut taken, mut front) = (0, ring.front());
        while let Some((first, _)) = front {
            if let Some(careful) = careful(ring, &first) {
                return (taken, careful);
            }
            let mut way = match Way::find::<true>((qps, srqs), key, from, &first) {
                Ok(way) => way,
                Err(short) => return (taken, short),
            };
            while let Some((head, payload)) = front.filter(|(head, _)| is_alike(head, &first)) {
                if let Some(careful) = careful(ring, &head) {
                    return (taken, careful);
                }
                let Some(to) = out.get_mut(taken) else { return (taken, Short::Taken) };
                let placed = way.place::<true>(mrs, &head, (payload, u32::MAX), to);
                if placed != Short::Taken {
                    return (taken, placed);
                }
                taken += 1;
                if ring.consume_quietly() {
                    ring.publish_if_due();
                }
                ring.expect_more();
                front = ring.front();
            }
        }
        (taken, Short::Nothing)
    }

    /// Polls queue `key` where [`Self::poll_short`] leads no further: for a completion that waits alone, for the answer to a request,
    /// or a short request for memory, and what follows of the same kind. How many completions have been handed over, if it was one of these.
    #[inline(always)]
    pub fn poll_waiting(&mut self, key: usize, out: &mut [MaybeUninit<ibv_wc>]) -> Option<usize> {
        let State { qps, inbound, w, .. } = self;
        let cq = w.cqs.get(key).filter(|_| inbound.owner.is_application())?;
        if cq.len() == 1
            && let Some(to) = out.first_mut()
        {
            if !w.may_pass_by() {
                return None;
            }
            w.cqs.get_mut(key)?.pop_with(|cqe, _| {
                qps.retire(cqe.retire);
                to.write(cqe.wc);
            });
            return Some(1);
        }
        let may_take = cq.is_open() && w.doomed.is_empty() && w.replies.is_empty() && w.lender.is_none();
        let ring = inbound.rings.get_mut(inbound.turn)?.as_mut().filter(|_| may_take)?;
        if w.expected.polls > 0 {
            w.expected.polls -= 1;
            if !w.expected.polls.is_multiple_of(LOOK_EVERY) {
                return (!w.expected.is_overdue_at_first()).then_some(0);
            }
            if !ring.is_ready() {
                let goes_on = !w.expected.is_overdue() && inbound.look_around(&mut w.stats) == Short::Nothing;
                return goes_on.then_some(0);
            }
        }
        let polled = poll_answers(qps, w, key, ring, out);
        // The request behind the one that is answered may have failed.
        self.settle();
        polled
    }

    /// Keeps in mind that a poll of `cq` has found nothing, if that can be told from two words.
    #[inline(always)]
    pub fn note_still(&mut self, cq: *mut ibv_cq) {
        let State { inbound, still, .. } = self;
        if let Some(Some(ring)) = inbound.rings.get(inbound.turn)
            && let Some(cell) = ring.awaited_cell()
        {
            match inbound.hot.len() {
                1 => still.note(cq, cell),
                _ => self.note_several(cq),
            }
        }
    }

    /// The same where there are several hot rings.
    #[inline(never)]
    fn note_several(&mut self, cq: *mut ibv_cq) {
        let State { inbound, still, .. } = self;
        inbound.idle += still.take_held();
        let Inbound { hot, rings, .. } = inbound;
        still.note_several(
            cq,
            hot.iter().filter_map(|hot| rings.get(hot.ring)?.as_ref().map(RecvRing::next_cell)),
        );
    }

    /// The ring whose turn it is holds a message.
    #[inline(always)]
    pub fn has_next(&self) -> bool {
        self.inbound
            .rings
            .get(self.inbound.turn)
            .is_some_and(|ring| ring.as_ref().is_some_and(RecvRing::is_ready))
    }

    /// The same for a message with bulk, the one at which other rings are looked for, and one whose buffer has to be checked.
    #[inline(never)]
    pub fn poll_careful(&mut self, key: usize, to: &mut MaybeUninit<ibv_wc>) -> Short {
        self.poll_any::<false>(key, to)
    }

    /// The same of a message over XRC. What has come is in memory here, and in registers there.
    #[inline(never)]
    pub fn poll_over_xrc(&mut self, key: usize, to: &mut MaybeUninit<ibv_wc>) -> Short {
        self.poll_any::<true>(key, to)
    }

    /// As [`Self::poll_careful`], where it is called once.
    #[inline(always)]
    pub fn poll_any<const XRC: bool>(&mut self, key: usize, to: &mut MaybeUninit<ibv_wc>) -> Short {
        let State { qps, inbound, w, .. } = self;
        let Some(cq) = w.cqs.get(key) else { return Short::Other };
        let (open, placed_from) = (cq.is_open(), cq.placed_from);
        let Some(Some(ring)) = inbound.rings.get(inbound.turn) else { return Short::Other };
        let looks_around = ring.taken().is_multiple_of(LOOK_AROUND);
        if !open || looks_around && inbound.announced() {
            return Short::Other;
        }
        let Some(Some(ring)) = inbound.rings.get_mut(inbound.turn) else { return Short::Other };
        let Some(found) = ring.peek_message() else { return Short::Other };
        let from = From { incarnation: ring.incarnation };
        let taken = match XRC {
            false => take_short::<false>(qps, w, key, from, &found.head, (found.payload, placed_from), to),
            true => take_over_xrc(qps, w, key, (found.head, found.via), (found.payload, placed_from), to),
        };
        if taken == Short::Placed {
            ring.lend(found.payload);
            w.lender = Some((inbound.turn, key));
            w.stats.placed += 1;
        } else if taken != Short::Taken {
            return taken;
        }
        if found.head.len >= PAST {
            ring.time(&found.head, taken == Short::Taken);
        }
        ring.consume(&found);
        if looks_around {
            inbound.pass_turn();
        }
        taken
    }

    /// The sender of the message that has just been taken is told how far its ring has been read, as is due.
    #[inline(never)]
    pub fn tell_sender(&mut self) -> Short {
        if let Some(Some(ring)) = self.inbound.rings.get_mut(self.inbound.turn) {
            ring.publish_if_due();
        }
        Short::Taken
    }
}

/// Takes answers, and messages that their sender has placed, from a ring, and answers what it asks for, as long as there is more of that. None: the first message is of another kind.
#[inline(always)]
fn poll_answers(
    qps: &mut Qps,
    w: &mut World,
    key: usize,
    ring: &mut RecvRing,
    out: &mut [MaybeUninit<ibv_wc>],
) -> Option<usize> {
    let (mut polled, mut any) = (0, None);
    while !ring.taken().is_multiple_of(LOOK_AROUND)
        && let Some(to) = out.get_mut(polled)
        && let Some(found) = ring.peek_message()
    {
        let from = From { incarnation: ring.incarnation };
        let taken = match found.head.op {
            op::RESPONSE => take_answer(qps, w, (key, from.incarnation), &found, to),
            op::FILLED => take_filled((qps, w), key, from, &found, to).map(|()| (1, true)),
            ask => answer_short(qps, w, from, &found).then_some((0, matches!(ask, op::ASK | op::GIVE))),
        };
        let Some((taken, goes_on)) = taken else { break };
        ring.consume(&found);
        polled += taken;
        any = Some(polled);
        // What has been completed behind it waits in the queue.
        if !goes_on || !w.cqs.get(key).is_some_and(Cq::is_open) {
            break;
        }
    }
    any
}

/// The message in front, with this head, is for one of the careful ways.
#[inline(always)]
fn careful(ring: &RecvRing, head: &Head) -> Option<Short> {
    if head.len as usize <= INLINE_MAX && !ring.taken().is_multiple_of(LOOK_AROUND) {
        return None;
    }
    Some(if head.op & op::XRC == 0 { Short::Careful } else { Short::OverXrc })
}

/// Both messages go one way.
#[inline(always)]
fn is_alike(one: &Head, other: &Head) -> bool {
    meaning::<true>(one) == meaning::<true>(other) && one.src_qpn == other.src_qpn
}

impl Inbound {
    /// The ring whose turn it is has nothing.
    #[inline(always)]
    fn look_around(&mut self, stats: &mut Stats) -> Short {
        if self.hot.len() > 1 && self.find_turn(stats) {
            return Short::Careful;
        }
        if self.announced() { Short::Other } else { Short::Nothing }
    }

    /// The turn goes to a hot ring that has something; whether there is one.
    #[inline(never)]
    fn find_turn(&mut self, stats: &mut Stats) -> bool {
        for at in 0..self.hot.len() {
            let ring = self.hot[at].ring;
            if self.may_hold(ring) {
                self.give_turn(ring);
                return true;
            }
        }
        self.idle += 1;
        if self.idle >= COOL_AFTER {
            self.idle = 0;
            stats.cooled += self.cool();
        }
        false
    }
}
