//! One BTL module: a port's transport behind the function table that Open MPI calls.
//!
//! Every entry locks the transport only while Open MPI uses threads or one of ours serves it (`background`), and never while it calls back:
//! a callback may enter any function here again. What the transport has for the upper layer is
//! taken out one by one.

mod atomics;
pub(super) mod background;
mod closing;
mod flush;
mod guarded;
mod inside;
mod parting;
mod registering;
mod sending;
mod turns;

use super::frag::Frag;
use super::registrations::Registrations;
use crate::protocol::layout::Layout;
use crate::protocol::regcache::Limits;
use crate::transport::{Delivery, EpId, Transport, Upcall};
use opal_sys::*;

use guarded::{GiveUp, Guarded};
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Instant;
use turns::{Ticket, Turns};
use verbs::{Atomics, LKey, RKey, RdmaOp, Sge};

/// Looks of one call that find nothing before it returns: the way through Open MPI's progress
/// engine and back costs more than one of them, and a message that waits for it arrives that much
/// later.
const LOOKS: u32 = 2;

/// The module of the first port, which in most jobs is the only one. It knows the next.
static FIRST: AtomicPtr<Module> = AtomicPtr::new(std::ptr::null_mut());

/// Fragments kept for reuse.
const FREE_FRAGS: usize = 256;

/// A callback of the upper layer that waits for its time.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "foreign pointers have nothing to print")]
pub enum Cookie {
    /// Of a put, get or atomic.
    Operation(Operation),
    /// Of a descriptor that was sent, which stays the upper layer's.
    Sent { endpoint: *mut mca_btl_base_endpoint_t, desc: *mut mca_btl_base_descriptor_t, ticket: u64 },
}

/// A put, get or atomic: the upper layer's callback and what it wants back.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "foreign pointers have nothing to print")]
pub struct Operation {
    /// Called once, with the following.
    pub done: mca_btl_base_rdma_completion_fn_t,
    /// The peer.
    pub endpoint: *mut mca_btl_base_endpoint_t,
    /// As handed to put, get or atomic; NULL if the value before is not wanted.
    pub local: *mut c_void,
    /// As handed to put or get.
    pub handle: *mut mca_btl_base_registration_handle_t,
    /// As handed to put or get.
    pub context: *mut c_void,
    /// As handed to put or get.
    pub data: *mut c_void,
    /// What the transport calls it as long as it is owed.
    pub ticket: u64,
    /// A registration of ours that ends with it, or NULL.
    pub own: *mut mca_btl_base_registration_handle_t,
}

impl Operation {
    /// As handed to put, get or atomic.
    pub fn new(
        done: mca_btl_base_rdma_completion_fn_t,
        endpoint: *mut mca_btl_base_endpoint_t,
        (local, handle): (*mut c_void, *mut mca_btl_base_registration_handle_t),
        (context, data): (*mut c_void, *mut c_void),
    ) -> Operation {
        Operation { done, endpoint, local, handle, context, data, ticket: 0, own: std::ptr::null_mut() }
    }
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
    /// Messages that go up, and those that wait for them; used while there are threads.
    turns: Turns<(EpId, u8), Delivery>,
    /// A panic has taken the transport, and the upper layer has not been told.
    broken: bool,
}

impl GiveUp for State {
    /// Its memory stays: the device may still write to it.
    #[cold]
    fn give_up(&mut self) {
        self.broken |= self.transport.is_some();
        std::mem::forget(self.transport.take());
    }
}

impl State {
    /// The next thing for the upper layer, when others may be there handing up, too: a message only
    /// on a turn of its lane.
    fn take_in_turn(&mut self) -> Option<(Upcall<Cookie>, Option<Ticket>)> {
        loop {
            if let Some((delivery, ticket)) = self.turns.next() {
                return Some((Upcall::Deliver(delivery), Some(ticket)));
            }
            match self.transport.as_mut()?.take_upcall()? {
                Upcall::Deliver(delivery) => {
                    if let Some((delivery, ticket)) = self.turns.begin(delivery.lane(), delivery) {
                        return Some((Upcall::Deliver(delivery), Some(ticket)));
                    }
                }
                other => return Some((other, None)),
            }
        }
    }

    /// Open MPI's process of an endpoint; null: it is not known any more.
    fn process(&self, endpoint: EpId) -> *mut opal_proc_t {
        self.procs.get(&endpoint).copied().unwrap_or(std::ptr::null_mut())
    }

    /// Looks around. True if there is something for the upper layer.
    #[inline(always)] // all that most calls of Open MPI's progress function do
    fn look(&mut self) -> bool {
        match &mut self.transport {
            Some(transport) => transport.look(LOOKS),
            None => false,
        }
    }

    /// The next message for the upper layer, if nothing that is no message has come up before it.
    #[inline(always)] // with every message
    fn message(&mut self) -> Option<Delivery> {
        self.transport.as_mut()?.take_message()
    }

    /// The upper layer is done with a message; the next one.
    #[inline(always)] // with every message
    fn next_message(&mut self, done: Delivery) -> Option<Delivery> {
        let transport = self.transport.as_mut()?;
        transport.delivered(done);
        transport.take_message()
    }

    /// The upper layer is done with a message. It comes back if there is more to hand up.
    #[inline(always)] // with every message that comes alone
    fn last_message(&mut self, done: Delivery) -> Option<Delivery> {
        let transport = self.transport.as_mut()?;
        if transport.has_upcalls() {
            return Some(done);
        }
        transport.delivered_last(done);
        None
    }

    /// The upper layer is done with a message, or none has registered for its tag.
    fn delivered(&mut self, delivery: Delivery) {
        if let Some(transport) = &mut self.transport {
            transport.delivered(delivery);
        }
    }

    /// As `look`, among other threads.
    fn look_in_turn(&mut self) -> Option<(Upcall<Cookie>, Option<Ticket>)> {
        self.look();
        let next = self.take_in_turn();
        if next.is_none() && self.turns.end_overdue(Instant::now) {
            log::debug!("a receive callback neither returns nor goes on: messages behind its own go up");
            return self.take_in_turn();
        }
        next
    }
}

/// A callback that enters a module, whichever that is, has taken its message.
fn end_turn() {
    if let Some((module, ticket)) = inside::take_turn() {
        let _guard = module.state.lock();
        // SAFETY: the lock is held, and `end` does not call out.
        unsafe { module.state.enter(|state| state.turns.end(ticket)) };
    }
}

/// What a module leaves behind at its end.
#[derive(Clone, Debug)]
pub struct AtEnd {
    /// Where the timelines of its connections go.
    pub timelines: Option<PathBuf>,
    /// What it has counted is printed.
    pub tells: bool,
}

/// Which of our modules it is.
#[derive(Clone, Debug)]
pub struct Place {
    /// Position among the modules of this process, and so among the ports of its modex.
    pub index: usize,
    /// "mlx5_0 port 1".
    pub name: String,
    /// The port is the software device's.
    pub soft: bool,
}

/// A module. Open MPI sees its first field.
#[repr(C)]
#[allow(missing_debug_implementations, reason = "foreign structures have nothing to print")]
pub struct Module {
    /// Limits and functions.
    pub base: UnsafeCell<mca_btl_base_module_t>,
    abi: &'static Abi,
    state: Guarded<State>,
    /// The module of the next port.
    next: AtomicPtr<Module>,
    place: Place,
    /// What peers are told and compared with.
    pub layout: Layout,
    at_end: AtEnd,
    /// The user's memory that peers or puts and gets of ours may touch.
    registrations: Registrations,
    iwarp: bool,
    /// What atomics are offered to Open MPI.
    atomics: Atomics,
}

// SAFETY: `state` is entered by `with` and `progress` only, which lock when there is more than one
// thread; `base` is written before Open MPI sees the module and by Open MPI's own single-threaded
// set-up after that.
unsafe impl Sync for Module {}
// SAFETY: raw pointers in it belong to Open MPI and are only handed back to it.
unsafe impl Send for Module {}

impl Module {
    /// A module over an open transport. It lives as long as the process: late callers find it
    /// empty, not gone.
    pub fn new(
        base: mca_btl_base_module_t,
        abi: &'static Abi,
        transport: Transport<Cookie>,
        place: Place,
        at_end: AtEnd,
        limits: Limits,
    ) -> &'static Module {
        let (layout, iwarp) = (transport.layout().clone(), transport.pd().context().is_iwarp());
        let state = State {
            transport: Some(transport),
            free: Vec::new(),
            procs: HashMap::new(),
            error: None,
            closing: false,
            turns: Turns::new(),
            broken: false,
        };
        Box::leak(Box::new(Module {
            abi,
            state: Guarded::new(state),
            next: AtomicPtr::new(std::ptr::null_mut()),
            place,
            layout,
            at_end,
            registrations: Registrations::new(limits),
            iwarp,
            atomics: offered(&base),
            base: UnsafeCell::new(base),
        }))
    }

    /// Atomics are offered to Open MPI.
    pub fn has_atomics(&self) -> bool {
        self.atomics != Atomics::None
    }

    /// The pointer that Open MPI knows the module by.
    pub fn as_raw(&'static self) -> *mut mca_btl_base_module_t {
        self.base.get()
    }

    /// Position among the modules of this process, and so among the ports of its modex.
    pub fn index(&self) -> usize {
        self.place.index
    }

    /// Device and port, in words.
    pub fn port_name(&self) -> &str {
        &self.place.name
    }

    /// The running Open MPI.
    pub fn abi(&self) -> &'static Abi {
        self.abi
    }

    /// Makes these the modules that `progress_all` walks over.
    pub fn chain(modules: &[&'static Module]) {
        let raw = |module: &'static Module| std::ptr::from_ref(module).cast_mut();
        modules.windows(2).for_each(|pair| pair[0].next.store(raw(pair[1]), Ordering::Release));
        FIRST.store(modules.first().map_or(std::ptr::null_mut(), |first| raw(first)), Ordering::Release);
    }

    /// The module behind a link of that chain.
    #[inline]
    fn linked(link: &AtomicPtr<Module>) -> Option<&'static Module> {
        // SAFETY: NULL or a module: those are never freed.
        unsafe { link.load(Ordering::Acquire).as_ref() }
    }

    /// Every module of this process.
    fn all() -> impl Iterator<Item = &'static Module> {
        std::iter::successors(Module::linked(&FIRST), |this| Module::linked(&this.next))
    }

    /// Looks around on every port.
    pub fn progress_all() -> c_int {
        let mut count = 0;
        let mut module = Module::linked(&FIRST);
        while let Some(this) = module {
            count += this.progress();
            module = Module::linked(&this.next);
        }
        count
    }

    /// Runs `f` on the state. `f` calls nothing of Open MPI.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let _guard = (self.abi.uses_threads() || self.state.is_shared()).then(|| self.locked());
        // SAFETY: either the lock is held, or Open MPI has promised that only one thread calls us and none of ours does;
        // and `f` does not call out, so that no second borrow can begin before this one ends.
        unsafe { self.state.enter(f) }
    }

    /// As `with`, among other threads, and only if none of them is in the module or wants to be.
    fn if_free<R>(&self, f: impl FnOnce(&mut State) -> R) -> Option<R> {
        end_turn();
        let _guard = self.state.try_lock()?;
        // SAFETY: the lock is held, and `f` does not call out.
        Some(unsafe { self.state.enter(f) })
    }

    #[cold]
    fn locked(&self) -> MutexGuard<'_, ()> {
        end_turn();
        self.state.lock()
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
        !inside::is_inside(self.abi.uses_threads())
    }

    /// Looks around once and hands up what is there; how many things that was.
    #[inline]
    pub fn progress(&'static self) -> c_int {
        if self.abi.uses_threads() {
            return self.progress_in_turn();
        }
        if self.state.is_shared() {
            return self.progress_beside_ours();
        }
        // SAFETY: one thread and none of ours, as has just been read; `look` does not call out.
        if unsafe { self.state.enter(State::look) } { self.hand_up_found() } else { 0 }
    }

    /// Hands up what the last look has found, in a job without threads; how many things that was. Most often it is one message.
    #[inline(never)]
    fn hand_up_found(&'static self) -> c_int {
        // SAFETY: one thread: the caller has just looked whether there are more; `message` does not call out.
        let Some(mut delivery) = (unsafe { self.state.enter(State::message) }) else {
            return self.hand_up_others();
        };
        inside::alone(|| self.call_receiver(&mut delivery));
        if self.abi.uses_threads() || self.state.is_shared() {
            return 1 + self.others_have_come(delivery);
        }
        // SAFETY: one thread and none of ours, as has just been read; `last_message` does not call out.
        match unsafe { self.state.enter(|state| state.last_message(delivery)) } {
            None => 1,
            Some(delivery) => 1 + self.hand_up_more(delivery),
        }
    }

    /// The same behind a message, with which the upper layer is done.
    #[inline(never)]
    fn hand_up_more(&'static self, done: Delivery) -> c_int {
        let mut count = 0;
        // SAFETY: one thread and none of ours, as the caller has just read; `next_message` does not call out.
        let mut next = unsafe { self.state.enter(|state| state.next_message(done)) };
        while let Some(mut delivery) = next {
            count += 1;
            inside::alone(|| self.call_receiver(&mut delivery));
            if self.abi.uses_threads() || self.state.is_shared() {
                return count + self.others_have_come(delivery);
            }
            // SAFETY: one thread and none of ours, as has just been read; `next_message` does not call out.
            next = unsafe { self.state.enter(|state| state.next_message(delivery)) };
        }
        count + self.hand_up_others()
    }

    /// Open MPI has begun to use threads within a receive callback, or a thread of ours serves the transport: what was
    /// found goes up in another way.
    #[cold]
    fn others_have_come(&'static self, delivery: Delivery) -> c_int {
        self.with(|state| state.delivered(delivery));
        if self.abi.uses_threads() { self.progress_in_turn() } else { self.progress_beside_ours() }
    }

    /// As `progress` of Open MPI's only thread, beside one of ours, which hands nothing up.
    #[cold]
    fn progress_beside_ours(&'static self) -> c_int {
        let (found, broken) = self.with(|state| (state.look(), state.broken));
        if broken {
            Module::tell_broken();
        }
        if found { self.hand_up_others() } else { 0 }
    }

    /// The same of what is not only messages, or is found beside a thread of ours.
    #[cold]
    fn hand_up_others(&'static self) -> c_int {
        let mut count = 0;
        while let Some(what) = self.transport(None, Transport::take_upcall) {
            count += 1;
            match what {
                Upcall::Deliver(mut delivery) => {
                    inside::alone(|| self.call_receiver(&mut delivery));
                    self.with(|state| state.delivered(delivery));
                }
                other => self.hand_up(other),
            }
        }
        count
    }

    /// As `progress`, among other threads: see `turns`. A thread that finds another one here leaves
    /// the looking around to it.
    #[inline(never)]
    fn progress_in_turn(&'static self) -> c_int {
        let mut count = 0;
        let mut next = self.if_free(State::look_in_turn).flatten();
        while let Some(what) = next {
            count += 1;
            next = match what {
                (Upcall::Deliver(mut delivery), Some(ticket)) => {
                    inside::in_turn(self, ticket, || self.call_receiver(&mut delivery));
                    self.with(|state| {
                        state.turns.end(ticket);
                        state.delivered(delivery);
                        state.take_in_turn()
                    })
                }
                (other, _) => {
                    self.hand_up(other);
                    self.with(State::take_in_turn)
                }
            };
        }
        count
    }

    fn hand_up(&'static self, what: Upcall<Cookie>) {
        match what {
            Upcall::Deliver(delivery) => self.with(|state| state.delivered(delivery)),
            Upcall::Completed { cookie: Cookie::Operation(operation), ok } => {
                self.call_back(operation.endpoint, operation.ticket, || self.rdma_done(operation, ok));
            }
            Upcall::Fetched { cookie: Cookie::Operation(operation), value } => {
                self.call_back(operation.endpoint, operation.ticket, || self.fetched(operation, value));
            }
            Upcall::Completed { cookie: Cookie::Sent { endpoint, desc, ticket }, ok } => {
                self.call_back(endpoint, ticket, || self.sent(endpoint, desc, ok));
            }
            // No atomic is begun with it.
            Upcall::Fetched { cookie: Cookie::Sent { .. }, .. } => {}
            Upcall::UnknownPeer { peer } => self.unknown_peer(peer),
            Upcall::Failed { endpoint, peer, reason, told } => {
                if !told {
                    self.tell_lost(endpoint, peer, &reason);
                }
                self.endpoint_failed(endpoint);
            }
        }
    }

    /// Calls the receiver that is registered for the message's tag.
    #[inline(always)] // with every message
    fn call_receiver(&'static self, delivery: &mut Delivery) {
        let payload = delivery.payload();
        let mut segment =
            mca_btl_base_segment_t { seg_addr: payload.as_mut_ptr().cast(), seg_len: payload.len() as u64 };
        let endpoint = to_raw(delivery.endpoint());
        // SAFETY: the module is ours and lives for ever; the segment lies in a buffer that the
        // delivery owns until the call has returned; no lock and no borrow is held.
        let taken = unsafe { self.abi.deliver(self.as_raw(), endpoint, delivery.tag, &mut segment) };
        if let Err(nobody) = taken {
            log::debug!("message dropped: {nobody}");
        }
    }

    fn rdma_done(&'static self, operation: Operation, ok: bool) {
        if !operation.own.is_null() {
            // SAFETY: a handle that `register` returned for this operation, which is over.
            unsafe { self.deregister(operation.own) };
        }
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

    /// A process that the BML has not told us about asks for a connection: make the endpoint now.
    #[cold]
    fn unknown_peer(&'static self, peer: u64) {
        let name = opal_process_name_t::from_word(peer);
        let Some(process) = self.abi.proc_for_name(name) else {
            return log::debug!("connection request from {name}, a process that Open MPI does not know");
        };
        if let Err(reason) = self.add_peer(process.as_ptr()) {
            log::debug!("connection request from {name} is not answered: {reason}");
        }
    }

    /// Open MPI 4.1's ob1 ends the job on this report. It prints the text that comes with one, as a
    /// format string: there is none, and the reason has been said by `tell_lost`.
    #[cold]
    fn endpoint_failed(&'static self, endpoint: EpId) {
        let (callback, process, closing) = self.with(|s| (s.error, s.process(endpoint), s.closing));
        let Some(callback) = callback.filter(|_| !closing) else { return };
        // SAFETY: the callback that the BML registered; it takes NULL for the text (ob1's
        // `mca_pml_ob1_error_handler` of 4.1 and 5.0 hands it to printing functions that check for
        // it).
        unsafe { callback(self.as_raw(), MCA_BTL_ERROR_FLAGS_FATAL, process, std::ptr::null_mut()) };
    }

    /// Says that an endpoint is lost, and why.
    #[cold]
    fn tell_lost(&self, endpoint: EpId, peer: u64, reason: &str) {
        let name = opal_process_name_t::from_word(peer);
        let (process, closing) = self.with(|s| (s.process(endpoint), s.closing));
        if closing {
            return log::debug!("connection to {name} lost while closing: {reason}");
        }
        let place = self.host(process).map_or_else(String::new, |host| format!(" on {host}"));
        log::error!("connection to {name}{place} is lost: {reason}");
    }

    /// What a call returns whose endpoint is lost. Open MPI may end the job for it, before the failure itself has come up.
    #[cold]
    fn refused(&self, endpoint: EpId) -> c_int {
        if let Some((peer, reason)) = self.transport(None, |t| t.untold_failure(endpoint)) {
            self.tell_lost(endpoint, peer, &reason);
        }
        OPAL_ERR_UNREACH
    }

    /// After a panic: the upper layer hears, once, that nothing goes over this port any more. It
    /// would wait for ever.
    #[cold]
    pub fn tell_broken() {
        for this in Module::all() {
            let (broken, callback) = this.with(|state| (std::mem::take(&mut state.broken), state.error));
            if let (true, Some(callback)) = (broken, callback) {
                let text = c"oxib: internal error";
                // SAFETY: the callback that the BML registered, with a text that lives for ever.
                unsafe {
                    callback(
                        this.as_raw(),
                        MCA_BTL_ERROR_FLAGS_FATAL,
                        std::ptr::null_mut(),
                        text.as_ptr().cast_mut(),
                    );
                };
            }
        }
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
        let id = from_raw(operation.endpoint);
        let started = self.transport(false, |t| {
            let ticket = t.owe(id);
            let cookie = Cookie::Operation(Operation { ticket, ..operation });
            t.rdma(id, op, sge, remote, cookie).map_err(|_| t.called_back(id, ticket)).is_ok()
        });
        if started { OPAL_SUCCESS } else { self.refused(id) }
    }

    /// A put or get of 0 bytes: nothing moves, and the callback comes from progress as ever.
    #[cold]
    pub fn rdma_of_nothing(&'static self, operation: Operation) -> c_int {
        self.transport((), |t| {
            let ticket = t.owe(from_raw(operation.endpoint));
            t.later(Cookie::Operation(Operation { ticket, ..operation }));
        });
        OPAL_SUCCESS
    }

    /// `btl_register_error`.
    pub fn on_error(&self, callback: mca_btl_base_module_error_cb_fn_t) {
        self.with(|state| state.error = callback);
    }
}

/// What a module with these functions and limits offers of atomics.
fn offered(base: &mca_btl_base_module_t) -> Atomics {
    if base.btl_flags & MCA_BTL_FLAGS_ATOMIC_FOPS == 0 {
        Atomics::None
    } else if base.btl_atomic_flags & MCA_BTL_ATOMIC_SUPPORTS_GLOB == 0 {
        Atomics::Device
    } else {
        Atomics::Global
    }
}

/// In the pointers to our endpoints, whose low four bits are otherwise 0. ob1 takes endpoints of two
/// BTLs that are equal for one: no address of another BTL's (a multiple of 16, malloc(3)) is this, nor 1,
/// the endpoint of `self`.
const MARK: u64 = 8;

/// An endpoint's name as the opaque pointer that Open MPI carries for us; never NULL.
#[inline]
pub fn to_raw(id: EpId) -> *mut mca_btl_base_endpoint_t {
    (id.word() << 4 | MARK) as usize as *mut mca_btl_base_endpoint_t
}

/// The endpoint behind Open MPI's pointer.
#[inline]
pub fn from_raw(endpoint: *mut mca_btl_base_endpoint_t) -> EpId {
    EpId::of_word((endpoint as u64).wrapping_sub(MARK) >> 4)
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
