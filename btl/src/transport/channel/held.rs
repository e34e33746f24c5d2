//! What the lines of a ledger give back.
#![forbid(unsafe_code)]

use crate::protocol::atomic::Atomic;
use crate::transport::port::buffer::SendBuf;
use verbs::{Buf, Posted, RKey, RdmaOp, Sge};

/// One connection of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// Position of the endpoint in the transport's table.
    pub index: u32,
    /// Which connection of that position.
    pub epoch: u32,
}

/// What the upper layer wants done to a peer's memory.
#[derive(Debug)]
pub enum Operation<C> {
    /// A read or write.
    Rdma(Rdma<C>),
    /// An atomic, with the buffer that the value before comes into.
    Atomic { fetch: Box<Fetch<C>>, buf: Buf },
}

/// A read or write of a peer's memory.
#[derive(Debug)]
pub struct Rdma<C> {
    /// Read or write.
    pub op: RdmaOp,
    /// Local memory.
    pub local: Sge,
    /// Remote address and key.
    pub remote: (u64, RKey),
    /// The upper layer's callback.
    pub cookie: C,
}

/// An atomic change of a word of a peer's.
#[derive(Debug)]
pub struct Fetch<C> {
    /// What becomes of the word.
    pub atomic: Atomic,
    /// Remote address and key.
    pub remote: (u64, RKey),
    /// The upper layer's callback.
    pub cookie: C,
}

impl<C> Operation<C> {
    /// It takes one of the reads and atomics that a queue pair may have outstanding.
    #[inline]
    pub fn fetches(&self) -> bool {
        match self {
            Operation::Rdma(rdma) => rdma.op == RdmaOp::Read,
            Operation::Atomic { .. } => true,
        }
    }
}

/// What a line gives back, and for which connection and queue of the layout.
#[derive(Debug)]
pub enum Held<C> {
    /// A send buffer with `total` bytes of message, and whose share of the pool it is.
    Message { to: Connection, queue: u8, buf: Posted, share: Option<u32>, total: u32 },
    /// A read or write with its callback.
    Rdma { to: Connection, queue: u8, rdma: Rdma<C> },
    /// An atomic with its callback.
    Atomic { to: Connection, queue: u8, buf: Posted, fetch: Box<Fetch<C>> },
}

impl<C> Held<C> {
    /// The connection that it was posted for, and the queue of the layout.
    pub fn target(&self) -> (Connection, usize) {
        match self {
            Held::Message { to, queue, .. }
            | Held::Rdma { to, queue, .. }
            | Held::Atomic { to, queue, .. } => (*to, usize::from(*queue)),
        }
    }
}

/// What a work request carried that could not be posted.
#[derive(Debug)]
pub enum Unposted<C> {
    /// Inline data, which is still its sender's.
    Nothing,
    /// A message.
    Message(SendBuf),
    /// An operation.
    Operation(Operation<C>),
}

/// A work request that the device did not take.
#[derive(Debug)]
pub struct Refused<C> {
    /// Why.
    pub error: verbs::Error,
    /// What it carried.
    pub unposted: Unposted<C>,
}

impl<C> Refused<C> {
    #[cold]
    pub(super) fn new(error: verbs::Error, unposted: Unposted<C>) -> Box<Refused<C>> {
        Box::new(Refused { error, unposted })
    }
}
