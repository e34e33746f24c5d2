//! Receives that are posted with one call (`ibv_post_recv(3)`: a list).
//!
//! ```text
//!   push, push, push --> post:  [wr 0] -> [wr 1] -> [wr 2] -> null
//!                        the device stops at bad_wr = wr 1:  wr 0 is posted, wr 1 and wr 2 stay in the chain
//! ```
//! A chain has its room in itself and allocates nothing. Pointers between its parts are set while it
//! is being posted, and used by that call only: a chain can be moved.

use crate::pool::Buf;
use crate::posted::{Posted, QueueTag};
use rdma_sys as sys;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// Receives to be posted together, no more than `N`.
///
/// Places below `len` are initialised in all three arrays; those behind are not.
pub struct RecvChain<const N: usize> {
    wrs: [MaybeUninit<sys::ibv_recv_wr>; N],
    sges: [MaybeUninit<sys::ibv_sge>; N],
    bufs: [MaybeUninit<Buf>; N],
    len: usize,
}

impl<const N: usize> RecvChain<N> {
    /// A chain of none.
    #[inline]
    pub const fn new() -> RecvChain<N> {
        RecvChain {
            wrs: [const { MaybeUninit::uninit() }; N],
            sges: [const { MaybeUninit::uninit() }; N],
            bufs: [const { MaybeUninit::uninit() }; N],
            len: 0,
        }
    }

    /// Receives that are not posted.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// There are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a receive into a whole buffer.
    ///
    /// # Errors
    /// The chain is full; the buffer comes back.
    #[inline]
    pub fn push(&mut self, wr_id: u64, buf: Buf) -> Result<(), Buf> {
        let at = self.len;
        if at >= N {
            return Err(buf);
        }
        let sge = sys::ibv_sge { addr: buf.addr(), length: buf.capacity(), lkey: buf.lkey().0 };
        self.sges[at].write(sge);
        self.wrs[at].write(sys::ibv_recv_wr { wr_id, next: null_mut(), sg_list: null_mut(), num_sge: 1 });
        self.bufs[at].write(buf);
        self.len = at + 1;
        Ok(())
    }

    /// Takes out the newest receive.
    pub fn pop(&mut self) -> Option<(u64, Buf)> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: the place was below `len`, so it is initialised, and it is not any more, so it is
        // read out once.
        Some(unsafe { self.read(self.len) })
    }

    /// # Safety
    /// The place is initialised, and its buffer is read out no second time.
    #[inline]
    unsafe fn read(&self, at: usize) -> (u64, Buf) {
        // SAFETY: the caller vouches that the place is initialised and read out once.
        unsafe { (self.wrs[at].assume_init_ref().wr_id, self.bufs[at].assume_init_read()) }
    }

    /// Sets the pointers; there is at least one receive.
    #[inline]
    fn link(&mut self) {
        let (wrs, sges) =
            (self.wrs.as_mut_ptr().cast::<sys::ibv_recv_wr>(), self.sges.as_mut_ptr().cast::<sys::ibv_sge>());
        for at in 0..self.len {
            let next = if at + 1 == self.len { null_mut() } else { wrs.wrapping_add(at + 1) };
            // SAFETY: `at` is below `len`, so both places are within their arrays and initialised;
            // the chain is borrowed mutably.
            unsafe { ((*wrs.add(at)).sg_list, (*wrs.add(at)).next) = (sges.add(at), next) };
        }
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
        if self.is_empty() {
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
            let (wr_id, buf) = unsafe { self.read(at) };
            posted(wr_id, Posted::new(buf, wr_id, queue));
        }
        if end != len {
            self.keep(end, len);
        }
        code
    }

    /// The position of the first request that was refused. One that is not of the chain says nothing
    /// about the others: they stay with the device.
    #[cold]
    fn refused_at(&self, bad: *mut sys::ibv_recv_wr) -> usize {
        let offset = bad.addr().wrapping_sub(self.wrs.as_ptr().addr()) / size_of::<sys::ibv_recv_wr>();
        offset.min(self.len)
    }

    /// The chain, which is empty, is left with what stands between these positions.
    #[cold]
    fn keep(&mut self, from: usize, end: usize) {
        for at in from..end {
            // SAFETY: the place is behind those that were posted and was below `len`: its buffer has
            // not been read out.
            let (wr_id, buf) = unsafe { self.read(at) };
            // There is room: it comes from further behind.
            let kept = self.push(wr_id, buf);
            debug_assert!(kept.is_ok());
        }
    }
}

impl<const N: usize> Drop for RecvChain<N> {
    #[inline]
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

impl<const N: usize> Default for RecvChain<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> fmt::Debug for RecvChain<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecvChain of {}", self.len)
    }
}
