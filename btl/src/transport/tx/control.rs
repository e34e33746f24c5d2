//! Messages of our own: the CTS, explicit credit messages, the first message of an iWARP queue pair.
#![forbid(unsafe_code)]

use crate::protocol::pending::LaneId;
use crate::protocol::wire::Header;
use crate::transport::Transport;
use crate::transport::channel::Request;
use verbs::PoolError;

/// Why a message of our own could not be posted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    #[error("no buffer: {0}")]
    Buffer(#[from] PoolError),
}

impl<C> Transport<C> {
    /// Sends an explicit credit message if so much is owed that one is due.
    #[inline]
    pub(crate) fn send_credits_if_due(&mut self, index: u32, queue: usize) {
        if self.endpoints.lane(index, queue).is_some_and(|lane| lane.owes_message()) {
            self.send_credits(index, queue);
        }
    }

    /// An explicit credit message, out of its own credits and one of the entries that data never
    /// takes.
    #[cold]
    pub(crate) fn send_credits(&mut self, index: u32, queue: usize) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        if !ep.state().flows() {
            return;
        }
        let lane = &mut ep.lanes[queue];
        let Some((credits, window)) = &mut lane.credits else { return };
        if !lane.budget.acquire() {
            return; // the next completion tries again
        }
        let Some(grant) = credits.acquire_explicit(window) else {
            lane.budget.release(1);
            return;
        };
        match self.post_control(index, queue, &Header::credit(queue as u8, grant).emit()) {
            Ok(()) => self.stats.credit_messages += 1,
            Err(error) => self.fail(index, &format!("post of a credit message failed: {error}")),
        }
    }

    /// Posts a message of our own, whose entry has been taken: inline, or from a buffer where the
    /// device takes too little inline.
    pub(crate) fn post_control(
        &mut self,
        index: u32,
        queue: usize,
        message: &[u8],
    ) -> Result<(), ControlError> {
        let lane = LaneId { peer: index, queue: queue as u8 };
        let max_inline = self.endpoints.lane(index, queue).map_or(0, |lane| usize::from(lane.max_inline));
        if message.len() <= max_inline {
            return Ok(self.post(lane, Request::Inline([message]))?);
        }
        let buf = self.tx.control_buf(queue, message)?;
        Ok(self.post::<0>(lane, Request::Message { buf, total: message.len() as u32 })?)
    }

    /// The CTS goes over the smallest per-peer queue, into the receive that the connection manager
    /// posted there.
    pub(crate) fn post_cts(&mut self, index: u32) -> Result<(), ControlError> {
        let Some(queue) = self.port.cts_queue else { return Ok(()) };
        let Some(ep) = self.endpoints.get_mut(index) else { return Ok(()) };
        let entry = ep.lanes[queue].budget.acquire();
        debug_assert!(entry, "the first send of a queue pair has an entry");
        self.post_control(index, queue, &self.port.cts().message(queue as u8))
    }
}
