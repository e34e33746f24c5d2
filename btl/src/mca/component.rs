//! The component that Open MPI finds in `mca_btl_oxib.so`, and its life: register, open, init,
//! progress, close.
//!
//! The file exports exactly one symbol, the component: Open MPI loads components with RTLD_GLOBAL.
//! All of OPAL is looked up at run time. The callbacks may come more than once (MPI_T, sessions),
//! so the state between them is reset by close.

use super::counters;
use super::entry::TRANSPORT;
use super::guard::guard;
use super::modex_io;
use super::params::{self, DeviceChoice, Params};
use super::show::{Refusal, Report};
use opal_sys::*;
use std::ffi::{c_char, c_int};
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// The exported component.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "Open MPI looks for this very name")]
pub static mut mca_btl_oxib_component: mca_btl_base_component_3_0_0_t = mca_btl_base_component_3_0_0_t {
    btl_version: mca_base_component_t {
        mca_major_version: 2,
        mca_minor_version: 1,
        mca_release_version: 0,
        mca_project_name: name("opal"),
        mca_project_major_version: 4,
        mca_project_minor_version: 1,
        mca_project_release_version: 0,
        mca_type_name: name("btl"),
        mca_type_major_version: 3,
        mca_type_minor_version: 1,
        mca_type_release_version: 0,
        mca_component_name: name("oxib"),
        mca_component_major_version: version(env!("CARGO_PKG_VERSION_MAJOR")),
        mca_component_minor_version: version(env!("CARGO_PKG_VERSION_MINOR")),
        mca_component_release_version: version(env!("CARGO_PKG_VERSION_PATCH")),
        mca_open_component: Some(open),
        mca_close_component: Some(close),
        mca_query_component: None,
        mca_register_component_params: Some(register),
        mca_component_flags: 0,
        reserved: [0; 28],
    },
    btl_data: mca_base_component_data_t { param_field: 0, reserved: [0; 32] },
    btl_init: Some(init),
    btl_progress: Some(progress),
};

/// What open found out, for init.
static OPENED: Mutex<Option<Result<Params, Refusal>>> = Mutex::new(None);

unsafe extern "C" fn register() -> c_int {
    guard("component register", OPAL_ERR_NOT_AVAILABLE, register_component)
}

unsafe extern "C" fn open() -> c_int {
    guard("component open", OPAL_ERR_NOT_AVAILABLE, open_component)
}

unsafe extern "C" fn close() -> c_int {
    guard("component close", OPAL_ERROR, close_component)
}

unsafe extern "C" fn init(
    count: *mut c_int,
    _progress_threads: bool,
    threads: bool,
) -> *mut *mut mca_btl_base_module_t {
    let modules = guard("component init", Vec::new(), || init_component(threads));
    // SAFETY: Open MPI passes a place for the count.
    unsafe { hand_over(&modules, &mut *count) }
}

unsafe extern "C" fn progress() -> c_int {
    (TRANSPORT.progress)()
}

/// Registers the parameters. Whatever goes wrong is told by init: a component that fails here
/// counts as "not found", and a job that lists it in `btl` is aborted, when it could go on with
/// other transports.
fn register_component() -> c_int {
    let Ok(base) = Base::load() else { return OPAL_ERR_NOT_AVAILABLE };
    if Abi::detect().is_ok() {
        // SAFETY: this is the register callback of that component.
        let done = unsafe { params::register(&base, &raw mut mca_btl_oxib_component, TRANSPORT.functions) };
        if let Err(status) = done {
            log::error!("open mpi refused the registration of parameters with status {status}");
            return status;
        }
        // SAFETY: this is the register callback of that component, in which variables are declared.
        if let Err(status) = unsafe { counters::register(&base, (&raw const mca_btl_oxib_component).cast()) }
        {
            log::warn!(
                "open mpi refused the registration of counters with status {status}: MPI_T has none of oxib"
            );
        }
    }
    OPAL_SUCCESS
}

fn open_component() -> c_int {
    let Ok(base) = Base::load() else { return OPAL_ERR_NOT_AVAILABLE };
    let params = match Abi::detect() {
        Ok(abi) => {
            super::log::open(base, Some(abi), params::verbosity(&base));
            log::debug!(
                "component {} opened in {} {}",
                env!("CARGO_PKG_VERSION"),
                abi.family().name(),
                abi.version()
            );
            params::load(&base).map_err(|report| Refusal::Tell(*report))
        }
        Err(error) => Err(unfit(&base, &error)),
    };
    *OPENED.lock().unwrap_or_else(PoisonError::into_inner) = Some(params);
    OPAL_SUCCESS
}

/// An Open MPI that we can't serve: said only to those who asked for oxib.
fn unfit(base: &Base, error: &AbiError) -> Refusal {
    if !params::names_oxib(base.string_var(c"btl").as_deref()) {
        return Refusal::Quiet(error.to_string());
    }
    let what = "The oxib BTL does not fit this Open MPI and takes no part in this job.";
    let remedy = "Please use another build of Open MPI, or leave oxib out of the parameter btl.";
    Refusal::Tell(Report::common(what, remedy).with("Why", error.to_string()))
}

fn init_component(threads: bool) -> Vec<*mut mca_btl_base_module_t> {
    let opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner).take();
    let opened = opened.unwrap_or_else(|| Err(Refusal::Quiet("the component is not open".into())));
    let refusal = match opened.and_then(|params| modules(&params, threads)) {
        Ok(modules) => return modules,
        Err(refusal) => refusal,
    };
    say_unreachable(said(&refusal).as_deref());
    Vec::new()
}

/// Says why we take no part; what is left for others to say, where this process cannot know whether one of
/// its node has.
fn said(refusal: &Refusal) -> Option<String> {
    match refusal {
        Refusal::Tell(report) => (!report.show(Abi::detect().ok())).then(|| report.line()),
        Refusal::Quiet(reason) => {
            log::debug!("no modules: {reason}");
            None
        }
    }
}

/// Spares processes that do have devices the wait for addresses that never come.
fn say_unreachable(reason: Option<&str>) {
    if let Some(error) = Abi::detect().ok().and_then(|abi| modex_io::publish_nothing(abi, reason).err()) {
        log::debug!("{error}");
    }
}

fn modules(params: &Params, threads: bool) -> Result<Vec<*mut mca_btl_base_module_t>, Refusal> {
    let abi = Abi::detect().map_err(|error| Refusal::Quiet(error.to_string()))?;
    if !params.asked
        && params.device == DeviceChoice::Auto
        && !hardware_present(Path::new("/sys/class/infiniband"))
    {
        return Err(Refusal::Quiet("no RDMA hardware, and the parameter btl does not name oxib".into()));
    }
    (TRANSPORT.init)(params, abi, threads)
}

/// True when the kernel knows an RDMA device. Cheap: it opens none, and loads no library.
fn hardware_present(class: &Path) -> bool {
    std::fs::read_dir(class).is_ok_and(|mut devices| devices.next().is_some())
}

fn close_component() -> c_int {
    (TRANSPORT.close)();
    *OPENED.lock().unwrap_or_else(PoisonError::into_inner) = None;
    log::debug!("component closed");
    super::log::close();
    OPAL_SUCCESS
}

/// The modules as Open MPI wants them: an array from malloc, which it frees; NULL when there are
/// none.
fn hand_over(modules: &[*mut mca_btl_base_module_t], count: &mut c_int) -> *mut *mut mca_btl_base_module_t {
    *count = 0;
    if modules.is_empty() {
        return ptr::null_mut();
    }
    // SAFETY: malloc of a size above zero.
    let array: *mut *mut mca_btl_base_module_t = unsafe { libc::malloc(size_of_val(modules)) }.cast();
    if array.is_null() {
        return array;
    }
    // SAFETY: the array has room for exactly that many.
    unsafe { ptr::copy_nonoverlapping(modules.as_ptr(), array, modules.len()) };
    *count = c_int::try_from(modules.len()).unwrap_or(0);
    array
}

/// A C string in a field of fixed size; the rest stays NUL.
const fn name<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    let mut index = 0;
    while index < text.len() {
        field[index] = text.as_bytes()[index] as c_char;
        index += 1;
    }
    field
}

const fn version(digits: &str) -> c_int {
    match c_int::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn the_component_carries_the_names_of_its_file() {
        let component = &raw const mca_btl_oxib_component;
        // SAFETY: this test does not write to the component.
        let version = unsafe { &(*component).btl_version };
        let text = |field: &[c_char]| {
            // SAFETY: fields end with NUL, being longer than their names.
            unsafe { CStr::from_ptr(field.as_ptr()) }.to_string_lossy().into_owned()
        };
        assert_eq!(text(&version.mca_type_name) + "_" + &text(&version.mca_component_name), "btl_oxib");
        assert_eq!(
            (version.mca_major_version, version.mca_minor_version),
            (2, 1),
            "the loader takes no other"
        );
    }

    #[test]
    fn no_modules_are_a_null_pointer_and_some_are_a_malloced_array() {
        let mut count = 7;
        assert!(hand_over(&[], &mut count).is_null());
        assert_eq!(count, 0);
        let mut module = mca_btl_base_module_t::zeroed();
        let array = hand_over(&[&raw mut module], &mut count);
        // SAFETY: one element, from malloc.
        unsafe {
            assert_eq!((count, *array), (1, &raw mut module));
            libc::free(array.cast());
        }
    }

    #[test]
    fn hardware_is_a_folder_with_something_in_it() {
        assert!(hardware_present(Path::new(env!("CARGO_MANIFEST_DIR"))));
        assert!(!hardware_present(Path::new("/nowhere")));
    }

    #[test]
    fn outside_of_open_mpi_the_component_stays_away() {
        // SAFETY: no precondition.
        unsafe {
            assert_eq!(register(), OPAL_ERR_NOT_AVAILABLE);
            assert_eq!(open(), OPAL_ERR_NOT_AVAILABLE);
        }
    }
}
