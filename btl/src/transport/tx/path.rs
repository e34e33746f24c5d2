//! X queues: all processes of a node behind one send queue pair.
//!
//! ```text
//!   endpoint B ─ route ─┐                    SRQ numbers of B, label of ours at B
//!   endpoint C ─ route ─┴─> path (send QP) ──> node: receive QP ──> SRQs of B, SRQs of C
//! ```
//! * Lanes have no queue pair of their own. A message is posted to the path's, and names the SRQ of
//!   its peer's queue.
//! * Who sent a message is in its header, where other queues have credits: the *label* that the
//!   receiver has given out.
//! * Everything goes from registered buffers, which are kept until the completion. So when a work
//!   request fails because one process of the node is gone, the others' that were flushed behind it
//!   are posted again over the next send queue pair, in their order, and only that process is lost
//!   (`replay`). Messages are numbered: one that had arrived all the same is dropped when it comes
//!   again.
//! * The path holds what may be in flight on all queues, so messages need no counting of their own;
//!   RDMA operations do.
#![forbid(unsafe_code)]

use crate::protocol::pending::LaneId;
use crate::transport::channel::{Channel, LineId, Request};
use crate::transport::endpoint::numbers::MOST_PEERS;
use crate::transport::endpoint::route::{Kept, XrcRoute};
use crate::transport::endpoint::state::{Event, State};
use crate::transport::port::Domain;
use crate::transport::{AddError, Transport};
use cpc::Route;
use std::collections::{HashMap, HashSet, VecDeque};

/// What a transport with X queues has besides.
#[derive(Debug)]
pub struct Xrc {
    /// Ours; peers of this node have it open, too.
    _domain: Domain,
    pub(crate) paths: HashMap<u32, Path>,
    /// Broken ones that are done with, for endpoints that hear of them late.
    gone: HashSet<u32>,
}

/// A send queue pair, and the endpoints that use it.
#[derive(Debug)]
pub struct Path {
    pub(crate) channel: Channel,
    /// RDMA operations in flight.
    pub(crate) rdma: u32,
    /// Endpoints that wait for one of them to be over, each once; what became of one meanwhile is
    /// seen when it has its turn.
    pub(crate) waiting: VecDeque<u32>,
    /// It is in the error state; what has not completed is flushed.
    pub(crate) broken: bool,
}

impl From<Domain> for Xrc {
    /// No path yet.
    fn from(domain: Domain) -> Xrc {
        Xrc { _domain: domain, paths: HashMap::new(), gone: HashSet::new() }
    }
}

impl<C> Transport<C> {
    /// One more endpoint can be named by a label.
    pub(crate) fn check_label(&self) -> Result<(), AddError> {
        match self.xrc.is_some() && self.endpoints.count() >= MOST_PEERS {
            true => Err(AddError::TooMany(MOST_PEERS)),
            false => Ok(()),
        }
    }

    /// The connection manager has found a route to the peer. One that replaces a broken one waits
    /// until that is drained.
    pub(crate) fn routed(&mut self, index: u32, route: Route) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        match &mut ep.route {
            Some(current) if ep.outstanding != 0 => current.next = Some(route),
            _ => self.take_route(index, route),
        }
    }

    /// Takes the next route if there is one and nothing is in flight on the last one.
    pub(crate) fn take_next(&mut self, index: u32) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        if ep.outstanding == 0
            && let Some(route) = ep.route.as_mut().and_then(|current| current.next.take())
        {
            self.take_route(index, route);
        }
    }

    fn take_route(&mut self, index: u32, route: Route) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        if !matches!(ep.state(), State::Idle | State::Connecting) {
            return;
        }
        let known = self.xrc.as_mut().map(|xrc| xrc.note(&route));
        if known == Some(false) {
            // It broke before this endpoint heard of it.
            return self.reroute(index);
        }
        let (old, new) = (ep.route.take(), XrcRoute::new(route));
        if old.is_none() {
            ep.lanes.iter_mut().for_each(|lane| lane.attach_shared());
        }
        ep.route = Some(Box::new(new));
        self.on_event(index, Event::QpsCreated);
        if let Some(old) = old {
            self.post_again(index, *old);
        }
        self.on_event(index, Event::CpcConnected);
    }

    /// What the broken path has not carried out goes before everything that has waited since.
    fn post_again(&mut self, index: u32, old: XrcRoute<C>) {
        self.stats.replayed += old.kept() as u64;
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        old.operations.into_iter().rev().for_each(|operation| ep.rdma.push_front(operation));
        for Kept { queue, buf, total } in old.messages {
            if let Err(error) = self.post::<0>(LaneId { peer: index, queue }, Request::Message { buf, total })
            {
                self.fail(index, &format!("post of a send failed: {error}"));
            }
        }
    }

    /// The endpoint is being removed. The last one takes its path down; so does one that leaves
    /// something in flight, which its peer does not take and which holds up the others.
    pub(crate) fn leave_route(&mut self, index: u32) {
        self.drop_kept(index);
        let Some(ep) = self.endpoints.get(index) else { return };
        let Some(path) = ep.route.as_ref().map(|route| route.path) else { return };
        if ep.outstanding != 0 || self.endpoints.on_path(path).all(|other| other == index) {
            self.break_path(path, None, "an endpoint is removed");
        }
        if let Some(xrc) = &mut self.xrc {
            xrc.forget_drained(path);
        }
    }
}

impl Xrc {
    /// A route that has come; false if its path is broken.
    fn note(&mut self, route: &Route) -> bool {
        let new = || Path {
            channel: Channel::new(route.qp.clone(), LineId::of_path(route.path), route.qp.cap().max_send_wr),
            rdma: 0,
            waiting: VecDeque::new(),
            broken: false,
        };
        !self.gone.contains(&route.path) && !self.paths.entry(route.path).or_insert_with(new).broken
    }

    /// A path that is broken and has nothing in flight is done with.
    pub(crate) fn forget_drained(&mut self, id: u32) {
        if self.paths.get(&id).is_some_and(|path| path.broken && path.channel.ledger.is_empty()) {
            self.paths.remove(&id);
            self.gone.insert(id);
        }
    }
}

impl Path {
    /// This endpoint has an operation to post and there is no place for it: it waits for its turn,
    /// once.
    pub(crate) fn wait(&mut self, index: u32) {
        if !self.waiting.contains(&index) {
            self.waiting.push_back(index);
        }
    }

    /// To the error state: everything is flushed.
    pub(crate) fn take_down(&mut self) {
        self.broken = true;
        let qp = &self.channel.qp;
        if let Err(error) = qp.to_error() {
            log::debug!("{} does not go to the error state: {error}", qp.num());
        }
    }
}
