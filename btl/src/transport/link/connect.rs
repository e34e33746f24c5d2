//! From a peer's name to an endpoint that flows.
//!
//! The connection manager's helper thread makes the queue pairs and brings them up; this side, the
//! main thread's, learns of it through events, posts the real buffers and exchanges the CTS (seed
//! 004).
#![forbid(unsafe_code)]

use super::Renewal;
use crate::transport::Transport;
use crate::transport::channel::{Connection, LineId};
use crate::transport::endpoint::PATIENCE;
use crate::transport::endpoint::lane::Lane;
use crate::transport::endpoint::numbers::{MOST_PEERS, label};
use crate::transport::endpoint::state::{Action, Event, State};
use crate::transport::endpoint::{Endpoint, EpId};
use crate::transport::port::OpenPort;
use crate::transport::port::depth::{CqTooSmall, send_depth};
use crate::transport::port::queue::FillError;
use crate::transport::wrid::{Kind, WrId};
use cpc::{Advert, Choice, CtsRecv, EndpointKey, EndpointPlan, GidPair, ProcessName, Step, StreamNum};
use std::sync::Arc;
use std::time::Duration;
use verbs::{Buf, Posted, Qp};

/// What a look around for messages that wait for a credit has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// They still wait, and something may come of another look.
    Kept,
    /// There is nothing more to wait for.
    Over,
    /// They wait for a connection to a peer that has not been heard: the sender can be told when it
    /// is there, and meanwhile it may begin others.
    Unconnected,
}

/// Why a peer cannot be reached through this transport.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// More peers than the headers of X queues can name.
    #[error("X queues reach no more than {0} peers; use S queues")]
    TooMany(usize),
    /// No connection manager in common.
    #[error("no way to connect: {0}")]
    Select(#[from] cpc::SelectError),
    /// The connection managers do not work.
    #[error(transparent)]
    Cpc(#[from] cpc::Error),
    /// The device has told that it or what all peers share cannot go on.
    #[error("{0}")]
    Broken(String),
    /// Our upper layer is taking its endpoint away.
    #[error("its endpoint is being taken down")]
    BeingRemoved,
    /// A completion queue has no room for another connection, and could not grow.
    #[error("cannot prepare the endpoint: {0}")]
    Completions(#[from] CqTooSmall),
    /// A buffer could not be had.
    #[error("no buffer for the clear-to-send message: {0}")]
    Buffer(#[from] verbs::PoolError),
    /// A shared queue would have no receive.
    #[error("no receive for a shared queue: {0}")]
    Shared(#[from] FillError),
}

impl OpenPort {
    /// Makes the connection of the endpoint at position `index` known to the connection manager,
    /// whose helper thread runs.
    pub(crate) fn introduce<C>(&self, ep: &Endpoint<C>, index: u32, cts: Option<(usize, Buf)>) {
        let Some(choice) = ep.choice.as_deref().cloned() else { return };
        let (epoch, key, peer) = (ep.epoch, ep.key(index), ProcessName(ep.peer));
        let label = label(EpId { index, generation: epoch });
        let cts = cts.map(|(queue, buf)| {
            let wr_id = WrId::new(Kind::Cts, queue, epoch, index).0;
            CtsRecv { queue, buf, wr_id }
        });
        let stream = self.offered(ep);
        let plan = EndpointPlan { key, peer, peer_blob: Vec::new(), cts, gids: None, label, stream };
        self.service.add_endpoint(choice, plan);
    }

    /// The stream that the endpoint's next connection goes on with, if its peer does. None where connections are not replaced.
    pub(super) fn offered<C>(&self, ep: &Endpoint<C>) -> StreamNum {
        if self.replaces() { ep.offered() } else { StreamNum::NONE }
    }

    /// Another connection takes the place of one that breaks.
    pub(in crate::transport) fn replaces(&self) -> bool {
        self.config.replaces(self.pd.context())
    }
}

impl<C> Transport<C> {
    /// The endpoint of a peer; made if it is new, connected anew if the peer had taken it down.
    /// From now on the peer may connect to us.
    ///
    /// # Errors
    /// Why it cannot be reached.
    pub fn add(&mut self, peer: u64, adverts: &[Advert]) -> Result<EpId, AddError> {
        self.add_over(peer, adverts, None)
    }

    /// The same over a pair of GIDs of the two RoCE ports.
    ///
    /// # Errors
    /// Why it cannot be reached.
    pub fn add_over(
        &mut self,
        peer: u64,
        adverts: &[Advert],
        gids: Option<GidPair>,
    ) -> Result<EpId, AddError> {
        if let Some(reason) = &self.port.heard.broken {
            return Err(AddError::Broken(reason.clone()));
        }
        if let Some(index) = self.endpoints.of_peer(peer) {
            return self.add_again(index, adverts, gids);
        }
        let choice = Choice { gids: gids.map(Box::new), ..self.port.service.choose(adverts)? };
        if !self.paths.can_name_another(self.endpoints.count()) {
            return Err(AddError::TooMany(MOST_PEERS));
        }
        let entries = self.port.admit(false)?;
        let cts = match self.prepare() {
            Ok(cts) => cts,
            Err(error) => {
                self.port.release(entries);
                return Err(error);
            }
        };
        let choice = Box::new(self.where_it_asks(peer, choice));
        let id = self.endpoints.insert(|id| Endpoint::new(id, peer, Some(choice), entries));
        if let Some(ep) = self.endpoints.get(id.index) {
            self.port.introduce(ep, id.index, cts);
        }
        Ok(id)
    }

    /// What an endpoint needs besides its entry before a peer may hear of it; its receive for the
    /// CTS.
    fn prepare(&mut self) -> Result<Option<(usize, Buf)>, AddError> {
        self.rx.fill_shared()?;
        self.port.service.start()?;
        Ok(self.rx.cts.take(self.port.cts_queue)?)
    }

    /// Starts the helper thread, if it does not run yet: peers may connect from now on, those we
    /// have not heard of too.
    ///
    /// # Errors
    /// No thread or file descriptor is left.
    pub fn listen(&self) -> Result<(), cpc::Error> {
        self.port.service.start()
    }

    /// Takes what the helper thread has to say: of connections, and of the device.
    #[cold]
    pub(crate) fn connection_events(&mut self) {
        while let Some(event) = self.port.service.next_event() {
            match event {
                cpc::Event::QpsCreated { key, qps, cts } => self.qps_created(key, qps, cts),
                cpc::Event::Agreed { key, stream } => self.if_current(key, |t, i| t.agreed(i, stream)),
                cpc::Event::Order { key, first } => self.if_current(key, |t, i| {
                    t.endpoints.ordered(i, first, (t.port.layout().queues().len(), t.port.cts_queue))
                }),
                cpc::Event::Connected { key } => self.if_current(key, Self::is_up),
                cpc::Event::Routed { key, route } => self.if_current(key, |t, i| t.routed(i, route)),
                cpc::Event::Failed { key, error } => {
                    self.if_current(key, |t, i| t.connection_failed(i, &error))
                }
                cpc::Event::Timeline { key, steps } => {
                    self.if_current(key, |t, i| t.endpoints.merge_steps(i, &steps))
                }
                cpc::Event::Disconnected { key } => self.if_current(key, Self::disconnected),
                cpc::Event::Unlisted { key } => self.if_current(key, Self::unlisted),
                cpc::Event::Asked { key } => self.if_current(key, Self::peer_has_asked),
                cpc::Event::Retracted { key } => self.if_current(key, Self::peer_has_retracted),
                cpc::Event::UnknownPeer { peer, alternate } => self.unknown_peer(peer.0, alternate),
                cpc::Event::Device { event } => self.device_event(event),
                cpc::Event::Receiver { event } => self.receiver_event(event),
            }
        }
    }

    /// The connection manager has the connection up, on both sides.
    fn is_up(&mut self, index: u32) {
        self.agreement_counts(index);
        self.on_event(index, Event::CpcConnected);
    }

    fn if_current(&mut self, key: EndpointKey, then: impl FnOnce(&mut Self, u32)) {
        if let Some(index) = self.endpoints.current(key) {
            then(self, index);
        }
    }

    pub(crate) fn qps_created(&mut self, key: EndpointKey, qps: Vec<Arc<Qp>>, cts: Option<Posted>) {
        // The endpoint may have been removed while they were made; what has come over them is
        // dropped.
        qps.iter().for_each(|qp| self.rx.qpns.retire(qp.num()));
        if let Some(cts) = cts {
            let connection = Connection { index: key.index, epoch: key.generation };
            self.rx.cts.insert(connection, cts);
            let is_gone = self.endpoints.current(key).is_none();
            if let Some(qp) = self.port.cts_queue.and_then(|queue| qps.get(queue)).filter(|_| is_gone) {
                self.rx.cts.flush(connection, qp);
            }
        }
        self.if_current(key, |t, index| t.attach(index, qps));
        self.unpark();
    }

    /// The queue pairs of an endpoint's lanes have come. Without room for their completions nothing is
    /// posted over them: they are kept for what the helper thread has posted.
    fn attach(&mut self, index: u32, qps: Vec<Arc<Qp>>) {
        let room = self.reserve_connection(index);
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        let (layout, config) = (self.port.layout(), &self.port.config);
        let covered = ep.entries.cover_sends();
        for (queue, (lane, qp)) in ep.lanes.iter_mut().zip(qps).enumerate() {
            self.rx.qpns.insert(qp.num(), index, queue);
            let sends = if covered { send_depth(layout, queue, config) } else { 0 };
            lane.attach(qp, LineId::of_lane(index, ep.epoch, queue), sends, config);
        }
        if let (Some(lane), Some(shortest)) = (ep.lanes.first_mut(), layout.queues().first()) {
            lane.go_straight(shortest.size);
        }
        if matches!(ep.state(), State::Closed | State::Retiring(_)) {
            // It was taken down while they were made: the receive of the CTS comes back from them.
            ep.to_error(log::Level::Debug);
        }
        match room {
            Ok(()) => self.on_event(index, Event::QpsCreated),
            Err(error) => self.fail(index, &error),
        }
    }

    /// A peer has lanes from its first message, or the news of its connection, on.
    pub(crate) fn make_lanes(&mut self, index: u32) {
        if let Some(ep) = self.endpoints.get_mut(index)
            && ep.lanes.is_empty()
        {
            ep.lanes = Lane::all(&self.port);
        }
    }

    /// Reserves what a connection may cause at the completion queues, if one is to come up: once, and
    /// before anything is posted for it.
    pub(crate) fn reserve_connection(&mut self, index: u32) -> Result<(), CqTooSmall> {
        self.make_lanes(index);
        let Some(ep) = self.endpoints.get_mut(index) else { return Ok(()) };
        if matches!(ep.state(), State::Idle | State::Connecting) && !ep.entries.cover_sends() {
            ep.entries += self.port.reserve_connection(ep.is_to_itself())?;
        }
        Ok(())
    }

    /// The peer has taken the connection down, in its MPI_Finalize or disconnect: what is still
    /// queued to it is of no interest to it any more. Or it has failed, and has not said that it leaves: see `resume`. One
    /// that was not up yet is another matter: see `renew`.
    pub(super) fn disconnected(&mut self, index: u32) {
        if !self.may_be_cut(index) && !self.renew_soon(index) {
            self.has_left(index);
        }
    }

    /// The peer is not there any more, and nothing is missing. What its queue pairs still hold is flushed, and comes back.
    pub(super) fn has_left(&mut self, index: u32) {
        self.drop_waiting(index, "the peer has left");
        self.on_event(index, Event::PeerLeft);
        let over_xrc = self.paths.are_used();
        let left = self.endpoints.get_mut(index).filter(|ep| ep.state() == State::Disconnected && !over_xrc);
        if let Some(ep) = left {
            self.tx.mark(ep, &mut self.paths);
            ep.to_error(log::Level::Debug);
        }
    }

    /// What waits for the peer will not go any more.
    pub(crate) fn drop_waiting(&mut self, index: u32, why: &str) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        ep.queued = 0;
        self.tx.give_up(ep.rdma.drain(..), &mut self.up);
        self.up.end_waiting(ep, true);
        let dropped = self.drop_pending(index);
        if dropped != 0 {
            log::warn!("endpoint {index}: {why}, {dropped} messages that it never asked for are dropped");
        }
    }

    /// The endpoint has no connection yet, so that what is sent now cannot leave.
    pub fn is_unconnected(&self, id: EpId) -> bool {
        self.endpoints.named(id).is_some_and(|ep| ep.state().precedes_connection())
    }

    /// A message sent now is complete when the connection is there: see
    /// [`Endpoint::completes_when_connected`].
    pub fn completes_when_connected(&self, id: EpId) -> bool {
        self.endpoints.named(id).is_some_and(|ep| ep.completes_when_connected())
    }

    /// A connection is under way.
    pub fn is_coming_up(&mut self, id: EpId) -> bool {
        self.endpoints.named(id).is_some_and(|ep| ep.state().is_coming_up())
    }

    /// Keeps `cookie` until the connection is there or has failed, and hands it back by
    /// `Upcall::Completed`; at once, if it is or has.
    #[cold]
    pub fn when_connected(&mut self, id: EpId, cookie: C) {
        match self.endpoints.named_mut(id) {
            Some(ep) if ep.state().precedes_connection() => ep.awaiting.push(cookie),
            Some(ep) if ep.state() == State::Failed => self.up.completed(cookie, false),
            _ => self.later(cookie),
        }
    }

    /// Messages to this peer wait for a connection or a credit.
    #[inline]
    pub fn is_held_up(&mut self, id: EpId) -> bool {
        self.endpoints.named(id).is_some_and(|ep| ep.is_held_up())
    }

    /// Gives messages that wait for a credit a little time to get it, so that they are out before
    /// their sender goes on to compute; after that another thread has to serve them ([`Transport::serve_in_background`]).
    /// It ends when they are out, when something arrives (the upper layer has work, and may be what
    /// the peer waits for), or when patience does. Answers that wait for a connection are given the
    /// time that one takes, whatever arrives.
    ///
    /// Each call looks around once; the sender has been kept for `kept` by then, and calls again
    /// while the answer is `Kept`, holding no lock in between.
    #[cold]
    pub fn settle(&mut self, id: EpId, kept: Duration) -> Settled {
        if self.completes_when_connected(id) {
            return Settled::Unconnected;
        }
        let Some(ep) = self.endpoints.named_mut(id) else { return Settled::Over };
        let (patience, coming_up) = (ep.patience, ep.state().is_coming_up());
        if !ep.is_held_up() || kept >= patience {
            ep.patience = patience.saturating_sub(kept);
            return Settled::Over;
        }
        if self.take_in() && !coming_up { Settled::Over } else { Settled::Kept }
    }

    /// Looks around without handing anything up; whether there is something for the upper layer.
    fn take_in(&mut self) -> bool {
        self.poll();
        let found: Vec<_> = std::iter::from_fn(|| self.take_upcall()).collect();
        let work = !found.is_empty();
        self.up.extend(found);
        work
    }

    /// Looks around for a caller that is not the upper layer, so that what waits goes out; how many messages waited before and
    /// after that. What has come stays here until the upper layer takes it, and holds its receive buffers.
    #[cold]
    pub fn serve_in_background(&mut self) -> (usize, usize) {
        let before = self.tx.pending.len();
        self.stats.background_looks += 1;
        self.take_in();
        (before, self.tx.pending.len())
    }

    /// One step of an endpoint's state table.
    pub(crate) fn on_event(&mut self, index: u32, event: Event) {
        let cts = self.port.uses_cts();
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        let was = ep.state().is_coming_up();
        let action = ep.on(event, cts);
        let (state, key, to_itself) = (ep.state(), ep.key(index), ep.is_to_itself());
        self.rx.note_coming_up(was, state.is_coming_up());
        match action {
            Action::StartConnect => {
                self.endpoints.mark(index, Step::Wanted);
                if to_itself { self.connect_to_itself(index) } else { self.ask_to_connect(index) }
            }
            Action::PostAndSendCts => self.post_and_send_cts(index),
            Action::Post => self.post_lanes(index),
            Action::SendCts => self.send_cts(index),
            Action::OpenAndFlow => {
                self.open_queues(index);
                self.now_connected(index);
            }
            Action::PostSendCtsAndFlow => {
                self.post_and_send_cts(index);
                self.now_connected(index);
            }
            Action::PostSendCtsAndResume => {
                self.post_and_send_cts(index);
                self.resume(index);
            }
            Action::Resume => self.resume(index),
            Action::Flow => self.now_connected(index),
            Action::Renew => self.renew_later(Renewal::Retire(key)),
            Action::TakeDown => self.take_down(index),
            Action::Refuse => log::debug!("endpoint {index}: {event:?} makes no sense in {state:?}"),
            // `fail` does that, and says why.
            Action::FailAll | Action::None => {}
        }
        if state == State::AwaitingFirst {
            self.flow_if_open(index);
        }
    }

    fn now_connected(&mut self, index: u32) {
        self.stats.connected += 1;
        self.has_met(index);
        if let Some(ep) = self.endpoints.get_mut(index) {
            (ep.departures, ep.patience, ep.has_turned) = (0, PATIENCE, false);
        }
        self.endpoints.mark(index, Step::Connected);
        self.flow(index);
        if let Some(ep) = self.endpoints.get_mut(index) {
            self.up.end_waiting(ep, true);
        }
    }

    /// Posts the real buffers on every per-peer queue, then tells the peer so.
    fn post_and_send_cts(&mut self, index: u32) {
        self.post_lanes(index);
        self.send_cts(index);
    }

    fn post_lanes(&mut self, index: u32) {
        let Some(ep) = self.endpoints.get(index) else { return };
        for (queue, lane) in ep.lanes.iter().enumerate() {
            if let Err(reason) = self.rx.post_lane(index, queue, lane) {
                return self.fail(index, &format!("queue {queue} cannot be filled: {reason}"));
            }
        }
        self.endpoints.mark(index, Step::Posted);
    }

    fn send_cts(&mut self, index: u32) {
        let ep = self.endpoints.get(index);
        if ep.is_none_or(|ep| ep.state().is_over()) {
            return;
        }
        match self.post_cts(index) {
            Ok(()) => self.endpoints.mark(index, Step::CtsSent),
            Err(error) => self.fail(index, &format!("post of the clear-to-send message failed: {error}")),
        }
    }
}
