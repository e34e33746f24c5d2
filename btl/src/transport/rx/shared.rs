//! Shared receive queues: filling them, and finding the endpoint of what came through them.
#![forbid(unsafe_code)]

use super::Rx;
use super::qpns::Owner;
use super::slots::{LIST, NO_ENDPOINT, RecvSlots};
use crate::transport::port::queue::{FillError, RecvQueue, Shared};
use crate::transport::stats::Stats;
use crate::transport::wrid::{Kind, WrId};
use crate::transport::{Transport, Upcall};
use std::sync::Arc;
use verbs::{Completion, Lent, Pool, PoolError, Qpn, RecvList, Srq, SrqId, Wc};

impl Rx {
    /// A shared queue's buffer has been consumed: it is posted again with its batch, when nothing else is to be done, or as soon as there are
    /// two batches.
    pub(crate) fn repost(&mut self, queue: usize, slot: u32, bytes: Lent) {
        self.slots.back(slot, bytes);
        self.consumed(queue, slot);
    }

    /// The same of one that has come back to its slot.
    #[inline(always)] // with every message of a shared queue
    pub(super) fn consumed(&mut self, queue: usize, slot: u32) {
        let Some(shared) = self.queues.get_mut(queue).and_then(|queue| queue.shared.as_mut()) else { return };
        shared.consumed.push(slot);
        if shared.refill_due() {
            self.refill_soon(queue);
        }
    }

    #[inline(never)]
    fn refill_soon(&mut self, queue: usize) {
        (self.refills, self.chores) = (true, true);
        if self.queues[queue].shared.as_ref().is_some_and(Shared::refill_presses) {
            self.refill(queue);
        }
    }

    /// Nothing else is to be done: the batches that are due are posted.
    #[cold]
    pub(super) fn refill_early(&mut self) {
        self.refills = false;
        for queue in 0..self.queues.len() {
            if self.queues[queue].shared.as_ref().is_some_and(Shared::refill_due) {
                self.refill(queue);
            }
        }
    }

    /// Posts what has been consumed of a shared queue, and as many new buffers as it is to hold. Where not all can be had it goes on
    /// with less. Where that is nothing, no message comes that would have the queue refilled: [`Rx::feed`] tries again.
    fn refill(&mut self, queue: usize) {
        match self.fill(queue) {
            Ok(()) => {}
            Err(error) if self.hungry => log::debug!("shared queue {queue} cannot be filled: {error}"),
            Err(error) => log::error!("shared queue {queue} cannot be filled: {error}"),
        }
        self.hungry |= self.is_empty(queue);
    }

    fn fill(&mut self, queue: usize) -> Result<(), FillError> {
        let res = &mut self.queues[queue];
        let Some(shared) = &mut res.shared else { return Ok(()) };
        while shared.posted < shared.target {
            let (wanted, of) = ((shared.target - shared.posted) as usize, (shared.kind, queue));
            let mut list = RecvList::new(&*shared.srq);
            let gathered =
                gather(&mut shared.consumed, &mut self.slots, (&mut res.bufs, wanted), of, &mut list);
            let (count, posted) = self.slots.post(&mut list);
            shared.posted += count as u32;
            if posted.is_err() {
                self.slots.put_back(&mut list, &mut shared.consumed);
            }
            posted?;
            gathered?;
        }
        Ok(())
    }

    /// A shared queue of which the device holds no receive.
    fn is_empty(&self, queue: usize) -> bool {
        self.queues[queue].shared.as_ref().is_some_and(|shared| shared.posted == 0)
    }

    /// Tries again to fill the shared queues that hold nothing.
    #[cold]
    pub(super) fn feed(&mut self) {
        for queue in (0..self.queues.len()).filter(|queue| self.is_empty(*queue)).collect::<Vec<_>>() {
            self.refill_and_arm(queue);
        }
        self.hungry = (0..self.queues.len()).any(|queue| self.is_empty(queue));
    }

    /// How often shared queues were made longer.
    pub fn grown(&self) -> u64 {
        self.queues
            .iter()
            .filter_map(|queue| queue.shared.as_ref())
            .map(|shared| u64::from(shared.grown))
            .sum()
    }

    /// The shared queues hold their first buffers before the first request is sent or answered.
    ///
    /// # Errors
    /// One of them holds nothing, and why.
    pub fn fill_shared(&mut self) -> Result<(), FillError> {
        for queue in 0..self.queues.len() {
            if self.is_empty(queue) {
                let filled = self.fill(queue);
                self.arm(queue);
                match filled {
                    Err(error) if self.is_empty(queue) => return Err(error),
                    Err(error) => log::error!("shared queue {queue} cannot be filled: {error}"),
                    Ok(()) => {}
                }
            }
        }
        Ok(())
    }

    /// The queue of the layout that the shared receive queue is of, if it is ours.
    pub fn queue_of(&self, srq: SrqId) -> Option<usize> {
        let of_event = |res: &RecvQueue| res.shared.as_ref().is_some_and(|shared| shared.srq.id() == srq);
        self.queues.iter().position(of_event)
    }

    /// The device tells that a shared queue runs low. What it has consumed may not have been polled
    /// yet, so the refill may be by less than the queue grows.
    pub fn limit_reached(&mut self, srq: SrqId) {
        let Some(queue) = self.queue_of(srq) else { return };
        if self.queues[queue].shared.as_mut().is_some_and(Shared::grow) {
            self.refill_and_arm(queue);
        }
    }

    fn refill_and_arm(&mut self, queue: usize) {
        self.refill(queue);
        self.arm(queue);
    }

    fn arm(&self, queue: usize) {
        if let Some(shared) = &self.queues[queue].shared
            && let Err(error) = shared.arm_limit()
        {
            log::debug!("shared queue {queue} grows only when it is found empty: {error}");
        }
    }

    /// A buffer that will not be posted again.
    #[cold]
    pub(super) fn drop_slot(&mut self, queue: usize, slot: u32, bytes: Lent) {
        self.slots.back(slot, bytes);
        if let Some(buf) = self.slots.release(slot) {
            self.queues[queue].bufs.put(buf);
        }
    }

    /// A receive of a shared queue has completed with a message.
    #[inline(always)]
    pub(super) fn count_consumed(&mut self, queue: usize) {
        if let Some(shared) = &mut self.queues[queue].shared {
            shared.posted -= 1;
            if shared.posted == 0 {
                self.ran_empty(queue);
            }
        }
    }

    /// The endpoint that sent a message through a shared queue, which is counted, if its queue pair is known.
    #[inline(always)] // with every message of a shared queue
    pub(super) fn sender_known(&mut self, queue: usize, qpn: Qpn) -> Option<u32> {
        match self.qpns.find(qpn) {
            Some(Owner::Lane { endpoint, .. }) => {
                self.count_consumed(queue);
                Some(endpoint)
            }
            _ => None,
        }
    }

    #[cold]
    fn ran_empty(&mut self, queue: usize) {
        if let Some(shared) = &mut self.queues[queue].shared
            && shared.grow()
        {
            log::debug!("shared queue {queue} ran empty: keeps {} buffers posted from now on", shared.target);
        }
        self.refill(queue);
    }

    /// A message without a sender: of a connection that is gone, or of a queue pair that is looked
    /// for again when the helper has named it.
    #[cold]
    pub(super) fn put_aside(&mut self, done: Completion, stats: &mut Stats) {
        if self.qpns.find(done.qp_num()).is_some() {
            stats.stale += 1;
            self.give_up(done);
        } else {
            stats.parked += 1;
            self.park(done);
        }
    }

    /// A message of a connection that is gone: its buffer is posted again.
    fn give_up(&mut self, done: Completion) {
        let id = WrId(done.wr_id());
        if let Some((bytes, _)) = self.slots.completed(done) {
            self.repost(id.queue(), id.index(), bytes);
        }
    }

    /// A receive of a shared queue has failed: its buffer is posted again.
    #[cold]
    pub(super) fn give_up_failed(&mut self, done: Completion) {
        if let Some(shared) = &mut self.queues[WrId(done.wr_id()).queue()].shared {
            shared.posted -= 1;
        }
        self.give_up(done);
    }

    fn park(&mut self, mut done: Completion) {
        self.slots.settle_completion(&mut done);
        if let Some(shared) = &mut self.queues[WrId(done.wr_id()).queue()].shared {
            shared.posted += 1; // counted down again when it is looked at
        }
        self.parked.push(done);
    }

    /// Destroys the shared queues; their queue pairs are gone. The receives that never completed
    /// come back: a buffer that stays with the device keeps its registration and the device open.
    #[cold]
    pub fn end_shared(&mut self) {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            let Some(shared) = queue.shared.take() else { continue };
            match Arc::into_inner(shared.srq).map(Srq::destroy) {
                Some(Ok(gone)) => self.slots.take_back(index, &gone).for_each(|buf| queue.bufs.put(buf)),
                Some(Err(error)) => log::warn!("{error}: its buffers stay with the device"),
                None => log::debug!("shared queue {index} is still used: its buffers stay with the device"),
            }
        }
    }
}

impl<C> Transport<C> {
    /// Which endpoint sent a message that came through a shared queue.
    #[inline]
    pub(crate) fn sender(&mut self, wc: &Wc) -> Option<u32> {
        self.rx.count_consumed(WrId(wc.wr_id()).queue());
        match self.rx.qpns.find(wc.qp_num()) {
            Some(Owner::Lane { endpoint, .. }) => Some(endpoint),
            _ => self.sender_late(wc.qp_num()),
        }
    }

    /// The helper's event that names the queue pair may be behind the message.
    #[cold]
    fn sender_late(&mut self, qpn: Qpn) -> Option<u32> {
        self.connection_events();
        self.rx.qpns.endpoint(qpn)
    }

    /// Messages whose queue pair is known by now go back into the batch.
    pub(crate) fn unpark(&mut self) {
        let mut rest = Vec::new();
        for done in std::mem::take(&mut self.rx.parked) {
            match self.rx.qpns.find(done.qp_num()) {
                None => rest.push(done),
                Some(_) => {
                    if let Some(delivery) = self.received(done).and_then(|delivery| self.hold_back(delivery))
                    {
                        self.up.push(Upcall::Deliver(self.rx.kept(delivery)));
                    }
                }
            }
        }
        self.rx.parked = rest;
    }
}

/// The next receives that a shared queue is to hold, up to `wanted`: those that have been consumed, then new ones; as many as can
/// be had.
///
/// # Errors
/// Why there are not more.
fn gather(
    consumed: &mut Vec<u32>,
    slots: &mut RecvSlots,
    (pool, wanted): (&mut Pool, usize),
    (kind, queue): (Kind, usize),
    list: &mut RecvList<'_, Srq, LIST>,
) -> Result<(), PoolError> {
    slots.take_consumed(consumed, wanted, list);
    while list.len() < wanted.min(LIST) {
        let buf = pool.take()?;
        let slot = slots.take(kind, NO_ENDPOINT, queue);
        slots.hold(slot, buf);
        slots.add(slot, list);
    }
    Ok(())
}
