//! Work requests that are posted with one call (`ibv_post_recv(3)`, `ibv_post_send(3)`: a list).
//!
//! ```text
//!   push, push, push --> post:  [wr 0] -> [wr 1] -> [wr 2] -> null
//!                        the device stops at bad_wr = wr 1:  wr 0 is posted, wr 1 and wr 2 stay in the chain
//! ```
//! A chain has its room in itself and allocates nothing. Pointers between its parts are set while it
//! is being posted, and used by that call only: a chain can be moved.

use crate::pool::{Buf, Posted};
use crate::request::{RdmaOp, Remote, SendFlags, Sge, rdma_request, request};
use rdma_sys as sys;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::null_mut;

/// A work request that has a successor.
trait Link: Copy {
    fn wr_id(&self) -> u64;
    fn set(&mut self, sge: *mut sys::ibv_sge, next: *mut Self);
}

impl Link for sys::ibv_recv_wr {
    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    fn set(&mut self, sge: *mut sys::ibv_sge, next: *mut Self) {
        (self.sg_list, self.next) = (sge, next);
    }
}

impl Link for sys::ibv_send_wr {
    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    fn set(&mut self, sge: *mut sys::ibv_sge, next: *mut Self) {
        (self.sg_list, self.next) = (sge, next);
    }
}

/// The requests from `first` to `len`, one piece of memory each, and the buffers that go with them.
struct Chain<W, const N: usize> {
    wrs: [W; N],
    sges: [sys::ibv_sge; N],
    bufs: [Option<Buf>; N],
    first: usize,
    len: usize,
}

impl<W: Link, const N: usize> Chain<W, N> {
    fn new() -> Self {
        // SAFETY: work requests and pieces are plain numbers and pointers; zero is valid for each.
        let (wrs, sges) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        Chain { wrs, sges, bufs: [const { None }; N], first: 0, len: 0 }
    }

    fn has_room(&self) -> bool {
        self.len < N
    }

    /// Appends a request; there is room.
    fn push(&mut self, wr: W, sge: sys::ibv_sge, buf: Option<Buf>) {
        (self.wrs[self.len], self.sges[self.len], self.bufs[self.len]) = (wr, sge, buf);
        self.len += 1;
    }

    /// The oldest request that was not posted, with its buffer.
    fn pop(&mut self) -> Option<(u64, Option<Buf>)> {
        if self.first == self.len {
            (self.first, self.len) = (0, 0);
            return None;
        }
        self.first += 1;
        Some((self.wrs[self.first - 1].wr_id(), self.bufs[self.first - 1].take()))
    }

    fn link(&mut self) {
        let (wrs, sges) = (self.wrs.as_mut_ptr(), self.sges.as_mut_ptr());
        for at in self.first..self.len {
            // SAFETY: `at` is below `len`, so both places are within their arrays, or one behind.
            let (sge, next) = unsafe { (sges.add(at), wrs.add(at + 1)) };
            let next = if at + 1 == self.len { null_mut() } else { next };
            // SAFETY: a request of this chain, which is borrowed mutably.
            unsafe { (*wrs.add(at)).set(sge, next) };
        }
    }

    /// Posts what is in the chain; what the device refuses stays in it.
    ///
    /// # Safety
    /// `verb` posts the list to a live queue, and reads it before it returns only.
    unsafe fn post(
        &mut self,
        mut posted: impl FnMut(u64, Posted),
        verb: impl FnOnce(*mut W, *mut *mut W) -> i32,
    ) -> i32 {
        if self.first == self.len {
            return 0;
        }
        self.link();
        let wrs = self.wrs.as_mut_ptr();
        let mut bad = null_mut();
        // SAFETY: `first` is below `len`, so it is a place of the array.
        let code = verb(unsafe { wrs.add(self.first) }, &mut bad);
        let end = if code == 0 { self.len } else { self.refused_at(bad) };
        // Taken out before the caller sees the first: should it panic, the others are leaked, not ours.
        let gone: [Option<Posted>; N] = std::array::from_fn(|at| {
            let buf = if (self.first..end).contains(&at) { self.bufs[at].take() } else { None };
            buf.map(Posted::new)
        });
        let from = std::mem::replace(&mut self.first, end);
        if end == self.len {
            (self.first, self.len) = (0, 0);
        }
        for (wr, buf) in self.wrs[from..end].iter().zip(gone.into_iter().skip(from)) {
            if let Some(buf) = buf {
                posted(wr.wr_id(), buf);
            }
        }
        code
    }

    /// The position of the first request that was refused. One that is not of the chain says nothing
    /// about the others: they stay with the device.
    fn refused_at(&self, bad: *mut W) -> usize {
        let offset = bad.addr().wrapping_sub(self.wrs.as_ptr().addr()) / size_of::<W>().max(1);
        if (self.first..self.len).contains(&offset) { offset } else { self.len }
    }
}

impl<W, const N: usize> Chain<W, N> {
    fn print(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{name} of {} requests, {} posted", self.len, self.first)
    }
}

/// Receives to be posted together.
pub struct RecvChain<const N: usize>(Chain<sys::ibv_recv_wr, N>);

impl<const N: usize> RecvChain<N> {
    /// A chain of none, with room for `N`.
    pub fn new() -> RecvChain<N> {
        RecvChain(Chain::new())
    }

    /// Appends a receive into a whole buffer.
    ///
    /// # Errors
    /// The chain is full; the buffer comes back.
    pub fn push(&mut self, wr_id: u64, buf: Buf) -> Result<(), Buf> {
        if !self.0.has_room() {
            return Err(buf);
        }
        let sge = sys::ibv_sge { addr: buf.addr(), length: buf.capacity(), lkey: buf.lkey().0 };
        let wr = sys::ibv_recv_wr { wr_id, next: null_mut(), sg_list: null_mut(), num_sge: 1 };
        self.0.push(wr, sge, Some(buf));
        Ok(())
    }

    /// Takes out the oldest receive that is not posted.
    pub fn pop(&mut self) -> Option<(u64, Buf)> {
        let (wr_id, buf) = self.0.pop()?;
        Some((wr_id, buf?))
    }

    /// # Safety
    /// As [`Chain::post`].
    pub(crate) unsafe fn post(
        &mut self,
        posted: impl FnMut(u64, Posted),
        verb: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> i32,
    ) -> i32 {
        // SAFETY: the caller promises what the inner function asks for.
        unsafe { self.0.post(posted, verb) }
    }
}

/// Sends, reads and writes to be posted together. Inline data is borrowed until then.
pub struct SendChain<'a, const N: usize>(Chain<sys::ibv_send_wr, N>, PhantomData<&'a [u8]>);

impl<'a, const N: usize> SendChain<'a, N> {
    /// A chain of none, with room for `N`.
    pub fn new() -> SendChain<'a, N> {
        SendChain(Chain::new(), PhantomData)
    }

    /// Appends a send of the first `len` bytes of a buffer.
    ///
    /// # Errors
    /// The chain is full; the buffer comes back.
    pub fn push_send(&mut self, wr_id: u64, buf: Buf, len: u32, flags: SendFlags) -> Result<(), Buf> {
        if !self.0.has_room() {
            return Err(buf);
        }
        let sge = sys::ibv_sge { addr: buf.addr(), length: len.min(buf.capacity()), lkey: buf.lkey().0 };
        self.0.push(request(wr_id, null_mut(), sys::IBV_WR_SEND, flags.bits()), sge, Some(buf));
        Ok(())
    }

    /// Appends a send of these bytes; false if the chain is full.
    #[must_use]
    pub fn push_inline(&mut self, wr_id: u64, bytes: &'a [u8], flags: SendFlags) -> bool {
        let sge = sys::ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 };
        let flags = flags.bits() | sys::IBV_SEND_INLINE;
        self.push(request(wr_id, null_mut(), sys::IBV_WR_SEND, flags), sge)
    }

    /// Appends a read or write of a peer's memory; false if the chain is full.
    #[must_use]
    pub fn push_rdma(
        &mut self,
        op: RdmaOp,
        wr_id: u64,
        local: Sge,
        remote: Remote,
        flags: SendFlags,
    ) -> bool {
        let sge = sys::ibv_sge { addr: local.addr, length: local.len, lkey: local.lkey.0 };
        self.push(rdma_request(op, wr_id, null_mut(), remote, flags), sge)
    }

    fn push(&mut self, wr: sys::ibv_send_wr, sge: sys::ibv_sge) -> bool {
        let room = self.0.has_room();
        if room {
            self.0.push(wr, sge, None);
        }
        room
    }

    /// Takes out the oldest request that is not posted, with its buffer if it is a send of one.
    pub fn pop(&mut self) -> Option<(u64, Option<Buf>)> {
        self.0.pop()
    }

    /// # Safety
    /// As [`Chain::post`].
    pub(crate) unsafe fn post(
        &mut self,
        posted: impl FnMut(u64, Posted),
        verb: impl FnOnce(*mut sys::ibv_send_wr, *mut *mut sys::ibv_send_wr) -> i32,
    ) -> i32 {
        // SAFETY: the caller promises what the inner function asks for.
        unsafe { self.0.post(posted, verb) }
    }
}

impl<const N: usize> Default for RecvChain<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> fmt::Debug for RecvChain<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.print("RecvChain", f)
    }
}

impl<const N: usize> Default for SendChain<'_, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> fmt::Debug for SendChain<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.print("SendChain", f)
    }
}
