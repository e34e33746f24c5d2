//! The verbs that `verbs.h` defines inline: the data path through `ibv_context.ops`, and the extended verbs through
//! [`verbs_context`].
//!
//! A data-path pointer that is null means a broken library; these functions then return `EOPNOTSUPP` instead of
//! jumping to address 0. The check is one predictable branch on a pointer that is loaded anyway.

use core::ffi::c_int;
use core::mem::{offset_of, size_of};

use libc::{EINVAL, EOPNOTSUPP};

use crate::*;

/// Posts a chain of send work requests. 0, or an errno value with `bad` at the first request that was not posted.
///
/// # Safety
/// `qp` is alive; `wr` is a valid chain whose memory stays valid as its flags say; `bad` is writable.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: `qp` is alive, so its context is.
    match unsafe { (*(*qp).context).ops.post_send } {
        // SAFETY: `post` is the function that the library of `qp` has set for its queue pairs; the
        // caller promises a live `qp`, a valid chain `wr` and a writable `bad`.
        Some(post) => unsafe { post(qp, wr, bad) },
        None => EOPNOTSUPP,
    }
}

/// Posts a chain of receive work requests. 0, or an errno value with `bad` at the first that was not posted.
///
/// # Safety
/// As for [`ibv_post_send`].
#[inline]
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: `qp` is alive, so its context is.
    match unsafe { (*(*qp).context).ops.post_recv } {
        // SAFETY: `post` is the function that the library of `qp` has set for its queue pairs; the
        // caller promises a live `qp`, a valid chain `wr` and a writable `bad`.
        Some(post) => unsafe { post(qp, wr, bad) },
        None => EOPNOTSUPP,
    }
}

/// Posts a chain of receive work requests to a shared receive queue.
///
/// # Safety
/// As for [`ibv_post_send`].
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `srq` is alive, so its context is.
    match unsafe { (*(*srq).context).ops.post_srq_recv } {
        // SAFETY: `post` is the function that the library of `srq` has set for its queues; the
        // caller promises a live `srq`, a valid chain `wr` and a writable `bad`.
        Some(post) => unsafe { post(srq, wr, bad) },
        None => EOPNOTSUPP,
    }
}

/// Takes up to `num_entries` completions. Their number, or a negative value on failure.
///
/// # Safety
/// `cq` is alive; `wc` has room for `num_entries`.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: `cq` is alive, so its context is.
    match unsafe { (*(*cq).context).ops.poll_cq } {
        // SAFETY: `poll` is the function that the library of `cq` has set for its queues; the
        // caller promises a live `cq` and room for `num_entries` completions.
        Some(poll) => unsafe { poll(cq, num_entries, wc) },
        None => -EOPNOTSUPP,
    }
}

/// Asks for an event on the CQ's channel at its next (solicited) completion.
///
/// # Safety
/// `cq` is alive.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: `cq` is alive, so its context is.
    match unsafe { (*(*cq).context).ops.req_notify_cq } {
        // SAFETY: `notify` is the function that the library of `cq` has set for its queues; the
        // caller promises a live `cq`.
        Some(notify) => unsafe { notify(cq, solicited_only) },
        None => EOPNOTSUPP,
    }
}

/// The extended context around `ctx`, or null when it has none.
///
/// # Safety
/// `ctx` is alive.
#[inline]
pub unsafe fn verbs_get_ctx(ctx: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the caller promises that `ctx` is alive.
    if unsafe { (*ctx).abi_compat } != VERBS_ABI_IS_EXTENDED {
        return core::ptr::null_mut();
    }
    ctx.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}

/// Whether an extended context of `sz` bytes has the member at `offset`: it grows at its start, so older libraries lack
/// the first members.
#[inline]
pub fn verbs_ctx_has(sz: usize, offset: usize) -> bool {
    sz >= size_of::<verbs_context>() - offset
}

/// Reads one extended verb of a context: `None` when context, size or pointer say that it is not there.
macro_rules! extended {
    ($ctx:expr, $op:ident) => {{
        let ctx = $ctx;
        // SAFETY: the caller of the surrounding function promises a live context.
        let vctx = unsafe { verbs_get_ctx(ctx) };
        // SAFETY: a non-null extended context has at least `sz`, and the member when `sz` covers it.
        if !vctx.is_null() && verbs_ctx_has(unsafe { (*vctx).sz }, offset_of!(verbs_context, $op)) {
            // SAFETY: `vctx` is not null and `sz` covers the member: the condition of this branch.
            unsafe { (*vctx).$op }
        } else {
            None
        }
    }};
}

/// Sets `errno` to `EOPNOTSUPP` and returns null, as the inline verbs of `verbs.h` do.
#[cold]
fn unsupported<T>() -> *mut T {
    set_errno(EOPNOTSUPP);
    core::ptr::null_mut()
}

/// Sets the calling thread's `errno`.
pub fn set_errno(errno: c_int) {
    // SAFETY: the address of the calling thread's errno is always valid.
    unsafe { *libc::__errno_location() = errno };
}

/// Reads the calling thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: glibc keeps the calling thread's errno at this address as long as the thread runs.
    unsafe { *libc::__errno_location() }
}

/// Properties of a port, complete: through the extended context, else through the exported symbol, whose compat struct
/// lacks `port_cap_flags2` (left 0).
///
/// # Safety
/// `ctx` is alive and belongs to the library of `table`; `attr` is writable.
pub unsafe fn ibv_query_port(
    table: &Table,
    ctx: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    match extended!(ctx, query_port) {
        // SAFETY: `query` comes from the extended part of `ctx`; the caller promises a live `ctx`
        // and a writable `attr`, whose size is passed along.
        Some(query) => unsafe { query(ctx, port, attr, size_of::<ibv_port_attr>()) },
        None => {
            // SAFETY: `attr` is writable; the compat struct is a prefix of it.
            unsafe {
                attr.write(ibv_port_attr::default());
                (table.query_port)(ctx, port, attr)
            }
        }
    }
}

/// Extended properties of a device; where the library has none, the plain ones with everything else 0.
///
/// # Safety
/// `ctx` is alive and belongs to the library of `table`; `attr` is writable.
pub unsafe fn ibv_query_device_ex(
    table: &Table,
    ctx: *mut ibv_context,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    if let Some(query) = extended!(ctx, query_device_ex) {
        // SAFETY: `query` comes from the extended part of `ctx`; the caller promises a live `ctx`
        // and a writable `attr`, whose size is passed along. The input may be null.
        let rc = unsafe { query(ctx, core::ptr::null(), attr, size_of::<ibv_device_attr_ex>()) };
        if rc != EOPNOTSUPP && rc != libc::ENOSYS {
            return rc;
        }
    }
    // SAFETY: `attr` is writable and its first member is the plain struct.
    unsafe {
        attr.write(ibv_device_attr_ex::default());
        (table.query_device)(ctx, &raw mut (*attr).orig_attr)
    }
}

/// Opens an XRC domain. Null with `errno` on failure.
///
/// # Safety
/// `ctx` is alive; `attr` is valid.
pub unsafe fn ibv_open_xrcd(ctx: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
    match extended!(ctx, open_xrcd) {
        // SAFETY: `open` comes from the extended part of `ctx`; the caller promises a live `ctx`
        // and a valid `attr`.
        Some(open) => unsafe { open(ctx, attr) },
        None => unsupported(),
    }
}

/// Closes it; `EBUSY` while queues belong to it.
///
/// # Safety
/// `xrcd` is alive and not used afterwards.
pub unsafe fn ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the caller promises that `xrcd` is alive, so its context is.
    match extended!(unsafe { (*xrcd).context }, close_xrcd) {
        // SAFETY: `close` comes from the extended part of the context of `xrcd`, which the caller
        // does not use afterwards.
        Some(close) => unsafe { close(xrcd) },
        None => EOPNOTSUPP,
    }
}

/// Creates a shared receive queue of any type. Basic ones that name nothing but their PD go to `ibv_create_srq`, all
/// others to the extended verb: an XRC request never yields a basic queue.
///
/// # Safety
/// `ctx` is alive and belongs to the library of `table`; `attr` is valid.
pub unsafe fn ibv_create_srq_ex(
    table: &Table,
    ctx: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the caller promises that `attr` is valid.
    let (mask, srq_type, pd) = unsafe { ((*attr).comp_mask, (*attr).srq_type, (*attr).pd) };
    let only_pd =
        mask & !(IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE) == 0 && mask & IBV_SRQ_INIT_ATTR_PD != 0;
    if only_pd && (mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || srq_type == IBV_SRQT_BASIC) {
        // SAFETY: the caller promises that `table` is of the library of `ctx`, and a valid `attr`,
        // which begins like the plain attributes (asserted in `layout`).
        return unsafe { (table.create_srq)(pd, attr.cast()) };
    }
    match extended!(ctx, create_srq_ex) {
        // SAFETY: `create` comes from the extended part of `ctx`; the caller promises a live `ctx`
        // and a valid `attr`.
        Some(create) => unsafe { create(ctx, attr) },
        None => unsupported(),
    }
}

/// Number of an XRC shared receive queue, which its senders name.
///
/// # Safety
/// `srq` is alive; `number` is writable.
pub unsafe fn ibv_get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: the caller promises that `srq` is alive, so its context is.
    match extended!(unsafe { (*srq).context }, get_srq_num) {
        // SAFETY: `get` comes from the extended part of the context of `srq`; the caller promises a
        // live `srq` and a writable `number`.
        Some(get) => unsafe { get(srq, number) },
        None => EOPNOTSUPP,
    }
}

/// Creates a queue pair of any type; one that names nothing but its PD goes to `ibv_create_qp`.
///
/// # Safety
/// `ctx` is alive and belongs to the library of `table`; `attr` is valid.
pub unsafe fn ibv_create_qp_ex(
    table: &Table,
    ctx: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller promises a valid `attr`, and that `table` is of the library of `ctx`; the
    // extended attributes begin like the plain ones (asserted in `layout`).
    unsafe {
        if (*attr).comp_mask == IBV_QP_INIT_ATTR_PD {
            return (table.create_qp)((*attr).pd, attr.cast());
        }
    }
    match extended!(ctx, create_qp_ex) {
        // SAFETY: `create` comes from the extended part of `ctx`; the caller promises a live `ctx`
        // and a valid `attr`.
        Some(create) => unsafe { create(ctx, attr) },
        None => unsupported(),
    }
}

/// Opens another handle of a shared XRC receive queue pair.
///
/// # Safety
/// `ctx` is alive; `attr` is valid.
pub unsafe fn ibv_open_qp(ctx: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    match extended!(ctx, open_qp) {
        // SAFETY: `open` comes from the extended part of `ctx`; the caller promises a live `ctx`
        // and a valid `attr`.
        Some(open) => unsafe { open(ctx, attr) },
        None => unsupported(),
    }
}

/// Allocates a memory window.
///
/// # Safety
/// `pd` is alive.
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, r#type: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the caller promises that `pd` is alive, so its context is.
    match unsafe { (*(*pd).context).ops.alloc_mw } {
        // SAFETY: `alloc` is the function that the library of `pd` has set for its domains; the
        // caller promises a live `pd`.
        Some(alloc) => unsafe { alloc(pd, r#type) },
        None => unsupported(),
    }
}

/// Frees it.
///
/// # Safety
/// `mw` is alive and not used afterwards.
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller promises that `mw` is alive, so its context is.
    match unsafe { (*(*mw).context).ops.dealloc_mw } {
        // SAFETY: `dealloc` is the function that the library of `mw` has set for its windows; the
        // caller promises a live `mw` and does not use it afterwards.
        Some(dealloc) => unsafe { dealloc(mw) },
        None => EOPNOTSUPP,
    }
}

/// Binds a type 1 memory window: `EINVAL` for other types or a range without region, `EPERM` across domains.
///
/// # Safety
/// All three are alive.
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller promises that `mw` and `bind` are alive.
    let (window, info) = unsafe { (&*mw, (*bind).bind_info) };
    if window.r#type != IBV_MW_TYPE_1 || (info.mr.is_null() && (info.addr != 0 || info.length != 0)) {
        return EINVAL;
    }
    // SAFETY: `info.mr` is not null (checked first), and the caller promises that a region which
    // `bind` names is alive.
    if !info.mr.is_null() && window.pd != unsafe { (*info.mr).pd } {
        return libc::EPERM;
    }
    // SAFETY: `mw` is alive, so its context is.
    match unsafe { (*window.context).ops.bind_mw } {
        // SAFETY: `bind_mw` is the function that the library of `mw` has set for its windows; the
        // caller promises that `qp`, `mw` and `bind` are alive.
        Some(bind_mw) => unsafe { bind_mw(qp, mw, bind) },
        None => EOPNOTSUPP,
    }
}
