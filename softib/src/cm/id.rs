//! Ids with what hangs on them: channels of their own, queue pairs.

use super::queues::{checked, drop_queues, make_queues};
use super::sync::drop_event;
use super::world::{CId, Owned, World, channel_key, id_key, world};
use super::{channel, device, listen, multicast, qp, srq};
use crate::abi::guard::guard_minus;
use crate::driver_table;
use crate::errno::Errno;
use crate::shm::ports::Space;
use rdma_cm_sys::*;
use rdma_sys::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Makes an id; without a channel it gets one of its own.
///
/// # Safety
/// `channel` is null or a channel of ours.
pub unsafe fn make(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    space: u32,
    qp_type: Option<u32>,
) -> Result<*mut rdma_cm_id, Errno> {
    let space = Space::parse(space)?;
    let usual = if space == Space::Udp { IBV_QPT_UD } else { IBV_QPT_RC };
    let qp_type = qp_type.unwrap_or(usual);
    let mut world = world();
    let sync = channel.is_null();
    // SAFETY: the caller passes null or a channel of ours, which is not null in this branch.
    let channel = if sync { channel::create(&mut world)? } else { unsafe { channel_key(channel)? } };
    let key = listen::new_id(&mut world, channel, sync, space, qp_type);
    let c = world.id(key)?.c();
    // SAFETY: our own struct, not yet handed out.
    unsafe { (*c).context = context };
    Ok(c)
}

/// `rdma_migrate_id`: events come to another channel, or to one of the id's own, from now on.
///
/// # Safety
/// An id of ours; `channel` is null or a channel of ours.
pub unsafe fn migrate(id: *mut CId, channel: *mut rdma_event_channel) -> Result<(), Errno> {
    // SAFETY: the caller passes an id of ours that is not destroyed.
    let key = unsafe { id_key(id.cast())? };
    drop_event(id.cast());
    let mut world = world();
    let sync = channel.is_null();
    // SAFETY: the caller passes null or a channel of ours, which is not null in this branch.
    let to = if sync { channel::create(&mut world)? } else { unsafe { channel_key(channel)? } };
    world.unwatch_id(key);
    let (from, was_sync) = {
        let id = world.id(key)?;
        (std::mem::replace(&mut id.channel, to), std::mem::replace(&mut id.sync, sync))
    };
    let mine = |e: &super::world::Pending| e.listener.unwrap_or(e.id) == key;
    let old = world.channels.get_mut(from).map(|c| std::mem::take(&mut c.queue)).unwrap_or_default();
    let (moved, left): (Vec<_>, Vec<_>) = old.into_iter().partition(mine);
    if let Some(channel) = world.channels.get_mut(from) {
        channel.queue = left.into();
    }
    moved.into_iter().for_each(|event| world.push(event));
    let c = world.channels.get(to).ok_or(Errno::INVAL)?.c.as_ptr().cast();
    // SAFETY: our own struct.
    unsafe { (*world.id(key)?.c()).channel = c };
    if was_sync {
        world.channels.try_remove(from);
    }
    world.watch_id(key)?;
    world.arm(to);
    Ok(())
}

/// The domain for objects of an id that come without one.
pub fn default_pd(key: usize) -> Result<*mut ibv_pd, Errno> {
    let mut world = world();
    // SAFETY: our own struct.
    let context = unsafe { (*world.id(key)?.c()).verbs };
    if context.is_null() {
        return Err(Errno::INVAL);
    }
    device::default_pd(&mut world, context)
}

/// `rdma_create_qp`: the QP, and whatever is missing for it, in the state that the id's service starts with.
pub fn create_qp(key: usize, pd: *mut ibv_pd, init: &mut ibv_qp_init_attr) -> Result<(), Errno> {
    let pd = if pd.is_null() { default_pd(key)? } else { pd };
    create_with(key, pd, init, |world, init| {
        if init.qp_type == IBV_QPT_XRC_RECV {
            return srq::create_receive_qp(world, pd, init.qp_context, null_mut());
        }
        // SAFETY: objects of one context, which the program vouches for.
        checked(unsafe { (driver_table().create_qp)(pd, init) })
    })
}

fn create_with(
    key: usize,
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    make: impl FnOnce(&mut World, &mut ibv_qp_init_attr) -> Result<*mut ibv_qp, Errno>,
) -> Result<(), Errno> {
    let mut world = world();
    let id = world.id(key)?;
    let c = id.c();
    // SAFETY: our own struct.
    let (has_qp, context, wanted, srq) = unsafe { (!(*c).qp.is_null(), (*c).verbs, (*c).qp_type, (*c).srq) };
    if has_qp || context.is_null() || init.qp_type != wanted {
        return Err(Errno::INVAL);
    }
    // SAFETY: the program passes a PD of ours, or it is the default one; contexts of ours.
    if unsafe { (*(*pd).context).device != (*context).device } {
        return Err(Errno::INVAL);
    }
    // A receive queue pair of an XRC domain has no queues: its messages go to SRQs and complete there.
    if wanted != IBV_QPT_XRC_RECV {
        if init.srq.is_null() {
            init.srq = srq;
        }
        id.owns = Owned { srq_cq: id.owns.srq_cq, ..make_queues(c, context, init)? };
    }
    let owns = id.owns;
    let qp = make(&mut world, init).inspect_err(|_| drop_queues(c, owns))?;
    let id = world.id(key)?;
    // SAFETY: our own struct, and a QP just made.
    unsafe { ((*c).qp, (*c).pd, id.ours.qpn) = (qp, pd, (*qp).qp_num) };
    let states: &[u32] =
        if id.datagram { &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] } else { &[IBV_QPS_INIT] };
    qp::walk(id, states).inspect_err(|_| {
        // SAFETY: the QP was made above and the program has not been given it, so nothing else uses
        // it; `c` is our own struct.
        unsafe {
            (driver_table().destroy_qp)(qp);
            (*c).qp = null_mut();
        }
        drop_queues(c, id.owns);
    })
}

/// `rdma_create_qp_ex`: the same for extended attributes.
pub unsafe extern "C" fn create_qp_ex(id: *mut rdma_cm_id, init: *mut ibv_qp_init_attr_ex) -> c_int {
    guard_minus(|| {
        // SAFETY: an id of ours and attributes by the rules of the API.
        let (key, ex) = unsafe { (id_key(id)?, &mut *init) };
        if ex.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || ex.pd.is_null() {
            ex.pd = default_pd(key)?;
            ex.comp_mask |= IBV_QP_INIT_ATTR_PD;
        }
        let pd = ex.pd;
        let mut plain = ibv_qp_init_attr {
            qp_context: ex.qp_context,
            send_cq: ex.send_cq,
            recv_cq: ex.recv_cq,
            srq: ex.srq,
            cap: ex.cap,
            qp_type: ex.qp_type,
            sq_sig_all: ex.sq_sig_all,
        };
        create_with(key, pd, &mut plain, |world, plain| {
            if ex.qp_type == IBV_QPT_XRC_RECV {
                let named = ex.comp_mask & IBV_QP_INIT_ATTR_XRCD != 0;
                let xrcd = if named { ex.xrcd } else { null_mut() };
                return srq::create_receive_qp(world, pd, ex.qp_context, xrcd);
            }
            (ex.send_cq, ex.recv_cq, ex.srq) = (plain.send_cq, plain.recv_cq, plain.srq);
            // SAFETY: an open context of ours, and objects that the program vouches for.
            checked(unsafe { ibv_create_qp_ex(driver_table(), (*pd).context, ex) })
        })
    })
}

/// `rdma_destroy_qp`.
pub fn destroy_qp(key: usize) -> Result<(), Errno> {
    let (c, owns) = {
        let mut world = world();
        let id = world.id(key)?;
        multicast::detach_all(id);
        let left = Owned { srq_cq: id.owns.srq_cq, ..Owned::default() };
        (id.c(), std::mem::replace(&mut id.owns, left))
    };
    // SAFETY: our own struct; the QP is live while the pointer is set.
    unsafe {
        let qp = std::mem::replace(&mut (*c).qp, null_mut());
        if !qp.is_null() {
            (driver_table().destroy_qp)(qp);
        }
    }
    drop_queues(c, owns);
    Ok(())
}
