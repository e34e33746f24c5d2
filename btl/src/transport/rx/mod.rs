//! Receiving: the sources of messages, the slots of receive buffers, what goes up.
#![forbid(unsafe_code)]

mod credit;
mod cts;
mod eager;
mod failed;
mod glance;
mod held;
mod qpns;
mod recv;
mod shared;
mod slots;
mod xrc;

pub use cts::CtsRecvs;
pub use glance::Glance;

use crate::protocol::hold::Hold;
use crate::transport::LINE;
use crate::transport::channel::Connection;
use crate::transport::port::queue::RecvQueue;
use crate::transport::{BATCH, Delivery};
use qpns::Qpns;
use slots::RecvSlots;
use std::mem::offset_of;
use std::sync::Arc;
use verbs::{Completion, Completions, Cq};

/// So often looks give way behind each step of a connection: many times as many as one takes to a peer on this host. A peer that does not answer is not worth more.
const WAYS: u32 = 4096;

/// What is received, from all endpoints.
#[derive(Debug)]
#[repr(C, align(64))] // in this order
pub struct Rx {
    /// Looks at the completions, for what is to be done every so often.
    looks: u32,
    /// Glances before the next of them, which are counted there as if they had been made.
    glances: u32,
    /// Where receives complete.
    pub(super) cq: Arc<Cq>,
    /// The last message, with which the upper layer is done, and which has not been seen to yet.
    done: Option<Delivery>,
    /// The next look that finds nothing has something to do, besides what completions that are on their way bring.
    pub(super) chores: bool,
    /// A batch of a shared queue may be due.
    refills: bool,
    /// A shared queue holds nothing, for want of a buffer.
    hungry: bool,
    /// Messages that wait for answers to be let out.
    pub(super) hold: Hold<Delivery>,
    /// Completions that are being looked at.
    batch: Completions<BATCH>,
    /// Endpoint and queue of the last message, if its buffer has not been posted again, or its sender may be offered a ring.
    latest: Option<(u32, usize)>,
    /// One for each queue of the layout.
    pub(super) queues: Vec<RecvQueue>,
    /// Receives and their buffers.
    pub(super) slots: RecvSlots,
    /// Whose the queue pairs are.
    pub(super) qpns: Qpns,
    /// Messages of shared queues whose queue pairs are not known yet.
    pub(super) parked: Vec<Completion>,
    /// The receives of the peers' clear-to-send messages.
    pub(super) cts: CtsRecvs,
    /// Looks in a row that have found nothing while messages were held.
    idle: u32,
    /// Answers that waited at the last one.
    answers: u32,
    /// Connections that are coming up, and how often looks that find nothing still [give way](Self::note_coming_up) to the thread that brings them up.
    coming_up: u32,
    gives_way: u32,
}

const _: () = assert!(offset_of!(Rx, hungry) < LINE, "looks, and what one has to see to");
const _: () = assert!(
    offset_of!(Rx, batch) + 2 * size_of::<usize>() <= 2 * LINE,
    "whether anything waits to be handed up"
);

impl Rx {
    /// The number of the last look.
    #[inline]
    pub(super) fn looks(&self) -> u32 {
        self.looks
    }

    /// Nothing has been posted.
    pub fn new(cq: Arc<Cq>, queues: Vec<RecvQueue>, cts: CtsRecvs) -> Rx {
        Rx {
            cq,
            batch: Completions::new(),
            looks: 0,
            glances: 0,
            queues,
            slots: RecvSlots::default(),
            qpns: Qpns::default(),
            parked: Vec::new(),
            done: None,
            latest: None,
            chores: false,
            refills: false,
            hungry: false,
            cts,
            hold: Hold::default(),
            idle: 0,
            answers: 0,
            coming_up: 0,
            gives_way: 0,
        }
    }

    /// A connection was coming up or not, and is now or is not. As long as one is, looks that find nothing give the processor away: the thread that brings
    /// connections up may wait for it, as on a machine that the ranks fill, until a rank that only looks has had its slice.
    pub fn note_coming_up(&mut self, was: bool, is: bool) {
        if !was && !is {
            return;
        }
        self.coming_up = (self.coming_up + u32::from(is)).saturating_sub(was.into());
        self.gives_way = if self.coming_up == 0 { 0 } else { WAYS };
        self.chores |= self.gives_way != 0;
    }

    /// The device holds a buffer of this connection's per-peer queues.
    pub fn is_posted(&self, connection: Connection) -> bool {
        self.cts.is_posted(connection) || self.slots.are_posted(connection.index)
    }

    /// Takes back what the endpoint at this position holds of its per-peer queues. A receive that
    /// is still posted stays with the device.
    pub fn release(&mut self, index: u32) {
        for (queue, buf) in self.slots.release_all(index) {
            self.queues[queue].bufs.put(buf);
        }
    }

    /// The endpoint at this position has another connection: what the upper layer still holds of
    /// its messages is of the former one, and nothing of that is posted again.
    pub fn disown(&mut self, index: u32) {
        self.slots.disown(index);
    }
}
