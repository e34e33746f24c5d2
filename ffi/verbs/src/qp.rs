//! Queue pairs: creation, transitions, posting.

use crate::ah::Ah;
use crate::chain::{SendChain, Sent};
use crate::cq::Cq;
use crate::error::{Error, check, leaked};
use crate::mr::Pd;
use crate::ops;
use crate::pool::{Buf, Chunk};
use crate::posted::{Posted, QueueTag};
use crate::qp_attr::{self, Change, InitAttr, QpCap, QpInit, QpKind, QpState, RtrAttr, RtsAttr};
use crate::recv::{RecvQueue, Tag, sealed};
use crate::request::{
    AtomicOp, RdmaOp, Remote, SendFlags, Sge, atomic_request, opcode_of, rdma_request, request, write_request,
};
use crate::srq::{self, Srq};
use crate::types::{Psn, QKey, Qpn};
use rdma_sys as sys;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::slice::from_raw_parts;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Of the next queue pair of this process.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A queue pair.
#[derive(Debug)]
#[repr(C)] // in this order: what each message reads comes first
pub struct Qp {
    raw: NonNull<sys::ibv_qp>,
    /// The driver's functions, looked up once.
    write_short: Option<ops::WriteShort>,
    post_send: ops::PostSend,
    sends_at_once: Option<ops::SendsAtOnce>,
    rdma_at_once: Option<ops::RdmaAtOnce>,
    pd: Arc<Pd>,
    kind: QpKind,
    num: Qpn,
    cap: QpCap,
    /// Tells it from all others of this process, before and after it.
    number: u64,
    // Alive as long as the queue pair is.
    _cqs: (Arc<Cq>, Arc<Cq>),
    _srq: Option<Arc<Srq>>,
    /// Memory that its requests may name.
    kept: Mutex<Vec<Arc<Chunk>>>,
}

// SAFETY: verbs objects may be used from every thread.
unsafe impl Send for Qp {}
// SAFETY: the fields never change, and threads may call verbs of one queue pair at the same time:
// the library locks its queues.
unsafe impl Sync for Qp {}

impl Qp {
    /// Creates one, in RESET.
    ///
    /// # Errors
    /// Beyond the device's limits.
    pub fn create(pd: &Arc<Pd>, init: &QpInit) -> Result<Arc<Qp>, Error> {
        let mut attr = to_sys(init);
        // SAFETY: live objects of one context.
        let raw = unsafe { (pd.context().table().create_qp)(pd.raw(), &mut attr) };
        let object = || format!("{:?} queue pair with {:?} on {}", init.kind, init.cap, pd.context().name());
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_qp", object()))?;
        // SAFETY: a live queue pair; its number never changes.
        let num = Qpn(unsafe { (*raw.as_ptr()).qp_num });
        // SAFETY: a live queue pair, whose context has the functions of its driver.
        let post_send = unsafe { ops::post_send(raw.as_ptr()) };
        let cap = granted(&attr.cap);
        let (_cqs, _srq) = ((init.send_cq.clone(), init.recv_cq.clone()), init.srq.clone());
        let sys::Table { write_short, sends_at_once, rdma_at_once, .. } = *pd.context().table();
        Ok(Arc::new(Qp {
            pd: pd.clone(),
            raw,
            post_send,
            write_short,
            sends_at_once,
            rdma_at_once,
            kind: init.kind,
            num,
            cap,
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            _cqs,
            _srq,
            kept: Mutex::new(Vec::new()),
        }))
    }

    /// Its number.
    #[inline]
    pub fn num(&self) -> Qpn {
        self.num
    }

    /// Its sizes, as granted.
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// Tells it from all others of this process.
    #[inline(always)] // with every message
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// This memory is there as long as the queue pair is, of this number.
    pub(crate) fn keep(&self, memory: Arc<Chunk>) -> u64 {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
        self.number
    }

    #[cold]
    pub(crate) fn not_its_own(&self) -> Error {
        self.refused("ibv_post_send", libc::EINVAL)
    }

    /// Its state.
    ///
    /// # Errors
    /// The device is gone.
    pub fn state(&self) -> Result<QpState, Error> {
        let mut attr = sys::ibv_qp_attr::default();
        // SAFETY: the init attributes are plain numbers and pointers; zero is valid for each.
        let mut init = unsafe { std::mem::zeroed::<sys::ibv_qp_init_attr>() };
        let mask = sys::IBV_QP_STATE.cast_signed();
        // SAFETY: a live queue pair and room for the answers.
        let code = unsafe { (self.pd.context().table().query_qp)(self.raw(), &mut attr, mask, &mut init) };
        check("ibv_query_qp", code, || self.describe())?;
        Ok(QpState::from_sys(attr.qp_state))
    }

    /// RESET to INIT.
    ///
    /// # Errors
    /// Wrong state or attributes.
    pub fn to_init(&self, attr: &InitAttr) -> Result<(), Error> {
        self.modify("INIT", qp_attr::init(self.kind, attr))
    }

    /// INIT to RTR, connected services.
    ///
    /// # Errors
    /// Wrong state or attributes.
    pub fn to_rtr(&self, attr: &RtrAttr) -> Result<(), Error> {
        self.modify("RTR", qp_attr::rtr(self.kind, attr))
    }

    /// RTR to RTS, connected services.
    ///
    /// # Errors
    /// Wrong state or attributes.
    pub fn to_rts(&self, attr: &RtsAttr) -> Result<(), Error> {
        self.modify("RTS", qp_attr::rts(self.kind, attr))
    }

    /// INIT to RTR, datagrams.
    ///
    /// # Errors
    /// Wrong state.
    pub fn to_rtr_ud(&self) -> Result<(), Error> {
        self.modify("RTR", qp_attr::datagram_rtr())
    }

    /// RTR to RTS, datagrams.
    ///
    /// # Errors
    /// Wrong state.
    pub fn to_rts_ud(&self, psn: Psn) -> Result<(), Error> {
        self.modify("RTS", qp_attr::datagram_rts(psn))
    }

    /// To ERR: everything that is posted is flushed.
    ///
    /// # Errors
    /// The device is gone.
    pub fn to_error(&self) -> Result<(), Error> {
        self.modify("ERR", qp_attr::error())
    }

    /// The transition that a connection manager has prepared.
    ///
    /// # Errors
    /// Wrong state or attributes.
    pub fn to_prepared(&self, prepared: &crate::cm::Prepared) -> Result<(), Error> {
        self.modify(prepared.state_name(), prepared.change())
    }

    fn modify(&self, state: &str, (mut attr, mask): Change) -> Result<(), Error> {
        // SAFETY: a live queue pair and attributes.
        let code =
            unsafe { (self.pd.context().table().modify_qp)(self.raw(), &mut attr, mask.cast_signed()) };
        check("ibv_modify_qp", code, || format!("{} to {state}", self.describe()))
    }

    fn describe(&self) -> String {
        format!("{} on {}", self.num, self.pd.context().name())
    }

    fn raw(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }

    /// Hands a buffer to the device to receive into.
    ///
    /// # Errors
    /// The queue is full; the buffer comes back.
    #[inline(always)] // a result so large would come back through memory
    pub fn post_recv(&self, wr_id: u64, buf: Buf) -> Result<Posted, (Buf, Error)> {
        // SAFETY: the queue pair lives as long as `self`; the buffer becomes the device's.
        let code = unsafe { srq::post(wr_id, &buf, |wr, bad| sys::ibv_post_recv(self.raw(), wr, bad)) };
        match code {
            0 => Ok(Posted::new(buf, wr_id, QueueTag::of(self.num))),
            code => Err((buf, self.refused("ibv_post_recv", code))),
        }
    }

    /// Hands the sends of a chain to the device with one call; `sent` takes the buffer of each that went, with its
    /// work request id, in order.
    ///
    /// # Errors
    /// The queue is full, or the queue pair cannot send; what did not go stays in the chain.
    #[inline]
    pub fn post_sends<const N: usize>(
        &self,
        chain: &mut SendChain<N>,
        sent: impl FnMut(u64, Sent),
    ) -> Result<(), Error> {
        let queue = QueueTag::of(self.num);
        // SAFETY: the queue pair lives as long as `self`; the verb reads the chain, and what is inline, before it
        // returns.
        let code = unsafe { chain.post(queue, sent, |wr, bad| sys::ibv_post_send(self.raw(), wr, bad)) };
        if code == 0 { Ok(()) } else { Err(self.refused("ibv_post_send", code)) }
    }

    /// Sends the first `len` bytes of a buffer, which is the device's until the completion.
    ///
    /// # Errors
    /// The queue is full, or the queue pair cannot send; the buffer comes back.
    #[inline(always)] // a result so large would come back through memory
    pub fn post_send(
        &self,
        wr_id: u64,
        buf: Buf,
        len: u32,
        flags: SendFlags,
    ) -> Result<Posted, (Buf, Error)> {
        let mut sge = sys::ibv_sge { addr: buf.addr(), length: len.min(buf.capacity()), lkey: buf.lkey().0 };
        let mut wr = MaybeUninit::uninit();
        let wr = write_request(&mut wr, wr_id, &mut sge, sys::IBV_WR_SEND, flags.bits());
        self.post_buf(wr, buf)
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// As `post_send`.
    #[expect(clippy::too_many_arguments, reason = "a datagram carries its address")]
    pub fn post_send_ud(
        &self,
        wr_id: u64,
        buf: Buf,
        len: u32,
        ah: &Ah,
        qpn: Qpn,
        qkey: QKey,
        flags: SendFlags,
    ) -> Result<Posted, (Buf, Error)> {
        let mut sge = sys::ibv_sge { addr: buf.addr(), length: len.min(buf.capacity()), lkey: buf.lkey().0 };
        let mut wr = request(wr_id, &mut sge, sys::IBV_WR_SEND, flags.bits());
        wr.wr.ud = sys::ibv_send_wr_ud { ah: ah.raw(), remote_qpn: qpn.0, remote_qkey: qkey.0 };
        self.post_buf(&mut wr, buf)
    }

    #[inline(always)] // as above
    pub(crate) fn post_buf(&self, wr: &mut sys::ibv_send_wr, buf: Buf) -> Result<Posted, (Buf, Error)> {
        // SAFETY: the request's only piece is a registered buffer that becomes the device's.
        let code = unsafe { self.post(wr) };
        match code {
            0 => Ok(Posted::new(buf, wr.wr_id, QueueTag::of(self.num))),
            code => Err((buf, self.refused("ibv_post_send", code))),
        }
    }

    /// Sends bytes that may be used again at once, no more than `cap().max_inline`.
    ///
    /// # Errors
    /// The queue is full, the queue pair cannot send, or it is too much.
    #[inline(always)] // a result so large would come back through memory
    pub fn post_send_inline(&self, wr_id: u64, bytes: &[u8], flags: SendFlags) -> Result<(), Error> {
        self.post_inline(wr_id, bytes, flags, |_| ())
    }

    /// Sends pieces, one behind the other, that may be used again at once: together no more than `cap().max_inline`, and no more of
    /// them than `cap().max_send_sge`. None is empty.
    ///
    /// # Errors
    /// As [`Qp::post_send_inline`].
    #[inline(always)] // with every message
    pub fn post_send_gathered<const PIECES: usize>(
        &self,
        wr_id: u64,
        pieces: [&[u8]; PIECES],
        flags: SendFlags,
    ) -> Result<(), Error> {
        let sge =
            |piece: &[u8]| sys::ibv_sge { addr: piece.as_ptr() as u64, length: piece.len() as u32, lkey: 0 };
        let mut sges = pieces.map(sge);
        let mut wr = MaybeUninit::uninit();
        let flags = flags.bits() | sys::IBV_SEND_INLINE;
        let wr = write_request(&mut wr, wr_id, sges.as_mut_ptr(), sys::IBV_WR_SEND, flags);
        wr.num_sge = PIECES as i32;
        self.post_checked(wr)
    }

    /// The same as [`Qp::post_send_inline`] for a request that `address` completes.
    #[inline(always)] // a result so large would come back through memory
    pub(crate) fn post_inline(
        &self,
        wr_id: u64,
        bytes: &[u8],
        flags: SendFlags,
        address: impl FnOnce(&mut sys::ibv_send_wr),
    ) -> Result<(), Error> {
        let mut sge = sys::ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 };
        let mut wr = MaybeUninit::uninit();
        let flags = flags.bits() | sys::IBV_SEND_INLINE;
        let wr = write_request(&mut wr, wr_id, &mut sge, sys::IBV_WR_SEND, flags);
        address(wr);
        // SAFETY: inline data is read before the call returns.
        match unsafe { self.post(wr) } {
            0 => Ok(()),
            code => Err(self.refused("ibv_post_send", code)),
        }
    }

    /// Reads or writes a peer's memory. The local memory is the device's until the completion.
    ///
    /// # Errors
    /// The queue is full, or the queue pair cannot send.
    #[inline]
    pub fn post_rdma(
        &self,
        op: RdmaOp,
        wr_id: u64,
        local: Sge,
        remote: Remote,
        flags: SendFlags,
    ) -> Result<(), Error> {
        let mut sge = sys::ibv_sge { addr: local.addr, length: local.len, lkey: local.lkey.0 };
        self.post_checked(&mut rdma_request(op, wr_id, &mut sge, remote, flags))
    }

    /// Writes bytes, which may be used again at once, into a peer's memory: no more than `cap().max_inline`.
    ///
    /// # Errors
    /// The queue is full, or the queue pair cannot send.
    #[inline(always)] // with every message
    pub fn post_write_inline(
        &self,
        wr_id: u64,
        bytes: &[u8],
        remote: Remote,
        flags: SendFlags,
    ) -> Result<(), Error> {
        self.post_inline(wr_id, bytes, flags, |wr| {
            wr.opcode = sys::IBV_WR_RDMA_WRITE;
            wr.wr.rdma = sys::ibv_send_wr_rdma { remote_addr: remote.addr, rkey: remote.rkey.0 };
        })
    }

    /// A send of so many bytes that is posted now does not wait in the send queue, as far as the device can tell.
    #[inline]
    pub fn sends_at_once(&self, len: u32) -> bool {
        // SAFETY: a function of the library that this live queue pair is of.
        self.sends_at_once.is_none_or(|ask| unsafe { ask(self.raw.as_ptr(), len) } != 0)
    }

    /// Reads or writes a peer's memory within the call, if nothing that was posted before waits and the device does so: it takes no entry of the send
    /// queue, and has no completion. `in_burst`: the program begins others before it waits for it. False: it is to be
    /// [posted](Self::post_rdma).
    #[inline]
    pub fn rdma_at_once(&self, op: RdmaOp, local: Sge, remote: Remote, in_burst: bool) -> bool {
        let Some(carry_out) = self.rdma_at_once else { return false };
        let sge = sys::ibv_sge { addr: local.addr, length: local.len, lkey: local.lkey.0 };
        let (raw, opcode) = (self.raw.as_ptr(), opcode_of(op));
        // SAFETY: a function of the library that this live queue pair is of; the device checks that the buffer is in memory that is registered.
        unsafe { carry_out(raw, opcode, &sge, remote.addr, remote.rkey.0, in_burst.into()) == 0 }
    }

    /// Carries out an atomic on a peer's memory. The value before comes into the first eight bytes of a buffer, which is the device's
    /// until the completion.
    ///
    /// # Errors
    /// The queue is full, or the queue pair cannot send; the buffer comes back.
    pub fn post_atomic(
        &self,
        op: AtomicOp,
        wr_id: u64,
        buf: Buf,
        remote: Remote,
        flags: SendFlags,
    ) -> Result<Posted, (Buf, Error)> {
        let mut sge = atomic_piece(&buf);
        let mut wr = atomic_request(op, wr_id, &mut sge, remote, flags);
        self.post_buf(&mut wr, buf)
    }

    /// It is one of an iWARP device.
    pub fn is_iwarp(&self) -> bool {
        self.pd.context().is_iwarp()
    }

    /// Writes no bytes into the peer's memory: a request that changes nothing, and completes behind everything before it.
    ///
    /// # Errors
    /// The queue is full, or the queue pair cannot send.
    pub fn post_empty_write(&self, wr_id: u64, flags: SendFlags) -> Result<(), Error> {
        self.post_checked(&mut empty_write(wr_id, flags))
    }

    /// Posts a request whose memory is named by keys only.
    #[inline]
    pub(crate) fn post_checked(&self, wr: &mut sys::ibv_send_wr) -> Result<(), Error> {
        // SAFETY: the device checks the key, and who registered the memory promised that it may be used so.
        match unsafe { self.post(wr) } {
            0 => Ok(()),
            code => Err(self.refused("ibv_post_send", code)),
        }
    }

    /// # Safety
    /// What the request points to stays valid as its flags say.
    #[inline]
    unsafe fn post(&self, wr: &mut sys::ibv_send_wr) -> i32 {
        let mut bad = null_mut();
        // SAFETY: a live queue pair and its driver's function; the caller vouches for the request.
        unsafe { (self.post_send)(self.raw(), wr, &mut bad) }
    }

    #[cold]
    fn refused(&self, call: &'static str, code: i32) -> Error {
        Error::new(call, self.describe(), code)
    }
}

impl sealed::Sealed for Qp {}

impl RecvQueue for Qp {
    #[inline]
    fn tag(&self) -> Tag {
        Tag(QueueTag::of(self.num))
    }

    #[inline]
    unsafe fn post_list(&self, wr: *mut sys::ibv_recv_wr, bad: *mut *mut sys::ibv_recv_wr) -> i32 {
        // SAFETY: the queue pair lives as long as `self`; the caller vouches for the list.
        unsafe { sys::ibv_post_recv(self.raw(), wr, bad) }
    }

    #[cold]
    fn refusal(&self, code: i32) -> Error {
        self.refused("ibv_post_recv", code)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: the last holder gives it back.
        let code = unsafe { (self.pd.context().table().destroy_qp)(self.raw()) };
        leaked("ibv_destroy_qp", code, &self.num);
        if code != 0 {
            // The device may still read it.
            std::mem::forget(std::mem::take(self.kept.get_mut().unwrap_or_else(PoisonError::into_inner)));
        }
    }
}

/// A queue pair that is kept, and beside it what a short write needs of it: one line of memory fewer to wait for.
#[derive(Clone, Debug)]
#[repr(C)] // in this order
pub struct QpHandle {
    raw: NonNull<sys::ibv_qp>,
    write_short: Option<ops::WriteShort>,
    qp: Arc<Qp>,
}

// SAFETY: as `Qp`, which it keeps.
unsafe impl Send for QpHandle {}
// SAFETY: likewise.
unsafe impl Sync for QpHandle {}

impl From<Arc<Qp>> for QpHandle {
    fn from(qp: Arc<Qp>) -> QpHandle {
        QpHandle { raw: qp.raw, write_short: qp.write_short, qp }
    }
}

impl std::ops::Deref for QpHandle {
    type Target = Qp;

    #[inline(always)] // with every message
    fn deref(&self) -> &Qp {
        &self.qp
    }
}

impl QpHandle {
    /// What it keeps.
    pub fn shared(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// The device's own way of writing pieces and a word behind them, if it [has one](crate::Context::writes_short).
    #[inline(always)] // with every message
    pub fn short_writer(&self) -> Option<ShortWriter<'_>> {
        self.write_short.map(|write| ShortWriter { raw: self.raw, write, qp: PhantomData })
    }
}

/// Two buffers, as a [`ShortWriter`] takes them.
#[derive(Clone, Copy, Debug)]
pub struct Pieces<'a> {
    raw: sys::ShortWrite,
    buffers: PhantomData<[&'a [u8]; 2]>,
}

impl<'a> Pieces<'a> {
    /// These.
    #[inline(always)] // with every message
    pub fn new([head, body]: [&'a [u8]; 2]) -> Pieces<'a> {
        let (head, head_len, body, body_len) = (head.as_ptr(), head.len(), body.as_ptr(), body.len());
        Pieces { raw: sys::ShortWrite { head, head_len, body, body_len }, buffers: PhantomData }
    }

    /// The buffers.
    pub fn buffers(&self) -> [&'a [u8]; 2] {
        let sys::ShortWrite { head, head_len, body, body_len } = self.raw;
        // SAFETY: made of such slices, which live as long as it does.
        unsafe { [from_raw_parts(head, head_len), from_raw_parts(body, body_len)] }
    }
}

/// A way of writing that some devices have, whatever goes inline.
#[derive(Clone, Copy, Debug)]
pub struct ShortWriter<'a> {
    raw: NonNull<sys::ibv_qp>,
    write: ops::WriteShort,
    qp: PhantomData<&'a Qp>,
}

impl ShortWriter<'_> {
    /// Writes pieces and a word behind them, which is written last. It is over when this returns: it takes no entry of the send queue, and has no
    /// completion. `remote` is where the word goes, a multiple of 8. False: nothing has happened.
    #[inline(always)] // with every message
    pub fn write(self, pieces: &Pieces<'_>, last: u64, remote: Remote) -> bool {
        // SAFETY: a live queue pair; the pieces are read before the call returns.
        unsafe { (self.write)(self.raw.as_ptr(), &pieces.raw, last, remote.addr, remote.rkey.0) == 0 }
    }
}

/// A write of no bytes.
pub(crate) fn empty_write(wr_id: u64, flags: SendFlags) -> sys::ibv_send_wr {
    let nowhere = Remote { addr: 0, rkey: crate::RKey(0) };
    let mut wr = rdma_request(RdmaOp::Write, wr_id, null_mut(), nowhere, flags);
    wr.num_sge = 0;
    wr
}

/// Where the value before an atomic comes: eight bytes.
pub(crate) fn atomic_piece(buf: &Buf) -> sys::ibv_sge {
    sys::ibv_sge { addr: buf.addr(), length: buf.capacity().min(8), lkey: buf.lkey().0 }
}

fn to_sys(init: &QpInit) -> sys::ibv_qp_init_attr {
    let cap = &init.cap;
    sys::ibv_qp_init_attr {
        qp_context: null_mut(),
        send_cq: init.send_cq.raw(),
        recv_cq: if init.kind == QpKind::XrcSend { null_mut() } else { init.recv_cq.raw() },
        srq: init.srq.as_ref().map_or(null_mut(), |s| s.raw()),
        cap: sys::ibv_qp_cap {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline,
        },
        qp_type: match init.kind {
            QpKind::Rc => sys::IBV_QPT_RC,
            QpKind::Uc => sys::IBV_QPT_UC,
            QpKind::Ud => sys::IBV_QPT_UD,
            QpKind::XrcSend => sys::IBV_QPT_XRC_SEND,
        },
        sq_sig_all: init.sig_all.into(),
    }
}

fn granted(cap: &sys::ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
    }
}
