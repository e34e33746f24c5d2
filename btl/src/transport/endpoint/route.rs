//! X queues: the route to a peer's process.
#![forbid(unsafe_code)]

use super::retained::Retained;
use super::state::State;
use super::{Endpoint, Endpoints};
use crate::transport::channel::Connection;
use cpc::Route;
use verbs::SrqNum;

/// The route to a peer's process: the send queue pair to its node, and its SRQs there.
#[derive(Debug)]
pub struct XrcRoute<C> {
    /// The path: its send queue pair is that of a node.
    pub path: u32,
    /// The peer's SRQs, by queue of the layout.
    pub srqs: Vec<SrqNum>,
    /// In the headers of our messages.
    pub label: u32,
    /// Of a broken path: what was flushed.
    pub retained: Retained<C>,
    /// The next route, which is there before this one has been drained.
    pub next: Option<Route>,
}

impl<C> Endpoints<C> {
    /// Positions of those whose route goes over this path.
    pub fn on_path(&self, path: u32) -> impl Iterator<Item = u32> {
        self.iter().filter_map(move |(index, ep)| ep.is_on_path(path).then_some(index))
    }

    /// The connection's endpoint, if it waits for another route and this is the one that broke.
    pub fn on_hold(&mut self, to: Connection, path: u32) -> Option<&mut Endpoint<C>> {
        let current = self.has(to);
        let waits = |ep: &&mut Endpoint<C>| ep.state() == State::Connecting && ep.is_on_path(path);
        self.get_mut(to.index).filter(|_| current).filter(waits)
    }
}

impl<C> Endpoint<C> {
    /// This route is there. It comes back if it can be taken now; one that replaces a broken one
    /// waits until that is drained.
    pub fn offer(&mut self, route: Route) -> Option<Route> {
        match &mut self.route {
            Some(current) if self.outstanding != 0 => {
                current.next = Some(route);
                None
            }
            _ => Some(route),
        }
    }

    /// The next route, if there is one and nothing is in flight on the last one.
    pub fn next_route(&mut self) -> Option<Route> {
        if self.outstanding == 0 { self.route.as_mut()?.next.take() } else { None }
    }

    /// The send queue pair of its route is broken, and another route is on its way.
    pub fn is_rerouted(&self) -> bool {
        self.route.is_some() && self.state() == State::Connecting
    }

    fn is_on_path(&self, path: u32) -> bool {
        self.route.as_ref().is_some_and(|route| route.path == path)
    }
}

impl<C> XrcRoute<C> {
    /// Over this route of the connection manager.
    pub fn new(route: Route) -> XrcRoute<C> {
        XrcRoute {
            path: route.path,
            srqs: route.srqs,
            label: route.label,
            retained: Retained::default(),
            next: None,
        }
    }
}
