//! What every Open MPI offers in the same shape: text output and MCA variables.
//!
//! It works before (and without) a supported [`Abi`](crate::Abi), so that a refusal can be told to the user.

use crate::btl::mca_btl_base_module_t;
use crate::error::AbiError;
use crate::mca::*;
use crate::status::OPAL_SUCCESS;
use crate::symbols::{self, Resolver};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{self, NonNull};

type OutputFn = unsafe extern "C" fn(c_int, *const c_char, ...);
type VarRegisterFn = unsafe extern "C" fn(
    *const mca_base_component_t,
    *const c_char,
    *const c_char,
    mca_base_var_type_t,
    *mut mca_base_var_enum_t,
    c_int,
    c_int,
    c_int,
    mca_base_var_scope_t,
    *mut c_void,
) -> c_int;
type CounterRegisterFn = unsafe extern "C" fn(
    *const mca_base_component_t,
    *const c_char,
    *const c_char,
    c_int,
    c_int,
    mca_base_var_type_t,
    *mut mca_base_var_enum_t,
    c_int,
    mca_base_pvar_flag_t,
    Option<ReadCounterFn>,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;
/// Reads a counter: the variable, a place for its value, the object that it is bound to.
pub type ReadCounterFn = unsafe extern "C" fn(*const c_void, *mut c_void, *mut c_void) -> c_int;
type FindFn = unsafe extern "C" fn(*const c_char, *mut c_int) -> c_int;
type ValueFn =
    unsafe extern "C" fn(c_int, *mut *const c_void, *mut mca_base_var_source_t, *mut *const c_char) -> c_int;
type BaseParamsFn = unsafe extern "C" fn(*const mca_base_component_t, *mut mca_btl_base_module_t) -> c_int;

/// The stream that exists from the start: standard error, each line with host and process id.
const DEFAULT_STREAM: c_int = 0;

/// Functions of libopen-pal that never changed.
#[derive(Clone, Copy, Debug)]
pub struct Base {
    output: OutputFn,
    var_register: VarRegisterFn,
    counter_register: CounterRegisterFn,
    var_find: FindFn,
    var_value: ValueFn,
    base_params: BaseParamsFn,
}

/// One string variable to register.
#[derive(Debug, Clone, Copy)]
pub struct StringVar<'a> {
    /// Without the prefix `btl_<component>_`.
    pub name: &'a CStr,
    /// The text that `ompi_info` shows.
    pub help: &'a CStr,
    /// 1 to 9: which `ompi_info --level` shows it.
    pub level: u8,
    /// Who must agree on its value.
    pub scope: mca_base_var_scope_t,
}

/// One counter to register as a performance variable.
#[derive(Debug, Clone, Copy)]
pub struct CounterVar<'a> {
    /// Without the prefix `btl_<component>_`.
    pub name: &'a CStr,
    /// The text that `ompi_info` shows.
    pub help: &'a CStr,
    /// 1 to 9, as of parameters.
    pub level: u8,
    /// What becomes of its value.
    pub class: CounterClass,
}

/// What a counter's value does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterClass {
    /// It grows with each event; a handle reads what has been counted since it was made.
    Counter,
    /// It is the highest that there has been.
    HighWatermark,
    /// It is the lowest that there has been.
    LowWatermark,
}

impl CounterClass {
    fn number(self) -> c_int {
        match self {
            CounterClass::Counter => MCA_BASE_PVAR_CLASS_COUNTER,
            CounterClass::HighWatermark => MCA_BASE_PVAR_CLASS_HIGHWATERMARK,
            CounterClass::LowWatermark => MCA_BASE_PVAR_CLASS_LOWWATERMARK,
        }
    }
}

impl Base {
    /// Finds the functions in this process.
    ///
    /// # Errors
    /// [`AbiError::Missing`] when the process holds no Open MPI (or one unlike any known).
    pub fn load() -> Result<Self, AbiError> {
        Self::resolve(&symbols::of_this_process)
    }

    pub(crate) fn resolve(find: Resolver<'_>) -> Result<Self, AbiError> {
        // SAFETY: the signatures are those of opal/util/output.h, opal/mca/base/mca_base_var.h,
        // opal/mca/base/mca_base_pvar.h and opal/mca/btl/base/base.h, equal in v4.1.0 to v5.0.10.
        unsafe {
            Ok(Self {
                output: symbols::function(find, c"opal_output")?,
                var_register: symbols::function(find, c"mca_base_component_var_register")?,
                counter_register: symbols::function(find, c"mca_base_component_pvar_register")?,
                var_find: symbols::function(find, c"mca_base_var_find_by_name")?,
                var_value: symbols::function(find, c"mca_base_var_get_value")?,
                base_params: symbols::function(find, c"mca_btl_base_param_register")?,
            })
        }
    }

    /// Writes one line to Open MPI's default stream.
    ///
    /// Not from a thread of our own while `opal_uses_threads` is false: the library then takes no lock.
    pub fn output(&self, line: &str) {
        let line = c_text(line);
        // SAFETY: a format with one string, and that string.
        unsafe { (self.output)(DEFAULT_STREAM, c"%s".as_ptr(), line.as_ptr()) }
    }

    /// Current value of a string variable by its full name (`"btl"`); `None` when unknown or unset.
    pub fn string_var(&self, name: &CStr) -> Option<String> {
        let storage = self.storage(name)?.cast::<*const c_char>();
        // SAFETY: the storage of a string variable is a `char *`, NULL or NUL-terminated, owned by the variable.
        unsafe {
            let text = *storage.as_ptr();
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    }

    /// Current value of an integer variable by its full name (`"btl_base_verbose"`).
    pub fn int_var(&self, name: &CStr) -> Option<c_int> {
        // SAFETY: the storage of an integer variable is an `int`.
        self.storage(name).map(|storage| unsafe { *storage.cast::<c_int>().as_ptr() })
    }

    /// True when the variable exists and its value comes from the command line, the environment or
    /// a file, not from its default.
    pub fn is_set(&self, name: &CStr) -> bool {
        self.look_up(name).is_some_and(|(_, source)| source != MCA_BASE_VAR_SOURCE_DEFAULT)
    }

    fn storage(&self, name: &CStr) -> Option<NonNull<c_void>> {
        self.look_up(name)?.0
    }

    fn look_up(&self, name: &CStr) -> Option<(Option<NonNull<c_void>>, mca_base_var_source_t)> {
        let (mut index, mut storage, mut source) = (-1, ptr::null(), MCA_BASE_VAR_SOURCE_DEFAULT);
        // SAFETY: a NUL-terminated name, and places for the results; the last one is allowed to be NULL.
        let status = unsafe {
            match (self.var_find)(name.as_ptr(), &mut index) {
                OPAL_SUCCESS => (self.var_value)(index, &mut storage, &mut source, ptr::null_mut()),
                error => error,
            }
        };
        (status == OPAL_SUCCESS).then(|| (NonNull::new(storage.cast_mut()), source))
    }

    /// Registers a string variable. `storage` holds the default before, and the value afterwards.
    ///
    /// # Errors
    /// The OPAL status.
    ///
    /// # Safety
    /// `storage` holds NULL or a NUL-terminated string that lives through the call; Open MPI replaces it by a copy that it owns.
    /// The place lives until the component is closed; `component` is the component being registered.
    pub unsafe fn register_string(
        &self,
        component: *const mca_base_component_t,
        var: &StringVar<'_>,
        storage: *mut *mut c_char,
    ) -> Result<(), c_int> {
        let level = c_int::from(var.level.clamp(1, 9)) - 1;
        // SAFETY: strings are NUL-terminated and copied, no enumerator; the caller vouches for component and storage.
        let index = unsafe {
            (self.var_register)(
                component,
                var.name.as_ptr(),
                var.help.as_ptr(),
                MCA_BASE_VAR_TYPE_STRING,
                ptr::null_mut(),
                0,
                0,
                level,
                var.scope,
                storage.cast(),
            )
        };
        if index < 0 { Err(index) } else { Ok(()) }
    }

    /// Registers a counter of type `unsigned long long`, whose value `read` writes.
    ///
    /// # Errors
    /// The OPAL status.
    ///
    /// # Safety
    /// `component` is the component being registered; `read` writes an `unsigned long long` and lives until that is closed.
    pub unsafe fn register_counter(
        &self,
        component: *const mca_base_component_t,
        var: &CounterVar<'_>,
        read: ReadCounterFn,
    ) -> Result<(), c_int> {
        let flags = MCA_BASE_PVAR_FLAG_READONLY | MCA_BASE_PVAR_FLAG_CONTINUOUS | MCA_BASE_PVAR_FLAG_IWG;
        let none = ptr::null_mut();
        // SAFETY: strings are NUL-terminated and copied, no enumerator, no context; the caller vouches for the rest.
        let index = unsafe {
            (self.counter_register)(
                component,
                var.name.as_ptr(),
                var.help.as_ptr(),
                c_int::from(var.level.clamp(1, 9)) - 1,
                var.class.number(),
                MCA_BASE_VAR_TYPE_UNSIGNED_LONG_LONG,
                ptr::null_mut(),
                MCA_BASE_VAR_BIND_NO_OBJECT,
                flags,
                Some(read),
                none,
                none,
                none,
            )
        };
        if index < 0 { Err(index) } else { Ok(()) }
    }

    /// Registers Open MPI's own set of BTL parameters (`eager_limit`, `flags`, ...) on the fields of `module`.
    ///
    /// Those of put and get, latency and bandwidth appear only when the module has `btl_put` and `btl_get`.
    ///
    /// # Errors
    /// The OPAL status.
    ///
    /// # Safety
    /// `module` lives until the component is closed; `component` is the component being registered.
    pub unsafe fn register_btl_params(
        &self,
        component: *const mca_base_component_t,
        module: *mut mca_btl_base_module_t,
    ) -> Result<(), c_int> {
        // SAFETY: the caller promises that `component` is being registered, and that `module` lives
        // until it is closed.
        match unsafe { (self.base_params)(component, module) } {
            OPAL_SUCCESS => Ok(()),
            error => Err(error),
        }
    }
}

/// Text for C: inner NUL bytes become spaces.
fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}
