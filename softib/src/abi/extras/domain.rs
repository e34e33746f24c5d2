//! Thread domains and parent domains (ibv_alloc_td(3), ibv_alloc_parent_domain(3)).
//!
//! A parent domain stands for the protection domain it was made from: its C struct carries that
//! one's index, so what is made with either works with the other. A thread domain is a promise of
//! the program that this device has no use for: the engine has one lock, biased to the thread that
//! uses it most (`engine::lock`). Allocators are accepted and never asked: queues lie in the
//! segment, where peers find them, and memory of the program is no place for them.

use crate::abi::guard::{guard, guard_ptr};
use crate::abi::handle::{context_key, engine, pd_key, use_context, use_pd};
use crate::engine::state::State;
use crate::errno::Errno;
use crate::objects::CBox;
use crate::objects::parent::{Parent, Td};
use crate::objects::world::World;
use rdma_sys::*;
use std::ffi::c_int;

/// `ibv_alloc_td(3)`.
pub unsafe extern "C" fn alloc_td(context: *mut ibv_context, init: *mut ibv_td_init_attr) -> *mut ibv_td {
    guard_ptr(|| {
        // SAFETY: the program passes a valid pointer.
        if unsafe { (*init).comp_mask } != 0 {
            return Err(Errno::INVAL);
        }
        use_context(&mut engine()?.enter().w, context_key(context), 1)?;
        Ok(Box::into_raw(Box::new(Td { context, users: 0 })).cast())
    })
}

/// `verbs_context.dealloc_td`. EBUSY: parent domains have it.
pub unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    guard(|| {
        let td = td.cast::<Td>();
        let mut state = engine()?.enter();
        // SAFETY: the program passes a thread domain of ours; its count changes under the lock only.
        if unsafe { (*td).users } > 0 {
            return Err(Errno::BUSY);
        }
        // SAFETY: made by alloc_td, given back once by the rules of the API.
        let td = unsafe { Box::from_raw(td) };
        use_context(&mut state.w, context_key(td.context), -1)
    })
}

/// `ibv_alloc_parent_domain(3)`.
pub unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    guard_ptr(|| {
        // SAFETY: the program passes a valid pointer.
        let attr = unsafe { &*attr };
        let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
        let allocators = attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0;
        if attr.comp_mask & !known != 0
            || allocators && (attr.alloc.is_none() || attr.free.is_none())
            || attr.pd.is_null()
        {
            return Err(Errno::INVAL);
        }
        let mut state = engine()?.enter();
        let (w, key) = (&mut state.w, pd_key(attr.pd));
        let device = w.device(context_key(context));
        let of = w.pds.get(key).map(|pd| w.device(pd.context));
        if of != Some(device) || is_parent(w, attr.pd) {
            return Err(Errno::INVAL);
        }
        use_pd(w, key, 1);
        let td = (!attr.td.is_null()).then_some(attr.td.cast::<Td>());
        if let Some(td) = td {
            // SAFETY: the program passes a thread domain of ours; its count changes under the lock only.
            unsafe { (*td).users += 1 };
        }
        let c = CBox::new(ibv_pd { context, handle: key as u32 });
        let pointer = c.as_ptr();
        w.parents.push(Parent { c, td });
        Ok(pointer)
    })
}

/// Whether a protection domain that a program passed is a parent domain.
pub fn is_parent(w: &World, pd: *mut ibv_pd) -> bool {
    w.parents.iter().any(|parent| parent.c.as_ptr() == pd)
}

/// `ibv_dealloc_pd` for a parent domain. EBUSY: objects were made with it.
pub fn dealloc_parent(state: &mut State, pd: *mut ibv_pd) -> Result<(), Errno> {
    if is_used(state, pd) {
        return Err(Errno::BUSY);
    }
    let w = &mut state.w;
    let at = w.parents.iter().position(|parent| parent.c.as_ptr() == pd).ok_or(Errno::INVAL)?;
    let gone = w.parents.swap_remove(at);
    if let Some(td) = gone.td {
        // SAFETY: a thread domain lives as long as parent domains have it (dealloc_td refuses).
        unsafe { (*td).users -= 1 };
    }
    use_pd(w, pd_key(pd), -1);
    Ok(())
}

/// Whether an object names this very domain. Objects that do not (address handles) need only what it stands for.
fn is_used(state: &mut State, pd: *mut ibv_pd) -> bool {
    let State { qps, w, .. } = state;
    // SAFETY: C structs that their objects own.
    let queues = qps.iter_mut().any(|qp| unsafe { (*qp.pointer()).pd } == pd)
        // SAFETY: an SRQ in the table owns its C struct, which is alive as long as the entry.
        || w.srqs.iter().any(|(_, srq)| unsafe { (*srq.c.as_ptr()).pd } == pd)
        || w.cqs.iter().any(|(_, cq)| cq.parent() == pd);
    queues || w.mrs.is_used(pd)
}
