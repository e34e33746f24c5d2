//! An endpoint whose connection another one takes the place of, under the same name.
//!
//! ```text
//!   Broken      it has broken while its peer is there: see `resume`
//!   PeerLeft    before it was up: at once. The request that we answered, or that answered ours, was of an endpoint that the peer has
//!               removed since; nothing has been lost with it, so what waits goes over the next connection
//!               (after it was up: the endpoint is closed, what waits is given up; the peer may be gone for good)
//!   PeerBack    a closed one is connected anew when the peer is added: by the upper layer, or by the peer's request
//!   OtherPort   before it is up, for one over the device's other port: see `alternate`
//!   Withdrawn   we leave, and the peer has not answered: see `unlist`
//! ```
//! Polls carry a renewal on, from step to step; none waits for the device:
//!
//! ```text
//!   Settle   the peer has taken the connection down: what has come over it tells whether it is broken, or the peer has left
//!   Retire   Renewing: the queue pairs go to the error state; the helper thread ends the connection (DREQ, DREP) meanwhile
//!   Begin    Retiring: when all is flushed, the next connection begins
//!   Move, LeavePort   connections over a port that does not serve: see `alternate`
//! ```
//! Whether a peer that has left before a connection was up has another endpoint is not known: the new attempt is tentative, the
//! end of the job does not wait for it unless the peer has answered (`unlist`), and if it fails the peer has left.
#![forbid(unsafe_code)]

use super::close::FLUSH;
use super::connect::AddError;
use crate::transport::Transport;
use crate::transport::endpoint::lane::Lane;
use crate::transport::endpoint::state::{Event, Reason, State};
use crate::transport::endpoint::{Endpoint, EpId, Listing};
use crate::transport::wrid::GENERATION_MASK;
use cpc::{Advert, Choice, ConnectError, EndpointKey, GidPair};
use std::time::Instant;

/// So often in a row a peer may leave before a connection is up.
const MOST_DEPARTURES: u8 = 16;

/// What the next poll does about a connection that another may take the place of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Renewal {
    /// The peer has taken it down: finds out whether it is broken, or the peer has left.
    Settle(EndpointKey),
    /// Takes its queue pairs down.
    Retire(EndpointKey),
    /// Begins the next one when they are flushed, at the latest at `until`.
    Begin {
        /// The connection that is flushed.
        key: EndpointKey,
        until: Instant,
    },
    /// Has the connections of this endpoint, whichever is at hand then, go over another port.
    Move(EpId, Move),
    /// Has the connections over a port that is still down then go over the other one.
    LeavePort { at: Instant },
}

/// Why connections of an endpoint go over another port, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// The port in use is down, and the device's other one is not.
    Away {
        /// Over the alternate port, or over our own.
        to_alternate: bool,
    },
    /// The peer has asked at this one.
    ToPeer {
        /// The alternate port, or our own.
        to_alternate: bool,
    },
}

impl<C> Transport<C> {
    /// The upper layer, or the peer's request, adds a peer that has an endpoint.
    pub(crate) fn add_again(
        &mut self,
        index: u32,
        adverts: &[Advert],
        gids: Option<GidPair>,
    ) -> Result<EpId, AddError> {
        if self.is_to_settle(index) {
            // The peer has taken the last connection down before it asked for this one.
            self.settle_cut(index);
        }
        let Some(ep) = self.endpoints.get_mut(index) else {
            return Err(cpc::Error::Closed.into());
        };
        let id = EpId { index, generation: ep.generation };
        match ep.state() {
            State::Closed => return Err(AddError::BeingRemoved),
            State::Disconnected => {
                let mut choice = Choice { gids: gids.map(Box::new), ..self.port.service.choose(adverts)? };
                if ep.choice.as_ref().is_some_and(|last| last.is_alternate()) {
                    choice.turn();
                }
                ep.choice = Some(Box::new(choice));
                ep.departures = 0;
                self.expect_return(index);
                self.on_event(index, Event::Renew(Reason::PeerBack));
            }
            _ => {}
        }
        Ok(id)
    }

    /// The peer has left. True if that says no more than that the connection at hand leads nowhere:
    /// another is begun by the next poll.
    pub(crate) fn renew_soon(&mut self, index: u32) -> bool {
        let over_xrc = self.paths.are_used();
        let Some(ep) = self.endpoints.get_mut(index) else { return false };
        if ep.state().is_replaced() {
            return true;
        }
        // Over X queues the peer may have sent before our direction is up, and a connection that has
        // been up is `Connecting` again while it is rerouted: then the peer that we know has left.
        let has_passed = over_xrc && (ep.route.is_some() || ep.has_moved());
        if has_passed || !ep.state().precedes_connection() || ep.departures >= MOST_DEPARTURES {
            return false;
        }
        ep.departures += 1;
        self.on_event(index, Event::Renew(Reason::PeerLeft));
        true
    }

    /// The next look that finds nothing carries on with this.
    pub(super) fn renew_later(&mut self, renewal: Renewal) {
        self.renewals.push(renewal);
        self.rx.chores = true;
    }

    /// Carries on with what is to be begun anew; from within a poll, but from no completion.
    #[cold]
    pub(crate) fn renew_due(&mut self) {
        for renewal in std::mem::take(&mut self.renewals) {
            match renewal {
                Renewal::Settle(key) => self.settle_if_there(key),
                Renewal::Retire(key) => self.retire_connection(key),
                Renewal::Begin { key, until } => self.begin_if_flushed(key, until),
                Renewal::Move(id, place) => self.carry_elsewhere(id, place),
                Renewal::LeavePort { at } => self.leave_port_at(at),
            }
        }
    }

    /// The peer has taken the connection at hand down, and the poll that finds out what that means has not come.
    fn is_to_settle(&self, index: u32) -> bool {
        let is_of_it = |renewal: &Renewal| match renewal {
            Renewal::Settle(key) => self.endpoints.current(*key) == Some(index),
            Renewal::Retire(_) | Renewal::Begin { .. } | Renewal::Move(..) | Renewal::LeavePort { .. } => {
                false
            }
        };
        self.is_there(index) && self.renewals.iter().any(is_of_it)
    }

    /// There is a connection: its queue pairs, or, over X queues, what has passed.
    pub(super) fn is_there(&self, index: u32) -> bool {
        let over_xrc = self.paths.are_used();
        self.endpoints.get(index).is_some_and(|ep| match over_xrc {
            true => !ep.state().is_over() && ep.has_moved(),
            false => ep.state().has_queue_pairs(),
        })
    }

    /// The connection may have gone for another reason meanwhile.
    fn settle_if_there(&mut self, key: EndpointKey) {
        if let Some(index) = self.endpoints.current(key).filter(|index| self.is_there(*index)) {
            self.settle_cut(index);
        }
    }

    /// Takes the connection down; whatever comes to be sent waits for the next one.
    fn retire_connection(&mut self, key: EndpointKey) {
        let Some(index) = self.endpoints.current(key) else { return };
        let state = self.endpoints.get(index).map(Endpoint::state);
        if !matches!(state, Some(State::Renewing(_))) {
            return;
        }
        self.reap();
        self.on_event(index, Event::Retire);
        self.renew_later(Renewal::Begin { key, until: timing::now() + FLUSH });
    }

    /// Begins the next connection, if the queue pairs of this one are flushed or have had their time.
    fn begin_if_flushed(&mut self, key: EndpointKey, until: Instant) {
        let Some(index) = self.endpoints.current(key) else { return };
        let Some(ep) = self.endpoints.get(index) else { return };
        let (State::Retiring(reason), id) = (ep.state(), ep.id(index)) else { return };
        let flushed = self.has_flushed(id);
        if flushed || timing::now() >= until {
            self.connect_anew(id, reason, flushed);
        } else {
            self.renew_later(Renewal::Begin { key, until });
        }
    }

    /// The connection manager has no connection to offer. A tentative one that has found no peer
    /// proves that the peer has left. Should it be back one day, it finds another endpoint, not one
    /// that has failed.
    pub(crate) fn connection_failed(&mut self, index: u32, error: &ConnectError) {
        if self.endpoints.get(index).is_some_and(|ep| ep.resume.is_some()) {
            return self.not_resumed(index, error);
        }
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        if !ep.is_tentative() && error.cause.finds_no_peer() && self.can_try_other_port(index) {
            log::info!("{error}");
            self.begin_over_other_port(index);
            return;
        }
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        if !ep.is_tentative() || !error.cause.finds_no_peer() {
            return self.fail(index, error);
        }
        log::debug!("endpoint {index}: {error}");
        self.on_event(index, Event::Renew(Reason::PeerLeft));
        self.drop_waiting(index, "the peer has left");
    }

    /// Begins another connection under the same name, for whatever waits.
    fn connect_anew(&mut self, id: EpId, reason: Reason, flushed: bool) {
        self.endpoints.warn_unless(flushed, id);
        // What both sides have agreed upon for the connection that goes.
        self.connection_events();
        self.reap();
        if reason == Reason::OtherPort {
            self.carry_on(id.index);
        }
        if flushed {
            self.part_from_leaver(id.index);
        }
        let asks = reason != Reason::Withdrawn
            || self.endpoints.named(id).is_some_and(|ep| ep.listing == Listing::Wanted);
        self.begin_epoch(id.index);
        self.go_where_it_asks(id.index);
        self.put_in_front(id.index);
        if let Err(error) = self.introduce_anew(id.index, flushed) {
            return self.fail(id.index, &error);
        }
        self.stats.renewed += 1;
        let waits = self
            .endpoints
            .named(id)
            .is_some_and(|ep| ep.backlog() != 0 || !ep.awaiting.is_empty() || ep.has_to_resume());
        if asks && waits {
            self.want_send(id.index);
        }
    }

    fn introduce_anew(&mut self, index: u32, flushed: bool) -> Result<(), AddError> {
        self.renew_entries(index, flushed)?;
        self.port.service.start()?;
        let cts = self.rx.cts.take(self.port.cts_queue)?;
        if let Some(ep) = self.endpoints.get(index) {
            self.port.introduce(ep, index, cts);
        }
        Ok(())
    }

    /// The next connection begins with the entry of its CTS. What the device still holds of the last one
    /// may complete yet.
    fn renew_entries(&mut self, index: u32, flushed: bool) -> Result<(), AddError> {
        let Some(ep) = self.endpoints.get_mut(index) else { return Ok(()) };
        let last = std::mem::take(&mut ep.entries);
        if flushed {
            self.port.release(last)
        } else {
            self.port.strand(last)
        }
        ep.entries = self.port.admit(ep.is_to_itself())?;
        Ok(())
    }

    /// What has come over the connection before the peer left goes up now: when the connection is
    /// down, the number of its queue pair names no endpoint any more. It was there before the word
    /// that the peer has left, so among as many as the completion queue holds.
    pub(crate) fn reap(&mut self) {
        let mut left = self.rx.cq.depth() as usize;
        loop {
            let found: Vec<_> = std::iter::from_fn(|| self.take_upcall()).collect();
            self.up.extend(found);
            let more = if left == 0 { 0 } else { self.look_for_receives() };
            if more == 0 {
                return;
            }
            left = left.saturating_sub(more);
        }
    }

    fn begin_epoch(&mut self, index: u32) {
        self.on_event(index, Event::Retired);
        self.land_all(index);
        let lanes = Lane::all(&self.port);
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        let (epoch, ring) = (ep.epoch, ep.ring);
        ep.lose_ring();
        let (old, outstanding) = ep.begin_epoch((epoch + 1) & GENERATION_MASK, lanes);
        log::debug!("endpoint {index} to {:#x} is connected anew", ep.peer);
        self.end_epoch(index, epoch, old, outstanding);
        self.rings.close(ring);
        self.rx.disown(index);
    }
}
