//! Descriptors and messages: from `btl_alloc` and `btl_prepare_src` to the callback of a send.

use super::{Cookie, Module, State, background, from_raw};
use crate::mca::frag::Frag;
use crate::transport::{Attempt, EpId, SendBuf, Settled, Transport};
use opal_sys::*;
use std::ffi::c_int;
use std::time::Instant;

/// What became of a message that was handed over.
#[derive(Debug, Clone, Copy)]
enum Sent {
    /// Out, or in our hands until there is a credit for it, which its sender need not wait for.
    Gone,
    /// In our hands, and its sender can wait until the connection is there.
    AwaitsConnection,
    /// Still the caller's.
    Refused,
}

impl Module {
    /// `btl_alloc`: control messages of ob1; refusing them would leave them parked, so they are
    /// never refused for want of a free buffer.
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
        // SAFETY: `desc` is the first field of a live fragment that no other code holds: it came
        // from us, was not freed.
        let mut frag = unsafe { Frag::take_back(desc) };
        if let Some((buf, _)) = frag.buffer() {
            self.transport((), |t| t.give_back(buf));
        }
        self.keep(frag);
    }

    /// `btl_prepare_src`: a descriptor with `reserve` bytes of room and as much of the message
    /// behind it as fits, at most `size`, which becomes what was packed.
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
        // SAFETY: the caller has prepared the convertor for a send.
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
        // SAFETY: the caller vouches for the convertor. `opal_convertor_pack` advances it, which
        // later calls rely on.
        unsafe { self.abi.pack(convertor, out) }
    }

    /// `btl_send`. The data is ours from here on, so the send is locally complete: the callback, if
    /// it is wanted, comes now, and 1 says so. A descriptor that stays the upper layer's is another
    /// matter: see `send_copy`.
    ///
    /// # Safety
    /// `desc` came from `alloc` or `prepare_src` and was neither sent nor freed.
    pub unsafe fn send(
        &'static self,
        endpoint: *mut mca_btl_base_endpoint_t,
        desc: *mut mca_btl_base_descriptor_t,
        tag: u8,
    ) -> c_int {
        // SAFETY: the descriptor came from us and was not freed, so it is live and initialised.
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
            Sent::Refused => return self.refused(from_raw(endpoint)),
        }
        if flags & MCA_BTL_DES_SEND_ALWAYS_CALLBACK != 0
            && let Some(done) = done
        {
            // SAFETY: the upper layer's callback for this descriptor, called once; no borrow is
            // held.
            unsafe { done(self.as_raw(), endpoint, desc, OPAL_SUCCESS) };
        }
        // SAFETY: the flag hands ownership to us, so Open MPI does not free it.
        self.keep(unsafe { Frag::take_back(desc) });
        1
    }

    /// A send whose descriptor and payload stay the upper layer's: it may read them afterwards,
    /// change them and send them again (5.0's one-sided emulation does, piece by piece). So a copy
    /// goes out. The callback comes from progress: 5.0 calls from under a lock that it takes in the
    /// callback, too.
    #[cold]
    fn send_copy(&'static self, endpoint: *mut mca_btl_base_endpoint_t, frag: &mut Frag, tag: u8) -> c_int {
        let id = from_raw(endpoint);
        let called_back = frag.desc.des_flags & MCA_BTL_DES_SEND_ALWAYS_CALLBACK != 0;
        let Some(payload) = frag.payload() else { return OPAL_ERR_BAD_PARAM };
        let Some(mut buf) = self.transport(None, |t| t.take(id, payload.len(), false)) else {
            return OPAL_ERR_UNREACH;
        };
        let len = payload.len();
        buf.payload()[..len].copy_from_slice(payload);
        let desc = &raw mut frag.desc;
        let gone = match self.send_buffer(id, tag, buf, len) {
            Sent::Refused => return self.refused(id),
            Sent::Gone => true,
            Sent::AwaitsConnection => false,
        };
        if !called_back {
            if !gone {
                background::serve(self);
            }
            return 1;
        }
        self.with(|state| {
            state.owe_send(endpoint, desc, |t, cookie| match gone {
                true => t.later(cookie),
                false => t.when_connected(id, cookie),
            });
        });
        OPAL_SUCCESS
    }

    /// A message that has not left for want of a connection: its sender hears that it is complete
    /// when it has. Until then the sender stays in MPI, where it makes the connection come up; it
    /// might go and wait, outside of MPI, for what the peer does with the message (5.0's
    /// PMIx_Connect makes no progress).
    #[cold]
    fn complete_when_connected(
        &'static self,
        endpoint: *mut mca_btl_base_endpoint_t,
        frag: &mut Frag,
    ) -> c_int {
        frag.desc.des_flags |= MCA_BTL_DES_SEND_ALWAYS_CALLBACK;
        let (id, desc) = (from_raw(endpoint), &raw mut frag.desc);
        self.with(|state| state.owe_send(endpoint, desc, |t, cookie| t.when_connected(id, cookie)));
        OPAL_SUCCESS
    }

    /// The callback of a descriptor that was sent a while ago; not `ok`: the connection that it
    /// waited for has failed.
    #[cold]
    pub(super) fn sent(
        &'static self,
        endpoint: *mut mca_btl_base_endpoint_t,
        desc: *mut mca_btl_base_descriptor_t,
        ok: bool,
    ) {
        let status = if ok { OPAL_SUCCESS } else { OPAL_ERR_UNREACH };
        // SAFETY: the descriptor lives until its callback, which may free it if it is the upper
        // layer's.
        let (flags, done) = unsafe { ((*desc).des_flags, (*desc).des_cbfunc) };
        if let Some(done) = done {
            // SAFETY: the upper layer's callback for this descriptor, called once a send; no borrow
            // is held.
            unsafe { done(self.as_raw(), endpoint, desc, status) };
        }
        if flags & MCA_BTL_DES_FLAGS_BTL_OWNERSHIP != 0 {
            // SAFETY: the flag hands ownership to us, so Open MPI does not free it.
            self.keep(unsafe { Frag::take_back(desc) });
        }
    }

    /// `btl_sendi` of most messages: short, at a time when nothing that they need is scarce.
    ///
    /// # Safety
    /// As [`sendi`](Self::sendi).
    #[inline(always)] // with every message
    pub unsafe fn sendi_straight(
        &'static self,
        endpoint: *mut mca_btl_base_endpoint_t,
        convertor: *mut opal_convertor_t,
        header: &[u8],
        payload: usize,
        tag: u8,
    ) -> Attempt {
        let id = from_raw(endpoint);
        // SAFETY: as the caller has promised.
        let send = |t: &mut Transport<Cookie>| unsafe { straight(t, id, convertor, header, payload, tag) };
        self.send_alone(Attempt::Otherwise, send).unwrap_or_else(|| {
            // SAFETY: as the caller has promised.
            unsafe { self.sendi_straight_locked(id, convertor, header, payload, tag) }
        })
    }

    /// The same among other threads.
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn sendi_straight_locked(
        &'static self,
        id: EpId,
        convertor: *mut opal_convertor_t,
        header: &[u8],
        payload: usize,
        tag: u8,
    ) -> Attempt {
        // SAFETY: as the caller has promised.
        self.transport(Attempt::Otherwise, |t| unsafe { straight(t, id, convertor, header, payload, tag) })
    }

    /// Runs `send`, which does not call out, on the transport; `gone`, if there is none. `None`: there are other threads.
    #[inline(always)] // with every message
    fn send_alone<R>(&'static self, gone: R, send: impl FnOnce(&mut Transport<Cookie>) -> R) -> Option<R> {
        if self.uses_threads() || self.state.is_shared() {
            return None;
        }
        let send = |state: &mut State| state.transport.as_mut().map_or(gone, send);
        // SAFETY: one thread and none of ours, as has just been read; `send` does not call out.
        Some(unsafe { self.state.enter(send) })
    }

    /// `btl_sendi` of most others.
    ///
    /// # Safety
    /// As [`sendi`](Self::sendi).
    #[inline(always)] // with every message
    pub unsafe fn sendi_longer(
        &'static self,
        endpoint: *mut mca_btl_base_endpoint_t,
        convertor: *mut opal_convertor_t,
        header: &[u8],
        payload: usize,
        tag: u8,
    ) -> Attempt {
        // SAFETY: looked at only if there is a payload, and then prepared.
        let Some(data) = (unsafe { contiguous(convertor, payload) }) else { return Attempt::Otherwise };
        let (id, pieces) = (from_raw(endpoint), [header, data]);
        let who = convertor.addr();
        let sent = self.send_alone(Attempt::Otherwise, |t| t.sendi_longer(id, tag, pieces, who));
        sent.unwrap_or_else(|| self.sendi_longer_locked(id, tag, pieces, who))
    }

    /// The same among other threads.
    #[inline(never)]
    fn sendi_longer_locked(&'static self, id: EpId, tag: u8, pieces: [&[u8]; 2], who: usize) -> Attempt {
        self.transport(Attempt::Otherwise, |t| t.sendi_longer(id, tag, pieces, who))
    }

    /// `btl_sendi`: header and payload at once; false if there is no buffer for them now.
    ///
    /// # Safety
    /// `header` is readable for its length; `convertor` is prepared for a send of `payload` bytes
    /// if there are any.
    #[inline(always)] // with every message
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
        let sent = data.is_some_and(|data| self.sendi_now(id, tag, [header, data]));
        // SAFETY: with a payload, the convertor is prepared for a send; without one it is not
        // touched.
        sent || unsafe { self.sendi_buffered(id, convertor, header, payload, tag) }
    }

    /// Sends two pieces at once, if that is possible.
    #[inline(always)] // with every message
    fn sendi_now(&'static self, id: EpId, tag: u8, pieces: [&[u8]; 2]) -> bool {
        let sent = self.send_alone(false, |t| t.sendi(id, tag, pieces));
        sent.unwrap_or_else(|| self.sendi_locked(id, tag, pieces))
    }

    /// The same among other threads.
    #[inline(never)]
    fn sendi_locked(&'static self, id: EpId, tag: u8, pieces: [&[u8]; 2]) -> bool {
        self.transport(false, |t| t.sendi(id, tag, pieces))
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
        // A message that has to wait for its connection is not complete at once, as success would
        // say.
        if self.can_wait() && self.transport(false, |t| t.completes_when_connected(id)) {
            return false;
        }
        let len = header.len() + payload;
        let taken: Option<SendBuf> = self.transport(None, |t| t.take(id, len, self.can_wait()));
        let Some(mut buf) = taken else { return false };
        let (head, body) = buf.payload()[..len].split_at_mut(header.len());
        head.copy_from_slice(header);
        // SAFETY: `body` is as long as the payload: empty, or the convertor is prepared for a send.
        let packed = unsafe { self.pack(convertor, body) };
        if packed != Ok(payload) {
            log::error!("packed {packed:?} bytes of a message of {payload}");
            self.transport((), |t| t.give_back(buf));
            return false;
        }
        match self.send_buffer(id, tag, buf, len) {
            Sent::Refused => return false,
            Sent::Gone => {}
            // It has broken since.
            Sent::AwaitsConnection => background::serve(self),
        }
        true
    }

    /// A descriptor for what `sendi` did not send for want of a connection, so that `send` can
    /// complete it later. NULL when it was refused for another reason: the caller comes again.
    #[cold]
    pub fn alloc_unsent(
        &self,
        endpoint: *mut mca_btl_base_endpoint_t,
        len: usize,
        flags: u32,
    ) -> *mut mca_btl_base_descriptor_t {
        if self.transport(false, |t| t.completes_when_connected(from_raw(endpoint))) {
            self.alloc(endpoint, len, flags)
        } else {
            std::ptr::null_mut()
        }
    }

    /// Sends a filled buffer. A message that has no credit waits a little for one, unless a receive
    /// callback sends it.
    fn send_buffer(&'static self, id: EpId, tag: u8, buf: SendBuf, len: usize) -> Sent {
        let can_wait = self.can_wait();
        let (taken, waits) = self.transport((false, false), |t| {
            let taken = if can_wait { t.send(id, tag, buf, len) } else { t.answer(id, tag, buf, len) };
            (taken, taken && t.is_held_up(id))
        });
        match (taken, waits) {
            (false, _) => Sent::Refused,
            (true, false) => Sent::Gone,
            (true, true) => self.held_up(id, can_wait),
        }
    }

    /// A message that waits: its sender is kept for a while, if it can wait; then it leaves without its sender.
    #[cold]
    fn held_up(&'static self, id: EpId, can_wait: bool) -> Sent {
        let sent = if can_wait { self.settle(id) } else { Sent::Gone };
        if matches!(sent, Sent::Gone) && self.transport(false, |t| t.is_held_up(id)) {
            background::serve(self);
        }
        sent
    }

    /// Keeps the sender of a message that waits; other threads look around meanwhile, too.
    #[cold]
    fn settle(&self, id: EpId) -> Sent {
        let begin = Instant::now();
        loop {
            match self.transport(Settled::Over, |t| t.settle(id, begin.elapsed())) {
                Settled::Kept => std::thread::yield_now(),
                Settled::Over => return Sent::Gone,
                Settled::Unconnected => return Sent::AwaitsConnection,
            }
        }
    }
}

/// Sends a header and the payload, if such a message goes straight.
///
/// # Safety
/// As [`contiguous`].
#[inline(always)] // with every message
unsafe fn straight(
    transport: &mut Transport<Cookie>,
    id: EpId,
    convertor: *mut opal_convertor_t,
    header: &[u8],
    payload: usize,
    tag: u8,
) -> Attempt {
    if !transport.goes_straight(id, header.len() + payload) {
        return Attempt::Otherwise;
    }
    // SAFETY: as the caller has promised.
    match unsafe { contiguous(convertor, payload) } {
        Some(data) => transport.sendi_straight(id, tag, [header, data]),
        None => Attempt::Otherwise,
    }
}

/// The payload as one piece of memory, if it is one.
///
/// # Safety
/// `convertor` is prepared for a send of `len` bytes, unless `len` is 0.
#[inline(always)]
unsafe fn contiguous<'a>(convertor: *mut opal_convertor_t, len: usize) -> Option<&'a [u8]> {
    if len == 0 {
        return Some(&[]);
    }
    // SAFETY: prepared, as the caller says, so its fields and its datatype are valid, and
    // contiguous data is readable.
    unsafe {
        let convertor = &*convertor;
        if convertor.need_buffers() || !convertor.has(len) {
            return None;
        }
        Some(std::slice::from_raw_parts(convertor.current_pointer(), len))
    }
}
