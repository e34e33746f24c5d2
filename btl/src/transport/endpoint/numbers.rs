//! X queues: the label that a peer's messages carry, and their numbers.
#![forbid(unsafe_code)]

use super::EpId;
use crate::protocol::wire::{HEADER_LEN, Kind, XrcHeader};

/// Peers that a label can name.
pub const MOST_PEERS: usize = 1 << 16;

/// What a peer's messages to us have to call themselves: the endpoint's index (16 bits) and the low
/// 8 bits of its generation.
pub fn label(id: EpId) -> u32 {
    id.index & 0xffff | (id.generation & 0xff) << 16
}

/// The endpoint's index in a label, and the low bits of its generation.
pub fn of_label(label: u32) -> (u32, u8) {
    (label & 0xffff, (label >> 16) as u8)
}

/// The two counts of an endpoint, modulo 2^16: more than can be in flight to one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Of the next message to the peer.
    pub next: u16,
    /// Of the next message from it.
    pub expected: u16,
}

/// What a message's number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is the next one.
    Next,
    /// It has come before.
    Again,
    /// One before it has not come: it never will.
    Gap,
}

impl Numbers {
    /// Gives the next message to the peer, of this kind and over this X queue, its number.
    pub fn stamp(&mut self, kind: Kind, queue: u8, message: &mut [u8]) {
        if let Some(head) = message.first_chunk_mut::<HEADER_LEN>() {
            *head = XrcHeader::new(head[0], queue, 0, self.take()).of_kind(kind).emit();
        }
    }

    /// The number of the next message to the peer, which takes it.
    #[inline]
    pub fn take(&mut self) -> u16 {
        let number = self.next;
        self.next = number.wrapping_add(1);
        number
    }

    /// A message with this number has come.
    pub fn arrived(&mut self, number: u16) -> Arrival {
        match number.wrapping_sub(self.expected) {
            0 => {
                self.expected = self.expected.wrapping_add(1);
                Arrival::Next
            }
            ahead if ahead < 1 << 15 => Arrival::Gap,
            _ => Arrival::Again,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_label_survives_its_way_through_a_header(index in 0..1_u32 << 16, generation in 0..1_u32 << 24) {
            let (found, low) = of_label(label(EpId { index, generation }));
            prop_assert_eq!((found, u32::from(low)), (index, generation & 0xff));
        }
    }

    #[test]
    fn a_message_that_comes_again_is_known_by_its_number() {
        let mut numbers = Numbers { next: 0, expected: 65_534 };
        for number in [65_534, 65_535, 0, 1] {
            assert_eq!(numbers.arrived(number), Arrival::Next);
            assert_eq!(numbers.arrived(number), Arrival::Again);
            assert_eq!(numbers.arrived(65_534), Arrival::Again);
        }
        assert_eq!((numbers.arrived(3), numbers.arrived(2)), (Arrival::Gap, Arrival::Next));
    }
}
