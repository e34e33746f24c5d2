//! Two ports of a device: when one does not serve, connections that take the place of broken ones go over the other.
//!
//! Every module's connection managers listen at another port of its device, too, the alternate one (`cpc::Service::open_with`); an endpoint's
//! choice names the manager at the port in use, and the same at the other (`cpc::Choice::turn`). The queue pairs of either have the same
//! protection domain, queues and buffers, so that nothing but the connection changes.
//!
//! ```text
//!   our port goes down            a connection that is coming up: at once over the other; one that is up: when the port has been down
//!                                 for `GRACE`, as if it had broken
//!   the connection has broken     our port is known to be down: the next one goes over the other; else over the same
//!   it does not come up           once more, over the other port; at once, when our port is known to be down
//!   the peer asks over the other  we follow, and begin anew there
//! ```
//! Both may turn at a time, and ask past each other: of two that have asked and whose ports are up, the one with the smaller name follows.
#![forbid(unsafe_code)]

use super::renew::{Move, Renewal};
use crate::transport::endpoint::state::{Event, Reason, State};
use crate::transport::endpoint::{Endpoint, EpId, Listing, Resume};
use crate::transport::port::OpenPort;
use crate::transport::{Transport, Upcall};
use cpc::{Choice, Step};
use std::time::{Duration, Instant};

/// How long a port has to be down before connections that are up leave it. Without that they break when a request has been repeated in vain
/// (`ib_timeout`, `ib_retry_count`: seconds), and one that is idle not before a keepalive.
///
/// A link that trains anew, or a port whose events come in pairs, is back in tens of milliseconds; the requests under way are repeated by
/// the device, and nothing is gained by another connection, which costs a flush, an exchange of datagrams and what is sent again, a few
/// milliseconds. A port that is back later than this stands still for longer than the move takes.
const GRACE: Duration = Duration::from_millis(100);

/// Why a connection ended over whose port nothing goes.
const PORT_DOWN: &str = "the port that it goes over is down";

/// Why a connection ended that was coming up.
pub(super) const GIVEN_UP: &str = "it was given up for one over the device's other port";

impl OpenPort {
    /// Connections of the endpoint had better go over the other port: the one in use is down, as the device has told, and that is not.
    /// Since when.
    fn better_elsewhere_since<C>(&self, ep: &Endpoint<C>) -> Option<Instant> {
        let (other, choice) = self.alternate.zip(ep.choice.as_ref())?;
        let [used, unused] = if choice.is_alternate() { [other, self.num] } else { [self.num, other] };
        self.heard.down_since(used).filter(|_| self.heard.down_since(unused).is_none())
    }

    fn is_better_elsewhere<C>(&self, ep: &Endpoint<C>) -> bool {
        self.better_elsewhere_since(ep).is_some()
    }

    /// One of the two ports is down, and the other is not: since when.
    fn one_is_down_since(&self) -> Option<Instant> {
        let [this, other] =
            [Some(self.num), self.alternate].map(|num| num.and_then(|num| self.heard.down_since(num)));
        this.xor(other).filter(|_| self.alternate.is_some())
    }
}

impl<C> Transport<C> {
    /// The endpoint's connection has broken, and another is about to be begun.
    pub(super) fn avoid_port_that_is_down(&mut self, index: u32) {
        if self.endpoints.get(index).is_some_and(|ep| self.port.is_better_elsewhere(ep)) {
            self.turn(index);
        }
    }

    /// A connection is about to be asked for. True: not here, for our port is down, but over the other; it is begun anew.
    pub(super) fn asks_elsewhere(&mut self, index: u32) -> bool {
        let is_better = self.endpoints.get(index).is_some_and(|ep| self.port.is_better_elsewhere(ep));
        is_better && self.turn(index) && self.begin_over_other_port(index)
    }

    /// A port has gone down, or is up: connections that are coming up over one that is down need not wait for what does not come. Those that
    /// are up are looked at when it has been down for a while.
    pub(crate) fn leave_port_that_is_down(&mut self) {
        let waits = |ep: &Endpoint<C>| ep.state().is_coming_up() && self.port.is_better_elsewhere(ep);
        let waiting = self.endpoints.iter().filter(|(_, ep)| waits(ep));
        let away = |(index, ep): (u32, &Endpoint<C>)| {
            Renewal::Move(ep.id(index), Move::Away { to_alternate: !ep.is_over_alternate() })
        };
        let renewals: Vec<Renewal> = waiting.map(away).collect();
        renewals.into_iter().for_each(|renewal| self.renew_later(renewal));
        if let Some(since) = self.port.one_is_down_since() {
            self.renew_later(Renewal::LeavePort { at: since + GRACE });
        }
    }

    /// If a port has been down for a while, connections over it go over the other one. From within a poll, but from no completion.
    pub(super) fn leave_port_at(&mut self, at: Instant) {
        let now = timing::now();
        if now < at {
            return self.renew_later(Renewal::LeavePort { at });
        }
        self.reap();
        self.poll_sends();
        let stays_down = |since: Instant| now >= since + GRACE;
        let is_stuck = |ep: &Endpoint<C>| {
            ep.state().flows() && self.port.better_elsewhere_since(ep).is_some_and(stays_down)
        };
        let stuck: Vec<u32> =
            self.endpoints.iter().filter(|(_, ep)| is_stuck(ep)).map(|(index, _)| index).collect();
        stuck.into_iter().for_each(|index| self.lose_over_port_that_is_down(index));
    }

    /// One whose end is agreed upon, and that owes the peer nothing, goes as it is.
    fn lose_over_port_that_is_down(&mut self, index: u32) {
        let Some(ep) = self.endpoints.get(index) else { return };
        let is_over = ep.has_heard_all() || ep.has_parted() && !ep.is_busy();
        if !is_over {
            self.lose(index, &PORT_DOWN, |_, most| most != 0);
        }
    }

    /// The connection manager could not bring a connection up. True: it is worth trying over the other port, which the next one goes over.
    pub(super) fn can_try_other_port(&mut self, index: u32) -> bool {
        let Some(ep) = self.endpoints.get_mut(index) else { return false };
        let is_asked_there = self.asked.get(&ep.peer).is_some_and(|at| *at != ep.is_over_alternate());
        let is_second = std::mem::replace(&mut ep.has_turned, true);
        (!is_second || is_asked_there) && self.turn(index)
    }

    /// The next connection goes over the other port. False: there is none.
    fn turn(&mut self, index: u32) -> bool {
        let Some(ep) = self.endpoints.get_mut(index) else { return false };
        let turned = ep.choice.as_mut().is_some_and(|choice| choice.turn());
        if turned {
            let num = self.port.alternate.filter(|_| ep.is_over_alternate()).unwrap_or(self.port.num);
            let (device, peer) = (self.port.device(), ep.peer);
            log::info!("the next connection to process {peer:#x} goes over port {num} of {device}");
            self.stats.port_changes += 1;
        }
        turned
    }

    /// The peer asks for a connection at this port. True: ours is about to begin anew there, or has been asked for at the other, to which
    /// the peer follows.
    pub(super) fn meet(&mut self, index: u32, at_alternate: bool) -> bool {
        let Some(ep) = self.endpoints.get(index) else { return false };
        let has_two = ep.choice.as_ref().is_some_and(|choice| choice.alternate.is_some());
        if !has_two || ep.is_over_alternate() == at_alternate || ep.listing != Listing::Listed {
            return false;
        }
        match ep.state() {
            State::Failed | State::Closed => false,
            State::Disconnected => {
                self.turn(index);
                false
            }
            _ => {
                if self.follows(ep) {
                    let (id, peer) = (ep.id(index), ep.peer);
                    self.note_asker(peer, at_alternate);
                    let place = Move::ToPeer { to_alternate: at_alternate };
                    self.renew_later(Renewal::Move(id, place));
                } else {
                    self.note_asker(ep.peer, at_alternate);
                }
                true
            }
        }
    }

    /// A process asks for a connection at this port, and has no endpoint yet, or one that does not go there now: there its endpoint, or its next
    /// connection, is to begin. The connection manager keeps the request.
    pub(super) fn note_asker(&mut self, peer: u64, at_alternate: bool) {
        self.asked.insert(peer, at_alternate);
    }

    /// The choice for a new endpoint: over the alternate port, if its peer has asked there.
    pub(super) fn where_it_asks(&mut self, peer: u64, mut choice: Choice) -> Choice {
        if self.asked.remove(&peer) == Some(true) {
            choice.turn();
        }
        choice
    }

    /// The next connection is about to begin. The peer that we have not followed may have given up the one that we had asked it for, and waits
    /// where it has asked.
    pub(super) fn go_where_it_asks(&mut self, index: u32) {
        let Some(ep) = self.endpoints.get(index) else { return };
        if let Some(at_alternate) = self.asked.remove(&ep.peer) {
            self.turn_to(index, at_alternate);
        }
    }

    /// The endpoint's peer has asked for a connection while it is between two, or at the port that it has not gone to. The connection manager there does
    /// not know it, so that the request goes on waiting if it is taken down: the upper layer has to hear of it again.
    pub(super) fn leaves_asker(&self, id: EpId) -> Option<u64> {
        let ep = self.endpoints.named(id)?;
        let at_alternate = *self.asked.get(&ep.peer)?;
        let waits = ep.state().is_replaced() || ep.is_over_alternate() != at_alternate;
        waits.then_some(ep.peer)
    }

    /// The endpoint's connections go over this port.
    pub(super) fn is_at(&self, index: u32, alternate: bool) -> bool {
        self.endpoints.get(index).is_some_and(|ep| ep.is_over_alternate() == alternate)
    }

    /// A connection has come up: the peer has followed us, or we it.
    pub(super) fn has_met(&mut self, index: u32) {
        if let Some(ep) = self.endpoints.get(index) {
            self.asked.remove(&ep.peer);
        }
    }

    /// Whether it is we who go where the peer has asked. One that has answered only does: the request that it has answered is given up.
    fn follows(&self, ep: &Endpoint<C>) -> bool {
        let is_under_way = matches!(ep.state(), State::Connecting | State::HaveQps | State::HaveCts);
        let have_asked = is_under_way && ep.steps.at(Step::Wanted).is_some();
        !have_asked || self.port.me < ep.peer || self.port.is_better_elsewhere(ep)
    }

    /// From within a poll, but from no completion: the next connection begins over another port.
    pub(super) fn carry_elsewhere(&mut self, id: EpId, place: Move) {
        if self.endpoints.named(id).is_none() {
            return;
        }
        self.reap();
        self.poll_sends();
        match place {
            Move::Away { to_alternate } => self.go_away(id.index, to_alternate),
            Move::ToPeer { to_alternate } => {
                self.go_to_peer(id.index, to_alternate);
                self.answer_if_left(id.index, to_alternate);
            }
        }
    }

    /// The peer that asks there had left: its endpoint is added again, and goes there.
    fn answer_if_left(&mut self, index: u32, to_alternate: bool) {
        let Some(ep) = self.endpoints.get(index).filter(|ep| ep.state() == State::Disconnected) else {
            return;
        };
        let (peer, is_there) = (ep.peer, ep.is_over_alternate() == to_alternate);
        if !is_there {
            self.turn(index);
        }
        self.up.push(Upcall::UnknownPeer { peer });
    }

    /// Our port is down, if it has not come up since. A connection that has come up meanwhile stays.
    fn go_away(&mut self, index: u32, to_alternate: bool) {
        let waits = |ep: &Endpoint<C>| !ep.state().flows() && self.port.is_better_elsewhere(ep);
        if self.endpoints.get(index).is_some_and(waits) && self.turn_to(index, to_alternate) {
            self.begin_over_other_port(index);
        }
    }

    /// The peer asks there. A connection that has come up meanwhile stays, unless its peer has lost it.
    fn go_to_peer(&mut self, index: u32, to_alternate: bool) {
        if !self.turn_to(index, to_alternate) {
            return;
        }
        if self.endpoints.get(index).is_some_and(|ep| ep.state().flows()) {
            self.settle_cut(index);
        } else {
            self.begin_over_other_port(index);
        }
    }

    /// The next connection goes over that port. False: so does the one at hand, or there is none to come.
    fn turn_to(&mut self, index: u32, to_alternate: bool) -> bool {
        let may = |ep: &Endpoint<C>| ep.is_over_alternate() != to_alternate && !ep.state().is_over();
        self.endpoints.get(index).is_some_and(may) && self.turn(index)
    }

    /// A connection that is not there yet is given up for one over the port that is chosen now, unless another one is about to be begun
    /// anyway. False: there is nothing to give up.
    pub(super) fn begin_over_other_port(&mut self, index: u32) -> bool {
        let Some(ep) = self.endpoints.get(index).filter(|ep| ep.state().precedes_connection()) else {
            return false;
        };
        let (is_begun, goes_on) = (ep.state().is_replaced(), ep.resume.is_some() || ep.counts_messages());
        if is_begun {
            return true;
        }
        if !goes_on || !self.lose_tentatively(index) {
            self.on_event(index, Event::Renew(Reason::OtherPort));
        }
        true
    }

    /// The queue pairs of a connection that was given up are gone. Messages that came until then belong to the stream that the next
    /// connection carries on.
    pub(super) fn carry_on(&mut self, index: u32) {
        let queues = self.tx.queues.len();
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        if ep.resume.is_none() && ep.counts_messages() {
            ep.resume = Some(Box::new(Resume { reason: GIVEN_UP.to_owned(), ..Resume::new(queues) }));
        }
    }
}

impl<C> Endpoint<C> {
    /// The upper layer's name for it at position `index`.
    pub(super) fn id(&self, index: u32) -> EpId {
        EpId { index, generation: self.generation }
    }

    /// Its connections go over the alternate port.
    fn is_over_alternate(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.is_alternate())
    }

    /// Messages have passed, ours or the peer's, of whatever kind.
    fn counts_messages(&self) -> bool {
        self.lanes.iter().any(|lane| (lane.sent, lane.received) != (0, 0))
    }
}
