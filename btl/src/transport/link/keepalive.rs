//! Peers that say nothing, and that nothing is sent to: whether they are there.
//!
//! A request that fails tells of a peer that is gone, but one that waits for a message from it, or for its CTS, has none under way: what
//! was sent last may have arrived without a completion. So each time
//! that [`Keepalive::every`] has passed, an RDMA WRITE of no bytes goes to each peer that has said nothing meanwhile. Its device
//! answers: a process that computes, or is stopped, is as good as one that polls.
#![forbid(unsafe_code)]

use crate::transport::Transport;
use crate::transport::endpoint::state::State;
use crate::transport::endpoint::{Endpoint, EpId};
use std::time::{Duration, Instant};
use verbs::{Wc, WcStatus};

/// Who is to be asked, and when.
#[derive(Debug)]
pub struct Keepalive {
    /// Zero: no peer is.
    every: Duration,
    next: Option<Instant>,
    /// Peers that have said nothing since the last look, and have still to be asked.
    silent: Vec<EpId>,
}

impl Keepalive {
    /// Asks after such times.
    pub fn new(every: Duration) -> Keepalive {
        Keepalive { every, next: None, silent: Vec::new() }
    }

    /// The time has passed; the next one begins.
    fn is_due(&mut self, now: Instant) -> bool {
        let due = self.next.is_some_and(|next| now >= next);
        if due || self.next.is_none() {
            self.next = Some(now + self.every);
        }
        due
    }
}

/// It is another process, our requests go to it, and neither side is about to leave.
fn stays<C>(ep: &Endpoint<C>) -> bool {
    let is_up = ep.state().flows() || matches!(ep.state(), State::CtsSent | State::Resuming);
    is_up && ep.state().is_open() && !ep.ends.is_told() && !ep.is_to_itself()
}

/// Nothing has come from it since the last look.
fn is_silent<C>(ep: &mut Endpoint<C>) -> bool {
    let before = std::mem::replace(&mut ep.heard, ep.ends.received);
    before == ep.heard && stays(ep)
}

impl<C> Transport<C> {
    /// Asks peers that say nothing, as far as is due.
    #[cold]
    pub(crate) fn keep_alive(&mut self) {
        if self.keepalive.every.is_zero() {
            return;
        }
        if self.keepalive.is_due(timing::now()) {
            let silent = self
                .endpoints
                .iter_mut()
                .filter_map(|(index, ep)| is_silent(ep).then_some(EpId { index, generation: ep.generation }));
            self.keepalive.silent = silent.collect();
        }
        while let Some(id) = self.keepalive.silent.pop() {
            if !self.ask(id) {
                return self.keepalive.silent.push(id);
            }
        }
    }

    /// Asks a peer, if it still says nothing. `false`: another one of its node is being asked (X queues).
    fn ask(&mut self, id: EpId) -> bool {
        let queue = self.control_queue();
        let Some(ep) = self.endpoints.named_mut(id).filter(|ep| stays(ep)) else { return true };
        match &ep.route {
            Some(route) => {
                let Some(srq) = route.srqs.get(queue) else { return true };
                let asked = self.paths.probe(route.path, *srq, ep.connection(id.index));
                self.tx.count_markers(asked.into());
                self.stats.keepalives += u64::from(asked);
                asked
            }
            None => {
                if ep.lanes.get_mut(queue).is_some_and(|lane| lane.probe()) {
                    self.tx.count_posted(ep, true);
                    self.stats.keepalives += 1;
                }
                true
            }
        }
    }

    /// A peer has been asked, and its device does not answer. Flushed: its queue pair is going down for another reason.
    #[cold]
    pub(crate) fn unanswered(&mut self, index: u32, wc: &Wc) {
        let (every, qpn, status) = (self.keepalive.every, wc.qp_num(), wc.status());
        if status == WcStatus::Flushed {
            return;
        }
        let reason = format_args!(
            "it has said nothing for {every:?} and does not answer a keepalive on {qpn}: {status}"
        );
        if wc.may_pass() { self.broken(index, &reason) } else { self.broken_for_good(index, &reason) }
    }
}
