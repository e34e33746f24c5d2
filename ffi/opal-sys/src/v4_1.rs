//! Open MPI 4.1: modex through the function table `opal_pmix`, receive callbacks with four arguments.

use crate::btl::*;
use crate::class::{obj_release, opal_class_t, opal_list_item_t, opal_object_t};
use crate::error::AbiError;
use crate::family::{Deliver, Family, ModexError, Tray};
use crate::process::{
    OPAL_VPID_WILDCARD, opal_proc_4_1_t, opal_proc_t, opal_process_info_4_1_t, opal_process_name_t,
};
use crate::status::{OPAL_ERR_NOT_FOUND, OPAL_ERR_NOT_SUPPORTED, OPAL_ERR_TIMEOUT, OPAL_SUCCESS};
use crate::symbols::{self, Resolver};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{MaybeUninit, offset_of, size_of};
use std::ptr::{self, NonNull};

/// Types of an `opal_value_t` (`opal/dss/dss_types.h`).
const OPAL_UINT32: u8 = 14;
const OPAL_BYTE_OBJECT: u8 = 20;
/// Scope of a published value: every process of the job, near or far.
const OPAL_PMIX_GLOBAL: c_int = 3;
const OPAL_PMIX_JOB_SIZE: &CStr = c"pmix.job.size";

#[repr(C)]
#[derive(Clone, Copy)]
struct opal_byte_object_t {
    size: i32,
    bytes: *mut u8,
}

#[repr(C)]
union opal_value_data {
    uint32: u32,
    bo: opal_byte_object_t,
    all: [u64; 10],
}

#[repr(C)]
struct opal_value_t {
    super_: opal_list_item_t,
    key: *const c_char,
    kind: u8,
    data: opal_value_data,
}

type PutFn = unsafe extern "C" fn(c_int, *mut opal_value_t) -> c_int;
type GetFn = unsafe extern "C" fn(
    *const opal_process_name_t,
    *const c_char,
    *mut c_void,
    *mut *mut opal_value_t,
) -> c_int;

/// Head of the runtime's function table; filled when the runtime has been chosen, long before BTLs are opened.
#[repr(C)]
struct opal_pmix_base_module_t {
    before_put: [Option<unsafe extern "C" fn()>; 8],
    put: Option<PutFn>,
    get: Option<GetFn>,
}

/// The table of 4.1.
#[derive(Debug)]
pub(crate) struct V4_1 {
    pmix: NonNull<opal_pmix_base_module_t>,
    value_class: NonNull<opal_class_t>,
}

// SAFETY: addresses of static objects of the library, which it fills once and only reads afterwards.
unsafe impl Send for V4_1 {}
// SAFETY: a shared `V4_1` never changes, and the library fills the table behind `pmix` before it
// opens BTLs.
unsafe impl Sync for V4_1 {}

impl V4_1 {
    /// The symbol that tells 4.1 from 5.0.
    pub(crate) const MARK: &'static CStr = c"opal_pmix";

    pub(crate) fn resolve(find: Resolver<'_>) -> Result<Self, AbiError> {
        Ok(Self {
            pmix: symbols::data(find, Self::MARK)?,
            value_class: symbols::data(find, c"opal_value_t_class")?,
        })
    }

    fn get_value(&self, process: opal_process_name_t, key: &CStr) -> Result<Value, ModexError> {
        let mut value = ptr::null_mut();
        // SAFETY: the table is static, its entries change only before BTLs are opened.
        let status = match unsafe { (*self.pmix.as_ptr()).get } {
            // SAFETY: name, key and result live through the call; no list of hints.
            Some(get) => unsafe { get(&process, key.as_ptr(), ptr::null_mut(), &mut value) },
            None => OPAL_ERR_NOT_SUPPORTED,
        };
        match (status, NonNull::new(value)) {
            (OPAL_SUCCESS, Some(value)) => Ok(Value(value)),
            // The runtime waits 2 s for a key that the process has not published, and then says
            // TIMEOUT (measured with 4.1.4).
            (OPAL_SUCCESS | OPAL_ERR_NOT_FOUND | OPAL_ERR_TIMEOUT, _) => {
                Err(ModexError::NotFound { key: text(key) })
            }
            (status, _) => Err(ModexError::Refused { key: text(key), status }),
        }
    }
}

impl Family for V4_1 {
    fn name(&self) -> &'static str {
        "Open MPI 4.1 (BTL 3.1)"
    }

    fn modex_put(&self, key: &CStr, bytes: &[u8]) -> Result<(), ModexError> {
        let Ok(size) = i32::try_from(bytes.len()) else {
            return Err(ModexError::TooLarge { key: text(key), bytes: bytes.len() });
        };
        // SAFETY: numbers and raw pointers: all-zero is valid.
        let mut value: opal_value_t = unsafe { MaybeUninit::zeroed().assume_init() };
        value.super_.super_ = opal_object_t { obj_class: self.value_class.as_ptr(), obj_reference_count: 1 };
        value.key = key.as_ptr();
        value.kind = OPAL_BYTE_OBJECT;
        value.data.bo = opal_byte_object_t { size, bytes: bytes.as_ptr().cast_mut() };
        // SAFETY: the table is static, its entries change only before BTLs are opened.
        let status = match unsafe { (*self.pmix.as_ptr()).put } {
            // SAFETY: the runtime copies key and bytes, changes neither, and keeps no pointer to the value.
            Some(put) => unsafe { put(OPAL_PMIX_GLOBAL, &mut value) },
            None => OPAL_ERR_NOT_SUPPORTED,
        };
        if status == OPAL_SUCCESS { Ok(()) } else { Err(ModexError::Refused { key: text(key), status }) }
    }

    fn modex_get(&self, process: opal_process_name_t, key: &CStr) -> Result<Vec<u8>, ModexError> {
        self.get_value(process, key)?.bytes(key)
    }

    fn job_size(&self, jobid: u32) -> Result<u32, ModexError> {
        let everybody = opal_process_name_t { jobid, vpid: OPAL_VPID_WILDCARD };
        self.get_value(everybody, OPAL_PMIX_JOB_SIZE)?.number(OPAL_PMIX_JOB_SIZE)
    }

    fn session_dir_offset(&self) -> usize {
        offset_of!(opal_process_info_4_1_t, job_session_dir)
    }

    fn remote_completion(&self) -> u32 {
        0
    }

    unsafe fn host_of(&self, process: *const opal_proc_t) -> Option<String> {
        // SAFETY: the caller vouches for a live process, and in 4.1 the struct is the longer one.
        unsafe {
            let host = (*process.cast::<opal_proc_4_1_t>()).proc_hostname;
            (!host.is_null()).then(|| CStr::from_ptr(host).to_string_lossy().into_owned())
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
    _endpoint: *mut mca_btl_base_endpoint_t,
    tag: mca_btl_base_tag_t,
    Tray { segment, descriptor }: &mut Tray,
) {
    // SAFETY: the caller vouches for a function, which in 4.1 has this type.
    let receive: mca_btl_base_module_recv_cb_fn_3_1_t = unsafe { std::mem::transmute(callback.cbfunc) };
    (descriptor.des_segments, descriptor.des_segment_count) = (segment, 1);
    // SAFETY: the callback reads descriptor and segments during the call only (btl.h).
    unsafe { receive(module, tag, descriptor, callback.cbdata) }
}

/// A value that the runtime made for us; one reference is ours.
struct Value(NonNull<opal_value_t>);

impl Value {
    fn bytes(&self, key: &CStr) -> Result<Vec<u8>, ModexError> {
        // SAFETY: the value is live until we drop it.
        let value = unsafe { self.0.as_ref() };
        if value.kind != OPAL_BYTE_OBJECT {
            return Err(ModexError::WrongType { key: text(key), kind: value.kind.into() });
        }
        // SAFETY: the type says which member of the union is set.
        let object = unsafe { value.data.bo };
        match usize::try_from(object.size) {
            Ok(size) if size > 0 && !object.bytes.is_null() => {
                // SAFETY: the runtime says that so many bytes are there; they live as long as the value.
                Ok(unsafe { std::slice::from_raw_parts(object.bytes, size) }.to_vec())
            }
            _ => Ok(Vec::new()),
        }
    }

    fn number(&self, key: &CStr) -> Result<u32, ModexError> {
        // SAFETY: the value is live until we drop it.
        let value = unsafe { self.0.as_ref() };
        match value.kind {
            // SAFETY: the type says which member of the union is set.
            OPAL_UINT32 => Ok(unsafe { value.data.uint32 }),
            kind => Err(ModexError::WrongType { key: text(key), kind: kind.into() }),
        }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: the runtime allocated it with the class's constructor and passed its reference to us.
        unsafe { obj_release(self.0.as_ptr().cast()) }
    }
}

fn text(key: &CStr) -> String {
    key.to_string_lossy().into_owned()
}

const _: () = {
    assert!(size_of::<opal_value_t>() == 136);
    assert!(offset_of!(opal_value_t, key) == 40);
    assert!(offset_of!(opal_value_t, kind) == 48);
    assert!(offset_of!(opal_value_t, data) == 56);
    assert!(offset_of!(opal_byte_object_t, bytes) == 8);
    assert!(offset_of!(opal_pmix_base_module_t, put) == 64);
    assert!(offset_of!(opal_pmix_base_module_t, get) == 72);
};
