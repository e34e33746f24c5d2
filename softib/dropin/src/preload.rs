//! Beside a real rdma-core: `libsoftib-preload.so`, for LD_PRELOAD.
//!
//! ```text
//!   program ── ibv_alloc_pd(context) ──> trampoline ──> choose: whose context? ──┬──> softib
//!              ibv_get_device_list() ──> both lists, one behind the other        └──> the real libibverbs.so.1
//! ```
//!
//! The library stands in front of the real one and has its names, not its soname. Programs see the real devices and softib0
//! behind them. Every call names an object by its first argument, each object knows its context, and each context its device:
//! so [`choose`] tells whose it is, and the call goes there as it came. The data path does not pass here: it goes through
//! the function pointers of the context. What names no object is left to the real library, as is all of its private
//! interface: providers (libmlx5) register with it and not with us.
//!
//! The real library is found as the loader finds `libibverbs.so.1`; `SOFTIB_REAL_VERBS` may name another file. If what is found
//! is softib itself (the drop-in is in LD_LIBRARY_PATH), all calls go there, and its device is listed once.
//! A program that opens libibverbs.so.1 by dlopen and looks its functions up there does not pass here at all.

use crate::symbols::{SYMBOLS, Symbol, TARGETS};
use crate::{guarded, refuse};
use rdma_sys::*;
use std::ffi::{CStr, CString, c_int, c_void};
use std::io::Write;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// How the preloaded library answers for a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The first argument says whose call it is; here a device.
    Device,
    /// The first argument is a context.
    Context,
    /// The first argument is an object of a context.
    Object,
    /// The first argument is an asynchronous event.
    Event,
    /// A function of this module that knows both sides, by its symbol.
    Both(&'static str),
    /// Softib's function answers every call.
    Ours,
    /// Not exported: the real library answers, and no other may answer for its private interface.
    Real,
}

/// The rules, by name.
const RULES: &[(Rule, &[&str])] = &[
    (Rule::Both("oxib_preload_get_device_list"), &["ibv_get_device_list"]),
    (Rule::Both("oxib_preload_free_device_list"), &["ibv_free_device_list"]),
    (Rule::Both("oxib_preload_fork_init"), &["ibv_fork_init"]),
    // They read whatever file they are asked for, and ours besides.
    (Rule::Ours, &["ibv_get_sysfs_path", "ibv_read_sysfs_file"]),
    (Rule::Event, &["ibv_ack_async_event"]),
    (
        Rule::Device,
        &["ibv_get_device_name", "ibv_get_device_guid", "ibv_get_device_index", "ibv_open_device"],
    ),
    (
        Rule::Context,
        &[
            "_ibv_query_gid_ex",
            "_ibv_query_gid_table",
            "ibv_alloc_dmah",
            "ibv_alloc_pd",
            "ibv_close_device",
            "ibv_create_comp_channel",
            "ibv_create_cq",
            "ibv_get_async_event",
            "ibv_get_pkey_index",
            "ibv_import_dm",
            "ibv_import_pd",
            "ibv_init_ah_from_wc",
            "ibv_query_device",
            "ibv_query_gid",
            "ibv_query_gid_type",
            "ibv_query_pkey",
            "ibv_query_port",
            "ibv_query_port_speed",
            "ibv_resolve_eth_l2_from_gid",
        ],
    ),
    (
        Rule::Object,
        &[
            "ibv_ack_cq_events",
            "ibv_alloc_buf",
            "ibv_attach_mcast",
            "ibv_create_ah",
            "ibv_create_ah_from_wc",
            "ibv_create_qp",
            "ibv_create_srq",
            "ibv_dealloc_dmah",
            "ibv_dealloc_pd",
            "ibv_dereg_mr",
            "ibv_destroy_ah",
            "ibv_destroy_comp_channel",
            "ibv_destroy_cq",
            "ibv_destroy_qp",
            "ibv_destroy_srq",
            "ibv_detach_mcast",
            "ibv_dm_export_dmabuf_fd",
            "ibv_get_cq_event",
            "ibv_import_mr",
            "ibv_modify_qp",
            "ibv_modify_srq",
            "ibv_qp_to_qp_ex",
            "ibv_query_ece",
            "ibv_query_qp",
            "ibv_query_qp_data_in_order",
            "ibv_query_srq",
            "ibv_reg_buf_mr",
            "ibv_reg_dmabuf_mr",
            "ibv_reg_mr",
            "ibv_reg_mr_ex",
            "ibv_reg_mr_iova",
            "ibv_reg_mr_iova2",
            "ibv_rereg_mr",
            "ibv_resize_cq",
            "ibv_set_ece",
            "ibv_unimport_dm",
            "ibv_unimport_mr",
            "ibv_unimport_pd",
        ],
    ),
];

/// The rule for a name.
pub fn rule(name: &str) -> Rule {
    let found = RULES.iter().find(|(_, names)| names.contains(&name));
    found.map_or(Rule::Real, |(rule, _)| *rule)
}

/// Names that have a rule, for the test that no rule is for a name that does not exist.
pub fn ruled_names() -> impl Iterator<Item = &'static str> {
    RULES.iter().flat_map(|(_, names)| names.iter().copied())
}

/// Where the real library's functions are, once they were asked for; by the index of their target.
static REAL: [AtomicPtr<c_void>; SYMBOLS.len()] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; SYMBOLS.len()];

/// Where a call goes: the trampoline asks with the index of its name in [`SYMBOLS`] and its first argument.
///
/// # Safety
/// `first` is what the function of that name takes first, and alive.
#[unsafe(export_name = "oxib_preload_choose")]
pub unsafe extern "C" fn choose(at: usize, first: *const c_void) -> *const c_void {
    guarded(refuse::null as *const c_void, || {
        let symbol = &SYMBOLS[at];
        // SAFETY: the trampoline passes the first argument of the function with index `at`, which
        // the program promises is alive; the rule of that name says what it is.
        if softib::is_device(unsafe { device_of(rule(symbol.name), first) }) {
            return TARGETS[at].address();
        }
        real_function(at, symbol)
    })
}

/// The device behind a function's first argument; null for events that belong to no object.
///
/// # Safety
/// `first` is what functions of this rule take first.
unsafe fn device_of(rule: Rule, first: *const c_void) -> *const ibv_device {
    // SAFETY: the caller promises that `first` is what functions of this rule take, and alive.
    // ibv_pd, ibv_mr, ibv_cq, ibv_qp, ibv_srq, ibv_ah, ibv_comp_channel, ibv_dm and ibv_dmah begin
    // with their context, and ibv_context with its device (asserted below; ibv_dm and ibv_dmah are
    // as verbs.h declares them).
    unsafe {
        match rule {
            Rule::Device => first.cast(),
            Rule::Context => *first.cast(),
            Rule::Object => **first.cast::<*const *const ibv_device>(),
            Rule::Event if has_object(&*first.cast()) => ***first.cast::<*const *const *const ibv_device>(),
            Rule::Event | Rule::Both(_) | Rule::Ours | Rule::Real => std::ptr::null(),
        }
    }
}

/// Events of ports and devices carry a number or nothing; acknowledging them does nothing in either
/// library.
fn has_object(event: &ibv_async_event) -> bool {
    let of_the_device = [
        IBV_EVENT_DEVICE_FATAL,
        IBV_EVENT_PORT_ACTIVE,
        IBV_EVENT_PORT_ERR,
        IBV_EVENT_LID_CHANGE,
        IBV_EVENT_PKEY_CHANGE,
        IBV_EVENT_SM_CHANGE,
        IBV_EVENT_CLIENT_REREGISTER,
        IBV_EVENT_GID_CHANGE,
    ];
    !of_the_device.contains(&event.event_type)
}

/// The real library's function of this name. It has one, or the program would not have started; where that is wrong, the call
/// is refused.
fn real_function(at: usize, symbol: &Symbol) -> *const c_void {
    let known = REAL[at].load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let found = symbol.nodes.iter().find_map(|node| look_up(symbol.name, node));
    let found = found.unwrap_or(refuse::null as *mut c_void);
    REAL[at].store(found, Ordering::Release);
    found
}

/// The real libibverbs: already loaded by the program, as a rule. Without one there is only softib.
fn library() -> Option<*mut c_void> {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let handle = *LIBRARY.get_or_init(|| {
        let chosen = std::env::var("SOFTIB_REAL_VERBS").ok().and_then(|path| CString::new(path).ok());
        let name = chosen.as_deref().unwrap_or(c"libibverbs.so.1");
        // SAFETY: a C string; the library's own constructors are the loader's business. It is never closed.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() && chosen.is_some() {
            complain(name);
        }
        handle.expose_provenance()
    });
    (handle != 0).then(|| std::ptr::with_exposed_provenance_mut(handle))
}

/// A library that was asked for and is not there must not look like a machine without devices. dlopen has just failed.
#[cold]
fn complain(name: &CStr) {
    // SAFETY: the text of the last failure is a C string that stays until the next call; it is copied.
    let why = unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned();
    let text = "expected a libibverbs; only softib's devices are there";
    // Without standard error it can't be said.
    let _ = writeln!(std::io::stderr(), "softib: SOFTIB_REAL_VERBS={name:?}: {text}: {why}");
}

fn look_up(name: &str, node: &str) -> Option<*mut c_void> {
    let (name, node) = (CString::new(name).ok()?, CString::new(node).ok()?);
    // SAFETY: an open handle and two C strings.
    let found = unsafe { libc::dlvsym(library()?, name.as_ptr(), node.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Whether what was found beside us is softib again.
fn is_softib(library: *mut c_void) -> bool {
    // SAFETY: an open handle and a C string.
    !unsafe { libc::dlsym(library, SOFTIB_MARKER.as_ptr()) }.is_null()
}

/// A list that was handed out, and the lists that it was made of.
struct Merged {
    both: Box<[*mut ibv_device]>,
    ours: *mut *mut ibv_device,
    theirs: *mut *mut ibv_device,
}

// SAFETY: the three lists are memory of the process that is bound to no thread: any may read and
// free it.
unsafe impl Send for Merged {}

static MERGED: Mutex<Vec<Merged>> = Mutex::new(Vec::new());

type GetList = unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device;
type FreeList = unsafe extern "C" fn(*mut *mut ibv_device);
type Init = unsafe extern "C" fn() -> c_int;

/// `ibv_get_device_list`: the real devices, and ours behind them, so that a program that takes the first one keeps what it had.
///
/// # Safety
/// `count` is null or valid.
#[unsafe(export_name = "oxib_preload_get_device_list")]
pub unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    guarded(std::ptr::null_mut(), || {
        let theirs = look_up("ibv_get_device_list", "IBVERBS_1.1").map_or(std::ptr::null_mut(), |get| {
            // SAFETY: the function of that name and version has this signature; it takes null.
            unsafe { std::mem::transmute::<*mut c_void, GetList>(get)(std::ptr::null_mut()) }
        });
        let ours = if library().is_some_and(is_softib) {
            std::ptr::null_mut()
        } else {
            // SAFETY: null is fine.
            unsafe { (softib::driver_table().get_device_list)(std::ptr::null_mut()) }
        };
        // SAFETY: both are null or lists that end with null.
        let mut both: Vec<_> = unsafe { entries(theirs).chain(entries(ours)).collect() };
        if !count.is_null() {
            // SAFETY: `count` is not null here, so the program promises that it is valid.
            unsafe { *count = both.len() as c_int };
        }
        both.push(std::ptr::null_mut());
        let mut merged = Merged { both: both.into_boxed_slice(), ours, theirs };
        let list = merged.both.as_mut_ptr();
        MERGED.lock().unwrap_or_else(PoisonError::into_inner).push(merged);
        list
    })
}

/// # Safety
/// `list` is null or ends with null.
unsafe fn entries(list: *mut *mut ibv_device) -> impl Iterator<Item = *mut ibv_device> {
    // SAFETY: `list` is not null where this is called, so the caller promises that it ends with
    // null; `take_while` stops there, and every index up to it is inside.
    let at = move |i: usize| unsafe { *list.add(i) };
    (0..)
        .map_while(move |i| if list.is_null() { None } else { Some(at(i)) })
        .take_while(|device| !device.is_null())
}

/// `ibv_free_device_list`
///
/// # Safety
/// `list` is from [`get_device_list`], and not used afterwards.
#[unsafe(export_name = "oxib_preload_free_device_list")]
pub unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    guarded((), || {
        let mut all = MERGED.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = all.iter().position(|merged| merged.both.as_ptr() == list) else { return };
        let merged = all.swap_remove(at);
        drop(all);
        let free = look_up("ibv_free_device_list", "IBVERBS_1.1").filter(|_| !merged.theirs.is_null());
        // SAFETY: the function of that name and version has this signature; both lists were made by the library that frees them, and
        // are freed once, for the entry is gone.
        unsafe {
            if let Some(free) = free {
                std::mem::transmute::<*mut c_void, FreeList>(free)(merged.theirs);
            }
            if !merged.ours.is_null() {
                (softib::driver_table().free_device_list)(merged.ours);
            }
        }
    });
}

/// `ibv_fork_init`: both; the real library's answer, which is the one that can be bad.
///
/// # Safety
/// None needed; the C ABI asks for the keyword.
#[unsafe(export_name = "oxib_preload_fork_init")]
pub unsafe extern "C" fn fork_init() -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: both take nothing; the function of that name and version has this signature.
        unsafe {
            let ours = (softib::driver_table().fork_init)();
            let theirs = look_up("ibv_fork_init", "IBVERBS_1.1");
            theirs.map_or(ours, |init| std::mem::transmute::<*mut c_void, Init>(init)())
        }
    })
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(ibv_context, device) == 0 && offset_of!(ibv_pd, context) == 0);
    assert!(offset_of!(ibv_mr, context) == 0 && offset_of!(ibv_ah, context) == 0);
    assert!(offset_of!(ibv_cq, context) == 0 && offset_of!(ibv_qp, context) == 0);
    assert!(offset_of!(ibv_srq, context) == 0 && offset_of!(ibv_comp_channel, context) == 0);
    assert!(offset_of!(ibv_async_event, element) == 0);
};
