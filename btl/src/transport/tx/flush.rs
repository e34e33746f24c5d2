//! What a flush waits for: everything that was handed to us before it, and nothing that comes
//! later.
//!
//! ```text
//!   callbacks   each has a ticket, given out in order   over when its callback has returned, in any order      Callbacks
//!   messages    that wait in a lane                     over when the lane has posted so many                  LaneMark::Queued
//!               that are posted                         over when the lane has so many completions: one queue
//!                                                       pair completes in posting order                        LaneMark::Posted
//! ```
//! So other threads, and callbacks that begin another operation, do not keep a flush from its end.
#![forbid(unsafe_code)]

use crate::transport::Transport;
use crate::transport::endpoint::lane::Lane;
use crate::transport::endpoint::state::State;
use crate::transport::endpoint::{Endpoint, EpId};

/// What one queue has to do yet.
#[derive(Clone, Copy, Debug)]
enum LaneMark {
    /// Post as many of its waiting messages as to reach this count.
    Queued(u32),
    /// Complete as many work requests as to reach this count.
    Posted(u32),
}

impl LaneMark {
    fn waits_for(&mut self, lane: &Lane) -> bool {
        if let LaneMark::Queued(end) = *self
            && is_reached(lane.served, end)
        {
            *self = LaneMark::Posted(lane.completed.wrapping_add(lane.budget.in_flight().into()));
        }
        match *self {
            LaneMark::Queued(_) => true,
            LaneMark::Posted(end) => !is_reached(lane.completed, end),
        }
    }
}

/// Counts are kept modulo 2^32.
fn is_reached(count: u32, end: u32) -> bool {
    count.wrapping_sub(end) < 1 << 31
}

/// The moment that a flush of one endpoint began.
#[derive(Debug)]
pub struct Mark {
    id: EpId,
    /// Ticket of the first callback that is of no interest.
    callbacks: u64,
    /// Of which connection the counts are.
    epoch: u32,
    lanes: Vec<LaneMark>,
}

impl Mark {
    fn of<C>(id: EpId, ep: &Endpoint<C>) -> Mark {
        Mark { id, callbacks: ep.owed.next(), epoch: ep.epoch, lanes: lane_marks(ep) }
    }

    fn is_ahead<C>(&mut self, ep: &Endpoint<C>, but: &[u64], nothing_comes: bool) -> bool {
        if ep.epoch != self.epoch {
            // Connected anew: what was posted is lost with the old connection, what waits is not.
            (self.epoch, self.lanes) = (ep.epoch, lane_marks(ep));
        }
        let owed = ep.owed.any_before(self.callbacks, but);
        match ep.state() {
            // Nothing completes any more but what has.
            State::Closed | State::Disconnected => owed && !nothing_comes,
            State::Failed => owed,
            _ => owed || self.lanes.iter_mut().zip(&ep.lanes).any(|(mark, lane)| mark.waits_for(lane)),
        }
    }

    /// Whose it is.
    pub fn endpoint(&self) -> EpId {
        self.id
    }
}

/// Nothing that has been handed to us for this endpoint is ahead, nor any of its callbacks.
#[inline]
fn is_at_rest<C>(ep: &Endpoint<C>) -> bool {
    ep.owed.is_empty() && ep.outstanding == 0 && ep.backlog() == 0
}

fn lane_marks<C>(ep: &Endpoint<C>) -> Vec<LaneMark> {
    ep.lanes.iter().map(|lane| LaneMark::Queued(lane.queued)).collect()
}

impl<C> Transport<C> {
    /// The upper layer has a callback to come for this endpoint; what to call it when it has
    /// returned.
    #[inline]
    pub fn owe(&mut self, id: EpId) -> u64 {
        self.tx.owed += 1;
        self.endpoints.named_mut(id).map_or(0, |ep| ep.owed.add())
    }

    /// The callback of this ticket has returned, or will not be called.
    #[inline]
    pub fn called_back(&mut self, id: EpId, ticket: u64) {
        self.tx.owed = self.tx.owed.saturating_sub(1);
        if let Some(ep) = self.endpoints.named_mut(id) {
            ep.owed.returned(ticket);
        }
    }

    /// A flush looks around: whether a completion comes for something that has been posted. A burst of operations is over.
    #[inline]
    pub fn awaits_flushed(&mut self) -> bool {
        self.tx.burst.end();
        self.tx.awaited != 0
    }

    /// All that has been handed to us is done, for whatever endpoint. It may be so though this says no, which it finds without a look at each.
    #[inline]
    pub(crate) fn is_all_done(&self) -> bool {
        let done =
            self.tx.outstanding == 0 && self.tx.pending.is_empty() && self.tx.owed == 0 && !self.tx.keeps;
        // Operations that wait are among those whose callbacks are owed.
        let is_quiet =
            |ep: &Endpoint<C>| ep.owed.is_empty() && ep.outstanding == 0 && ep.backlog() == ep.rdma.len();
        debug_assert!(!done || self.endpoints.iter().all(|(_, ep)| is_quiet(ep)));
        done
    }

    /// What has been handed to us for this endpoint up to now, or for all of them; nothing for one that is gone, or where all is done.
    pub fn begin_flush(&self, of: Option<EpId>) -> Vec<Mark> {
        if self.is_all_done() {
            return Vec::new();
        }
        let mark = |(index, ep): (u32, &Endpoint<C>)| {
            (!is_at_rest(ep)).then(|| Mark::of(EpId { index, generation: ep.generation }, ep))
        };
        match of {
            Some(id) => self.endpoints.named(id).and_then(|ep| mark((id.index, ep))).into_iter().collect(),
            None => self.endpoints.iter().filter_map(mark).collect(),
        }
    }

    /// Whether something of it is not done, or its callback has not returned; `but` are tickets of
    /// callbacks that the caller is in.
    pub fn is_ahead(&mut self, mark: &mut Mark, but: &[u64]) -> bool {
        let nothing_comes = self.up.is_empty();
        let Some(ep) = self.endpoints.named_mut(mark.id) else { return false };
        let ahead = mark.is_ahead(ep, but, nothing_comes);
        if ahead && ep.state().flows() {
            self.tx.mark(ep, &mut self.paths);
        }
        ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_go_on_behind_their_largest_value() {
        assert!(is_reached(5, 5) && is_reached(6, 5) && !is_reached(4, 5));
        assert!(is_reached(1, u32::MAX) && !is_reached(u32::MAX, 1));
    }
}
