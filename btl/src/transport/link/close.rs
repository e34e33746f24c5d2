//! The end of endpoints and of the transport.
//!
//! The upper layer first lets out what is queued (it polls while an endpoint is `busy`, up to a
//! deadline); then `remove`, or its three steps, take the queue pairs down, and every work request
//! completes, flushed ones too. Receives in shared queues are not flushed with a queue pair: their
//! buffers come back when the shared queue is destroyed.
#![forbid(unsafe_code)]

use crate::transport::endpoint::lane::Lane;
use crate::transport::endpoint::state::Event;
use crate::transport::endpoint::traffic::fewest_credits;
use crate::transport::endpoint::{Endpoint, Endpoints, EpId};
use crate::transport::wrid::GENERATION_MASK;
use crate::transport::{Transport, Upcall};
use std::time::{Duration, Instant};

/// How long the helper thread waits for peers to agree to the end of their connections (DREQ, DREP). Those that are there
/// know it from the end of the stream already; those that are not, do not answer.
const CLOSE: Duration = Duration::from_millis(150);

/// How long work requests may take to be flushed once their queue pair is in ERR.
pub(crate) const FLUSH: Duration = Duration::from_millis(200);

/// Endpoints that are being taken down, a step at a time: the caller looks around in between, and
/// holds no lock meanwhile.
#[derive(Debug)]
pub struct Removal {
    ids: Vec<EpId>,
    until: Instant,
    /// Peers whose requests wait for the next connection, of endpoints that were between two.
    asking: Vec<u64>,
}

impl<C> Endpoints<C> {
    pub(super) fn warn_unless(&self, flushed: bool, id: EpId) {
        if flushed {
            return;
        }
        // siw's library posts receives without asking the kernel: one that comes after the peer has
        // gone is never flushed.
        let usual = self.named(id).is_some_and(|ep| ep.first.is_some());
        let level = if usual { log::Level::Debug } else { log::Level::Warn };
        let index = id.index;
        log::log!(level, "endpoint {index}: its queue pairs did not flush, buffers stay with the device");
    }
}

impl<C> Transport<C> {
    /// Something that was handed to us for this endpoint is not done yet, or messages of the peer are
    /// held back. What has been sent without
    /// a completion has one from now on.
    pub fn busy(&mut self, id: EpId) -> bool {
        let Some(ep) = self.endpoints.named_mut(id) else { return false };
        if ep.state().flows() {
            self.tx.mark(ep, &mut self.paths);
        }
        ep.is_busy() || self.rx.hold.has(id.index)
    }

    /// How long a peer that takes nothing may hold up the end.
    pub fn drain_time(&self) -> Duration {
        self.port.config.drain
    }

    /// Every endpoint there is.
    pub fn ids(&self) -> Vec<EpId> {
        self.endpoints.ids()
    }

    /// The endpoint is to be taken down: lets out what it has. Whether there is something to wait
    /// for: it is busy, or has to hear that all has come, and its peer is there; or has to know whether
    /// its peer has connected.
    pub fn drain(&mut self, id: EpId) -> bool {
        self.end_stream(id);
        let busy = self.busy(id);
        let tentative = self.endpoints.named(id).is_some_and(Endpoint::is_tentative);
        self.on_event(id.index, if busy { Event::Drain } else { Event::AllOut });
        let waits = if busy { !tentative } else { self.has_to_hear(id) };
        waits || self.unlist(id)
    }

    /// Takes endpoints down. Their queue pairs are flushed and their buffers come back.
    pub fn remove(&mut self, ids: &[EpId]) {
        let removal = self.begin_removal(ids);
        while !self.is_flushed(&removal) {
            timing::relax();
        }
        self.end_removal(&removal);
    }

    /// Begins to take endpoints down: their queue pairs are being flushed, for all of them in the
    /// same time.
    pub fn begin_removal(&mut self, ids: &[EpId]) -> Removal {
        self.settle_delivered();
        let asking = ids.iter().filter_map(|id| self.leaves_asker(*id)).collect();
        for id in ids {
            if self.endpoints.named(*id).is_some() {
                self.on_event(id.index, Event::Close);
            }
        }
        Removal { ids: ids.to_vec(), until: timing::now() + FLUSH, asking }
    }

    /// Looks around; true when the device has given everything back, or has had its time.
    pub fn is_flushed(&mut self, removal: &Removal) -> bool {
        if removal.ids.iter().all(|id| self.has_flushed(*id)) {
            return true;
        }
        self.poll();
        // Where something arrives with each look, a look finds what has been sent now and then only.
        self.poll_sends();
        self.pass_over(&removal.ids);
        timing::now() >= removal.until
    }

    /// Messages of these endpoints, and what has become of them, go no further: no caller asks for them any more.
    fn pass_over(&mut self, ids: &[EpId]) {
        let mut others = Vec::new();
        while let Some(upcall) = self.take_upcall() {
            match upcall {
                Upcall::Deliver(delivery) if ids.contains(&delivery.endpoint()) => self.delivered(delivery),
                Upcall::Failed { endpoint, .. } if ids.contains(&endpoint) => {}
                other => others.push(other),
            }
        }
        self.up.extend(others);
    }

    /// Gives back what the endpoints held. Their queue pairs go with their completions: what those say of receives of
    /// shared queues is read before.
    pub fn end_removal(&mut self, removal: &Removal) {
        self.reap();
        self.pass_over(&removal.ids);
        for id in &removal.ids {
            let flushed = self.has_flushed(*id);
            if self.endpoints.named(*id).is_some() {
                self.endpoints.warn_unless(flushed, *id);
                self.forget(*id);
            }
        }
        let still_asks = removal.asking.iter().filter(|peer| self.asked.contains_key(peer));
        still_asks.for_each(|peer| self.up.push(Upcall::UnknownPeer { peer: *peer }));
    }

    /// Takes the connection down; its work requests are going to be flushed.
    pub(crate) fn take_down(&mut self, index: u32) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        let key = ep.key(index);
        let has_manager = !ep.is_to_itself();
        self.tx.mark(ep, &mut self.paths);
        ep.to_error(log::Level::Debug);
        self.leave_route(index);
        if has_manager {
            self.port.service.remove_endpoint(key);
        }
    }

    /// The device has given every buffer of the endpoint back.
    pub(crate) fn has_flushed(&self, id: EpId) -> bool {
        let ep = self.endpoints.named(id);
        ep.is_none_or(|ep| ep.outstanding == 0 && !self.rx.is_posted(ep.connection(id.index)))
    }

    /// Gives back what the endpoint held, and its place in the table.
    fn forget(&mut self, id: EpId) {
        self.drop_pending(id.index);
        if let Some(ep) = self.endpoints.named(id) {
            self.count_landed(ep.ring);
        }
        let Some(mut ep) = self.endpoints.remove(id.index) else { return };
        self.drop_held(id.index);
        self.up.end_waiting(&mut ep, true);
        let Endpoint { epoch, lanes, outstanding, rdma, entries, ring, .. } = ep;
        self.tx.give_up(rdma, &mut self.up);
        self.end_epoch(id.index, epoch, lanes, outstanding);
        self.rings.close(ring);
        self.port.release(entries);
    }

    /// What the connection at this position held comes back, and what still names it is stale from
    /// now on. A receive that is still posted, because the device was too slow to flush it, stays
    /// with the device.
    pub(crate) fn end_epoch(&mut self, index: u32, epoch: u32, lanes: Vec<Lane>, outstanding: u32) {
        self.endpoints.set_epoch(index, (epoch + 1) & GENERATION_MASK);
        self.tx.outstanding -= outstanding;
        self.stats.note_credits(fewest_credits(&lanes));
        self.rx.release(index);
        // Over XRC, what has not completed still will: the send queue pair serves others.
        let wanted = !self.paths.are_used() && self.tx.forget_slots(index);
        for lane in lanes {
            if let Some(channel) = lane.channel {
                self.rx.qpns.retire(channel.qp.num());
                self.tx.forget_lines(channel.ledger, &mut self.up);
            }
        }
        if wanted {
            self.serve();
        }
    }

    /// Takes everything down; the helper thread is joined, in bounded time.
    pub fn close(mut self) {
        self.remove(&self.ids());
        self.port.service.close(CLOSE);
        self.flush_orphans();
        self.rx.end_shared();
    }

    /// The last words of the helper thread may be of queue pairs that no endpoint has heard of.
    fn flush_orphans(&mut self) {
        self.connection_events();
        let until = timing::now() + FLUSH;
        while self.rx.cts.has_orphans() && timing::now() < until {
            self.poll();
            while self.take_upcall().is_some() {}
            timing::relax();
        }
    }
}
