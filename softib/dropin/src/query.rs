//! Ports, GID and P_Key tables in the shapes that libibverbs has beyond the driver table.

use crate::guarded;
use rdma_sys::*;
use softib::errno::Errno;
use std::ffi::c_int;
use std::mem::{offset_of, size_of};

/// 0, or the errno value that a function left or returned.
fn done(result: c_int) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        -1 => Err(Errno::last()),
        code => Err(Errno(code)),
    }
}

fn port_attr(context: *mut ibv_context, port: u8) -> Result<ibv_port_attr, Errno> {
    let mut attr = ibv_port_attr::default();
    // SAFETY: a context of ours and our own struct.
    done(unsafe { (softib::driver_table().query_port)(context, port, &mut attr) })?;
    Ok(attr)
}

/// `ibv_query_port` as a symbol: its callers' struct ends before `port_cap_flags2`.
///
/// # Safety
/// `context` is open; `attr` has room for the struct without its last member.
pub unsafe extern "C" fn query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    guarded(libc::EIO, || match port_attr(context, port) {
        Ok(full) => {
            let len = offset_of!(ibv_port_attr, port_cap_flags2);
            // SAFETY: the program promises room for the struct without its last member, which is
            // `len` bytes; `full` is a whole one.
            unsafe { std::ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), attr.cast::<u8>(), len) };
            0
        }
        Err(error) => error.0,
    })
}

fn bytes(gid: &ibv_gid) -> [u8; 16] {
    // SAFETY: both members of the union are the same 16 bytes.
    unsafe { gid.raw }
}

/// Index of a GID of one of these types in a port's table.
pub fn find_gid(
    context: *mut ibv_context,
    port: u8,
    wanted: &[u8; 16],
    kinds: &[ibv_gid_type],
) -> Result<u32, Errno> {
    let rows = port_attr(context, port)?.gid_tbl_len.max(0) as u32;
    let entry = |index: u32| gid_entry(context, port.into(), index).ok();
    let is_it = |row: &ibv_gid_entry| bytes(&row.gid) == *wanted && kinds.contains(&row.gid_type);
    (0..rows).filter_map(entry).find(is_it).map(|row| row.gid_index).ok_or(Errno::INVAL)
}

/// One row of a GID table; ENODATA when it is empty.
fn gid_entry(context: *mut ibv_context, port: u32, index: u32) -> Result<ibv_gid_entry, Errno> {
    let mut entry = ibv_gid_entry::default();
    let ask = softib::driver_table().query_gid_ex.ok_or(Errno(libc::EOPNOTSUPP))?;
    // SAFETY: a context of ours and our own struct, with its size.
    done(unsafe { ask(context, port, index, &mut entry, 0, size_of::<ibv_gid_entry>()) })?;
    Ok(entry)
}

/// Writes a row into a program's struct, which may be shorter or longer than ours.
///
/// # Safety
/// `to` has room for `size` bytes.
unsafe fn put_entry(entry: &ibv_gid_entry, to: *mut ibv_gid_entry, size: usize) {
    let len = size.min(size_of::<ibv_gid_entry>());
    // SAFETY: the caller promises room for `size` bytes at `to`; `len` is neither more than that
    // nor than the entry.
    unsafe {
        to.cast::<u8>().write_bytes(0, size);
        std::ptr::copy_nonoverlapping((entry as *const ibv_gid_entry).cast::<u8>(), to.cast::<u8>(), len);
    }
}

/// `ibv_query_gid_ex`
///
/// # Safety
/// `context` is open; `to` has room for `size` bytes.
pub unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    if flags != 0 {
        return libc::EOPNOTSUPP;
    }
    match guarded(Err(Errno(libc::EIO)), || gid_entry(context, port, index)) {
        Ok(entry) => {
            // SAFETY: the program promises room for `size` bytes at `to`.
            unsafe { put_entry(&entry, to, size) };
            0
        }
        Err(error) => error.0,
    }
}

/// `ibv_query_gid_table`: the number of rows of all ports, or a negative errno value.
///
/// # Safety
/// `context` is open; `to` has room for `room` structs of `size` bytes.
pub unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    to: *mut ibv_gid_entry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    if flags != 0 {
        return -(libc::EOPNOTSUPP as isize);
    }
    let rows = match guarded(Err(Errno(libc::EIO)), || gid_rows(context)) {
        Ok(rows) if rows.len() <= room => rows,
        Ok(_) => return -(libc::EINVAL as isize),
        Err(error) => return -(error.0 as isize),
    };
    for (at, row) in rows.iter().enumerate() {
        // SAFETY: the program promises room for `room` structs of `size` bytes at `to`, and there
        // are no more than `room` rows (checked above).
        unsafe { put_entry(row, to.byte_add(at * size), size) };
    }
    rows.len() as isize
}

fn gid_rows(context: *mut ibv_context) -> Result<Vec<ibv_gid_entry>, Errno> {
    let mut device = ibv_device_attr::default();
    // SAFETY: a context of ours and our own struct.
    done(unsafe { (softib::driver_table().query_device)(context, &mut device) })?;
    let mut rows = Vec::new();
    for port in 1..=device.phys_port_cnt {
        let len = port_attr(context, port)?.gid_tbl_len.max(0) as u32;
        rows.extend((0..len).filter_map(|index| gid_entry(context, u32::from(port), index).ok()));
    }
    Ok(rows)
}

/// `ibv_query_gid_type` (private, but ibv_devinfo and pyverbs ask): 0 for IB and RoCE v1, 1 for RoCE v2.
///
/// # Safety
/// `context` is open; `to` is valid.
pub unsafe extern "C" fn query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    to: *mut u32,
) -> c_int {
    match guarded(Err(Errno(libc::EIO)), || gid_entry(context, u32::from(port), index)) {
        Ok(entry) => {
            // SAFETY: the program promises that `to` is valid.
            unsafe { to.write(u32::from(entry.gid_type == IBV_GID_TYPE_ROCE_V2)) };
            0
        }
        Err(error) => {
            error.set();
            -1
        }
    }
}

/// `ibv_get_pkey_index`: -1 when no row of the port's table has this key (in network order).
///
/// # Safety
/// `context` is open.
pub unsafe extern "C" fn get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    guarded(-1, || find_pkey(context, port, pkey).unwrap_or(-1))
}

fn find_pkey(context: *mut ibv_context, port: u8, wanted: u16) -> Option<c_int> {
    let rows = c_int::from(port_attr(context, port).ok()?.pkey_tbl_len);
    let is_it = |index: &c_int| {
        let mut pkey = 0;
        // SAFETY: a context of ours and our own variable.
        let found = unsafe { (softib::driver_table().query_pkey)(context, port, *index, &mut pkey) };
        found == 0 && pkey == wanted
    };
    (0..rows).find(is_it)
}

/// `ibv_get_device_index`: the kernel has no such device.
///
/// # Safety
/// None needed; the C ABI asks for the keyword.
pub unsafe extern "C" fn get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}
