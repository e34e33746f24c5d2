//! `rdma_getaddrinfo`: names to addresses, by the system's resolver; without a name, the addresses of the hints.
//!
//! Results and what they point to are allocated by malloc(3), each on its own, as librdmacm's are: libfabric makes such structs itself,
//! takes lists apart, and gives the pieces to `rdma_freeaddrinfo`.

use crate::abi::guard::guard_minus;
use crate::errno::Errno;
use libc::{sockaddr, socklen_t};
use rdma_cm_sys::*;
use rdma_sys::{IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND};
use std::ffi::{c_char, c_int};
use std::ptr::{NonNull, null_mut};

/// A result that is freed unless it is handed out.
struct Found(NonNull<rdma_addrinfo>);

/// Returns 0, or a code of getaddrinfo(3), or -1 with errno set.
pub unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    to: *mut *mut rdma_addrinfo,
) -> c_int {
    let mut code = 0;
    let outcome = guard_minus(|| {
        // SAFETY: null or hints of the program; strings of the program, or null.
        match unsafe { find(node, service, hints.as_ref())? } {
            // SAFETY: the program passes a valid pointer.
            Ok(found) => unsafe { to.write(found.into_raw()) },
            Err(refused) => code = refused,
        }
        Ok(())
    });
    if outcome == 0 { code } else { outcome }
}

/// The outer error is ours, the inner one a code of getaddrinfo(3).
///
/// # Safety
/// Strings as for getaddrinfo(3); addresses of the hints as long as they say.
unsafe fn find(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<Result<Found, c_int>, Errno> {
    if node.is_null() && service.is_null() && hints.is_none() {
        return Err(Errno::INVAL);
    }
    let mut found = Found::new()?;
    let hints = hints.copied().unwrap_or_default();
    if !node.is_null() || !service.is_null() {
        // SAFETY: the caller passes null or C strings for `node` and `service`; one of them is not
        // null (checked above).
        if let Err(code) = unsafe { look_up(found.c(), node, service, &hints)? } {
            return Ok(Err(code));
        }
    } else {
        let c = found.c();
        (c.ai_flags, c.ai_family) = (hints.ai_flags, hints.ai_family);
        (c.ai_qp_type, c.ai_port_space) = (hints.ai_qp_type, hints.ai_port_space);
        // SAFETY: the address is null, or the caller's hints have `ai_dst_len` bytes of it.
        (c.ai_dst_addr, c.ai_dst_len) = unsafe { copied(hints.ai_dst_addr, hints.ai_dst_len)? };
    }
    let c = found.c();
    if c.ai_src_len == 0 {
        // SAFETY: the address is null, or the caller's hints have `ai_src_len` bytes of it.
        (c.ai_src_addr, c.ai_src_len) = unsafe { copied(hints.ai_src_addr, hints.ai_src_len)? };
    }
    Ok(Ok(found))
}

/// What the system's resolver finds first, as source of a passive result and destination of an active one.
///
/// # Safety
/// As getaddrinfo(3).
unsafe fn look_up(
    c: &mut rdma_addrinfo,
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
) -> Result<Result<(), c_int>, Errno> {
    let wanted = question(hints)?;
    let mut list = null_mut();
    // SAFETY: the caller passes null or C strings for `node` and `service`; `wanted` and `list` are
    // locals that outlive the call.
    match unsafe { libc::getaddrinfo(node, service, &wanted, &mut list) } {
        0 => {}
        code => return Ok(Err(code)),
    }
    // SAFETY: a list with at least one entry, freed once.
    let (family, address) = unsafe {
        let (family, address) = ((*list).ai_family, copied((*list).ai_addr, (*list).ai_addrlen));
        libc::freeaddrinfo(list);
        (family, address?)
    };
    let passive = hints.ai_flags as u32 & RAI_PASSIVE;
    (c.ai_family, c.ai_flags) = (family, passive as c_int);
    let (space, qp_type) =
        if is_datagram(hints) { (RDMA_PS_UDP, IBV_QPT_UD) } else { (RDMA_PS_TCP, IBV_QPT_RC) };
    let given = |wish: c_int, usual: u32| if wish == 0 { usual as c_int } else { wish };
    (c.ai_port_space, c.ai_qp_type) = (given(hints.ai_port_space, space), given(hints.ai_qp_type, qp_type));
    match passive {
        0 => (c.ai_dst_addr, c.ai_dst_len) = address,
        _ => (c.ai_src_addr, c.ai_src_len) = address,
    }
    Ok(Ok(()))
}

/// The hints in the resolver's terms.
fn question(hints: &rdma_addrinfo) -> Result<libc::addrinfo, Errno> {
    let flags = hints.ai_flags as u32;
    // SAFETY: addrinfo is plain data; zeroes are valid.
    let mut ask: libc::addrinfo = unsafe { std::mem::zeroed() };
    ask.ai_flags = if flags & RAI_PASSIVE != 0 { libc::AI_PASSIVE } else { 0 };
    ask.ai_flags |= if flags & RAI_NUMERICHOST != 0 { libc::AI_NUMERICHOST } else { 0 };
    ask.ai_family = hints.ai_family;
    if !matches!(ask.ai_family, libc::AF_UNSPEC | libc::AF_INET | libc::AF_INET6) {
        return Err(Errno(libc::EAFNOSUPPORT));
    }
    ask.ai_socktype = if is_datagram(hints) { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    Ok(ask)
}

/// The queue pair's type says it; the port space, where no type is given.
fn is_datagram(hints: &rdma_addrinfo) -> bool {
    match hints.ai_qp_type as u32 {
        IBV_QPT_UD => true,
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => false,
        _ => hints.ai_port_space as u32 == RDMA_PS_UDP,
    }
}

/// A copy of an address, by malloc(3); null and 0 of none.
///
/// # Safety
/// `from` is null or has `len` bytes.
unsafe fn copied(from: *const sockaddr, len: socklen_t) -> Result<(*mut sockaddr, socklen_t), Errno> {
    if from.is_null() || len == 0 {
        return Ok((null_mut(), 0));
    }
    // At least what a reader of the family looks at, however short the length is that the program gave.
    let room = (len as usize).max(size_of::<libc::sockaddr_storage>());
    // SAFETY: fresh memory of `room` bytes, at least `len` of them, which `from` has by contract.
    unsafe {
        let to = libc::calloc(1, room).cast::<sockaddr>();
        if to.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), len as usize);
        Ok((to, len))
    }
}

impl Found {
    fn new() -> Result<Found, Errno> {
        // SAFETY: no preconditions.
        let fresh = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) };
        NonNull::new(fresh.cast()).map(Found).ok_or(Errno(libc::ENOMEM))
    }

    fn c(&mut self) -> &mut rdma_addrinfo {
        // SAFETY: allocated for this type, zeroes are a valid value of it, and it is freed only when `self` ends.
        unsafe { self.0.as_mut() }
    }

    fn into_raw(self) -> *mut rdma_addrinfo {
        std::mem::ManuallyDrop::new(self).0.as_ptr()
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: a result of ours that was not handed out.
        unsafe { free(self.0.as_ptr()) };
    }
}

/// Frees a list and what its entries point to.
///
/// # Safety
/// Every pointer in it is null or was allocated by malloc(3), and is used no more.
unsafe fn free(mut list: *mut rdma_addrinfo) {
    while !list.is_null() {
        // SAFETY: `list` is not null, and the caller passes a list whose pointers are all null or
        // from malloc(3) and used no more; each entry is read before it is freed.
        unsafe {
            let entry = list.read();
            libc::free(list.cast());
            for address in [entry.ai_src_addr, entry.ai_dst_addr] {
                libc::free(address.cast());
            }
            for name in [entry.ai_src_canonname, entry.ai_dst_canonname] {
                libc::free(name.cast());
            }
            for blob in [entry.ai_route, entry.ai_connect] {
                libc::free(blob);
            }
            list = entry.ai_next;
        }
    }
}

/// `rdma_freeaddrinfo` (`rdma_getaddrinfo(3)`).
pub unsafe extern "C" fn freeaddrinfo(found: *mut rdma_addrinfo) {
    guard_minus(|| {
        // SAFETY: made by getaddrinfo, or by the program in the same way; freed once by the rules of the API.
        unsafe { free(found) };
        Ok(())
    });
}
