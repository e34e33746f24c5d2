//! An endpoint that is to be taken down before this side has heard of a connection.
//!
//! Without a CTS the connection is up for the peer, which may send, as soon as the connection manager has accepted it, or has had an answer to our
//! own request: the helper thread does that by itself. What has come then would go with the endpoint, though it is complete for its sender; and a
//! connection that is up, and ends without a word, has failed. So the connection manager is asked first:
//!
//! ```text
//!   unlist -->  peer has neither asked nor answered: it forgets the endpoint    Unlisted: the endpoint may go
//!               else: it comes up, and ends as any other (`ending`)             QpsCreated ..
//!               X queues: the peer has asked, and may send                      Asked: we connect, too, to say that we leave
//!                         it has left since, without having sent                Retracted: as before; unlist again
//! ```
//! So is it for an endpoint whose connection is tentative (`renew`): if the peer has not answered, nothing shows that it is there, and the request
//! is withdrawn. What waits goes with the endpoint, or over a connection that either side asks for before. An endpoint that is wanted again after
//! all, by us or by its peer, is listed again.
#![forbid(unsafe_code)]

use crate::transport::endpoint::state::{Event, Reason, State};
use crate::transport::endpoint::{Endpoint, EpId, Listing};
use crate::transport::{Transport, Upcall};

impl<C> Transport<C> {
    /// Has the connection manager accept nothing more for an endpoint that has no connection, or only asks for one tentatively. True: it has
    /// not answered yet.
    pub(super) fn unlist(&mut self, id: EpId) -> bool {
        let sends_unheard = !self.port.uses_cts();
        let Some(ep) = self.endpoints.named_mut(id).filter(|_| sends_unheard) else { return false };
        let may_have_none = match ep.state() {
            State::Idle => true,
            State::Connecting | State::HaveQps => ep.is_tentative(),
            _ => false,
        };
        if !may_have_none || ep.is_to_itself() {
            return false;
        }
        if ep.listing == Listing::Listed {
            ep.listing = Listing::Ending;
            self.port.service.unlist(ep.key(id.index));
        }
        matches!(ep.listing, Listing::Ending | Listing::Wanted)
    }

    /// The connection manager knows the endpoint no more.
    pub(super) fn unlisted(&mut self, index: u32) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        let was = std::mem::replace(&mut ep.listing, Listing::Unlisted);
        match ep.state() {
            State::Connecting if was == Listing::Wanted => self.ask_to_connect(index),
            State::Connecting | State::HaveQps => self.on_event(index, Event::Renew(Reason::Withdrawn)),
            _ => {}
        }
    }

    /// X queues: the connection manager has accepted the peer's direction. Messages may have come that have not been looked at, or be about to come.
    pub(super) fn peer_has_asked(&mut self, index: u32) {
        if let Some(ep) = self.endpoints.get_mut(index) {
            ep.listing = Listing::Asked;
        }
    }

    /// X queues: the peer has removed the endpoint that had asked. Whether it has another one is not known: the request that we have made, if any,
    /// is tentative from now on.
    pub(super) fn peer_has_retracted(&mut self, index: u32) {
        let asked = |ep: &&mut Endpoint<C>| ep.listing == Listing::Asked && ep.state().precedes_connection();
        if let Some(ep) = self.endpoints.get_mut(index).filter(asked) {
            ep.listing = Listing::Listed;
            ep.departures = ep.departures.max(1);
        }
    }

    /// Asks the connection manager, which may have forgotten the endpoint, for a connection.
    pub(super) fn ask_to_connect(&mut self, index: u32) {
        if self.asks_elsewhere(index) {
            return;
        }
        self.list_again(index);
        if let Some(ep) = self.endpoints.get_mut(index) {
            if ep.listing == Listing::Ending {
                ep.listing = Listing::Wanted;
            }
            self.port.service.connect(ep.key(index));
        }
    }

    /// A process that the connection manager does not know wants to connect, at this port.
    pub(super) fn unknown_peer(&mut self, peer: u64, at_alternate: bool) {
        let index = self.endpoints.of_peer(peer);
        match index {
            Some(index) if self.meet(index, at_alternate) => return,
            Some(index) if !self.is_between_two(index) && self.is_at(index, at_alternate) => {}
            _ => self.note_asker(peer, at_alternate),
        }
        if !index.is_some_and(|index| self.list_again(index)) {
            self.up.push(Upcall::UnknownPeer { peer });
        }
    }

    /// The connection manager does not know the endpoint's next connection yet. If the endpoint is removed before, the request still waits
    /// (`close`).
    fn is_between_two(&self, index: u32) -> bool {
        self.endpoints.get(index).is_some_and(|ep| ep.state().is_replaced())
    }

    /// Lists an endpoint that was unlisted; its layout has no receive for a CTS. One between two connections is listed with the next one.
    fn list_again(&mut self, index: u32) -> bool {
        let Some(ep) = self.endpoints.get_mut(index) else { return false };
        let is_unlisted =
            ep.listing == Listing::Unlisted && ep.state().precedes_connection() && !ep.state().is_replaced();
        if is_unlisted {
            ep.listing = Listing::Listed;
            self.port.introduce(ep, index, None);
        }
        is_unlisted
    }
}
