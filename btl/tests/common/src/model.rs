//! What must arrive: per sender, receiver and queue of the layout, each message once, in order,
//! intact. What goes into rings is of the first queue.

use super::rng::Rng;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;

/// A message that can be written down again from its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub id: u64,
    pub len: usize,
    pub tag: u8,
}

impl Message {
    /// Writes its bytes.
    pub fn fill(&self, out: &mut [u8]) {
        let mut rng = Rng::new(self.id << 20 | self.len as u64);
        for chunk in out.chunks_mut(8) {
            let bytes = rng.word().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }

    /// Whether these are its bytes.
    pub fn is(&self, bytes: &[u8]) -> bool {
        let mut mine = vec![0; self.len];
        self.fill(&mut mine);
        mine == bytes
    }
}

/// Sender, receiver, queue.
pub type Stream = (usize, usize, usize);

#[derive(Debug)]
struct Expected {
    message: Message,
    /// Its connection was taken down while it was under way: it arrives before everything that was
    /// sent later, or not at all.
    may_be_lost: bool,
}

#[derive(Debug, Default)]
pub struct Model {
    expected: HashMap<Stream, VecDeque<Expected>>,
    next: u64,
    /// Pairs of sides, the lower first, between which anything may be lost.
    pub unsure: BTreeSet<(usize, usize)>,
    /// Messages that have arrived.
    pub arrived: u64,
}

impl Model {
    /// A new message. Its tag tells neighbours apart where the bytes are too few to; the two top
    /// bits are the caller's.
    pub fn message(&mut self, len: usize, flag: u8) -> Message {
        self.next += 1;
        Message { id: self.next, len, tag: (self.next % 63) as u8 | flag }
    }

    pub fn expect(&mut self, stream: Stream, message: Message) {
        let may_be_lost = self.unsure.contains(&(stream.0.min(stream.1), stream.0.max(stream.1)));
        self.expected.entry(stream).or_default().push_back(Expected { message, may_be_lost });
    }

    /// It is the next of this stream that is not lost.
    pub fn is_next(&self, stream: Stream, tag: u8, payload: &[u8]) -> bool {
        let is_it = |e: &Expected| e.message.tag == tag && e.message.is(payload);
        let next = |expected: &VecDeque<Expected>| {
            expected.iter().find(|e| !e.may_be_lost || is_it(e)).is_some_and(is_it)
        };
        self.expected.get(&stream).is_some_and(next)
    }

    /// A message came: it must be the next of its stream that is not lost.
    pub fn arrived(&mut self, stream: Stream, tag: u8, payload: &[u8]) {
        let expected = self.expected.entry(stream).or_default();
        let is_it = |message: &Message| message.tag == tag && message.is(payload);
        while expected.front().is_some_and(|e| e.may_be_lost && !is_it(&e.message)) {
            expected.pop_front();
        }
        let next = expected.pop_front().map(|e| e.message);
        let next = next.unwrap_or_else(|| panic!("{stream:?}: {} bytes too much", payload.len()));
        assert_eq!((tag, payload.len()), (next.tag, next.len), "{stream:?}: not {next:?} but another");
        assert!(next.is(payload), "{stream:?}: {next:?} was changed on its way");
        self.arrived += 1;
    }

    /// Nothing that is sure to come is still to come.
    pub fn is_empty(&self) -> bool {
        self.expected.values().flatten().all(|e| e.may_be_lost)
    }

    /// Messages that have not arrived from `from` at `to`.
    pub fn missing(&self, from: usize, to: usize) -> usize {
        let of = |(stream, _): &(&Stream, &VecDeque<Expected>)| (stream.0, stream.1) == (from, to);
        self.expected.iter().filter(of).map(|(_, expected)| missing(expected)).sum()
    }

    /// The sender took its end down, the receiver kept its own: what was under way may come, or not.
    pub fn may_lose(&mut self, from: usize, to: usize) {
        let of = |(stream, _): &(&Stream, &mut VecDeque<Expected>)| (stream.0, stream.1) == (from, to);
        self.expected.iter_mut().filter(of).flat_map(|(_, e)| e).for_each(|e| e.may_be_lost = true);
    }

    /// The receiver took its end down: what was under way will not come.
    pub fn forget(&mut self, from: usize, to: usize) {
        self.expected.retain(|stream, _| (stream.0, stream.1) != (from, to));
    }
}

fn missing(expected: &VecDeque<Expected>) -> usize {
    expected.iter().filter(|e| !e.may_be_lost).count()
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} arrived", self.arrived)?;
        for (stream, expected) in self.expected.iter().filter(|(_, e)| missing(e) > 0) {
            write!(f, ", {} missing on {stream:?}", missing(expected))?;
        }
        Ok(())
    }
}
