//! Open MPI's memory hooks: a call for each range of addresses that is given back to the system.
//!
//! ```text
//!   framework "memory" ── opened by each user of hooks, counted ──> its component "patcher"
//!        patches munmap, mmap, mremap, madvise, brk, shmat, shmdt ──> every registered callback
//! ```
//!
//! Nothing opens the framework but its users: its own caches (rcache) when they are made, UCX,
//! libfabric. A support level of 0 is what everyone else sees. Once closed by its last user it takes its
//! patches back, and most releases cannot make them again in this process, though the level stays: a
//! caller has to see for itself whether callbacks come.
//!
//! Sources: `opal/memoryhooks/memory.{h,c}`, `opal/mca/memory/{base,patcher}`, `opal/mca/rcache/base` and
//! `opal/runtime/opal_params*.c` of v4.1.4 and v5.0.5, which agree in all of this.

use crate::status::OPAL_SUCCESS;
use crate::symbols::{self, Resolver};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

/// `opal_mem_hooks_callback_fn_t`: address, bytes, the data of registration, whether it may come from
/// within an allocator. It may come on any thread, with an allocator's locks held.
pub type opal_mem_hooks_callback_fn_t = unsafe extern "C" fn(*mut c_void, usize, *mut c_void, bool);

type RegisterFn = unsafe extern "C" fn(opal_mem_hooks_callback_fn_t, *mut c_void) -> c_int;
type UnregisterFn = unsafe extern "C" fn(opal_mem_hooks_callback_fn_t) -> c_int;
type LevelFn = unsafe extern "C" fn() -> c_int;
type OpenFn = unsafe extern "C" fn(NonNull<c_void>, u32) -> c_int;
type CloseFn = unsafe extern "C" fn(NonNull<c_void>) -> c_int;

/// `opal/memoryhooks/memory_internal.h`.
const OPAL_MEMORY_FREE_SUPPORT: c_int = 1;
const OPAL_MEMORY_MUNMAP_SUPPORT: c_int = 2;

/// What the user wants of memory that was registered (`mpi_leave_pinned`, `mpi_leave_pinned_pipeline`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeavePinned {
    /// Deregister at once.
    Never,
    /// Keep it registered if that is safe.
    Auto,
    /// Keep it registered; the user wants to know if that cannot be.
    Always,
}

/// The functions. Callbacks are known by their address: each is registered once, whatever its data.
#[derive(Clone, Copy, Debug)]
pub struct MemoryHooks {
    framework: NonNull<c_void>,
    open: OpenFn,
    close: CloseFn,
    level: LevelFn,
    register: RegisterFn,
    unregister: UnregisterFn,
    leave_pinned: NonNull<c_int>,
    pipeline: NonNull<bool>,
}

// SAFETY: addresses of code and of static objects of the library. Hooks may be registered from every
// thread; the framework and the two variables are used by the thread that initialises components.
unsafe impl Send for MemoryHooks {}
// SAFETY: the fields never change, and what they point to is used as `Send` says.
unsafe impl Sync for MemoryHooks {}

impl MemoryHooks {
    /// None: this build has none.
    pub(crate) fn resolve(find: Resolver<'_>) -> Option<Self> {
        // SAFETY: the signatures are those of opal/memoryhooks/memory.h and
        // opal/mca/base/mca_base_framework.h, equal in v4.1.0 to v5.0.10.
        unsafe {
            Some(Self {
                framework: symbols::data(find, c"opal_memory_base_framework").ok()?,
                open: symbols::function(find, c"mca_base_framework_open").ok()?,
                close: symbols::function(find, c"mca_base_framework_close").ok()?,
                level: symbols::function(find, c"opal_mem_hooks_support_level").ok()?,
                register: symbols::function(find, c"opal_mem_hooks_register_release").ok()?,
                unregister: symbols::function(find, c"opal_mem_hooks_unregister_release").ok()?,
                leave_pinned: symbols::data(find, c"opal_leave_pinned").ok()?,
                pipeline: symbols::data(find, c"opal_leave_pinned_pipeline").ok()?,
            })
        }
    }

    /// What the user wants. Open MPI's own caches keep registrations with the pipeline, too.
    pub fn leave_pinned(&self) -> LeavePinned {
        // SAFETY: static variables of the library, an `int` and a `bool`, set when its parameters
        // are read, and by its caches while components are initialised, which happens on one thread.
        let (pinned, pipeline) = unsafe { (*self.leave_pinned.as_ptr(), *self.pipeline.as_ptr()) };
        match pinned {
            0 if !pipeline => LeavePinned::Never,
            1.. => LeavePinned::Always,
            _ => LeavePinned::Auto,
        }
    }

    /// Opens the framework and registers `callback` for releases of every kind.
    ///
    /// # Errors
    /// What is missing; nothing stays open then.
    ///
    /// # Safety
    /// `callback` allocates nothing, takes no lock and may be called on any thread, also soon after it was
    /// unregistered. No other thread is in a function that is patched: the patch is not atomic.
    pub unsafe fn start(&self, callback: opal_mem_hooks_callback_fn_t) -> Result<(), &'static str> {
        // SAFETY: the framework is the library's, opened as its own caches open it.
        if unsafe { (self.open)(self.framework, 0) } != OPAL_SUCCESS {
            return Err("the framework memory cannot be opened");
        }
        // SAFETY: the framework is open; the caller vouches for the callback.
        unsafe { self.register_for_all(callback) }.inspect_err(|_| {
            // SAFETY: opened above, once.
            unsafe { (self.close)(self.framework) };
        })
    }

    /// # Safety
    /// As `start`, and the framework is open.
    unsafe fn register_for_all(&self, callback: opal_mem_hooks_callback_fn_t) -> Result<(), &'static str> {
        let all = OPAL_MEMORY_FREE_SUPPORT | OPAL_MEMORY_MUNMAP_SUPPORT;
        // SAFETY: a query of the library, without arguments.
        if unsafe { (self.level)() } & all != all {
            return Err("its hooks do not see all memory that is released");
        }
        // SAFETY: the caller vouches for the callback, which gets no data.
        match unsafe { (self.register)(callback, std::ptr::null_mut()) } {
            OPAL_SUCCESS => Ok(()),
            _ => Err("it registers no callback"),
        }
    }

    /// The callback is not called any more, but on threads that are in it already.
    ///
    /// # Safety
    /// `start` has succeeded with this callback, and it has not been unregistered since.
    pub unsafe fn unregister(&self, callback: opal_mem_hooks_callback_fn_t) {
        // SAFETY: registered by `start`.
        unsafe { (self.unregister)(callback) };
    }

    /// Closes the framework; for its last user it takes its patches back.
    ///
    /// # Safety
    /// `start` has succeeded, and `close` has not been called since. No other thread is in a function that
    /// is patched.
    pub unsafe fn close(&self) {
        // SAFETY: opened by `start`.
        unsafe { (self.close)(self.framework) };
    }
}
