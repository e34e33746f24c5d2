//! The engine's life: made by the first context, taken down with the last; what exit and fork mean for it.

use super::inbound::Inbound;
use super::shared::{DeviceThread, Shared};
use super::state::State;
use super::still::Still;
use super::{ENGINE, Engine, current, thread};
use crate::errno::Errno;
use crate::fabric::{Ports, processors};
use crate::objects::faults::plan::Plan;
use crate::objects::faults::state::Faults;
use crate::objects::mr::Mrs;
use crate::objects::peers::Peers;
use crate::objects::qp::Qps;
use crate::objects::shared::SharedMemory;
use crate::objects::world::{Left, Stats, World};
use crate::objects::xrc::Xrc;
use crate::shm::barrier::Barrier;
use crate::shm::heap::Heap;
use crate::shm::segment::{self, Segment};
use crate::shm::{card, registry};
use slab::Slab;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use sync::Lock;

/// Open contexts, behind a lock that serialises open and close. A fork child gets a new one: another thread of its parent may have
/// held the lock.
static USERS: AtomicPtr<Mutex<usize>> = AtomicPtr::new((&raw const PARENTS_USERS).cast_mut());

static PARENTS_USERS: Mutex<usize> = Mutex::new(0);

/// The lock-holding descriptors (segment, node), for the fork child.
static LOCK_FDS: [AtomicI32; 3] = [const { AtomicI32::new(-1) }; 3];

fn users() -> MutexGuard<'static, usize> {
    // SAFETY: a static or a leaked box: always valid.
    unsafe { &*USERS.load(Ordering::Acquire) }.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes sure that the engine runs and counts one more user. `plan` is for an engine that starts.
pub fn open(plan: Plan) -> Result<&'static Engine, Errno> {
    let mut users = users();
    if *users == 0 {
        install_process_hooks();
        let engine = Box::into_raw(Box::new(start(plan)?));
        // SAFETY: just leaked, and only ever shared from now on; freed by close() after the thread has ended.
        let shared: &'static Engine = unsafe { &*engine };
        match thread::spawn(shared) {
            Ok(thread) => keep_thread(shared, thread),
            Err(error) => {
                shared.enter().w.segment.unlink();
                // SAFETY: the engine was leaked above and never published, and its thread did not
                // start: no other reference to it is left in use.
                drop(unsafe { Box::from_raw(engine) });
                return Err(error);
            }
        }
        ENGINE.store(engine, Ordering::Release);
    }
    *users += 1;
    current().ok_or(Errno::NODEV)
}

/// Takes one user back; the last one takes the engine down.
pub fn close() {
    let mut users = users();
    *users = users.saturating_sub(1);
    if *users > 0 {
        return;
    }
    let engine = ENGINE.swap(std::ptr::null_mut(), Ordering::AcqRel);
    LOCK_FDS.iter().for_each(|fd| fd.store(-1, Ordering::Release));
    if engine.is_null() {
        return;
    }
    // SAFETY: leaked by open(), unpublished just now, and no verbs call may be under way.
    let engine = unsafe { Box::from_raw(engine) };
    if let Some(thread) = engine.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
        thread.stop(&engine.shared);
    }
    let state = engine.enter();
    state.w.segment.unlink();
    state.w.report_faults();
}

/// Registers, once, what must happen at exit and after fork.
fn install_process_hooks() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: both handlers are plain functions that stay valid as long as this object is loaded.
        unsafe {
            libc::atexit(at_exit);
            libc::pthread_atfork(None, None, Some(in_fork_child));
        }
    });
}

/// Exit (or dlclose) without close: ends the device thread and takes the name of the segment away. A fork child has no
/// engine any more.
extern "C" fn at_exit() {
    if let Some(engine) = current()
        && engine.shared.is_owner_process()
    {
        let thread = engine.thread.try_lock().ok().and_then(|mut thread| thread.take());
        if let Some(thread) = thread {
            thread.abandon(&engine.shared);
        }
        if let Some(mut state) = engine.lock.try_lock() {
            state.still.forget();
            for (_, domain) in &state.w.xrc.domains {
                registry::part(state.w.peers.dir(), &domain.file, domain.holder);
            }
            state.w.segment.unlink();
            state.w.ports.leave();
            state.w.report_faults();
        }
    }
}

fn remember_locks(segment: &Segment, ports: &Ports) {
    let [lock, file] = segment.descriptors();
    let descriptors = [lock, file, ports.lock_descriptor().unwrap_or(-1)];
    LOCK_FDS.iter().zip(descriptors).for_each(|(place, fd)| place.store(fd, Ordering::Release));
}

/// The child keeps neither the locks (the parent's death must be seen) nor the engine (its mappings are not there). It may open
/// the device for itself.
extern "C" fn in_fork_child() {
    registry::forget_in_fork_child();
    ENGINE.store(std::ptr::null_mut(), Ordering::Release);
    USERS.store(Box::leak(Box::default()), Ordering::Release);
    for fd in LOCK_FDS.iter().map(|fd| fd.swap(-1, Ordering::AcqRel)).filter(|&fd| fd >= 0) {
        // SAFETY: closes the child's copy of a descriptor whose File is leaked with the parent's engine.
        unsafe { libc::close(fd) };
    }
}

/// An engine without its thread.
fn start(plan: Plan) -> Result<Engine, Errno> {
    let barrier = std::sync::Arc::new(Barrier::query());
    let dir = segment::directory();
    let processors = processors().map_err(|_| Errno::INVAL)?;
    let ports = Ports::open(&dir)?;
    let segment = Segment::claim(&dir, barrier.is_offered, |map| card::publish(map, ports.all()))?;
    remember_locks(&segment, &ports);
    let (map, inlets) = (segment.map.clone(), segment.inlets.clone());
    let peers = Peers::new(dir, &segment, barrier.clone(), processors);
    let w = World {
        segment,
        ports,
        faults: Faults::start(plan),
        asks_at_requests: false,
        heap: Heap::default(),
        shared: SharedMemory::default(),
        contexts: Slab::new(),
        pds: Slab::new(),
        parents: Vec::new(),
        mrs: Mrs::new(),
        cqs: Slab::new(),
        channels: Slab::new(),
        srqs: Slab::new(),
        peers,
        busy: Vec::new(),
        doomed: Vec::new(),
        ending: Vec::new(),
        retired: Vec::new(),
        replies: VecDeque::new(),
        groups: Default::default(),
        xrc: Xrc::default(),
        stats: Stats::default(),
        hurried: false,
        looked: None,
        was_elsewhere: false,
        in_burst: false,
        began: None,
        unlooked: 0,
        expected: Default::default(),
        lender: None,
        left: Left::default(),
    };
    let inbound = Inbound::new(inlets, barrier);
    let still = Still::new(&inbound);
    let state = State { qps: Qps::new(), inbound, w, still };
    let shared = std::sync::Arc::new(Shared::new(map));
    if state.w.faults.is_some() {
        shared.wake_for_rounds();
    }
    Ok(Engine { lock: Lock::new(state), shared, thread: Mutex::new(None) })
}

fn keep_thread(engine: &Engine, thread: DeviceThread) {
    *engine.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
}
