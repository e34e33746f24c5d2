//! iWARP: who sends first on a queue pair, and how the other side learns that it may (MPA, RFC
//! 5044; see `state`).
//!
//! ```text
//!   we asked                                        the peer asked
//!   CTS ----------------------------------------->  its queue pair is open: CTS
//!   <---------------------------------------------
//!   an opening message over each of the other queue pairs, then data
//!   --------------------------------------------->  all are open: data
//! ```
//! The other queue pairs' messages have to wait for the peer's CTS: before it, no receives are
//! posted there, and there is no RNR.
#![forbid(unsafe_code)]

use crate::protocol::wire::Header;
use crate::transport::Transport;
use crate::transport::endpoint::Endpoints;
use crate::transport::endpoint::state::{Event, State};
use cpc::First;

impl<C> Endpoints<C> {
    /// The connection manager has said who sends first.
    #[cold]
    pub(super) fn ordered(&mut self, index: u32, first: First, (queues, cts_queue): (usize, Option<usize>)) {
        let Some(ep) = self.get_mut(index) else { return };
        ep.first = Some(first);
        if first == First::Peer {
            let all = (1_u16 << queues) - 1;
            // The CTS opens its own queue pair.
            ep.unopened = all & !cts_queue.map_or(0, |queue| 1 << queue);
        }
    }
}

impl<C> Transport<C> {
    /// The peer has posted: each queue pair gets its first message.
    pub(crate) fn open_queues(&mut self, index: u32) {
        let cts = self.port.cts_queue;
        for queue in (0..self.rx.queues.len()).filter(|queue| Some(*queue) != cts) {
            let Some(lane) = self.endpoints.lane(index, queue) else { return };
            let Some((credits, _)) = &mut lane.credits else { continue };
            // The first of a queue pair: it has its credit and its entry.
            if !credits.acquire_opener() || !lane.budget.acquire() {
                continue;
            }
            if let Err(error) = self.post_control(index, queue, &Header::open(queue as u8).emit()) {
                return self
                    .fail(index, &format!("post of the first message on queue {queue} failed: {error}"));
            }
        }
    }

    /// Something has come over a queue.
    #[cold]
    pub(crate) fn opened(&mut self, index: u32, queue: usize) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        ep.unopened &= !(1 << queue);
        self.flow_if_open(index);
    }

    /// Both have posted; if nothing is closed any more, messages flow.
    pub(crate) fn flow_if_open(&mut self, index: u32) {
        let Some(ep) = self.endpoints.get(index) else { return };
        if ep.state() == State::AwaitingFirst && ep.unopened == 0 {
            self.on_event(index, Event::Opened);
        }
    }
}
