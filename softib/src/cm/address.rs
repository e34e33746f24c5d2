//! Addresses: which of them are this host's, and what wildcards stand for.

use crate::errno::Errno;
use libc::sockaddr;
pub use rdma_cm_sys::address::{emit, is_local};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Reads an address that a program passed; only IPv4 and IPv6 are known.
///
/// # Safety
/// `from` is null or points to a sockaddr that is as long as its family says.
pub unsafe fn parse(from: *const sockaddr) -> Result<SocketAddr, Errno> {
    if from.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: `from` is not null (checked above), and the caller passes an address that is as long
    // as its family says.
    unsafe { rdma_cm_sys::address::parse(from) }.ok_or(Errno(libc::EAFNOSUPPORT))
}

/// The wildcard of the same family: no address, no port.
pub fn any_like(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        SocketAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
    }
}

/// Where an address leads: the wildcard means this host, as it does for sockets.
pub fn destination(address: SocketAddr) -> SocketAddr {
    let loopback: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    if address.ip().is_unspecified() { SocketAddr::new(loopback, address.port()) } else { address }
}
