//! Buffers that the device owns, and what turns them back into ours.
//!
//! | what was posted             | what gives it back                                              |
//! |-----------------------------|-----------------------------------------------------------------|
//! | a receive, a datagram        | the completion of that request, which is spent ([`Posted::completed`]) |
//! | a send of a connected queue pair | its completion or that of a later one ([`Posted::completed_up_to`])   |
//! | a receive of a shared queue  | the destruction of that queue ([`Posted::outlived`])               |
//!
//! What the types prove: each buffer comes back by a [`Completion`], which only a poll makes, or a
//! [`Destroyed`], which only the end of a queue makes; and it is the completion of a request of
//! the queue that the buffer was posted to, with the buffer's own work request id, or with an id
//! whose count is not before it. Anything else leaves the buffer with the device.
//!
//! What they do not prove is the caller's part:
//!
//! * No two requests of a queue have one id at a time, and sends are counted in the order of posting.
//! * Queue pair numbers are unique within a device (context) only. The completion of another
//!   device's queue pair with this number and this id would be taken for this request's. So the
//!   completions of a device go to the buffers posted to that device alone: the plugin has a
//!   `Transport` for each port, with its own completion queues, slots and ledgers.
//! * The completion of a shared queue's receive names the queue pair, not the shared queue: for
//!   these buffers the id alone decides, and ids are unique among the shared queues of a device.

use crate::placed;
use crate::pool::Buf;
use crate::types::Qpn;
use crate::wc::Completion;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Lowest bit of the 16 that count the sends of a queue pair in their work request ids.
pub const SEND_COUNT: u32 = 40;

/// Tells the queues apart that buffers are posted to: the number of a queue pair (24 bits), or of a
/// shared queue in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueTag(u32);

impl QueueTag {
    const SHARED: u32 = 1 << 31;
    /// Of no queue: numbers of queue pairs have 24 bits.
    pub(crate) const NONE: QueueTag = QueueTag(QueueTag::SHARED - 1);

    #[inline]
    pub(crate) fn of(qpn: Qpn) -> QueueTag {
        QueueTag(qpn.0)
    }

    /// The next shared queue's.
    pub(crate) fn new_shared() -> QueueTag {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        QueueTag(NEXT.fetch_add(1, Ordering::Relaxed) | QueueTag::SHARED)
    }

    /// The completions of a shared queue name the queue pair that the message came over.
    #[inline]
    pub(crate) fn may_be_of(self, qpn: Qpn) -> bool {
        self.0 == qpn.0 || self.0 & QueueTag::SHARED != 0
    }
}

/// A shared queue is gone, and with it everything that was posted to it.
#[derive(Debug)]
pub struct Destroyed(pub(crate) QueueTag);

/// A buffer that the device owns. Dropping it without a completion leaks it: the device may still
/// write to it.
#[derive(Debug)]
pub struct Posted {
    buf: ManuallyDrop<Buf>,
    wr_id: u64,
    queue: QueueTag,
}

impl Posted {
    /// The device has taken the buffer, under this id and in this queue.
    #[inline]
    pub(crate) fn new(buf: Buf, wr_id: u64, queue: QueueTag) -> Posted {
        Posted { buf: ManuallyDrop::new(buf), wr_id, queue }
    }

    /// The completion is that of this request.
    #[inline]
    fn is_of(&self, done: &Completion) -> bool {
        self.wr_id == done.wr_id() && self.queue.may_be_of(done.qp_num())
    }

    /// The request has completed, with whatever status: the buffer is ours again.
    ///
    /// # Errors
    /// The completion is of another request: this one stays with the device.
    #[inline]
    pub fn completed(self, mut done: Completion) -> Result<Buf, Posted> {
        if !self.is_of(&done) {
            return Err(self);
        }
        let mut buf = self.ours();
        if let Some(at) = done.place() {
            fetch(at, done.byte_len(), &mut buf);
            done.settled();
        }
        Ok(buf)
    }

    /// A request of the same queue pair has completed that was posted no earlier than this one, so
    /// this one has (IBTA 10.8.5): the buffer is ours again. `None` if it is another queue pair or
    /// the request was posted before this one.
    #[inline]
    pub fn completed_up_to(self, done: &Completion) -> Option<Buf> {
        let differs = (self.wr_id ^ done.wr_id()) & !(0xffff << SEND_COUNT) != 0;
        let behind = count(done.wr_id()).wrapping_sub(count(self.wr_id));
        let covered = !differs && self.queue.may_be_of(done.qp_num()) && behind < 1 << 15;
        if covered { Some(self.ours()) } else { self.left(done) }
    }

    /// The shared queue is gone that the buffer was posted to: the buffer is ours again. `None` if
    /// it is another.
    pub fn outlived(self, queue: &Destroyed) -> Option<Buf> {
        (self.queue == queue.0).then(|| self.ours())
    }

    #[inline]
    fn ours(self) -> Buf {
        ManuallyDrop::into_inner(self.buf)
    }

    #[cold]
    fn left(self, done: &Completion) -> Option<Buf> {
        log::error!("a buffer stays with the device: {done:?} is not of request {:#x}", self.wr_id);
        None
    }
}

/// Puts the `len` bytes of a message that the device has left there into the buffer of its receive.
#[cold]
fn fetch(at: NonNull<u8>, len: u32, buf: &mut Buf) {
    let len = len.min(buf.capacity()) as usize;
    // SAFETY: the device has left that many readable bytes there until they are released; the buffer has as many, and lies elsewhere.
    unsafe { std::ptr::copy_nonoverlapping(at.as_ptr(), buf.as_mut_slice().as_mut_ptr(), len) };
    let _was_there = placed::release(at);
}

#[inline]
fn count(wr_id: u64) -> u16 {
    (wr_id >> SEND_COUNT) as u16
}
