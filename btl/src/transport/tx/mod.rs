//! Sending: what goes out, what waits, and what each completion gives back.
#![forbid(unsafe_code)]

mod buffered;
mod buffers;
mod burst;
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
use crate::transport::LINE;
use crate::transport::channel::{Held, Ready, SendRings, Signalling};
use crate::transport::port::buffer::Queued;
use crate::transport::port::queue::SendQueue;
use crate::transport::stats::Chains;
use burst::Burst;
use slab::Slab;
use std::mem::offset_of;
use std::sync::Arc;
use verbs::{Completions, Cq, Pool};

/// What is sent, to all endpoints.
#[derive(Debug)]
#[repr(C, align(64))] // in this order
pub struct Tx<C> {
    /// The signalled ones among the [outstanding](Self::outstanding) requests: completions that are on their way, if nothing fails.
    pub(super) awaited: u32,
    /// Send work requests that have not completed.
    pub(super) outstanding: u32,
    /// Messages among those that wait which receive callbacks have sent.
    pub(super) answers: u32,
    /// While more of these wait, messages are held back (`Config::hold`).
    pub(super) most_answers: u32,
    /// How many requests may go unsignalled, one after the other.
    pub(super) signalling: Signalling,
    /// Messages that wait for a connection, a credit or an entry.
    pub(super) pending: Pending<Queued>,
    /// Where sends complete.
    pub(super) cq: Arc<Cq>,
    /// Callbacks that the upper layer is owed, for all endpoints.
    owed: u64,
    /// Something has been kept for another connection, once at least.
    keeps: bool,
    /// A failed work request's cause is being looked for.
    seeking: bool,
    /// One for each queue of the layout.
    pub(super) queues: Vec<SendQueue>,
    /// Registered memory in ledgers.
    pub(super) send_rings: SendRings,
    /// Buffers of eight bytes, which the values before atomics come into.
    pub(super) words: Pool,
    /// What the lines of all ledgers give back.
    pub(super) held: Slab<Held<C>>,
    /// Requests posted only to have others reported.
    pub(super) markers: u64,
    /// Messages that are about to be posted with one call; empty in between.
    ready: Vec<Ready>,
    /// What went to the device in lists.
    pub(super) chains: Chains,
    /// Puts and gets that begin one behind the other.
    burst: Burst,
    /// So many short ones are not to be tried to be carried out at once; and how many have been since one was posted.
    skipped: u8,
    moved: u8,
    /// Completions that are being looked at.
    batch: Completions<BATCH>,
}

const _: () = assert!(
    offset_of!(Tx<u64>, pending) + size_of::<usize>() <= LINE,
    "whether anything is awaited or waits"
);

impl<C> Tx<C> {
    /// Nothing has been sent.
    pub fn new(
        cq: Arc<Cq>,
        queues: Vec<SendQueue>,
        words: Pool,
        send_rings: SendRings,
        (signalling, most_answers): (Signalling, u32),
    ) -> Tx<C> {
        Tx {
            cq,
            batch: Completions::new(),
            signalling,
            outstanding: 0,
            awaited: 0,
            owed: 0,
            keeps: false,
            burst: Burst::default(),
            skipped: 0,
            moved: 0,
            seeking: false,
            queues,
            send_rings,
            words,
            held: Slab::new(),
            pending: Pending::new(),
            answers: 0,
            most_answers,
            markers: 0,
            ready: Vec::new(),
            chains: Chains::default(),
        }
    }
}
