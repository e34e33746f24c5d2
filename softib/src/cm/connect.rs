//! Connections: what the calls of a program and the messages of its peer do to an id.
//!
//! ```text
//!   active                                              passive
//!   connect   Asked       ── REQ ──────────────────>    Requested   CONNECT_REQUEST
//!   RTR, RTS              <────────────────── REP ──    Replied     accept: RTR, RTS
//!   ESTABLISHED           ── RTU ──────────────────>    ESTABLISHED
//!   disconnect  Leaving   ── DREQ ─────────────────>    Left        DISCONNECTED
//!   DISCONNECTED          <───────────────── DREP ──    disconnect
//!   TIMEWAIT_EXIT                                       TIMEWAIT_EXIT
//! ```
//! An id without a QP of its own gets CONNECT_RESPONSE instead of ESTABLISHED and calls `rdma_establish` when its QP is up.
//! Datagram ids (SIDR) end with the reply. The end of a socket stands for the end of the peer's id, however it came.

use super::carrier::{self, Received};
use super::message::{Kind, Message, Side};
use super::qp;
use super::world::{Pending, Source, State, World};
use super::{device, iwarp, limits, reject};
use crate::abi::queue;
use crate::errno::Errno;
use crate::objects::qp::Stream;
use crate::shm::ports::Place;
use rdma_cm_sys::*;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// How long a full backlog is left alone before it is tried again.
const BACKLOG_PAUSE: Duration = Duration::from_millis(2);
/// How long a request looks for a listener. On a fabric it is under way for about as long, and
/// programs that close a listener and open the next one count on that: perftest's `-R` does between
/// its two connections.
const SEARCH: Duration = Duration::from_millis(20);
/// How long it waits before it looks again.
const SEARCH_PAUSE: Duration = Duration::from_millis(1);
/// How long an id that is disconnected stays, as far as programs can tell: nothing is late on a socket.
const TIME_WAIT: Duration = Duration::from_millis(10);
/// How long the end of a connection waits to be told while a completion of its queue pair is to be polled. On a fabric a DREQ takes longer than
/// the data before it. A program that finds its queue empty, looks at its events, and destroys the queue pair at DISCONNECTED, loses
/// what came in between (libfabric 1.17: docs/bugs/rxm-closes-before-it-polls.md); so its look at the events finds nothing, once.
const AFTER_DATA: Duration = Duration::from_millis(2);

impl World {
    /// `rdma_connect`: sends the request, or says with an event that there is no listener.
    pub fn connect(&mut self, key: usize, side: Side, private: Vec<u8>) -> Result<(), Errno> {
        let id = self.id(key)?;
        if !matches!(id.state, State::RouteResolved) {
            return Err(Errno::INVAL);
        }
        (id.ours, id.private) = (side, private);
        if device::is_iwarp() {
            iwarp::check(id)?;
        }
        id.state = State::Asked;
        let now = timing::now();
        (id.deadline, id.searches_until) = (Some(now + limits::patience()), Some(now + SEARCH));
        self.ask(key);
        self.arm_for(key);
        Ok(())
    }

    fn arm_for(&mut self, key: usize) {
        if let Some(channel) = self.ids.get(key).map(|id| id.channel) {
            self.arm(channel);
        }
    }

    /// Looks for a listener, and sends the request.
    fn ask(&mut self, key: usize) {
        let Some(id) = self.ids.get_mut(key) else { return };
        let Some(to) = id.remote else { return };
        id.retry = None;
        for place in Place::candidates(to, id.space) {
            match carrier::connect(&place.socket_name()) {
                Ok(socket) => {
                    id.socket = Some(socket);
                    return self.send_request(key);
                }
                Err(Errno(libc::EAGAIN)) => {
                    id.retry = Some(timing::now() + BACKLOG_PAUSE);
                    return;
                }
                Err(_) => {}
            }
        }
        let now = timing::now();
        if id.searches_until.is_some_and(|until| now < until) {
            id.retry = Some(now + SEARCH_PAUSE);
            return;
        }
        let nobody = if id.datagram {
            (RDMA_CM_EVENT_UNREACHABLE, reject::SIDR_UNSUPPORTED)
        } else {
            (RDMA_CM_EVENT_REJECTED, reject::INVALID_SERVICE_ID)
        };
        let status = if device::is_iwarp() { reject::IWARP } else { nobody.1 };
        self.finish(key, nobody.0, status);
    }

    fn send_request(&mut self, key: usize) {
        let private = self.ids.get_mut(key).map(|id| std::mem::take(&mut id.private)).unwrap_or_default();
        let sent = self.send(key, Kind::Req, 0, private).and_then(|()| self.watch_id(key));
        if let Err(error) = sent {
            self.finish(key, RDMA_CM_EVENT_UNREACHABLE, -error.0);
        }
    }

    /// Sends a message to the id's peer.
    fn send(&mut self, key: usize, kind: Kind, reason: i32, private: Vec<u8>) -> Result<(), Errno> {
        let id = self.id(key)?;
        let (Some(from), Some(to)) = (id.local, id.remote) else { return Err(Errno::INVAL) };
        let message = Message { kind, side: id.ours, reason: reason.unsigned_abs(), from, to, private };
        match &id.socket {
            Some(socket) => carrier::send(socket.as_raw_fd(), &message.emit()),
            // The peer is gone, and the program has been told, or will be.
            None => Ok(()),
        }
    }

    /// The connection is over before it began.
    fn finish(&mut self, key: usize, event: u32, status: i32) {
        self.ids.get(key).into_iter().for_each(iwarp::spend);
        self.close_socket(key);
        if let Some(id) = self.ids.get_mut(key) {
            (id.state, id.deadline, id.retry) = (State::Over, None, None);
        }
        self.tell(key, event, status);
    }

    /// `rdma_accept`, the peer's side being known: the reply goes out. QPs are up already.
    pub fn accept(&mut self, key: usize, side: Side, private: Vec<u8>) -> Result<(), Errno> {
        let id = self.id(key)?;
        if id.state != State::Requested {
            return Err(Errno::INVAL);
        }
        id.ours = side;
        if id.datagram {
            id.state = State::Over;
            return self.send(key, Kind::SidrRep, 0, private);
        }
        if device::is_iwarp() {
            return self.accept_stream(key, private);
        }
        id.state = State::Replied;
        id.deadline = Some(timing::now() + limits::patience());
        self.arm_for(key);
        self.send(key, Kind::Rep, 0, private)
    }

    /// The same on iWARP: the stream is up when the reply is on its way.
    fn accept_stream(&mut self, key: usize, private: Vec<u8>) -> Result<(), Errno> {
        iwarp::bring_up(self.id(key)?, Stream::Waits)?;
        self.send(key, Kind::Rep, 0, private)?;
        self.established(key);
        Ok(())
    }

    /// `rdma_reject`.
    pub fn reject(&mut self, key: usize, private: Vec<u8>) -> Result<(), Errno> {
        let id = self.id(key)?;
        if !matches!(id.state, State::Requested | State::Answered) {
            return Err(Errno::INVAL);
        }
        let (kind, reason) = match id.datagram {
            true => (Kind::SidrRep, reject::SIDR_REJECT),
            false => (Kind::Rej, reject::CONSUMER),
        };
        (id.state, id.deadline) = (State::Over, None);
        id.ours.mtu = id.ours.mtu.max(1);
        self.send(key, kind, reason, private)
    }

    /// `rdma_establish`: the QP, which is not the id's, is up.
    pub fn establish(&mut self, key: usize) -> Result<(), Errno> {
        let id = self.id(key)?;
        if id.state != State::Answered {
            return Err(Errno::INVAL);
        }
        (id.state, id.deadline) = (State::Established, None);
        self.send(key, Kind::Rtu, 0, Vec::new())
    }

    /// `rdma_notify` of COMM_EST: the peer has sent data, so it is up.
    pub fn notify_established(&mut self, key: usize) -> Result<(), Errno> {
        match self.id(key)?.state {
            State::Replied => {
                self.established(key);
                Ok(())
            }
            State::Established => Err(Errno(libc::EISCONN)),
            _ => Err(Errno::INVAL),
        }
    }

    /// `rdma_disconnect`: asks the peer, or agrees.
    pub fn disconnect(&mut self, key: usize) -> Result<(), Errno> {
        let id = self.id(key)?;
        match id.state {
            State::Established | State::Replied | State::Answered => {
                id.state = State::Leaving;
                id.deadline = Some(timing::now() + limits::patience());
                self.arm_for(key);
                self.send(key, Kind::Dreq, 0, Vec::new())
            }
            State::Left => {
                if id.deadline.take().is_some() {
                    self.tell(key, RDMA_CM_EVENT_DISCONNECTED, 0);
                }
                let sent = self.send(key, Kind::Drep, 0, Vec::new());
                self.wait_out(key);
                sent
            }
            // The peer may have gone since the program looked.
            State::Leaving | State::TimeWait | State::Over => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }

    /// The id is being destroyed: tells the peer what that means to it.
    pub fn abandon(&mut self, key: usize) {
        let Some(id) = self.ids.get(key) else { return };
        // A failure shows there as the end of the socket.
        let _ = match id.state {
            State::Asked | State::Requested | State::Answered if id.remote.is_some() && !id.datagram => {
                if let Some(id) = self.ids.get_mut(key) {
                    id.ours.mtu = id.ours.mtu.max(1);
                }
                self.send(key, Kind::Rej, reject::CONSUMER, Vec::new())
            }
            State::Established | State::Replied => self.send(key, Kind::Dreq, 0, Vec::new()),
            State::Left => self.send(key, Kind::Drep, 0, Vec::new()),
            _ => Ok(()),
        };
        if let Some(id) = self.ids.get(key) {
            iwarp::spend(id);
            if id.state == State::Established {
                iwarp::end(id);
            }
        }
        self.close_socket(key);
    }

    fn wait_out(&mut self, key: usize) {
        self.close_socket(key);
        if let Some(id) = self.ids.get_mut(key) {
            (id.state, id.deadline) = (State::TimeWait, Some(timing::now() + TIME_WAIT));
        }
        self.arm_for(key);
    }

    /// Something waits in an id's socket.
    pub fn id_readable(&mut self, key: usize) {
        if self.ids.get(key).is_some_and(|id| id.state == State::Listening) {
            return super::listen::accept_all(self, key);
        }
        while let Some(socket) = self.ids.get(key).and_then(|id| id.socket.as_ref()) {
            let socket = socket.as_raw_fd();
            match self.receive(Source::Id(key), socket) {
                Received::Packet(packet) => self.packet(key, &packet),
                Received::Nothing => return,
                Received::End => return self.peer_gone(key),
            }
        }
    }

    /// A message of an id's peer.
    pub fn packet(&mut self, key: usize, packet: &[u8]) {
        match Message::parse(packet) {
            Some(message) => self.message(key, message),
            None => log::warn!("connection manager: a packet of another version is ignored"),
        }
    }

    fn message(&mut self, key: usize, message: Message) {
        let Some(state) = self.ids.get(key).map(|id| id.state) else { return };
        match (state, message.kind) {
            (State::Asked, Kind::Rep) => self.replied(key, message),
            (State::Asked, Kind::SidrRep) => self.sidr_replied(key, message),
            // In Requested: the peer has let go of its request before the program looked at it.
            (State::Asked | State::Replied | State::Requested, Kind::Rej) => {
                let status = i32::try_from(message.reason).unwrap_or(reject::CONSUMER);
                let status = if device::is_iwarp() { reject::IWARP } else { status };
                self.over(
                    key,
                    RDMA_CM_EVENT_REJECTED,
                    status,
                    Side::default(),
                    limits::reject(message.private),
                );
            }
            (State::Replied, Kind::Rtu) => self.established(key),
            (State::Established | State::Replied | State::Answered, Kind::Dreq) => {
                self.unwatch_id(key);
                self.left(key);
            }
            (State::Leaving, Kind::Dreq) => {
                // Crossing wishes answer each other; the peer may have gone already.
                let _ = self.send(key, Kind::Drep, 0, Vec::new());
                self.disconnected(key, 0);
            }
            (State::Leaving, Kind::Drep | Kind::Rej) => self.disconnected(key, 0),
            _ => {}
        }
    }

    /// The peer has left. What it has sent is there to be polled, and the program is told after that.
    fn left(&mut self, key: usize) {
        let Some(id) = self.ids.get_mut(key) else { return };
        (id.state, id.deadline) = (State::Left, None);
        iwarp::end(id);
        if !queue::has_unpolled(id.ours.qpn) {
            return self.tell(key, RDMA_CM_EVENT_DISCONNECTED, 0);
        }
        id.deadline = Some(timing::now() + AFTER_DATA);
        self.arm_for(key);
    }

    fn disconnected(&mut self, key: usize, status: i32) {
        self.tell(key, RDMA_CM_EVENT_DISCONNECTED, status);
        self.wait_out(key);
    }

    fn established(&mut self, key: usize) {
        if let Some(id) = self.ids.get_mut(key) {
            (id.state, id.deadline) = (State::Established, None);
        }
        self.tell(key, RDMA_CM_EVENT_ESTABLISHED, 0);
    }

    fn over(&mut self, key: usize, kind: u32, status: i32, side: Side, private: Vec<u8>) {
        self.ids.get(key).into_iter().for_each(iwarp::spend);
        self.close_socket(key);
        if let Some(id) = self.ids.get_mut(key) {
            (id.state, id.deadline) = (State::Over, None);
        }
        self.push(Pending { kind, id: key, status, side, private, ..Pending::default() });
    }

    /// A reply: the id's own QP goes up here; without one the program does that.
    fn replied(&mut self, key: usize, message: Message) {
        let Some(id) = self.ids.get_mut(key) else { return };
        id.theirs = Some(message.side);
        let (own, private) = (id.qp_num().is_some(), limits::reply(message.private));
        let event = |kind| Pending { kind, id: key, side: message.side, private, ..Pending::default() };
        let brought_up = match (device::is_iwarp(), own) {
            (true, _) => iwarp::bring_up(id, Stream::Opens),
            (false, true) => qp::bring_up(id),
            (false, false) => {
                (id.state, id.deadline) = (State::Answered, None);
                return self.push(event(RDMA_CM_EVENT_CONNECT_RESPONSE));
            }
        };
        if let Err(error) = brought_up {
            // A failure shows there as the end of the socket.
            let _ = self.send(key, Kind::Rej, reject::CONSUMER, Vec::new());
            return self.finish(key, RDMA_CM_EVENT_CONNECT_ERROR, -error.0);
        }
        (id.state, id.deadline) = (State::Established, None);
        self.push(event(RDMA_CM_EVENT_ESTABLISHED));
        // A peer that is gone shows as the end of the socket.
        let _ = self.send(key, Kind::Rtu, 0, Vec::new());
    }

    fn sidr_replied(&mut self, key: usize, message: Message) {
        let private = limits::sidr_reply(message.private);
        match i32::try_from(message.reason) {
            Ok(0) => self.over(key, RDMA_CM_EVENT_ESTABLISHED, 0, message.side, private),
            status => {
                let status = status.unwrap_or(reject::SIDR_REJECT);
                self.over(key, RDMA_CM_EVENT_UNREACHABLE, status, message.side, private);
            }
        }
    }

    /// The peer's id is no more.
    fn peer_gone(&mut self, key: usize) {
        let Some(id) = self.ids.get(key) else { return };
        match id.state {
            State::Asked | State::Replied => self.finish(key, RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
            State::Requested | State::Answered => {
                self.finish(key, RDMA_CM_EVENT_CONNECT_ERROR, -libc::ECONNRESET);
            }
            State::Established => {
                self.close_socket(key);
                self.left(key);
            }
            State::Leaving => self.disconnected(key, 0),
            _ => self.close_socket(key),
        }
    }

    /// A deadline of an id has come.
    pub fn id_due(&mut self, key: usize, now: Instant) {
        let Some(id) = self.ids.get_mut(key) else { return };
        if id.deadline.is_none_or(|at| at > now) {
            return if id.retry.is_some_and(|at| at <= now) {
                self.ask(key)
            };
        }
        (id.deadline, id.retry) = (None, None);
        match id.state {
            State::Asked | State::Replied => self.finish(key, RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
            State::Leaving => self.disconnected(key, -libc::ETIMEDOUT),
            State::Left => self.tell(key, RDMA_CM_EVENT_DISCONNECTED, 0),
            State::TimeWait => {
                id.state = State::Over;
                self.tell(key, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
            }
            _ => {}
        }
    }
}
