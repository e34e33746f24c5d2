//! The device under the connection manager, through its own verbs: opened when an id needs it.
//!
//! For programs of librdmacm it then stays open until the process ends, as librdmacm's devices do while it is loaded: they use contexts of
//! `rdma_get_devices` after `rdma_free_devices`, and `id->verbs` after the id. The linked-in copy, which is unloaded with
//! the library that it is part of, closes it with the last id.

use super::world::{Verbs, World};
use crate::driver_table;
use crate::errno::Errno;
use crate::fabric::{self, LinkLayer, PortAddress};
use crate::shm::card::GID_ROWS;
use rdma_sys::*;
use std::net::SocketAddr;

/// The one port there is.
pub const PORT: u8 = 1;

/// Opens the device, or counts one more user.
pub fn open(world: &mut World) -> Result<*mut ibv_context, Errno> {
    let device = &mut world.device;
    let context = match &device.context {
        Some(context) => context.0,
        None => {
            let table = driver_table();
            // SAFETY: the list holds one device, which lives as long as the process.
            let context = unsafe {
                let list = (table.get_device_list)(std::ptr::null_mut());
                if list.is_null() {
                    return Err(Errno::last());
                }
                let context = (table.open_device)(*list);
                let error = Errno::last();
                (table.free_device_list)(list);
                if context.is_null() {
                    return Err(error);
                }
                context
            };
            device.context = Some(Verbs(context));
            context
        }
    };
    device.users += 1;
    Ok(context)
}

/// From now on the device is closed by the end of the process only.
pub fn keep_open(world: &mut World) {
    world.device.stays_open = true;
}

/// One user less; the last closes the device, unless the program still has objects of it.
pub fn close(world: &mut World) {
    let device = &mut world.device;
    device.users = device.users.saturating_sub(1);
    if device.users > 0 {
        return;
    }
    if let Some(xrcd) = device.xrcd.take()
        // SAFETY: our own domain; a refusal means that the program still uses it.
        && unsafe { ibv_close_xrcd(xrcd.0) } != 0
    {
        device.xrcd = Some(xrcd);
    }
    if let Some(pd) = device.pd.take()
        // SAFETY: our own domain; a refusal means that the program still uses it.
        && unsafe { (driver_table().dealloc_pd)(pd.0) } != 0
    {
        device.pd = Some(pd);
    }
    if let Some(context) = device.context.take_if(|_| !device.stays_open)
        // SAFETY: our own context; a refusal means that the program still has objects of it.
        && unsafe { (driver_table().close_device)(context.0) } != 0
    {
        device.context = Some(context);
    }
}

/// Gives an id the device and its domain, for as long as it lives.
pub fn attach(world: &mut World, key: usize) -> Result<(), Errno> {
    if world.id(key)?.uses_device {
        return Ok(());
    }
    if world.id(key)?.datagram && fabric::link_layer() == LinkLayer::Iwarp {
        return Err(Errno::NODEV);
    }
    let context = open(world)?;
    let pd = default_pd(world, context).inspect_err(|_| close(world))?;
    let id = world.id(key)?;
    id.uses_device = true;
    // SAFETY: our own struct.
    unsafe { ((*id.c()).verbs, (*id.c()).pd, (*id.c()).port_num) = (context, pd, PORT) };
    Ok(())
}

/// The domain of QPs that are made without one.
pub fn default_pd(world: &mut World, context: *mut ibv_context) -> Result<*mut ibv_pd, Errno> {
    if let Some(pd) = &world.device.pd {
        return Ok(pd.0);
    }
    // SAFETY: an open context of ours.
    let pd = unsafe { (driver_table().alloc_pd)(context) };
    if pd.is_null() {
        return Err(Errno::last());
    }
    world.device.pd = Some(Verbs(pd));
    Ok(pd)
}

/// The XRC domain of SRQs and receive queue pairs that are made without one: a private one, as librdmacm has for each device.
pub fn default_xrcd(world: &mut World, context: *mut ibv_context) -> Result<*mut ibv_xrcd, Errno> {
    if let Some(xrcd) = &world.device.xrcd {
        return Ok(xrcd.0);
    }
    let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    let mut attr = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
    // SAFETY: an open context of ours.
    let xrcd = unsafe { ibv_open_xrcd(context, &mut attr) };
    if xrcd.is_null() {
        return Err(Errno::last());
    }
    world.device.xrcd = Some(Verbs(xrcd));
    Ok(xrcd)
}

/// The port, and the GID in a row of its table.
pub fn port(context: *mut ibv_context, row: u8) -> Result<(ibv_port_attr, [u8; 16]), Errno> {
    let mut port = ibv_port_attr::default();
    // SAFETY: an open context of ours, and room for the answer.
    match unsafe { (driver_table().query_port)(context, PORT, &mut port) } {
        0 => Ok((port, gid(context, row).ok_or(Errno::NODEV)?)),
        code => Err(Errno(code)),
    }
}

fn gid(context: *mut ibv_context, row: u8) -> Option<[u8; 16]> {
    let mut gid = ibv_gid { raw: [0; 16] };
    // SAFETY: an open context of ours, and room for the answer.
    let code = unsafe { (driver_table().query_gid)(context, PORT, row.into(), &mut gid) };
    // SAFETY: all bit patterns are valid for the raw bytes, which are zeroes if the call has failed.
    (code == 0).then_some(unsafe { gid.raw })
}

/// The row of RoCE v2 that holds an address which the settings give the port; the first row for all others, which are the host's.
pub fn row_of(context: *mut ibv_context, address: Option<SocketAddr>) -> u8 {
    let Some(ip) = address.map(|address| address.ip()).filter(|ip| fabric::has_address(*ip)) else {
        return 0;
    };
    let wanted = PortAddress { ip, prefix: None }.gid().octets();
    let is_it = |row: &u8| gid(context, *row) == Some(wanted);
    (0..GID_ROWS as u8).rev().find(is_it).unwrap_or(0)
}

/// Whether this process' port is an iWARP one.
pub fn is_iwarp() -> bool {
    fabric::link_layer() == LinkLayer::Iwarp
}
