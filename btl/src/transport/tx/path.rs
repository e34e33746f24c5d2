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

use crate::protocol::hash::ByNumber;
use crate::protocol::pending::LaneId;
use crate::transport::Transport;
use crate::transport::channel::{Channel, Connection, LineId, Request};
use crate::transport::endpoint::numbers::MOST_PEERS;
use crate::transport::endpoint::retained::Kept;
use crate::transport::endpoint::route::XrcRoute;
use crate::transport::endpoint::state::{Event, State};
use crate::transport::port::Domain;
use crate::transport::port::depth::{PATH_MARKERS, send_depth};
use cpc::Route;
use std::collections::{HashSet, VecDeque};
use verbs::SrqNum;

/// The send queue pairs to all nodes; layouts without X queues have none.
#[derive(Debug)]
pub struct Paths(Option<Box<Xrc>>);

/// What a transport with X queues has besides.
#[derive(Debug)]
struct Xrc {
    /// Ours; peers of this node have it open, too.
    _domain: Domain,
    paths: ByNumber<Path>,
    /// Broken ones that are done with, for endpoints that hear of them late.
    gone: HashSet<u32>,
}

/// A send queue pair, and the endpoints that use it.
#[derive(Debug)]
pub struct Path {
    pub(super) channel: Channel,
    /// The SRQ that the last request has gone to.
    srq: SrqNum,
    /// RDMA operations in flight.
    rdma: u32,
    /// Endpoints that wait for one of them to be over, each once; what became of one meanwhile is
    /// seen when it has its turn.
    waiting: VecDeque<u32>,
    /// Markers that have not completed.
    pub(super) markers: u32,
    /// The connection that the marker asks whether its process is there.
    pub(super) asked: Option<Connection>,
    /// It is in the error state; what has not completed is flushed.
    pub(super) broken: bool,
}

impl Paths {
    /// No path yet; with a domain if there are X queues.
    pub fn new(domain: Option<Domain>) -> Paths {
        let xrc =
            |domain| Box::new(Xrc { _domain: domain, paths: ByNumber::default(), gone: HashSet::new() });
        Paths(domain.map(xrc))
    }

    /// There are X queues.
    pub fn are_used(&self) -> bool {
        self.0.is_some()
    }

    /// Labels can name one more endpoint than there are.
    pub fn can_name_another(&self, endpoints: usize) -> bool {
        !self.are_used() || endpoints < MOST_PEERS
    }

    /// The path that is called so.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut Path> {
        self.0.as_mut()?.paths.get_mut(&id)
    }

    /// Takes a place for an operation of this endpoint on a path; if there is none, of `most`, or
    /// `most_reads` are out and it is another, the endpoint waits for its turn.
    pub fn take_place(&mut self, id: u32, index: u32, most: u32, most_reads: Option<u16>) -> bool {
        self.get_mut(id).is_some_and(|path| path.take_place(index, most, most_reads))
    }

    /// Endpoints that wait for a place on a path.
    pub fn waiting(&mut self, id: u32) -> usize {
        self.get_mut(id).map_or(0, |path| path.waiting.len())
    }

    /// An operation does not need its place any more.
    pub fn release_place(&mut self, id: u32) {
        if let Some(path) = self.get_mut(id) {
            path.rdma -= 1;
        }
    }

    /// Takes the endpoint that has waited longest out of the queue, if the path has a place for an
    /// operation.
    pub fn next_waiting(&mut self, id: u32, most: u32) -> Option<u32> {
        let path = self.get_mut(id)?;
        if path.rdma < most { path.waiting.pop_front() } else { None }
    }

    /// It is in the error state, or gone after that.
    pub fn is_broken(&mut self, id: u32) -> bool {
        self.get_mut(id).is_none_or(|path| path.broken)
    }

    /// The path has broken, before an endpoint heard of it.
    fn has_broken(&self, id: u32) -> bool {
        let is_broken = |path: &Path| path.broken;
        self.0.as_ref().is_some_and(|xrc| xrc.gone.contains(&id) || xrc.paths.get(&id).is_some_and(is_broken))
    }

    /// A route that has come over a path that works.
    fn note(&mut self, route: &Route) {
        let new = || Path {
            channel: Channel::new(route.qp.clone(), LineId::of_path(route.path), route.qp.cap().max_send_wr),
            srq: SrqNum(0),
            rdma: 0,
            waiting: VecDeque::new(),
            markers: 0,
            asked: None,
            broken: false,
        };
        if let Some(xrc) = &mut self.0 {
            xrc.paths.entry(route.path).or_insert_with(new);
        }
    }

    /// What is not signalled on a path completes from now on, too; whether that has taken a marker.
    pub fn mark(&mut self, id: u32) -> bool {
        self.get_mut(id).is_some_and(|path| !path.broken && path.mark(PATH_MARKERS - 1))
    }

    /// Posts a request without data to a process of the path's node, to hear whether it is there; whether it has. One at a time.
    pub fn probe(&mut self, id: u32, srq: SrqNum, to: Connection) -> bool {
        let Some(path) = self.get_mut(id).filter(|path| !path.broken && path.markers < PATH_MARKERS - 1)
        else {
            return false;
        };
        let posted = path.channel_towards(srq).post_marker(Some(srq)).is_ok();
        path.markers += u32::from(posted);
        path.asked = posted.then_some(to);
        posted
    }

    /// A path that is broken and has nothing in flight is done with.
    pub fn forget_drained(&mut self, id: u32) {
        let Some(xrc) = &mut self.0 else { return };
        if xrc.paths.get(&id).is_some_and(|path| path.broken && path.channel.ledger.is_empty()) {
            xrc.paths.remove(&id);
            xrc.gone.insert(id);
        }
    }
}

impl Path {
    /// For a request to this SRQ.
    pub(super) fn channel_towards(&mut self, srq: SrqNum) -> &mut Channel {
        self.srq = srq;
        &mut self.channel
    }

    /// One that finds no place waits for its turn, once.
    fn take_place(&mut self, index: u32, most: u32, most_reads: Option<u16>) -> bool {
        let there_is = self.rdma < most && most_reads.is_none_or(|most| self.channel.reads() < most);
        if there_is {
            self.rdma += 1;
        } else if !self.waiting.contains(&index) {
            self.waiting.push_back(index);
        }
        there_is
    }

    /// Posts a marker behind messages that are not signalled, if there are any and no more than `most` - 1 other markers are out;
    /// whether it has.
    fn mark(&mut self, most: u32) -> bool {
        if self.markers >= most || !self.channel.ledger.ends_unsignalled() {
            return false;
        }
        let posted = self.channel.post_marker(Some(self.srq));
        match &posted {
            Ok(()) => self.markers += 1,
            Err(error) => log::debug!("no marker behind what is not signalled: {error}"),
        }
        posted.is_ok()
    }

    /// To the error state: everything is flushed, and says so. Whether that has taken a marker.
    pub fn take_down(&mut self) -> bool {
        self.broken = true;
        let marked = self.mark(PATH_MARKERS);
        let qp = &self.channel.qp;
        if let Err(error) = qp.to_error() {
            log::debug!("{} does not go to the error state: {error}", qp.num());
        }
        marked
    }
}

impl<C> Transport<C> {
    /// The connection manager has found a route to the peer.
    pub(crate) fn routed(&mut self, index: u32, route: Route) {
        if let Some(route) = self.endpoints.get_mut(index).and_then(|ep| ep.offer(route)) {
            self.take_route(index, route);
        }
    }

    /// Nothing is in flight on the last route.
    pub(crate) fn take_route(&mut self, index: u32, route: Route) {
        let Some(ep) = self.endpoints.get(index) else { return };
        if !matches!(ep.state(), State::Idle | State::Connecting) {
            return;
        }
        if self.paths.has_broken(route.path) {
            return self.reroute(index);
        }
        if let Err(error) = self.reserve_connection(index) {
            return self.fail(index, &error);
        }
        self.paths.note(&route);
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        let (old, new) = (ep.route.take(), XrcRoute::new(route));
        if old.is_none() {
            let sends = |queue| send_depth(self.port.layout(), queue, &self.port.config);
            ep.lanes.iter_mut().enumerate().for_each(|(queue, lane)| lane.attach_shared(sends(queue)));
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
        let old = old.retained;
        self.stats.replayed += old.len() as u64;
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        old.operations.into_iter().rev().for_each(|operation| ep.rdma.push_front(operation));
        let mut messages = old.messages;
        while let Some(Kept { queue, buf, total }) = messages.pop_front() {
            let lane = LaneId { peer: index, queue };
            if let Err(error) = self.post::<0>(lane, Request::Message { buf, total }) {
                // None goes behind it, which the peer would find missing: the failure gives the others back.
                if let Some(route) = self.endpoints.get_mut(index).and_then(|ep| ep.route.as_mut()) {
                    route.retained.messages = messages;
                }
                return self.send_refused(lane, &error);
            }
        }
    }

    /// The endpoint is being removed. The last one takes its path down; so does one that leaves
    /// something in flight, which its peer does not take and which holds up the others.
    pub(crate) fn leave_route(&mut self, index: u32) {
        let Some(ep) = self.endpoints.get(index) else { return };
        let Some(path) = ep.route.as_ref().map(|route| route.path) else { return };
        let is_in_flight = ep.outstanding != 0;
        self.drop_kept(index);
        if is_in_flight || self.endpoints.on_path(path).all(|other| other == index) {
            self.break_path(path, None, "an endpoint is removed");
        }
        self.paths.forget_drained(path);
    }
}
