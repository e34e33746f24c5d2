//! Requests for memory that go through a ring: atomics, READs from peers that send the data sooner than it could be fetched, and all of them
//! for peers whose memory we can't reach. What the target makes of
//! them is `responder::rdma`, and what becomes of its answer `answer`.

use super::path::{Path, Way};
use crate::datapath::pieces::{AHEAD, PIECE, is_whole};
use crate::objects::reply::{Gift, Target};
use crate::objects::sges::{gather, gather_past, word_of};
use crate::objects::work::{Remote, Step, WORD, Work};
use crate::shm::cell::{Head, INLINE_MAX, PAST, flag, op};
use crate::shm::copy::STREAMS;
use rdma_sys::*;
use std::time::Duration;

impl<P: Path> Way<'_, P> {
    /// Sends a request, or as much of it as there is room for.
    pub fn request(&mut self, work: &mut Work, sges: &[ibv_sge]) -> Step {
        if work.asked {
            return Step::Answer;
        }
        if let Remote::Word { addr, rkey, first, swap } = work.remote {
            let target = Target { addr, rkey, len: WORD };
            let first = if work.opcode == IBV_WR_ATOMIC_WRITE { word_of(sges) } else { first };
            return self.request_atomic(work, &target, [first, swap]);
        }
        let reading = work.opcode == IBV_WR_RDMA_READ;
        let (addr, rkey) = work.remote.memory();
        loop {
            let len = if reading { 0 } else { (work.len - work.sent).min(PIECE) };
            if !self.has_room(PIECE) {
                return Step::Room;
            }
            let last = reading || work.sent + len == work.len;
            let whole = if reading { work.len } else { len };
            let target = Target { addr: addr.wrapping_add(work.sent.into()), rkey, len: whole };
            let op = if reading { op::READ } else { op::WRITE };
            let flags = if last { flag::LAST } else { 0 } | if reading { self.manner(work) } else { 0 };
            let head = Head { flags, len, pos: work.number, ..self.head(op) };
            let skip = work.sent as usize;
            self.push_request(head, &target.emit(), |to| gather(sges, skip, len as usize, to));
            work.sent += len;
            if last {
                (work.asked, work.sent) = (true, 0);
                self.stats.rdma_ring += 1;
                return Step::Answer;
            }
        }
    }

    /// Asks for data that we could fetch, if there is room for that.
    pub fn ask(&mut self, work: &mut Work) -> Step {
        if !work.asked {
            if !self.has_room(0) {
                return Step::Room;
            }
            work.timed = self.peer.moves.go(self.kind(work));
            let (addr, rkey) = work.remote.memory();
            let imm = self.peer.ring.next_ask();
            let flags = flag::LAST | self.manner(work);
            let head = Head { flags, pos: work.number, imm, ..self.head(op::ASK) };
            self.push_request(head, &Target { addr, rkey, len: work.len }.emit(), |_| ());
            (work.asked, work.sent) = (true, 0);
            self.stats.rdma_ring += 1;
        }
        Step::Data
    }

    /// The flag that says how the peer is to write the data of a READ. An answer of one piece is not timed, and comes through the caches.
    fn manner(&mut self, work: &mut Work) -> u8 {
        work.streamed = STREAMS && work.len > PIECE && self.peer.pace.next_streams();
        if work.streamed { flag::PAST } else { 0 }
    }

    /// Gives the peer data that it places in its memory, which we could do as well: as much of it as there is room for.
    /// `leads`: the peer has answered all that was before it on its queue pair.
    pub fn give(&mut self, work: &mut Work, sges: &[ibv_sge], leads: bool) -> Step {
        if !work.asked {
            work.timed = self.peer.moves.go(self.kind(work));
            work.give = self.peer.ring.next_give(is_whole(work.len));
            (work.asked, work.sent) = (true, 0);
            self.stats.rdma_ring += 1;
        }
        let begin = (work.timed.is_some() && work.since.is_none()).then(timing::now);
        self.give_pieces(work, sges, leads);
        if let Some(begin) = begin {
            work.spent = work.spent.saturating_add((timing::now() - begin).as_nanos() as u32);
        }
        Step::Data
    }

    /// Gives it as many pieces as there is room for.
    fn give_pieces(&mut self, work: &mut Work, sges: &[ibv_sge], leads: bool) {
        let (addr, rkey) = work.remote.memory();
        let target = Target { addr, rkey, len: work.len };
        while work.gives_on() {
            let (from, len) = (work.sent, (work.len - work.sent).min(PIECE));
            if !self.has_room_for_gift(len) {
                break;
            }
            let last = if from + len == work.len { flag::LAST } else { 0 };
            let flags = last | if leads && from == 0 { flag::FIRST } else { 0 };
            let head = Head { flags, len, pos: work.number, imm: work.give, ..self.head(op::GIVE) };
            let gift = Gift { target, from };
            self.push_gift(head, &gift, sges);
            work.sent += len;
        }
    }

    /// Pushes a piece of it, past the caches if that takes less time.
    fn push_gift(&mut self, head: Head, gift: &Gift, sges: &[ibv_sge]) {
        let (skip, len) = (gift.from as usize, head.len as usize);
        if !STREAMS || head.len < PAST {
            return self.push_request(head, &gift.emit(), |to| gather(sges, skip, len, to));
        }
        let past = self.peer.gifts.next_streams();
        let copy = if past { gather_past } else { gather };
        let mut took = Duration::ZERO;
        self.push_request(head, &gift.emit(), |to| {
            let begin = timing::now();
            copy(sges, skip, len, to);
            took = timing::now() - begin;
        });
        self.peer.gifts.note_written(past, head.len, took);
    }

    /// Whether so many bytes that are given have room.
    pub fn has_room_for_gift(&mut self, len: u32) -> bool {
        self.peer.ring.has_room_within(bulk(len), AHEAD)
    }

    /// Sends an atomic: all of it is in the cell.
    fn request_atomic(&mut self, work: &mut Work, target: &Target, operands: [u64; 2]) -> Step {
        if !self.has_room(0) {
            return Step::Room;
        }
        let mut parts = [0; 32];
        parts[..16].copy_from_slice(&target.emit());
        parts[16..24].copy_from_slice(&operands[0].to_ne_bytes());
        parts[24..].copy_from_slice(&operands[1].to_ne_bytes());
        let op = match work.opcode {
            IBV_WR_ATOMIC_FETCH_AND_ADD => op::FETCH_ADD,
            IBV_WR_ATOMIC_WRITE => op::ATOMIC_WRITE,
            _ => op::CMP_SWAP,
        };
        let head = Head { flags: flag::LAST, pos: work.number, ..self.head(op) };
        self.push_request(head, &parts, |_| ());
        work.asked = true;
        self.stats.rdma_ring += 1;
        Step::Answer
    }
}

/// Of a request for memory the data is in the bulk, however short it is.
fn bulk(len: u32) -> usize {
    (len as usize).max(INLINE_MAX + 1)
}
