//! What ports say about themselves: attributes, GID table, P_Key table.

use super::guard::{guard, guard_minus};
use super::handle::engine;
use super::listing::device_of;
use crate::errno::Errno;
use crate::fabric::gid::kind;
use crate::fabric::{LinkLayer, MAX_MESSAGE};
use crate::faults::{Call, calls as faults};
use crate::objects::world::World;
use crate::shm::card;
use rdma_sys::*;
use std::ffi::c_int;

/// The LID of the subnet manager that an InfiniBand port names. There is no subnet manager.
const SM_LID: u16 = 1;
/// Physical states (IBTA 14.2.5.6, PortInfo).
const POLLING: u8 = 2;
const LINK_UP: u8 = 5;

/// `ibv_query_port(3)`.
pub unsafe extern "C" fn query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    guard(|| {
        // SAFETY: the program passes a valid pointer.
        unsafe { attr.write(port_attr(context, port)?) };
        Ok(())
    })
}

/// `verbs_context.query_port`: an older program has a shorter struct, a newer one a longer, whose rest is zero.
pub unsafe extern "C" fn query_port_sized(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    len: usize,
) -> c_int {
    guard(|| {
        let full = port_attr(context, port)?;
        let known = len.min(size_of::<ibv_port_attr>());
        // SAFETY: the program's struct has `len` bytes, of which `known` are in ours as well.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), attr.cast::<u8>(), known);
            attr.cast::<u8>().add(known).write_bytes(0, len - known);
        }
        Ok(())
    })
}

/// Port `num` of a context's device, by its place among all. EINVAL: there is none of that number.
fn place(w: &World, context: *mut ibv_context, num: u8) -> Result<u8, Errno> {
    w.ports.place(device_of(context)?, num)
}

fn port_attr(context: *mut ibv_context, num: u8) -> Result<ibv_port_attr, Errno> {
    faults::fate(Call::QueryPort)?;
    let state = engine()?.enter();
    Ok(attr_of(&state.w, place(&state.w, context, num)?))
}

fn attr_of(w: &World, at: u8) -> ibv_port_attr {
    let (port, up) = (w.ports.card(at), w.ports.is_up(at));
    let (ethernet, iwarp) = (port.link_layer != LinkLayer::InfiniBand, port.link_layer == LinkLayer::Iwarp);
    let (bad_pkey_cntr, qkey_viol_cntr) = card::refused(&w.segment.map, at);
    let roce = ethernet && !iwarp;
    let ip_gids = if roce { IBV_PORT_IP_BASED_GIDS } else { 0 };
    ibv_port_attr {
        state: if up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
        max_mtu: IBV_MTU_4096,
        active_mtu: IBV_MTU_4096,
        gid_tbl_len: card::rows(port.link_layer) as c_int,
        port_cap_flags: IBV_PORT_CM_SUP | ip_gids,
        max_msg_sz: MAX_MESSAGE,
        bad_pkey_cntr,
        qkey_viol_cntr,
        // Partitions are InfiniBand's.
        pkey_tbl_len: if iwarp { 0 } else { w.ports.pkeys.len() as u16 },
        lid: port.lid,
        sm_lid: if ethernet { 0 } else { SM_LID },
        max_vl_num: 1,
        subnet_timeout: 18,
        // 4x EDR: what programs print, nothing depends on it.
        active_width: 2,
        active_speed: 32,
        phys_state: if up { LINK_UP } else { POLLING },
        link_layer: if ethernet { IBV_LINK_LAYER_ETHERNET } else { IBV_LINK_LAYER_INFINIBAND },
        flags: if roce { IBV_QPF_GRH_REQUIRED } else { 0 },
        ..Default::default()
    }
}

/// `ibv_query_gid(3)`.
pub unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    guard_minus(|| {
        faults::fate(Call::QueryGid)?;
        let index = usize::try_from(index).map_err(|_| Errno::INVAL)?;
        let state = engine()?.enter();
        let at = place(&state.w, context, port)?;
        let raw = state.w.ports.card(at).gid(index).ok_or(Errno::INVAL)?;
        // SAFETY: the program passes a valid pointer.
        unsafe { gid.write(ibv_gid { raw }) };
        Ok(())
    })
}

/// `ibv_query_pkey(3)`.
pub unsafe extern "C" fn query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    guard_minus(|| {
        faults::fate(Call::QueryPkey)?;
        let index = usize::try_from(index).map_err(|_| Errno::INVAL)?;
        let state = engine()?.enter();
        place(&state.w, context, port)?;
        let key = *state.w.ports.pkeys.get(index).ok_or(Errno::INVAL)?;
        // SAFETY: the program passes a valid pointer.
        unsafe { pkey.write(key.to_be()) };
        Ok(())
    })
}

/// `_ibv_query_gid_ex`: a filled row with its type, in a struct of `size` bytes, which may be shorter or longer than ours.
pub unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    guard(|| {
        faults::fate(Call::QueryGidEx)?;
        if flags != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let entry = gid_entry(context, port, index)?;
        let len = size.min(size_of::<ibv_gid_entry>());
        // SAFETY: the program's struct has `size` bytes, of which `len` are in ours as well.
        unsafe {
            to.cast::<u8>().write_bytes(0, size);
            std::ptr::copy_nonoverlapping((&raw const entry).cast::<u8>(), to.cast::<u8>(), len);
        }
        Ok(())
    })
}

/// A row of a GID table. EINVAL: there is no such row. ENODATA: it is empty.
fn gid_entry(context: *mut ibv_context, port: u32, index: u32) -> Result<ibv_gid_entry, Errno> {
    let (num, row) = (u8::try_from(port).map_err(|_| Errno::INVAL)?, index as usize);
    let state = engine()?.enter();
    let card = state.w.ports.card(place(&state.w, context, num)?);
    let raw = card.gid(row).ok_or(Errno::INVAL)?;
    card.gids.get(row).ok_or(Errno(libc::ENODATA))?;
    let gid_type = kind(card.link_layer, row);
    Ok(ibv_gid_entry { gid: ibv_gid { raw }, gid_index: index, port_num: port, gid_type, ndev_ifindex: 0 })
}

/// The type of a filled row of the GID table of port `num` of a device (`ibv_gid_type`); None for any other, or when no device is open.
pub fn gid_type(device: usize, num: u8, index: usize) -> Option<u32> {
    let engine = engine().ok()?;
    let state = engine.enter();
    let port = state.w.ports.card(state.w.ports.place(device, num).ok()?);
    port.gids.get(index).map(|_| kind(port.link_layer, index))
}
