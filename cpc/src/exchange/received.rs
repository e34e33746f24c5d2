//! A request as it has come in, and how it waits for its endpoint.

use std::time::Instant;

use crate::ProcessName;
use crate::core::parking::Parking;
use crate::core::timers::Timers;
use crate::wire::{Incarnation, Source};

/// A request, and who has sent it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received<R> {
    pub(crate) request: R,
    pub(crate) from: Source,
    /// The incarnation that has sent it.
    pub(crate) incarnation: Incarnation,
}

/// What has become of a request without an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parked {
    /// It waits; its process had none here.
    First,
    /// It waits in place of an earlier one, unless that is of a later incarnation of the process.
    Again,
    /// Too many wait: it is dropped, and will come again.
    Dropped,
}

impl<R> Parking<Received<R>> {
    /// Keeps a request until `until`; one that comes again does not wait longer.
    pub(crate) fn park(
        &mut self,
        peer: ProcessName,
        received: Received<R>,
        until: Instant,
        timers: &mut Timers,
    ) -> Parked {
        if !self.has_room_for(peer) {
            return Parked::Dropped;
        }
        match self.of(peer) {
            Some(kept) => {
                if !kept.incarnation.is_newer_than(received.incarnation) {
                    *kept = received;
                }
                Parked::Again
            }
            None => {
                self.keep(peer, received, until, timers);
                Parked::First
            }
        }
    }
}
