//! Addresses: which of them are this host's, and what wildcards stand for.

use crate::errno::Errno;
use crate::fabric;
use libc::sockaddr;
pub use rdma_cm_sys::address::emit;
use rdma_cm_sys::address::is_local;
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

/// Whether an address is of this host, or of its first port.
pub fn is_ours(ip: IpAddr) -> bool {
    is_local(ip) || fabric::has_address(ip)
}

/// Whether `to` is reached from an address of ours: those of the port lead to their own networks, others to this host.
pub fn is_reached(from: Option<IpAddr>, to: IpAddr) -> bool {
    match from.filter(|from| fabric::has_address(*from)) {
        Some(from) => fabric::leads(from, to),
        None => is_ours(to),
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
