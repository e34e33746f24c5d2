//! What every Open MPI offers in the same shape: text output and MCA variables.
//!
//! It works before (and without) a supported [`Abi`](crate::Abi), so that a refusal can be told to the user.

use crate::abi::AbiError;
use crate::btl::mca_btl_base_module_t;
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
type FindFn = unsafe extern "C" fn(*const c_char, *mut c_int) -> c_int;
type ValueFn =
    unsafe extern "C" fn(c_int, *mut *const c_void, *mut mca_base_var_source_t, *mut *const c_char) -> c_int;
type BaseParamsFn = unsafe extern "C" fn(*const mca_base_component_t, *mut mca_btl_base_module_t) -> c_int;
type RenderedHelpFn = unsafe extern "C" fn(*const c_char, *const c_char, bool, *const c_char) -> c_int;

/// The stream that exists from the start: standard error, each line with host and process id.
const DEFAULT_STREAM: c_int = 0;

/// Functions of libopen-pal that never changed.
#[derive(Clone, Copy, Debug)]
pub struct Base {
    output: OutputFn,
    var_register: VarRegisterFn,
    var_find: FindFn,
    var_value: ValueFn,
    base_params: BaseParamsFn,
    rendered_help: Option<RenderedHelpFn>,
    verbosity_words: NonNull<mca_base_var_enum_t>,
}

// SAFETY: addresses of code and of a static object of the library; nothing is owned or changed through them.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

/// One variable to register.
#[derive(Debug, Clone, Copy)]
pub struct VarSpec<'a> {
    /// Without the prefix `btl_<component>_`.
    pub name: &'a CStr,
    pub help: &'a CStr,
    /// `MCA_BASE_VAR_TYPE_*`; says what the storage is.
    pub kind: mca_base_var_type_t,
    /// Accept (and show) the words of Open MPI's verbosity levels.
    pub verbosity_words: bool,
    /// 1 to 9: which `ompi_info --level` shows it.
    pub level: u8,
    pub scope: mca_base_var_scope_t,
}

/// A message for the user, shown once for a whole job where Open MPI can do that.
#[derive(Debug, Clone, Copy)]
pub struct Help<'a> {
    /// Equal messages of other processes are counted under this word, not repeated.
    pub topic: &'a str,
    /// Lines of text.
    pub text: &'a str,
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
        // opal/mca/btl/base/base.h and orte/util/show_help.h, equal in v4.1.0 to v5.0.10.
        unsafe {
            Ok(Self {
                output: symbols::function(find, c"opal_output")?,
                var_register: symbols::function(find, c"mca_base_component_var_register")?,
                var_find: symbols::function(find, c"mca_base_var_find_by_name")?,
                var_value: symbols::function(find, c"mca_base_var_get_value")?,
                base_params: symbols::function(find, c"mca_btl_base_param_register")?,
                rendered_help: symbols::optional_function(find, c"orte_show_help_norender"),
                verbosity_words: symbols::data(find, c"mca_base_var_enum_verbose")?,
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

    /// Shows a message between rules, as Open MPI shows its own help.
    pub fn show_help(&self, help: Help<'_>) {
        let rule = "-".repeat(74);
        let text = c_text(&format!("{rule}\n{}\n{rule}\n", help.text.trim_end()));
        let topic = c_text(help.topic);
        match self.rendered_help {
            // SAFETY: NUL-terminated strings that the function copies.
            Some(show) => unsafe {
                show(c"help-mpi-btl-oxib.txt".as_ptr(), topic.as_ptr(), true, text.as_ptr());
            },
            // SAFETY: a format with one string, and that string.
            None => unsafe { (self.output)(DEFAULT_STREAM, c"\n%s".as_ptr(), text.as_ptr()) },
        }
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

    /// True when the variable exists and somebody set it (command line, environment, file).
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

    /// Registers a variable; its value is in `storage` afterwards, which holds the default before.
    ///
    /// # Errors
    /// The OPAL status, when Open MPI refused the variable or the user's value (it has told the user then).
    ///
    /// # Safety
    /// `storage` points to what `spec.kind` says (a string: `char *`, which Open MPI replaces and owns from then on)
    /// and lives until the component is closed; `component` is the component being registered.
    pub unsafe fn register_var(
        &self,
        component: *const mca_base_component_t,
        spec: &VarSpec<'_>,
        storage: *mut c_void,
    ) -> Result<(), c_int> {
        let words = if spec.verbosity_words { self.verbosity_words.as_ptr() } else { ptr::null_mut() };
        let level = c_int::from(spec.level.clamp(1, 9)) - 1;
        // SAFETY: strings are NUL-terminated and copied; the caller vouches for component and storage.
        let index = unsafe {
            (self.var_register)(
                component,
                spec.name.as_ptr(),
                spec.help.as_ptr(),
                spec.kind,
                words,
                0,
                0,
                level,
                spec.scope,
                storage,
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
        // SAFETY: the caller vouches for both.
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
