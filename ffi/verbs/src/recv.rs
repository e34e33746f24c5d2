//! Buffers that are received into again and again, each under one work request id.
//!
//! ```text
//!             hold(buf)              RecvList: push, post             completed(completion)
//!   Empty ----------------> Held -------------------------> Posted --------------------------> its bytes are lent
//!     <------- take() ------'^ <------ refused(Unposted) ----'                                        |
//!                            '------------------------- back(Lent) <----------------------------------'
//! ```
//! The buffer of a [`Recv`] stays where it is while the device has it, and while a message is looked at: what is posted is a
//! request on the stack that names its memory, what is lent is the right to its bytes. What the types prove is what
//! [`Posted`](crate::Posted) proves: bytes that the device may write to can be had again by the completion of their own request,
//! or by the end of the shared queue that it was posted to.

use crate::error::Error;
use crate::placed;
use crate::pool::Buf;
use crate::posted::{Destroyed, QueueTag};
use crate::wc::Completion;
use rdma_sys as sys;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Place {
    /// It has no buffer.
    Empty,
    /// Its buffer is ours.
    Held,
    /// Its buffer is the device's.
    Posted,
    /// The bytes of its buffer are the one [`Lent`]'s.
    Lent,
}

/// The bytes of the buffer of a receive that has completed: the only way to them. Dropping it leaks the buffer.
///
/// Where the software device has left the message where it lay ([`Cq::place_messages`](crate::Cq::place_messages)), they are that place's,
/// and the device cannot use it again before they come back.
#[derive(Debug)]
pub struct Lent {
    addr: NonNull<u8>,
    /// A word, so that it has no padding: what is copied with it waits for the shorter store before it.
    len: usize,
}

// SAFETY: it is the only way to its bytes, and their mapping lives as long as it does.
unsafe impl Send for Lent {}
// SAFETY: shared references only read.
unsafe impl Sync for Lent {}

impl Lent {
    /// These bytes.
    ///
    /// # Safety
    /// They are initialised, this is the only way to them, and they are there until it has come back to where it was made.
    #[inline(always)]
    pub(crate) unsafe fn of(addr: NonNull<u8>, len: usize) -> Lent {
        Lent { addr, len }
    }

    /// Where they are.
    #[inline(always)]
    pub(crate) fn addr(&self) -> usize {
        self.addr.as_ptr() as usize
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes (mapped zero) of a buffer whose receive has completed, so that the device does not
        // write to them; the receive keeps the buffer, or leaks it, until this comes back.
        unsafe { std::slice::from_raw_parts(self.addr.as_ptr(), self.len) }
    }

    /// The bytes.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `len` initialised bytes of a buffer whose receive has completed and which this is the only way to; the receive
        // keeps the buffer, or leaks it, until this comes back.
        unsafe { std::slice::from_raw_parts_mut(self.addr.as_ptr(), self.len) }
    }

    /// Number of bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.len
    }

    /// Its first bytes only, so many at most, in place of all.
    #[inline]
    pub fn shorten(mut self, len: usize) -> Lent {
        self.len = self.len.min(len);
        self
    }
}

/// A receive, and its buffer. Dropping one that is posted or lent leaks the buffer: it may still be used.
pub struct Recv {
    /// Initialised unless `place` is `Empty`.
    buf: MaybeUninit<Buf>,
    wr_id: u64,
    /// Where it was posted last.
    queue: QueueTag,
    place: Place,
}

impl Recv {
    /// A receive without a buffer, which is going to be posted under this id.
    #[inline]
    pub fn new(wr_id: u64) -> Recv {
        Recv { buf: MaybeUninit::uninit(), wr_id, queue: QueueTag::NONE, place: Place::Empty }
    }

    /// The id that it is posted under.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// The device has its buffer.
    #[inline]
    pub fn is_posted(&self) -> bool {
        self.place == Place::Posted
    }

    /// It can be posted.
    #[inline]
    pub fn is_held(&self) -> bool {
        self.place == Place::Held
    }

    /// The bytes of its buffer are with the caller.
    #[inline]
    pub fn is_lent(&self) -> bool {
        self.place == Place::Lent
    }

    /// Takes a buffer in.
    ///
    /// # Errors
    /// It has one; this one comes back.
    #[inline]
    pub fn hold(&mut self, buf: Buf) -> Result<(), Buf> {
        if self.place != Place::Empty {
            return Err(buf);
        }
        self.buf.write(buf);
        self.place = Place::Held;
        Ok(())
    }

    /// Gives the buffer up, if it is here.
    #[inline]
    pub fn take(&mut self) -> Option<Buf> {
        if self.place == Place::Held { Some(self.give_up()) } else { None }
    }

    /// The receive has completed, with whatever status: the bytes are ours again. `None`: the completion is of another request.
    #[inline(always)] // only what it reads of the completion is loaded then
    pub fn completed(&mut self, done: Completion) -> Option<Lent> {
        let is_of = self.place == Place::Posted && self.wr_id == done.wr_id();
        if !is_of || !self.queue.may_be_of(done.qp_num()) {
            return None;
        }
        self.place = Place::Lent;
        let bytes = self.bytes(&done);
        std::mem::forget(done); // what it says is placed is what has been lent
        Some(bytes)
    }

    /// The bytes of a receive that has completed, be they in its buffer or where the device has left them.
    #[inline(always)] // as above
    fn bytes(&self, done: &Completion) -> Lent {
        let len = done.byte_len();
        match done.place() {
            Some(addr) => Lent { addr, len: len as usize },
            None => self.own(),
        }
    }

    /// The bytes of its buffer.
    #[inline]
    fn own(&self) -> Lent {
        // SAFETY: the callers have seen a place other than `Empty`, so there is a buffer.
        let buf = unsafe { self.buf.assume_init_ref() };
        Lent { addr: buf.start(), len: buf.capacity() as usize }
    }

    /// Bytes of this receive that are going to be kept for longer than a callback: if they lie elsewhere, they are put into its buffer.
    #[cold]
    pub fn settle(&self, lent: Lent) -> Lent {
        if self.place != Place::Lent || !placed::is(lent.addr) {
            return lent;
        }
        let mut own = self.own();
        let len = lent.len.min(own.len);
        own.as_mut_slice()[..len].copy_from_slice(&lent.as_slice()[..len]);
        let _was_there = placed::release(lent.addr);
        own
    }

    /// The same for a receive that has completed and whose completion is to be kept.
    #[cold]
    pub fn settle_completion(&mut self, done: &mut Completion) {
        if self.place == Place::Posted && self.wr_id == done.wr_id() {
            self.place = Place::Lent;
            let _own = self.settle(self.bytes(done));
            self.place = Place::Posted;
            done.settled();
        }
    }

    /// The bytes come back.
    ///
    /// # Errors
    /// They are another buffer's.
    #[inline]
    pub fn back(&mut self, lent: Lent) -> Result<(), Lent> {
        if self.place != Place::Lent || self.own().addr != lent.addr && !placed::release(lent.addr) {
            return Err(lent);
        }
        self.place = Place::Held;
        Ok(())
    }

    /// The shared queue is gone that it was posted to: the buffer is ours again. `None` if it is another.
    pub fn outlived(&mut self, queue: &Destroyed) -> Option<Buf> {
        if self.place == Place::Posted && self.queue == queue.0 { Some(self.give_up()) } else { None }
    }

    /// The device has not taken the request; whether it is of this receive.
    pub fn refused(&mut self, unposted: &Unposted) -> bool {
        let is_of =
            self.place == Place::Posted && self.wr_id == unposted.wr_id && self.queue == unposted.queue;
        if is_of {
            self.place = Place::Held;
        }
        is_of
    }

    /// Its buffer, which is no other's now.
    #[inline]
    fn give_up(&mut self) -> Buf {
        self.place = Place::Empty;
        // SAFETY: both callers have seen a place other than `Empty`, so there is a buffer; it is read out once, for the place is
        // `Empty` now.
        unsafe { self.buf.assume_init_read() }
    }
}

impl std::fmt::Debug for Recv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recv {{ {:#x}, {:?} }}", self.wr_id, self.place)
    }
}

impl Drop for Recv {
    #[inline]
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// A request of a list that the device has not taken.
#[derive(Debug)]
pub struct Unposted {
    wr_id: u64,
    queue: QueueTag,
}

impl Unposted {
    /// The id of its receive.
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }
}

/// Queues are of this crate only.
pub(crate) mod sealed {
    /// What only queues of this crate implement.
    pub trait Sealed {}
}

/// A queue of receives: a queue pair's, or a shared one.
pub trait RecvQueue: sealed::Sealed {
    /// Tells it from other queues.
    #[doc(hidden)]
    fn tag(&self) -> Tag;

    /// # Safety
    /// `wr` is a list of valid requests whose memory becomes the device's.
    #[doc(hidden)]
    unsafe fn post_list(&self, wr: *mut sys::ibv_recv_wr, bad: *mut *mut sys::ibv_recv_wr) -> i32;

    #[doc(hidden)]
    fn refusal(&self, code: i32) -> Error;
}

/// A queue's tag, for this crate only.
#[derive(Debug)]
#[doc(hidden)]
pub struct Tag(pub(crate) QueueTag);

/// Receives to be posted to one queue with one call, no more than `N`.
///
/// Places below `len` are initialised in both arrays; those behind are not. What is left when it is dropped stays as it is: the
/// receives are taken for posted, and their buffers are leaked.
pub struct RecvList<'q, Q, const N: usize> {
    queue: &'q Q,
    tag: QueueTag,
    wrs: [MaybeUninit<sys::ibv_recv_wr>; N],
    sges: [MaybeUninit<sys::ibv_sge>; N],
    len: usize,
}

impl<'q, Q: RecvQueue, const N: usize> RecvList<'q, Q, N> {
    /// A list of none.
    #[inline]
    pub fn new(queue: &'q Q) -> Self {
        let (wrs, sges) = ([const { MaybeUninit::uninit() }; N], [const { MaybeUninit::uninit() }; N]);
        RecvList { queue, tag: queue.tag().0, wrs, sges, len: 0 }
    }

    /// Requests that are not posted.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// There are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a receive into the whole buffer that it holds; `false`: it holds none, or the list is full.
    #[inline]
    pub fn push(&mut self, recv: &mut Recv) -> bool {
        self.filling().push(recv)
    }

    /// To append several.
    #[inline(always)]
    pub fn filling(&mut self) -> Filling<'_, 'q, Q, N> {
        Filling { len: self.len, list: self }
    }

    /// Posts what is in the list; how many went.
    ///
    /// # Errors
    /// The queue is full; what did not go stays in the list.
    #[inline]
    pub fn post(&mut self) -> Result<usize, (usize, Error)> {
        if self.len == 0 {
            return Ok(0);
        }
        self.link();
        let mut bad = null_mut();
        // SAFETY: the list is linked from valid requests, whose buffers no code of ours reaches while their receives are posted.
        let code = unsafe { self.queue.post_list(self.wrs.as_mut_ptr().cast(), &mut bad) };
        if code != 0 {
            return Err(self.stopped_at(bad, code));
        }
        Ok(std::mem::take(&mut self.len))
    }

    /// Sets the pointers; there is at least one request.
    #[inline]
    fn link(&mut self) {
        let wrs = self.wrs.as_mut_ptr().cast::<sys::ibv_recv_wr>();
        let sges = self.sges.as_mut_ptr().cast::<sys::ibv_sge>();
        for at in 0..self.len {
            // SAFETY: `at` is below `len`, so both places are within their arrays and initialised. The next place is within the
            // array or one behind it.
            unsafe {
                (*wrs.add(at)).sg_list = sges.add(at);
                (*wrs.add(at)).next = wrs.add(at + 1);
            }
        }
        // SAFETY: `len` is not 0, and at most `N`.
        unsafe { (*wrs.add(self.len - 1)).next = null_mut() };
    }

    /// Keeps what stands from the first refused request on. One that is not of the list says nothing about the others: they are
    /// taken for posted.
    #[cold]
    fn stopped_at(&mut self, bad: *mut sys::ibv_recv_wr, code: i32) -> (usize, Error) {
        let offset = bad.addr().wrapping_sub(self.wrs.as_ptr().addr()) / size_of::<sys::ibv_recv_wr>();
        let went = offset.min(self.len);
        self.wrs.copy_within(went..self.len, 0);
        self.sges.copy_within(went..self.len, 0);
        self.len -= went;
        (went, self.queue.refusal(code))
    }

    /// Takes out the newest request, which is not posted: tell its receive ([`Recv::refused`]).
    #[cold]
    pub fn pop(&mut self) -> Option<Unposted> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: the place was below `len`, so it is initialised; it is plain data.
        let wr_id = unsafe { self.wrs[self.len].assume_init_ref() }.wr_id;
        Some(Unposted { wr_id, queue: self.tag })
    }
}

/// Appends receives to a list, which knows of them when this is dropped: meanwhile their number stays in a register.
#[derive(Debug)]
pub struct Filling<'l, 'q, Q, const N: usize> {
    list: &'l mut RecvList<'q, Q, N>,
    len: usize,
}

impl<Q: RecvQueue, const N: usize> Filling<'_, '_, Q, N> {
    /// As [`RecvList::push`].
    #[inline(always)]
    pub fn push(&mut self, recv: &mut Recv) -> bool {
        if self.len >= N || recv.place != Place::Held {
            return false;
        }
        (recv.place, recv.queue) = (Place::Posted, self.list.tag);
        // SAFETY: it has been held until now, so there is a buffer.
        let buf = unsafe { recv.buf.assume_init_ref() };
        let (addr, length, lkey) = (buf.addr(), buf.capacity(), buf.lkey().0);
        self.list.sges[self.len].write(sys::ibv_sge { addr, length, lkey });
        let (wr_id, next, sg_list) = (recv.wr_id, null_mut(), null_mut());
        self.list.wrs[self.len].write(sys::ibv_recv_wr { wr_id, next, sg_list, num_sge: 1 });
        self.len += 1;
        true
    }
}

impl<Q, const N: usize> Drop for Filling<'_, '_, Q, N> {
    #[inline(always)]
    fn drop(&mut self) {
        self.list.len = self.len;
    }
}

impl<Q, const N: usize> std::fmt::Debug for RecvList<'_, Q, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RecvList of {}", self.len)
    }
}
