//! The functions that Open MPI calls on a module: a guard against unwinding, pointers to
//! references, a safe call.

use super::guard::guard;
use super::handle::RegHandle;
use super::module::{Module, Operation};
use super::{peers, startup};
use crate::protocol::atomic::{Atomic, Change};
use crate::transport::{Attempt, SHORT};
use opal_sys::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::slice::from_raw_parts;
use verbs::RdmaOp;

type Raw = *mut mca_btl_base_module_t;
type Endpoint = *mut mca_btl_base_endpoint_t;
type Descriptor = *mut mca_btl_base_descriptor_t;
type Handle = *mut mca_btl_base_registration_handle_t;

/// Fills in every function that the transport offers.
pub fn fill(base: &mut mca_btl_base_module_t) {
    base.btl_add_procs = Some(add_procs);
    base.btl_del_procs = Some(del_procs);
    base.btl_finalize = Some(finalize);
    base.btl_alloc = Some(alloc);
    base.btl_free = Some(free);
    base.btl_prepare_src = Some(prepare_src);
    base.btl_send = Some(send);
    base.btl_sendi = Some(sendi);
    base.btl_put = Some(put);
    base.btl_get = Some(get);
    base.btl_atomic_op = Some(atomic_op);
    base.btl_atomic_fop = Some(atomic_fop);
    base.btl_atomic_cswap = Some(atomic_cswap);
    base.btl_dump = Some(dump);
    base.btl_register_mem = Some(register_mem);
    base.btl_deregister_mem = Some(deregister_mem);
    base.btl_register_error = Some(register_error);
    base.btl_flush = Some(flush);
}

/// The module that Open MPI means.
///
/// # Safety
/// `raw` is the pointer of a module that `Module::new` made: those live for ever.
#[inline]
unsafe fn module(raw: Raw) -> &'static Module {
    // SAFETY: the function table is the module's first field; the caller vouches for the pointer.
    unsafe { &*raw.cast::<Module>() }
}

unsafe extern "C" fn add_procs(
    raw: Raw,
    count: usize,
    procs: *mut *mut opal_proc_t,
    endpoints: *mut Endpoint,
    reachable: *mut opal_bitmap_t,
) -> c_int {
    // SAFETY: Open MPI hands over two arrays of `count` entries and a bitmap or NULL.
    let (this, procs, endpoints) = unsafe {
        (
            module(raw),
            std::slice::from_raw_parts(procs, count),
            std::slice::from_raw_parts_mut(endpoints, count),
        )
    };
    guard("btl_add_procs", OPAL_ERROR, || {
        let status = peers::add_all(this, procs, endpoints, reachable);
        startup::is_over();
        status
    })
}

unsafe extern "C" fn del_procs(
    raw: Raw,
    count: usize,
    _procs: *mut *mut opal_proc_t,
    endpoints: *mut Endpoint,
) -> c_int {
    // SAFETY: Open MPI hands over an array of `count` entries.
    let (this, endpoints) = unsafe { (module(raw), from_raw_parts(endpoints, count)) };
    guard("btl_del_procs", OPAL_ERROR, || peers::remove_all(this, endpoints))
}

unsafe extern "C" fn finalize(raw: Raw) -> c_int {
    // SAFETY: a module of ours.
    let this = unsafe { module(raw) };
    guard("btl_finalize", (), || this.finalize());
    OPAL_SUCCESS
}

unsafe extern "C" fn alloc(raw: Raw, endpoint: Endpoint, _order: u8, size: usize, flags: u32) -> Descriptor {
    // SAFETY: a module of ours.
    let this = unsafe { module(raw) };
    guard("btl_alloc", null_mut(), || this.alloc(endpoint, size, flags))
}

unsafe extern "C" fn free(raw: Raw, desc: Descriptor) -> c_int {
    // SAFETY: a module of ours; Open MPI frees only what it got from us, once.
    guard("btl_free", (), || unsafe { module(raw).free(desc) });
    OPAL_SUCCESS
}

unsafe extern "C" fn prepare_src(
    raw: Raw,
    endpoint: Endpoint,
    convertor: *mut opal_convertor_t,
    _order: u8,
    reserve: usize,
    size: *mut usize,
    flags: u32,
) -> Descriptor {
    // SAFETY: a module of ours, a prepared convertor and a size that may be written.
    guard("btl_prepare_src", null_mut(), || unsafe {
        module(raw).prepare_src(endpoint, convertor, reserve, &mut *size, flags)
    })
}

unsafe extern "C" fn send(raw: Raw, endpoint: Endpoint, desc: Descriptor, tag: mca_btl_base_tag_t) -> c_int {
    // SAFETY: a module of ours and a descriptor of ours that has not been sent.
    guard("btl_send", OPAL_ERROR, || unsafe { module(raw).send(endpoint, desc, tag) })
}

unsafe extern "C" fn sendi(
    raw: Raw,
    endpoint: Endpoint,
    convertor: *mut opal_convertor_t,
    header: *mut c_void,
    header_size: usize,
    payload_size: usize,
    order: u8,
    flags: u32,
    tag: mca_btl_base_tag_t,
    descriptor: *mut Descriptor,
) -> c_int {
    // Both are lengths of memory: their sum is one, too.
    let len = header_size.wrapping_add(payload_size);
    let way: Sendi = if len <= SHORT { sendi_short } else { sendi_longer };
    // SAFETY: as Open MPI has called.
    unsafe { way(raw, endpoint, convertor, header, header_size, payload_size, order, flags, tag, descriptor) }
}

/// As `btl_sendi`.
type Sendi = unsafe extern "C" fn(
    Raw,
    Endpoint,
    *mut opal_convertor_t,
    *mut c_void,
    usize,
    usize,
    u8,
    u32,
    mca_btl_base_tag_t,
    *mut Descriptor,
) -> c_int;

/// A function that is a jump away, for all that it is called with is where it was: tries a way of the module's, and goes on with
/// [`sendi_otherwise`].
macro_rules! sendi_by {
    ($name:ident, $way:ident) => {
        #[inline(never)]
        unsafe extern "C" fn $name(
            raw: Raw,
            endpoint: Endpoint,
            convertor: *mut opal_convertor_t,
            header: *mut c_void,
            header_size: usize,
            payload: usize,
            order: u8,
            flags: u32,
            tag: mca_btl_base_tag_t,
            descriptor: *mut Descriptor,
        ) -> c_int {
            // SAFETY: a module of ours, a readable header, a convertor that is prepared if there is a
            // payload.
            let attempt = guard("btl_sendi", Attempt::Refused, || unsafe {
                let header = from_raw_parts(header.cast_const().cast::<u8>(), header_size);
                module(raw).$way(endpoint, convertor, header, payload, tag)
            });
            match attempt {
                Attempt::Sent => return OPAL_SUCCESS,
                Attempt::Refused => return refused(descriptor),
                Attempt::Otherwise => {}
            }
            let way: Sendi = sendi_otherwise;
            // SAFETY: as Open MPI has called.
            unsafe {
                way(raw, endpoint, convertor, header, header_size, payload, order, flags, tag, descriptor)
            }
        }
    };
}

/// `sendi` has sent nothing: the upper layer takes the long way.
#[cold]
fn refused(descriptor: *mut Descriptor) -> c_int {
    if !descriptor.is_null() {
        // SAFETY: Open MPI's own variable.
        unsafe { *descriptor = null_mut() };
    }
    OPAL_ERR_OUT_OF_RESOURCE
}

sendi_by!(sendi_short, sendi_straight);
sendi_by!(sendi_longer, sendi_longer);

/// `sendi` of what does not go the straight way: a jump away, too.
#[inline(never)]
unsafe extern "C" fn sendi_otherwise(
    raw: Raw,
    endpoint: Endpoint,
    convertor: *mut opal_convertor_t,
    header: *mut c_void,
    header_size: usize,
    payload_size: usize,
    _order: u8,
    flags: u32,
    tag: mca_btl_base_tag_t,
    descriptor: *mut Descriptor,
) -> c_int {
    // SAFETY: a module of ours, a readable header, a convertor that is prepared if there is a
    // payload.
    let sent = guard("btl_sendi", false, move || unsafe {
        let header = from_raw_parts(header.cast_const().cast::<u8>(), header_size);
        module(raw).sendi(endpoint, convertor, header, payload_size, tag)
    });
    if sent {
        return OPAL_SUCCESS;
    }
    if !descriptor.is_null() {
        // SAFETY: Open MPI's own variable, and a module of ours.
        guard("btl_sendi", (), move || unsafe {
            *descriptor = null_mut();
            *descriptor = module(raw).alloc_unsent(endpoint, header_size + payload_size, flags);
        });
    }
    OPAL_ERR_OUT_OF_RESOURCE
}

unsafe extern "C" fn put(
    raw: Raw,
    endpoint: Endpoint,
    local: *mut c_void,
    remote: u64,
    local_handle: Handle,
    remote_handle: Handle,
    size: usize,
    _flags: c_int,
    _order: c_int,
    done: mca_btl_base_rdma_completion_fn_t,
    context: *mut c_void,
    data: *mut c_void,
) -> c_int {
    let operation = Operation::new(done, endpoint, (local, local_handle), (context, data));
    // SAFETY: a module of ours and, if there are bytes, the handles of two registrations.
    guard("btl_put", OPAL_ERROR, || unsafe {
        rdma(raw, RdmaOp::Write, remote, remote_handle, size, operation)
    })
}

unsafe extern "C" fn get(
    raw: Raw,
    endpoint: Endpoint,
    local: *mut c_void,
    remote: u64,
    local_handle: Handle,
    remote_handle: Handle,
    size: usize,
    _flags: c_int,
    _order: c_int,
    done: mca_btl_base_rdma_completion_fn_t,
    context: *mut c_void,
    data: *mut c_void,
) -> c_int {
    let operation = Operation::new(done, endpoint, (local, local_handle), (context, data));
    // SAFETY: a module of ours and, if there are bytes, the handles of two registrations.
    guard("btl_get", OPAL_ERROR, || unsafe {
        rdma(raw, RdmaOp::Read, remote, remote_handle, size, operation)
    })
}

/// # Safety
/// `raw` is a module of ours; the handles are those of registrations, ours and the peer's, unless
/// `size` is 0. Ours may be NULL for a get of no more than `btl_get_local_registration_threshold`.
unsafe fn rdma(
    raw: Raw,
    op: RdmaOp,
    remote: u64,
    remote_handle: Handle,
    size: usize,
    operation: Operation,
) -> c_int {
    // SAFETY: `raw` is a module of ours, which lives for ever.
    let this = unsafe { module(raw) };
    if size == 0 {
        // Of nothing there is no registration: either handle may be NULL.
        return this.rdma_of_nothing(operation);
    }
    let local = if !operation.handle.is_null() {
        // SAFETY: the handle of a live registration.
        Some(unsafe { RegHandle::local(operation.handle) })
    } else if op == RdmaOp::Read {
        this.key_of_all()
    } else {
        None
    };
    let Some(lkey) = local.filter(|_| !remote_handle.is_null()) else {
        log::error!("a put or get of {size} bytes is refused: it comes without the handle of a registration");
        return OPAL_ERR_BAD_PARAM;
    };
    // SAFETY: there are bytes, so it is the handle of a live registration.
    let rkey = unsafe { RegHandle::remote(remote_handle) };
    this.rdma(op, (lkey, size), (remote, rkey), operation)
}

unsafe extern "C" fn atomic_op(
    raw: Raw,
    endpoint: Endpoint,
    remote: u64,
    remote_handle: Handle,
    op: u32,
    operand: u64,
    flags: c_int,
    _order: c_int,
    done: mca_btl_base_rdma_completion_fn_t,
    context: *mut c_void,
    data: *mut c_void,
) -> c_int {
    let operation = Operation::new(done, endpoint, (null_mut(), null_mut()), (context, data));
    // SAFETY: a module of ours, and the handle of a registration of the peer's.
    guard("btl_atomic_op", OPAL_ERROR, || unsafe {
        atomic(raw, change(op), operand, (remote, remote_handle), flags, operation)
    })
}

unsafe extern "C" fn atomic_fop(
    raw: Raw,
    endpoint: Endpoint,
    local: *mut c_void,
    remote: u64,
    local_handle: Handle,
    remote_handle: Handle,
    op: u32,
    operand: u64,
    flags: c_int,
    _order: c_int,
    done: mca_btl_base_rdma_completion_fn_t,
    context: *mut c_void,
    data: *mut c_void,
) -> c_int {
    let operation = Operation::new(done, endpoint, (local, local_handle), (context, data));
    // SAFETY: a module of ours, and the handle of a registration of the peer's; the caller keeps the
    // eight bytes at `local` until the callback.
    guard("btl_atomic_fop", OPAL_ERROR, || unsafe {
        atomic(raw, change(op), operand, (remote, remote_handle), flags, operation)
    })
}

unsafe extern "C" fn atomic_cswap(
    raw: Raw,
    endpoint: Endpoint,
    local: *mut c_void,
    remote: u64,
    local_handle: Handle,
    remote_handle: Handle,
    compare: u64,
    value: u64,
    flags: c_int,
    _order: c_int,
    done: mca_btl_base_rdma_completion_fn_t,
    context: *mut c_void,
    data: *mut c_void,
) -> c_int {
    let operation = Operation::new(done, endpoint, (local, local_handle), (context, data));
    let change = Some(Change::CompareSwap(compare));
    // SAFETY: a module of ours, and the handle of a registration of the peer's; the caller keeps the
    // eight bytes at `local` until the callback.
    guard("btl_atomic_cswap", OPAL_ERROR, || unsafe {
        atomic(raw, change, value, (remote, remote_handle), flags, operation)
    })
}

/// What an operation of the interface makes of a word. None: it is not offered.
fn change(op: u32) -> Option<Change> {
    match op {
        MCA_BTL_ATOMIC_ADD => Some(Change::Add),
        MCA_BTL_ATOMIC_AND => Some(Change::And),
        MCA_BTL_ATOMIC_OR => Some(Change::Or),
        MCA_BTL_ATOMIC_XOR => Some(Change::Xor),
        MCA_BTL_ATOMIC_SWAP => Some(Change::Swap),
        _ => None,
    }
}

/// # Safety
/// `raw` is a module of ours; the handle is that of a registration of the peer's, or NULL, and the word
/// then one of this process; `operation.local` is NULL, or has room for eight bytes until the callback.
unsafe fn atomic(
    raw: Raw,
    change: Option<Change>,
    operand: u64,
    (remote, remote_handle): (u64, Handle),
    flags: c_int,
    operation: Operation,
) -> c_int {
    let small = flags & (MCA_BTL_ATOMIC_FLAG_32BIT | MCA_BTL_ATOMIC_FLAG_FLOAT) != 0;
    let Some(change) = change.filter(|_| !small) else { return OPAL_ERR_NOT_SUPPORTED };
    // SAFETY: `raw` is a module of ours, which lives for ever.
    let (this, atomic) = (unsafe { module(raw) }, Atomic::new(change, operand));
    if remote_handle.is_null() {
        // SAFETY: without a handle the word is this process' own.
        return unsafe { this.atomic_here(atomic, remote, operation) };
    }
    // SAFETY: the handle is that of a registration of the peer's.
    this.atomic(atomic, (remote, unsafe { RegHandle::remote(remote_handle) }), operation)
}

unsafe extern "C" fn dump(raw: Raw, _endpoint: Endpoint, _verbose: c_int) {
    // SAFETY: a module of ours.
    let this = unsafe { module(raw) };
    guard("btl_dump", (), || this.transport((), |t| log::info!("module {}: {:?}", this.index(), t.stats)));
}

unsafe extern "C" fn register_mem(
    raw: Raw,
    _endpoint: Endpoint,
    base: *mut c_void,
    size: usize,
    flags: u32,
) -> Handle {
    // SAFETY: a module of ours; the upper layer keeps the memory until it deregisters.
    guard("btl_register_mem", null_mut(), || unsafe { module(raw).register(base, size, flags) })
}

unsafe extern "C" fn deregister_mem(raw: Raw, handle: Handle) -> c_int {
    // SAFETY: a module of ours, and a handle that its `register_mem` returned, given back once.
    guard("btl_deregister_mem", OPAL_ERROR, || unsafe { module(raw).deregister(handle) })
}

unsafe extern "C" fn register_error(raw: Raw, callback: mca_btl_base_module_error_cb_fn_t) -> c_int {
    // SAFETY: a module of ours.
    let this = unsafe { module(raw) };
    guard("btl_register_error", (), || this.on_error(callback));
    OPAL_SUCCESS
}

unsafe extern "C" fn flush(raw: Raw, endpoint: Endpoint) -> c_int {
    // SAFETY: a module of ours.
    let this = unsafe { module(raw) };
    guard("btl_flush", (), || this.flush(endpoint));
    OPAL_SUCCESS
}
