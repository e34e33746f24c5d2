//! An endpoint: one peer as seen through one port.
#![forbid(unsafe_code)]

pub(super) mod callbacks;
pub(super) mod ends;
pub(super) mod lane;
pub(super) mod long;
pub(super) mod numbers;
pub(super) mod outlet;
pub(super) mod retained;
pub(super) mod ring;
pub(super) mod rings;
pub(super) mod route;
/// The states of an endpoint, as a table.
pub mod state;
mod table;
/// When what happened to each connection.
pub mod timeline;
/// Bytes to and from each peer.
pub mod traffic;

use crate::transport::LINE;
use crate::transport::channel::{Connection, Operation};
use crate::transport::port::entries::Entries;
pub use retained::Resume;
pub use table::Endpoints;

use callbacks::Callbacks;
use cpc::{Choice, EndpointKey, First, StreamNum, Timeline};
use ends::Ends;
use lane::Lane;
use long::LongSends;
use numbers::Numbers;
use retained::Former;
use route::XrcRoute;
use state::{Action, Event, Handshake, State};
use std::collections::VecDeque;
use std::mem::offset_of;
use std::time::Duration;
use traffic::Traffic;

/// Names an endpoint for the upper layer, however often it is connected anew; stale ones are
/// recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EpId {
    /// Position in the transport's table.
    pub index: u32,
    /// Tells the endpoints apart that this position has had.
    pub generation: u32,
}

impl EpId {
    /// Both in one word.
    #[inline]
    pub fn word(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// What [`Self::word`] has made a word of.
    #[inline]
    pub fn of_word(word: u64) -> EpId {
        EpId { index: word as u32, generation: (word >> 32) as u32 }
    }
}

/// How long messages that wait for credits may keep their senders, all together, before anything
/// moves again: a multiple of what a credit takes when the peer is in MPI.
pub(crate) const PATIENCE: Duration = Duration::from_millis(20);

/// How long answers to a peer that has been heard may keep their senders until the connection to it
/// is there. The helper threads of both sides bring it up in about a millisecond, whatever the peer
/// itself does; the rest is for a machine that is busy.
pub(crate) const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// Whether the connection manager knows an endpoint, so that its peer may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// It does.
    Listed,
    /// It has been asked to forget it.
    Ending,
    /// The same, and the endpoint has been wanted again since.
    Wanted,
    /// X queues: it does, and has not forgotten it, for the peer has asked for its direction of the connection.
    Asked,
    /// It does not.
    Unlisted,
}

/// The state of one peer.
#[derive(Debug)]
#[repr(C, align(64))] // in this order: what each message reads and writes is in the first cache line
pub struct Endpoint<C> {
    /// One lane per queue of the layout; none before its first message or connection.
    pub lanes: Vec<Lane>,
    /// Bytes to it and from it, whatever the connection.
    pub traffic: Traffic,
    /// The rings of eager RDMA, or [`NO_RING`].
    pub ring: u32,
    /// Tells the endpoints apart that this position has had: with it, the upper layer's name for
    /// the endpoint.
    pub generation: u32,
    /// Where it stands; written by `on` only.
    state: State,
    /// Messages over the connection, and how it comes to its end.
    pub ends: Ends,
    /// Send work requests that the device owns.
    pub outstanding: u32,
    /// Which connection at this position: names it to the connection manager and in work requests.
    /// It starts as `generation`.
    pub epoch: u32,
    /// How often in a row the peer has left before a connection was up, and another was begun. Whether the peer has an endpoint is not
    /// known as long as it is not 0.
    pub departures: u8,
    /// No connection has come up since the last one was tried over the other port.
    pub has_turned: bool,
    /// Whether its peer may connect.
    pub listing: Listing,
    /// RDMA operations in order, waiting.
    pub rdma: VecDeque<Operation<C>>,
    /// Handed back when the connection is there and what was queued flows, or when it will not be.
    pub awaiting: Vec<C>,
    /// Messages that wait for a connection, a credit or an entry.
    pub queued: u32,
    /// Those among them that receive callbacks have sent.
    pub answers: u32,
    /// How long senders may still be kept while a connection or a credit is awaited.
    pub patience: Duration,
    /// A message of the peer has come before our connection to it was up: what is sent now may be
    /// the answer.
    pub peer_has_sent: bool,
    /// Which long messages may go to it.
    pub long: LongSends,
    /// RDMA operations among the [outstanding](Self::outstanding) requests, but for those over X queues, which their path counts.
    pub rdma_out: u32,
    /// Callbacks of the upper layer that have not returned.
    pub owed: Callbacks,
    /// Messages from the peer at the last look for peers that say nothing.
    pub heard: u32,
    /// Process name of the peer: job id in the upper half, rank in the lower.
    pub peer: u64,
    /// X queues: the route to it, once there is one.
    pub route: Option<Box<XrcRoute<C>>>,
    /// P and S queues: its connection has broken, and another one is to take its place.
    pub resume: Option<Box<Resume<C>>>,
    /// The stream before this one, to which the peer may go back.
    pub former: Option<Box<Former>>,
    /// P and S queues: the stream that its counts are of.
    pub stream: StreamNum,
    /// The stream that the connection managers have agreed upon for the connection at hand, until that counts; else none.
    pub agreed: StreamNum,
    /// How often in a row a connection has broken over which nothing had been done.
    pub losses: u8,
    /// Messages that had come when it broke last.
    pub moved: u32,
    /// X queues: number of the next message to it, and of the next one from it.
    pub numbers: Numbers,
    /// The connection manager that brings it up, and where the peer listens; none for the endpoint to
    /// this process itself.
    pub choice: Option<Box<Choice>>,
    /// When what happened to its connection.
    pub steps: Timeline,
    /// What is reserved for it in the completion queues.
    pub entries: Entries,
    /// iWARP: who has to send first.
    pub first: Option<First>,
    /// iWARP: queues, by bit, that nothing has come over yet, where the peer has to send first.
    pub unopened: u16,
    /// Messages from the peer when it had rings last.
    pub ringless_from: u32,
}

const _: () = assert!(
    offset_of!(Endpoint<u64>, ends) + 2 * size_of::<u32>() <= LINE,
    "what a message finds here, and counts"
);

/// There are no rings of this number.
pub const NO_RING: u32 = u32::MAX;

impl<C> Endpoint<C> {
    /// An endpoint that nothing has begun on, under this name.
    pub fn new(id: EpId, peer: u64, choice: Option<Box<Choice>>, entries: Entries) -> Endpoint<C> {
        Endpoint {
            state: State::Idle,
            generation: id.generation,
            epoch: id.generation,
            departures: 0,
            has_turned: false,
            listing: Listing::Listed,
            lanes: Vec::new(),
            rdma: VecDeque::new(),
            awaiting: Vec::new(),
            queued: 0,
            answers: 0,
            patience: CONNECT_PATIENCE,
            peer_has_sent: false,
            long: LongSends::default(),
            outstanding: 0,
            traffic: Traffic::default(),
            ends: Ends::default(),
            heard: 0,
            rdma_out: 0,
            owed: Callbacks::default(),
            peer,
            route: None,
            resume: None,
            former: None,
            stream: StreamNum::NONE,
            agreed: StreamNum::NONE,
            losses: 0,
            moved: 0,
            numbers: Numbers::default(),
            choice,
            steps: timeline::begun(),
            entries,
            first: None,
            unopened: 0,
            ring: NO_RING,
            ringless_from: 0,
        }
    }

    /// Where it stands.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// One step of the table; what to do next. `cts`: the layout has a queue for the clear-to-send.
    pub fn on(&mut self, event: Event, cts: bool) -> Action {
        let was = self.state;
        let (next, action) = was.on(event, self.handshake(cts), self.resume.is_some());
        self.state = next;
        if next != was || action != Action::None {
            log::trace!("endpoint to {:#x}: {was:?} on {event:?} -> {next:?}, {action:?}", self.peer);
        }
        action
    }

    /// The next connection, whose epoch is `epoch`, has these lanes: the lanes of the last one, and
    /// what it had in flight. What waits goes on waiting.
    pub fn begin_epoch(&mut self, epoch: u32, mut lanes: Vec<Lane>) -> (Vec<Lane>, u32) {
        let kept = lanes.iter_mut().zip(&self.lanes);
        kept.for_each(|(new, old)| new.go_on_from(old));
        (self.epoch, self.listing) = (epoch, Listing::Listed);
        self.rdma_out = 0;
        (self.route, self.numbers) = (None, Numbers::default());
        (self.first, self.unopened) = (None, 0);
        self.agreed = StreamNum::NONE;
        self.resume.iter_mut().for_each(|resume| resume.is_at_hand = false);
        let resumes = self.resume.is_some();
        if !resumes {
            let has_counts = self.lanes.iter().any(|lane| (lane.sent, lane.received) != (0, 0));
            if has_counts && self.former.is_none() {
                self.former = Former::of(&self.lanes, self.ends, self.stream);
            }
            self.ends = Ends::default();
            lanes.iter_mut().for_each(|lane| (lane.sent, lane.received) = (0, 0));
        }
        self.ringless_from = self.ends.received;
        (self.patience, self.peer_has_sent) = (CONNECT_PATIENCE, resumes);
        self.steps = timeline::begun();
        (std::mem::replace(&mut self.lanes, lanes), std::mem::take(&mut self.outstanding))
    }

    /// The connection manager's name for it at position `index`.
    pub fn key(&self, index: u32) -> EndpointKey {
        EndpointKey { index, generation: self.epoch }
    }

    /// The connection that there is, of the endpoint at position `index`.
    #[inline]
    pub fn connection(&self, index: u32) -> Connection {
        Connection { index, epoch: self.epoch }
    }

    /// What has to pass before messages flow; `cts`: the layout has a queue for that.
    pub fn handshake(&self, cts: bool) -> Handshake {
        match (cts && !self.is_to_itself(), self.first) {
            (false, _) => Handshake::None,
            (true, None) => Handshake::Cts,
            (true, Some(First::Us)) => Handshake::Opens,
            (true, Some(First::Peer)) => Handshake::Answers,
        }
    }

    /// It leads to this process: its queue pair is connected to itself.
    pub fn is_to_itself(&self) -> bool {
        self.choice.is_none()
    }

    /// Messages may be handed to it; of its own process they are another transport's.
    pub fn takes_messages(&self) -> bool {
        self.state.is_open() && !self.is_to_itself()
    }

    /// All that was handed to us for it has gone out, and the peer has not been told that nothing follows.
    pub fn may_end(&self) -> bool {
        let flows = self.state.flows() && self.state.is_open();
        flows && !self.is_to_itself() && self.backlog() == 0 && !self.ends.is_told()
    }

    /// What is sent now is complete when the connection is there, not before. Not so an answer:
    /// Open MPI 4.1's osc/pt2pt sends it under a lock that it takes again for the next message it
    /// looks at meanwhile.
    pub fn completes_when_connected(&self) -> bool {
        self.state.precedes_connection() && !self.peer_has_sent
    }

    /// A message with so many bytes of payload has come over this queue.
    #[inline(always)] // with every message
    pub fn count_received(&mut self, queue: usize, len: u32) {
        self.traffic.received += u64::from(len);
        self.ends.received = self.ends.received.wrapping_add(1);
        if let Some(lane) = self.lanes.get_mut(queue) {
            lane.received = lane.received.wrapping_add(1);
        }
    }

    /// So many messages, of `len` bytes together, have landed in its ring: how many have come in its first lane.
    #[inline]
    pub fn count_landed(&mut self, messages: u32, len: u32) -> Option<u16> {
        self.traffic.received += u64::from(len);
        self.ends.received = self.ends.received.wrapping_add(messages);
        let lane = self.lanes.first_mut()?;
        lane.received = lane.received.wrapping_add(messages as u16);
        Some(lane.received)
    }

    /// A message waits in the lane of this queue.
    pub fn count_queued(&mut self, queue: usize) {
        self.queued += 1;
        self.lanes[queue].queued = self.lanes[queue].queued.wrapping_add(1);
    }

    /// A message that has waited in the lane of this queue is posted.
    pub fn count_served(&mut self, queue: usize) {
        self.queued -= 1;
        self.lanes[queue].served = self.lanes[queue].served.wrapping_add(1);
    }

    /// X queues: the peer has sent, or may, and has to be told of our end; nothing has gone to it yet, so there is no route.
    pub fn has_only_received(&self) -> bool {
        let may_send = self.ends.received != 0 || self.listing == Listing::Asked;
        may_send && self.state.precedes_connection() && !self.ends.peer_is_done()
    }

    /// It has no rings from now on.
    pub fn lose_ring(&mut self) {
        (self.ring, self.ringless_from) = (NO_RING, self.ends.received);
    }

    /// Its connection comes up, and nothing holds the peer back any more: messages may have come that have not been looked at. `cts`: the
    /// layout has a queue for the clear-to-send.
    pub fn may_hold_unseen(&self, cts: bool) -> bool {
        let is_posted = self.state.has_posted() && !self.state.flows();
        !self.is_to_itself() && (is_posted || !cts && self.state == State::HaveQps)
    }

    /// What comes over the next connection, if this one breaks, is what the last one has left: both sides have begun to count, or operations are
    /// on their way.
    pub fn has_moved(&self) -> bool {
        let ends = &self.ends;
        let operates = self.state.flows() && self.rdma.len() + self.rdma_out as usize != 0;
        ends.sent != 0 || ends.received != 0 || ends.are_open() || self.state == State::Ended || operates
    }

    /// Nothing is to go to the peer any more: all has, and it knows.
    pub fn has_only_to_hear(&self) -> bool {
        self.state == State::Ended || self.ends.is_told() && self.backlog() == 0
    }

    /// We leave, and have heard that all has come; the peer has not ended its stream.
    pub fn has_heard_all(&self) -> bool {
        self.state.flows() && self.state != State::Ended && self.ends.all_is_heard()
    }

    /// Both sides know that nothing more is to go to the peer. Not if the peer has sent more since the end that was acknowledged, and has
    /// told another end: it waits for the acknowledgement of that one.
    pub fn has_parted(&self) -> bool {
        self.state == State::Ended && self.ends.peer_is_done() || self.ends.all_is_heard()
    }

    /// Something that was handed to us for it is not done yet.
    pub fn is_busy(&self) -> bool {
        !self.state.is_over() && self.backlog() + self.outstanding as usize != 0
    }

    /// What is not signalled completes from now on, too; how many markers that has taken.
    pub fn mark(&mut self) -> u32 {
        let posted = self.lanes.iter_mut().map(|lane| u32::from(lane.mark())).sum();
        self.outstanding += posted;
        posted
    }

    /// Its queue pairs go to the error state, which flushes them; `level` is for what is wrong with
    /// that.
    pub fn to_error(&self, level: log::Level) {
        for qp in self.lanes.iter().filter_map(Lane::qp) {
            if let Err(error) = qp.to_error() {
                log::log!(level, "cannot move {:?} to the error state: {error}", qp.num());
            }
        }
    }

    /// Messages wait, and what they wait for is on its way.
    pub fn is_held_up(&self) -> bool {
        self.queued != 0 && (self.state.is_coming_up() || self.state.flows())
    }

    /// The peer has left before a connection was up; whether it has another endpoint is not known until something comes from that: a
    /// message, or its part in another connection.
    pub fn is_tentative(&self) -> bool {
        let knows_nothing = self.state.precedes_connection() && !self.state.has_posted();
        let has_shown = self.ends.received != 0 || self.listing == Listing::Asked;
        self.departures != 0 && knows_nothing && !has_shown
    }

    /// Messages and operations that wait.
    pub fn backlog(&self) -> usize {
        let of_route = self.route.as_ref().map_or(0, |route| route.retained.len());
        let of_broken = self.resume.as_ref().map_or(0, |resume| resume.retained.len());
        self.rdma.len() + self.queued as usize + of_route + of_broken
    }
}
