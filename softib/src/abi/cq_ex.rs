//! Extended completion queues: completions read field by field.
//!
//! ```text
//!   start_poll ──> one completion stands in the C struct ──> read_* ──> next_poll ──> ... ──> end_poll
//! ```
//!
//! Every completion queue has room for the extended struct; only `create_cq_ex` fills its functions in. Between start_poll and
//! end_poll the queue belongs to one thread, as a real device keeps it (unless it was made for a single thread).

use super::create::{check_depth, insert_cq};
use super::extras::domain;
use super::guard::{guard, guard_ptr};
use super::handle::{context_key, cq_key, engine, optional_channel};
use super::poll;
use crate::clock::Stamp;
use crate::errno::Errno;
use crate::objects::extended::CqEx;
use crate::objects::zeroed;
use rdma_sys::*;
use std::ffi::c_int;
use std::mem::MaybeUninit;

/// `ibv_create_cq_ex(3)`.
pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the program passes a valid pointer.
    guard_ptr(|| create(context, unsafe { &*init }))
}

fn create(context: *mut ibv_context, init: &ibv_cq_init_attr_ex) -> Result<*mut ibv_cq_ex, Errno> {
    let flags = if init.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { init.flags } else { 0 };
    let has_domain = init.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0;
    let known = init.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) == 0
        && flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED == 0
        && init.wc_flags & !u64::from(IBV_WC_STANDARD_FLAGS | STAMPS) == 0;
    if !known {
        return Err(Errno::OPNOTSUPP);
    }
    if init.comp_vector != 0 {
        return Err(Errno::INVAL);
    }
    let depth = check_depth(c_int::try_from(init.cqe).map_err(|_| Errno::INVAL)?)?;
    // SAFETY: ibv_cq is plain C data; zeroes are valid, also for its mutex and cond on Linux.
    let mut c: ibv_cq = unsafe { zeroed() };
    (c.context, c.channel, c.cq_context, c.cqe) = (context, init.channel, init.cq_context, depth as c_int);
    let channel = optional_channel(init.channel);
    let parent = if has_domain { init.parent_domain } else { std::ptr::null_mut() };
    let mut state = engine()?.enter();
    if has_domain && !domain::is_parent(&state.w, parent) {
        return Err(Errno::INVAL);
    }
    let cq = insert_cq(&mut state, context_key(context), channel, c)?.cast::<CqEx>();
    // SAFETY: insert_cq hands out the first member of a CqEx, which the program has not been given
    // yet.
    let cq = unsafe { &mut *cq };
    cq.parent = parent;
    cq.single_threaded = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0;
    offer(&mut cq.ex, init.wc_flags as u32);
    if init.wc_flags as u32 & STAMPS != 0 {
        state.w.cqs[cq.ex.handle as usize].keep_stamps();
    }
    Ok(&raw mut cq.ex)
}

/// Completions with times.
const STAMPS: u32 = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// Fills the functions in. What neither the standard flags nor `wc_flags` cover stays null.
fn offer(ex: &mut ibv_cq_ex, wc_flags: u32) {
    if wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP != 0 {
        ex.read_completion_ts = Some(read_completion_ts);
    }
    if wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK != 0 {
        ex.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    }
    ex.start_poll = Some(start_poll);
    ex.next_poll = Some(next_poll);
    ex.end_poll = Some(end_poll);
    ex.read_opcode = Some(read_opcode);
    ex.read_vendor_err = Some(read_vendor_err);
    ex.read_byte_len = Some(read_byte_len);
    ex.read_imm_data = Some(read_imm_data);
    ex.read_qp_num = Some(read_qp_num);
    ex.read_src_qp = Some(read_src_qp);
    ex.read_wc_flags = Some(read_wc_flags);
    ex.read_slid = Some(read_slid);
    ex.read_sl = Some(read_sl);
    ex.read_dlid_path_bits = Some(read_dlid_path_bits);
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the program passes a CQ that create_cq_ex returned, and null or a valid pointer.
    guard(|| unsafe { start(cq.cast(), attr.as_ref().map_or(0, |attr| attr.comp_mask)) })
}

/// # Safety
/// A live extended CQ.
unsafe fn start(cq: *mut CqEx, comp_mask: u32) -> Result<(), Errno> {
    if comp_mask != 0 {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller passes a live CQ. `single_threaded` is written only when the CQ is made,
    // and `turn` is atomic; the rest of the struct is used only by the thread whose turn it is, or
    // by the only thread that a single-threaded CQ has.
    unsafe {
        if !(*cq).single_threaded {
            (*cq).turn.take();
        }
        let next = advance(cq);
        if next.is_err() {
            (*cq).turn.give();
        }
        next
    }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the program passes a CQ that create_cq_ex returned, between start_poll and end_poll.
    guard(|| unsafe { advance(cq.cast()) })
}

/// Takes the next completion. ENOENT: there is none.
///
/// # Safety
/// A live extended CQ, and the caller has its turn.
unsafe fn advance(cq: *mut CqEx) -> Result<(), Errno> {
    // SAFETY: the caller passes a live CQ and has its turn, so no other thread uses `wc` and
    // `stamp`, which do not overlap; `to` has one element, so poll() writes one completion at most.
    unsafe {
        let to = &mut *(&raw mut (*cq).wc).cast::<[MaybeUninit<ibv_wc>; 1]>();
        if poll::poll(cq_key(cq.cast()), to, Some(&mut (*cq).stamp))? == 0 {
            return Err(Errno(libc::ENOENT));
        }
        ((*cq).ex.wr_id, (*cq).ex.status) = ((*cq).wc.wr_id, (*cq).wc.status);
    }
    Ok(())
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the program passes a CQ that create_cq_ex returned.
    unsafe { (*cq.cast::<CqEx>()).turn.give() };
}

/// Functions that read one field of the completion, or of its time.
macro_rules! readers {
    ($part:ident: $of:ty => $($name:ident -> $ty:ty = $field:expr;)*) => { $(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ty {
            let field: fn(&$of) -> $ty = $field;
            // SAFETY: the program passes a CQ that create_cq_ex returned, between start_poll and end_poll.
            field(unsafe { &(*cq.cast::<CqEx>()).$part })
        }
    )* };
}

readers! { stamp: Stamp =>
    read_completion_ts -> u64 = |stamp| stamp.ticks;
    read_completion_wallclock_ns -> u64 = |stamp| stamp.wall;
}

readers! { wc: ibv_wc =>
    read_opcode -> ibv_wc_opcode = |wc| wc.opcode;
    read_vendor_err -> u32 = |wc| wc.vendor_err;
    read_byte_len -> u32 = |wc| wc.byte_len;
    // SAFETY: both members of the union are u32; any value is valid.
    read_imm_data -> u32 = |wc| unsafe { wc.imm.imm_data };
    read_qp_num -> u32 = |wc| wc.qp_num;
    read_src_qp -> u32 = |wc| wc.src_qp;
    read_wc_flags -> u32 = |wc| wc.wc_flags;
    read_slid -> u32 = |wc| wc.slid.into();
    read_sl -> u8 = |wc| wc.sl;
    read_dlid_path_bits -> u8 = |wc| wc.dlid_path_bits;
}
