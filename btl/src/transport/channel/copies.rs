//! Copies of the messages of a queue pair that have not completed: a ring of bytes, in posting order.
//!
//! ```text
//!   bytes  [ .. | message | message |  gap  ] [ message | ..      a message is never cut in two
//!                 oldest                        end
//! ```
//! A message is composed here from its pieces and posted from here as one piece, so keeping it costs no other copy. While
//! nothing is in flight the ring begins anew, at bytes that are in the cache.
//!
//! Inline messages are in any ring, which grows with them. Where it is [registered](Copies::move_to), longer ones may be, too, which the device reads
//! here: these take no more than half of it, and go from buffers where they find no room.
#![forbid(unsafe_code)]

use crate::protocol::wire::HEADER_LEN;
use verbs::{Outbox, Part, Room};

/// Pieces of up to so many bytes are short.
pub const SHORT: usize = 128;

/// Where a copy is. Positions are counted modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Position of the first byte.
    pub start: u32,
    /// Bytes.
    pub len: u32,
}

/// The ring. Its owner knows which copy is the oldest.
#[derive(Debug)]
pub struct Copies {
    /// A power of two, or none before the first message.
    memory: Outbox,
    /// Position of the next message.
    end: u32,
    /// Bytes from there on that are known to be free, and in one piece.
    room: u32,
    /// Bytes that messages which the device reads here may take, if there is room; none where it is not registered.
    long: u32,
}

impl Default for Copies {
    fn default() -> Self {
        Copies { memory: Outbox::unregistered(0), end: 0, room: 0, long: 0 }
    }
}

impl Copies {
    /// Bytes of an inline message, at most: more than any device takes.
    pub const LONGEST: u32 = 0xffff;

    /// Bytes at first: many peers are sent little.
    const FIRST: u32 = 256;

    /// Position of the next message.
    #[inline]
    pub fn end(&self) -> u32 {
        self.end
    }

    /// So many bytes are known to fit: [`Copies::make_room`] sees to it otherwise.
    #[inline]
    pub fn fits(&self, len: usize) -> bool {
        len <= self.room as usize
    }

    /// The same of one that the device reads here.
    #[inline(always)] // with every message
    pub fn fits_long(&self, len: usize) -> bool {
        len <= self.long as usize && self.fits(len)
    }

    /// It is registered.
    #[inline(always)] // with every message
    pub fn are_registered(&self) -> bool {
        self.memory.is_registered()
    }

    /// Bytes of the ring, and whether they are registered.
    pub fn memory(&self) -> (usize, bool) {
        (self.memory.len(), self.are_registered())
    }

    /// Writes the pieces one behind the other: where, and what that is. There is room for them, and they are overwritten by the
    /// next call unless they are [kept](Self::keep).
    #[inline(always)] // with every message
    pub fn compose<const PIECES: usize>(&mut self, len: usize, pieces: [&[u8]; PIECES]) -> (Span, &[u8]) {
        let span = Span { start: self.end, len: len as u32 };
        let Some(mut room) = self.room_for(span) else { return (span, &[]) };
        lay_out(room.bytes(), pieces);
        (span, room.written().as_slice())
    }

    /// The same of a header and two pieces for which there is [room](Self::fits_long) here, for the device to read; they stay.
    #[inline(always)] // with every message
    pub fn compose_long(&mut self, header: [u8; HEADER_LEN], [head, body]: [&[u8]; 2]) -> Option<Part<'_>> {
        let span = Span { start: self.end, len: (HEADER_LEN + head.len() + body.len()) as u32 };
        self.keep(span);
        self.long = self.long.wrapping_sub(span.len);
        let mut room = self.room_for(span)?;
        lay_out(room.bytes(), [&header, head, body]);
        Some(room.written())
    }

    /// The same of a header and two pieces of at most [`SHORT`] bytes together; they stay.
    #[inline(always)] // with every message
    pub fn compose_headed(&mut self, header: [u8; HEADER_LEN], [head, body]: [&[u8]; 2]) -> &[u8] {
        let span = Span { start: self.end, len: (HEADER_LEN + head.len() + body.len()) as u32 };
        self.keep(span);
        let Some(mut room) = self.room_for(span) else { return &[] };
        let (first, rest) = room.bytes().split_at_mut(HEADER_LEN);
        let (second, third) = rest.split_at_mut(head.len());
        first.copy_from_slice(&header);
        copy_short(second, head);
        copy_short(third, body);
        room.written().as_slice()
    }

    /// Where this is to be written, for which room has been made.
    #[inline(always)] // with every message
    fn room_for(&mut self, span: Span) -> Option<Room<'_>> {
        let room = self.memory.room(self.at(span.start), span.len as usize);
        debug_assert!(room.is_some(), "room is made before anything is composed");
        room
    }

    /// What has just been composed stays.
    #[inline]
    pub fn keep(&mut self, span: Span) {
        self.end = span.start.wrapping_add(span.len);
        self.room -= span.len;
    }

    /// A copy that has been kept.
    pub fn get(&self, span: Span) -> &[u8] {
        self.memory.bytes(self.at(span.start), span.len as usize).unwrap_or_default()
    }

    /// Nothing is in flight: the ring begins anew.
    #[inline]
    pub fn restart(&mut self) {
        (self.end, self.room, self.long) = (0, self.memory.len() as u32, self.longest());
    }

    /// Bytes of messages that the device may read here at a time.
    #[inline]
    fn longest(&self) -> u32 {
        if self.are_registered() { self.memory.len() as u32 / 2 } else { 0 }
    }

    #[inline]
    fn at(&self, position: u32) -> usize {
        position as usize & self.memory.len().wrapping_sub(1)
    }

    /// Counts what is free in one piece at the end; the oldest copy is at `oldest`.
    pub fn count_room(&mut self, oldest: u32) {
        let ring = self.memory.len();
        let used = self.end.wrapping_sub(oldest) as usize;
        self.room = (ring - self.at(self.end).min(ring)).min(ring - used.min(ring)) as u32;
        self.long = self.longest().saturating_sub(used as u32);
    }

    /// So many bytes fit at the end: behind a gap, or in a larger ring. `oldest` is the position of the oldest copy, if there is
    /// one.
    #[cold]
    pub fn make_room(&mut self, oldest: Option<u32>, len: usize) {
        while !self.leave_gap(oldest, len, self.memory.len()) {
            let larger = (2 * self.memory.len()).max(Self::FIRST as usize);
            self.move_to(Outbox::unregistered(larger), oldest);
        }
    }

    /// The same of a message that the device reads here, if there is room for it.
    #[cold]
    pub fn make_long_room(&mut self, oldest: Option<u32>, len: usize) -> bool {
        self.leave_gap(oldest, len, self.longest() as usize)
    }

    /// So many bytes fit at the end, behind a gap where they would be cut in two, and with those that are in flight they are no more than `most`.
    fn leave_gap(&mut self, oldest: Option<u32>, len: usize, most: usize) -> bool {
        let ring = self.memory.len();
        let to_end = ring - self.at(self.end).min(ring);
        let gap = if len <= to_end { 0 } else { to_end };
        let used = oldest.map_or(0, |oldest| self.end.wrapping_sub(oldest)) as usize;
        let fits = used + gap + len <= most;
        if fits {
            self.end = self.end.wrapping_add(gap as u32);
            self.count_room(oldest.unwrap_or(self.end));
        }
        fits
    }

    /// The copies are in these bytes from now on, a power of two and no fewer than before. A position stays where it is modulo the old size, so each copy
    /// is in the new ring where its position says: what is in one piece stays in one piece.
    pub fn move_to(&mut self, mut memory: Outbox, oldest: Option<u32>) {
        let (room, mask) = (self.memory.len(), memory.len() - 1);
        debug_assert!(memory.len().is_power_of_two() && memory.len() >= room, "{} bytes", memory.len());
        let mut position = oldest.unwrap_or(self.end);
        while position != self.end {
            let left = self.end.wrapping_sub(position) as usize;
            let piece = left.min(room - self.at(position));
            let from = self.memory.bytes(self.at(position), piece).unwrap_or_default();
            if let Some(mut to) = memory.room(position as usize & mask, piece) {
                to.bytes().copy_from_slice(from);
            }
            position = position.wrapping_add(piece as u32);
        }
        self.memory = memory;
        self.count_room(oldest.unwrap_or(self.end));
    }
}

/// Copies pieces, which are as many bytes, one behind the other.
#[inline(always)] // with every message
fn lay_out<const PIECES: usize>(mut bytes: &mut [u8], pieces: [&[u8]; PIECES]) {
    for piece in pieces {
        let (to, behind) = bytes.split_at_mut(piece.len());
        copy(to, piece);
        bytes = behind;
    }
}

/// Copies a piece: one of up to [`SHORT`] bytes by two words that may overlap, which costs less than a call.
#[inline(always)] // with every message
pub fn copy(to: &mut [u8], piece: &[u8]) {
    if piece.len() > SHORT {
        return to.copy_from_slice(piece);
    }
    copy_short(to, piece);
}

/// The same of up to [`SHORT`] bytes. No call is made, so that all registers stay what they are.
#[inline(always)] // with every message
pub fn copy_short(to: &mut [u8], piece: &[u8]) {
    debug_assert!(to.len() == piece.len() && piece.len() <= SHORT);
    match piece.len() {
        8..=16 => copy_ends::<8>(to, piece),
        17..=32 => copy_ends::<16>(to, piece),
        33..=64 => copy_ends::<32>(to, piece),
        65.. => copy_ends::<64>(to, piece),
        4..8 => copy_ends::<4>(to, piece),
        2..4 => copy_ends::<2>(to, piece),
        _ => copy_ends::<1>(to, piece),
    }
}

#[inline(always)]
fn copy_ends<const WORD: usize>(to: &mut [u8], piece: &[u8]) {
    if let (Some(to), Some(first)) = (to.first_chunk_mut::<WORD>(), piece.first_chunk()) {
        *to = *first;
    }
    if let (Some(to), Some(last)) = (to.last_chunk_mut::<WORD>(), piece.last_chunk()) {
        *to = *last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::{Arc, OnceLock};
    use verbs::{Cq, Driver, Pd, Qp, QpCap, QpInit, QpKind};

    /// One that nothing is posted to.
    fn queue_pair() -> &'static Arc<Qp> {
        static QUEUE_PAIR: OnceLock<Arc<Qp>> = OnceLock::new();
        QUEUE_PAIR.get_or_init(|| {
            let context = Driver::from_table(softib::driver_table()).devices().unwrap()[0].open().unwrap();
            let (pd, cq) = (Pd::alloc(&context).unwrap(), Cq::create(&context, 8, None).unwrap());
            let cap =
                QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
            let (send_cq, recv_cq) = (cq.clone(), cq);
            let init = QpInit { kind: QpKind::Rc, send_cq, recv_cq, srq: None, cap, sig_all: false };
            Qp::create(&pd, &init).unwrap()
        })
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// An inline message of so many bytes.
        Inline(usize),
        /// One that the device reads here, if there is room.
        Long(usize),
        /// The oldest has completed.
        Complete,
        /// The ring is registered from now on, or twice as large.
        Register,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            20 => (1..700_usize).prop_map(Step::Inline),
            20 => (HEADER_LEN..1500_usize).prop_map(Step::Long),
            30 => Just(Step::Complete),
            1 => Just(Step::Register),
        ]
    }

    /// The ring, and what is in it, oldest first; of long ones it is said.
    struct Trial {
        copies: Copies,
        kept: VecDeque<(Span, Vec<u8>, bool)>,
    }

    impl Trial {
        fn oldest(&self) -> Option<u32> {
            self.kept.front().map(|(span, ..)| span.start)
        }

        fn inline(&mut self, message: &[u8]) -> Span {
            if !self.copies.fits(message.len()) {
                self.copies.make_room(self.oldest(), message.len());
            }
            let (head, body) = message.split_at(message.len().min(8));
            let (span, composed) = self.copies.compose(message.len(), [head, body]);
            assert_eq!(composed, message);
            self.copies.keep(span);
            span
        }

        fn long(&mut self, message: &[u8]) -> Option<Span> {
            let has_room = self.copies.fits_long(message.len())
                || self.copies.make_long_room(self.oldest(), message.len());
            let (header, rest) = message.split_first_chunk().expect("a header");
            let (head, body) = rest.split_at(rest.len().min(14));
            has_room.then(|| {
                let span = Span { start: self.copies.end(), len: message.len() as u32 };
                let part = self.copies.compose_long(*header, [head, body]).expect("there is room");
                assert_eq!(part.as_slice(), message);
                span
            })
        }

        fn step(&mut self, number: usize, step: Step) {
            let message = |len| (0..len).map(|at| (7 * number + at) as u8).collect::<Vec<u8>>();
            match step {
                Step::Inline(len) => {
                    let message = message(len);
                    let span = self.inline(&message);
                    self.kept.push_back((span, message, false));
                }
                Step::Long(len) => {
                    let message = message(len);
                    let span = self.long(&message);
                    self.kept.extend(span.map(|span| (span, message, true)));
                }
                Step::Complete => {
                    self.kept.pop_front();
                    match self.oldest() {
                        Some(oldest) => self.copies.count_room(oldest),
                        None => self.copies.restart(),
                    }
                }
                Step::Register => {
                    let (bytes, _) = self.copies.memory();
                    let larger = Outbox::registered(queue_pair(), (2 * bytes).max(1024)).unwrap();
                    self.copies.move_to(larger, self.oldest());
                }
            }
        }

        fn check(&self) {
            for (span, message, _) in &self.kept {
                assert_eq!(self.copies.get(*span), &message[..]);
            }
            let (bytes, is_registered) = self.copies.memory();
            let long: usize =
                self.kept.iter().filter(|kept| kept.2).map(|(_, message, _)| message.len()).sum();
            assert!(!is_registered || long <= bytes / 2, "{long} of {bytes} bytes");
        }
    }

    proptest! {
        /// Messages come and go in order, and the ring grows under them: each is what was written until it has gone.
        #[test]
        fn a_copy_is_what_was_kept_until_it_is_the_oldest_and_goes(
            start in prop_oneof![Just(0), any::<u32>()],
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let mut trial = Trial { copies: Copies { end: start, ..Copies::default() }, kept: VecDeque::new() };
            for (number, step) in steps.into_iter().enumerate() {
                trial.step(number, step);
                trial.check();
            }
        }
    }
}
