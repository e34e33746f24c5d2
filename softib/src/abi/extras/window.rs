//! Memory windows: allocate, bind, free (ibv_alloc_mw(3), ibv_bind_mw(3)).

use super::binding;
use crate::abi::guard::{guard, guard_ptr};
use crate::abi::handle::{engine, pd_key, use_pd};
use crate::abi::ops;
use crate::engine::initiators::wait_for_initiators;
use crate::errno::Errno;
use crate::objects::CBox;
use crate::objects::mr::Special;
use crate::objects::mw::Window;
use crate::shm::mrtable::index_of;
use rdma_sys::*;
use std::ffi::c_int;

/// `ibv_alloc_mw(3)`.
pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    guard_ptr(|| {
        if !matches!(kind, IBV_MW_TYPE_1 | IBV_MW_TYPE_2) {
            return Err(Errno::INVAL);
        }
        let mut state = engine()?.enter();
        let (w, pd_at) = (&mut state.w, pd_key(pd));
        w.pds.get(pd_at).ok_or(Errno::INVAL)?;
        if w.is_iwarp() {
            return Err(Errno::OPNOTSUPP);
        }
        // SAFETY: the program passes a PD of ours.
        let context = unsafe { (*pd).context };
        let mut pointer = std::ptr::null_mut();
        w.mrs.add_special(&w.segment, |rkey| {
            let handle = index_of(rkey) as u32;
            let c = CBox::new(ibv_mw { context, pd, rkey, handle, r#type: kind });
            pointer = c.as_ptr();
            Special::Window(Window::new(c, kind, pd_at as u32))
        })?;
        use_pd(w, pd_at, 1);
        Ok(pointer)
    })
}

/// `ibv_dealloc_mw`: what was bound is free; peers that are just using it are waited for.
pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    guard(|| {
        // SAFETY: the program passes a window of ours.
        let (index, pd) = unsafe { ((*mw).handle as usize, pd_key((*mw).pd)) };
        let last = {
            let mut state = engine()?.enter();
            let w = &mut state.w;
            let window = w.mrs.window(index).ok_or(Errno::INVAL)?;
            let last = window.exposed().map(|exposed| exposed.region.key);
            w.mrs.unbind(&w.segment, index);
            last
        };
        if let Some(key) = last {
            wait_for_initiators(engine()?, key)?;
        }
        let mut state = engine()?.enter();
        state.w.mrs.free((index as u32) << 8);
        use_pd(&mut state.w, pd, -1);
        Ok(())
    })
}

/// `ibv_bind_mw`: posts the bind of a type 1 window, and puts its next key into the C struct.
pub unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    guard(|| {
        // SAFETY: the program passes valid pointers, and a window of ours.
        let (bind, rkey) = unsafe { (&*bind, next_key((*mw).rkey)) };
        // SAFETY: the program passes a window of ours, which is live during the call.
        if unsafe { (*mw).r#type } != IBV_MW_TYPE_1
            || bind.bind_info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0
        {
            return Err(Errno::INVAL);
        }
        let mut wr = ibv_send_wr { wr_id: bind.wr_id, opcode: IBV_WR_BIND_MW, ..Default::default() };
        wr.send_flags = bind.send_flags & !IBV_SEND_INLINE;
        wr.rare.bind_mw = ibv_send_wr_bind_mw { mw, rkey, bind_info: bind.bind_info };
        ops::post_bind(qp, &wr, binding::check(mw, rkey, &bind.bind_info)?)?;
        // SAFETY: the program passes a window of ours, which is live during the call; no reference
        // to its struct exists here.
        unsafe { (*mw).rkey = rkey };
        Ok(())
    })
}

/// The next key of a window: the lower 8 bits count (ibv_inc_rkey(3)).
fn next_key(rkey: u32) -> u32 {
    rkey & !0xff | u32::from((rkey as u8).wrapping_add(1))
}

/// Frees the type 2 windows of a queue pair that goes away, and waits for peers that are just using them.
pub fn forget_queue_pair(index: usize) -> Result<(), Errno> {
    let keys = {
        let mut state = engine()?.enter();
        let num = state.qps.get_mut(index).ok_or(Errno::INVAL)?.num;
        let w = &mut state.w;
        w.mrs.unbind_all_of(&w.segment, num)
    };
    let engine = engine()?;
    keys.into_iter().try_for_each(|key| wait_for_initiators(engine, key))
}
