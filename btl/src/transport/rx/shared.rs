//! Shared receive queues: filling them, and finding the endpoint of what came through them.
#![forbid(unsafe_code)]

use super::qpns::Owner;
use super::slots::{CHAIN, Chain, NO_ENDPOINT, RecvSlots};
use crate::transport::port::queue::Shared;
use crate::transport::wrid::WrId;
use crate::transport::{Delivery, Transport, Upcall};
use std::sync::Arc;
use verbs::{Buf, Completion, Pool, Qpn, Srq, Wc};

impl<C> Transport<C> {
    /// A shared queue's buffer has been consumed: post it again with its batch.
    #[inline]
    pub(crate) fn repost(&mut self, queue: usize, slot: u32, buf: Buf) {
        self.slots.hold(slot, buf);
        let Some(shared) = &mut self.queues[queue].shared else { return };
        shared.consumed.push(slot);
        if shared.refill_due() {
            self.refill(queue);
        }
    }

    /// Posts what has been consumed of a shared queue, and as many new buffers as it is to hold.
    pub(crate) fn refill(&mut self, queue: usize) {
        let res = &mut self.queues[queue];
        let Some(shared) = &mut res.shared else { return };
        while shared.posted < shared.target {
            let (chain, complete) = gather(shared, &mut self.slots, &mut res.bufs, queue);
            if !post(shared, &mut self.slots, chain, queue) || !complete {
                return;
            }
        }
    }

    /// A buffer that will not be posted again.
    #[cold]
    pub(crate) fn drop_slot(&mut self, queue: usize, slot: u32, buf: Buf) {
        self.queues[queue].bufs.put(buf);
        self.slots.release(slot);
    }

    /// Which endpoint sent a message that came through a shared queue.
    #[inline]
    pub(crate) fn sender(&mut self, wc: &Wc) -> Option<u32> {
        let queue = WrId(wc.wr_id()).queue();
        if let Some(shared) = &mut self.queues[queue].shared {
            shared.posted -= 1;
            if shared.posted == 0 {
                self.ran_empty(queue);
            }
        }
        match self.qpns.find(wc.qp_num()) {
            Some(Owner::Lane { endpoint, .. }) => Some(endpoint),
            _ => self.sender_late(wc.qp_num()),
        }
    }

    /// Destroys the shared queues; their queue pairs are gone. The receives that never completed
    /// come back: a buffer that stays with the device keeps its registration and the device open.
    #[cold]
    pub(crate) fn end_shared(&mut self) {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            let Some(shared) = queue.shared.take() else { continue };
            match Arc::into_inner(shared.srq).map(Srq::destroy) {
                Some(Ok(gone)) => self.slots.take_back(index, &gone).for_each(|buf| queue.bufs.put(buf)),
                Some(Err(error)) => log::warn!("{error}: its buffers stay with the device"),
                None => log::debug!("shared queue {index} is still used: its buffers stay with the device"),
            }
        }
    }

    #[cold]
    pub(crate) fn ran_empty(&mut self, queue: usize) {
        if let Some(shared) = &mut self.queues[queue].shared
            && shared.grow()
        {
            log::debug!("shared queue {queue} ran empty: keeps {} buffers posted from now on", shared.target);
        }
        self.refill(queue);
    }

    /// The helper's event that names the queue pair may be behind the message.
    #[cold]
    fn sender_late(&mut self, qpn: Qpn) -> Option<u32> {
        self.connection_events();
        self.qpns.endpoint(qpn)
    }

    /// A message without a sender: of a connection that is gone, or of a queue pair that is looked
    /// for again when the helper has named it.
    #[cold]
    pub(crate) fn put_aside(&mut self, done: Completion) -> Option<Delivery> {
        if self.qpns.find(done.qp_num()).is_some() {
            self.stats.stale += 1;
            self.give_up(done);
        } else {
            self.stats.parked += 1;
            self.park(done);
        }
        None
    }

    /// A message of a connection that is gone: its buffer is posted again.
    pub(crate) fn give_up(&mut self, done: Completion) {
        let id = WrId(done.wr_id());
        if let Some((buf, _)) = self.slots.completed(done) {
            self.repost(id.queue(), id.index(), buf);
        }
    }

    fn park(&mut self, done: Completion) {
        if let Some(shared) = &mut self.queues[WrId(done.wr_id()).queue()].shared {
            shared.posted += 1; // counted down again when it is looked at
        }
        self.parked.push(done);
    }

    /// Messages whose queue pair is known by now go back into the batch.
    pub(crate) fn unpark(&mut self) {
        let mut rest = Vec::new();
        for done in std::mem::take(&mut self.parked) {
            match self.qpns.find(done.qp_num()) {
                None => rest.push(done),
                Some(_) => {
                    if let Some(delivery) = self.received(done) {
                        self.up.push(Upcall::Deliver(delivery));
                    }
                }
            }
        }
        self.parked = rest;
    }
}

/// The next buffers that a shared queue is to hold: those that have been consumed, then new ones.
/// False if memory is short.
fn gather(shared: &mut Shared, slots: &mut RecvSlots, pool: &mut Pool, queue: usize) -> (Chain, bool) {
    let mut chain = Chain::new();
    let wanted = ((shared.target - shared.posted) as usize).min(CHAIN);
    while chain.len() < wanted {
        let slot = shared.consumed.pop().unwrap_or_else(|| slots.take(shared.kind, NO_ENDPOINT, queue));
        match slots.take_held(slot).map_or_else(|| pool.take(), Ok) {
            Ok(buf) => slots.add(slot, buf, &mut chain),
            Err(error) => {
                log::error!("shared queue {queue} cannot be filled: {error}");
                slots.release(slot);
                return (chain, false);
            }
        }
    }
    (chain, true)
}

/// Hands buffers to the device; false if it has not taken all: the others wait in their slots.
fn post(shared: &mut Shared, slots: &mut RecvSlots, mut chain: Chain, queue: usize) -> bool {
    let count = chain.len();
    let posted = shared.srq.post_recvs(&mut chain, |wr_id, buf| slots.posted(wr_id, buf));
    shared.posted += (count - chain.len()) as u32;
    let Err(error) = posted else { return true };
    log::error!("post to shared queue {queue} failed: {error}");
    slots.put_back(chain, &mut shared.consumed);
    false
}
