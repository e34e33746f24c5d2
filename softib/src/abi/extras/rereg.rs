//! Memory regions that change: `ibv_rereg_mr`.
//!
//! The key stays. While the region changes it is invalid, so an initiator sees the old region, none, or the new one. Posted
//! receives that lie in it are looked at again: what has become wrong completes with an error on both sides, what
//! has become right is right. Regions at other addresses than their memory's, and null regions, stay as they are (EINVAL), and
//! so do regions with windows on them (EBUSY).

use crate::abi::handle::{engine, pd_key, use_pd};
use crate::abi::memory::check_access;
use crate::engine::initiators::wait_for_initiators;
use crate::engine::state::State;
use crate::errno::Errno;
use crate::objects::mr::Mrs;
use crate::objects::recvq::RecvQ;
use crate::shm::mrtable::Region;
use rdma_sys::*;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a region becomes. None: that part stays.
struct Change {
    range: Option<(*mut c_void, usize)>,
    pd: Option<*mut ibv_pd>,
    access: Option<u32>,
}

/// `ibv_rereg_mr`: 0, or an ibv_rereg_mr_err_code and errno. A refused change leaves the region as it was.
///
/// # Safety
/// A live MR of this device, and a live PD if the flags ask for one.
pub unsafe extern "C" fn rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let change = parse(flags as u32, pd, addr, length, access as u32)?;
        // SAFETY: the program passes a live MR, and a live PD where the flags ask for one: only
        // then is it in `change` (see `parse`).
        unsafe { apply(mr, &change) }.map_err(|errno| (IBV_REREG_MR_ERR_CMD, errno))
    }));
    match result {
        Ok(Ok(())) => 0,
        Ok(Err((code, errno))) => {
            errno.set();
            code
        }
        Err(_) => IBV_REREG_MR_ERR_CMD,
    }
}

fn parse(
    flags: u32,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: u32,
) -> Result<Change, (c_int, Errno)> {
    let has = |flag: u32| flags & flag != 0;
    let zero_based = access & IBV_ACCESS_ZERO_BASED != 0;
    let wrong = zero_based
        || flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0
        || has(IBV_REREG_MR_CHANGE_TRANSLATION) && (length == 0 || addr.is_null())
        || has(IBV_REREG_MR_CHANGE_TRANSLATION) && (addr as usize).checked_add(length).is_none()
        || has(IBV_REREG_MR_CHANGE_PD) && pd.is_null()
        || !has(IBV_REREG_MR_CHANGE_ACCESS) && access != 0;
    let checked = if has(IBV_REREG_MR_CHANGE_ACCESS) { check_access(access).map(Some) } else { Ok(None) };
    match checked {
        Ok(access) if !wrong => Ok(Change {
            range: has(IBV_REREG_MR_CHANGE_TRANSLATION).then_some((addr, length)),
            pd: has(IBV_REREG_MR_CHANGE_PD).then_some(pd),
            access,
        }),
        _ => Err((IBV_REREG_MR_ERR_INPUT, Errno::INVAL)),
    }
}

/// # Safety
/// As for [`rereg_mr`].
unsafe fn apply(mr: *mut ibv_mr, change: &Change) -> Result<(), Errno> {
    // SAFETY: the caller passes a live MR, whose C struct the program leaves alone during the call.
    let (c, context) = unsafe { (&mut *mr, (*mr).context) };
    let new_pd = change.pd.unwrap_or(c.pd);
    // SAFETY: the new PD is live, for the flags asked for it; the region's own is one that the
    // program keeps while the region exists.
    if unsafe { (*new_pd).context } != context {
        return Err(Errno::INVAL);
    }
    let old = {
        let mut state = engine()?.enter();
        state.w.pds.get(pd_key(new_pd)).ok_or(Errno::INVAL)?;
        let w = &mut state.w;
        if !w.mrs.is_plain(c.handle) {
            return Err(Errno::INVAL);
        }
        if w.mrs.has_windows(c.handle) {
            return Err(Errno::BUSY);
        }
        w.mrs.invalidate(&w.segment, c.handle)?
    };
    wait_for_initiators(engine()?, c.handle)?;
    let (addr, length) = change.range.unwrap_or((c.addr, c.length));
    let region = Region {
        key: c.handle,
        access: change.access.unwrap_or(old.access),
        pd: pd_key(new_pd) as u32,
        addr: addr as u64,
        len: length as u64,
    };
    let mut state = engine()?.enter();
    let w = &mut state.w;
    if change.range.is_some() {
        w.mrs.note_mappings(&w.segment, region.addr, region.len);
    }
    w.mrs.replace(&w.segment, region);
    use_pd(w, pd_key(c.pd), -1);
    use_pd(w, pd_key(new_pd), 1);
    (c.pd, c.addr, c.length) = (new_pd, addr, length);
    recheck_receives(&mut state, region.key);
    Ok(())
}

/// Looks at posted receives in region `key` again.
fn recheck_receives(state: &mut State, key: u32) {
    let State { qps, w, .. } = state;
    let check = |mrs: &Mrs, queue: &mut RecvQ, pd: usize| {
        queue.recheck(|sges| {
            let concerned = sges.iter().any(|sge| sge.lkey == key);
            concerned.then(|| sges.iter().all(|sge| mrs.allows(sge, pd as u32, true)))
        });
    };
    for qp in qps.iter_mut() {
        if let Some(rq) = qp.rq.as_mut() {
            check(&w.mrs, rq, qp.pd);
        }
    }
    for (_, srq) in w.srqs.iter_mut() {
        check(&w.mrs, &mut srq.queue, srq.pd);
    }
}
