//! Sends that are posted with one call (`ibv_post_send(3)`: a list).
//!
//! ```text
//!   push, push, push --> post:  [wr 0] -> [wr 1] -> [wr 2] -> null
//!                        the device stops at bad_wr = wr 1:  wr 0 is posted, wr 1 and wr 2 stay in the chain
//! ```
//! A chain has its room in itself and allocates nothing. Pointers between its parts are set while it
//! is being posted, and used by that call only: a chain can be moved. Receives have lists of another kind (`recv`).

use crate::pool::Buf;
use crate::posted::{Posted, QueueTag};
use crate::request::{SendFlags, address, request};
use crate::types::SrqNum;
use rdma_sys as sys;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// What has become of a send's buffer.
#[derive(Debug)]
pub enum Sent {
    /// The device has copied it: it is ours again.
    Copied(Buf),
    /// It is the device's until the completion.
    Posted(Posted),
}

/// Sends of one queue pair to be posted together, of one buffer each, no more than `N`.
///
/// Places below `len` are initialised in all three arrays; those behind are not.
pub struct SendChain<const N: usize> {
    wrs: [MaybeUninit<sys::ibv_send_wr>; N],
    sges: [MaybeUninit<sys::ibv_sge>; N],
    bufs: [MaybeUninit<Buf>; N],
    len: usize,
}

impl<const N: usize> SendChain<N> {
    /// A chain of none.
    #[inline]
    pub const fn new() -> SendChain<N> {
        SendChain {
            wrs: [const { MaybeUninit::uninit() }; N],
            sges: [const { MaybeUninit::uninit() }; N],
            bufs: [const { MaybeUninit::uninit() }; N],
            len: 0,
        }
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
        self.append(wr, buf, len)
    }

    #[inline]
    fn append(&mut self, wr: sys::ibv_send_wr, buf: Buf, length: u32) -> Result<(), Buf> {
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

    /// Takes out the newest request: its id and its buffer.
    pub fn pop(&mut self) -> Option<(u64, Buf)> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: the place was below `len`, so it is initialised, and it is not any more, so it is
        // read out once.
        let (wr, buf) = unsafe { self.read(self.len) };
        Some((wr.wr_id, buf))
    }

    /// # Safety
    /// The place is initialised, and its buffer is read out no second time.
    #[inline]
    unsafe fn read(&self, at: usize) -> (sys::ibv_send_wr, Buf) {
        // SAFETY: the caller vouches that the place is initialised and read out once.
        unsafe { (*self.wrs[at].assume_init_ref(), self.bufs[at].assume_init_read()) }
    }

    /// Sets the pointers; there is at least one request.
    #[inline]
    fn link(&mut self) {
        let wrs = self.wrs.as_mut_ptr().cast::<sys::ibv_send_wr>();
        let sges = self.sges.as_mut_ptr().cast::<sys::ibv_sge>();
        for at in 0..self.len {
            let next = if at + 1 == self.len { null_mut() } else { wrs.wrapping_add(at + 1) };
            // SAFETY: `at` is below `len`, so both places are within their arrays and initialised;
            // the chain is borrowed mutably.
            unsafe { ((*wrs.add(at)).sg_list, (*wrs.add(at)).next) = (sges.add(at), next) };
        }
    }

    /// Posts what is in the chain; `sent` takes each request that went, in order. What the device refuses stays in
    /// it.
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
            let inline = wr.send_flags & sys::IBV_SEND_INLINE != 0;
            let posted =
                if inline { Sent::Copied(buf) } else { Sent::Posted(Posted::new(buf, wr.wr_id, queue)) };
            sent(wr.wr_id, posted);
        }
        if end != len {
            self.keep(end, len);
        }
        code
    }

    /// The position of the first request that was refused. One that is not of the chain says nothing
    /// about the others: they stay with the device.
    #[cold]
    fn refused_at(&self, bad: *mut sys::ibv_send_wr) -> usize {
        let offset = bad.addr().wrapping_sub(self.wrs.as_ptr().addr()) / size_of::<sys::ibv_send_wr>();
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
            let kept = self.append(wr, buf, length);
            debug_assert!(kept.is_ok());
        }
    }
}

impl<const N: usize> Drop for SendChain<N> {
    #[inline]
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

impl<const N: usize> Default for SendChain<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> fmt::Debug for SendChain<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendChain of {}", self.len)
    }
}
