//! Receives that came back with an error.
#![forbid(unsafe_code)]

use super::qpns::Owner;
use crate::transport::Transport;
use crate::transport::endpoint::Endpoints;
use crate::transport::wrid::{Kind, WrId};
use verbs::{Completion, Wc, WcStatus};

impl<C> Endpoints<C> {
    /// On iWARP a peer that takes its connections down, in its MPI_Finalize, takes our queue pairs
    /// along. What it means the connection manager says, whose word is on its way; a send that is
    /// lost with them says something else.
    fn may_have_left(&self, index: u32, wc: &Wc) -> bool {
        wc.status() == WcStatus::Flushed && self.get(index).is_some_and(|ep| ep.first.is_some())
    }
}

impl<C> Transport<C> {
    /// A receive came back with an error: flushed, or the reason why its queue pair is in ERR.
    #[cold]
    pub(crate) fn receive_failed(&mut self, done: Completion, id: WrId) {
        let (slot, queue, wc) = (id.index(), id.queue(), *done);
        match id.kind() {
            Some(Kind::Cts) => {
                if let Some(buf) = self.take_cts(id, done) {
                    self.rx.cts.put(buf);
                }
                match self.endpoints.epoch(slot) {
                    // What has taken its queue pair down is reported by itself: by the connection manager, mostly.
                    Some(epoch) if epoch == id.generation() && wc.status() == WcStatus::Flushed => {}
                    Some(epoch) if epoch == id.generation() => self.fail_with(slot, &wc),
                    _ => self.stats.stale += 1,
                }
            }
            Some(Kind::Peer) => {
                let Some((buf, endpoint)) = self.rx.slots.completed(done) else {
                    return self.stats.stale += 1;
                };
                self.rx.drop_slot(queue, slot, buf);
                if !self.endpoints.may_have_left(endpoint, &wc) {
                    self.fail_with(endpoint, &wc);
                }
            }
            Some(Kind::Xrc) => {
                self.rx.give_up_failed(done);
            }
            Some(Kind::Shared) => {
                let owner = self.rx.qpns.find(wc.qp_num());
                self.rx.give_up_failed(done);
                if let Some(Owner::Lane { endpoint, .. }) = owner {
                    self.fail_with(endpoint, &wc);
                }
            }
            _ => self.stats.stale += 1,
        }
    }
}
