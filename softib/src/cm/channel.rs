//! Event channels: one pollable descriptor over everything that may become an event.
//!
//! ```text
//!   channel.fd = epoll ── sockets of the ids        a packet, or the end of the peer
//!                      ── wake (eventfd)            set while the queue holds an event
//!                      ── alarm                     the next deadline of an id
//! ```
//! There is no thread: `rdma_get_cm_event` takes in what is ready, and returns the first event that comes of it. A descriptor
//! that was readable may turn out to hold none (a request that is sent again, a connection whose request is still to come): then a
//! non-blocking call says EAGAIN, and a blocking one waits on, for the event is near. Where none would come any more, the socket is
//! not watched: a program that takes a readable descriptor for an event would be held in a blocking call for ever.

use super::alarm::Alarm;
use super::message::Side;
use super::world::{
    CChannel, CEvent, Channel, GONE, Pending, Source, State, World, channel_key, install_process_hooks, world,
};
use crate::errno::{Errno, check};
use crate::objects::CBox;
use rdma_cm_sys::*;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const WAKE: u64 = 0;
const ALARM: u64 = 1;
/// Marks the number of an embryo.
const EMBRYO: u64 = 1 << 63;
const FIRST: u64 = 2;

/// Makes a channel.
pub fn create(world: &mut World) -> Result<usize, Errno> {
    install_process_hooks();
    let flags = libc::EPOLL_CLOEXEC;
    // SAFETY: no preconditions; each descriptor is new, and its owner made at once.
    let (epoll, wake) = unsafe {
        let epoll = OwnedFd::from_raw_fd(check(libc::epoll_create1(flags))?);
        let wake = OwnedFd::from_raw_fd(check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?);
        (epoll, wake)
    };
    watch(&epoll, wake.as_raw_fd(), WAKE)?;
    let entry = world.channels.vacant_entry();
    let key = entry.key();
    let alarm = Alarm::new(Clock { channel: key })?;
    watch(&epoll, alarm.as_raw_fd(), ALARM)?;
    let c = CBox::new(CChannel { fd: epoll.as_raw_fd(), key: AtomicUsize::new(key) });
    entry.insert(Channel { c, epoll, wake, alarm, queue: Default::default() });
    Ok(key)
}

/// Sets off a channel's alarm in a simulation.
struct Clock {
    channel: usize,
}

impl timing::Worker for Clock {
    fn turn(&mut self) -> Option<Instant> {
        let world = world();
        let due = world.next_due(self.channel)?;
        if due > timing::now() {
            return Some(due);
        }
        world.channels.get(self.channel)?.alarm.go_off();
        None
    }
}

fn watch(epoll: &OwnedFd, fd: RawFd, number: u64) -> Result<(), Errno> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number };
    // SAFETY: two descriptors of ours and an event that outlives the call.
    check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) })?;
    Ok(())
}

fn forget(epoll: &OwnedFd, fd: RawFd) {
    // Explicitly, because a fork child's copy of `fd` would keep it in the set. One that is not in it is no harm.
    // SAFETY: two descriptors of ours; the event is not looked at.
    unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
}

impl World {
    /// The channel of an id hears of its socket from now on. After the peer's DREQ only the end of the socket is to come, which
    /// makes no event.
    pub fn watch_id(&mut self, key: usize) -> Result<(), Errno> {
        let id = self.ids.get(key).ok_or(Errno::INVAL)?;
        if id.state == State::Left || self.is_late(Source::Id(key)) {
            return Ok(());
        }
        let (Some(socket), Some(channel)) = (&id.socket, self.channels.get(id.channel)) else {
            return Ok(());
        };
        watch(&channel.epoll, socket.as_raw_fd(), key as u64 + FIRST)
    }

    /// Closes an id's socket, which tells the peer.
    pub fn close_socket(&mut self, key: usize) {
        self.forget_late(Source::Id(key));
        let Some(id) = self.ids.get_mut(key) else { return };
        if let (Some(socket), Some(channel)) = (id.socket.take(), self.channels.get(id.channel)) {
            forget(&channel.epoll, socket.as_raw_fd());
        }
    }

    /// Takes an id's socket out of its channel, for another.
    pub fn unwatch_id(&mut self, key: usize) {
        let Some(id) = self.ids.get(key) else { return };
        if let (Some(socket), Some(channel)) = (&id.socket, self.channels.get(id.channel)) {
            forget(&channel.epoll, socket.as_raw_fd());
        }
    }

    /// A source is not watched until it is again.
    pub fn unwatch(&mut self, source: Source) {
        let embryo = match source {
            Source::Id(key) => return self.unwatch_id(key),
            Source::Embryo(embryo) => self.embryos.get(embryo),
        };
        let channel = embryo.and_then(|e| self.channels.get(self.ids.get(e.listener)?.channel));
        if let (Some(embryo), Some(channel)) = (embryo, channel) {
            forget(&channel.epoll, embryo.socket.as_raw_fd());
        }
    }

    /// A listener's channel hears of a new connection from now on.
    pub fn watch_embryo(&mut self, embryo: usize) -> Result<(), Errno> {
        let e = self.embryos.get(embryo).ok_or(Errno::INVAL)?;
        let listener = self.ids.get(e.listener).ok_or(Errno::INVAL)?;
        let channel = self.channels.get(listener.channel).ok_or(Errno::INVAL)?;
        watch(&channel.epoll, e.socket.as_raw_fd(), embryo as u64 | EMBRYO)
    }

    /// Takes a new connection's socket over; its listener's channel watches it no longer.
    pub fn take_embryo(&mut self, embryo: usize) -> Option<(OwnedFd, usize)> {
        self.forget_late(Source::Embryo(embryo));
        let e = self.embryos.try_remove(embryo)?;
        let channel = self.ids.get(e.listener).and_then(|listener| self.channels.get(listener.channel));
        if let Some(channel) = channel {
            forget(&channel.epoll, e.socket.as_raw_fd());
        }
        Some((e.socket, e.listener))
    }

    /// Queues an event for the reader of the id's channel.
    pub fn push(&mut self, event: Pending) {
        let owner = event.listener.unwrap_or(event.id);
        let channel = self.ids.get(owner).map(|id| id.channel).and_then(|c| self.channels.get_mut(c));
        let Some(channel) = channel else { return };
        channel.queue.push_back(event);
        // SAFETY: an eventfd of ours; its counter cannot overflow, and a failure would mean that it is set already.
        unsafe { libc::eventfd_write(channel.wake.as_raw_fd(), 1) };
    }

    /// Queues an event without parameters.
    pub fn tell(&mut self, id: usize, kind: u32, status: i32) {
        self.push(Pending { kind, id, status, ..Pending::default() });
    }

    /// The next deadline of a channel's ids, or the arrival of a message that is late.
    fn next_due(&self, channel: usize) -> Option<Instant> {
        let mine = self.ids.iter().filter(|(_, id)| id.channel == channel);
        let due = mine.flat_map(|(_, id)| [id.deadline, id.retry]).flatten();
        due.chain(self.next_late(channel)).min()
    }

    /// Sets the channel's alarm for its next deadline.
    pub fn arm(&mut self, channel: usize) {
        let due = self.next_due(channel);
        if let Some(channel) = self.channels.get(channel) {
            channel.alarm.set(due);
        }
    }

    /// Takes in what is ready on a channel; whether there may be more. A program that waits for an edge of the descriptor (EPOLLET) is
    /// not told again of what is left.
    fn pump(&mut self, key: usize) -> bool {
        let Some(channel) = self.channels.get(key) else { return false };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: room for 64 events, and no wait.
        let count = unsafe { libc::epoll_wait(channel.epoll.as_raw_fd(), events.as_mut_ptr(), 64, 0) };
        let count = usize::try_from(count).unwrap_or(0);
        for event in events.iter().take(count) {
            let number = event.u64;
            match number {
                WAKE => {}
                ALARM => self.deadlines(key),
                embryo if embryo & EMBRYO != 0 => self.embryo_readable((embryo & !EMBRYO) as usize),
                id => self.id_readable((id - FIRST) as usize),
            }
        }
        count == events.len()
    }

    fn deadlines(&mut self, channel: usize) {
        if let Some(channel) = self.channels.get(channel) {
            channel.alarm.reset();
        }
        let now = timing::now();
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let late: Vec<usize> = self
            .ids
            .iter()
            .filter(|(_, id)| id.channel == channel && (due(id.deadline) || due(id.retry)))
            .map(|(key, _)| key)
            .collect();
        late.into_iter().for_each(|key| self.id_due(key, now));
        self.late_ones_arrive(channel, now);
        self.arm(channel);
    }

    /// The next event of the queue, as the program gets it.
    fn take(&mut self, key: usize) -> Option<*mut rdma_cm_event> {
        let channel = self.channels.get_mut(key)?;
        let event = channel.queue.pop_front()?;
        if channel.queue.is_empty() {
            let mut count = 0;
            // SAFETY: an eventfd of ours and room for its counter. Nothing to read is fine.
            unsafe { libc::eventfd_read(channel.wake.as_raw_fd(), &mut count) };
        }
        let owner = event.listener.unwrap_or(event.id);
        let id = self.ids.get(event.id)?.c();
        let listener = event.listener.and_then(|l| self.ids.get(l)).map_or(std::ptr::null_mut(), |l| l.c());
        self.ids.get_mut(owner)?.unacknowledged += 1;
        let datagram = self.ids.get(event.id).is_some_and(|id| id.datagram);
        let mut boxed = Box::new(CEvent { c: rdma_cm_event::default(), owner, private: event.private });
        let private = boxed.private.as_ptr().cast();
        let private = if boxed.private.is_empty() { std::ptr::null() } else { private };
        let len = boxed.private.len() as u8;
        (boxed.c.id, boxed.c.listen_id) = (id, listener);
        (boxed.c.event, boxed.c.status) = (event.kind, event.status);
        boxed.c.param = if datagram {
            let mut ud = super::qp::ud_param(&event.side);
            let group = event.context != 0;
            (ud.private_data, ud.private_data_len) =
                if group { (event.context as *const libc::c_void, 0) } else { (private, len) };
            rdma_cm_event_param { ud }
        } else {
            rdma_cm_event_param { conn: conn_param(&event.side, private, len) }
        };
        Some(Box::into_raw(boxed).cast())
    }

    /// Drops what is queued about an id that is being destroyed; requests to it go with their own ids, which are returned.
    pub fn discard_events(&mut self, key: usize) -> Vec<usize> {
        let mut orphans = Vec::new();
        let Some(channel) = self.ids.get(key).and_then(|id| self.channels.get_mut(id.channel)) else {
            return orphans;
        };
        channel.queue.retain(|event| {
            let mine = event.id == key || event.listener == Some(key);
            if mine && event.id != key {
                orphans.push(event.id);
            }
            !mine
        });
        if channel.queue.is_empty() {
            let mut count = 0;
            // SAFETY: an eventfd of ours and room for its counter. Nothing to read is fine.
            unsafe { libc::eventfd_read(channel.wake.as_raw_fd(), &mut count) };
        }
        orphans
    }
}

/// What the peer asked for, seen from here: its depth is what we have to serve, and the other way round.
fn conn_param(side: &Side, private: *const libc::c_void, len: u8) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private,
        private_data_len: len,
        responder_resources: side.initiator_depth,
        initiator_depth: side.responder_resources,
        flow_control: side.flow_control,
        retry_count: side.retry_count,
        rnr_retry_count: side.rnr_retry_count,
        srq: side.srq,
        qp_num: side.qpn,
    }
}

/// Ends a channel. The struct that its program has stays: a thread of it may be about to read from it.
pub fn destroy(world: &mut World, key: usize) {
    if let Some(channel) = world.channels.try_remove(key) {
        // SAFETY: alive as long as the channel, which owns it.
        unsafe { (*channel.c.as_ptr()).key.store(GONE, Ordering::Relaxed) };
        world.gone.push(channel.c);
    }
}

/// The next event of a channel of a program. Waits for one unless the descriptor is non-blocking.
///
/// # Safety
/// `channel` was made by [`create`]; it may have been destroyed.
pub unsafe fn next_event(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, Errno> {
    // SAFETY: create() made the channel, as the caller says, and destroy() keeps its struct: it is
    // alive even when the channel is gone.
    let key = || unsafe { channel_key(channel) };
    loop {
        let outcome = event_or_wait(key()?);
        if key()? == GONE {
            wait_for_ever();
        }
        if let Some(event) = outcome? {
            return Ok(event);
        }
    }
}

/// The next event of a channel that is our own.
pub fn next_event_of(key: usize) -> Result<*mut rdma_cm_event, Errno> {
    loop {
        if let Some(event) = event_or_wait(key)? {
            return Ok(event);
        }
    }
}

/// An event, if there is one; else waits until there may be one, unless the descriptor is non-blocking.
fn event_or_wait(key: usize) -> Result<Option<*mut rdma_cm_event>, Errno> {
    let fd = {
        let mut world = world();
        let fd = world.channels.get(key).ok_or(Errno::INVAL)?.epoll.as_raw_fd();
        if let Some(event) = world.take(key) {
            return Ok(Some(event));
        }
        let more = world.pump(key);
        let event = world.take(key);
        if event.is_some() || more {
            return Ok(event);
        }
        fd
    };
    // SAFETY: a descriptor that the program keeps open while it calls us.
    if check(unsafe { libc::fcntl(fd, libc::F_GETFL) })? & libc::O_NONBLOCK != 0 {
        return Err(Errno(libc::EAGAIN));
    }
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, and room for the answer.
    match check(unsafe { libc::poll(&mut poll, 1, -1) }) {
        Err(Errno(libc::EINTR)) if signals_restart() => Ok(None),
        answer => answer.map(|_| None),
    }
}

/// Signals of faults, whose handlers (the Rust runtime's, ours, those that print a backtrace) say nothing of a wait.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT];

/// Whether a wait goes on after the handler of a signal. The kernel's rdma_cm restarts the call if that handler was installed with
/// SA_RESTART (signal(7)); poll never does, and does not say which handler has run. So it goes on if all that are installed say so.
#[cold]
fn signals_restart() -> bool {
    (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal)).all(|signal| {
        // SAFETY: sigaction is plain C data, for which zeroes are valid, and the call fills it.
        let (known, action) = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (libc::sigaction(signal, std::ptr::null(), &mut action) == 0, action)
        };
        let handled = known && !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        !handled || action.sa_flags & libc::SA_RESTART != 0
    })
}

/// The channel was destroyed under a thread that waits on it. A thread that reads the kernel's descriptor while another closes
/// it is not woken by that, and programs rely on it: rping's thread would take an error for the end of the process.
#[cold]
fn wait_for_ever() -> ! {
    loop {
        // SAFETY: no preconditions; it returns after a signal.
        unsafe { libc::pause() };
    }
}
