//! The device's objects, as plain Rust structs that own the C structs handed out for them.
//!
//! A C struct carries its object's index in `handle`; every call looks the object up again, so a stale
//! pointer's fields are never trusted beyond that. All objects live in the engine's state, under its lock.
//!
//! ```text
//! cq       completion queues and channels          events   contexts, asynchronous events
//! extended C structs of extended queues            parent   parent domains, thread domains
//! mr       protection domains, memory regions      grant    what a queue pair lets its peer do with them
//! mw       memory windows                          binds    windows on regions
//! recvq    receive queues (RQ and SRQ), private part
//! srq      shared receive queues                   groups   multicast groups
//! work     send requests, and what they wait for   sges     gather and scatter lists
//! peer     another process, as senders see it      peers    all of these
//! xrc      domains, handles of their queue pairs   arrival  an XRC message's way to an SRQ
//! reply    answers to requests for memory          faults   a plan of faults, and one under way
//! shared   memory that peers map                   mapped_files  files of peers' programs, mapped here
//! filling  buffers of peers that we fill           fillers  peers that fill ours
//! moves    how data moves: by rings, or by hand    xrc_link what `peer` is, for XRC
//! world    all of these but queue pairs
//! qp       queue pairs                             qp_state the state machine's attribute table (pure)
//! table    objects by index, the recent one at once
//! ```

/// Where an XRC message goes.
pub mod arrival;
mod binds;
/// [`cq::Cq`], [`cq::Channel`].
pub mod cq;
/// [`events::Context`], [`events::Event`].
pub mod events;
/// [`expected::Expected`].
pub mod expected;
/// [`extended::CqEx`], [`extended::QpEx`].
pub mod extended;
/// [`faults::plan::Plan`].
pub mod faults;
/// Initiators that fill our receives.
pub mod fillers;
/// [`filling::Filling`].
pub mod filling;
/// [`grant::Grant`].
pub mod grant;
/// [`groups::Groups`].
pub mod groups;
/// [`mapped_files::MappedFiles`].
pub mod mapped_files;
/// [`moves::Moves`].
pub mod moves;
/// [`mr::Mrs`], [`mr::Pd`].
pub mod mr;
/// [`mw::Window`].
pub mod mw;
/// [`parent::Parent`], [`parent::Td`].
pub mod parent;
/// [`peer::Peer`], and a queue pair's [`peer::Link`] to one.
pub mod peer;
/// [`peers::Peers`].
pub mod peers;
/// [`qp::Qp`].
pub mod qp;
/// Transitions and their attributes (IBTA 11.2.5.2).
pub mod qp_state;
/// [`recvq::RecvQ`].
pub mod recvq;
/// [`reply::Reply`].
pub mod reply;
/// Copies from and to SGEs.
pub mod sges;
/// [`shared::SharedMemory`].
pub mod shared;
/// [`srq::Srq`].
pub mod srq;
mod table;
/// [`work::Work`], and [`work::Queued`] where it waits.
pub mod work;
/// [`world::World`], [`world::Stats`].
pub mod world;
/// [`xrc::Xrc`], [`xrc::Domain`], [`xrc::Handle`].
pub mod xrc;
/// [`xrc_link::SendLink`].
pub mod xrc_link;

use std::ptr::NonNull;

/// A C struct that we hand out and own: a fixed address, freed with its object.
pub struct CBox<T>(NonNull<T>);

impl<T> std::fmt::Debug for CBox<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:p}", self.0)
    }
}

// SAFETY: CBox owns its allocation like a Box; the C side synchronises its own use of the struct.
unsafe impl<T> Send for CBox<T> {}

impl<T> CBox<T> {
    /// Moves a value to the heap, where C may point to it.
    pub fn new(value: T) -> CBox<T> {
        CBox(NonNull::from(Box::leak(Box::new(value))))
    }

    /// Its address, which stays the same as long as the box lives.
    pub fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> Drop for CBox<T> {
    fn drop(&mut self) {
        // SAFETY: made by Box::leak in new(), dropped once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A C struct of zeroes, as C programs make it with memset.
///
/// # Safety
/// All-zero must be a valid value of `T`.
pub unsafe fn zeroed<T>() -> T {
    // SAFETY: the caller vouches that all-zero is a valid value of `T`.
    unsafe { std::mem::zeroed() }
}
