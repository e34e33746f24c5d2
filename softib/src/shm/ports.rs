//! Ports: bound exclusively per address and port space among the processes of a user, without a daemon.
//!
//! ```text
//!   SOFTIB_DIR/softib-<uid>-ports      a file of no length; every address and port is a place in it
//!     place = port space (2 bits) | port (16) | IPv6 (1) | address (44)
//!     bind 127.0.0.1:7     locks one byte              [::]:7 for IPv6 only   locks half a port's bytes
//!     bind 0.0.0.0:7       locks half a port's bytes   [::]:7                 locks all of them
//! ```
//! The locks are those of open file descriptions: the kernel drops them when the process ends, kill -9 included, so a port is
//! never left behind. Addresses that allow reuse take shared locks until they listen. An IPv6 address is hashed to
//! 44 bits: two that collide cannot have the same port, which is refused as "in use".
//!
//! The sweep of segments takes the file away when no process holds a port in it; a reservation
//! therefore makes sure that what it has locked is still what the name leads to.

use super::{files, folder};
use crate::errno::{Errno, check};
use rdma_cm_sys::{RDMA_PS_IB, RDMA_PS_TCP, RDMA_PS_UDP};
use std::ffi::OsStr;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const HOST_BITS: u32 = 44;
/// Ports that are handed out where none is asked for (RFC 6335, 6).
const DYNAMIC: std::ops::RangeInclusive<u16> = 49_152..=65_535;
/// Attempts against a sweep that holds the whole file for a moment.
const ATTEMPTS: u32 = 1000;

/// Whose ports they are (rdma_create_id(3)): the same number is another port in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// RDMA_PS_TCP: connections.
    Tcp = 0,
    /// RDMA_PS_UDP: datagrams.
    Udp = 1,
    /// RDMA_PS_IB: queue pairs of any type.
    Ib = 2,
}

impl Space {
    /// The space of a number that a program passed. EPROTONOSUPPORT: there is none of it here.
    pub fn parse(number: u32) -> Result<Space, Errno> {
        match number {
            RDMA_PS_TCP => Ok(Space::Tcp),
            RDMA_PS_UDP => Ok(Space::Udp),
            RDMA_PS_IB => Ok(Space::Ib),
            _ => Err(Errno(libc::EPROTONOSUPPORT)),
        }
    }

    /// Its number (`enum rdma_port_space`).
    pub fn number(self) -> u32 {
        match self {
            Space::Tcp => RDMA_PS_TCP,
            Space::Udp => RDMA_PS_UDP,
            Space::Ib => RDMA_PS_IB,
        }
    }
}

/// Addresses that one binding, or one look-up, covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    start: i64,
    bits: u32,
}

impl Place {
    /// The place of an address in a port space. `only`: an IPv6 wildcard without IPv4.
    pub fn of(address: SocketAddr, space: Space, only: bool) -> Place {
        let ip = address.ip();
        let port = (space as i64) << 61 | i64::from(address.port()) << (HOST_BITS + 1);
        let half = i64::from(ip.is_ipv6()) << HOST_BITS;
        match ip {
            _ if !ip.is_unspecified() => Place { start: port | half | host(ip), bits: 0 },
            IpAddr::V6(_) if !only => Place { start: port, bits: HOST_BITS + 1 },
            _ => Place { start: port | half, bits: HOST_BITS },
        }
    }

    /// Where a listener that is reached under `address` may be, the closest first.
    pub fn candidates(address: SocketAddr, space: Space) -> [Place; 3] {
        let any: IpAddr =
            if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let any = SocketAddr::new(any, address.port());
        let both = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
        [Place::of(address, space, false), Place::of(any, space, true), Place::of(both, space, false)]
    }

    /// Name of the socket that listens there.
    pub fn socket_name(self) -> String {
        format!("{}{:016x}-{}", socket_prefix(), self.start, self.bits)
    }

    fn from_socket_name(name: &str) -> Option<Place> {
        let (start, bits) = name.strip_prefix(&socket_prefix())?.split_once('-')?;
        let place = Place { start: i64::from_str_radix(start, 16).ok()?, bits: bits.parse().ok()? };
        (place.bits <= HOST_BITS + 1).then_some(place)
    }
}

fn host(ip: IpAddr) -> i64 {
    match ip {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => {
            // FNV-1a, folded to the bits that there are.
            let hash = v6
                .octets()
                .iter()
                .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
            ((hash ^ hash >> HOST_BITS) & ((1 << HOST_BITS) - 1)) as i64
        }
    }
}

fn socket_prefix() -> String {
    format!("softib-{}-cm-", folder::uid())
}

fn lock_path() -> PathBuf {
    folder::of_user().join(format!("softib-{}-ports", folder::uid()))
}

/// A port that is ours until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    /// None: given up to the parent of this process.
    file: Option<File>,
    place: Place,
    /// The address, with the port that was chosen.
    pub address: SocketAddr,
}

impl Reservation {
    /// Reserves an address; port 0 takes one of the dynamic ports. `shared`: others that share may have it, too.
    ///
    /// # Errors
    /// EADDRINUSE; ENOSPC, EACCES, ... of SOFTIB_DIR.
    pub fn take(address: SocketAddr, space: Space, only: bool, shared: bool) -> Result<Reservation, Errno> {
        if address.port() != 0 {
            return Reservation::at(address, space, only, shared);
        }
        let span = DYNAMIC.end() - DYNAMIC.start() + 1;
        // Anywhere, so that a port is not soon another's: a late request must not meet a stranger.
        let first = (timing::random() % u64::from(span)) as u16;
        for i in 0..span {
            let port = DYNAMIC.start() + (first + i) % span;
            match Reservation::at(SocketAddr::new(address.ip(), port), space, only, false) {
                Err(Errno(libc::EADDRINUSE)) => {}
                done => return done,
            }
        }
        Err(Errno(libc::EADDRNOTAVAIL))
    }

    fn at(address: SocketAddr, space: Space, only: bool, shared: bool) -> Result<Reservation, Errno> {
        let place = Place::of(address, space, only);
        let kind = if shared { libc::F_RDLCK } else { libc::F_WRLCK };
        lock_place(place, kind).map(|file| Reservation { file: Some(file), place, address })
    }

    /// Stops sharing the address with other reservations: its holder is going to listen.
    ///
    /// # Errors
    /// EADDRINUSE: another reservation shares it.
    pub fn make_exclusive(&self) -> Result<(), Errno> {
        let file = self.file.as_ref().ok_or(Errno::INVAL)?;
        if lock(file, self.place, libc::F_WRLCK)? { Ok(()) } else { Err(Errno(libc::EADDRINUSE)) }
    }

    /// In a fork child: lets go of the parent's lock without releasing it.
    pub fn leave_to_parent(mut self) {
        drop(self.file.take());
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        self.place
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // A failure ends with the close of the file all the same.
            let _ = lock(&file, self.place, libc::F_UNLCK);
            drop(file);
            files::sweep_one(&lock_path());
            folder::leave(&folder::of_user());
        }
    }
}

/// Locks a place in the file that the name leads to.
fn lock_place(place: Place, kind: i32) -> Result<File, Errno> {
    let path = lock_path();
    for _ in 0..ATTEMPTS {
        let file = files::open_shared(&path)?;
        if !lock(&file, place, kind)? {
            if is_swept(&file, place, kind)? {
                std::thread::yield_now();
                continue;
            }
            return Err(Errno(libc::EADDRINUSE));
        }
        let (ours, there) = (file.metadata()?, std::fs::symlink_metadata(&path));
        if there.is_ok_and(|there| (ours.dev(), ours.ino()) == (there.dev(), there.ino())) {
            return Ok(file);
        }
    }
    Err(Errno::BUSY)
}

fn range(place: Place, kind: i32) -> libc::flock {
    // SAFETY: flock is plain old data; zero is a valid value of every field (and l_pid must be 0).
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    (lock.l_start, lock.l_len) = (place.start, 1 << place.bits);
    lock
}

/// False if another descriptor holds a part of it.
fn lock(file: &File, place: Place, kind: i32) -> Result<bool, Errno> {
    let range = range(place, kind);
    // SAFETY: the descriptor is open and the struct outlives the call.
    match check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &range) }) {
        Ok(_) => Ok(true),
        Err(Errno(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether what stands in the way is gone, or is a sweep, which locks the whole file.
fn is_swept(file: &File, place: Place, kind: i32) -> Result<bool, Errno> {
    let mut range = range(place, kind);
    // SAFETY: the descriptor is open and the struct outlives the call.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut range) })?;
    let whole = range.l_start == 0 && range.l_len == 0;
    Ok(range.l_type == libc::F_UNLCK as libc::c_short || whole)
}

/// True if this is the name of a listening socket. It is removed if its process has ended, under
/// the place's lock.
pub fn sweep(path: &Path, name: &OsStr) -> bool {
    let Some(place) = name.to_str().and_then(Place::from_socket_name) else { return false };
    if let Ok(held) = lock_place(place, libc::F_WRLCK) {
        // A failure leaves a file that the next sweep finds.
        let _ = std::fs::remove_file(path);
        drop(held);
        files::sweep_one(&lock_path());
    }
    true
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn covers(binding: &str, only: bool, address: &str) -> bool {
        let (a, b) = (Place::of(binding.parse().unwrap(), Space::Tcp, only), address.parse().unwrap());
        let b = Place::of(b, Space::Tcp, false);
        let end = |p: Place| p.start + (1 << p.bits);
        a.start < end(b) && b.start < end(a)
    }

    #[test]
    fn a_wildcard_covers_its_family_and_the_dual_one_both() {
        assert!(covers("0.0.0.0:7", false, "10.1.2.3:7") && !covers("0.0.0.0:7", false, "[::1]:7"));
        assert!(covers("[::]:7", false, "10.1.2.3:7") && covers("[::]:7", false, "[fe80::1]:7"));
        assert!(!covers("[::]:7", true, "10.1.2.3:7") && covers("[::]:7", true, "[fe80::1]:7"));
        assert!(!covers("0.0.0.0:7", false, "10.1.2.3:8") && !covers("[::]:7", false, "[::]:8"));
        assert!(!covers("10.0.0.1:7", false, "10.0.0.2:7"));
        assert!(covers("255.255.255.255:65535", false, "[::]:65535"));
    }

    #[test]
    fn the_port_spaces_are_apart_and_no_place_is_out_of_range() {
        let last: SocketAddr = "[::]:65535".parse().unwrap();
        let places = [Space::Tcp, Space::Udp, Space::Ib].map(|space| Place::of(last, space, false));
        for (space, place) in (0_i64..).zip(places) {
            assert!(place.start >= space << 61, "{place:?}");
            assert!(place.start.checked_add((1 << place.bits) - 1).unwrap() < (space << 61) + (1 << 61));
        }
    }

    #[test]
    fn a_sockets_name_leads_back_to_its_place() {
        for address in ["1.2.3.4:5", "[::]:5", "0.0.0.0:65535", "[2001:db8::9]:1"] {
            let place = Place::of(address.parse().unwrap(), Space::Ib, true);
            assert_eq!(Place::from_socket_name(&place.socket_name()), Some(place));
        }
        assert_eq!(Place::from_socket_name("softib-0-cm-zz-1"), None);
        assert_eq!(Place::from_socket_name(&format!("{}0-99", socket_prefix())), None);
    }

    #[test]
    fn who_listens_for_an_address_is_found_by_one_of_three_names() {
        let [exact, family, both] = Place::candidates("127.0.0.1:9".parse().unwrap(), Space::Tcp);
        assert_eq!(exact, Place::of("127.0.0.1:9".parse().unwrap(), Space::Tcp, false));
        assert_eq!(family, Place::of("0.0.0.0:9".parse().unwrap(), Space::Tcp, false));
        assert_eq!(both, Place::of("[::]:9".parse().unwrap(), Space::Tcp, false));
        let [_, family, _] = Place::candidates("[::1]:9".parse().unwrap(), Space::Tcp);
        assert_eq!(family, Place::of("[::]:9".parse().unwrap(), Space::Tcp, true));
    }
}
