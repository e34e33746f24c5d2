//! Addresses of ids: bound, resolved, and the route.

use super::world::{State, World};
use super::{address, device, qp};
use crate::errno::Errno;
use crate::shm::ports::Reservation;
use rdma_cm_sys::*;
use std::net::SocketAddr;

impl World {
    /// `rdma_bind_addr`: reserves the address; a specific one brings the device with it.
    pub fn bind(&mut self, key: usize, to: SocketAddr) -> Result<(), Errno> {
        let id = self.id(key)?;
        if id.state != State::Idle || id.reservation.is_some() {
            return Err(Errno::INVAL);
        }
        if !to.ip().is_unspecified() && !address::is_ours(to.ip()) {
            return Err(Errno(libc::EADDRNOTAVAIL));
        }
        let reservation = Reservation::take(to, id.space, id.only_v6, id.reuse)?;
        id.local = Some(reservation.address);
        id.reservation = Some(reservation);
        id.publish_addresses();
        if to.ip().is_unspecified() { Ok(()) } else { device::attach(self, key) }
    }

    /// `rdma_resolve_addr`: the answer, good or bad, is an event.
    pub fn resolve_address(
        &mut self,
        key: usize,
        from: Option<SocketAddr>,
        to: SocketAddr,
    ) -> Result<(), Errno> {
        let to = address::destination(to);
        if self.id(key)?.state != State::Idle {
            return Err(Errno::INVAL);
        }
        let group = to.ip().is_multicast();
        let source = from.or(self.id(key)?.local).map(|from| from.ip());
        if !group && !address::is_reached(source, to.ip()) {
            self.tell(key, RDMA_CM_EVENT_ADDR_ERROR, -libc::EHOSTUNREACH);
            return Ok(());
        }
        if self.id(key)?.reservation.is_none() {
            let from = from.unwrap_or(address::any_like(to));
            // Like a socket's: without a source of its own, the address that leads to the destination is the destination; to a
            // group, all do.
            let near = if group { address::destination(address::any_like(to)) } else { to };
            let ip = if from.ip().is_unspecified() { near.ip() } else { from.ip() };
            self.bind(key, SocketAddr::new(ip, from.port()))?;
        }
        device::attach(self, key)?;
        let id = self.id(key)?;
        if let Some(local) = id.local.filter(|local| local.ip().is_unspecified()) {
            id.local = Some(SocketAddr::new(to.ip(), local.port()));
        }
        id.ours = qp::fresh_side(id)?;
        (id.remote, id.state) = (Some(to), State::AddressResolved);
        id.publish_addresses();
        self.tell(key, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
        Ok(())
    }

    /// `rdma_resolve_route`: there is one, always.
    pub fn resolve_route(&mut self, key: usize) -> Result<(), Errno> {
        let id = self.id(key)?;
        if id.state != State::AddressResolved {
            return Err(Errno::INVAL);
        }
        id.state = State::RouteResolved;
        self.tell(key, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
        Ok(())
    }
}
