//! Completion queues and completion channels.

use crate::context::Context;
use crate::descriptor::set_nonblocking;
use crate::error::{Error, check, leaked};
use crate::ops;
use crate::placed;
use crate::wc::Completions;
use rdma_sys as sys;
use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Tells the completion queues of a process apart: what events name them by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqId(usize);

impl CqId {
    pub(crate) fn of(raw: *mut sys::ibv_cq) -> CqId {
        CqId(raw as usize)
    }
}

/// A poll has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    context: Arc<Context>,
    channel: Option<Arc<CompChannel>>,
    raw: NonNull<sys::ibv_cq>,
    /// The driver's function, looked up once.
    poll: ops::PollCq,
    depth: AtomicU32,
}

// SAFETY: verbs objects may be used from every thread.
unsafe impl Send for Cq {}
// SAFETY: `depth` is atomic, the other fields never change, and threads may call verbs of one
// completion queue at the same time: the library locks it.
unsafe impl Sync for Cq {}

impl Cq {
    /// A queue of at least `depth` entries; armed, it announces completions on the channel.
    ///
    /// # Errors
    /// The depth is beyond the device's limit.
    pub fn create(
        context: &Arc<Context>,
        depth: u32,
        channel: Option<&Arc<CompChannel>>,
    ) -> Result<Arc<Cq>, Error> {
        let raw_channel = channel.map_or(null_mut(), |c| c.raw.as_ptr());
        let entries = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: an open context and a channel of it, or none.
        let raw = unsafe { (context.table().create_cq)(context.raw(), entries, null_mut(), raw_channel, 0) };
        let object = || format!("{depth} entries on {}", context.name());
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_cq", object()))?;
        // SAFETY: a live queue, whose context has the functions of its driver.
        let poll = unsafe { ops::poll_cq(raw.as_ptr()) };
        let depth = AtomicU32::new(0);
        let cq = Cq { context: context.clone(), channel: channel.cloned(), raw, poll, depth };
        cq.read_depth();
        Ok(Arc::new(cq))
    }

    fn read_depth(&self) {
        // SAFETY: a live queue; the field changes in create and resize only.
        let cqe = unsafe { (*self.raw.as_ptr()).cqe };
        self.depth.store(u32::try_from(cqe).unwrap_or(0), Ordering::Relaxed);
    }

    /// Entries.
    pub fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }

    /// Makes it at least so deep.
    ///
    /// # Errors
    /// Beyond the device's limit, or the device cannot resize.
    pub fn resize(&self, depth: u32) -> Result<(), Error> {
        let entries = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: a live queue.
        let code = unsafe { (self.context.table().resize_cq)(self.raw.as_ptr(), entries) };
        check("ibv_resize_cq", code, || format!("{depth} entries on {}", self.context.name()))?;
        self.read_depth();
        Ok(())
    }

    /// From now on the software device may leave a message of at least so many bytes where it is instead of copying it into the buffer
    /// of its receive: one at a time, the last of a poll. Other devices copy as ever; false then.
    pub fn place_messages(&self, least: u32) -> bool {
        let Some(enable) = self.context.table().place_messages else { return false };
        // SAFETY: a live queue of the library whose table this is; what it returns is valid as long as the library is there, which is never
        // unloaded, or null.
        let word = unsafe { enable(self.raw.as_ptr(), least).as_ref() };
        word.inspect(|word| placed::announce(word)).is_some()
    }

    /// Takes completions, in order, in place of those that `into` still has; how many. Without any, `into` stays as it is.
    ///
    /// # Errors
    /// The queue is broken: it overran, or the device is gone.
    #[inline]
    pub fn poll<const N: usize>(&self, into: &mut Completions<N>) -> Result<usize, Error> {
        self.poll_times(into, 1).map_err(|Broken| self.broken())
    }

    /// The same up to `times` times, until there is one.
    ///
    /// # Errors
    /// As [`Cq::poll`]; [`Cq::broken`] says so in words.
    #[inline(always)] // with every look
    pub fn poll_times<const N: usize>(&self, into: &mut Completions<N>, times: u32) -> Result<usize, Broken> {
        let (raw, poll) = (self.raw.as_ptr(), self.poll);
        for _ in 0..times {
            // SAFETY: a live queue, its driver's function, and room for `N` completions. The verb writes as many as it returns,
            // from the front, no more than asked for (ibv_poll_cq(3)); it is a C function, which no panic leaves.
            match unsafe { into.refill(|room| poll(raw, N as c_int, room)) } {
                Ok(0) => {}
                Ok(found) => return Ok(found),
                Err(_) => return Err(Broken),
            }
        }
        Ok(0)
    }

    /// A negative count says that it is so, and not why (ibv_poll_cq(3)).
    #[cold]
    pub fn broken(&self) -> Error {
        Error::new("ibv_poll_cq", self.context.name(), libc::EIO)
    }

    /// The next completion (the next solicited one) is announced on the channel, once.
    ///
    /// # Errors
    /// The device is gone.
    pub fn arm(&self, solicited: bool) -> Result<(), Error> {
        // SAFETY: a live queue.
        let code = unsafe { sys::ibv_req_notify_cq(self.raw.as_ptr(), solicited.into()) };
        check("ibv_req_notify_cq", code, || self.context.name().into())
    }

    /// The channel it announces on.
    pub fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.channel.as_ref()
    }

    /// What events name it by.
    pub fn id(&self) -> CqId {
        CqId::of(self.raw())
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: every queue pair on it holds it, so there is none left; its events are acknowledged as they are taken.
        let code = unsafe { (self.context.table().destroy_cq)(self.raw.as_ptr()) };
        leaked("ibv_destroy_cq", code, &self.context.name());
    }
}

/// A completion channel: a file descriptor that turns readable.
#[derive(Debug)]
pub struct CompChannel {
    context: Arc<Context>,
    raw: NonNull<sys::ibv_comp_channel>,
}

// SAFETY: verbs objects may be used from every thread.
unsafe impl Send for CompChannel {}
// SAFETY: the pointer and the descriptor never change, and the kernel or softib gives each event to
// one caller.
unsafe impl Sync for CompChannel {}

impl CompChannel {
    /// A channel whose events are taken without waiting.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn create(context: &Arc<Context>) -> Result<Arc<CompChannel>, Error> {
        // SAFETY: an open context.
        let raw = unsafe { (context.table().create_comp_channel)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_comp_channel", context.name()))?;
        let channel = CompChannel { context: context.clone(), raw };
        set_nonblocking(channel.fd()).map_err(|e| Error::new("fcntl", context.name(), e))?;
        Ok(Arc::new(channel))
    }

    /// Turns readable when an event waits.
    pub fn fd(&self) -> c_int {
        // SAFETY: a live channel.
        unsafe { (*self.raw.as_ptr()).fd }
    }

    /// Takes and acknowledges one event; false if there is none.
    ///
    /// # Errors
    /// The device is gone.
    pub fn next_event(&self) -> Result<bool, Error> {
        let (mut cq, mut data) = (null_mut(), null_mut());
        let table = self.context.table();
        // SAFETY: a live channel and room for the answers.
        if unsafe { (table.get_cq_event)(self.raw.as_ptr(), &mut cq, &mut data) } != 0 {
            return match sys::errno() {
                libc::EAGAIN => Ok(false),
                errno => Err(Error::new("ibv_get_cq_event", self.context.name(), errno)),
            };
        }
        // SAFETY: the queue that the event named; its destruction waits for this acknowledgement.
        unsafe { (table.ack_cq_events)(cq, 1) };
        Ok(true)
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        // SAFETY: every queue on it holds it, so there is none left.
        let code = unsafe { (self.context.table().destroy_comp_channel)(self.raw.as_ptr()) };
        leaked("ibv_destroy_comp_channel", code, &self.context.name());
    }
}
