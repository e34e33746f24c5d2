//! Memory that a queue pair sends from: messages are written into it one behind the other, and posted where they lie.
//!
//! A [`Buf`](crate::Buf) is one message's and comes back by its completion. An outbox has many messages at a time, and goes with its queue pair: its
//! memory is there until that is destroyed, so that no request reads what is not there any more. Which of its bytes the device still reads is for
//! its owner to know: what is written over them is sent in their place.

use crate::error::Error;
use crate::mr::Access;
use crate::pool::{Chunk, PoolError};
use crate::qp::Qp;
use crate::request::{SendFlags, write_request};
use crate::types::LKey;
use rdma_sys as sys;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, slice_from_raw_parts_mut};
use std::sync::Arc;

/// Bytes, zero at first, registered for a queue pair or not.
#[derive(Debug)]
pub struct Outbox {
    addr: NonNull<u8>,
    len: usize,
    /// None: it is a box of its own.
    registered: Option<Box<Registered>>,
}

#[derive(Debug)]
struct Registered {
    /// The number of the queue pair whose requests may name it.
    owner: u64,
    lkey: LKey,
    _chunk: Arc<Chunk>,
}

// SAFETY: the only way to its bytes but for the device, which reads them.
unsafe impl Send for Outbox {}
// SAFETY: shared references only read.
unsafe impl Sync for Outbox {}

impl Outbox {
    /// So many bytes that cannot be posted: for what goes inline.
    pub fn unregistered(len: usize) -> Outbox {
        let bytes = Box::into_raw(vec![0u8; len].into_boxed_slice());
        // SAFETY: what a box points to is never null.
        let addr = unsafe { NonNull::new_unchecked(bytes.cast::<u8>()) };
        Outbox { addr, len, registered: None }
    }

    /// So many bytes that requests of this queue pair may name.
    ///
    /// # Errors
    /// There is no memory, or the device does not register it.
    pub fn registered(qp: &Qp, len: usize) -> Result<Outbox, PoolError> {
        let chunk = Arc::new(Chunk::new(qp.pd(), len, Access::empty())?);
        let (addr, lkey) = (chunk.start(), chunk.lkey());
        let owner = qp.keep(chunk.clone());
        Ok(Outbox { addr, len, registered: Some(Box::new(Registered { owner, lkey, _chunk: chunk })) })
    }

    /// It can be posted from.
    #[inline(always)] // with every message
    pub fn is_registered(&self) -> bool {
        self.registered.is_some()
    }

    /// Number of bytes.
    #[inline(always)] // with every message
    pub fn len(&self) -> usize {
        self.len
    }

    /// There are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Some of its bytes, if there are so many.
    #[inline(always)] // with every message
    pub fn bytes(&self, at: usize, len: usize) -> Option<&[u8]> {
        self.has(at, len).then(|| Part { outbox: self, at, len }.as_slice())
    }

    /// Room for a message; `None`: there are not so many bytes.
    #[inline(always)] // with every message
    pub fn room(&mut self, at: usize, len: usize) -> Option<Room<'_>> {
        self.has(at, len).then_some(Room { outbox: self, at, len })
    }

    #[inline(always)]
    fn has(&self, at: usize, len: usize) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.len)
    }
}

/// Bytes of an outbox that a message is written to.
#[derive(Debug)]
pub struct Room<'a> {
    outbox: &'a mut Outbox,
    /// Both are within it.
    at: usize,
    len: usize,
}

impl<'a> Room<'a> {
    /// The bytes.
    #[inline(always)] // with every message
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: within the outbox, as was found out when it was made, whose bytes are initialised (zero at first). The exclusive reference keeps other
        // users out, and what the device reads meanwhile is not among these, or is sent with what is written.
        unsafe { std::slice::from_raw_parts_mut(self.outbox.addr.as_ptr().add(self.at), self.len) }
    }

    /// They are written.
    #[inline(always)] // with every message
    pub fn written(self) -> Part<'a> {
        Part { outbox: self.outbox, at: self.at, len: self.len }
    }
}

/// Some bytes of an outbox.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    outbox: &'a Outbox,
    /// Both are within it.
    at: usize,
    len: usize,
}

impl<'a> Part<'a> {
    /// The bytes.
    #[inline(always)] // with every message
    pub fn as_slice(self) -> &'a [u8] {
        // SAFETY: within the outbox, as was found out when it was made, whose bytes are initialised (zero at first); the device only reads them.
        unsafe { std::slice::from_raw_parts(self.outbox.addr.as_ptr().add(self.at), self.len) }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        if self.registered.is_none() {
            // SAFETY: made of such a box, and given back once.
            drop(unsafe { Box::from_raw(slice_from_raw_parts_mut(self.addr.as_ptr(), self.len)) });
        }
    }
}

impl Qp {
    /// Sends a part of an outbox of this queue pair, which is the device's until the completion of this request or of a later one.
    ///
    /// # Errors
    /// The queue is full, the queue pair cannot send, or the outbox is not its own.
    #[inline(always)] // with every message
    pub fn post_send_part(&self, wr_id: u64, part: Part<'_>, flags: SendFlags) -> Result<(), Error> {
        let Some(memory) = part.outbox.registered.as_ref().filter(|memory| memory.owner == self.number())
        else {
            return Err(self.not_its_own());
        };
        let addr = part.outbox.addr.as_ptr() as u64 + part.at as u64;
        let mut sge = sys::ibv_sge { addr, length: part.len as u32, lkey: memory.lkey.0 };
        let mut wr = MaybeUninit::uninit();
        let wr = write_request(&mut wr, wr_id, &mut sge, sys::IBV_WR_SEND, flags.bits());
        self.post_checked(wr)
    }
}
