//! Copies of the inline messages that have not completed: a ring of bytes, in posting order.
//!
//! ```text
//!   bytes  [ .. | message | message |  gap  ] [ message | ..      a message is never cut in two
//!                 oldest                        end
//! ```
//! A message is composed here from its pieces and posted from here as one piece, so keeping it costs no other copy. While
//! nothing is in flight the ring begins anew, at bytes that are in the cache.
#![forbid(unsafe_code)]

use crate::protocol::wire::HEADER_LEN;

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
#[derive(Debug, Default)]
pub struct Copies {
    /// A power of two, or none before the first message.
    bytes: Box<[u8]>,
    /// Position of the next message.
    end: u32,
    /// Bytes from there on that are known to be free, and in one piece.
    room: u32,
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

    /// Writes the pieces one behind the other: where, and what that is. There is room for them, and they are overwritten by the
    /// next call unless they are [kept](Self::keep).
    #[inline(always)] // with every message
    pub fn compose<const PIECES: usize>(&mut self, len: usize, pieces: [&[u8]; PIECES]) -> (Span, &[u8]) {
        let at = self.at(self.end);
        let mut rest = &mut self.bytes[at..at + len];
        for piece in pieces {
            let (to, behind) = rest.split_at_mut(piece.len());
            copy(to, piece);
            rest = behind;
        }
        (Span { start: self.end, len: len as u32 }, &self.bytes[at..at + len])
    }

    /// The same of a header and two pieces of at most [`SHORT`] bytes together; they stay.
    #[inline(always)] // with every message
    pub fn compose_headed(&mut self, header: [u8; HEADER_LEN], [head, body]: [&[u8]; 2]) -> (Span, &[u8]) {
        let len = HEADER_LEN + head.len() + body.len();
        let span = Span { start: self.end, len: len as u32 };
        let at = self.at(self.end);
        self.keep(span);
        let whole = &mut self.bytes[at..at + len];
        let (first, rest) = whole.split_at_mut(HEADER_LEN);
        let (second, third) = rest.split_at_mut(head.len());
        first.copy_from_slice(&header);
        copy_short(second, head);
        copy_short(third, body);
        (span, whole)
    }

    /// What has just been composed stays.
    #[inline]
    pub fn keep(&mut self, span: Span) {
        self.end = span.start.wrapping_add(span.len);
        self.room -= span.len;
    }

    /// A copy that has been kept.
    pub fn get(&self, span: Span) -> &[u8] {
        let at = self.at(span.start);
        self.bytes.get(at..at + span.len as usize).unwrap_or_default()
    }

    /// Nothing is in flight: the ring begins anew.
    #[inline]
    pub fn restart(&mut self) {
        (self.end, self.room) = (0, self.bytes.len() as u32);
    }

    #[inline]
    fn at(&self, position: u32) -> usize {
        position as usize & self.bytes.len().wrapping_sub(1)
    }

    /// Counts what is free in one piece at the end; the oldest copy is at `oldest`.
    pub fn count_room(&mut self, oldest: u32) {
        let ring = self.bytes.len();
        let used = self.end.wrapping_sub(oldest) as usize;
        self.room = (ring - self.at(self.end).min(ring)).min(ring - used.min(ring)) as u32;
    }

    /// So many bytes fit at the end: behind a gap, or in a larger ring. `oldest` is the position of the oldest copy, if there is
    /// one.
    #[cold]
    pub fn make_room(&mut self, oldest: Option<u32>, len: usize) {
        loop {
            let ring = self.bytes.len();
            let to_end = ring - self.at(self.end).min(ring);
            let gap = if len <= to_end { 0 } else { to_end };
            let used = oldest.map_or(0, |oldest| self.end.wrapping_sub(oldest)) as usize;
            if used + gap + len <= ring {
                self.end = self.end.wrapping_add(gap as u32);
                return self.count_room(oldest.unwrap_or(self.end));
            }
            self.grow(oldest);
        }
    }

    /// Twice as large. A position stays where it is modulo the old size, so each copy is in the new ring where its
    /// position says: what is in one piece stays in one piece.
    fn grow(&mut self, oldest: Option<u32>) {
        let room = self.bytes.len();
        let mut bytes = vec![0; (2 * room).max(Self::FIRST as usize)].into_boxed_slice();
        let mask = bytes.len() - 1;
        let mut position = oldest.unwrap_or(self.end);
        while position != self.end {
            let left = self.end.wrapping_sub(position) as usize;
            let piece = left.min(room - self.at(position));
            let (from, to) = (self.at(position), position as usize & mask);
            bytes[to..to + piece].copy_from_slice(&self.bytes[from..from + piece]);
            position = position.wrapping_add(piece as u32);
        }
        self.bytes = bytes;
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

    proptest! {
        /// Messages come and go in order, and the ring grows under them: each is what was written until it has gone.
        #[test]
        fn a_copy_is_what_was_kept_until_it_is_the_oldest_and_goes(
            start in prop_oneof![Just(0), any::<u32>()],
            steps in prop::collection::vec(prop_oneof![3 => (1..700_usize).prop_map(Some), 2 => Just(None)], 1..120),
        ) {
            let (mut copies, mut kept) = (Copies { end: start, ..Copies::default() }, VecDeque::new());
            for (step, len) in steps.into_iter().enumerate() {
                let Some(len) = len else {
                    kept.pop_front();
                    if kept.is_empty() {
                        copies.restart();
                    }
                    continue;
                };
                if !copies.fits(len) {
                    copies.make_room(kept.front().map(|(span, _): &(Span, Vec<u8>)| span.start), len);
                }
                let message: Vec<u8> = (0..len).map(|at| (7 * step + at) as u8).collect();
                let (head, body) = message.split_at(len.min(8));
                let (span, _) = copies.compose(len, [head, body]);
                copies.keep(span);
                kept.push_back((span, message));
                for (span, message) in &kept {
                    prop_assert_eq!(copies.get(*span), &message[..]);
                }
            }
        }
    }
}
