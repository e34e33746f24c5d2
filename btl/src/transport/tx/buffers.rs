//! What a send takes and gives back: a buffer and its share of the pool, an entry, a credit, a send
//! slot; and the ends that a message may come to without having been sent.
#![forbid(unsafe_code)]

use super::Tx;
use super::path::Paths;
use crate::protocol::credits::Grant;
use crate::protocol::wire::Kind;
use crate::transport::Transport;
use crate::transport::channel::{GivesBack, Held, Ledger, Operation, Ready, Unposted};
use crate::transport::endpoint::Endpoint;
use crate::transport::endpoint::lane::Lane;
use crate::transport::endpoint::retained::{Kept, Retained};
use crate::transport::port::buffer::SendBuf;
use crate::transport::port::queue::SendSlots;
use crate::transport::stats::Stats;
use crate::transport::upcall::Upcalls;
use verbs::{Completion, PoolError, Posted};

impl<C> Tx<C> {
    /// Each queue has some buffers from now on.
    ///
    /// # Errors
    /// There are none to be had.
    pub fn reserve(&mut self) -> Result<(), PoolError> {
        self.queues.iter_mut().try_for_each(|queue| queue.bufs.reserve())
    }

    /// A buffer of this class for `len` bytes of payload to the endpoint at position `index`; none
    /// if memory is short, or the peer has its share of the pool and the caller `can_wait`.
    pub fn take(
        &mut self,
        (class, len): (usize, usize),
        index: u32,
        can_wait: bool,
        stats: &mut Stats,
    ) -> Option<SendBuf> {
        let queue = &mut self.queues[class];
        let share = queue.shares.take(index).ok().map(|()| index);
        if share.is_none() {
            if can_wait {
                stats.stalled_buffers += 1;
                return None;
            }
            stats.beyond_limit += 1;
        }
        match queue.bufs.take() {
            Ok(buf) => Some(SendBuf { buf, class: class as u8, share }),
            Err(error) => {
                queue.release_share(share);
                log::error!("no send buffer of {len} bytes: {error}");
                None
            }
        }
    }

    /// A buffer with a message of our own, which is of no peer's share.
    ///
    /// # Errors
    /// There is none to be had.
    pub fn control_buf(&mut self, queue: usize, message: &[u8]) -> Result<SendBuf, PoolError> {
        let mut buf = self.queues[queue].bufs.take()?;
        buf.as_mut_slice()[..message.len()].copy_from_slice(message);
        Ok(SendBuf { buf, class: queue as u8, share: None })
    }

    /// Takes an unused buffer back.
    #[inline]
    pub fn give_back(&mut self, buf: SendBuf) {
        self.queues[buf.class as usize].take_back(buf);
    }

    /// The same of messages that were to be sent.
    #[cold]
    pub fn drop_ready(&mut self, ready: &mut Vec<Ready>) {
        ready.drain(..).for_each(|message| self.give_back(message.buf));
    }

    /// A buffer has come back from the device, by the completion of its request or of one behind
    /// it.
    #[inline]
    pub fn take_sent(&mut self, buf: Posted, by: &Completion, (class, share): (u8, Option<u32>)) {
        if let Some(buf) = buf.completed_up_to(by) {
            self.give_back(SendBuf { buf, class, share });
        }
    }

    /// Takes what a message on this lane, of the endpoint at position `index`, needs: an entry, a
    /// credit, a send slot of a shared queue.
    #[inline(always)] // with every message; a call costs as much as what it does
    pub fn acquire(&mut self, lane: &mut Lane, index: u32, queue: usize) -> Option<Grant> {
        let grant = lane.acquire()?;
        if let Some(slots) = &mut self.queues[queue].slots
            && !slots.take(index)
        {
            lane.budget.release(1);
            return None;
        }
        Some(grant)
    }

    /// Takes what a [plain](Lane::is_plain) message needs, if none of it becomes scarce: on a per-peer queue as
    /// [`Lane::acquire_plain`].
    #[inline(always)] // with every message; a call costs as much as what it does
    pub fn acquire_plain(&mut self, lane: &mut Lane, index: u32, queue: usize) -> Option<Grant> {
        if lane.credits.is_some() {
            return lane.acquire_plain();
        }
        let slots = self.queues.get_mut(queue)?.slots.as_mut()?;
        let taken = slots.take_plenty(index);
        (taken && lane.budget.acquire()).then_some(Grant::NONE)
    }

    /// What a message on this lane takes is scarce, so that another may wait for it.
    #[inline(always)] // with every message; a call costs as much as what it does
    pub fn is_scarce(&self, lane: &Lane, queue: usize) -> bool {
        lane.is_scarce() || self.queues[queue].slots.as_ref().is_some_and(SendSlots::are_scarce)
    }

    /// `count` messages to a shared queue are over. Whether lanes may have waited for their send
    /// slots; they are awake now, and to be served.
    #[inline(always)] // with every message; a call costs as much as what it does
    pub fn release_slots(&mut self, index: u32, queue: usize, count: u16) -> bool {
        let wanted = self.queues[queue].slots.as_mut().is_some_and(|slots| slots.release(index, count));
        if wanted {
            self.pending.wake_queue(queue as u8);
        }
        wanted
    }

    /// The endpoint at this position is gone, and completions of its sends will not be looked at
    /// any more. Whether lanes may have waited for its send slots; they are awake now, and to be
    /// served.
    pub fn forget_slots(&mut self, index: u32) -> bool {
        let mut wanted = false;
        for (queue, slots) in self.queues.iter_mut().map(|queue| &mut queue.slots).enumerate() {
            if slots.as_mut().is_some_and(|slots| slots.forget(index)) {
                self.pending.wake_queue(queue as u8);
                wanted = true;
            }
        }
        wanted
    }

    /// A work request to this endpoint has been posted.
    #[inline]
    pub fn count_posted(&mut self, ep: &mut Endpoint<C>, signalled: bool) {
        ep.outstanding += 1;
        self.outstanding += 1;
        self.awaited += u32::from(signalled);
    }

    /// So many messages to this endpoint have been posted with one call.
    pub fn count_chain(&mut self, ep: &mut Endpoint<C>, posted: u32, signalled: u32) {
        ep.outstanding += posted;
        self.outstanding += posted;
        self.awaited += signalled;
        if posted > 1 {
            self.chains.lists += 1;
            self.chains.requests += u64::from(posted);
        }
    }

    /// What the endpoint has sent unsignalled completes from now on, too.
    pub fn mark(&mut self, ep: &mut Endpoint<C>, paths: &mut Paths) {
        let over_path = ep.outstanding != 0 && ep.route.as_ref().is_some_and(|route| paths.mark(route.path));
        self.count_markers(ep.mark() + u32::from(over_path));
    }

    /// So many markers have been posted.
    pub fn count_markers(&mut self, count: u32) {
        self.outstanding += count;
        self.awaited += count;
        self.markers += u64::from(count);
    }

    /// What has not been posted: its buffer is free, its callback hears of it.
    #[cold]
    pub fn take_back(&mut self, unposted: Unposted<C>, up: &mut Upcalls<C>) {
        match unposted {
            Unposted::Nothing => {}
            Unposted::Message(buf) => self.give_back(buf),
            Unposted::Operation(operation) => self.give_up([operation], up),
        }
    }

    /// These operations will not be carried out.
    pub fn give_up(&mut self, operations: impl IntoIterator<Item = Operation<C>>, up: &mut Upcalls<C>) {
        for operation in operations {
            let cookie = match operation {
                Operation::Rdma(rdma) => rdma.cookie,
                Operation::Atomic { fetch, buf } => {
                    self.words.put(buf);
                    fetch.cookie
                }
            };
            up.completed(cookie, false);
        }
    }

    /// Work requests that never completed: their buffers stay with the device, their callbacks hear
    /// of it.
    pub fn forget_lines(&mut self, mut ledger: Ledger, up: &mut Upcalls<C>) {
        while let Some(line) = ledger.forget() {
            self.awaited -= u32::from(line.is_signalled());
            let GivesBack::Held(key) = line.gives_back() else { continue };
            match self.held.try_remove(key as usize) {
                Some(Held::Rdma { rdma, .. }) => up.completed(rdma.cookie, false),
                Some(Held::Atomic { fetch, .. }) => up.completed(fetch.cookie, false),
                Some(Held::Message { .. }) | None => {}
            }
        }
    }
}

impl<C> Transport<C> {
    /// Gives back the buffers of messages to the endpoint at position `index` that will not be
    /// sent; how many of them are the upper layer's.
    pub(crate) fn drop_pending(&mut self, index: u32) -> usize {
        let Some(ep) = self.endpoints.get_mut(index) else { return 0 };
        let mut data = 0;
        for (queue, message) in self.tx.pending.drain(index) {
            data += usize::from(message.kind == Kind::Data);
            self.tx.give_back(message.buf);
            ep.answers -= u32::from(message.is_answer);
            self.tx.answers -= u32::from(message.is_answer);
            let lane = &mut ep.lanes[usize::from(queue)];
            lane.served = lane.served.wrapping_add(1);
        }
        self.drop_kept(index);
        data
    }

    /// What was to be sent again to the endpoint at position `index` will not be. Over X queues
    /// lanes that wait for its send slots are served: no completion follows that would do so.
    pub(crate) fn drop_kept(&mut self, index: u32) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        if let Some(resume) = ep.resume.take() {
            let Retained { messages, operations } = resume.retained;
            messages.into_iter().for_each(|Kept { buf, .. }| self.tx.give_back(buf));
            self.tx.give_up(operations, &mut self.up);
        }
        let Some(route) = &mut ep.route else { return };
        let Retained { messages, operations } = std::mem::take(&mut route.retained);
        let mut wanted = false;
        for Kept { queue, buf, .. } in messages {
            let queue = usize::from(queue);
            ep.lanes[queue].budget.release(1);
            self.tx.give_back(buf);
            wanted |= self.tx.release_slots(index, queue, 1);
        }
        self.tx.give_up(operations, &mut self.up);
        if wanted {
            self.serve();
        }
    }
}
