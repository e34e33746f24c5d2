//! Sending: what goes out, what waits, and what each completion gives back.
#![forbid(unsafe_code)]

mod buffers;
mod complete;
mod control;
mod eager;
/// What a flush waits for.
pub mod flush;
mod keep;
pub(super) mod path;
mod post;
mod rdma;
mod replay;
mod send;
mod sendi;
mod xrc;

pub use rdma::NotBegun;
pub use sendi::Attempt;

use crate::protocol::pending::Pending;
use crate::transport::BATCH;
use crate::transport::channel::{Held, Ready, Signalling};
use crate::transport::port::buffer::Queued;
use crate::transport::port::queue::SendQueue;
use crate::transport::stats::Chains;
use slab::Slab;
use std::sync::Arc;
use verbs::{Completions, Cq, Pool};

/// What is sent, to all endpoints.
#[derive(Debug)]
pub struct Tx<C> {
    /// Where sends complete.
    pub(super) cq: Arc<Cq>,
    /// Completions that are being looked at.
    batch: Completions<BATCH>,
    /// How many requests may go unsignalled, one after the other.
    pub(super) signalling: Signalling,
    /// Send work requests that have not completed.
    pub(super) outstanding: u32,
    /// The signalled ones among them: completions that are on their way, if nothing fails.
    pub(super) awaited: u32,
    /// Callbacks that the upper layer is owed, for all endpoints.
    owed: u64,
    /// Something has been kept for another connection, once at least.
    keeps: bool,
    /// A failed work request's cause is being looked for.
    seeking: bool,
    /// One for each queue of the layout.
    pub(super) queues: Vec<SendQueue>,
    /// Buffers of eight bytes, which the values before atomics come into.
    pub(super) words: Pool,
    /// What the lines of all ledgers give back.
    pub(super) held: Slab<Held<C>>,
    /// Messages that wait for a connection, a credit or an entry.
    pub(super) pending: Pending<Queued>,
    /// Those among them that receive callbacks have sent.
    pub(super) answers: u32,
    /// Requests posted only to have others reported.
    pub(super) markers: u64,
    /// Messages that are about to be posted with one call; empty in between.
    ready: Vec<Ready>,
    /// What went to the device in lists.
    pub(super) chains: Chains,
}

impl<C> Tx<C> {
    /// Nothing has been sent.
    pub fn new(cq: Arc<Cq>, queues: Vec<SendQueue>, words: Pool, signalling: Signalling) -> Tx<C> {
        Tx {
            cq,
            batch: Completions::new(),
            signalling,
            outstanding: 0,
            awaited: 0,
            owed: 0,
            keeps: false,
            seeking: false,
            queues,
            words,
            held: Slab::new(),
            pending: Pending::new(),
            answers: 0,
            markers: 0,
            ready: Vec::new(),
            chains: Chains::default(),
        }
    }
}
