//! What the managers that carry datagrams share, ibcm and xrc: the way of a datagram to its link,
//! repetitions, requests that wait for their endpoint, and the messages that end an exchange.
//!
//! A datagram has to pass, in this order: the format; the receiver's incarnation (is it for this
//! one of ours?); the id or the name in it (which link?); the sender's incarnation and UD QPN (is
//! it from the process that the modex, or a later request, named?); the ids of both sides (is it of
//! this exchange?). What fails is counted. REQ, REP, RTU and DREQ that belong to nothing are
//! answered all the same, so that their sender neither runs into its time-out nor holds half a
//! connection.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use verbs::{Psn, Qpn};

use crate::config::datagram::Params;
use crate::core::action::Action;
use crate::core::machine::{Core, Link, Protocol, reads_as_own};
use crate::core::rng::Rng;
use crate::wire::datagram::{Datagram, Message, Request};
use crate::wire::listener::{Address, Facing};
use crate::wire::time::{decode_time, encode_time};
use crate::wire::{
    CommId, Depth, Drep, Dreq, Incarnation, Mra, Path, Reason, Rej, ReqHead, Rtu, Source, Stage, WireError,
};
use crate::{ConnectCause, ProcessName};

/// How often a request may be begun anew because what it was based on was outdated.
const MAX_RENEWALS: u32 = 8;

/// A request as it has come in.
#[derive(Clone, Copy, Debug)]
pub struct Received<Q> {
    pub(crate) req: Q,
    pub(crate) from: Source,
    /// The incarnation that has sent it.
    pub(crate) incarnation: Incarnation,
}

/// What this side says of its queue pairs in every exchange.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// RDMA READs and atomics that this side serves and issues at a time.
    pub depth: Depth,
    /// The partition key itself, not its index; 0xffff if it can't be queried.
    pub pkey: u16,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// Local ACK timeout, 4.096 µs * 2^n.
    pub ack_timeout: u8,
    /// Transport retries, 0 to 7.
    pub retry_count: u8,
    /// RNR retries, 0 to 7; 7 repeats for ever.
    pub rnr_retry: u8,
}

/// The ids of exchanges, drawn from a counter with a random start, and the links that they name.
#[derive(Debug, Default)]
pub struct Ids {
    last: CommId,
    pub(crate) links: HashMap<CommId, usize>,
}

impl Ids {
    pub(crate) fn new(rng: &mut Rng) -> Ids {
        Ids { last: CommId(rng.next_u32()), links: HashMap::new() }
    }

    pub(crate) fn draw(&mut self) -> CommId {
        self.last = self.last.following();
        self.last
    }
}

/// What every link has.
#[derive(Debug)]
pub struct Exchange<L> {
    /// Our id of the exchange.
    pub(crate) local: CommId,
    /// How long the peer says that it takes for an answer.
    pub(crate) response: Duration,
    /// How often our request was begun anew because what it was based on was outdated.
    pub(crate) renewals: u32,
    own: L,
}

impl<L> Exchange<L> {
    pub(crate) fn new(local: CommId, response: Duration, own: L) -> Exchange<L> {
        Exchange { local, response, renewals: 0, own }
    }
}

reads_as_own!([L] Exchange<L> => L);

/// A protocol whose messages are datagrams.
pub trait DatagramProtocol:
    Protocol<
        Params = Params,
        Link = Exchange<<Self as DatagramProtocol>::Own>,
        Request = Received<<Self as DatagramProtocol>::Req>,
    >
{
    /// Its REQ.
    type Req: Request;
    /// What it keeps of a link besides.
    type Own: Debug;

    /// Its name in messages.
    const NAME: &'static str;

    /// What a message is to its link; `None` if it is nothing.
    fn input<'a>(message: &'a Message<Self::Req>) -> Option<Self::Input<'a>>;

    /// How it looks at what it has, and what is done with its messages.
    const EXCHANGE: Hooks<Self>;
}

/// A datagram with the request that this manager's protocol has.
pub type DatagramOf<P> = Datagram<<P as DatagramProtocol>::Req>;

/// What the exchange has a manager do.
#[derive(Debug)]
pub struct Hooks<P: DatagramProtocol> {
    /// Where this process listens.
    pub our_listener: fn(&P::Local) -> &Address,
    /// What this side says of its queue pairs.
    pub terms: fn(&P::Local) -> &Terms,
    /// The ids of its exchanges.
    pub ids: fn(&mut P) -> &mut Ids,
    /// Where the link's peer listens.
    pub listener: fn(&P::Own) -> Facing<Address>,
    /// The peer's id and its queue pair, where they are known.
    pub remote: fn(&Link<P>) -> Option<(CommId, Qpn)>,
    /// True if the sender of a message means the exchange that the link has.
    pub is_meant: fn(&Core<P>, usize, &Message<P::Req>) -> bool,
    /// A REQ for this process: it finds its endpoint by the name of its sender.
    pub route_req: fn(&mut Core<P>, &Received<P::Req>, Instant),
    /// A REJ that withdraws a REQ names the exchange by its sender's id only; false if this is
    /// none.
    pub withdrawn: fn(&mut Core<P>, Source, &DatagramOf<P>, Instant) -> bool,
    /// The call that sends a datagram.
    pub send: fn(Source, DatagramOf<P>) -> P::Call,
}

/// `DatagramProtocol::input` for an enum of inputs that has these messages under their names.
macro_rules! message_inputs {
    ($Req:ty: $($Name:ident)+) => {
        fn input<'a>(message: &'a $crate::wire::datagram::Message<$Req>) -> Option<Input<'a>> {
            use $crate::wire::datagram::Message;
            match message {
                Message::Req(_) => Some(Input::ReqDup),
                Message::Drep(_) => Some(Input::Drep),
                $(Message::$Name(message) => Some(Input::$Name(message)),)+
                #[allow(unreachable_patterns, reason = "where every message is an input")]
                _ => None,
            }
        }
    };
}

pub(crate) use message_inputs;

/// From bytes to the link that they belong to.
impl<P: DatagramProtocol> Core<P> {
    /// Takes in a datagram: any bytes, from any sender.
    pub fn datagram(&mut self, from: Source, bytes: &[u8], now: Instant) {
        self.stats.received += 1;
        match Datagram::parse(bytes) {
            Ok(datagram) if datagram.to != (P::EXCHANGE.our_listener)(&self.local).incarnation => {
                self.stats.stale += 1
            }
            Ok(Datagram { from: incarnation, message: Message::Req(req), .. }) => {
                self.route_req(&Received { req, from, incarnation }, now);
            }
            Ok(datagram) => self.route_answer(from, &datagram, now),
            Err(WireError::Length(..) | WireError::Foreign(_)) => self.stats.foreign += 1,
            Err(error @ (WireError::Version(_) | WireError::Field(_))) => {
                log::debug!("{}: refused a datagram of qp {:#x}: {error}", P::NAME, from.qpn.0);
                self.stats.malformed += 1;
            }
        }
    }

    fn route_req(&mut self, received: &Received<P::Req>, now: Instant) {
        if received.req.head().service == self.me {
            (P::EXCHANGE.route_req)(self, received, now);
        } else {
            self.reject_req(received, Reason::InvalidServiceId);
        }
    }

    /// Every other message names the exchange by our id.
    fn route_answer(&mut self, from: Source, datagram: &Datagram<P::Req>, now: Instant) {
        let message = &datagram.message;
        if (P::EXCHANGE.withdrawn)(self, from, datagram, now) {
            return;
        }
        let Some(&slot) = self.ids().links.get(&message.remote()) else {
            return self.answer_stray(from, datagram);
        };
        let listener = (P::EXCHANGE.listener)(&self.links[slot]);
        if listener.incarnation != datagram.from || listener.qpn != from.qpn {
            self.stats.foreign += 1;
        } else if !(P::EXCHANGE.is_meant)(self, slot, message) {
            self.answer_stray(from, datagram);
        } else if let Some(input) = P::input(message) {
            self.input(slot, &input, now);
        }
    }

    /// True if the ids of a message are those of the link's exchange.
    pub(crate) fn ids_agree(&self, slot: usize, message: &Message<P::Req>) -> bool {
        let local = message.local();
        match ((P::EXCHANGE.remote)(&self.links[slot]), message) {
            (None, _) => true,
            (Some((id, _)), Message::Mra(_) | Message::Rej(_)) => local == id || local == CommId::NONE,
            (Some((id, _)), _) => local == id,
        }
    }

    /// A message of an exchange that is not known here (any more).
    fn answer_stray(&mut self, from: Source, datagram: &Datagram<P::Req>) {
        self.stats.stale += 1;
        let (local, remote) = (datagram.message.remote(), datagram.message.local());
        let answer = match datagram.message {
            Message::Rep(_) => Message::Rej(Rej::of_stray_rep(remote)),
            Message::Dreq(_) => Message::Drep(Drep { local, remote }),
            Message::Rtu(rtu) => Message::Rej(disowned(&rtu)),
            Message::Req(_) | Message::Mra(_) | Message::Rej(_) | Message::Drep(_) => return,
        };
        self.send_to(from, datagram.from, answer);
    }

    /// Rejects a REQ that has led to no exchange.
    pub(crate) fn reject_req(&mut self, received: &Received<P::Req>, reason: Reason) {
        let rej = Rej::of_req(received.req.head().local, reason);
        self.send_to(received.from, received.incarnation, Message::Rej(rej));
    }

    /// Rejects a REQ that was overtaken.
    pub(crate) fn reject_stale(&mut self, received: &Received<P::Req>) {
        self.stats.stale += 1;
        self.reject_req(received, Reason::Stale);
    }
}

/// Requests of processes that this side has no usable endpoint for (yet). With direct modex a peer
/// may know us long before we know it.
impl<P: DatagramProtocol> Core<P> {
    /// Keeps a REQ, asks its sender to wait (MRA), and reports the process the first time, and when the REQ
    /// is of another exchange than the one that waits: what the first report led to may have been at another port. One that
    /// comes again does not wait longer; one of an earlier incarnation does not replace a later
    /// one's. One too many is dropped, and will come again.
    pub(crate) fn park(&mut self, received: &Received<P::Req>, now: Instant) {
        let peer = received.req.name();
        if !self.parked.has_room_for(peer) {
            return self.stats.ignored += 1;
        }
        match self.parked.of(peer) {
            Some(kept) if kept.incarnation.is_newer_than(received.incarnation) => {}
            Some(kept) => {
                let is_another = kept.req.head().local != received.req.head().local;
                *kept = *received;
                if is_another {
                    self.actions.push_back(Action::UnknownPeer { peer });
                }
            }
            None => {
                self.parked.keep(peer, *received, now + self.params.unknown_wait, &mut self.timers);
                self.stats.parked += 1;
                self.actions.push_back(Action::UnknownPeer { peer });
            }
        }
        let mra = Mra::of_req(received.req.head().local, self.params.mra_wait);
        self.send_to(received.from, received.incarnation, Message::Mra(mra));
    }

    /// The endpoint has come: serves the request that waited for it, if it is not from an earlier
    /// incarnation than was added.
    pub(crate) fn serve_parked(&mut self, peer: ProcessName, now: Instant) {
        if let Some(received) = self.parked.take(peer, &mut self.timers) {
            self.route_req(&received, now);
        }
    }
}

/// Sending and repeating.
impl<P: DatagramProtocol> Core<P> {
    pub(crate) fn send(&mut self, slot: usize, message: Message<P::Req>) {
        let listener = (P::EXCHANGE.listener)(&self.links[slot]);
        let (to, incarnation) = (Source::from(&listener), listener.incarnation);
        self.send_to(to, incarnation, message);
    }

    fn send_to(&mut self, to: Source, incarnation: Incarnation, message: Message<P::Req>) {
        self.stats.sent += 1;
        let datagram =
            Datagram { from: (P::EXCHANGE.our_listener)(&self.local).incarnation, to: incarnation, message };
        self.actions.push_back(Action::Call((P::EXCHANGE.send)(to, datagram)));
    }

    /// What a REQ of the link says in any case.
    pub(crate) fn req_head(&self, slot: usize, psn: Psn) -> ReqHead {
        let (link, terms) = (&self.links[slot], (P::EXCHANGE.terms)(&self.local));
        let (ours, theirs) = ((P::EXCHANGE.our_listener)(&self.local), (P::EXCHANGE.listener)(link));
        ReqHead {
            local: link.local,
            service: link.peer,
            psn,
            depth: terms.depth,
            path: Path {
                local_lid: ours.lid,
                remote_lid: theirs.lid,
                local_gid: theirs.our_gid.unwrap_or(ours.gid),
                remote_gid: theirs.gid,
                sl: terms.sl & 0xf,
                ack_timeout: terms.ack_timeout & 0x1f,
            },
            mtu: ours.mtu.min(theirs.mtu),
            pkey: terms.pkey,
            retry_count: terms.retry_count & 7,
            rnr_retry: terms.rnr_retry & 7,
            max_cm_retries: u8::try_from(self.params.max_retries.min(15)).unwrap_or(15),
            response_timeout: encode_time(self.params.timeout),
        }
    }

    /// Rejects with our id of the exchange.
    pub(crate) fn reject(&mut self, slot: usize, remote: CommId, stage: Stage, reason: Reason) {
        let local = self.links[slot].local;
        self.send(slot, Message::Rej(Rej { local, remote, stage, reason }));
    }

    /// Creating, and there is no queue pair to be had: reports it; a peer that asked is told.
    pub(crate) fn create_failed(&mut self, slot: usize, error: &str, now: Instant) {
        if let Some((remote, _)) = (P::EXCHANGE.remote)(&self.links[slot]) {
            self.reject(slot, remote, Stage::Req, Reason::NoResources);
        }
        self.fail(slot, ConnectCause::Verbs(error.to_owned()), now);
    }

    /// Waits for an answer to what was sent for the (`tries` + 1)-th time.
    pub(crate) fn arm(&mut self, slot: usize, now: Instant) {
        let (response, tries) = (self.links[slot].response, self.links[slot].tries);
        let wait = self.rng.jitter(self.params.wait_for(response, tries));
        self.set_deadline(slot, Some(now + wait));
    }

    /// Counts a repetition; false if there have been enough.
    pub(crate) fn may_repeat(&mut self, slot: usize, now: Instant) -> bool {
        let link = &mut self.links[slot];
        let elapsed = now.saturating_duration_since(link.since);
        if link.tries >= self.params.max_retries || elapsed >= self.params.patience {
            return false;
        }
        link.tries += 1;
        self.stats.repeated += 1;
        true
    }

    /// No answer has come, however often it was asked for.
    pub(crate) fn time_out(&mut self, slot: usize, now: Instant) {
        let elapsed = now.saturating_duration_since(self.links[slot].since);
        self.fail(slot, ConnectCause::Timeout { tries: self.links[slot].tries + 1, elapsed }, now);
    }

    /// The peer is alive and asks for more time: its silence so far does not count against it. It
    /// gets what it asks for, as long as `patience` for the whole exchange lasts.
    pub(crate) fn more_time(&mut self, slot: usize, mra: &Mra, now: Instant) -> Instant {
        self.links[slot].tries = 0;
        let limit = self.links[slot].since + self.params.patience;
        (now + decode_time(mra.service_timeout)).min(limit.max(now))
    }

    /// Counts a request that is begun anew; too many are too many, and `reason` is reported.
    pub(crate) fn may_renew(&mut self, slot: usize, reason: Reason, now: Instant) -> bool {
        self.links[slot].renewals += 1;
        let allowed = self.links[slot].renewals <= MAX_RENEWALS;
        if !allowed {
            self.fail(slot, ConnectCause::Rejected(reason), now);
        }
        allowed
    }

    fn ids(&mut self) -> &mut Ids {
        (P::EXCHANGE.ids)(&mut self.own)
    }

    /// The link's exchange goes on under a new id.
    pub(crate) fn renew_id(&mut self, slot: usize) -> CommId {
        let ids = self.ids();
        let fresh = ids.draw();
        ids.links.insert(fresh, slot);
        let old = std::mem::replace(&mut self.links[slot].local, fresh);
        self.ids().links.remove(&old);
        old
    }
}

/// The end of an exchange: DREQ, DREP, TimeWait.
impl<P: DatagramProtocol> Core<P> {
    /// Sends a DREQ for the (`tries` + 1)-th time.
    pub(crate) fn send_dreq(&mut self, slot: usize, now: Instant) {
        let Some((remote, remote_qpn)) = (P::EXCHANGE.remote)(&self.links[slot]) else { return };
        let (local, failed) = (self.links[slot].local, self.links[slot].failed);
        self.send(slot, Message::Dreq(Dreq { local, remote, remote_qpn, failed }));
        self.arm(slot, now);
    }

    pub(crate) fn send_drep(&mut self, slot: usize, dreq: &Dreq) {
        self.send(slot, Message::Drep(Drep { local: dreq.remote, remote: dreq.local }));
    }

    /// Late datagrams are answered for as long as they may still be on their way.
    pub(crate) fn time_wait(&mut self, slot: usize, now: Instant) {
        let ack_timeout = (P::EXCHANGE.terms)(&self.local).ack_timeout;
        self.set_deadline(slot, Some(now + self.params.time_wait(ack_timeout)));
    }
}

/// The answer to an RTU of a connection that is gone: it names both ids, as if the connection were
/// known here.
pub(crate) fn disowned(rtu: &Rtu) -> Rej {
    Rej { local: rtu.remote, remote: rtu.local, stage: Stage::Other, reason: Reason::Stale }
}
