//! `rdma_getaddrinfo`: names to addresses, by the system's resolver.

use crate::abi::guard_minus;
use crate::errno::Errno;
use rdma_cm_sys::*;
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

/// A result and the address that it points to.
#[repr(C)]
struct Found {
    c: rdma_addrinfo,
    address: libc::sockaddr_storage,
    source: libc::sockaddr_storage,
}

/// Returns 0, or a code of getaddrinfo(3), or -1 with errno set.
pub unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    to: *mut *mut rdma_addrinfo,
) -> c_int {
    let mut code = 0;
    let outcome = guard_minus(|| {
        // SAFETY: pointers by the rules of the API.
        unsafe {
            let hints = hints.as_ref();
            match look_up(node, service, hints)? {
                Ok(found) => {
                    let mut found = Box::new(found);
                    settle(&mut found);
                    to.write(Box::into_raw(found).cast());
                }
                Err(refused) => code = refused,
            }
        }
        Ok(())
    });
    if outcome == 0 { code } else { outcome }
}

/// # Safety
/// As getaddrinfo(3).
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<Result<Found, c_int>, Errno> {
    if node.is_null() && service.is_null() && hints.is_none_or(|h| h.ai_src_len == 0 && h.ai_dst_len == 0) {
        return Err(Errno::INVAL);
    }
    let flags = hints.map_or(0, |h| h.ai_flags as u32);
    // SAFETY: addrinfo is plain data; zeroes are valid.
    let mut ask: libc::addrinfo = unsafe { std::mem::zeroed() };
    ask.ai_flags = if flags & RAI_PASSIVE != 0 { libc::AI_PASSIVE } else { 0 };
    ask.ai_flags |= if flags & RAI_NUMERICHOST != 0 { libc::AI_NUMERICHOST } else { 0 };
    ask.ai_family = hints.map_or(libc::AF_UNSPEC, |h| h.ai_family);
    if !matches!(ask.ai_family, libc::AF_UNSPEC | libc::AF_INET | libc::AF_INET6) {
        return Err(Errno(libc::EAFNOSUPPORT));
    }
    ask.ai_socktype = if is_datagram(hints) { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    let mut found = fresh(hints, flags);
    if node.is_null() && service.is_null() {
        return Ok(Ok(found));
    }
    let mut list = null_mut();
    // SAFETY: by contract.
    match unsafe { libc::getaddrinfo(node, service, &ask, &mut list) } {
        0 => {}
        code => return Ok(Err(code)),
    }
    // SAFETY: a list with at least one entry, freed once.
    unsafe {
        let address = (*list).ai_addr.cast::<u8>();
        let len = (*list).ai_addrlen as usize;
        let into = (&raw mut found.address).cast::<u8>();
        std::ptr::copy_nonoverlapping(address, into, len.min(size_of::<libc::sockaddr_storage>()));
        found.c.ai_family = (*list).ai_family;
        if flags & RAI_PASSIVE != 0 {
            found.c.ai_src_len = (*list).ai_addrlen;
        } else {
            found.c.ai_dst_len = (*list).ai_addrlen;
        }
        libc::freeaddrinfo(list);
    }
    Ok(Ok(found))
}

fn is_datagram(hints: Option<&rdma_addrinfo>) -> bool {
    hints.is_some_and(|h| {
        h.ai_port_space as u32 == RDMA_PS_UDP
            || (matches!(h.ai_port_space as u32, 0 | RDMA_PS_IB)
                && h.ai_qp_type as u32 == rdma_sys::IBV_QPT_UD)
    })
}

fn fresh(hints: Option<&rdma_addrinfo>, flags: u32) -> Found {
    let datagram = is_datagram(hints);
    let (space, usual) =
        if datagram { (RDMA_PS_UDP, rdma_sys::IBV_QPT_UD) } else { (RDMA_PS_TCP, rdma_sys::IBV_QPT_RC) };
    let asked = |what: fn(&rdma_addrinfo) -> c_int| hints.map(what).filter(|&number| number != 0);
    let mut c = rdma_addrinfo {
        ai_flags: flags as c_int,
        ai_family: hints.map_or(0, |h| h.ai_family),
        ai_port_space: asked(|h| h.ai_port_space).unwrap_or(space as c_int),
        ai_qp_type: asked(|h| h.ai_qp_type).unwrap_or(usual as c_int),
        ..Default::default()
    };
    // SAFETY: sockaddr_storage is plain data; zeroes are valid.
    let (address, mut source): (libc::sockaddr_storage, libc::sockaddr_storage) =
        unsafe { std::mem::zeroed() };
    if let Some(h) =
        hints.filter(|h| h.ai_src_len != 0 && !h.ai_src_addr.is_null() && flags & RAI_PASSIVE == 0)
    {
        let len = (h.ai_src_len as usize).min(size_of::<libc::sockaddr_storage>());
        // SAFETY: the program passes an address of this length.
        unsafe {
            std::ptr::copy_nonoverlapping(h.ai_src_addr.cast::<u8>(), (&raw mut source).cast::<u8>(), len);
        }
        c.ai_src_len = h.ai_src_len;
    }
    Found { c, address, source }
}

/// Points the result's pointers at its own addresses; called once it has its final place.
fn settle(found: &mut Found) {
    let passive = found.c.ai_flags as u32 & RAI_PASSIVE != 0;
    if passive {
        found.c.ai_src_addr = (&raw mut found.address).cast();
        return;
    }
    found.c.ai_dst_addr = (&raw mut found.address).cast();
    if found.c.ai_src_len != 0 {
        found.c.ai_src_addr = (&raw mut found.source).cast();
    }
}

pub unsafe extern "C" fn freeaddrinfo(found: *mut rdma_addrinfo) {
    guard_minus(|| {
        if !found.is_null() {
            // SAFETY: made by getaddrinfo, freed once by the rules of the API.
            drop(unsafe { Box::from_raw(found.cast::<Found>()) });
        }
        Ok(())
    });
}
