//! The C functions: guard against unwinding, turn pointers into indices, call the world.
//!
//! All return 0, or -1 or a null pointer with errno set. Programs vouch for the pointers that they pass, as in librdmacm.

use super::message::Side;
use super::world::{ACKNOWLEDGED, CId, State, channel_key, id_key, world};
use super::{address, channel, device, id, iwarp, limits, listen, qp, sync};
use crate::abi::guard::{guard_minus, guard_ptr};
use crate::errno::Errno;
use crate::faults::{Call, calls as faults};
use crate::shm::segment;
use rdma_cm_sys::*;
use rdma_sys::{ibv_pd, ibv_qp_attr, ibv_qp_init_attr};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// `rdma_create_event_channel(3)`.
pub unsafe extern "C" fn create_event_channel() -> *mut rdma_event_channel {
    guard_ptr(|| {
        faults::arm_from_environment();
        faults::fate(Call::RdmaCreateEventChannel)?;
        // A process that only listens never opens the device, which sweeps as well.
        static SWEPT: std::sync::Once = std::sync::Once::new();
        SWEPT.call_once(|| segment::sweep(&segment::directory()));
        let mut world = world();
        let key = channel::create(&mut world)?;
        Ok(world.channels[key].c.as_ptr().cast())
    })
}

/// `rdma_destroy_event_channel(3)`.
pub unsafe extern "C" fn destroy_event_channel(channel: *mut rdma_event_channel) {
    guard_minus(|| {
        // SAFETY: a channel of ours by the rules of the API.
        let key = unsafe { channel_key(channel)? };
        channel::destroy(&mut world(), key);
        Ok(())
    });
}

/// `rdma_create_id(3)`.
pub unsafe extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: u32,
) -> c_int {
    guard_minus(|| {
        faults::fate(Call::RdmaCreateId)?;
        // SAFETY: null or a channel of ours by the rules of the API.
        let id = unsafe { id::make(channel, context, space, None)? };
        // SAFETY: the program passes a valid pointer.
        unsafe { to.write(id) };
        Ok(())
    })
}

/// `rdma_create_id` of a program, for which the device stays open from then on. The linked-in copy closes it with its last id.
pub unsafe extern "C" fn create_lasting_id(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: u32,
) -> c_int {
    device::keep_open(&mut world());
    // SAFETY: by the rules of the API.
    unsafe { create_id(channel, to, context, space) }
}

/// `rdma_destroy_id(3)`.
pub unsafe extern "C" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    guard_minus(|| {
        faults::fate(Call::RdmaDestroyId)?;
        // SAFETY: an id of ours by the rules of the API.
        destroy(unsafe { id_key(id)? })
    })
}

/// Destroys an id: tells the peer, waits until the program has acknowledged what it has taken, gives all back.
pub fn destroy(key: usize) -> Result<(), Errno> {
    let c = world().id(key)?.c();
    // The event that a synchronous id keeps is ours to acknowledge: its program has no pointer of its own to it.
    sync::drop_event(c);
    let mut world = world();
    listen::stop(&mut world, key);
    world.abandon(key);
    let orphans = world.discard_events(key);
    while world.id(key)?.unacknowledged > 0 {
        world = ACKNOWLEDGED.wait(world).unwrap_or_else(std::sync::PoisonError::into_inner);
    }
    for gone in orphans.into_iter().chain([key]) {
        world.abandon(gone);
        world.discard_events(gone);
        let Some(id) = world.ids.try_remove(gone) else { continue };
        if id.uses_device {
            device::close(&mut world);
        }
        if id.sync {
            world.channels.try_remove(id.channel);
        }
    }
    Ok(())
}

/// `rdma_bind_addr(3)`.
pub unsafe extern "C" fn bind_addr(id: *mut rdma_cm_id, to: *mut libc::sockaddr) -> c_int {
    guard_minus(|| {
        faults::fate(Call::RdmaBindAddr)?;
        // SAFETY: an id of ours and an address by the rules of the API.
        let (key, to) = unsafe { (id_key(id)?, address::parse(to)?) };
        world().bind(key, to)
    })
}

/// `rdma_resolve_addr(3)`. The time limit is not used: addresses are those of this host.
pub unsafe extern "C" fn resolve_addr(
    id: *mut rdma_cm_id,
    from: *mut libc::sockaddr,
    to: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    guard_minus(|| {
        faults::fate(Call::RdmaResolveAddr)?;
        // SAFETY: an id of ours and addresses by the rules of the API; the source may be null.
        let (key, to) = unsafe { (id_key(id)?, address::parse(to)?) };
        let from = if from.is_null() {
            None
        } else {
            // SAFETY: `from` is not null (checked above): the program passes an address that is as
            // long as its family says.
            Some(unsafe { address::parse(from)? })
        };
        world().resolve_address(key, from, to)?;
        sync::complete(key)
    })
}

/// `rdma_resolve_route(3)`. The time limit is not used.
pub unsafe extern "C" fn resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    guard_minus(|| {
        faults::fate(Call::RdmaResolveRoute)?;
        // SAFETY: an id of ours by the rules of the API.
        let key = unsafe { id_key(id)? };
        world().resolve_route(key)?;
        sync::complete(key)
    })
}

/// Private data that a program passes, within the limit.
///
/// # Safety
/// `data` is null or has `len` bytes.
unsafe fn private(data: *const c_void, len: u8, limit: usize) -> Result<Vec<u8>, Errno> {
    match usize::from(len) {
        0 => Ok(Vec::new()),
        len if data.is_null() || len > limit => Err(Errno::INVAL),
        // SAFETY: `data` is not null (checked above), and the caller passes `len` bytes there.
        len => Ok(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec()),
    }
}

/// Our side of a connection, as the program's parameters make it.
fn side(base: Side, own: Option<u32>, param: &rdma_conn_param) -> Side {
    let depth = |asked: u8| if asked == u8::MAX { qp::MOST_READS } else { asked };
    Side {
        responder_resources: depth(param.responder_resources),
        initiator_depth: depth(param.initiator_depth),
        flow_control: param.flow_control,
        retry_count: param.retry_count.min(7),
        rnr_retry_count: param.rnr_retry_count.min(7),
        srq: param.srq,
        qpn: own.unwrap_or(param.qp_num) & 0xff_ffff,
        ..base
    }
}

/// `rdma_connect(3)`.
pub unsafe extern "C" fn connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    guard_minus(|| {
        faults::fate(Call::RdmaConnect)?;
        // SAFETY: an id of ours by the rules of the API; the parameters are null or whole.
        let (key, param) = unsafe { (id_key(id)?, param.as_ref().copied().unwrap_or_default()) };
        let mut world = world();
        let id = world.id(key)?;
        // SAFETY: the program's private data.
        let private =
            unsafe { private(param.private_data, param.private_data_len, limits::connect(id.datagram))? };
        let side = side(id.ours, id.qp_num(), &param);
        world.connect(key, side, private)?;
        drop(world);
        sync::complete(key)
    })
}

/// `rdma_establish(3)`.
pub unsafe extern "C" fn establish(id: *mut rdma_cm_id) -> c_int {
    guard_minus(|| {
        faults::fate(Call::RdmaEstablish)?;
        // SAFETY: an id of ours by the rules of the API.
        let key = unsafe { id_key(id)? };
        world().establish(key)
    })
}

/// `rdma_listen(3)`. The backlog is not used.
pub unsafe extern "C" fn listen(id: *mut rdma_cm_id, _backlog: c_int) -> c_int {
    guard_minus(|| {
        faults::fate(Call::RdmaListen)?;
        // SAFETY: an id of ours by the rules of the API.
        let key = unsafe { id_key(id)? };
        let mut world = world();
        // Not bound, or its bind failed: any free port of IPv4, as in the kernel (rdma_listen in drivers/infiniband/core/cma.c).
        if world.id(key)?.reservation.is_none() {
            world.bind(key, std::net::SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 0))?;
        }
        listen::listen(&mut world, key)
    })
}

/// `rdma_accept(3)`.
pub unsafe extern "C" fn accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    guard_minus(|| {
        faults::fate(Call::RdmaAccept)?;
        // SAFETY: an id of ours by the rules of the API; the parameters are null or whole.
        let (key, given) = unsafe { (id_key(id)?, param.as_ref().copied()) };
        let mut world = world();
        let id = world.id(key)?;
        let theirs = id.theirs.unwrap_or_default();
        // Without parameters: whatever the peer asked for.
        let param = given.unwrap_or(rdma_conn_param {
            responder_resources: theirs.initiator_depth,
            initiator_depth: theirs.responder_resources,
            rnr_retry_count: 7,
            ..Default::default()
        });
        // SAFETY: the program's private data.
        let private =
            unsafe { private(param.private_data, param.private_data_len, limits::accept(id.datagram))? };
        let mut ours = side(id.ours, id.qp_num(), &param);
        ours.retry_count = 0;
        id.ours = ours;
        if id.state == State::Requested && !id.datagram && id.qp_num().is_some() && !device::is_iwarp() {
            qp::bring_up(id)?;
        }
        let datagram = id.datagram;
        world.accept(key, ours, private)?;
        drop(world);
        if datagram { Ok(()) } else { sync::complete(key) }
    })
}

/// `rdma_reject(3)`.
pub unsafe extern "C" fn reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    guard_minus(|| {
        faults::fate(Call::RdmaReject)?;
        // SAFETY: an id of ours by the rules of the API.
        let key = unsafe { id_key(id)? };
        let mut world = world();
        let limit = limits::refuse(world.id(key)?.datagram);
        // SAFETY: the program's private data.
        world.reject(key, unsafe { private(data, len, limit)? })
    })
}

/// `rdma_notify(3)`.
pub unsafe extern "C" fn notify(id: *mut rdma_cm_id, event: u32) -> c_int {
    guard_minus(|| {
        faults::fate(Call::RdmaNotify)?;
        // SAFETY: an id of ours by the rules of the API.
        let key = unsafe { id_key(id)? };
        if event != rdma_sys::IBV_EVENT_COMM_EST {
            return Err(Errno::INVAL);
        }
        world().notify_established(key)
    })
}

/// `rdma_disconnect(3)`.
pub unsafe extern "C" fn disconnect(id: *mut rdma_cm_id) -> c_int {
    guard_minus(|| {
        faults::fate(Call::RdmaDisconnect)?;
        // SAFETY: an id of ours by the rules of the API.
        let key = unsafe { id_key(id)? };
        let mut world = world();
        let state = world.id(key)?.state;
        world.disconnect(key)?;
        let id = world.id(key)?;
        qp::fail(id);
        iwarp::end(id);
        drop(world);
        // Only who asked hears of the end; who agreed has.
        if state == State::Established { sync::complete(key) } else { Ok(()) }
    })
}

/// `rdma_get_cm_event(3)`.
pub unsafe extern "C" fn get_cm_event(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_event,
) -> c_int {
    guard_minus(|| {
        faults::fate(Call::RdmaGetCmEvent)?;
        // SAFETY: a channel of ours by the rules of the API.
        let event = unsafe { channel::next_event(channel)? };
        // SAFETY: the program passes a valid pointer.
        unsafe { to.write(event) };
        Ok(())
    })
}

/// `rdma_ack_cm_event(3)`.
pub unsafe extern "C" fn ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    guard_minus(|| {
        if event.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: by the rules of the API, an event of get_cm_event that has not been acknowledged.
        unsafe { sync::acknowledge(event) };
        Ok(())
    })
}

fn port_of(id: *mut rdma_cm_id, which: fn(&super::world::Id) -> Option<std::net::SocketAddr>) -> u16 {
    // SAFETY: an id of ours by the rules of the API.
    let key = unsafe { id_key(id) };
    key.ok().and_then(|key| world().ids.get(key).and_then(which)).map_or(0, |a| a.port().to_be())
}

/// `rdma_get_src_port(3)`: in network order; 0 before the id is bound.
pub unsafe extern "C" fn get_src_port(id: *mut rdma_cm_id) -> u16 {
    port_of(id, |id| id.local)
}

/// `rdma_get_dst_port(3)`: in network order; 0 before the peer is known.
pub unsafe extern "C" fn get_dst_port(id: *mut rdma_cm_id) -> u16 {
    port_of(id, |id| id.remote)
}

/// `rdma_set_option(3)`.
pub unsafe extern "C" fn set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    guard_minus(|| {
        faults::fate(Call::RdmaSetOption)?;
        // SAFETY: an id of ours by the rules of the API.
        let key = unsafe { id_key(id)? };
        let number = || match len {
            // SAFETY: the program passes `len` bytes.
            4 if !value.is_null() => Ok(unsafe { value.cast::<c_int>().read_unaligned() } != 0),
            _ => Err(Errno::INVAL),
        };
        let byte = || match len {
            // SAFETY: the program passes `len` bytes at `value`: one, which is all that is read.
            1 if !value.is_null() => Ok(unsafe { value.cast::<u8>().read() }),
            _ => Err(Errno::INVAL),
        };
        let mut world = world();
        let id = world.id(key)?;
        match (level as u32, name as u32) {
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => id.reuse = number()?,
            (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => id.only_v6 = number()?,
            // There are no packets whose type of service could matter.
            (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => drop(byte()?),
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => id.ack_timeout = Some(timeout_code(byte()?)?),
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(())
    })
}

/// A timeout's code: five bits (rdma_set_option(3)).
fn timeout_code(code: u8) -> Result<u8, Errno> {
    if code < 32 { Ok(code) } else { Err(Errno::INVAL) }
}

/// `rdma_init_qp_attr(3)`, for the state that `attr.qp_state` names.
pub unsafe extern "C" fn init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    guard_minus(|| {
        faults::fate(Call::RdmaInitQpAttr)?;
        // SAFETY: an id of ours and pointers by the rules of the API.
        unsafe {
            let key = id_key(id)?;
            let (made, bits) = qp::attributes(world().id(key)?, (*attr).qp_state)?;
            attr.write(made);
            mask.write(bits.cast_signed());
        }
        Ok(())
    })
}

/// `rdma_create_qp(3)`.
pub unsafe extern "C" fn create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    guard_minus(|| {
        // SAFETY: an id of ours and pointers by the rules of the API.
        unsafe { id::create_qp(id_key(id)?, pd, &mut *init) }
    })
}

/// `rdma_destroy_qp(3)`.
pub unsafe extern "C" fn destroy_qp(id: *mut rdma_cm_id) {
    guard_minus(|| {
        // SAFETY: an id of ours by the rules of the API.
        let key = unsafe { id_key(id)? };
        id::destroy_qp(key)
    });
}

/// `rdma_migrate_id(3)`; without a channel the id gets one of its own.
pub unsafe extern "C" fn migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    guard_minus(|| {
        // SAFETY: an id and a channel of ours by the rules of the API; no channel means one of its own.
        unsafe { id::migrate(id.cast::<CId>(), channel) }
    })
}

/// The devices: one, and the end of the list, which is given back with [`free_devices`]. The device stays open after that.
pub unsafe extern "C" fn get_devices(count: *mut c_int) -> *mut *mut rdma_sys::ibv_context {
    guard_ptr(|| {
        let mut world = world();
        let context = device::open(&mut world)?;
        device::keep_open(&mut world);
        if !count.is_null() {
            // SAFETY: the program passes null or a valid pointer.
            unsafe { *count = 1 };
        }
        Ok(Box::leak(Box::new([context, null_mut()])).as_mut_ptr())
    })
}

/// `rdma_free_devices` (`rdma_get_devices(3)`).
pub unsafe extern "C" fn free_devices(list: *mut *mut rdma_sys::ibv_context) {
    guard_minus(|| {
        if !list.is_null() {
            // SAFETY: made by get_devices, freed once by the rules of the API.
            drop(unsafe { Box::from_raw(list.cast::<[*mut rdma_sys::ibv_context; 2]>()) });
            device::close(&mut world());
        }
        Ok(())
    });
}

/// What this device does not offer: enhanced connection establishment, rsockets. -1 for
/// functions that return an int, and for those that return a size.
pub unsafe extern "C" fn refuse() -> isize {
    Errno::OPNOTSUPP.set();
    -1
}
