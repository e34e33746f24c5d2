//! An endpoint that its peer has taken down, and that is connected anew under the same name.
//!
//! ```text
//!   the peer has left   before a connection was up: at once. The request that we answered, or that answered ours, was of an endpoint
//!                       that the peer has removed since; nothing has been lost with it, so what waits goes over the next connection
//!                       after it:         it is closed, what waits is given up; the peer may be gone for good
//!   the peer is back    a closed one is connected anew when the peer is added: by the upper layer, or by the peer's request
//! ```
//! The helper thread ends the old connection (DREQ, DREP) meanwhile. Whether a peer that has left
//! before a connection was up has another endpoint is not known: the new attempt is tentative, the
//! end of the job does not wait for it, and if it fails the peer has left.
#![forbid(unsafe_code)]

use super::close::FLUSH;
use super::connect::AddError;
use crate::transport::endpoint::EpId;
use crate::transport::endpoint::lane::Lane;
use crate::transport::endpoint::state::{Event, State};
use crate::transport::wrid::GENERATION_MASK;
use crate::transport::{Transport, Upcall};
use cpc::{Advert, Choice, ConnectError, EndpointKey, GidPair};
use std::time::Instant;

/// So often in a row a peer may leave before a connection is up.
const MOST_RENEWALS: u8 = 16;

/// A connection that another is to take the place of. Polls carry it on: none waits for the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renewal {
    key: EndpointKey,
    /// Its queue pairs are being flushed, until then at the longest.
    until: Option<Instant>,
    /// The next one goes over another port.
    elsewhere: Option<Elsewhere>,
}

/// Where the next connection goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elsewhere {
    /// Over the alternate port, or over our own.
    pub to_alternate: bool,
    /// The peer has asked there.
    pub is_asked: bool,
}

impl Renewal {
    /// The polls to come begin another connection in place of this one.
    pub fn of(key: EndpointKey) -> Renewal {
        Renewal { key, until: None, elsewhere: None }
    }

    /// The next one, whichever connection is at hand then, over another port.
    pub fn elsewhere(EpId { index, generation }: EpId, place: Elsewhere) -> Renewal {
        Renewal { elsewhere: Some(place), ..Renewal::of(EndpointKey { index, generation }) }
    }
}

impl<C> Transport<C> {
    /// The upper layer, or the peer's request, adds a peer that has an endpoint.
    pub(crate) fn add_again(
        &mut self,
        index: u32,
        adverts: &[Advert],
        gids: Option<GidPair>,
    ) -> Result<EpId, AddError> {
        let is_cut = self.renewals.iter().any(|renewal| self.endpoints.current(renewal.key) == Some(index));
        if is_cut && self.endpoints.get(index).is_some_and(|ep| ep.state().has_queue_pairs()) {
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
                ep.renewals = 0;
                self.expect_return(index);
                self.on_event(index, Event::Renew);
            }
            _ => {}
        }
        Ok(id)
    }

    /// The peer has left. True if that says no more than that the connection at hand leads nowhere:
    /// another is begun by the next poll.
    pub(crate) fn renew_soon(&mut self, index: u32) -> bool {
        // X queues have no connection of their own: a peer that leaves is not heard of before it is
        // known.
        let over_xrc = self.paths.are_used();
        let Some(ep) = self.endpoints.get_mut(index) else { return false };
        if matches!(ep.state(), State::Renewing | State::Retiring) {
            return true;
        }
        if over_xrc || !ep.state().precedes_connection() || ep.renewals >= MOST_RENEWALS {
            return false;
        }
        ep.renewals += 1;
        self.on_event(index, Event::Renew);
        true
    }

    /// The next look that finds nothing carries on with this.
    pub(super) fn renew_later(&mut self, renewal: Renewal) {
        self.renewals.push(renewal);
        self.chores = true;
    }

    /// Carries on with what is to be begun anew; from within a poll, but from no completion.
    #[cold]
    pub(crate) fn renew_due(&mut self) {
        for renewal in std::mem::take(&mut self.renewals) {
            let Some(ep) = self.endpoints.get(renewal.key.index) else { continue };
            let id = EpId { index: renewal.key.index, generation: ep.generation };
            if let Some(place) = renewal.elsewhere {
                if ep.generation == renewal.key.generation {
                    self.carry_elsewhere(id.index, place);
                }
                continue;
            }
            match (ep.state(), renewal.until) {
                _ if ep.epoch != renewal.key.generation => {}
                (state, None) if state.has_queue_pairs() => self.settle_cut(id.index),
                (State::Renewing, None) => self.retire_connection(id, renewal.key),
                (State::Retiring, Some(until)) => {
                    let flushed = self.has_flushed(id);
                    if flushed || timing::now() >= until {
                        self.connect_anew(id, flushed);
                    } else {
                        self.renew_later(renewal);
                    }
                }
                _ => {}
            }
        }
    }

    /// Begins the next connection over another port. A peer that has asked for it, and had left the one at hand, is added as if it had
    /// asked now.
    fn carry_elsewhere(&mut self, index: u32, place: Elsewhere) {
        self.go_elsewhere(index, place);
        let ep = self.endpoints.get(index).filter(|ep| ep.state() == State::Disconnected);
        if let Some(ep) = ep.filter(|_| place.is_asked) {
            self.up.push(Upcall::UnknownPeer { peer: ep.peer });
        }
    }

    /// Takes the connection down; whatever comes to be sent waits for the next one.
    fn retire_connection(&mut self, id: EpId, key: EndpointKey) {
        self.reap();
        self.on_event(id.index, Event::Retire);
        self.renew_later(Renewal { until: Some(timing::now() + FLUSH), ..Renewal::of(key) });
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
        self.on_event(index, Event::Renew);
        self.drop_waiting(index, "the peer has left");
    }

    /// Begins another connection under the same name, for whatever waits.
    fn connect_anew(&mut self, id: EpId, flushed: bool) {
        self.endpoints.warn_unless(flushed, id);
        self.reap();
        self.carry_on(id.index);
        if flushed {
            self.part_from_leaver(id.index);
        }
        self.begin_epoch(id.index);
        self.put_in_front(id.index);
        if let Err(error) = self.introduce_anew(id.index, flushed) {
            return self.fail(id.index, &error);
        }
        self.stats.renewed += 1;
        let waits = self
            .endpoints
            .named(id)
            .is_some_and(|ep| ep.backlog() != 0 || !ep.awaiting.is_empty() || ep.has_to_resume());
        if waits {
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
        let lanes = Lane::all(&self.port);
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        let epoch = ep.epoch;
        let (old, outstanding) = ep.begin_epoch((epoch + 1) & GENERATION_MASK, lanes);
        log::debug!("endpoint {index} to {:#x} is connected anew", ep.peer);
        self.end_epoch(index, epoch, old, outstanding);
        self.rx.disown(index);
    }
}
