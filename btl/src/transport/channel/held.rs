//! What the lines of a ledger give back.
#![forbid(unsafe_code)]

use crate::transport::port::buffer::SendBuf;
use verbs::{Posted, RKey, RdmaOp, Sge};

/// One connection of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// Position of the endpoint in the transport's table.
    pub index: u32,
    /// Which connection of that position.
    pub epoch: u32,
}

/// A read or write of a peer's memory for the upper layer.
#[derive(Debug)]
pub struct Operation<C> {
    /// Read or write.
    pub op: RdmaOp,
    /// Local memory.
    pub local: Sge,
    /// Remote address and key.
    pub remote: (u64, RKey),
    /// The upper layer's callback.
    pub cookie: C,
}

/// What a line gives back, and for which connection and queue of the layout.
#[derive(Debug)]
pub enum Held<C> {
    /// A send buffer with `total` bytes of message, and whose share of the pool it is.
    Message { to: Connection, queue: u8, buf: Posted, share: Option<u32>, total: u32 },
    /// An operation with its callback.
    Operation { to: Connection, queue: u8, operation: Operation<C> },
}

impl<C> Held<C> {
    /// The connection that it was posted for, and the queue of the layout.
    pub fn target(&self) -> (Connection, usize) {
        match self {
            Held::Message { to, queue, .. } | Held::Operation { to, queue, .. } => (*to, usize::from(*queue)),
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
