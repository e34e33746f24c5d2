//! What must arrive: per sender, receiver and queue of the layout, each message once, in order,
//! intact.

use super::rng::Rng;
use std::collections::{HashMap, VecDeque};
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
            let bytes = rng.next().to_le_bytes();
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

#[derive(Debug, Default)]
pub struct Model {
    expected: HashMap<Stream, VecDeque<Message>>,
    next: u64,
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
        self.expected.entry(stream).or_default().push_back(message);
    }

    /// A message came: it must be the next of its stream.
    pub fn arrived(&mut self, stream: Stream, tag: u8, payload: &[u8]) {
        let next = self.expected.get_mut(&stream).and_then(VecDeque::pop_front);
        let next = next.unwrap_or_else(|| panic!("{stream:?}: {} bytes too much", payload.len()));
        assert_eq!((tag, payload.len()), (next.tag, next.len), "{stream:?}: not {next:?} but another");
        assert!(next.is(payload), "{stream:?}: {next:?} was changed on its way");
        self.arrived += 1;
    }

    pub fn is_empty(&self) -> bool {
        self.expected.values().all(VecDeque::is_empty)
    }

    /// Messages that have not arrived from `from` at `to`.
    pub fn missing(&self, from: usize, to: usize) -> usize {
        let of = |(stream, _): &(&Stream, &VecDeque<Message>)| (stream.0, stream.1) == (from, to);
        self.expected.iter().filter(of).map(|(_, messages)| messages.len()).sum()
    }

    /// The connection was taken down: what was under way will not come.
    pub fn forget(&mut self, from: usize, to: usize) {
        self.expected.retain(|stream, _| (stream.0, stream.1) != (from, to));
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} arrived", self.arrived)?;
        for (stream, messages) in self.expected.iter().filter(|(_, m)| !m.is_empty()) {
            write!(f, ", {} missing on {stream:?}", messages.len())?;
        }
        Ok(())
    }
}
