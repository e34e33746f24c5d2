//! The BTL interface, versions 3.1 (Open MPI 4.1) and 3.3 (5.0): component, module, descriptor, callbacks.
//!
//! The module has one shape in both families, except for the word at offset 288 and for what the padding
//! holds; both are zero for us. Function types name their arguments in the order of `btl.h`.

use crate::class::opal_free_list_item_t;
use crate::convertor::opal_convertor_t;
use crate::mca::{mca_base_component_data_t, mca_base_component_t};
use crate::process::{opal_bitmap_t, opal_proc_t};
use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// A peer as one BTL module sees it; every BTL defines its own.
#[repr(C)]
pub struct mca_btl_base_endpoint_t {
    _opaque: [u8; 0],
}

/// What a BTL needs to know about registered memory; its first `btl_registration_handle_size` bytes travel to the peer.
#[repr(C)]
pub struct mca_btl_base_registration_handle_t {
    _opaque: [u8; 0],
}

/// Tag of an active message; index into the receive callbacks.
pub type mca_btl_base_tag_t = u8;

/// One contiguous piece of a message.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mca_btl_base_segment_t {
    pub seg_addr: *mut c_void,
    pub seg_len: u64,
}

/// A message to send, and in 4.1 also the shape in which a received one is handed over.
///
/// The BML owns `des_cbdata` and `des_context`, the caller `des_flags`; the BTL owns the rest.
#[repr(C)]
pub struct mca_btl_base_descriptor_t {
    pub super_: opal_free_list_item_t,
    pub des_segments: *mut mca_btl_base_segment_t,
    pub des_segment_count: usize,
    pub des_cbfunc: mca_btl_base_completion_fn_t,
    pub des_cbdata: *mut c_void,
    pub des_context: *mut c_void,
    pub des_flags: u32,
    pub order: u8,
}

/// A received message in 5.0.
#[repr(C)]
pub struct mca_btl_base_receive_descriptor_t {
    pub endpoint: *mut mca_btl_base_endpoint_t,
    pub des_segments: *const mca_btl_base_segment_t,
    pub des_segment_count: usize,
    pub tag: mca_btl_base_tag_t,
    pub cbdata: *mut c_void,
}

/// Who gets messages of a tag. `cbfunc` has the family's own type, hence the untyped pointer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mca_btl_active_message_callback_t {
    pub cbfunc: *const c_void,
    pub cbdata: *mut c_void,
}

/// Receive callback of 4.1: module, tag, descriptor, cbdata.
pub type mca_btl_base_module_recv_cb_fn_3_1_t = unsafe extern "C" fn(
    *mut mca_btl_base_module_t,
    mca_btl_base_tag_t,
    *mut mca_btl_base_descriptor_t,
    *mut c_void,
);

/// Receive callback of 5.0.
pub type mca_btl_base_module_recv_cb_fn_3_3_t =
    unsafe extern "C" fn(*mut mca_btl_base_module_t, *const mca_btl_base_receive_descriptor_t);

/// Local completion of a send: module, endpoint, descriptor, status.
pub type mca_btl_base_completion_fn_t = Option<
    unsafe extern "C" fn(
        *mut mca_btl_base_module_t,
        *mut mca_btl_base_endpoint_t,
        *mut mca_btl_base_descriptor_t,
        c_int,
    ),
>;

/// Completion of put, get or atomic: module, endpoint, local address, local handle, context, cbdata, status.
pub type mca_btl_base_rdma_completion_fn_t = Option<
    unsafe extern "C" fn(
        *mut mca_btl_base_module_t,
        *mut mca_btl_base_endpoint_t,
        *mut c_void,
        *mut mca_btl_base_registration_handle_t,
        *mut c_void,
        *mut c_void,
        c_int,
    ),
>;

/// How a BTL reports a broken peer: module, flags `MCA_BTL_ERROR_FLAGS_*`, process or NULL, text.
pub type mca_btl_base_module_error_cb_fn_t =
    Option<unsafe extern "C" fn(*mut mca_btl_base_module_t, i32, *mut opal_proc_t, *mut c_char)>;

/// Init: out number of modules, progress threads allowed, MPI_THREAD_MULTIPLE wanted.
/// Returns a malloc'ed array that the caller frees, or NULL.
pub type mca_btl_base_component_init_fn_t =
    Option<unsafe extern "C" fn(*mut c_int, bool, bool) -> *mut *mut mca_btl_base_module_t>;
/// Progress: polls every module of the component; returns the number of completed events.
pub type mca_btl_base_component_progress_fn_t = Option<unsafe extern "C" fn() -> c_int>;

/// The exported component.
#[repr(C)]
pub struct mca_btl_base_component_3_0_0_t {
    pub btl_version: mca_base_component_t,
    pub btl_data: mca_base_component_data_t,
    pub btl_init: mca_btl_base_component_init_fn_t,
    pub btl_progress: mca_btl_base_component_progress_fn_t,
}

type Module = *mut mca_btl_base_module_t;
type Endpoint = *mut mca_btl_base_endpoint_t;
type Descriptor = *mut mca_btl_base_descriptor_t;
type Handle = *mut mca_btl_base_registration_handle_t;
type Done = mca_btl_base_rdma_completion_fn_t;

/// module, nprocs, procs, endpoints, reachable (NULL when called for one process).
pub type mca_btl_base_module_add_procs_fn_t = Option<
    unsafe extern "C" fn(Module, usize, *mut *mut opal_proc_t, *mut Endpoint, *mut opal_bitmap_t) -> c_int,
>;
/// module, nprocs, procs, endpoints: Open MPI is done with these peers.
pub type mca_btl_base_module_del_procs_fn_t =
    Option<unsafe extern "C" fn(Module, usize, *mut *mut opal_proc_t, *mut Endpoint) -> c_int>;
/// module, tag, receive callback, cbdata.
pub type mca_btl_base_module_register_fn_t =
    Option<unsafe extern "C" fn(Module, mca_btl_base_tag_t, *const c_void, *mut c_void) -> c_int>;
/// module: releases everything, the module included.
pub type mca_btl_base_module_finalize_fn_t = Option<unsafe extern "C" fn(Module) -> c_int>;
/// module, endpoint, order, size, flags.
pub type mca_btl_base_module_alloc_fn_t =
    Option<unsafe extern "C" fn(Module, Endpoint, u8, usize, u32) -> Descriptor>;
/// module, descriptor.
pub type mca_btl_base_module_free_fn_t = Option<unsafe extern "C" fn(Module, Descriptor) -> c_int>;
/// module, endpoint, convertor, order, reserve, in/out size, flags.
pub type mca_btl_base_module_prepare_fn_t = Option<
    unsafe extern "C" fn(Module, Endpoint, *mut opal_convertor_t, u8, usize, *mut usize, u32) -> Descriptor,
>;
/// module, endpoint, descriptor, tag. Returns 1 if the message has completed already, 0 if its
/// callback is to come, or a negative status.
pub type mca_btl_base_module_send_fn_t =
    Option<unsafe extern "C" fn(Module, Endpoint, Descriptor, mca_btl_base_tag_t) -> c_int>;
/// module, endpoint, convertor, header, header size, payload size, order, flags, tag, out descriptor (may be NULL).
pub type mca_btl_base_module_sendi_fn_t = Option<
    unsafe extern "C" fn(
        Module,
        Endpoint,
        *mut opal_convertor_t,
        *mut c_void,
        usize,
        usize,
        u8,
        u32,
        mca_btl_base_tag_t,
        *mut Descriptor,
    ) -> c_int,
>;
/// Put and get: module, endpoint, local address, remote address, local handle, remote handle, size, flags, order,
/// callback, context, data.
pub type mca_btl_base_module_rdma_fn_t = Option<
    unsafe extern "C" fn(
        Module,
        Endpoint,
        *mut c_void,
        u64,
        Handle,
        Handle,
        usize,
        c_int,
        c_int,
        Done,
        *mut c_void,
        *mut c_void,
    ) -> c_int,
>;
/// module, endpoint, verbosity: tells what it knows, for debugging.
pub type mca_btl_base_module_dump_fn_t = Option<unsafe extern "C" fn(Module, Endpoint, c_int)>;
/// module, endpoint, remote address, remote handle, operation, operand, flags, order, callback, context, data.
pub type mca_btl_base_module_atomic_op64_fn_t = Option<
    unsafe extern "C" fn(
        Module,
        Endpoint,
        u64,
        Handle,
        u32,
        u64,
        c_int,
        c_int,
        Done,
        *mut c_void,
        *mut c_void,
    ) -> c_int,
>;
/// As the atomic operation, with local address before and local handle before the remote handle.
pub type mca_btl_base_module_atomic_fop64_fn_t = Option<
    unsafe extern "C" fn(
        Module,
        Endpoint,
        *mut c_void,
        u64,
        Handle,
        Handle,
        u32,
        u64,
        c_int,
        c_int,
        Done,
        *mut c_void,
        *mut c_void,
    ) -> c_int,
>;
/// As the fetching operation, with compare and value in the place of operation and operand.
pub type mca_btl_base_module_atomic_cswap64_fn_t = Option<
    unsafe extern "C" fn(
        Module,
        Endpoint,
        *mut c_void,
        u64,
        Handle,
        Handle,
        u64,
        u64,
        c_int,
        c_int,
        Done,
        *mut c_void,
        *mut c_void,
    ) -> c_int,
>;
/// module, endpoint ([`MCA_BTL_ENDPOINT_ANY`] for all), base, size, access flags.
pub type mca_btl_base_module_register_mem_fn_t =
    Option<unsafe extern "C" fn(Module, Endpoint, *mut c_void, usize, u32) -> Handle>;
/// module, handle of `register_mem`.
pub type mca_btl_base_module_deregister_mem_fn_t = Option<unsafe extern "C" fn(Module, Handle) -> c_int>;
/// module, error callback.
pub type mca_btl_base_module_register_error_fn_t =
    Option<unsafe extern "C" fn(Module, mca_btl_base_module_error_cb_fn_t) -> c_int>;
/// module, endpoint (NULL for all).
pub type mca_btl_base_module_flush_fn_t = Option<unsafe extern "C" fn(Module, Endpoint) -> c_int>;

/// Limits and functions of a module. Sizes are bytes; `btl_latency` is µs, `btl_bandwidth` Mb/s.
#[repr(C)]
pub struct mca_btl_base_module_t {
    pub btl_component: *mut mca_btl_base_component_3_0_0_t,
    pub btl_eager_limit: usize,
    pub btl_rndv_eager_limit: usize,
    pub btl_max_send_size: usize,
    pub btl_rdma_pipeline_send_length: usize,
    pub btl_rdma_pipeline_frag_size: usize,
    pub btl_min_rdma_pipeline_size: usize,
    pub btl_exclusivity: u32,
    pub btl_latency: u32,
    pub btl_bandwidth: u32,
    pub btl_flags: u32,
    pub btl_atomic_flags: u32,
    pub btl_registration_handle_size: usize,
    pub btl_get_limit: usize,
    pub btl_get_alignment: usize,
    pub btl_put_limit: usize,
    pub btl_put_alignment: usize,
    pub btl_get_local_registration_threshold: usize,
    pub btl_put_local_registration_threshold: usize,
    pub btl_add_procs: mca_btl_base_module_add_procs_fn_t,
    pub btl_del_procs: mca_btl_base_module_del_procs_fn_t,
    pub btl_register: mca_btl_base_module_register_fn_t,
    pub btl_finalize: mca_btl_base_module_finalize_fn_t,
    pub btl_alloc: mca_btl_base_module_alloc_fn_t,
    pub btl_free: mca_btl_base_module_free_fn_t,
    pub btl_prepare_src: mca_btl_base_module_prepare_fn_t,
    pub btl_send: mca_btl_base_module_send_fn_t,
    pub btl_sendi: mca_btl_base_module_sendi_fn_t,
    pub btl_put: mca_btl_base_module_rdma_fn_t,
    pub btl_get: mca_btl_base_module_rdma_fn_t,
    pub btl_dump: mca_btl_base_module_dump_fn_t,
    pub btl_atomic_op: mca_btl_base_module_atomic_op64_fn_t,
    pub btl_atomic_fop: mca_btl_base_module_atomic_fop64_fn_t,
    pub btl_atomic_cswap: mca_btl_base_module_atomic_cswap64_fn_t,
    pub btl_register_mem: mca_btl_base_module_register_mem_fn_t,
    pub btl_deregister_mem: mca_btl_base_module_deregister_mem_fn_t,
    pub btl_mpool: *mut c_void,
    pub btl_register_error: mca_btl_base_module_register_error_fn_t,
    /// 4.1: `btl_ft_event`, a function pointer; 5.0: `btl_accelerator_max_send_size`, a number. Zero suits both.
    pub word_288: usize,
    pub btl_flush: mca_btl_base_module_flush_fn_t,
    /// 5.0 keeps `btl_am_data` in its first word. Zero.
    pub padding: [u8; 256],
}

impl mca_btl_base_module_t {
    /// A module of zeroes: no limits, no functions.
    pub const fn zeroed() -> Self {
        // SAFETY: every field is a number, a raw pointer, an optional function or bytes: all-zero is valid for each.
        unsafe { std::mem::zeroed() }
    }
}

/// No order is asked for.
pub const MCA_BTL_NO_ORDER: u8 = 255;
/// One more than the highest tag.
pub const MCA_BTL_TAG_MAX: usize = 255;
/// First of the tags that BTLs keep for themselves; 0x20 to 0x23 are taken by name, 0x30 and 0x31 by 5.0.
pub const MCA_BTL_TAG_BTL: u8 = 0x20;
/// First tag of the PML: ob1's messages, by the type of their header.
pub const MCA_BTL_TAG_PML: u8 = 0x40;
/// First tag for users of the BTL outside of Open MPI's frameworks.
pub const MCA_BTL_TAG_USR: u8 = 0x80;

/// `btl_flags`: sends and active messages.
pub const MCA_BTL_FLAGS_SEND: u32 = 0x1;
/// `btl_flags`: `btl_put`.
pub const MCA_BTL_FLAGS_PUT: u32 = 0x2;
/// `btl_flags`: `btl_get`.
pub const MCA_BTL_FLAGS_GET: u32 = 0x4;
/// `btl_flags`: both; the BML lists such a BTL for one-sided operations even if it sends over
/// another.
pub const MCA_BTL_FLAGS_RDMA: u32 = MCA_BTL_FLAGS_PUT | MCA_BTL_FLAGS_GET;
/// `btl_flags`: sends from the user's buffer without a registration.
pub const MCA_BTL_FLAGS_SEND_INPLACE: u32 = 0x8;
/// `btl_flags`: needs local completion of its RDMA operations.
pub const MCA_BTL_FLAGS_RDMA_COMPLETION: u32 = 0x80;
/// `btl_flags`: makes asynchronous progress on descriptors that ask for it.
pub const MCA_BTL_FLAGS_SIGNALED: u32 = 0x4000;
/// `btl_flags`: atomic operations.
pub const MCA_BTL_FLAGS_ATOMIC_OPS: u32 = 0x8000;
/// `btl_flags`: atomic operations that return the value before.
pub const MCA_BTL_FLAGS_ATOMIC_FOPS: u32 = 0x1_0000;
/// `btl_flags`: `add_procs` has to be called for all processes, those of other nodes included.
pub const MCA_BTL_FLAGS_SINGLE_ADD_PROCS: u32 = 0x2_0000;
/// `btl_flags`: `btl_flush`.
pub const MCA_BTL_FLAGS_RDMA_FLUSH: u32 = 0x8_0000;
/// 5.0: a put that is complete is in the peer's memory.
pub const MCA_BTL_FLAGS_RDMA_REMOTE_COMPLETION: u32 = 0x80_0000;

/// `btl_atomic_flags`: [`MCA_BTL_ATOMIC_ADD`].
pub const MCA_BTL_ATOMIC_SUPPORTS_ADD: u32 = 0x1;
/// `btl_atomic_flags`: [`MCA_BTL_ATOMIC_AND`].
pub const MCA_BTL_ATOMIC_SUPPORTS_AND: u32 = 0x200;
/// `btl_atomic_flags`: [`MCA_BTL_ATOMIC_OR`].
pub const MCA_BTL_ATOMIC_SUPPORTS_OR: u32 = 0x400;
/// `btl_atomic_flags`: [`MCA_BTL_ATOMIC_XOR`].
pub const MCA_BTL_ATOMIC_SUPPORTS_XOR: u32 = 0x800;
/// `btl_atomic_flags`: [`MCA_BTL_ATOMIC_SWAP`].
pub const MCA_BTL_ATOMIC_SUPPORTS_SWAP: u32 = 0x1_0000;
/// `btl_atomic_flags`: `btl_atomic_cswap`.
pub const MCA_BTL_ATOMIC_SUPPORTS_CSWAP: u32 = 0x1000_0000;
/// Atomic with the processor's own, too.
pub const MCA_BTL_ATOMIC_SUPPORTS_GLOB: u32 = 0x2000_0000;

/// In the flags of an atomic: a word of 32 bits.
pub const MCA_BTL_ATOMIC_FLAG_32BIT: c_int = 0x1;
/// In the flags of an atomic: a floating-point number.
pub const MCA_BTL_ATOMIC_FLAG_FLOAT: c_int = 0x2;

/// The word plus the operand.
pub const MCA_BTL_ATOMIC_ADD: u32 = 0x01;
/// The bits that both have.
pub const MCA_BTL_ATOMIC_AND: u32 = 0x11;
/// The bits that either has.
pub const MCA_BTL_ATOMIC_OR: u32 = 0x12;
/// The bits that one of them has.
pub const MCA_BTL_ATOMIC_XOR: u32 = 0x14;
/// The operand.
pub const MCA_BTL_ATOMIC_SWAP: u32 = 0x1a;

/// `btl_exclusivity` of a network's BTL; TCP, the last resort, has 0.
pub const MCA_BTL_EXCLUSIVITY_DEFAULT: u32 = 1024;

/// Flag of an error callback: the process, or the module if no process is named, is lost for good.
pub const MCA_BTL_ERROR_FLAGS_FATAL: i32 = 1;
/// Flag of an error callback: what has failed does not end the job by itself.
pub const MCA_BTL_ERROR_FLAGS_NONFATAL: i32 = 2;

/// `des_flags`: to be sent in front of others.
pub const MCA_BTL_DES_FLAGS_PRIORITY: u32 = 0x1;
/// The BTL frees the descriptor after its callback.
pub const MCA_BTL_DES_FLAGS_BTL_OWNERSHIP: u32 = 0x2;
/// The callback comes even when `btl_send` returned 1.
pub const MCA_BTL_DES_SEND_ALWAYS_CALLBACK: u32 = 0x4;
/// `des_flags`: when it is complete, wake the process that a send goes to; a hint.
pub const MCA_BTL_DES_FLAGS_SIGNAL: u32 = 0x40;
/// Most segments of a descriptor.
pub const MCA_BTL_DES_MAX_SEGMENTS: usize = 16;
/// Most bytes of a registration handle.
pub const MCA_BTL_REG_HANDLE_MAX_SIZE: usize = 256;

/// `register_mem`: local side of a get.
pub const MCA_BTL_REG_FLAG_LOCAL_WRITE: u32 = 0x1;
/// `register_mem`: remote side of a get.
pub const MCA_BTL_REG_FLAG_REMOTE_READ: u32 = 0x2;
/// `register_mem`: remote side of a put.
pub const MCA_BTL_REG_FLAG_REMOTE_WRITE: u32 = 0x4;
/// `register_mem`: remote side of atomics.
pub const MCA_BTL_REG_FLAG_REMOTE_ATOMIC: u32 = 0x8;

/// In `register_mem`: memory for whichever endpoint.
pub const MCA_BTL_ENDPOINT_ANY: *mut mca_btl_base_endpoint_t = usize::MAX as *mut mca_btl_base_endpoint_t;

const _: () = {
    assert!(size_of::<mca_btl_base_segment_t>() == 16);
    assert!(size_of::<mca_btl_base_descriptor_t>() == 104);
    assert!(offset_of!(mca_btl_base_descriptor_t, des_segments) == 56);
    assert!(offset_of!(mca_btl_base_descriptor_t, des_cbfunc) == 72);
    assert!(offset_of!(mca_btl_base_descriptor_t, des_flags) == 96);
    assert!(offset_of!(mca_btl_base_descriptor_t, order) == 100);
    assert!(size_of::<mca_btl_base_receive_descriptor_t>() == 40);
    assert!(size_of::<mca_btl_active_message_callback_t>() == 16);
    assert!(size_of::<mca_btl_base_component_3_0_0_t>() == 280);
    assert!(offset_of!(mca_btl_base_component_3_0_0_t, btl_data) == 224);
    assert!(offset_of!(mca_btl_base_component_3_0_0_t, btl_init) == 264);
    assert!(offset_of!(mca_btl_base_component_3_0_0_t, btl_progress) == 272);
    assert!(size_of::<mca_btl_base_module_t>() == 560);
    assert!(offset_of!(mca_btl_base_module_t, btl_exclusivity) == 56);
    assert!(offset_of!(mca_btl_base_module_t, btl_registration_handle_size) == 80);
    assert!(offset_of!(mca_btl_base_module_t, btl_add_procs) == 136);
    assert!(offset_of!(mca_btl_base_module_t, btl_send) == 192);
    assert!(offset_of!(mca_btl_base_module_t, btl_put) == 208);
    assert!(offset_of!(mca_btl_base_module_t, btl_register_mem) == 256);
    assert!(offset_of!(mca_btl_base_module_t, btl_register_error) == 280);
    assert!(offset_of!(mca_btl_base_module_t, word_288) == 288);
    assert!(offset_of!(mca_btl_base_module_t, btl_flush) == 296);
    assert!(offset_of!(mca_btl_base_module_t, padding) == 304);
};
