//! Requests of processes that this side has no usable endpoint for (yet): one a process, each kept until its deadline.
//!
//! With direct modex a peer may know us long before we know it. Its request waits here, and is served the moment the endpoint is
//! added. If that does not happen in time it is refused. The number of requests is bounded; one too many comes again.

use std::collections::HashMap;
use std::time::Instant;

use super::timers::{Timer, Timers};
use crate::ProcessName;

pub(crate) const MAX_PARKED: usize = 4096;

/// The requests, and when each is given up.
#[derive(Debug)]
pub(crate) struct Parking<R> {
    kept: HashMap<ProcessName, (R, Instant)>,
}

impl<R> Parking<R> {
    pub(crate) fn new() -> Self {
        Parking { kept: HashMap::new() }
    }

    /// True if a request of this process would be kept.
    pub(crate) fn has_room_for(&self, peer: ProcessName) -> bool {
        self.kept.len() < MAX_PARKED || self.kept.contains_key(&peer)
    }

    /// The request that this process has here.
    pub(crate) fn of(&mut self, peer: ProcessName) -> Option<&mut R> {
        self.kept.get_mut(&peer).map(|(request, _)| request)
    }

    /// Keeps a request until `until`, in place of an older one of the process.
    pub(crate) fn keep(&mut self, peer: ProcessName, request: R, until: Instant, timers: &mut Timers) {
        let older = self.kept.insert(peer, (request, until)).map(|(_, due)| due);
        timers.move_to(Timer::Parked(peer), older, Some(until));
    }

    /// Takes the request of this process out.
    pub(crate) fn take(&mut self, peer: ProcessName, timers: &mut Timers) -> Option<R> {
        let (request, until) = self.kept.remove(&peer)?;
        timers.move_to(Timer::Parked(peer), Some(until), None);
        Some(request)
    }

    /// The process whose request is meant.
    pub(crate) fn find(&self, mut is_meant: impl FnMut(&R) -> bool) -> Option<ProcessName> {
        self.kept.iter().find(|(_, (request, _))| is_meant(request)).map(|(&peer, _)| peer)
    }

    pub(crate) fn peers(&self) -> Vec<ProcessName> {
        self.kept.keys().copied().collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail anywhere")]
mod tests {
    use std::time::Duration;

    use super::*;

    const PEER: ProcessName = ProcessName(7);

    #[test]
    fn a_request_is_due_once_at_its_own_time_and_not_after_it_was_taken() {
        let (mut parking, mut timers, now) = (Parking::new(), Timers::default(), Instant::now());
        parking.keep(PEER, "first", now + Duration::from_secs(1), &mut timers);
        parking.keep(PEER, "again", now + Duration::from_secs(2), &mut timers);
        assert_eq!(timers.next(), Some(now + Duration::from_secs(2)));
        assert_eq!((parking.find(|r| *r == "again"), parking.find(|r| *r == "first")), (Some(PEER), None));
        assert_eq!(parking.take(PEER, &mut timers), Some("again"));
        assert_eq!((timers.next(), parking.take(PEER, &mut timers)), (None, None));
    }

    #[test]
    fn so_many_are_kept_and_no_more() {
        let (mut parking, mut timers, now) = (Parking::new(), Timers::default(), Instant::now());
        for peer in 0..u64::try_from(MAX_PARKED).unwrap() {
            assert!(parking.has_room_for(ProcessName(peer)));
            parking.keep(ProcessName(peer), (), now, &mut timers);
        }
        assert!(parking.has_room_for(PEER) && !parking.has_room_for(ProcessName(u64::MAX)));
        assert_eq!(parking.peers().len(), MAX_PARKED);
    }
}
