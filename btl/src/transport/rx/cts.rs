//! The receive of the peer's CTS.
#![forbid(unsafe_code)]

use crate::protocol::wire::{Cts, Header, Kind as MessageKind};
use crate::transport::endpoint::state::Event;
use crate::transport::wrid::{Kind, WrId};
use crate::transport::{Delivery, Transport};
use cpc::Step;
use verbs::{Buf, Completion};

impl<C> Transport<C> {
    /// The peer has posted its buffers (seed 004).
    #[cold]
    pub(crate) fn cts_received(&mut self, done: Completion, id: WrId) -> Option<Delivery> {
        let index = id.index();
        if id.kind() != Some(Kind::Cts) || self.endpoints.epoch(index) != Some(id.generation()) {
            self.stats.stale += 1;
            return None;
        }
        let len = done.byte_len() as usize;
        let buf = self.take_cts(id, done)?;
        let len = len.min(buf.capacity() as usize);
        let told = Header::parse(&buf.as_slice()[..len]).and_then(|(header, rest)| match header.kind {
            MessageKind::Cts => Cts::parse(rest).map(Some),
            _ => Ok(None),
        });
        self.cts_pool.put(buf);
        match told {
            Ok(Some(theirs)) if theirs == self.port.cts() => {
                self.early(index, id.queue());
                self.endpoints.mark(index, Step::CtsReceived);
                self.on_event(index, Event::CtsReceived);
            }
            Ok(Some(_)) => self.refuse(index, "the peer's receive_queues differ from ours"),
            Ok(None) => self.refuse(index, "the first message of the peer was no CTS"),
            Err(error) => self.refuse(index, &error.to_string()),
        }
        None
    }

    /// The buffer of a CTS receive that has completed, of any epoch of its endpoint.
    #[cold]
    pub(crate) fn take_cts(&mut self, id: WrId, done: Completion) -> Option<Buf> {
        let key = (id.index(), id.generation());
        if !self.cts_buffers.contains_key(&key) {
            // The helper posted this receive; what it says about it may still be in its queue.
            self.connection_events();
        }
        self.cts_buffers.remove(&key)?.completed(done).ok()
    }
}
