//! An endpoint that is to be taken down before this side has heard of a connection.
//!
//! Without a CTS the peer may send as soon as the connection manager has accepted it, which the helper thread does by itself. What has come then
//! would go with the endpoint, though it is complete for its sender. So the connection manager is asked first:
//!
//! ```text
//!   unlist -->  nothing under way: it forgets the endpoint     Unlisted: the endpoint may go
//!               else                                           QpsCreated ..: it comes up, and ends as any other (`ending`)
//! ```
//! An endpoint that is wanted again after all, by us or by its peer, is listed again.
#![forbid(unsafe_code)]

use crate::transport::endpoint::state::State;
use crate::transport::endpoint::{EpId, Listing};
use crate::transport::{Transport, Upcall};

impl<C> Transport<C> {
    /// Has the connection manager accept nothing more for an endpoint without a connection. True: it has not answered yet.
    pub(super) fn unlist(&mut self, id: EpId) -> bool {
        let sends_unheard = !self.port.uses_cts() && !self.paths.are_used();
        let Some(ep) = self.endpoints.named_mut(id).filter(|_| sends_unheard) else { return false };
        if ep.state() != State::Idle || ep.is_to_itself() {
            return false;
        }
        if ep.listing == Listing::Listed {
            ep.listing = Listing::Ending;
            self.port.service.unlist(ep.key(id.index));
        }
        ep.listing == Listing::Ending
    }

    /// The connection manager knows the endpoint no more.
    pub(super) fn unlisted(&mut self, index: u32) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        ep.listing = Listing::Unlisted;
        if ep.state() == State::Connecting {
            self.ask_to_connect(index);
        }
    }

    /// Asks the connection manager, which may have forgotten the endpoint, for a connection.
    pub(super) fn ask_to_connect(&mut self, index: u32) {
        if self.asks_elsewhere(index) {
            return;
        }
        self.list_again(index);
        if let Some(ep) = self.endpoints.get(index) {
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

    /// Lists an endpoint that was unlisted; its layout has no receive for a CTS.
    fn list_again(&mut self, index: u32) -> bool {
        let Some(ep) = self.endpoints.get_mut(index) else { return false };
        let is_unlisted = ep.listing == Listing::Unlisted && ep.state().precedes_connection();
        if is_unlisted {
            ep.listing = Listing::Listed;
            self.port.introduce(ep, index, None);
        }
        is_unlisted
    }
}
