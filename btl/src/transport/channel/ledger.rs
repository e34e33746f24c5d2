//! The ledger of a queue pair: one line for each send work request that has not completed, in
//! posting order.
//!
//! ```text
//!   lines   [ .. | oldest | line | line | line | .. ]   a ring, at most as deep as the send queue
//!                  head                    tail
//! ```
//! A queue pair completes in posting order (IBTA 10.8.5), so a completion retires its line and all
//! before it: `head` is the high-water mark. A line that is not signalled has no completion of its own
//! unless it fails or is flushed. Lines are counted modulo 2^16; a count is the line's part of the work request id:
//!
//! ```text
//!   RC    63..60 kind | 59..56 queue | 55..40 line | 39..24 epoch (low bits) | 23..0 endpoint
//!   XRC   63..60 kind |              | 55..40 line |                           31..0 path
//! ```
//! The ring is allocated when the queue pair is there, and doubled when it is full. A line is small, so that the ring of a queue
//! stays in the cache; buffers and operations are in a slab, under the key that the line has. Inline messages are composed in the
//! ledger ([`Copies`]) and stay there until their lines are retired, so that they can be sent again over another connection. So are longer ones
//! that the device reads there, if the ledger is given [memory](Ledger::send_from) for that: their lines hold nothing else, either.
#![forbid(unsafe_code)]

use super::copies::{Copies, Span};
use crate::protocol::wire::HEADER_LEN;
use verbs::{Outbox, Part};

/// A send over a queue pair of the peer's own; receives have other kinds (`wrid`).
const SEND: u64 = 4;

/// A send over an XRC send queue pair.
const SEND_XRC: u64 = 8;

const LINE: u32 = verbs::SEND_COUNT;

/// Names a line of one ledger of the transport: the id of its work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineId(pub u64);

impl LineId {
    /// The first line of queue `queue` to the endpoint at `index`, in its epoch `epoch`.
    pub fn of_lane(index: u32, epoch: u32, queue: usize) -> LineId {
        debug_assert!(index < 1 << 24 && queue < 16);
        let epoch = u64::from(epoch & 0xffff) << 24;
        LineId(SEND << 60 | (queue as u64) << 56 | epoch | u64::from(index & 0x00ff_ffff))
    }

    /// The first line of an XRC send queue pair.
    pub fn of_path(path: u32) -> LineId {
        LineId(SEND_XRC << 60 | u64::from(path))
    }

    /// The id of line `line` of this ledger.
    #[inline]
    pub fn of_line(self, line: u16) -> LineId {
        LineId(self.0 | u64::from(line) << LINE)
    }

    /// Both are of one ledger; `self` is its first line.
    #[inline]
    pub fn is_of(self, other: LineId) -> bool {
        self.0 == other.0 & !(0xffff << LINE)
    }

    /// The path, if it is of an XRC send queue pair.
    #[inline]
    pub fn path(self) -> Option<u32> {
        (self.0 >> 60 == SEND_XRC).then_some(self.0 as u32)
    }

    /// Index of the endpoint.
    #[inline]
    pub fn index(self) -> u32 {
        self.0 as u32 & 0x00ff_ffff
    }

    /// Queue of the layout.
    #[inline]
    pub fn queue(self) -> usize {
        (self.0 >> 56) as usize & 0xf
    }

    /// The line.
    #[inline]
    pub fn line(self) -> u16 {
        (self.0 >> LINE) as u16
    }
}

/// One send work request: whether a completion of its own comes, and what it gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// What it gives back, and whether it is signalled (the highest bit).
    what: u32,
    /// Where the copy of an inline message begins; of another request, where the next one does.
    start: u32,
}

/// What a line gives back, besides its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivesBack {
    /// A message that was sent inline or from its copy here, which is empty if it was gathered: nothing.
    Inline(Span),
    /// A request without data, behind others that have no completion: nothing.
    Marker,
    /// A request without data, to hear whether the peer is there: nothing.
    Probe,
    /// What is held under this key.
    Held(u32),
}

impl Line {
    const SIGNALLED: u32 = 1 << 31;
    /// From here on: inline messages, with their lengths.
    const INLINE: u32 = Line::SIGNALLED - 1 - Copies::LONGEST;
    const MARKER: u32 = Line::INLINE - 1;
    const PROBE: u32 = Line::INLINE - 2;

    /// A request that gives this back; the copy of the next inline message begins at `next`.
    #[inline]
    fn new(gives_back: GivesBack, signalled: bool, next: u32) -> Line {
        let (low, start) = match gives_back {
            GivesBack::Inline(Span { start, len }) => (Line::INLINE + len, start),
            GivesBack::Marker => (Line::MARKER, next),
            GivesBack::Probe => (Line::PROBE, next),
            GivesBack::Held(key) => (key, next),
        };
        debug_assert!(low < Line::SIGNALLED, "more is held than a line can name");
        Line { what: low | if signalled { Line::SIGNALLED } else { 0 }, start }
    }

    /// A completion comes for it even if it succeeds.
    #[inline]
    pub fn is_signalled(self) -> bool {
        self.what & Line::SIGNALLED != 0
    }

    #[inline]
    fn is_inline(self) -> bool {
        self.what & !Line::SIGNALLED >= Line::INLINE
    }

    /// What it gives back.
    #[inline]
    pub fn gives_back(self) -> GivesBack {
        match self.what & !Line::SIGNALLED {
            Line::MARKER => GivesBack::Marker,
            Line::PROBE => GivesBack::Probe,
            low if low >= Line::INLINE => {
                GivesBack::Inline(Span { start: self.start, len: low - Line::INLINE })
            }
            key => GivesBack::Held(key),
        }
    }
}

fn unused(room: usize) -> Box<[Line]> {
    vec![Line::new(GivesBack::Marker, false, 0); room].into()
}

/// The lines of one queue pair.
#[derive(Debug)]
pub struct Ledger {
    lines: Box<[Line]>,
    head: u16,
    tail: u16,
    /// Lines that are not inline messages.
    others: u16,
    /// Lines behind the last signalled one.
    unsignalled: u16,
    /// Lines that are known to be free.
    spare: u16,
    /// Of the inline messages among them.
    copies: Copies,
}

impl Ledger {
    /// Lines that there is room for at first.
    const FIRST: u32 = 8;

    /// For a send queue of `depth` entries.
    pub fn with_depth(depth: u32) -> Ledger {
        let room = depth.clamp(1, Self::FIRST).next_power_of_two();
        Ledger {
            lines: unused(room as usize),
            head: 0,
            tail: 0,
            others: 0,
            unsignalled: 0,
            spare: room as u16,
            copies: Copies::default(),
        }
    }

    /// Counts the lines that are free, of twice as many if there are none.
    #[cold]
    fn make_lines(&mut self) {
        if self.len() == self.lines.len() {
            self.grow();
        }
        self.count_room();
    }

    /// Makes room for as many lines again. Each keeps its count, so its place is another one.
    #[cold]
    fn grow(&mut self) {
        let mut lines = unused(2 * self.lines.len());
        for behind in 0..self.len() {
            let line = self.head.wrapping_add(behind as u16);
            lines[usize::from(line) & (lines.len() - 1)] = self.lines[self.place(line)];
        }
        self.lines = lines;
    }

    #[inline]
    fn place(&self, line: u16) -> usize {
        usize::from(line) & (self.lines.len() - 1)
    }

    /// The next line to be written.
    #[inline]
    pub fn next(&self) -> u16 {
        self.tail
    }

    /// Work requests that have not completed.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.tail.wrapping_sub(self.head))
    }

    /// Everything has completed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tail == self.head
    }

    /// Work requests that were posted behind the last signalled one.
    #[inline]
    pub fn unsignalled(&self) -> u16 {
        self.unsignalled
    }

    /// The last work request has not completed, and no completion says when it has.
    pub fn ends_unsignalled(&self) -> bool {
        self.unsignalled != 0 && !self.is_empty()
    }

    /// Copies the pieces of an inline message, one behind the other: what is to be posted. It stays with the
    /// next line, if that is of this message.
    #[inline(always)] // with every message
    pub fn compose<const PIECES: usize>(&mut self, pieces: [&[u8]; PIECES]) -> (Span, &[u8]) {
        let len = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        if !self.copies.fits(len) {
            self.make_room(len);
        }
        self.copies.compose(len, pieces)
    }

    /// Makes room for one more line, and for a copy of so many bytes, if there is none.
    #[inline(always)] // with every message
    pub fn ensure_room(&mut self, len: usize) {
        if self.spare == 0 || !self.copies.fits(len) {
            self.make_room_for_next(len);
        }
    }

    #[cold]
    fn make_room_for_next(&mut self, len: usize) {
        if self.spare == 0 {
            self.make_lines();
        }
        if !self.copies.fits(len) {
            self.make_room(len);
        }
    }

    /// Composes an inline message of a header and at most [`SHORT`](super::SHORT) bytes, for which there is
    /// [room](Self::ensure_room), and its line: what is to be posted.
    #[inline(always)] // with every message
    pub fn compose_next(&mut self, header: [u8; HEADER_LEN], pieces: [&[u8]; 2], signalled: bool) -> &[u8] {
        let len = HEADER_LEN + pieces[0].len() + pieces[1].len();
        self.note_next(len, signalled);
        self.copies.compose_headed(header, pieces)
    }

    /// Bytes for copies, and whether messages can be posted from there.
    pub fn memory(&self) -> (usize, bool) {
        self.copies.memory()
    }

    /// Copies are in this memory from now on, from which messages can be posted, too: a power of two of bytes, no fewer than [before](Self::memory).
    pub fn send_from(&mut self, memory: Outbox) {
        self.copies.move_to(memory, self.oldest_copy());
    }

    /// There is room for one more line, and for a copy of so many bytes that is posted from here.
    #[inline(always)] // with every message
    pub fn has_long_room(&mut self, len: usize) -> bool {
        self.spare != 0 && self.copies.fits_long(len)
            || self.copies.are_registered() && self.make_long_room(len)
    }

    #[cold]
    fn make_long_room(&mut self, len: usize) -> bool {
        if self.spare == 0 {
            self.make_lines();
        }
        self.copies.fits_long(len) || self.copies.make_long_room(self.oldest_copy(), len)
    }

    /// Composes a message of a header and two pieces, for which there is [room](Self::has_long_room), and its line: what is to be posted.
    #[inline(always)] // with every message
    pub fn compose_long(
        &mut self,
        header: [u8; HEADER_LEN],
        pieces: [&[u8]; 2],
        signalled: bool,
    ) -> Option<Part<'_>> {
        self.note_next(HEADER_LEN + pieces[0].len() + pieces[1].len(), signalled);
        self.copies.compose_long(header, pieces)
    }

    /// Writes the next line, for which there is room: of a message with the next copy, of so many bytes.
    #[inline(always)] // with every message
    fn note_next(&mut self, len: usize, signalled: bool) {
        let (place, start) = (self.place(self.tail), self.copies.end());
        self.spare -= 1;
        if let Some(room) = self.lines.get_mut(place) {
            *room = Line::new(GivesBack::Inline(Span { start, len: len as u32 }), signalled, start);
        }
    }

    /// What has been [composed](Self::compose_next) has been posted.
    #[inline(always)] // with every message
    pub fn push_next(&mut self, signalled: bool) {
        self.tail = self.tail.wrapping_add(1);
        self.unsignalled = if signalled { 0 } else { self.unsignalled + 1 };
    }

    #[cold]
    fn make_room(&mut self, len: usize) {
        self.copies.make_room(self.oldest_copy(), len);
    }

    /// Where the oldest copy is that may be needed.
    fn oldest_copy(&self) -> Option<u32> {
        if self.is_empty() { None } else { Some(self.lines[self.place(self.head)].start) }
    }

    /// The copy of an inline message whose line has just been retired.
    pub fn copy(&self, span: Span) -> &[u8] {
        self.copies.get(span)
    }

    /// Writes the next line: its work request has been posted.
    #[inline]
    pub fn push(&mut self, gives_back: GivesBack, signalled: bool) {
        match gives_back {
            GivesBack::Inline(span) => self.push_inline(span, signalled),
            other => self.push_other(other, signalled),
        }
    }

    /// The same of a message from a buffer, or of what is no message.
    #[inline(always)] // with every message
    fn push_other(&mut self, what: GivesBack, signalled: bool) {
        self.others += 1;
        self.write(Line::new(what, signalled, self.copies.end()), signalled);
    }

    /// The same of what is held under this key.
    #[inline(always)] // with every message
    pub fn push_held(&mut self, key: u32, signalled: bool) {
        self.push_other(GivesBack::Held(key), signalled);
    }

    /// The same of an inline message that has just been composed.
    #[inline(always)] // with every message
    pub fn push_inline(&mut self, span: Span, signalled: bool) {
        self.copies.keep(span);
        self.write(Line::new(GivesBack::Inline(span), signalled, span.start), signalled);
    }

    /// The same of an inline message of which there is no copy.
    #[inline(always)] // with every message
    pub fn push_uncopied(&mut self, signalled: bool) {
        self.push_inline(Span { start: self.copies.end(), len: 0 }, signalled);
    }

    /// The same of one for which there is [room](Self::ensure_room).
    #[inline(always)] // with every message
    pub fn push_uncopied_next(&mut self, signalled: bool) {
        self.note_next(0, signalled);
        self.push_next(signalled);
    }

    #[inline(always)] // with every message
    fn write(&mut self, line: Line, signalled: bool) {
        if self.spare == 0 {
            self.make_lines();
        }
        self.spare -= 1;
        let place = self.place(self.tail);
        if let Some(room) = self.lines.get_mut(place) {
            *room = line;
        }
        self.tail = self.tail.wrapping_add(1);
        self.unsignalled = if signalled { 0 } else { self.unsignalled + 1 };
    }

    /// The first line that has not completed is now this one.
    #[inline]
    fn advance(&mut self, head: u16) {
        self.head = head;
        if head == self.tail {
            self.copies.restart();
        }
    }

    /// Takes the lines up to `upto` off at once, if all that have not completed are inline messages:
    /// how many, and the last. A stale `upto` names none.
    #[inline]
    pub fn retire_inline(&mut self, upto: u16) -> Option<(u16, Line)> {
        let behind = upto.wrapping_sub(self.head);
        if self.others != 0 || usize::from(behind) >= self.len() {
            return None;
        }
        self.advance(upto.wrapping_add(1));
        self.count_room();
        Some((behind + 1, self.lines[self.place(upto)]))
    }

    /// What has come back is known to be free from now on.
    fn count_room(&mut self) {
        self.spare = u16::try_from(self.lines.len() - self.len()).unwrap_or(u16::MAX);
        if !self.is_empty() {
            let oldest = self.lines[self.place(self.head)].start;
            self.copies.count_room(oldest);
        }
    }

    /// The oldest line, if its work request is `upto` or was posted before that.
    #[inline]
    pub fn oldest(&self, upto: u16) -> Option<Line> {
        let behind = upto.wrapping_sub(self.head);
        (usize::from(behind) < self.len()).then(|| self.lines[self.place(self.head)])
    }

    /// What the work request `line` holds, if that is the oldest.
    #[inline]
    pub fn held_by_oldest(&self, line: u16) -> Option<u32> {
        if line != self.head || self.is_empty() {
            return None;
        }
        match self.lines[self.place(line)].gives_back() {
            GivesBack::Held(key) => Some(key),
            GivesBack::Inline(_) | GivesBack::Marker | GivesBack::Probe => None,
        }
    }

    /// Takes the oldest line off, if its work request is `upto` or was posted before that; and
    /// whether it is that one. A stale `upto` names none.
    #[inline]
    pub fn retire(&mut self, upto: u16) -> Option<(Line, bool)> {
        let behind = upto.wrapping_sub(self.head);
        if usize::from(behind) >= self.len() {
            return None;
        }
        let line = self.lines[self.place(self.head)];
        self.advance(self.head.wrapping_add(1));
        self.others -= u16::from(!line.is_inline());
        Some((line, behind == 0))
    }

    /// Takes the oldest line off: its queue pair is gone.
    pub fn forget(&mut self) -> Option<Line> {
        self.retire(self.head).map(|(line, _)| line)
    }
}

/// Every order of posts, completions, errors and flushes.
#[cfg(test)]
mod orders;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::channel::SHORT;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn a_completion_retires_its_line_and_all_before_it(
            depth in 1u32..70,
            steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>(), any::<[bool; 2]>()), 1..400),
        ) {
            let mut ledger = Ledger::with_depth(depth);
            // Counts wrap within the test.
            (ledger.head, ledger.tail) = (u16::MAX - 20, u16::MAX - 20);
            let mut model = VecDeque::new();
            for (key, (post, which, [inline, signalled])) in (0..).zip(steps) {
                let oldest = model.front().map(|(_, line, _)| *line);
                prop_assert_eq!(ledger.oldest(ledger.next().wrapping_sub(1)), oldest);
                for line in [ledger.head, ledger.head.wrapping_add(1), ledger.next()] {
                    let held = match oldest.filter(|_| line == ledger.head).map(Line::gives_back) {
                        Some(GivesBack::Held(key)) => Some(key),
                        _ => None,
                    };
                    prop_assert_eq!(ledger.held_by_oldest(line), held);
                }
                if post && model.len() < depth as usize {
                    let copy = vec![key as u8; 8 + which.index(180)];
                    let next = ledger.next();
                    let (header, pieces) = copy.split_first_chunk().expect("a header");
                    let straight = pieces.len() <= SHORT && which.index(3) != 0;
                    if inline && straight {
                        ledger.ensure_room(copy.len());
                        let pieces = pieces.split_at(pieces.len() / 3).into();
                        prop_assert_eq!(ledger.compose_next(*header, pieces, signalled), &copy[..]);
                        ledger.push_next(signalled);
                    } else {
                        let gives_back = match inline {
                            true => GivesBack::Inline(ledger.compose([&copy[..3], &copy[3..]]).0),
                            false => GivesBack::Held(key),
                        };
                        ledger.push(gives_back, signalled);
                        let line = ledger.lines[ledger.place(next)];
                        prop_assert_eq!((line.gives_back(), line.is_signalled()), (gives_back, signalled));
                    }
                    let line = ledger.lines[ledger.place(next)];
                    model.push_back((next, line, copy));
                } else if !model.is_empty() {
                    let count = which.index(model.len()) + 1;
                    let upto = model[count - 1].0;
                    for (_, line, copy) in &model {
                        if let GivesBack::Inline(span) = line.gives_back() {
                            prop_assert_eq!(ledger.copy(span), &copy[..]);
                        }
                    }
                    let all_inline = model.iter().all(|(_, line, _)| line.is_inline());
                    let at_once = ledger.retire_inline(upto);
                    prop_assert_eq!(at_once, all_inline.then(|| (count as u16, model[count - 1].1)));
                    let retired: Vec<_> = std::iter::from_fn(|| ledger.retire(upto)).collect();
                    let expected: Vec<_> = model.drain(..count).map(|(id, line, _)| (line, id == upto)).collect();
                    prop_assert_eq!(retired, if all_inline { Vec::new() } else { expected });
                    prop_assert_eq!(ledger.retire(upto), None, "a line is retired once");
                }
                let tail = model.iter().rev().take_while(|(_, line, _)| !line.is_signalled()).count();
                prop_assert_eq!(ledger.ends_unsignalled(), tail != 0);
                prop_assert!(usize::from(ledger.unsignalled()) >= tail);
                prop_assert_eq!(ledger.len(), model.len());
            }
        }

        #[test]
        fn every_part_of_an_id_comes_back(index in 0u32..1 << 24, epoch: u32, queue in 0usize..15, line: u16, path: u32) {
            let name = LineId::of_lane(index, epoch, queue);
            let id = name.of_line(line);
            prop_assert_eq!((id.index(), id.queue(), id.line(), id.path()), (index, queue, line, None));
            prop_assert!(name.is_of(id));
            prop_assert!(!LineId::of_lane(index, epoch.wrapping_add(1), queue).is_of(id));
            let over_xrc = LineId::of_path(path).of_line(line);
            prop_assert_eq!((over_xrc.path(), over_xrc.line()), (Some(path), line));
            prop_assert!(LineId::of_path(path).is_of(over_xrc) && !LineId::of_path(path).is_of(id));
        }
    }

    #[test]
    fn a_line_is_small() {
        assert_eq!(size_of::<Line>(), 8);
    }
}
