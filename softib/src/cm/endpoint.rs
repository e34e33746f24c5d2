//! Ids with what hangs on them: channels of their own, queue pairs, completion queues, listening endpoints.
//!
//! An id without a channel is synchronous: calls that end with an event wait for it, and keep it in `id.event` until the next
//! (rdma_create_id(3)).

use super::world::{CEvent, CId, Owned, Template, World, channel_key, id_key, world};
use super::{api, channel, device, listen, multicast, qp, srq};
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

/// Of a synchronous id: waits for the event that the call ends with.
pub fn complete(key: usize) -> Result<(), Errno> {
    let (c, own) = {
        let mut world = world();
        let id = world.id(key)?;
        if !id.sync {
            return Ok(());
        }
        (id.c(), id.channel)
    };
    drop_event(c);
    let event = channel::next_event_of(own)?;
    // SAFETY: our own struct, and an event just taken.
    let (kind, status) = unsafe {
        (*c).event = event;
        ((*event).event, (*event).status)
    };
    match (kind, status) {
        (_, 0) => Ok(()),
        (RDMA_CM_EVENT_REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, status) if status < 0 => Err(Errno(-status)),
        _ => Err(Errno(libc::ECONNREFUSED)),
    }
}

/// Acknowledges the event that a synchronous id keeps.
pub fn drop_event(c: *mut rdma_cm_id) {
    // SAFETY: our own struct; the event is ours until it is acknowledged, here.
    unsafe {
        let event = std::mem::replace(&mut (*c).event, null_mut());
        if !event.is_null() {
            api::ack_cm_event(event);
        }
    }
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

/// A fresh queue pair, or why there is none.
pub fn checked(qp: *mut ibv_qp) -> Result<*mut ibv_qp, Errno> {
    if qp.is_null() { Err(Errno::last()) } else { Ok(qp) }
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
    crate::abi::guard_minus(|| {
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

/// Completion queues, with channels, for a QP whose program brought none and whose id has none.
fn make_queues(
    c: *mut rdma_cm_id,
    context: *mut ibv_context,
    init: &mut ibv_qp_init_attr,
) -> Result<Owned, Errno> {
    let mut owns = Owned::default();
    // SAFETY: an open context of ours; our own struct.
    unsafe {
        if init.send_cq.is_null() {
            let (events, cq) = make_queue(context, init.cap.max_send_wr)?;
            ((*c).send_cq_channel, (*c).send_cq, init.send_cq, owns.send_cq) = (events, cq, cq, true);
        }
        if init.recv_cq.is_null() && init.qp_type != IBV_QPT_XRC_SEND {
            init.recv_cq = (*c).recv_cq;
        }
        if init.recv_cq.is_null() && init.qp_type != IBV_QPT_XRC_SEND {
            let made = make_queue(context, init.cap.max_recv_wr);
            if made.is_err() {
                drop_queues(c, owns);
            }
            let (events, cq) = made?;
            ((*c).recv_cq_channel, (*c).recv_cq, init.recv_cq, owns.recv_cq) = (events, cq, cq, true);
        }
    }
    Ok(owns)
}

pub fn make_queue(
    context: *mut ibv_context,
    depth: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    let table = driver_table();
    let depth = depth.clamp(1, 1 << 20).cast_signed();
    // SAFETY: an open context of ours.
    unsafe {
        let events = (table.create_comp_channel)(context);
        if events.is_null() {
            return Err(Errno::last());
        }
        let cq = (table.create_cq)(context, depth, null_mut(), events, 0);
        if cq.is_null() {
            let error = Errno::last();
            (table.destroy_comp_channel)(events);
            return Err(error);
        }
        ibv_req_notify_cq(cq, 0);
        Ok((events, cq))
    }
}

fn drop_queues(c: *mut rdma_cm_id, owns: Owned) {
    let table = driver_table();
    // SAFETY: our own struct; the queues are ours, and the QP that used them is gone.
    unsafe {
        if owns.send_cq {
            (table.destroy_cq)(std::mem::replace(&mut (*c).send_cq, null_mut()));
            (table.destroy_comp_channel)(std::mem::replace(&mut (*c).send_cq_channel, null_mut()));
        }
        if owns.recv_cq {
            drop_receive_queue(c);
        }
    }
}

/// Takes down a receive completion queue that was made for the id.
///
/// # Safety
/// An id of ours; the queue is ours, and what used it is gone.
pub unsafe fn drop_receive_queue(c: *mut rdma_cm_id) {
    let table = driver_table();
    // SAFETY: the caller passes an id of ours whose receive queue and its channel are of our
    // making, and what used them is gone; the pointers to both are cleared.
    unsafe {
        (table.destroy_cq)(std::mem::replace(&mut (*c).recv_cq, null_mut()));
        (table.destroy_comp_channel)(std::mem::replace(&mut (*c).recv_cq_channel, null_mut()));
    }
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

/// `rdma_create_ep`: an id for an address that `rdma_getaddrinfo` found, synchronous, with a QP unless it is to listen.
pub unsafe extern "C" fn create_ep(
    to: *mut *mut rdma_cm_id,
    found: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    crate::abi::guard_minus(|| {
        // SAFETY: pointers by the rules of the API.
        unsafe {
            let found = &*found;
            let qp_type = found.ai_qp_type as u32;
            if let Some(init) = init.as_mut() {
                init.qp_type = qp_type;
            }
            device::keep_open(&mut world());
            let id = make(null_mut(), null_mut(), found.ai_port_space as u32, Some(qp_type))?;
            let made = if found.ai_flags as u32 & RAI_PASSIVE != 0 {
                passive(id, found, pd, init)
            } else {
                active(id, found, pd, init)
            };
            match made {
                Ok(()) => to.write(id),
                Err(error) => {
                    destroy_ep(id);
                    return Err(error);
                }
            }
        }
        Ok(())
    })
}

/// # Safety
/// As `create_ep`.
unsafe fn passive(
    id: *mut rdma_cm_id,
    found: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: create_ep has just made `id`; the program passes it a result of rdma_getaddrinfo,
    // whose addresses are null or as long as their families say, and null or valid attributes.
    unsafe {
        let key = id_key(id)?;
        let address = super::address::parse(found.ai_src_addr)?;
        let mut world = world();
        world.bind(key, address)?;
        world.id(key)?.template = init.as_ref().map(|init| Template { pd, init: *init });
    }
    Ok(())
}

/// Long enough for every address and route there is: both are known at once.
const RESOLVE_MS: c_int = 2000;

/// # Safety
/// As `create_ep`.
unsafe fn active(
    id: *mut rdma_cm_id,
    found: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    let done = |code: c_int| if code == 0 { Ok(()) } else { Err(Errno::last()) };
    // SAFETY: create_ep has just made `id`; the program passes it a result of rdma_getaddrinfo,
    // whose addresses are null or as long as their families say, and null or valid attributes.
    unsafe {
        done(api::resolve_addr(id, found.ai_src_addr, found.ai_dst_addr, RESOLVE_MS))?;
        done(api::resolve_route(id, RESOLVE_MS))?;
        match init.as_mut() {
            Some(init) => create_qp(id_key(id)?, pd, init),
            None => Ok(()),
        }
    }
}

pub unsafe extern "C" fn destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: an id of ours by the rules of the API.
    unsafe {
        api::destroy_qp(id);
        srq::destroy_srq(id);
        api::destroy_id(id);
    }
}

/// `rdma_get_request`: waits for a request to a synchronous listener; the new id is synchronous, too.
pub unsafe extern "C" fn get_request(listener: *mut rdma_cm_id, to: *mut *mut rdma_cm_id) -> c_int {
    crate::abi::guard_minus(|| {
        // SAFETY: an id of ours by the rules of the API.
        let key = unsafe { id_key(listener)? };
        let (own, template) = {
            let mut world = world();
            let id = world.id(key)?;
            if !id.sync {
                return Err(Errno::INVAL);
            }
            (id.channel, id.template)
        };
        drop_event(listener);
        let event = channel::next_event_of(own)?;
        // SAFETY: an event just taken.
        let (id, kind, status) = unsafe { ((*event).id, (*event).event, (*event).status) };
        if kind != RDMA_CM_EVENT_CONNECT_REQUEST || status != 0 {
            // SAFETY: taken just now, given back once.
            unsafe { api::ack_cm_event(event) };
            return Err(Errno::INVAL);
        }
        adopt(key, event, id)?;
        if let Some(Template { pd, mut init }) = template {
            // SAFETY: an id of ours.
            create_qp(unsafe { id_key(id)? }, pd, &mut init)?;
        }
        // SAFETY: the program passes a valid pointer.
        unsafe { to.write(id) };
        Ok(())
    })
}

/// A request's id gets a channel of its own, and keeps the event for its private data.
fn adopt(listener: usize, event: *mut rdma_cm_event, id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: an id of ours, not yet handed out, and the event that brought it.
    unsafe {
        migrate(id.cast(), null_mut())?;
        let key = id_key(id)?;
        let mut world = world();
        // From now on the event counts for the new id: the listener may go first.
        (*event.cast::<CEvent>()).owner = key;
        world.id(listener)?.unacknowledged -= 1;
        world.id(key)?.unacknowledged += 1;
        (*id).event = event;
    }
    Ok(())
}
