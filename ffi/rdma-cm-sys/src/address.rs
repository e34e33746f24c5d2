//! Socket addresses: C's and ours, and those of this host.

use core::ffi::CStr;
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Reads an address; `None` for null and for families other than IPv4 and IPv6.
///
/// # Safety
/// `from` is null or points to a sockaddr that is as long as its family says.
pub unsafe fn parse(from: *const sockaddr) -> Option<SocketAddr> {
    if from.is_null() {
        return None;
    }
    // SAFETY: `from` is not null (checked above), and the caller promises a sockaddr as long as its
    // family says; the family, first in every sockaddr, decides how much is read, and the copies
    // need no alignment.
    unsafe {
        match i32::from((&raw const (*from).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let from = from.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(from.sin_addr.s_addr));
                Some(SocketAddr::new(ip.into(), u16::from_be(from.sin_port)))
            }
            libc::AF_INET6 => {
                let from = from.cast::<sockaddr_in6>().read_unaligned();
                let (ip, port) = (Ipv6Addr::from(from.sin6_addr.s6_addr), u16::from_be(from.sin6_port));
                Some(SocketAddrV6::new(ip, port, 0, from.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// The address as C keeps it.
pub fn emit(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: sockaddr_storage is plain data; zeroes are valid.
    let mut to: sockaddr_storage = unsafe { core::mem::zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            let sin = sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_storage is large and aligned enough for every sockaddr.
            unsafe { (&raw mut to).cast::<sockaddr_in>().write(sin) };
        }
        SocketAddr::V6(v6) => {
            let sin6 = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: `to` is a sockaddr_storage, which is large and aligned enough for a
            // sockaddr_in6.
            unsafe { (&raw mut to).cast::<sockaddr_in6>().write(sin6) };
        }
    }
    to
}

/// The addresses of this host's interfaces (getifaddrs(3)), in the kernel's order. Link-local IPv6 addresses come with their
/// scope; the port is 0.
///
/// # Errors
/// No memory, no descriptor.
pub fn interfaces() -> io::Result<Vec<SocketAddr>> {
    // SAFETY: an entry's address is null or whole.
    each_entry(|entry| unsafe { parse(entry.ifa_addr) })
}

/// The addresses of this host's interfaces (getifaddrs(3)), in the kernel's order, each with the interface's name and how many of its bits
/// are its network's, from 1; `None` for a netmask that says none.
///
/// # Errors
/// No memory, no descriptor.
pub fn networks() -> io::Result<Vec<(String, IpAddr, Option<u8>)>> {
    each_entry(|entry| {
        // SAFETY: an entry's address and netmask are null or whole, and its name is a string.
        let (address, mask, name) =
            unsafe { (parse(entry.ifa_addr)?, parse(entry.ifa_netmask), CStr::from_ptr(entry.ifa_name)) };
        let interface = name.to_string_lossy().into_owned();
        Some((interface, address.ip(), mask.and_then(|mask| prefix(mask.ip()))))
    })
}

/// How many bits a netmask has, which must be its first.
fn prefix(mask: IpAddr) -> Option<u8> {
    let bits = match mask {
        IpAddr::V4(mask) => u128::from(u32::from(mask)) << 96,
        IpAddr::V6(mask) => u128::from(mask),
    };
    let len = bits.leading_ones();
    let whole = len > 0 && len == bits.count_ones();
    u8::try_from(len).ok().filter(|_| whole)
}

/// What `of` makes of each entry of the host's list of addresses.
fn each_entry<T>(mut of: impl FnMut(&libc::ifaddrs) -> Option<T>) -> io::Result<Vec<T>> {
    let mut list = core::ptr::null_mut();
    // SAFETY: room for one pointer.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: an entry of the list, which is freed below.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        found.extend(of(entry));
    }
    // SAFETY: made by getifaddrs, freed once.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// Whether an address is of this host: loopback, or of one of its interfaces.
pub fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || interfaces().is_ok_and(|all| all.iter().any(|a| a.ip() == ip))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_way_through_c() {
        for text in ["127.0.0.1:7174", "[::1]:1", "0.0.0.0:0", "[fe80::1%3]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = emit(address);
            // SAFETY: a whole sockaddr.
            assert_eq!(unsafe { parse((&raw const c).cast()) }, Some(address));
        }
    }

    #[test]
    fn an_address_of_another_family_is_none() {
        let mut c = emit("127.0.0.1:1".parse().unwrap());
        c.ss_family = libc::AF_UNIX as u16;
        // SAFETY: a whole sockaddr, and null.
        assert_eq!(unsafe { (parse((&raw const c).cast()), parse(core::ptr::null())) }, (None, None));
    }

    #[test]
    fn netmasks_are_as_long_as_their_first_bits() {
        let masks = [
            "255.255.255.0",
            "255.255.255.255",
            "0.0.0.0",
            "255.0.255.0",
            "ffff:ffff:ffff:ffff::",
            "ffff::1",
        ];
        let lens = masks.map(|mask| prefix(mask.parse().unwrap()));
        assert_eq!(lens, [Some(24), Some(32), None, None, Some(64), None]);
    }

    #[test]
    fn the_loopback_interface_is_on_its_network() {
        let loopback = ("lo".to_owned(), IpAddr::from([127, 0, 0, 1]), Some(8));
        assert!(networks().unwrap().contains(&loopback));
    }

    #[test]
    fn loopback_is_local_and_documentation_addresses_are_not() {
        assert!(is_local("127.3.2.1".parse().unwrap()) && is_local("::1".parse().unwrap()));
        assert!(!is_local("192.0.2.1".parse().unwrap()));
    }
}
