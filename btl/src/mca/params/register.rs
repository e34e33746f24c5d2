//! The rows as MCA variables, and what the user made of them.
//!
//! Open MPI wants a place for each value that outlives the call, and replaces the string in it by
//! its own. All kinds are strings for it: units are accepted, one parser and one message serve all,
//! and a bad number leaves the job alone (when Open MPI itself finds one, registration fails, and a
//! job that lists oxib in `btl` is aborted).

use super::Params;
use super::table::{ROWS, Row, Scope, VERBOSE};
use crate::mca::show::Report;
use opal_sys::*;
use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Most rows that the storage has room for.
const ROOM: usize = 64;

static TEXTS: [AtomicPtr<c_char>; ROOM] = [const { AtomicPtr::new(ptr::null_mut()) }; ROOM];

/// The module whose fields are Open MPI's parameters for every BTL: the pattern of all modules.
#[derive(Debug)]
pub struct Template(UnsafeCell<mca_btl_base_module_t>);

// SAFETY: written during register and open only, which Open MPI calls one after the other from one
// thread.
unsafe impl Sync for Template {}

static TEMPLATE: Template = Template(UnsafeCell::new(mca_btl_base_module_t::zeroed()));

impl Template {
    /// A copy, for a new module. Valid after the component was opened.
    pub fn copy() -> mca_btl_base_module_t {
        // SAFETY: the template is written during registration only, before open, and the module is
        // plain memory: a copy owns nothing.
        unsafe { ptr::read(TEMPLATE.0.get()) }
    }
}

/// Registers Open MPI's own parameters and ours.
///
/// # Errors
/// The OPAL status.
///
/// # Safety
/// Called from the component's register callback, with the component being registered.
pub unsafe fn register(
    base: &Base,
    component: *mut mca_btl_base_component_3_0_0_t,
    functions: fn(&mut mca_btl_base_module_t),
) -> Result<(), i32> {
    const { assert!(ROWS.len() <= ROOM) };
    let version = component.cast::<mca_base_component_t>();
    // SAFETY: Open MPI registers a component once, on one thread, and the template is read after
    // that only.
    let template = unsafe { &mut *TEMPLATE.0.get() };
    *template = defaults(component);
    functions(template);
    // SAFETY: the template is static, the caller vouches for the component.
    unsafe { base.register_btl_params(version, template)? };
    for (row, place) in ROWS.iter().zip(&TEXTS) {
        // SAFETY: `version` is the component's own header, and the row's place is static.
        unsafe { register_row(base, version, row, place)? };
    }
    Ok(())
}

/// The values of this process.
///
/// # Errors
/// The report about the first value that can't be used.
pub fn load(base: &Base) -> Result<Params, Box<Report>> {
    let mut params = Params::parse(base.string_var(c"btl").as_deref(), text_of)?;
    params.note_chosen(|name| is_set(base, name));
    Ok(params)
}

/// Verbosity: ours or that of all BTLs, whichever is higher. A bad one of ours is told by [`load`].
pub fn verbosity(base: &Base) -> i32 {
    let row = ROWS.iter().find(|row| row.name == VERBOSE);
    let ours = row
        .and_then(|row| row.kind.parse(text_of(row)?).ok())
        .map_or(0, |value| i32::from(value.narrow::<u8>()));
    ours.max(base.int_var(c"btl_base_verbose").unwrap_or(0))
}

/// Our defaults of Open MPI's own parameters; `base::BASE_ROWS` documents them.
fn defaults(component: *mut mca_btl_base_component_3_0_0_t) -> mca_btl_base_module_t {
    mca_btl_base_module_t {
        btl_component: component,
        btl_eager_limit: 12 << 10,
        btl_rndv_eager_limit: 12 << 10,
        btl_max_send_size: 64 << 10,
        btl_rdma_pipeline_send_length: 1 << 20,
        btl_rdma_pipeline_frag_size: 1 << 20,
        btl_min_rdma_pipeline_size: (1 << 20) + (12 << 10),
        btl_exclusivity: MCA_BTL_EXCLUSIVITY_DEFAULT,
        btl_latency: 4,
        btl_bandwidth: 0,
        btl_flags: MCA_BTL_FLAGS_SEND
            | MCA_BTL_FLAGS_RDMA
            | MCA_BTL_FLAGS_ATOMIC_OPS
            | MCA_BTL_FLAGS_ATOMIC_FOPS,
        btl_atomic_flags: ATOMICS,
        ..mca_btl_base_module_t::zeroed()
    }
}

/// What is offered of atomics. No minimum and maximum: the interface takes words for signed, and
/// osc/rdma does not say when they are not; its own loop over compare-and-swap knows the type.
const ATOMICS: u32 = MCA_BTL_ATOMIC_SUPPORTS_ADD
    | MCA_BTL_ATOMIC_SUPPORTS_AND
    | MCA_BTL_ATOMIC_SUPPORTS_OR
    | MCA_BTL_ATOMIC_SUPPORTS_XOR
    | MCA_BTL_ATOMIC_SUPPORTS_SWAP
    | MCA_BTL_ATOMIC_SUPPORTS_CSWAP
    | MCA_BTL_ATOMIC_SUPPORTS_GLOB;

unsafe fn register_row(
    base: &Base,
    component: *const mca_base_component_t,
    row: &Row,
    place: &'static AtomicPtr<c_char>,
) -> Result<(), i32> {
    let help = CString::new(row.full_help()).unwrap_or_default();
    let default = CString::new(row.default).unwrap_or_default();
    // Open MPI takes the string that it finds here as the default, and puts a copy in its place.
    place.store(default.as_ptr().cast_mut(), Ordering::Relaxed);
    let scope = match row.scope {
        Scope::Local => MCA_BASE_VAR_SCOPE_LOCAL,
        Scope::All => MCA_BASE_VAR_SCOPE_ALL,
        Scope::AllEqual => MCA_BASE_VAR_SCOPE_ALL_EQ,
    };
    let var = StringVar { name: row.name, help: &help, level: row.level, scope };
    // SAFETY: the place is static, and the string in it lives through the call.
    let done = unsafe { base.register_string(component, &var, place.as_ptr()) };
    if done.is_err() {
        place.store(ptr::null_mut(), Ordering::Relaxed);
    }
    done
}

/// What stands in a row's variable now.
fn text_of(row: &Row) -> Option<&'static str> {
    let index = ROWS.iter().position(|other| ptr::eq(other, row))?;
    let text = TEXTS[index].load(Ordering::Relaxed);
    if text.is_null() {
        return None;
    }
    // SAFETY: a NUL-terminated string that Open MPI keeps until the component is closed; the parser
    // copies what it needs.
    Some(unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("\u{fffd}"))
}

/// Whether the user has set a parameter of ours, or one of every BTL: on the command line, in the
/// environment or in a parameter file of Open MPI.
pub fn is_set(base: &Base, name: &str) -> bool {
    CString::new(format!("btl_oxib_{name}")).is_ok_and(|name| base.is_set(&name))
}
