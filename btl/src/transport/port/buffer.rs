//! A send buffer on its way between its pool, the upper layer and the device.
#![forbid(unsafe_code)]

use crate::protocol::wire::{HEADER_LEN, Kind, counted};
use verbs::Buf;

/// A send buffer of one queue's class: fill `payload`, then `Transport::send` it.
#[derive(Debug)]
pub struct SendBuf {
    pub(crate) buf: Buf,
    pub(crate) class: u8,
    /// The peer whose share of the pool this is; none for a buffer beyond the limit.
    pub(crate) share: Option<u32>,
}

impl SendBuf {
    /// Where the payload goes; the header's room is in front of it.
    pub fn payload(&mut self) -> &mut [u8] {
        &mut self.buf.as_mut_slice()[HEADER_LEN..]
    }

    /// Payload bytes that fit.
    pub fn capacity(&self) -> usize {
        self.buf.capacity() as usize - HEADER_LEN
    }
}

/// A message that could not go out at once. Its sender has been told that it is done: the data is
/// ours now.
#[derive(Debug)]
pub struct Queued {
    /// Room for the header, then the payload.
    pub buf: SendBuf,
    /// Length of the payload in bytes.
    pub len: u32,
    /// Upper layer's tag.
    pub tag: u8,
    /// A receive callback sent it.
    pub is_answer: bool,
    /// The upper layer's, or one of our own without payload.
    pub kind: Kind,
}

impl Queued {
    /// A message with its header, `total` bytes in all, that has been sent and is to be sent again. The buffer comes back if it is
    /// none that is counted, but one of our own for the connection that it went over.
    ///
    /// # Errors
    /// As said.
    pub fn again(buf: SendBuf, total: u32) -> Result<Queued, SendBuf> {
        let head = buf.buf.as_slice().first_chunk().copied().unwrap_or_default();
        let (Some((kind, tag)), Some(len)) = (counted(head), total.checked_sub(HEADER_LEN as u32)) else {
            return Err(buf);
        };
        Ok(Queued { buf, len, tag, is_answer: false, kind })
    }
}
