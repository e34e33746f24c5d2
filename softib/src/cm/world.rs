//! What the connection manager of this process knows: channels, ids, requests that are on their way in, the device.
//!
//! One lock guards it all; no call holds it while it waits. C structs carry the index of their entry, so a stale pointer's
//! fields are never trusted beyond that.

use super::alarm::Alarm;
use super::message::Side;
use crate::errno::Errno;
use crate::objects::CBox;
use crate::shm::ports::{Reservation, Space};
use rdma_cm_sys::{rdma_cm_event, rdma_cm_id, rdma_event_channel};
use rdma_sys::{ibv_context, ibv_pd, ibv_qp_init_attr, ibv_xrcd};
use slab::Slab;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A channel as programs see it, and its index; [`GONE`] once it is destroyed.
#[repr(C)]
#[derive(Debug)]
pub struct CChannel {
    /// What programs poll: the channel's `epoll`.
    pub fd: i32,
    /// Index in [`World::channels`].
    pub key: AtomicUsize,
}

/// The index of a channel that its program has destroyed.
pub const GONE: usize = usize::MAX;

/// An id as programs see it, and its index.
#[repr(C)]
pub struct CId {
    pub c: rdma_cm_id,
    /// Index in [`World::ids`].
    pub key: usize,
}

/// An event as programs see it, its id, and the private data that it points to.
#[repr(C)]
pub struct CEvent {
    pub c: rdma_cm_event,
    /// Whose events are counted.
    pub owner: usize,
    /// What `c.param` points to.
    pub private: Vec<u8>,
}

/// Where events arrive.
#[derive(Debug)]
pub struct Channel {
    pub c: CBox<CChannel>,
    /// What programs poll: sockets of the ids, the alarm, and `wake` while the queue holds something.
    pub epoll: OwnedFd,
    /// An eventfd, readable while `queue` holds something.
    pub wake: OwnedFd,
    /// Expires when a deadline of an id passes.
    pub alarm: Alarm,
    /// Events that wait to be taken, oldest first.
    pub queue: VecDeque<Pending>,
}

/// An event that waits to be taken.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    /// `rdma_cm_event_type`.
    pub kind: u32,
    /// The id that it is about.
    pub id: usize,
    /// Of a request: the id that listens.
    pub listener: Option<usize>,
    /// 0, a negative errno, or the reason of a rejection.
    pub status: i32,
    pub side: Side,
    pub private: Vec<u8>,
    /// Of a multicast group: what the program gave when it joined.
    pub context: usize,
}

/// Where an id stands. Names in brackets are the specification's (IBTA 12.9.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Fresh, or bound.
    Idle,
    Listening,
    AddressResolved,
    RouteResolved,
    /// Its request is out. [REQ Sent]
    Asked,
    /// A request is in, for the program to answer. [REQ Rcvd]
    Requested,
    /// Its reply is out. [REP Sent]
    Replied,
    /// A reply is in, for the program to establish. [REP Rcvd]
    Answered,
    /// [Established]
    Established,
    /// Its DREQ is out. [DREQ Sent]
    Leaving,
    /// The peer's DREQ is in, for the program to agree. [DREQ Rcvd]
    Left,
    /// [TimeWait]
    TimeWait,
    /// Nothing more happens to it.
    Over,
}

/// A group that an id has joined.
#[derive(Clone, Copy, Debug)]
pub struct Joined {
    pub ip: IpAddr,
    pub gid: [u8; 16],
    pub lid: u16,
    /// Its QP listens.
    pub attached: bool,
}

/// An id.
#[derive(Debug)]
pub struct Id {
    pub c: CBox<CId>,
    /// Index in [`World::channels`].
    pub channel: usize,
    /// Made without a channel: calls wait for their event.
    pub sync: bool,
    pub state: State,
    /// Whose ports it uses.
    pub space: Space,
    /// Of a UD queue pair: it looks its peer up and connects to none.
    pub datagram: bool,
    /// RDMA_OPTION_ID_REUSEADDR.
    pub reuse: bool,
    /// RDMA_OPTION_ID_AFONLY.
    pub only_v6: bool,
    /// Code of the timeout that the program wants its QP to have (RDMA_OPTION_ID_ACK_TIMEOUT).
    pub ack_timeout: Option<u8>,
    /// Keeps its port from other ids.
    pub reservation: Option<Reservation>,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    /// The connection to the peer, or what listens for some.
    pub socket: Option<OwnedFd>,
    /// When the state ends by itself.
    pub deadline: Option<Instant>,
    /// When a full backlog is tried again.
    pub retry: Option<Instant>,
    /// Until then a request that finds no listener looks again.
    pub searches_until: Option<Instant>,
    /// Our side of the connection, and the peer's once it is known.
    pub ours: Side,
    pub theirs: Option<Side>,
    /// Private data of a request that waits for room in a backlog.
    pub private: Vec<u8>,
    /// Events taken and not acknowledged.
    pub unacknowledged: u32,
    /// Holds the device.
    pub uses_device: bool,
    /// Made by `rdma_create_ep` to listen: what its connections' QPs shall be.
    pub template: Option<Template>,
    /// Objects that `rdma_create_qp` made beside the QP.
    pub owns: Owned,
    /// Multicast groups that it has joined.
    pub groups: Vec<Joined>,
}

/// What `rdma_create_ep` was given for the QPs of connections to come.
#[derive(Clone, Copy)]
pub struct Template {
    /// Their protection domain.
    pub pd: *mut ibv_pd,
    /// Their attributes.
    pub init: ibv_qp_init_attr,
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pd {:p}", self.pd)
    }
}

// SAFETY: pointers that the program vouches for until the id is destroyed, used only to make QPs with.
unsafe impl Send for Template {}

/// Which of an id's completion queues were made for it, and what they go with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owned {
    /// With its QP.
    pub send_cq: bool,
    /// With its QP.
    pub recv_cq: bool,
    /// The receive completion queue, with its XRC SRQ.
    pub srq_cq: bool,
}

/// A connection whose request has not come yet.
#[derive(Debug)]
pub struct Embryo {
    /// What its request is to come over.
    pub socket: OwnedFd,
    /// Index of the id that listens.
    pub listener: usize,
}

/// Where a message has come from: the connection of an id, or one whose request has not been looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Id(usize),
    Embryo(usize),
}

/// A message that has not arrived yet, as far as its receiver can tell.
#[derive(Debug)]
pub struct Late {
    /// Whose it is.
    pub from: Source,
    /// When it arrives.
    pub until: Instant,
    /// Its bytes.
    pub packet: Vec<u8>,
}

/// The device, opened when an id or a list of devices needs it.
#[derive(Debug, Default)]
pub struct Device {
    /// The open device; `None` while nothing uses it.
    pub context: Option<Verbs<ibv_context>>,
    /// Ids and lists of devices that use it.
    pub users: u32,
    /// Not closed by its last user.
    pub stays_open: bool,
    /// The domain of QPs that are made without one.
    pub pd: Option<Verbs<ibv_pd>>,
    /// The XRC domain of SRQs and receive queue pairs that are made without one.
    pub xrcd: Option<Verbs<ibv_xrcd>>,
}

/// A verbs object of ours.
pub struct Verbs<T>(pub *mut T);

impl<T> std::fmt::Debug for Verbs<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:p}", self.0)
    }
}

// SAFETY: verbs objects may be used from every thread.
unsafe impl<T> Send for Verbs<T> {}

/// See the module's description.
#[derive(Debug)]
pub struct World {
    /// Channels that are not destroyed.
    pub channels: Slab<Channel>,
    /// What programs have of the channels that they have destroyed: a thread of theirs may be about to read from one.
    pub gone: Vec<CBox<CChannel>>,
    /// Ids that are not destroyed.
    pub ids: Slab<Id>,
    /// Connections whose requests have not come yet.
    pub embryos: Slab<Embryo>,
    /// Messages that have not arrived yet.
    pub late: Vec<Late>,
    /// The device behind them.
    pub device: Device,
}

static WORLD: Mutex<World> = Mutex::new(World {
    channels: Slab::new(),
    gone: Vec::new(),
    ids: Slab::new(),
    embryos: Slab::new(),
    late: Vec::new(),
    device: Device { context: None, users: 0, stays_open: false, pd: None, xrcd: None },
});

/// Rung when an event is acknowledged.
pub static ACKNOWLEDGED: Condvar = Condvar::new();

/// The world. A panic of another thread leaves it as good as an error would.
pub fn world() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Index of an id that a program passed.
///
/// # Safety
/// `id` is null or an id of ours that is not destroyed.
pub unsafe fn id_key(id: *mut rdma_cm_id) -> Result<usize, Errno> {
    if id.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: it is not null (checked), so it is an id of ours that is not destroyed (caller); those begin a CId.
    Ok(unsafe { (*id.cast::<CId>()).key })
}

/// Index of a channel that a program passed.
///
/// # Safety
/// `channel` is null or a channel of ours; the memory of one that is destroyed stays.
pub unsafe fn channel_key(channel: *mut rdma_event_channel) -> Result<usize, Errno> {
    if channel.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: it is not null (checked), so it is a channel of ours (caller); those begin a CChannel.
    Ok(unsafe { (*channel.cast::<CChannel>()).key.load(Ordering::Relaxed) })
}

/// Registers, once, what must happen at exit and after fork.
pub fn install_process_hooks() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: plain functions that stay valid as long as this object is loaded.
    ONCE.call_once(|| unsafe {
        libc::atexit(at_exit);
        libc::pthread_atfork(None, None, Some(in_fork_child));
    });
}

/// A program that exits without destroying its ids leaves neither sockets nor ports behind.
extern "C" fn at_exit() {
    // A thread that holds the lock now is in a call; what it leaves is swept by the next process.
    let Ok(mut world) = WORLD.try_lock() else { return };
    for (_, id) in &mut world.ids {
        let Some(reservation) = id.reservation.take() else { continue };
        if id.state == State::Listening {
            super::carrier::unlink(&reservation.place().socket_name());
        }
        drop(reservation);
    }
}

/// Connections and ports stay the parent's alone: its end must be seen by its peers, however long the child lives.
extern "C" fn in_fork_child() {
    let Ok(mut world) = WORLD.try_lock() else { return };
    for (_, id) in &mut world.ids {
        (id.state, id.socket, id.uses_device) = (State::Over, None, false);
        if let Some(reservation) = id.reservation.take() {
            reservation.leave_to_parent();
        }
    }
    world.embryos.clear();
    world.late.clear();
    world.device = Device::default();
}

impl World {
    /// The id of this index.
    pub fn id(&mut self, key: usize) -> Result<&mut Id, Errno> {
        self.ids.get_mut(key).ok_or(Errno::INVAL)
    }
}

impl Id {
    /// What the program sees.
    pub fn c(&self) -> *mut rdma_cm_id {
        self.c.as_ptr().cast()
    }

    /// Writes both addresses where the program reads them.
    pub fn publish_addresses(&self) {
        let c = self.c();
        // SAFETY: our own struct; programs read it between calls.
        unsafe {
            if let Some(local) = self.local {
                (*c).route.addr.src_storage = super::address::emit(local);
            }
            if let Some(remote) = self.remote {
                (*c).route.addr.dst_storage = super::address::emit(remote);
            }
        }
    }

    /// The number of the id's own QP, if it has one.
    pub fn qp_num(&self) -> Option<u32> {
        // SAFETY: our own struct; a QP of the program's that lives as long as it is the id's.
        unsafe { (*self.c()).qp.as_ref() }.map(|qp| qp.qp_num)
    }
}

impl std::fmt::Debug for CId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "id {}", self.key)
    }
}
