//! Completions: what they say, and the proof that they are.
//!
//! ```text
//!   Cq::poll --> Completions --take--> Completion --(reads as)--> Wc        a copy of what it says
//!                                          |
//!                                          +--> Posted::completed           the buffer of one receive or datagram, which spends it
//!                                          +--> Posted::completed_up_to     those of the sends up to it
//! ```
//! A [`Completion`] comes from a poll and from nowhere else, once for each work request that the
//! device has reported: it cannot be made, copied or cloned.

use crate::placed;
use crate::types::Qpn;
use rdma_sys as sys;
use std::ffi::c_int;
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::NonNull;

/// What a completion says.
#[derive(Clone, Copy)]
#[repr(transparent)]
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

    /// Where the device has left its message, if that is not the buffer of its receive ([`Cq::place_messages`](crate::Cq::place_messages)).
    #[inline(always)]
    pub(crate) fn place(&self) -> Option<NonNull<u8>> {
        if self.is_placed() { placed::place_if(self.is_ok()) } else { None }
    }

    /// The device says that its message, if there is one, is not in the buffer of its receive.
    #[inline(always)]
    pub fn is_placed(&self) -> bool {
        self.0.wc_flags & sys::IBV_WC_PLACED != 0
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

    /// It failed because its connection is broken, which says nothing of the request: over another connection it may succeed. Not so
    /// where the device knows that the peer's process has ended.
    pub fn may_pass(&self) -> bool {
        match self.status() {
            WcStatus::RetryExc => self.0.vendor_err != sys::VENDOR_ERR_PEER_HAS_ENDED,
            WcStatus::Flushed | WcStatus::RnrRetryExc | WcStatus::LocQpOp | WcStatus::Other(_) => true,
            _ => false,
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

/// A work request is done: the device has said so. One that is dropped gives up its message, if that lies where the device has left it.
///
/// ```compile_fail
/// fn twice(done: verbs::Completion) -> (verbs::Completion, verbs::Completion) {
///     (done.clone(), done)
/// }
/// ```
/// ```compile_fail
/// fn forged(wc: verbs::Wc) -> verbs::Completion {
///     verbs::Completion(wc)
/// }
/// ```
#[derive(Debug)]
pub struct Completion(Wc);

impl Completion {
    /// Its message is in the buffer of its receive now.
    pub(crate) fn settled(&mut self) {
        self.0.0.wc_flags &= !sys::IBV_WC_PLACED;
    }
}

impl Drop for Completion {
    #[inline(always)] // of most nothing is left to do; no call is given it, so that it need not be in memory
    fn drop(&mut self) {
        if self.is_placed() && self.is_ok() {
            placed::give_up();
        }
    }
}

impl Deref for Completion {
    type Target = Wc;

    #[inline]
    fn deref(&self) -> &Wc {
        &self.0
    }
}

/// Completions that have been polled and not been looked at, in order. One that is dropped leaves
/// the buffer of its work request with the device.
#[repr(C)] // in this order: whether there are any is asked more often than what they are
pub struct Completions<const N: usize> {
    next: usize,
    len: usize,
    /// Those from `next` to `len`, which is at most `N`, are initialised.
    wcs: [MaybeUninit<sys::ibv_wc>; N],
}

impl<const N: usize> Completions<N> {
    /// None, and room for `N`.
    pub const fn new() -> Completions<N> {
        Completions { next: 0, len: 0, wcs: [const { MaybeUninit::uninit() }; N] }
    }

    /// All have been taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.next == self.len
    }

    /// What the next one says.
    #[inline]
    pub fn peek(&self) -> Option<&Wc> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: `next` is below `len`, so it is below `N` and its place is initialised. A `Wc` is nothing but the C struct.
        Some(unsafe { &*self.wcs.as_ptr().cast::<Wc>().add(self.next) })
    }

    /// Takes the next one.
    #[inline]
    pub fn take(&mut self) -> Option<Completion> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: `next` is below `len`, so it is below `N` and its place is initialised; it is read
        // out once, for `next` goes on.
        let wc = unsafe { self.wcs.get_unchecked(self.next).assume_init_read() };
        self.next += 1;
        Some(Completion(Wc(wc)))
    }

    /// Fills it anew by one call, in place of what it has; how many there are, or what is below 0. If there are none it stays as it is.
    ///
    /// # Safety
    /// `poll` writes as many completions as it returns, no more than `N`, from the front of the room,
    /// and does not unwind.
    #[inline]
    pub(crate) unsafe fn refill(
        &mut self,
        poll: impl FnOnce(*mut sys::ibv_wc) -> c_int,
    ) -> Result<usize, c_int> {
        let got = poll(self.wcs.as_mut_ptr().cast());
        if got == 0 {
            return Ok(0);
        }
        if got < 0 {
            return Err(got);
        }
        (self.next, self.len) = (0, got as usize);
        Ok(self.len)
    }
}

impl<const N: usize> Default for Completions<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> fmt::Debug for Completions<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} completions", self.len - self.next)
    }
}
