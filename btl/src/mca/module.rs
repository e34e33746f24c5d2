//! One BTL module: a port's transport behind the function table that Open MPI calls.
//!
//! Every entry locks the transport only while Open MPI uses threads, and never while it calls back: a callback may
//! enter any function here again. What the transport has for the upper layer is taken out one by one.

use super::frag::Frag;
use super::handle::RegHandle;
use super::timelines;
use crate::protocol::layout::Layout;
use crate::transport::{Delivery, EpId, SendBuf, Transport, Upcall};
use opal_sys::*;
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use verbs::{LKey, RKey, RdmaOp, Sge};

/// Polls of one call that find nothing before it returns: the way through Open MPI's progress engine and back costs more
/// than one of them, and a message that waits for it arrives that much later.
const POLLS: usize = 4;

/// Fragments kept for reuse.
const FREE_FRAGS: usize = 256;

/// A callback of the upper layer that waits for its time.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "foreign pointers have nothing to print")]
pub enum Cookie {
    /// Of a put or get.
    Operation(Operation),
    /// Of a descriptor that was sent, which stays the upper layer's.
    Sent { endpoint: *mut mca_btl_base_endpoint_t, desc: *mut mca_btl_base_descriptor_t },
}

/// A put or get: the upper layer's callback and what it wants back.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "foreign pointers have nothing to print")]
pub struct Operation {
    /// Called once, with the following.
    pub done: mca_btl_base_rdma_completion_fn_t,
    /// The peer.
    pub endpoint: *mut mca_btl_base_endpoint_t,
    /// As handed to put or get.
    pub local: *mut c_void,
    /// As handed to put or get.
    pub handle: *mut mca_btl_base_registration_handle_t,
    /// As handed to put or get.
    pub context: *mut c_void,
    /// As handed to put or get.
    pub data: *mut c_void,
}

/// What became of a message that was handed over.
#[derive(Debug, Clone, Copy)]
enum Sent {
    /// Out, or in our hands until there is a credit for it.
    Gone,
    /// In our hands, and its sender can wait until the connection is there.
    AwaitsConnection,
    /// Still the caller's.
    Refused,
}

/// What the lock protects.
#[allow(missing_debug_implementations, reason = "foreign pointers have nothing to print")]
pub struct State {
    /// The transport; gone after finalize.
    pub transport: Option<Transport<Cookie>>,
    /// Boxed: a fragment keeps its address while Open MPI holds its descriptor.
    #[allow(clippy::vec_box, reason = "the address is what is kept")]
    free: Vec<Box<Frag>>,
    /// Open MPI's process of each endpoint, for error reports.
    pub procs: HashMap<EpId, *mut opal_proc_t>,
    error: mca_btl_base_module_error_cb_fn_t,
    closing: bool,
}

/// A module. Open MPI sees its first field.
#[repr(C)]
#[allow(missing_debug_implementations, reason = "foreign structures have nothing to print")]
pub struct Module {
    /// Limits and functions.
    pub base: UnsafeCell<mca_btl_base_module_t>,
    abi: &'static Abi,
    state: UnsafeCell<State>,
    lock: Mutex<()>,
    /// Receive callbacks that are running.
    depth: AtomicU32,
    /// Position among the modules of this process, and so among the ports of its modex.
    pub index: usize,
    /// What peers are told and compared with.
    pub layout: Layout,
    /// The port is the software device's.
    soft: bool,
    /// Where the timelines of its connections go at the end.
    timelines: Option<PathBuf>,
}

// SAFETY: `state` is reached through `with` only, which locks when there is more than one thread; `base` is written
// before Open MPI sees the module and by Open MPI's own single-threaded set-up after that.
unsafe impl Sync for Module {}
// SAFETY: as above; raw pointers in it belong to Open MPI and are only handed back to it.
unsafe impl Send for Module {}

impl Module {
    /// A module over an open transport. It lives as long as the process: late callers find it empty, not gone.
    pub fn new(
        base: mca_btl_base_module_t,
        abi: &'static Abi,
        transport: Transport<Cookie>,
        index: usize,
        soft: bool,
        timelines: Option<PathBuf>,
    ) -> &'static Module {
        let layout = transport.layout().clone();
        let state = State {
            transport: Some(transport),
            free: Vec::new(),
            procs: HashMap::new(),
            error: None,
            closing: false,
        };
        Box::leak(Box::new(Module {
            base: UnsafeCell::new(base),
            abi,
            state: UnsafeCell::new(state),
            lock: Mutex::new(()),
            depth: AtomicU32::new(0),
            index,
            layout,
            soft,
            timelines,
        }))
    }

    /// The pointer that Open MPI knows the module by.
    pub fn as_raw(&'static self) -> *mut mca_btl_base_module_t {
        self.base.get()
    }

    /// The running Open MPI.
    pub fn abi(&self) -> &'static Abi {
        self.abi
    }

    /// Runs `f` on the state. `f` calls nothing of Open MPI.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let _guard = self.abi.uses_threads().then(|| self.locked());
        // SAFETY: either the lock is held, or Open MPI has promised that only one thread calls us; and `f` does not
        // call out, so that no second borrow can begin before this one ends.
        f(unsafe { &mut *self.state.get() })
    }

    #[cold]
    fn locked(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As `with`, on the transport; `gone` after finalize.
    #[inline]
    pub fn transport<R>(&self, gone: R, f: impl FnOnce(&mut Transport<Cookie>) -> R) -> R {
        self.with(|state| match &mut state.transport {
            Some(transport) => f(transport),
            None => gone,
        })
    }

    /// A caller outside of a receive callback can be told to come again later.
    fn can_wait(&self) -> bool {
        self.depth.load(Ordering::Relaxed) == 0
    }

    /// Looks around once and hands up what is there; how many things that was.
    pub fn progress(&'static self) -> c_int {
        let mut count = 0;
        let mut upcall = self.transport(None, |t| {
            let found = (0..POLLS).any(|_| t.poll());
            if found { t.take_upcall() } else { None }
        });
        while let Some(what) = upcall {
            count += 1;
            self.hand_up(what);
            upcall = self.transport(None, Transport::take_upcall);
        }
        count
    }

    #[inline]
    fn hand_up(&'static self, what: Upcall<Cookie>) {
        match what {
            Upcall::Deliver(delivery) => self.deliver(delivery),
            Upcall::RdmaDone { cookie: Cookie::Operation(operation), ok } => self.rdma_done(operation, ok),
            Upcall::RdmaDone { cookie: Cookie::Sent { endpoint, desc }, .. } => self.sent(endpoint, desc),
            Upcall::UnknownPeer { peer } => self.unknown_peer(peer),
            Upcall::Failed { endpoint, peer, reason } => self.endpoint_failed(endpoint, peer, &reason),
        }
    }

    #[inline]
    fn deliver(&'static self, mut delivery: Delivery) {
        let payload = delivery.payload();
        let segment =
            mca_btl_base_segment_t { seg_addr: payload.as_mut_ptr().cast(), seg_len: payload.len() as u64 };
        let endpoint = to_raw(delivery.endpoint);
        self.depth.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the module is ours and lives for ever; the segment lies in a buffer that the delivery owns until the
        // call has returned; no lock and no borrow is held.
        let taken = unsafe { self.abi.deliver(self.as_raw(), endpoint, delivery.tag, &mut [segment]) };
        self.depth.fetch_sub(1, Ordering::Relaxed);
        if let Err(nobody) = taken {
            log::debug!("message dropped: {nobody}");
        }
        self.transport((), |t| t.delivered(delivery));
    }

    fn rdma_done(&'static self, operation: Operation, ok: bool) {
        let Some(done) = operation.done else { return };
        let status = if ok { OPAL_SUCCESS } else { OPAL_ERROR };
        // SAFETY: the upper layer's callback, with what it gave us for it; called once.
        unsafe {
            done(
                self.as_raw(),
                operation.endpoint,
                operation.local,
                operation.handle,
                operation.context,
                operation.data,
                status,
            );
        }
    }

    /// Someone whom the BML has not told us about wants to talk: make the endpoint now.
    #[cold]
    fn unknown_peer(&'static self, peer: u64) {
        let name = opal_process_name_t::from_word(peer);
        let Some(process) = self.abi.proc_for_name(name) else {
            return log::debug!("connection request from {name}, a process that Open MPI does not know");
        };
        if let Err(reason) = super::peers::add(self, process.as_ptr()) {
            log::debug!("connection request from {name} is not answered: {reason}");
        }
    }

    /// Open MPI 4.1's ob1 ends the job on this report; the message says why.
    #[cold]
    fn endpoint_failed(&'static self, endpoint: EpId, peer: u64, reason: &str) {
        let name = opal_process_name_t::from_word(peer);
        let (callback, process, closing) = self
            .with(|s| (s.error, s.procs.get(&endpoint).copied().unwrap_or(std::ptr::null_mut()), s.closing));
        if closing {
            return log::debug!("connection to {name} lost while closing: {reason}");
        }
        let place = self.host(process).map_or_else(String::new, |host| format!(" on {host}"));
        log::error!("connection to {name}{place} is lost: {reason}");
        let Some(callback) = callback else { return };
        let text = std::ffi::CString::new(format!("oxib: connection to {name}{place} is lost: {reason}"))
            .unwrap_or_default();
        // SAFETY: the callback that the BML registered; the text outlives the call.
        unsafe { callback(self.as_raw(), MCA_BTL_ERROR_FLAGS_FATAL, process, text.as_ptr().cast_mut()) };
    }

    fn host(&self, process: *mut opal_proc_t) -> Option<String> {
        // SAFETY: Open MPI keeps a process until `del_procs`, after which we know it no more.
        (!process.is_null()).then(|| unsafe { self.abi.host_of(process) }).flatten()
    }

    fn keep(&self, frag: Box<Frag>) {
        self.with(|state| {
            if state.free.len() < FREE_FRAGS {
                state.free.push(frag);
            }
        });
    }

    /// `btl_alloc`: control messages of ob1; refusing them would leave them parked, so they are never refused for
    /// want of a free buffer.
    pub fn alloc(
        &self,
        endpoint: *mut mca_btl_base_endpoint_t,
        len: usize,
        flags: u32,
    ) -> *mut mca_btl_base_descriptor_t {
        self.with(|state| {
            let buf = state.transport.as_mut().and_then(|t| t.take(from_raw(endpoint), len, false));
            match buf {
                Some(buf) => state.free.pop().unwrap_or_else(Frag::new).hand_out(buf, len, flags),
                None => std::ptr::null_mut(),
            }
        })
    }

    /// `btl_free`.
    ///
    /// # Safety
    /// `desc` came from `alloc` or `prepare_src` and was not freed.
    pub unsafe fn free(&self, desc: *mut mca_btl_base_descriptor_t) {
        // SAFETY: passed on to the caller.
        let mut frag = unsafe { Frag::take_back(desc) };
        if let Some((buf, _)) = frag.buffer() {
            self.transport((), |t| t.give_back(buf));
        }
        self.keep(frag);
    }

    /// `btl_prepare_src`: a descriptor with `reserve` bytes of room and as much of the message behind it as fits,
    /// at most `size`, which becomes what was packed.
    ///
    /// # Safety
    /// `convertor` is prepared for a send.
    pub unsafe fn prepare_src(
        &self,
        endpoint: *mut mca_btl_base_endpoint_t,
        convertor: *mut opal_convertor_t,
        reserve: usize,
        size: &mut usize,
        flags: u32,
    ) -> *mut mca_btl_base_descriptor_t {
        let Some(room) = self.layout.largest_payload().checked_sub(reserve) else {
            return std::ptr::null_mut();
        };
        let wanted = (*size).min(room);
        let Some(mut buf) =
            self.transport(None, |t| t.take(from_raw(endpoint), reserve + wanted, self.can_wait()))
        else {
            return std::ptr::null_mut();
        };
        // SAFETY: passed on to the caller.
        match unsafe { self.pack(convertor, &mut buf.payload()[reserve..reserve + wanted]) } {
            Ok(packed) => {
                *size = packed;
                self.with(|s| s.free.pop()).unwrap_or_else(Frag::new).hand_out(buf, reserve + packed, flags)
            }
            Err(status) => {
                log::error!("the message cannot be packed: status {status}");
                self.transport((), |t| t.give_back(buf));
                std::ptr::null_mut()
            }
        }
    }

    /// Copies message bytes: contiguous ones directly, others through Open MPI.
    ///
    /// # Safety
    /// `convertor` is prepared for a send, unless `out` is empty.
    unsafe fn pack(&self, convertor: *mut opal_convertor_t, out: &mut [u8]) -> Result<usize, c_int> {
        if out.is_empty() {
            return Ok(0);
        }
        // SAFETY: the caller vouches for the convertor. `opal_convertor_pack` advances it, which later calls rely on.
        unsafe { self.abi.pack(convertor, out) }
    }

    /// `btl_send`. The data is ours from here on, so the send is locally complete: the callback, if it is wanted, comes
    /// now, and 1 says so. A descriptor that stays the upper layer's is another matter: see `send_copy`.
    ///
    /// # Safety
    /// `desc` came from `alloc` or `prepare_src` and was neither sent nor freed.
    pub unsafe fn send(
        &'static self,
        endpoint: *mut mca_btl_base_endpoint_t,
        desc: *mut mca_btl_base_descriptor_t,
        tag: u8,
    ) -> c_int {
        // SAFETY: passed on to the caller; the descriptor is live.
        let (flags, done) = unsafe { ((*desc).des_flags, (*desc).des_cbfunc) };
        // SAFETY: the descriptor is the fragment's first field; the caller vouches for it.
        let frag = unsafe { &mut *desc.cast::<Frag>() };
        if flags & MCA_BTL_DES_FLAGS_BTL_OWNERSHIP == 0 {
            return self.send_copy(endpoint, frag, tag);
        }
        let Some((buf, len)) = frag.buffer() else { return OPAL_ERR_BAD_PARAM };
        match self.send_buffer(from_raw(endpoint), tag, buf, len) {
            Sent::Gone => {}
            Sent::AwaitsConnection => return self.complete_when_connected(endpoint, frag),
            Sent::Refused => return OPAL_ERR_UNREACH,
        }
        if flags & MCA_BTL_DES_SEND_ALWAYS_CALLBACK != 0
            && let Some(done) = done
        {
            // SAFETY: the upper layer's callback for this descriptor, called once; no borrow is held.
            unsafe { done(self.as_raw(), endpoint, desc, OPAL_SUCCESS) };
        }
        // SAFETY: ownership is ours by that flag, so nobody else frees it.
        self.keep(unsafe { Frag::take_back(desc) });
        1
    }

    /// A send whose descriptor and payload stay the upper layer's: it may read them afterwards, change them and send them
    /// again (5.0's one-sided emulation does, piece by piece). So a copy goes out. The callback comes from progress: 5.0
    /// calls from under a lock that it takes in the callback, too.
    #[cold]
    fn send_copy(&'static self, endpoint: *mut mca_btl_base_endpoint_t, frag: &mut Frag, tag: u8) -> c_int {
        let id = from_raw(endpoint);
        let Some(payload) = frag.payload() else { return OPAL_ERR_BAD_PARAM };
        let Some(mut buf) = self.transport(None, |t| t.take(id, payload.len(), false)) else {
            return OPAL_ERR_UNREACH;
        };
        buf.payload()[..payload.len()].copy_from_slice(payload);
        if matches!(self.send_buffer(id, tag, buf, payload.len()), Sent::Refused) {
            return OPAL_ERR_UNREACH;
        }
        if frag.desc.des_flags & MCA_BTL_DES_SEND_ALWAYS_CALLBACK == 0 {
            return 1;
        }
        let desc = &raw mut frag.desc;
        self.transport((), |t| t.later(Cookie::Sent { endpoint, desc }));
        OPAL_SUCCESS
    }

    /// A message that has not left for want of a connection: its sender hears that it is complete when it has. Until then
    /// the sender stays in MPI, where it makes the connection come up; it might go and wait, outside of MPI, for what the
    /// peer does with the message (5.0's PMIx_Connect makes no progress).
    #[cold]
    fn complete_when_connected(
        &'static self,
        endpoint: *mut mca_btl_base_endpoint_t,
        frag: &mut Frag,
    ) -> c_int {
        frag.desc.des_flags |= MCA_BTL_DES_SEND_ALWAYS_CALLBACK;
        let cookie = Cookie::Sent { endpoint, desc: &raw mut frag.desc };
        self.transport((), |t| t.when_connected(from_raw(endpoint), cookie));
        OPAL_SUCCESS
    }

    /// The callback of a descriptor that was sent a while ago.
    #[cold]
    fn sent(&'static self, endpoint: *mut mca_btl_base_endpoint_t, desc: *mut mca_btl_base_descriptor_t) {
        // SAFETY: the descriptor lives until its callback, which may free it if it is the upper layer's.
        let (flags, done) = unsafe { ((*desc).des_flags, (*desc).des_cbfunc) };
        if let Some(done) = done {
            // SAFETY: the upper layer's callback for this descriptor, called once a send; no borrow is held.
            unsafe { done(self.as_raw(), endpoint, desc, OPAL_SUCCESS) };
        }
        if flags & MCA_BTL_DES_FLAGS_BTL_OWNERSHIP != 0 {
            // SAFETY: ownership is ours by that flag, so nobody else frees it.
            self.keep(unsafe { Frag::take_back(desc) });
        }
    }

    /// `btl_sendi`: header and payload at once; false if there is no buffer for them now.
    ///
    /// # Safety
    /// `header` is readable for its length; `convertor` is prepared for a send of `payload` bytes if there are any.
    #[inline]
    pub unsafe fn sendi(
        &'static self,
        endpoint: *mut mca_btl_base_endpoint_t,
        convertor: *mut opal_convertor_t,
        header: &[u8],
        payload: usize,
        tag: u8,
    ) -> bool {
        let id = from_raw(endpoint);
        // SAFETY: looked at only if there is a payload, and then prepared.
        let data: Option<&[u8]> = unsafe { contiguous(convertor, payload) };
        let sent = data.is_some_and(|data| self.transport(false, |t| t.sendi(id, tag, [header, data])));
        // SAFETY: passed on to the caller.
        sent || unsafe { self.sendi_buffered(id, convertor, header, payload, tag) }
    }

    /// # Safety
    /// As `sendi`.
    #[cold]
    unsafe fn sendi_buffered(
        &'static self,
        id: EpId,
        convertor: *mut opal_convertor_t,
        header: &[u8],
        payload: usize,
        tag: u8,
    ) -> bool {
        // A message that has to wait for its connection is not complete at once, as success would say.
        if self.can_wait() && self.transport(false, |t| t.is_unconnected(id)) {
            return false;
        }
        let len = header.len() + payload;
        let taken: Option<SendBuf> = self.transport(None, |t| t.take(id, len, self.can_wait()));
        let Some(mut buf) = taken else { return false };
        let (head, body) = buf.payload()[..len].split_at_mut(header.len());
        head.copy_from_slice(header);
        // SAFETY: passed on to the caller.
        let packed = unsafe { self.pack(convertor, body) };
        if packed != Ok(payload) {
            log::error!("packed {packed:?} bytes of a message of {payload}");
            self.transport((), |t| t.give_back(buf));
            return false;
        }
        !matches!(self.send_buffer(id, tag, buf, len), Sent::Refused)
    }

    /// A descriptor for what `sendi` did not send for want of a connection, so that `send` can complete it later. NULL when
    /// it was refused for another reason: the caller comes again.
    #[cold]
    pub fn alloc_unsent(
        &self,
        endpoint: *mut mca_btl_base_endpoint_t,
        len: usize,
        flags: u32,
    ) -> *mut mca_btl_base_descriptor_t {
        if self.transport(false, |t| t.is_unconnected(from_raw(endpoint))) {
            self.alloc(endpoint, len, flags)
        } else {
            std::ptr::null_mut()
        }
    }

    /// Sends a filled buffer. A message that cannot go at once waits a little for its connection or a credit, unless a
    /// receive callback sends it.
    fn send_buffer(&self, id: EpId, tag: u8, buf: SendBuf, len: usize) -> Sent {
        let can_wait = self.can_wait();
        self.transport(Sent::Refused, |t| {
            if !t.send(id, tag, buf, len) {
                return Sent::Refused;
            }
            if can_wait && t.settle(id) && t.is_unconnected(id) {
                return Sent::AwaitsConnection;
            }
            Sent::Gone
        })
    }

    /// `btl_put` and `btl_get`.
    pub fn rdma(
        &'static self,
        op: RdmaOp,
        local: (LKey, usize),
        remote: (u64, RKey),
        operation: Operation,
    ) -> c_int {
        let Ok(len) = u32::try_from(local.1) else { return OPAL_ERR_BAD_PARAM };
        let sge = Sge { addr: operation.local as u64, len, lkey: local.0 };
        let (id, cookie) = (from_raw(operation.endpoint), Cookie::Operation(operation));
        let started = self.transport(false, |t| t.rdma(id, op, sge, remote, cookie).is_ok());
        if started { OPAL_SUCCESS } else { OPAL_ERR_UNREACH }
    }

    /// `btl_register_mem`; NULL if the device refuses.
    ///
    /// # Safety
    /// The memory stays mapped until `deregister`.
    pub unsafe fn register(&self, base: *mut c_void, len: usize, flags: u32) -> *mut RegHandle {
        let Some(pd) = self.transport(None, |t| Some(t.pd().clone())) else { return std::ptr::null_mut() };
        // SAFETY: passed on to the caller.
        match unsafe { RegHandle::register(&pd, base.cast(), len, flags) } {
            Ok(handle) => Box::into_raw(handle),
            Err(error) => {
                log::debug!("{error}");
                std::ptr::null_mut()
            }
        }
    }

    /// `btl_register_error`.
    pub fn on_error(&self, callback: mca_btl_base_module_error_cb_fn_t) {
        self.with(|state| state.error = callback);
    }

    /// `btl_flush`: everything that was handed to us for this endpoint (all: NULL) is done at the peer.
    pub fn flush(&'static self, endpoint: *mut mca_btl_base_endpoint_t) {
        let ids = |t: &mut Transport<Cookie>| {
            if endpoint.is_null() { t.ids() } else { vec![from_raw(endpoint)] }
        };
        while self.transport(false, |t| ids(t).into_iter().any(|id| t.busy(id))) {
            self.progress();
        }
    }

    /// `btl_del_procs`, one endpoint: what is queued goes out first.
    pub fn remove(&'static self, endpoint: *mut mca_btl_base_endpoint_t) {
        let id = from_raw(endpoint);
        self.drain(&[id]);
        self.with(|state| {
            state.procs.remove(&id);
            if let Some(t) = &mut state.transport {
                t.remove(id);
            }
        });
    }

    /// Lets out what is queued, up to a deadline; messages that arrive meanwhile go up as ever.
    fn drain(&'static self, ids: &[EpId]) {
        let deadline =
            std::time::Instant::now() + self.transport(std::time::Duration::ZERO, |t| t.drain_time());
        while self.transport(false, |t| ids.iter().any(|id| t.busy(*id))) {
            if std::time::Instant::now() > deadline {
                return log::warn!("a peer takes nothing: what is queued to it is given up");
            }
            if self.progress() == 0 {
                std::thread::yield_now();
            }
        }
    }

    /// `btl_finalize`: everything out, everything down, the helper thread joined.
    pub fn finalize(&'static self) {
        let ids = self.transport(Vec::new(), |t| t.ids());
        self.drain(&ids);
        let transport = self.with(|state| {
            state.closing = true;
            state.free.clear();
            state.procs.clear();
            state.transport.take()
        });
        if let Some(transport) = transport {
            log::debug!("module {}: {:?}", self.index, transport.stats);
            log::debug!("module {}: connections {:?}", self.index, transport.connection_counters());
            if self.soft {
                log::debug!("software device: {:?}", softib::stats());
            }
            if let Some(file) = &self.timelines {
                timelines::write(file, &transport.timelines());
            }
            transport.close();
        }
    }
}

/// The payload as one piece of memory, if it is one.
///
/// # Safety
/// `convertor` is prepared for a send of `len` bytes, unless `len` is 0.
#[inline]
unsafe fn contiguous<'a>(convertor: *mut opal_convertor_t, len: usize) -> Option<&'a [u8]> {
    if len == 0 {
        return Some(&[]);
    }
    // SAFETY: prepared, as the caller says, so its fields and its datatype are valid, and contiguous data is readable.
    unsafe {
        let convertor = &*convertor;
        let usable = !convertor.need_buffers() && convertor.remaining() >= len;
        usable.then(|| std::slice::from_raw_parts(convertor.current_pointer(), len))
    }
}

/// An endpoint's name as the opaque pointer that Open MPI carries for us; never NULL.
#[inline]
pub fn to_raw(id: EpId) -> *mut mca_btl_base_endpoint_t {
    ((u64::from(id.generation) << 32 | u64::from(id.index)) + 1) as usize as *mut mca_btl_base_endpoint_t
}

/// The endpoint behind Open MPI's pointer.
#[inline]
pub fn from_raw(endpoint: *mut mca_btl_base_endpoint_t) -> EpId {
    let word = (endpoint as u64).wrapping_sub(1);
    EpId { index: word as u32, generation: (word >> 32) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_survives_its_journey_as_a_pointer() {
        for id in [EpId { index: 0, generation: 0 }, EpId { index: u32::MAX - 1, generation: 0x00ff_ffff }] {
            let raw = to_raw(id);
            assert!(!raw.is_null());
            assert_eq!(from_raw(raw), id);
        }
        assert_ne!(from_raw(std::ptr::null_mut()), EpId { index: 0, generation: 0 });
    }
}
