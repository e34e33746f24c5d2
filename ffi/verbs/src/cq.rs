//! Completion queues, completions and completion channels.

use crate::context::Context;
use crate::descriptor::set_nonblocking;
use crate::error::{Error, check, leaked};
use crate::types::Qpn;
use rdma_sys as sys;
use std::ffi::c_int;
use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A completion.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Wc(sys::ibv_wc);

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcStatus {
    /// As asked.
    Success,
    /// A receive was too short, or a message too long.
    LocLen,
    /// The queue pair was not consistent.
    LocQpOp,
    /// A local buffer is not registered for this.
    LocProt,
    /// The queue pair was in the error state.
    Flushed,
    /// The peer found the request invalid.
    RemInvReq,
    /// The peer's memory is not registered for this.
    RemAccess,
    /// The peer could not do it.
    RemOp,
    /// The peer did not answer: it is gone.
    RetryExc,
    /// The peer had no receive for too long.
    RnrRetryExc,
    /// Any other value of `ibv_wc_status`.
    Other(u32),
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WcStatus::Success => "success",
            WcStatus::LocLen => "a message was longer than the receive that was posted for it",
            WcStatus::LocQpOp => "the queue pair was not consistent",
            WcStatus::LocProt => "a local buffer is not registered for this",
            WcStatus::Flushed => "flushed, its queue pair is in the error state",
            WcStatus::RemInvReq => "the peer found the request invalid: the two sides disagree about sizes",
            WcStatus::RemAccess => "the peer's memory is not registered for this",
            WcStatus::RemOp => "the peer could not carry it out",
            WcStatus::RetryExc => {
                "the peer does not answer: its process has ended, or the way to it is broken"
            }
            WcStatus::RnrRetryExc => "the peer had no receive posted for too long",
            WcStatus::Other(code) => return write!(f, "status {code}"),
        })
    }
}

/// What a work request was; valid in successful completions only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcOpcode {
    /// A send.
    Send,
    /// An RDMA write.
    RdmaWrite,
    /// An RDMA read.
    RdmaRead,
    /// A receive.
    Recv,
    /// A receive that an RDMA write with immediate data consumed.
    RecvRdmaWithImm,
    /// Any other value of `ibv_wc_opcode`.
    Other(u32),
}

impl Wc {
    /// As given when it was posted.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// It went as asked.
    #[inline]
    pub fn is_ok(&self) -> bool {
        self.0.status == sys::IBV_WC_SUCCESS
    }

    /// How it ended.
    pub fn status(&self) -> WcStatus {
        match self.0.status {
            sys::IBV_WC_SUCCESS => WcStatus::Success,
            sys::IBV_WC_LOC_LEN_ERR => WcStatus::LocLen,
            sys::IBV_WC_LOC_QP_OP_ERR => WcStatus::LocQpOp,
            sys::IBV_WC_LOC_PROT_ERR => WcStatus::LocProt,
            sys::IBV_WC_WR_FLUSH_ERR => WcStatus::Flushed,
            sys::IBV_WC_REM_INV_REQ_ERR => WcStatus::RemInvReq,
            sys::IBV_WC_REM_ACCESS_ERR => WcStatus::RemAccess,
            sys::IBV_WC_REM_OP_ERR => WcStatus::RemOp,
            sys::IBV_WC_RETRY_EXC_ERR => WcStatus::RetryExc,
            sys::IBV_WC_RNR_RETRY_EXC_ERR => WcStatus::RnrRetryExc,
            other => WcStatus::Other(other),
        }
    }

    /// What it was; look only if [`is_ok`](Self::is_ok).
    pub fn opcode(&self) -> WcOpcode {
        match self.0.opcode {
            sys::IBV_WC_SEND => WcOpcode::Send,
            sys::IBV_WC_RDMA_WRITE => WcOpcode::RdmaWrite,
            sys::IBV_WC_RDMA_READ => WcOpcode::RdmaRead,
            sys::IBV_WC_RECV => WcOpcode::Recv,
            sys::IBV_WC_RECV_RDMA_WITH_IMM => WcOpcode::RecvRdmaWithImm,
            other => WcOpcode::Other(other),
        }
    }

    /// Bytes of a received message, the 40 of a datagram's GRH room included.
    #[inline]
    pub fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    /// Our queue pair.
    #[inline]
    pub fn qp_num(&self) -> Qpn {
        Qpn(self.0.qp_num)
    }

    /// Sender of a datagram.
    pub fn src_qp(&self) -> Qpn {
        Qpn(self.0.src_qp)
    }

    /// Sender's LID of a datagram.
    pub fn slid(&self) -> crate::Lid {
        crate::Lid(self.0.slid)
    }

    /// The datagram's first 40 bytes are a GRH.
    pub fn has_grh(&self) -> bool {
        self.0.wc_flags & sys::IBV_WC_GRH != 0
    }

    /// Immediate data that came along.
    pub fn imm(&self) -> Option<u32> {
        let has = self.0.wc_flags & sys::IBV_WC_WITH_IMM != 0;
        // SAFETY: both members of the union are plain 32-bit values.
        has.then(|| u32::from_be(unsafe { self.0.imm.imm_data }))
    }
}

impl Default for Wc {
    fn default() -> Wc {
        // SAFETY: a completion is plain numbers; zero is valid for each.
        Wc(unsafe { std::mem::zeroed() })
    }
}

impl fmt::Debug for Wc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Wc {{ wr_id {:#x}, {:?}, {}, {} bytes }}",
            self.wr_id(),
            self.status(),
            self.qp_num(),
            self.byte_len()
        )
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    context: Arc<Context>,
    channel: Option<Arc<CompChannel>>,
    raw: NonNull<sys::ibv_cq>,
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
        let cq = Cq { context: context.clone(), channel: channel.cloned(), raw, depth: AtomicU32::new(0) };
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

    /// Takes completions, in order; how many.
    ///
    /// # Errors
    /// The queue is broken: it overran, or the device is gone.
    #[inline]
    pub fn poll(&self, wcs: &mut [Wc]) -> Result<usize, Error> {
        // SAFETY: a live queue, and room for as many completions as we say (`Wc` is transparent).
        let got = unsafe { sys::ibv_poll_cq(self.raw.as_ptr(), wcs.len() as c_int, wcs.as_mut_ptr().cast()) };
        usize::try_from(got).map_err(|_| self.broken(got))
    }

    #[cold]
    fn broken(&self, code: c_int) -> Error {
        Error::new("ibv_poll_cq", self.context.name(), code.saturating_neg())
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
