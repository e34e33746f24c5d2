//! Open MPI 5.0: modex through PMIx itself, receive callbacks with one descriptor, host names through a function.
//!
//! ```text
//!   opal_process_name_t { jobid, vpid } --opal_pmix_convert_jobid--> pmix_proc_t { name space, rank }
//!   PMIx_Put(scope, key, value)         PMIx_Get(process, key) -> value from malloc, ours to free
//! ```
//!
//! Open MPI's numbers for jobs are its own; PMIx knows jobs by text (their name space). libopen-pal keeps the list.

use crate::btl::*;
use crate::error::AbiError;
use crate::family::{Deliver, Family, ModexError, Tray};
use crate::process::{OPAL_VPID_WILDCARD, opal_proc_t, opal_process_name_t};
use crate::symbols::{self, Resolver};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::{self, NonNull};

/// Types of a `pmix_value_t` (`pmix_common.h`).
const PMIX_UINT32: u16 = 14;
const PMIX_BYTE_OBJECT: u16 = 27;
/// Scope of a published value: every process of the job, near or far.
const PMIX_GLOBAL: u8 = 3;
const PMIX_JOB_SIZE: &CStr = c"pmix.job.size";
const PMIX_SUCCESS: c_int = 0;
const PMIX_ERR_TIMEOUT: c_int = -24;
const PMIX_ERR_NOT_FOUND: c_int = -46;
const PMIX_MAX_NSLEN: usize = 255;
/// What Open MPI answers when it knows no host.
const NO_HOST: &CStr = c"unknown";

#[repr(C)]
struct pmix_proc_t {
    nspace: [c_char; PMIX_MAX_NSLEN + 1],
    rank: u32,
}

/// `opal_process_info_t` as far as we need it.
#[repr(C)]
struct opal_process_info_t {
    my_name: opal_process_name_t,
    myprocid: pmix_proc_t,
    nativelaunch: bool,
    nodename: *const c_char,
    top_session_dir: *const c_char,
    job_session_dir: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct pmix_byte_object_t {
    bytes: *mut u8,
    size: usize,
}

#[repr(C)]
union pmix_value_data {
    uint32: u32,
    bo: pmix_byte_object_t,
    all: [u64; 3],
}

#[repr(C)]
struct pmix_value_t {
    kind: u16,
    data: pmix_value_data,
}

type PutFn = unsafe extern "C" fn(u8, *const c_char, *mut pmix_value_t) -> c_int;
type GetFn = unsafe extern "C" fn(
    *const pmix_proc_t,
    *const c_char,
    *const c_void,
    usize,
    *mut *mut pmix_value_t,
) -> c_int;
type FreeFn = unsafe extern "C" fn(*mut pmix_value_t, usize);
type ConvertJobidFn = unsafe extern "C" fn(*mut c_char, u32) -> c_int;
type HostnameFn = unsafe extern "C" fn(*const opal_proc_t) -> *mut c_char;

/// The table of 5.0.
#[derive(Debug)]
pub(crate) struct V5_0 {
    put: PutFn,
    get: GetFn,
    /// A function from PMIx 5 on; before that, a macro.
    free: Option<FreeFn>,
    convert_jobid: ConvertJobidFn,
    /// A variable that holds a function; MPI_Init replaces it.
    hostname: NonNull<Option<HostnameFn>>,
}

// SAFETY: addresses of code, and of a static variable that the library sets once.
unsafe impl Send for V5_0 {}
// SAFETY: a shared `V5_0` never changes: it holds addresses of code, and that of a variable which
// the library sets once, in MPI_Init.
unsafe impl Sync for V5_0 {}

impl V5_0 {
    /// The symbol that tells 5.0 from 4.1.
    pub(crate) const MARK: &'static CStr = c"opal_pmix_convert_jobid";

    pub(crate) fn resolve(find: Resolver<'_>) -> Result<Self, AbiError> {
        // SAFETY: the signatures are those of opal/mca/pmix/pmix-internal.h and opal/util/proc.h of v5.0.0 to v5.0.9,
        // and of pmix.h of PMIx 4.2 and 5.0.
        unsafe {
            Ok(Self {
                put: symbols::function(find, c"PMIx_Put")?,
                get: symbols::function(find, c"PMIx_Get")?,
                free: symbols::function(find, c"PMIx_Value_free").ok(),
                convert_jobid: symbols::function(find, Self::MARK)?,
                hostname: symbols::data(find, c"opal_get_proc_hostname")?,
            })
        }
    }

    fn get_value(&self, process: opal_process_name_t, key: &CStr) -> Result<Value, ModexError> {
        let mut name = pmix_proc_t { nspace: [0; PMIX_MAX_NSLEN + 1], rank: process.vpid };
        // SAFETY: the array has the size of a `pmix_nspace_t`.
        let status = unsafe { (self.convert_jobid)(name.nspace.as_mut_ptr(), process.jobid) };
        if status != crate::OPAL_SUCCESS {
            return Err(ModexError::Refused { key: text(key), status });
        }
        let mut value = ptr::null_mut();
        // SAFETY: name, key and result live through the call; no list of directives.
        let status = unsafe { (self.get)(&name, key.as_ptr(), ptr::null(), 0, &mut value) };
        match (status, NonNull::new(value)) {
            (PMIX_SUCCESS, Some(value)) => Ok(Value { value, free: self.free }),
            (PMIX_SUCCESS | PMIX_ERR_NOT_FOUND | PMIX_ERR_TIMEOUT, _) => {
                Err(ModexError::NotFound { key: text(key) })
            }
            (status, _) => Err(ModexError::Refused { key: text(key), status }),
        }
    }
}

impl Family for V5_0 {
    fn name(&self) -> &'static str {
        "Open MPI 5.0 (BTL 3.3)"
    }

    fn modex_put(&self, key: &CStr, bytes: &[u8]) -> Result<(), ModexError> {
        let bo = pmix_byte_object_t { bytes: bytes.as_ptr().cast_mut(), size: bytes.len() };
        let mut value = pmix_value_t { kind: PMIX_BYTE_OBJECT, data: pmix_value_data { bo } };
        // SAFETY: PMIx copies key and bytes, changes neither, and keeps no pointer to the value.
        match unsafe { (self.put)(PMIX_GLOBAL, key.as_ptr(), &mut value) } {
            PMIX_SUCCESS => Ok(()),
            status => Err(ModexError::Refused { key: text(key), status }),
        }
    }

    fn modex_get(&self, process: opal_process_name_t, key: &CStr) -> Result<Vec<u8>, ModexError> {
        self.get_value(process, key)?.bytes(key)
    }

    fn job_size(&self, jobid: u32) -> Result<u32, ModexError> {
        let everybody = opal_process_name_t { jobid, vpid: OPAL_VPID_WILDCARD };
        self.get_value(everybody, PMIX_JOB_SIZE)?.number(PMIX_JOB_SIZE)
    }

    fn session_dir_offset(&self) -> usize {
        offset_of!(opal_process_info_t, job_session_dir)
    }

    fn remote_completion(&self) -> u32 {
        MCA_BTL_FLAGS_RDMA_REMOTE_COMPLETION
    }

    unsafe fn host_of(&self, process: *const opal_proc_t) -> Option<String> {
        // SAFETY: a static variable that holds a function from library load on.
        let hostname = unsafe { *self.hostname.as_ptr() }?;
        // SAFETY: the caller vouches for a live process. The function looks into the process's own store only.
        let host = NonNull::new(unsafe { hostname(process) })?;
        // SAFETY: a NUL-terminated string from malloc that is ours: Open MPI's own callers free it, too.
        unsafe {
            let known = CStr::from_ptr(host.as_ptr());
            let known = (known != NO_HOST).then(|| known.to_string_lossy().into_owned());
            libc::free(host.as_ptr().cast());
            known
        }
    }

    fn deliver(&self) -> Deliver {
        deliver
    }
}

/// As [`Deliver`] says.
unsafe fn deliver(
    callback: mca_btl_active_message_callback_t,
    module: *mut mca_btl_base_module_t,
    endpoint: *mut mca_btl_base_endpoint_t,
    tag: mca_btl_base_tag_t,
    Tray { segment, .. }: &mut Tray,
) {
    // SAFETY: the caller vouches for a function, which in 5.0 has this type.
    let receive: mca_btl_base_module_recv_cb_fn_3_3_t = unsafe { std::mem::transmute(callback.cbfunc) };
    let descriptor = mca_btl_base_receive_descriptor_t {
        endpoint,
        des_segments: segment,
        des_segment_count: 1,
        tag,
        cbdata: callback.cbdata,
    };
    // SAFETY: the callback reads descriptor and segments during the call only (btl.h).
    unsafe { receive(module, &descriptor) }
}

/// A value that PMIx made for us; it is ours.
struct Value {
    value: NonNull<pmix_value_t>,
    free: Option<FreeFn>,
}

impl Value {
    fn bytes(&self, key: &CStr) -> Result<Vec<u8>, ModexError> {
        // SAFETY: the value is live until we drop it.
        let value = unsafe { self.value.as_ref() };
        if value.kind != PMIX_BYTE_OBJECT {
            return Err(ModexError::WrongType { key: text(key), kind: value.kind });
        }
        // SAFETY: the type says which member of the union is set.
        let object = unsafe { value.data.bo };
        if object.size == 0 || object.bytes.is_null() {
            return Ok(Vec::new());
        }
        // SAFETY: PMIx says that so many bytes are there; they live as long as the value.
        Ok(unsafe { std::slice::from_raw_parts(object.bytes, object.size) }.to_vec())
    }

    fn number(&self, key: &CStr) -> Result<u32, ModexError> {
        // SAFETY: the value is live until we drop it.
        let value = unsafe { self.value.as_ref() };
        match value.kind {
            // SAFETY: the type says which member of the union is set.
            PMIX_UINT32 => Ok(unsafe { value.data.uint32 }),
            kind => Err(ModexError::WrongType { key: text(key), kind }),
        }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        let value = self.value.as_ptr();
        // SAFETY: PMIx allocated the value and gave it to us. Without the function (PMIx 4), its macro frees what the
        // value holds and the value, which for bytes is this; values of other types than ours stay behind whole.
        unsafe {
            match self.free {
                Some(free) => free(value, 1),
                None if (*value).kind == PMIX_BYTE_OBJECT => {
                    libc::free((*value).data.bo.bytes.cast());
                    libc::free(value.cast());
                }
                None if (*value).kind == PMIX_UINT32 => libc::free(value.cast()),
                None => {}
            }
        }
    }
}

fn text(key: &CStr) -> String {
    key.to_string_lossy().into_owned()
}

const _: () = {
    assert!(size_of::<pmix_proc_t>() == 260);
    assert!(offset_of!(pmix_proc_t, rank) == 256);
    assert!(offset_of!(opal_process_info_t, job_session_dir) == 288);
    assert!(size_of::<pmix_value_t>() == 32);
    assert!(offset_of!(pmix_value_t, data) == 8);
    assert!(size_of::<pmix_byte_object_t>() == 16);
    assert!(offset_of!(pmix_byte_object_t, size) == 8);
    assert!(size_of::<mca_btl_base_receive_descriptor_t>() == 40);
};
