//! Receive queue pairs of an XRC domain: `ibv_create_qp_ex` (XRC_RECV), `ibv_open_qp`, and modify, query and destroy of what
//! those return.
//!
//! The queue pair is in the domain's segment; what a program has is a handle. Its `ibv_qp.handle` has the upper bit set, so that no
//! call takes it for a queue pair of this process: there is nothing to post to it.

use super::event;
use super::guard::guard_ptr;
use super::handle::{context_key, engine, use_context, xrcd_key};
use super::values::{check_values, port_of, store};
use crate::errno::Errno;
use crate::fabric::address::Address;
use crate::faults::{Call, calls as faults};
use crate::objects::events::Subject;
use crate::objects::qp::number;
use crate::objects::world::World;
use crate::objects::xrc::Handle;
use crate::objects::{CBox, qp_state, zeroed};
use crate::shm::domain::{DomainFile, SharedQp};
use crate::shm::layout::{QP_BITS, QPS};
use crate::shm::shortage::is_shortage;
use rdma_sys::*;
use std::ffi::c_void;

/// Bit of a handle in `ibv_qp.handle`.
const HANDLE: u32 = 1 << 31;

/// The handle that a program's QP is, if it is one.
pub fn handle_key(qp: *mut ibv_qp) -> Option<usize> {
    // SAFETY: the program passes a QP of ours.
    let handle = unsafe { (*qp).handle };
    (handle & HANDLE != 0).then_some((handle & !HANDLE) as usize)
}

/// Makes a receive queue pair; this process has the first handle of it.
pub fn create_receive(context: *mut ibv_context, init: &ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    faults::fate(Call::CreateQp)?;
    let foreign = !(init.send_cq.is_null() && init.recv_cq.is_null() && init.srq.is_null());
    let has = |bit: u32| init.comp_mask & bit != 0;
    let wrong = foreign || has(IBV_QP_INIT_ATTR_PD) || !has(IBV_QP_INIT_ATTR_XRCD) || init.xrcd.is_null();
    // SAFETY: the program passes null or an XRCD of ours.
    if wrong || unsafe { (*init.xrcd).context } != context {
        return Err(Errno::INVAL);
    }
    let mut state = engine()?.enter();
    let w = &mut state.w;
    let key = w.xrc.xrcds.get(xrcd_key(init.xrcd)).ok_or(Errno::INVAL)?.domain;
    let domain = w.xrc.domains.get_mut(key).ok_or(Errno::INVAL)?;
    let locked = domain.file.lock()?;
    locked.purge(|(slot, incarnation)| w.peers.is_gone(slot, incarnation));
    let index = locked.create(domain.holder)?;
    drop(locked);
    insert(w, init.xrcd, index, init.qp_context)
}

/// `verbs_context.open_qp`: one more handle of a receive queue pair.
pub unsafe extern "C" fn open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    // SAFETY: the program passes a valid pointer.
    guard_ptr(|| open(context, unsafe { &*attr }))
}

fn open(context: *mut ibv_context, attr: &ibv_qp_open_attr) -> Result<*mut ibv_qp, Errno> {
    faults::fate(Call::OpenQp)?;
    const WANTED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    if attr.comp_mask & !(WANTED | IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let whole = attr.comp_mask & WANTED == WANTED && attr.qp_type == IBV_QPT_XRC_RECV && !attr.xrcd.is_null();
    // SAFETY: the program passes null or an XRCD of ours.
    if !whole || unsafe { (*attr.xrcd).context } != context {
        return Err(Errno::INVAL);
    }
    let mut state = engine()?.enter();
    let w = &mut state.w;
    let key = w.xrc.xrcds.get(xrcd_key(attr.xrcd)).ok_or(Errno::INVAL)?.domain;
    let domain = w.xrc.domains.get_mut(key).ok_or(Errno::INVAL)?;
    let (slot, index) = ((attr.qp_num >> QP_BITS) as usize, attr.qp_num as usize % QPS);
    if slot != domain.file.slot {
        return Err(Errno::INVAL);
    }
    let locked = domain.file.lock()?;
    // The handles of the dead do not count: a queue pair that only they held is gone.
    locked.purge(|(slot, incarnation)| w.peers.is_gone(slot, incarnation));
    locked.mend(index)?;
    domain.file.look_up(index).ok_or(Errno::INVAL)?;
    locked.open(index, domain.holder);
    drop(locked);
    let named = attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0;
    insert(w, attr.xrcd, index, if named { attr.qp_context } else { std::ptr::null_mut() })
}

/// Makes a handle of a queue pair whose domain knows us as a holder of it.
fn insert(
    w: &mut World,
    xrcd: *mut ibv_xrcd,
    index: usize,
    qp_context: *mut c_void,
) -> Result<*mut ibv_qp, Errno> {
    let key = xrcd_key(xrcd);
    let domain_at = w.xrc.xrcds.get(key).ok_or(Errno::INVAL)?.domain;
    let domain = w.xrc.domains.get_mut(domain_at).ok_or(Errno::INVAL)?;
    *domain.handles.entry(index).or_default() += 1;
    let seen = domain.file.events(index);
    // SAFETY: ibv_qp is plain C data; zeroes are valid, also for its mutex and cond on Linux.
    let mut c: ibv_qp = unsafe { zeroed() };
    // SAFETY: the program passes an XRCD of ours.
    (c.context, c.qp_context) = (unsafe { (*xrcd).context }, qp_context);
    (c.qp_num, c.qp_type) = (number(domain.file.slot, index), IBV_QPT_XRC_RECV);
    c.state = domain.file.look_up(index).map_or(IBV_QPS_RESET, |(_, qp)| qp.attr.qp_state);
    let context = context_key(c.context);
    let entry = w.xrc.handles.vacant_entry();
    c.handle = HANDLE | entry.key() as u32;
    let c = CBox::new(c);
    let handle = Handle { c, context, xrcd: key, domain: domain_at, index, seen, async_events: 0 };
    let pointer = handle.pointer();
    entry.insert(handle);
    w.xrc.use_xrcd(key, 1);
    use_context(w, context, 1)?;
    Ok(pointer)
}

/// `ibv_modify_qp` of the queue pair that a handle is of.
pub fn modify(w: &mut World, key: usize, attr: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
    let handle = w.xrc.handles.get(key).ok_or(Errno::INVAL)?;
    let (index, c, handle_context) = (handle.index, handle.pointer(), handle.context);
    let file = w.xrc.domains.get(handle.domain).ok_or(Errno::INVAL)?.file.clone();
    let locked = file.lock()?;
    locked.mend(index)?;
    let (_, mut qp) = file.look_up(index).ok_or(Errno::INVAL)?;
    let device = w.device(handle_context);
    change(w, &mut qp, device, attr, mask)?;
    locked.write(index, &qp);
    // SAFETY: our own C struct, alive as long as its handle; programs only read `state`.
    unsafe { (*c).state = qp.attr.qp_state };
    Ok(())
}

fn change(
    w: &mut World,
    qp: &mut SharedQp,
    device: usize,
    attr: &ibv_qp_attr,
    mask: u32,
) -> Result<(), Errno> {
    let (from, mask) = (qp.attr.qp_state, qp_state::applicable(IBV_QPT_XRC_RECV, mask));
    if mask & IBV_QP_CUR_STATE != 0 && attr.cur_qp_state != from {
        return Err(Errno::INVAL);
    }
    let to = if mask & IBV_QP_STATE != 0 { attr.qp_state } else { from };
    qp_state::check(IBV_QPT_XRC_RECV, from, to, mask)?;
    let port = port_of(&w.ports, device, &qp.attr, attr, mask)?;
    check_values(attr, mask, &w.ports, port)?;
    match to {
        IBV_QPS_RESET => {
            let generation = qp.generation.wrapping_add(1);
            *qp = SharedQp {
                generation,
                dest_incarnation: 0,
                dest_port: 0,
                pkey: 0,
                attr: ibv_qp_attr::default(),
            };
        }
        IBV_QPS_ERR => qp.attr.qp_state = to,
        _ => {
            store(&mut qp.attr, attr, mask);
            qp.attr.qp_state = to;
            if mask & (IBV_QP_DEST_QPN | IBV_QP_AV) != 0 {
                (qp.dest_incarnation, qp.dest_port) = sender_of(w, port, &qp.attr)?.unwrap_or_default();
            }
            qp.pkey = w.ports.pkey(qp.attr.pkey_index);
        }
    }
    Ok(())
}

/// The process that has the QP's destination and a port with its address, and which port that is;
/// None: no process has, so there is silence.
fn sender_of(w: &World, port: u8, attr: &ibv_qp_attr) -> Result<Option<(u64, u8)>, Errno> {
    let (incarnation, cards) = match w.peers.identify((attr.dest_qp_num >> QP_BITS) as usize) {
        Ok(found) => found,
        Err(error) if is_shortage(error) => return Err(error),
        Err(_) => return Ok(None),
    };
    let theirs = Address::from(&attr.ah_attr).find(w.ports.card(port), &cards);
    Ok(theirs.map(|theirs| (incarnation, theirs)))
}

/// `ibv_query_qp` of the queue pair that a handle is of.
pub fn query(w: &World, key: usize) -> Result<(ibv_qp_attr, ibv_qp_init_attr), Errno> {
    let handle = w.xrc.handles.get(key).ok_or(Errno::INVAL)?;
    let file = &w.xrc.domains.get(handle.domain).ok_or(Errno::INVAL)?.file;
    let found = read(file, handle.index)?;
    // SAFETY: our own C struct, alive as long as its handle.
    let qp_context = unsafe { (*handle.pointer()).qp_context };
    Ok((found.attr, ibv_qp_init_attr { qp_context, qp_type: IBV_QPT_XRC_RECV, ..Default::default() }))
}

/// A copy of a queue pair that no process is writing: a writer is waited for, and what one that
/// died has left is mended.
fn read(file: &DomainFile, index: usize) -> Result<SharedQp, Errno> {
    if let Some((_, found)) = file.look_up(index) {
        return Ok(found);
    }
    let locked = file.lock()?;
    locked.mend(index)?;
    Ok(file.look_up(index).ok_or(Errno::INVAL)?.1)
}

/// `ibv_destroy_qp` of a handle; the queue pair goes with the last one of all processes.
pub fn destroy(qp: *mut ibv_qp, key: usize) -> Result<(), Errno> {
    let delivered = {
        let mut state = engine()?.enter();
        let w = &mut state.w;
        let handle = w.xrc.handles.get(key).ok_or(Errno::INVAL)?;
        let (context, delivered) = (handle.context, handle.async_events);
        event::forget(w, context, Subject::Handle(key));
        delivered
    };
    event::wait_for_qp_acks(qp, delivered);
    let mut state = engine()?.enter();
    let w = &mut state.w;
    let handle = w.xrc.handles.try_remove(key).ok_or(Errno::INVAL)?;
    event::forget(w, handle.context, Subject::Handle(key));
    let domain = w.xrc.domains.get_mut(handle.domain).ok_or(Errno::INVAL)?;
    let left = domain.handles.entry(handle.index).or_insert(1);
    *left -= 1;
    if *left == 0 {
        domain.handles.remove(&handle.index);
        domain.file.lock()?.close(handle.index, domain.holder);
    }
    w.xrc.use_xrcd(handle.xrcd, -1);
    use_context(w, handle.context, -1)
}
