//! From the C structs that programs pass to the objects that they stand for: indices, counts of users, gather lists.
//!
//! A C struct carries its object's index, mostly in `handle`.

use crate::engine::{self, Engine};
use crate::errno::Errno;
use crate::objects::world::World;
use crate::objects::xrc::XrcdC;
use rdma_sys::*;
use std::ffi::c_int;

/// The engine; ENODEV when no context is open (or in a fork child).
#[inline]
pub fn engine() -> Result<&'static Engine, Errno> {
    engine::current().ok_or(Errno::NODEV)
}

/// Counts an object in or out of its context.
pub fn use_context(w: &mut World, key: usize, delta: i32) -> Result<(), Errno> {
    let context = w.contexts.get_mut(key).ok_or(Errno::INVAL)?;
    context.users = context.users.saturating_add_signed(delta);
    Ok(())
}

/// Counts an object in or out of its protection domain.
pub fn use_pd(w: &mut World, key: usize, delta: i32) {
    if let Some(pd) = w.pds.get_mut(key) {
        pd.users = pd.users.saturating_add_signed(delta);
    }
}

/// Index of a PD that a program passed.
pub fn pd_key(pd: *mut ibv_pd) -> usize {
    // SAFETY: the program passes a PD of ours.
    unsafe { (*pd).handle as usize }
}

/// Index of a channel that a program passed.
pub fn channel_key(channel: *mut ibv_comp_channel) -> usize {
    // SAFETY: the program passes a channel of ours.
    unsafe { (*channel).refcnt as usize }
}

/// Index of the channel that a program passed for a CQ, if it did.
pub fn optional_channel(channel: *mut ibv_comp_channel) -> Option<usize> {
    (!channel.is_null()).then(|| channel_key(channel))
}

/// Index of a CQ that a program passed.
pub fn cq_key(cq: *mut ibv_cq) -> usize {
    // SAFETY: the program passes a CQ of ours.
    unsafe { (*cq).handle as usize }
}

/// Index of an SRQ that a program passed.
pub fn srq_key(srq: *mut ibv_srq) -> usize {
    // SAFETY: the program passes an SRQ of ours.
    unsafe { (*srq).handle as usize }
}

/// The index of one of our contexts.
pub fn context_key(context: *mut ibv_context) -> usize {
    // SAFETY: the program passes a context that open_device returned: the end of a verbs_context.
    unsafe {
        (*context.byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>())
            .r#priv
            .addr()
    }
}

/// Index of a QP that a program passed.
#[inline]
pub fn qp_index(qp: *mut ibv_qp) -> usize {
    // SAFETY: the program passes a QP of ours.
    unsafe { (*qp).handle as usize }
}

/// Index of an XRCD that a program passed.
pub fn xrcd_key(xrcd: *mut ibv_xrcd) -> usize {
    // SAFETY: the program passes an XRCD of ours: the beginning of an XrcdC.
    unsafe { (*xrcd.cast::<XrcdC>()).key }
}

/// # Safety
/// `list` has `count` elements.
#[inline]
pub unsafe fn sge_list<'a>(list: *const ibv_sge, count: c_int, limit: u32) -> Result<&'a [ibv_sge], Errno> {
    match count {
        0 => Ok(&[]),
        count if count < 0 || count as u32 > limit || list.is_null() => Err(Errno::INVAL),
        // SAFETY: the caller passes `count` elements at `list`, which is not null, and `count` is
        // above 0 (checked above).
        count => Ok(unsafe { std::slice::from_raw_parts(list, count as usize) }),
    }
}
