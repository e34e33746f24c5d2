//! The listening side: requests become ids of their own.

use super::carrier::{self, Received};
use super::message::{Kind, Message, Side};
use super::world::{CId, Embryo, Id, Pending, Source, State, World};
use super::{device, limits, qp, reject};
use crate::errno::Errno;
use crate::objects::CBox;
use crate::shm::ports::Space;
use rdma_cm_sys::*;
use rdma_sys::{IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND};
use std::ffi::c_void;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

/// A fresh id, and its index.
pub fn new_id(world: &mut World, channel: usize, sync: bool, space: Space, qp_type: u32) -> usize {
    let entry = world.ids.vacant_entry();
    let key = entry.key();
    let c = rdma_cm_id {
        ps: space.number(),
        qp_type,
        channel: world.channels.get(channel).map_or(std::ptr::null_mut(), |c| c.c.as_ptr().cast()),
        ..Default::default()
    };
    entry.insert(Id {
        c: CBox::new(CId { c, key }),
        channel,
        sync,
        state: State::Idle,
        space,
        datagram: space == Space::Udp || (space == Space::Ib && qp_type == IBV_QPT_UD),
        reuse: false,
        only_v6: false,
        ack_timeout: None,
        reservation: None,
        local: None,
        remote: None,
        socket: None,
        deadline: None,
        retry: None,
        searches_until: None,
        ours: Default::default(),
        theirs: None,
        private: Vec::new(),
        unacknowledged: 0,
        uses_device: false,
        template: None,
        owns: Default::default(),
        groups: Vec::new(),
    });
    key
}

/// `rdma_listen` on a bound id.
pub fn listen(world: &mut World, key: usize) -> Result<(), Errno> {
    let id = world.id(key)?;
    let reservation = id.reservation.as_ref().ok_or(Errno::INVAL)?;
    if id.state != State::Idle {
        return Err(Errno::INVAL);
    }
    reservation.make_exclusive()?;
    id.socket = Some(carrier::listen(&reservation.place().socket_name())?);
    id.state = State::Listening;
    world.watch_id(key)
}

/// A listening id's socket loses its name, so that no further request finds it.
pub fn stop(world: &mut World, key: usize) {
    let Some(id) = world.ids.get(key).filter(|id| id.state == State::Listening) else { return };
    if let Some(reservation) = &id.reservation {
        carrier::unlink(&reservation.place().socket_name());
    }
    world.close_socket(key);
    let waiting: Vec<usize> =
        world.embryos.iter().filter(|(_, e)| e.listener == key).map(|(embryo, _)| embryo).collect();
    waiting.into_iter().for_each(|embryo| drop(world.take_embryo(embryo)));
}

/// Takes the connections of a listening socket in; their requests are read when they come.
pub fn accept_all(world: &mut World, listener: usize) {
    while let Some(socket) = world.ids.get(listener).and_then(|id| id.socket.as_ref()) {
        match carrier::accept(socket.as_raw_fd()) {
            Ok(Some(socket)) => {
                let embryo = world.embryos.insert(Embryo { socket, listener });
                if let Err(error) = world.watch_embryo(embryo) {
                    log::warn!("connection manager: a request can't be taken in: {error}");
                    drop(world.take_embryo(embryo));
                    continue;
                }
                // Most requests are there already.
                world.embryo_readable(embryo);
            }
            Ok(None) => return,
            Err(error) => {
                // Out of descriptors, mostly: the peers wait in the backlog.
                return log::warn!("connection manager: a request can't be taken in: {error}");
            }
        }
    }
}

/// Whether a queue pair of type `theirs` can be connected to one of type `ours`.
fn is_met_by(theirs: u32, ours: u32) -> bool {
    ours == if theirs == IBV_QPT_XRC_SEND { IBV_QPT_XRC_RECV } else { theirs }
}

/// A request for another type of queue pair than the listener's is refused without asking its program, as the kernel does.
fn refuse_type(socket: &OwnedFd, request: &Message) -> Result<(), Errno> {
    let (kind, reason) = (Kind::Rej, reject::CONSUMER.unsigned_abs());
    let side = Side { mtu: 1, ..Side::default() };
    let (from, to) = (request.to, request.from);
    carrier::send(socket.as_raw_fd(), &Message { kind, side, reason, from, to, private: Vec::new() }.emit())
}

impl World {
    /// A new connection's request is there, or its end.
    pub fn embryo_readable(&mut self, embryo: usize) {
        let Some(socket) = self.embryos.get(embryo).map(|e| e.socket.as_raw_fd()) else { return };
        match self.receive(Source::Embryo(embryo), socket) {
            Received::Nothing => {}
            Received::Packet(packet) => self.first_packet(embryo, Some(&packet)),
            Received::End => self.first_packet(embryo, None),
        }
    }

    /// What a new connection begins with: its request, if it is one.
    pub fn first_packet(&mut self, embryo: usize, packet: Option<&[u8]>) {
        let request = packet.and_then(Message::parse).filter(|m| m.kind == Kind::Req);
        let Some((socket, listener)) = self.take_embryo(embryo) else { return };
        if let Some(request) = request
            && let Err(error) = self.request(listener, socket, request)
        {
            log::warn!("connection manager: a request can't be taken in: {error}");
        }
    }

    /// A request becomes an id, and the listener's program is told.
    fn request(&mut self, listener: usize, socket: OwnedFd, request: Message) -> Result<(), Errno> {
        let parent = self.ids.get(listener).ok_or(Errno::INVAL)?;
        let (channel, datagram, bound) = (parent.channel, parent.datagram, parent.local);
        // SAFETY: our own struct; the program's pointer is only passed on.
        let (space, context, qp_type) =
            unsafe { (parent.space, (*parent.c()).context, (*parent.c()).qp_type) };
        if space == Space::Ib && !is_met_by(u32::from(request.side.qp_type), qp_type) {
            return refuse_type(&socket, &request);
        }
        let key = new_id(self, channel, false, space, qp_type);
        if let Err(error) = device::attach(self, key) {
            self.ids.remove(key);
            return Err(error);
        }
        let made = self.requested((key, listener), socket, request, (bound, context, datagram));
        made.inspect_err(|_| {
            self.abandon(key);
            self.ids.try_remove(key);
            device::close(self);
        })
    }

    /// Fills the id of a request in, and tells the listener's program.
    fn requested(
        &mut self,
        (key, listener): (usize, usize),
        socket: OwnedFd,
        request: Message,
        (bound, context, datagram): (Option<SocketAddr>, *mut c_void, bool),
    ) -> Result<(), Errno> {
        let side = request.side;
        let port = bound.map_or(0, |b| b.port());
        let id = self.id(key)?;
        // SAFETY: our own struct, not yet handed out.
        unsafe { (*id.c()).context = context };
        (id.local, id.remote) = (Some(SocketAddr::new(request.to.ip(), port)), Some(request.from));
        (id.socket, id.state, id.theirs) = (Some(socket), State::Requested, Some(side));
        // Until the program says otherwise, it is what the peer asks for.
        id.ours = Side {
            responder_resources: side.initiator_depth,
            initiator_depth: side.responder_resources,
            ..qp::fresh_side(id)?
        };
        id.publish_addresses();
        self.watch_id(key)?;
        let private =
            if datagram { limits::sidr_request(request.private) } else { limits::request(request.private) };
        let kind = RDMA_CM_EVENT_CONNECT_REQUEST;
        self.push(Pending { kind, id: key, listener: Some(listener), side, private, ..Pending::default() });
        Ok(())
    }
}
