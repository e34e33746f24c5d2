//! Memory regions: of this process's memory, at other addresses, of nothing; and their end.
//!
//! `ibv_reg_mr_iova` and zero-based regions give memory another address in work requests, here and at peers.

use super::guard::{guard, guard_ptr};
use super::handle::{engine, pd_key, use_pd};
use crate::engine::initiators::wait_for_initiators;
use crate::errno::Errno;
use crate::extras::{dm, mappings, paging};
use crate::faults::{Call, calls as faults};
use crate::objects::CBox;
use crate::objects::mr::Special;
use crate::objects::world::World;
use crate::shm::mrtable::Region;
use rdma_sys::*;
use std::ffi::{c_int, c_uint, c_void};

/// `ibv_reg_mr(3)`.
pub unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut ibv_mr {
    let zero_based = access as u32 & IBV_ACCESS_ZERO_BASED != 0;
    guard_ptr(|| register(pd, addr, len, if zero_based { 0 } else { addr as u64 }, access as u32))
}

/// `ibv_reg_mr_iova2`, and `ibv_reg_mr_iova`, whose last argument is an int: work requests call the memory's first byte `iova`.
///
/// # Safety
/// As for `ibv_reg_mr`.
pub unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    guard_ptr(|| register(pd, addr, len, iova, access))
}

fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: u32,
) -> Result<*mut ibv_mr, Errno> {
    faults::fate(Call::RegMr)?;
    let access = check_access(access)?;
    (addr as usize).checked_add(len).ok_or(Errno::INVAL)?;
    iova.checked_add(len as u64).ok_or(Errno::INVAL)?;
    let region = Region { key: 0, access, pd: pd_key(pd) as u32, addr: iova, len: len as u64 };
    let place = Place { addr, base: addr as u64, dm: None };
    insert(&mut engine()?.enter().w, pd, region, &place)
}

/// What is behind a region: the address that programs read in its C struct, and the memory.
pub struct Place {
    /// What `ibv_mr::addr` says.
    pub addr: *mut c_void,
    /// Where the memory begins.
    pub base: u64,
    /// Index of the device memory that it is part of.
    pub dm: Option<u32>,
}

/// Registers a checked region.
pub fn insert(w: &mut World, pd: *mut ibv_pd, region: Region, place: &Place) -> Result<*mut ibv_mr, Errno> {
    w.pds.get(pd_key(pd)).ok_or(Errno::INVAL)?;
    w.mrs.note_mappings(&w.segment, place.base, region.len);
    let key = if region.addr == place.base && place.dm.is_none() {
        let shared = w.shared.offset_of(place.base, region.len);
        w.mrs.register(&w.segment, region, shared)?
    } else {
        w.mrs.register_mapped(&w.segment, region, place.base, place.dm)?
    };
    Ok(hand_out(w, pd, key, place.addr, region.len as usize))
}

/// Makes the C struct of a key.
fn hand_out(w: &mut World, pd: *mut ibv_pd, key: u32, addr: *mut c_void, length: usize) -> *mut ibv_mr {
    use_pd(w, pd_key(pd), 1);
    // SAFETY: the program passes a PD of ours.
    let context = unsafe { (*pd).context };
    let c = CBox::new(ibv_mr { context, pd, addr, length, handle: key, lkey: key, rkey: key });
    let pointer = c.as_ptr();
    w.mrs.set_c(key, c);
    pointer
}

/// Remote write and atomics need local write (IBTA 10.6.3.1); rights that do not exist here are refused.
pub fn check_access(access: u32) -> Result<u32, Errno> {
    const KNOWN: u32 = IBV_ACCESS_LOCAL_WRITE
        | IBV_ACCESS_REMOTE_WRITE
        | IBV_ACCESS_REMOTE_READ
        | IBV_ACCESS_REMOTE_ATOMIC
        | IBV_ACCESS_MW_BIND
        | IBV_ACCESS_ZERO_BASED
        | IBV_ACCESS_ON_DEMAND
        | IBV_ACCESS_HUGETLB
        | IBV_ACCESS_OPTIONAL_RANGE;
    if access & IBV_ACCESS_ON_DEMAND != 0 && !paging::is_available() {
        return Err(Errno::OPNOTSUPP);
    }
    let writes = access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
    let fair = access & !KNOWN == 0 && (!writes || access & IBV_ACCESS_LOCAL_WRITE != 0);
    if fair { Ok(access) } else { Err(Errno::INVAL) }
}

/// `verbs_context.advise_mr`: faults parts of on-demand regions in. It is done when the call returns, flag or not.
pub unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ibv_advise_mr_advice,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    guard(|| {
        let known = [
            IBV_ADVISE_MR_ADVICE_PREFETCH,
            IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
            IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
        ];
        if !known.contains(&advice) || flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || list.is_null() || count == 0
        {
            return Err(Errno::INVAL);
        }
        // SAFETY: the program passes `count` elements.
        let sges = unsafe { std::slice::from_raw_parts(list, count as usize) };
        sges.iter().try_for_each(|sge| prefetch(pd_key(pd) as u32, advice, sge))
    })
}

fn prefetch(pd: u32, advice: ibv_advise_mr_advice, sge: &ibv_sge) -> Result<(), Errno> {
    let exposed = engine()?.enter().w.mrs.exposed(sge.lkey).ok_or(Errno(libc::ENOENT))?;
    let (region, place) = (exposed.region, exposed.place(sge.addr));
    let write = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    if write && region.access & IBV_ACCESS_LOCAL_WRITE == 0 {
        return Err(Errno(libc::EPERM));
    }
    let fits = region.pd == pd && region.covers(sge.addr, sge.length.into());
    if !fits || region.access & IBV_ACCESS_ON_DEMAND == 0 {
        return Err(Errno::INVAL);
    }
    match advice {
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => Ok(()),
        _ => paging::populate(place, sge.length.into(), write).map_err(|_| Errno(libc::EFAULT)),
    }
}

/// `ibv_dereg_mr`. EBUSY: a memory window is bound to it, or an initiator was stopped in the middle of using it, and it is to be
/// tried again.
pub unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    guard(|| {
        faults::fate(Call::DeregMr)?;
        // SAFETY: the program passes an MR of ours.
        let (key, pd) = unsafe { ((*mr).handle, pd_key((*mr).pd)) };
        {
            let mut state = engine()?.enter();
            let w = &mut state.w;
            if w.mrs.has_windows(key) {
                return Err(Errno::BUSY);
            }
            if !w.mrs.is_retiring(key) {
                w.mrs.invalidate(&w.segment, key)?;
            }
        }
        wait_for_initiators(engine()?, key)?;
        let mut state = engine()?.enter();
        if let Some(Special::Mapped { dm: Some(dm), .. }) = state.w.mrs.free(key) {
            dm::release(dm);
        }
        use_pd(&mut state.w, pd, -1);
        Ok(())
    })
}

/// `verbs_context.alloc_null_mr`: any address, of any length; reads as zeroes, swallows what is written (ibv_alloc_null_mr(3)).
pub unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    guard_ptr(|| {
        let nothing = paging::nothing()?;
        mappings::mark(nothing.zeroes, nothing.len);
        mappings::mark(nothing.sink, nothing.len);
        let mut state = engine()?.enter();
        let w = &mut state.w;
        w.pds.get(pd_key(pd)).ok_or(Errno::INVAL)?;
        let pd_at = pd_key(pd) as u32;
        let key = w.mrs.register_null(&w.segment, pd_at, nothing.len, nothing.zeroes, nothing.sink)?;
        Ok(hand_out(w, pd, key, std::ptr::null_mut(), usize::MAX))
    })
}
