//! Paths and routes, and the connection manager's news of them.
#![forbid(unsafe_code)]

use super::super::inflight::Inflight;
use super::super::send::SendBuf;
use super::super::state::{Event, State};
use super::super::{Transport, connect::AddError};
use super::{Domain, MOST_PEERS};
use crate::protocol::pending::LaneId;
use crate::transport::endpoint::{EpId, QueuedRdma};
use cpc::Route;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use verbs::{Posted, Qp, SrqNum};

/// What a transport with X queues has besides.
#[derive(Debug)]
pub struct Xrc<C> {
    /// Ours; peers of this node have it open, too.
    _domain: Domain,
    pub(super) paths: HashMap<u32, Path>,
    /// Broken ones that are done with, for endpoints that hear of them late.
    gone: HashSet<u32>,
    pub(super) inflight: Inflight<Held<C>>,
}

/// A send queue pair, and the endpoints that use it.
#[derive(Debug)]
pub struct Path {
    pub(super) qp: Arc<Qp>,
    /// RDMA operations in flight.
    pub(super) rdma: u32,
    /// Endpoints that wait for one of them to be over, each once; what became of one meanwhile is
    /// seen when it has its turn.
    pub(super) waiting: VecDeque<u32>,
    /// Work requests in flight, of all endpoints.
    pub(super) outstanding: u32,
    /// It is in the error state; what has not completed is flushed.
    pub(super) broken: bool,
}

/// What waits for a completion.
#[derive(Debug)]
pub enum Held<C> {
    /// A message, of so many bytes with its header.
    Send { to: EpId, path: u32, buf: Posted, share: Option<u32>, total: u32 },
    /// An operation.
    Rdma { to: EpId, path: u32, operation: QueuedRdma<C> },
}

/// A message that is to be posted again. It still has its entry and its send slot.
#[derive(Debug)]
pub struct Kept {
    pub(super) queue: u8,
    pub(super) buf: SendBuf,
    pub(super) total: u32,
}

/// The route to a peer's process: the send queue pair to its node, and its SRQs there.
#[derive(Debug)]
pub struct XrcRoute<C> {
    pub(super) path: u32,
    pub(super) qp: Arc<Qp>,
    pub(super) srqs: Vec<SrqNum>,
    /// In the headers of our messages.
    pub(super) label: u32,
    /// Of a broken path: messages that were flushed, in order.
    pub(super) messages: VecDeque<Kept>,
    /// Of a broken path: operations that were flushed, in order.
    pub(super) operations: VecDeque<QueuedRdma<C>>,
    /// The next route, which is there before this one has been drained.
    pub(super) next: Option<Route>,
}

impl<C> XrcRoute<C> {
    fn new(route: Route) -> XrcRoute<C> {
        XrcRoute {
            path: route.path,
            qp: route.qp,
            srqs: route.srqs,
            label: route.label,
            messages: VecDeque::new(),
            operations: VecDeque::new(),
            next: None,
        }
    }

    /// What is to be posted again.
    pub fn kept(&self) -> usize {
        self.messages.len() + self.operations.len()
    }
}

impl<C> Xrc<C> {
    /// No path yet.
    pub fn new(domain: Domain) -> Xrc<C> {
        Xrc { _domain: domain, paths: HashMap::new(), gone: HashSet::new(), inflight: Inflight::default() }
    }

    /// Work requests that the device owns.
    pub fn in_flight(&self) -> usize {
        self.inflight.len()
    }
}

impl<C> Transport<C> {
    /// One more endpoint can be named by a label.
    pub(in super::super) fn check_label(&self) -> Result<(), AddError> {
        match self.xrc.is_some() && self.by_name.len() >= MOST_PEERS {
            true => Err(AddError::TooMany(MOST_PEERS)),
            false => Ok(()),
        }
    }

    /// The connection manager has found a route to the peer. One that replaces a broken one waits
    /// until that is drained.
    pub(in super::super) fn routed(&mut self, index: u32, route: Route) {
        let Some(Some(ep)) = self.endpoints.get_mut(index as usize) else { return };
        match &mut ep.route {
            Some(way) if ep.outstanding != 0 => way.next = Some(route),
            _ => self.take_route(index, route),
        }
    }

    /// Takes the next route if there is one and nothing is in flight on the last one.
    pub(super) fn take_next(&mut self, index: u32) {
        let Some(Some(ep)) = self.endpoints.get_mut(index as usize) else { return };
        if ep.outstanding == 0
            && let Some(route) = ep.route.as_mut().and_then(|way| way.next.take())
        {
            self.take_route(index, route);
        }
    }

    fn take_route(&mut self, index: u32, route: Route) {
        let Some(Some(ep)) = self.endpoints.get_mut(index as usize) else { return };
        if !matches!(ep.state, State::Idle | State::Connecting) {
            return;
        }
        let known = self.xrc.as_mut().map(|xrc| xrc.note(&route));
        if known == Some(false) {
            // It broke before this endpoint heard of it.
            return self.reroute(index);
        }
        let (old, way) = (ep.route.take(), XrcRoute::new(route));
        if old.is_none() {
            ep.lanes.iter_mut().for_each(|lane| lane.attach_shared());
        }
        ep.route = Some(Box::new(way));
        self.on_event(index, Event::QpsCreated);
        if let Some(old) = old {
            self.post_again(index, *old);
        }
        self.on_event(index, Event::CpcConnected);
    }

    /// What the broken path has not carried out goes before everything that has waited since.
    fn post_again(&mut self, index: u32, old: XrcRoute<C>) {
        self.stats.replayed += old.kept() as u64;
        let Some(Some(ep)) = self.endpoints.get_mut(index as usize) else { return };
        old.operations.into_iter().rev().for_each(|operation| ep.rdma.push_front(operation));
        for Kept { queue, buf, total } in old.messages {
            if let Err(error) = self.post_over(LaneId { peer: index, queue }, buf, total as usize) {
                self.fail(index, &format!("post of a send failed: {error}"));
            }
        }
    }

    /// The endpoint is being removed. The last one takes its path down; so does one that leaves
    /// something in flight, which its peer does not take and which holds up the others.
    pub(in super::super) fn leave_route(&mut self, index: u32) {
        self.drop_kept(index);
        let Some(Some(ep)) = self.endpoints.get(index as usize) else { return };
        let Some(path) = ep.route.as_ref().map(|way| way.path) else { return };
        if ep.outstanding != 0 || self.on_path(path).all(|other| other == index) {
            self.break_path(path, None, "an endpoint is removed");
        }
        if let Some(xrc) = &mut self.xrc {
            xrc.forget_drained(path);
        }
    }

    /// Endpoints whose route this is.
    pub(super) fn on_path(&self, path: u32) -> impl Iterator<Item = u32> {
        let endpoints = self.endpoints.iter().enumerate();
        endpoints.filter_map(move |(index, ep)| {
            let way = ep.as_ref()?.route.as_ref()?;
            (way.path == path).then_some(index as u32)
        })
    }
}

impl<C> Xrc<C> {
    /// A route that has come; false if its path is broken.
    fn note(&mut self, route: &Route) -> bool {
        let new = || Path {
            qp: route.qp.clone(),
            rdma: 0,
            waiting: VecDeque::new(),
            outstanding: 0,
            broken: false,
        };
        !self.gone.contains(&route.path) && !self.paths.entry(route.path).or_insert_with(new).broken
    }

    /// A path that is broken and has nothing in flight is done with.
    pub(super) fn forget_drained(&mut self, id: u32) {
        if self.paths.get(&id).is_some_and(|path| path.broken && path.outstanding == 0) {
            self.paths.remove(&id);
            self.gone.insert(id);
        }
    }
}

impl Path {
    /// This endpoint has an operation to post and there is no place for it: it waits for its turn,
    /// once.
    pub(super) fn wait(&mut self, index: u32) {
        if !self.waiting.contains(&index) {
            self.waiting.push_back(index);
        }
    }

    /// To the error state: everything is flushed.
    pub(super) fn take_down(&mut self) {
        self.broken = true;
        if let Err(error) = self.qp.to_error() {
            log::debug!("{} does not go to the error state: {error}", self.qp.num());
        }
    }
}
