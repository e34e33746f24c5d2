//! The sockets that carry messages: packets between processes of one user, named in SOFTIB_DIR.
//!
//! The kernel keeps what was sent until it is read, in order, and tells when the other end is gone, however it went: no
//! repetition, no heartbeat. Names are reached through the directory's descriptor, so that they fit a socket address however
//! long SOFTIB_DIR is.

use super::message::MAX_LEN;
use crate::errno::{Errno, check};
use crate::shm::folder;
use crate::shm::segment;
use crate::shm::shortage::descriptors;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

/// Connections that wait to be looked at; more have to try again.
const BACKLOG: i32 = 1024;

/// What came out of a socket.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    Packet(Vec<u8>),
    /// Nothing now.
    Nothing,
    /// The other end is gone.
    End,
}

/// Listens under `name`. Who calls this owns the name: a socket that is there already is a dead process's.
pub fn listen(name: &str) -> Result<OwnedFd, Errno> {
    let _ = std::fs::remove_file(segment::directory().join(name));
    let socket = socket()?;
    with_address(name, |address, len| {
        // SAFETY: a socket of ours and an address of this length.
        check(unsafe { libc::bind(socket.as_raw_fd(), address, len) })
    })?;
    // SAFETY: a socket of ours.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
    Ok(socket)
}

/// Takes the name of a listening socket away.
pub fn unlink(name: &str) {
    // A failure leaves a file that the next sweep finds.
    let _ = std::fs::remove_file(segment::directory().join(name));
}

/// Connects to `name` without waiting. EAGAIN: too many do; ENOENT, ECONNREFUSED: no process of
/// this user listens.
pub fn connect(name: &str) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    with_address(name, |address, len| {
        // SAFETY: a socket of ours and an address of this length.
        check(unsafe { libc::connect(socket.as_raw_fd(), address, len) })
    })?;
    if is_of_our_user(&socket) { Ok(socket) } else { Err(Errno(libc::ECONNREFUSED)) }
}

/// The next connection of a listening socket that is of our user.
pub fn accept(listener: RawFd) -> Result<Option<OwnedFd>, Errno> {
    let (null, flags) = (std::ptr::null_mut(), libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    loop {
        // SAFETY: a socket of ours; the peer's address is not asked for.
        let socket = match check(unsafe { libc::accept4(listener, null, std::ptr::null_mut(), flags) }) {
            // SAFETY: a new descriptor that nothing else knows.
            Ok(fd) => unsafe { OwnedFd::from_raw_fd(fd) },
            Err(Errno(libc::EAGAIN | libc::ECONNABORTED | libc::EINTR)) => return Ok(None),
            Err(error) => return Err(descriptors(error)),
        };
        if is_of_our_user(&socket) {
            return Ok(Some(socket));
        }
    }
}

/// Whether the process at the other end, when it connected or listened, was this user's.
fn is_of_our_user(socket: &OwnedFd) -> bool {
    // SAFETY: plain C data; zeroes are valid.
    let mut peer: libc::ucred = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (fd, to) = (socket.as_raw_fd(), (&raw mut peer).cast());
    // SAFETY: a socket of ours, and room for the answer.
    let known = check(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len) });
    known.is_ok() && peer.uid == folder::uid()
}

/// Sends a packet without waiting. A peer that is gone is no error here: the end shows when the socket is read.
pub fn send(socket: RawFd, packet: &[u8]) -> Result<(), Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the packet outlives the call.
    let sent = unsafe { libc::send(socket, packet.as_ptr().cast(), packet.len(), flags) };
    match sent {
        -1 if matches!(Errno::last().0, libc::EPIPE | libc::ECONNRESET) => Ok(()),
        -1 => Err(Errno::last()),
        _ => Ok(()),
    }
}

/// Takes a packet out, without waiting.
pub fn receive(socket: RawFd) -> Received {
    match receive_once(socket) {
        // An end that did not read all that we sent resets the socket, once; what it has sent is still there.
        Err(Errno(libc::ECONNRESET)) => receive_once(socket).unwrap_or(Received::End),
        Err(Errno(libc::EAGAIN | libc::EINTR)) => Received::Nothing,
        received => received.unwrap_or(Received::End),
    }
}

fn receive_once(socket: RawFd) -> Result<Received, Errno> {
    let mut packet = vec![0_u8; MAX_LEN];
    // SAFETY: the buffer is ours and as long as said.
    let got = unsafe { libc::recv(socket, packet.as_mut_ptr().cast(), packet.len(), libc::MSG_DONTWAIT) };
    match usize::try_from(got) {
        Ok(0) => Ok(Received::End),
        Ok(len) => {
            packet.truncate(len);
            Ok(Received::Packet(packet))
        }
        Err(_) => Err(Errno::last()),
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no preconditions; the descriptor is new.
    Ok(unsafe { OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, kind, 0)).map_err(descriptors)?) })
}

fn with_address<T>(
    name: &str,
    then: impl FnOnce(*const libc::sockaddr, libc::socklen_t) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let folder: File = OpenOptions::new().read(true).custom_flags(flags).open(segment::directory())?;
    let path = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
    // SAFETY: sockaddr_un is plain data; zeroes are valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    // One byte stays 0: the end of the string.
    let room = address.sun_path.len() - 1;
    let room = address.sun_path.get_mut(..path.len().min(room + 1)).filter(|room| room.len() == path.len());
    for (to, from) in room.ok_or(Errno(libc::ENAMETOOLONG))?.iter_mut().zip(path.bytes()) {
        *to = from as libc::c_char;
    }
    then((&raw const address).cast(), size_of::<libc::sockaddr_un>() as libc::socklen_t)
}
