//! Requests that are posted with one call (`ibv_post_recv(3)`, `ibv_post_send(3)`: a list).
//!
//! ```text
//!   push, push, push --> post:  [wr 0] -> [wr 1] -> [wr 2] -> null
//!                        the device stops at bad_wr = wr 1:  wr 0 is posted, wr 1 and wr 2 stay in the chain
//! ```
//! A chain has its room in itself and allocates nothing. Pointers between its parts are set while it
//! is being posted, and used by that call only: a chain can be moved.

use crate::pool::Buf;
use crate::posted::{Posted, QueueTag};
use crate::request::{SendFlags, address, request};
use crate::types::SrqNum;
use rdma_sys as sys;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// What the C structs of receives and sends have in common.
trait Request: Copy {
    fn id(&self) -> u64;

    fn link(&mut self, sges: *mut sys::ibv_sge, next: *mut Self);
}

macro_rules! request {
    ($request:ty) => {
        impl Request for $request {
            #[inline]
            fn id(&self) -> u64 {
                self.wr_id
            }

            #[inline]
            fn link(&mut self, sges: *mut sys::ibv_sge, next: *mut Self) {
                (self.sg_list, self.next) = (sges, next);
            }
        }
    };
}

request!(sys::ibv_recv_wr);
request!(sys::ibv_send_wr);

/// Requests of one buffer each, no more than `N`.
///
/// Places below `len` are initialised in all three arrays; those behind are not.
struct Chain<W: Request, const N: usize> {
    wrs: [MaybeUninit<W>; N],
    sges: [MaybeUninit<sys::ibv_sge>; N],
    bufs: [MaybeUninit<Buf>; N],
    len: usize,
}

impl<W: Request, const N: usize> Chain<W, N> {
    #[inline]
    const fn new() -> Chain<W, N> {
        Chain {
            wrs: [const { MaybeUninit::uninit() }; N],
            sges: [const { MaybeUninit::uninit() }; N],
            bufs: [const { MaybeUninit::uninit() }; N],
            len: 0,
        }
    }

    /// Appends a request for `length` bytes of a buffer; without room the buffer comes back.
    #[inline]
    fn push(&mut self, wr: W, buf: Buf, length: u32) -> Result<(), Buf> {
        let at = self.len;
        if at >= N {
            return Err(buf);
        }
        self.sges[at].write(sys::ibv_sge { addr: buf.addr(), length, lkey: buf.lkey().0 });
        self.wrs[at].write(wr);
        self.bufs[at].write(buf);
        self.len = at + 1;
        Ok(())
    }

    fn pop(&mut self) -> Option<(W, Buf)> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: the place was below `len`, so it is initialised, and it is not any more, so it is
        // read out once.
        Some(unsafe { self.read(self.len) })
    }

    /// # Safety
    /// The place is initialised, and its buffer is read out no second time.
    #[inline]
    unsafe fn read(&self, at: usize) -> (W, Buf) {
        // SAFETY: the caller vouches that the place is initialised and read out once.
        unsafe { (*self.wrs[at].assume_init_ref(), self.bufs[at].assume_init_read()) }
    }

    /// Sets the pointers; there is at least one request.
    #[inline]
    fn link(&mut self) {
        let (wrs, sges) = (self.wrs.as_mut_ptr().cast::<W>(), self.sges.as_mut_ptr().cast::<sys::ibv_sge>());
        for at in 0..self.len {
            let next = if at + 1 == self.len { null_mut() } else { wrs.wrapping_add(at + 1) };
            // SAFETY: `at` is below `len`, so both places are within their arrays and initialised;
            // the chain is borrowed mutably.
            unsafe { (*wrs.add(at)).link(sges.add(at), next) };
        }
    }

    /// Posts what is in the chain; `posted` takes each request that went, in order. What the device refuses stays in
    /// it.
    ///
    /// # Safety
    /// `verb` posts the list, and reads it before it returns only.
    #[inline]
    unsafe fn post(
        &mut self,
        mut posted: impl FnMut(W, Buf),
        verb: impl FnOnce(*mut W, *mut *mut W) -> i32,
    ) -> i32 {
        if self.len == 0 {
            return 0;
        }
        self.link();
        let mut bad = null_mut();
        let code = verb(self.wrs.as_mut_ptr().cast(), &mut bad);
        let end = if code == 0 { self.len } else { self.refused_at(bad) };
        // Empty before the caller sees the first: should it panic, the others are leaked, not ours.
        let len = std::mem::take(&mut self.len);
        for at in 0..end {
            // SAFETY: the place was below `len`, which is 0 now: it is read out here only.
            let (wr, buf) = unsafe { self.read(at) };
            posted(wr, buf);
        }
        if end != len {
            self.keep(end, len);
        }
        code
    }

    /// The position of the first request that was refused. One that is not of the chain says nothing
    /// about the others: they stay with the device.
    #[cold]
    fn refused_at(&self, bad: *mut W) -> usize {
        let offset = bad.addr().wrapping_sub(self.wrs.as_ptr().addr()) / size_of::<W>();
        offset.min(self.len)
    }

    /// The chain, which is empty, is left with what stands between these positions.
    #[cold]
    fn keep(&mut self, from: usize, end: usize) {
        for at in from..end {
            // SAFETY: the place is behind those that were posted and was below `len`: its buffer has
            // not been read out.
            let (wr, buf) = unsafe { self.read(at) };
            // SAFETY: the place was below `len`, so its piece is initialised; it is plain data.
            let length = unsafe { self.sges[at].assume_init_ref().length };
            // There is room: it comes from further behind.
            let kept = self.push(wr, buf, length);
            debug_assert!(kept.is_ok());
        }
    }
}

impl<W: Request, const N: usize> Drop for Chain<W, N> {
    #[inline]
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

/// Receives to be posted together, no more than `N`.
pub struct RecvChain<const N: usize>(Chain<sys::ibv_recv_wr, N>);

impl<const N: usize> RecvChain<N> {
    /// Appends a receive into a whole buffer.
    ///
    /// # Errors
    /// The chain is full; the buffer comes back.
    #[inline]
    pub fn push(&mut self, wr_id: u64, buf: Buf) -> Result<(), Buf> {
        let wr = sys::ibv_recv_wr { wr_id, next: null_mut(), sg_list: null_mut(), num_sge: 1 };
        let length = buf.capacity();
        self.0.push(wr, buf, length)
    }

    /// Posts what is in the chain; what the device refuses stays in it.
    ///
    /// # Safety
    /// `verb` posts the list to the live queue `queue`, and reads it before it returns only.
    #[inline]
    pub(crate) unsafe fn post(
        &mut self,
        queue: QueueTag,
        mut posted: impl FnMut(u64, Posted),
        verb: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> i32,
    ) -> i32 {
        let posted = |wr: sys::ibv_recv_wr, buf| posted(wr.id(), Posted::new(buf, wr.id(), queue));
        // SAFETY: the caller vouches for the verb.
        unsafe { self.0.post(posted, verb) }
    }
}

/// What has become of a send's buffer.
#[derive(Debug)]
pub enum Sent {
    /// The device has copied it: it is ours again.
    Copied(Buf),
    /// It is the device's until the completion.
    Posted(Posted),
}

/// Sends of one queue pair to be posted together, no more than `N`.
pub struct SendChain<const N: usize>(Chain<sys::ibv_send_wr, N>);

impl<const N: usize> SendChain<N> {
    /// Appends a send of the first `len` bytes of a buffer, to this SRQ over an XRC send queue pair; `inline`: the
    /// device copies it while it is posted.
    ///
    /// # Errors
    /// The chain is full; the buffer comes back.
    #[inline]
    pub fn push(
        &mut self,
        wr_id: u64,
        (buf, len): (Buf, u32),
        (flags, inline): (SendFlags, bool),
        srq: Option<SrqNum>,
    ) -> Result<(), Buf> {
        let flags = flags.bits() | if inline { sys::IBV_SEND_INLINE } else { 0 };
        let wr = request(wr_id, null_mut(), sys::IBV_WR_SEND, flags);
        let (wr, len) = (srq.map_or(wr, |srq| address(wr, srq)), len.min(buf.capacity()));
        self.0.push(wr, buf, len)
    }

    /// Posts what is in the chain; what the device refuses stays in it.
    ///
    /// # Safety
    /// `verb` posts the list to the live queue pair `queue`, and reads it and what is inline before it returns only.
    #[inline]
    pub(crate) unsafe fn post(
        &mut self,
        queue: QueueTag,
        mut sent: impl FnMut(u64, Sent),
        verb: impl FnOnce(*mut sys::ibv_send_wr, *mut *mut sys::ibv_send_wr) -> i32,
    ) -> i32 {
        let posted = |wr: sys::ibv_send_wr, buf| {
            let inline = wr.send_flags & sys::IBV_SEND_INLINE != 0;
            let what =
                if inline { Sent::Copied(buf) } else { Sent::Posted(Posted::new(buf, wr.id(), queue)) };
            sent(wr.id(), what);
        };
        // SAFETY: the caller vouches for the verb.
        unsafe { self.0.post(posted, verb) }
    }
}

macro_rules! chain {
    ($chain:ident) => {
        impl<const N: usize> $chain<N> {
            /// A chain of none.
            #[inline]
            pub const fn new() -> Self {
                $chain(Chain::new())
            }

            /// Requests that are not posted.
            #[inline]
            pub fn len(&self) -> usize {
                self.0.len
            }

            /// There are none.
            #[inline]
            pub fn is_empty(&self) -> bool {
                self.0.len == 0
            }

            /// Takes out the newest request: its id and its buffer.
            pub fn pop(&mut self) -> Option<(u64, Buf)> {
                self.0.pop().map(|(wr, buf)| (wr.id(), buf))
            }
        }

        impl<const N: usize> Default for $chain<N> {
            fn default() -> Self {
                Self::new()
            }
        }

        impl<const N: usize> fmt::Debug for $chain<N> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} of {}", stringify!($chain), self.len())
            }
        }
    };
}

chain!(RecvChain);
chain!(SendChain);
