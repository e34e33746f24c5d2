//! One BTL module: a port's transport behind the function table that Open MPI calls.
//!
//! Every entry locks the transport only while Open MPI uses threads or one of ours serves it (`background`), and never while it calls back:
//! a callback may enter any function here again. What the transport has for the upper layer is
//! taken out one by one.

mod at_once;
mod atomics;
pub(super) mod background;
mod closing;
mod flush;
mod guarded;
mod inside;
mod losses;
mod owed;
mod parting;
mod registering;
mod sending;
mod turns;
mod upward;

use super::frag::Frag;
use super::registrations::Registrations;
use crate::protocol::layout::Layout;
use crate::protocol::regcache::Limits;
use crate::transport::{Delivery, EpId, Transport};
use opal_sys::*;

use guarded::{GiveUp, Guarded};
pub use owed::Cookie;
use owed::{Debts, Owed};
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering};
use sync::Guard;
use turns::Turns;
use verbs::{Atomics, LKey, RKey, RdmaOp, Sge};

/// The module of the first port, which in most jobs is the only one. It knows the next.
static FIRST: AtomicPtr<Module> = AtomicPtr::new(std::ptr::null_mut());

/// Fragments kept for reuse.
const FREE_FRAGS: usize = 256;

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
#[repr(C)] // in this order
pub struct State {
    /// The transport; gone after finalize.
    pub transport: Option<Transport<Cookie>>,
    /// Callbacks that its cookies name.
    owed: Debts,
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
    /// Has the transport `begin` an operation, whose callback is owed from then on. Else it says why it has not; `gone`, if there is no transport.
    #[inline]
    fn begin<E>(
        &mut self,
        operation: Operation,
        gone: E,
        begin: impl FnOnce(&mut Transport<Cookie>, Cookie) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(transport) = &mut self.transport else { return Err(gone) };
        let id = from_raw(operation.endpoint);
        let ticket = transport.owe(id);
        let cookie = self.owed.add(Owed::Operation(Operation { ticket, ..operation }));
        let begun = begin(transport, cookie);
        if begun.is_err() {
            transport.called_back(id, ticket);
            self.owed.take(cookie);
        }
        begun
    }

    /// The same of the callback of a descriptor that is sent.
    fn owe_send(
        &mut self,
        endpoint: *mut mca_btl_base_endpoint_t,
        desc: *mut mca_btl_base_descriptor_t,
        wait: impl FnOnce(&mut Transport<Cookie>, Cookie),
    ) {
        if let Some(transport) = &mut self.transport {
            let ticket = transport.owe(from_raw(endpoint));
            wait(transport, self.owed.add(Owed::Sent { endpoint, desc, ticket }));
        }
    }

    /// Runs `f`. If it is a callback that enters, that has taken its message.
    #[inline(always)] // whenever a thread enters
    fn entered<R>(&mut self, f: impl FnOnce(&mut State) -> R) -> R {
        if self.turns.are_running() {
            self.end_own_turn();
        }
        f(self)
    }

    fn end_own_turn(&mut self) {
        if let Some((_, ticket)) = inside::take_turn() {
            self.turns.end(ticket);
        }
    }

    /// Open MPI's process of an endpoint; null: it is not known any more.
    fn process(&self, endpoint: EpId) -> *mut opal_proc_t {
        self.procs.get(&endpoint).copied().unwrap_or(std::ptr::null_mut())
    }
}

/// A callback that enters a module, whichever that is, has taken its message. If there is one module only, it looks for itself
/// ([`State::entered`]).
#[inline]
fn end_turn() {
    if Module::are_several() {
        end_turn_of_any();
    }
}

#[cold]
fn end_turn_of_any() {
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
#[allow(missing_debug_implementations, reason = "foreign structures have nothing to print")]
#[repr(C)] // in this order: what each message reads is behind what Open MPI reads for it
pub struct Module {
    /// Limits and functions.
    pub base: UnsafeCell<mca_btl_base_module_t>,
    abi: &'static Abi,
    /// The module of the next port.
    next: AtomicPtr<Module>,
    state: Guarded<State>,
    place: Place,
    /// What peers are told and compared with.
    pub layout: Layout,
    at_end: AtEnd,
    /// The user's memory that peers or puts and gets of ours may touch.
    registrations: Registrations,
    /// The key of all memory for gets of ours, where none of it has to be registered.
    all_memory: Option<LKey>,
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
        let all_memory = transport.key_of_all();
        let state = State {
            transport: Some(transport),
            owed: Debts::default(),
            free: Vec::new(),
            procs: HashMap::new(),
            error: None,
            closing: false,
            turns: Turns::new(),
            broken: false,
        };
        Box::leak(Box::new(Module {
            abi,
            state: Guarded::new(state, abi.threads()),
            next: AtomicPtr::new(std::ptr::null_mut()),
            place,
            layout,
            at_end,
            registrations: Registrations::new(limits),
            all_memory,
            iwarp,
            atomics: offered(&base),
            base: UnsafeCell::new(base),
        }))
    }

    /// The key of all memory for gets of ours; `None`: the upper layer has to register what it gets into.
    #[inline]
    pub fn key_of_all(&self) -> Option<LKey> {
        self.all_memory
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

    /// This process has more than one module.
    #[inline]
    fn are_several() -> bool {
        Module::linked(&FIRST).is_some_and(|first| !first.next.load(Ordering::Relaxed).is_null())
    }

    /// Every module of this process.
    fn all() -> impl Iterator<Item = &'static Module> {
        std::iter::successors(Module::linked(&FIRST), |this| Module::linked(&this.next))
    }

    /// More than one thread may call us. It can become true at any time: it is read on every entry.
    #[inline(always)] // with every call
    fn uses_threads(&self) -> bool {
        self.state.uses_threads()
    }

    /// Runs `f` on the state. `f` calls nothing of Open MPI.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let _guard = (self.uses_threads() || self.state.is_shared()).then(|| self.locked());
        // SAFETY: either the lock is held, or Open MPI has promised that only one thread calls us and none of ours does;
        // and `f` does not call out, so that no second borrow can begin before this one ends.
        unsafe { self.state.enter(|state| state.entered(f)) }
    }

    /// As `with`, among other threads, and only if none of them is in the module or wants to be.
    fn if_free<R>(&self, f: impl FnOnce(&mut State) -> R) -> Option<R> {
        end_turn();
        let _guard = self.state.try_lock()?;
        // SAFETY: the lock is held, and `f` does not call out.
        Some(unsafe { self.state.enter(|state| state.entered(f)) })
    }

    /// As `with`, of a thread whose callback has just returned: it has no turn any more.
    #[inline]
    fn behind_turn<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let _guard = self.state.lock();
        // SAFETY: the lock is held, and `f` does not call out.
        unsafe { self.state.enter(f) }
    }

    #[cold]
    fn locked(&self) -> Guard<'_, ()> {
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
        !inside::is_inside(self.uses_threads())
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

    fn keep(&self, frag: Box<Frag>) {
        self.with(|state| {
            if state.free.len() < FREE_FRAGS {
                state.free.push(frag);
            }
        });
    }

    /// `btl_put` and `btl_get`. The callback of one that is over within the call comes from there.
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
        let begin = |t: &mut Transport<Cookie>, cookie| t.rdma(id, op, sge, remote, cookie).map_err(drop);
        let at_once = |t: &mut Transport<Cookie>| at_once::may_be() && t.rdma_at_once(id, op, sge, remote);
        let go = |state: &mut State| match state.transport.as_mut().is_some_and(at_once) {
            true => Ok(true),
            false => state.begin(operation, (), begin).map(|()| false),
        };
        match self.with(go) {
            Ok(false) => OPAL_SUCCESS,
            Ok(true) => {
                self.is_over_at_once(operation);
                OPAL_SUCCESS
            }
            Err(()) => self.refused(id),
        }
    }

    /// A put or get of 0 bytes: nothing moves, and the callback comes from progress as ever.
    #[cold]
    pub fn rdma_of_nothing(&'static self, operation: Operation) -> c_int {
        let begin = |t: &mut Transport<Cookie>, cookie| {
            t.later(cookie);
            Ok(())
        };
        let begun = self.with(|state| state.begin(operation, OPAL_ERR_UNREACH, begin));
        begun.err().unwrap_or(OPAL_SUCCESS)
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
