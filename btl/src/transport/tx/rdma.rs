//! Put, get and atomics: RDMA WRITE, READ, fetch-and-add and compare-and-swap on the last queue's
//! queue pair.
//!
//! One that nothing is in the way of is posted at once, or is over within the call, where the device moves the data itself. Others wait in order; none
//! is ever refused for want of a resource, because ob1 would park it where only another completion wakes it. A device takes no
//! more reads and atomics of a queue pair at a time than were agreed upon, and lets everything behind
//! the next one wait: that one waits here instead, and messages pass it.
#![forbid(unsafe_code)]

use crate::protocol::atomic::Atomic;
use crate::protocol::pending::LaneId;
use crate::transport::channel::{Connection, Fetch, Operation, Rdma, Refused, Request, Target};
use crate::transport::endpoint::traffic::Traffic;
use crate::transport::endpoint::{Endpoint, EpId};
use crate::transport::port::OpenPort;
use crate::transport::port::depth::CONTROL_WQES;
use crate::transport::tx::Tx;
use crate::transport::{Transport, Upcall};
use verbs::{Completion, PoolError, Posted, RKey, RdmaOp, Remote, Sge};

/// Why an atomic has not begun; its cookie comes back.
#[derive(Debug)]
pub enum NotBegun<C> {
    /// The endpoint is lost.
    Lost(C),
    /// No memory for the value before.
    NoBuffer(PoolError, C),
}

/// Behind an operation that the device has refused to carry out at once so many short ones are posted without an attempt, which takes a tenth of their
/// time.
const SKIPPED: u8 = 15;

/// Bytes from which on an attempt takes little of it.
const SHORT: u32 = 4096;

/// Behind so many that were over at once one is posted. Who waits for that looks around: a program that gets a word again and again, until it changes, may
/// have to answer a message before it does.
const UNPOSTED: u8 = 15;

impl<C> Tx<C> {
    /// Whether an operation of so many bytes is posted without an attempt to have it carried out at once.
    #[inline]
    fn skips_attempt(&mut self, len: u32) -> bool {
        if self.moved == UNPOSTED {
            self.moved = 0;
            return true;
        }
        let skips = len < SHORT && self.skipped != 0;
        self.skipped -= u8::from(skips);
        skips
    }

    /// The buffer of an atomic has come back from the device; the value before, if it was carried
    /// out.
    pub fn take_word(&mut self, buf: Posted, by: &Completion) -> Option<u64> {
        let buf = buf.completed_up_to(by)?;
        let value = buf.as_slice().first_chunk().copied().map(u64::from_ne_bytes);
        self.words.put(buf);
        value
    }
}

impl<C> Transport<C> {
    /// Reads or writes `local.len` bytes of the peer's memory within the call, where the device does so and nothing is in the way: there is no cookie, for
    /// it is over. False: it is to be [begun](Self::rdma).
    #[inline]
    pub fn rdma_at_once(&mut self, id: EpId, op: RdmaOp, local: Sge, remote: (u64, RKey)) -> bool {
        // The device would refuse it behind others.
        let is_first = |ep: &&mut Endpoint<C>| ep.rdma_out == 0 && has_way(ep) && ep.state().flows();
        let Some(ep) = self.endpoints.named_mut(id).filter(is_first) else { return false };
        if self.tx.skips_attempt(local.len) {
            return false;
        }
        let queue = self.port.layout().largest();
        let Some(channel) = &ep.lanes[queue].channel else { return false };
        let (remote, look) = (Remote { addr: remote.0, rkey: remote.1 }, self.rx.looks());
        let moved = channel.qp.rdma_at_once(op, local, remote, self.tx.burst.is_on(look));
        if moved {
            self.tx.burst.count(look);
            ep.traffic.add(bytes_of(op, local.len));
            self.stats.rdma += 1;
            self.stats.rdma_at_once += 1;
            self.tx.moved += 1;
        } else {
            self.tx.skipped = SKIPPED;
        }
        moved
    }

    /// Starts reading or writing `local.len` bytes of the peer's memory. The cookie comes back with
    /// `Upcall::Completed`; it comes back at once (`Err`) if the endpoint is lost.
    pub fn rdma(
        &mut self,
        id: EpId,
        op: RdmaOp,
        local: Sge,
        remote: (u64, RKey),
        cookie: C,
    ) -> Result<(), C> {
        let Some(ep) = self.endpoints.named_mut(id).filter(|ep| ep.state().is_open()) else {
            return Err(cookie);
        };
        let rdma = Rdma { op, local, remote, cookie };
        let queue = self.port.layout().largest();
        if !passes(&self.port, ep, queue, op == RdmaOp::Read) {
            ep.rdma.push_back(Operation::Rdma(rdma));
            self.rdma_waits(id.index);
            return Ok(());
        }
        let target = Target { to: ep.connection(id.index), queue: queue as u8, srq: None, scarce: true };
        let bytes = bytes_of(op, local.len);
        // Whose messages flow has a channel, or a route.
        let Some(channel) = &mut ep.lanes[queue].channel else { return Err(rdma.cookie) };
        let posted = channel.post_rdma(&mut self.tx.held, target, rdma);
        self.begun(id.index, posted, bytes);
        Ok(())
    }

    /// An operation that nothing was in the way of has been posted, or refused.
    #[inline(always)] // with every one
    fn begun(&mut self, index: u32, posted: Result<(), Box<Refused<C>>>, bytes: Traffic) {
        if let Err(refused) = posted {
            let Refused { error, unposted } = *refused;
            self.tx.take_back(unposted, &mut self.up);
            return self.operation_refused(index, &error);
        }
        self.tx.burst.count(self.rx.looks());
        if let Some(ep) = self.endpoints.get_mut(index) {
            self.tx.count_posted(ep, true);
            ep.traffic.add(bytes);
            ep.rdma_out += 1;
        }
        self.stats.rdma += 1;
    }

    /// An operation has been put behind those that wait, or is the first to.
    #[inline(never)]
    fn rdma_waits(&mut self, index: u32) {
        self.want_send(index);
        self.pump_rdma(index);
    }

    /// The device has refused an operation: the endpoint is lost.
    #[cold]
    fn operation_refused(&mut self, index: u32, error: &verbs::Error) {
        self.fail(index, &format!("post of an RDMA operation failed: {error}"));
    }

    /// Starts changing eight aligned bytes of the peer's memory. The cookie comes back with
    /// `Upcall::Fetched`, or with `Upcall::Completed` if that fails.
    ///
    /// # Errors
    /// [`NotBegun`].
    pub fn atomic(
        &mut self,
        id: EpId,
        atomic: Atomic,
        remote: (u64, RKey),
        cookie: C,
    ) -> Result<(), NotBegun<C>> {
        let Some(ep) = self.endpoints.named_mut(id).filter(|ep| ep.state().is_open()) else {
            return Err(NotBegun::Lost(cookie));
        };
        let buf = match self.tx.words.take() {
            Ok(buf) => buf,
            Err(error) => return Err(NotBegun::NoBuffer(error, cookie)),
        };
        let (fetch, queue) = (Box::new(Fetch { atomic, remote, cookie }), self.port.layout().largest());
        let passes = passes(&self.port, ep, queue, true);
        let target = Target { to: ep.connection(id.index), queue: queue as u8, srq: None, scarce: true };
        match ep.lanes.get_mut(queue).and_then(|lane| lane.channel.as_mut()).filter(|_| passes) {
            Some(channel) => {
                let posted = channel.post_atomic(&mut self.tx.held, target, fetch, buf);
                self.stats.atomics += u64::from(posted.is_ok());
                // Its word is not counted.
                self.begun(id.index, posted, Traffic::default());
            }
            None => {
                ep.rdma.push_back(Operation::Atomic { fetch, buf });
                self.rdma_waits(id.index);
            }
        }
        Ok(())
    }

    /// Posts what waits, as far as work queue entries go.
    pub(crate) fn pump_rdma(&mut self, index: u32) {
        let queue = self.port.layout().largest();
        loop {
            let Some(ep) = self.endpoints.get_mut(index) else { return };
            let Some(fetches) = ep.rdma.front().map(Operation::fetches) else { return };
            if !takes_operation(&self.port, ep, queue, fetches) {
                return;
            }
            let most_reads = fetches.then_some(self.port.most_reads);
            let path = ep.route.as_ref().map(|route| route.path);
            if let Some(path) = path
                && !self.paths.take_place(path, index, self.port.config.rdma_depth, most_reads)
            {
                return self.endpoints.release_entry(index, queue);
            }
            self.post_next_rdma(index, queue, path);
        }
    }

    /// Posts the operation that has waited longest; its entry, and its place on the path if it goes
    /// over one, have been taken.
    fn post_next_rdma(&mut self, index: u32, queue: usize, path: Option<u32>) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        let Some(operation) = ep.rdma.pop_front() else { return };
        let lane = LaneId { peer: index, queue: queue as u8 };
        let is_atomic = matches!(operation, Operation::Atomic { .. });
        let bytes = match &operation {
            Operation::Rdma(rdma) => bytes_of(rdma.op, rdma.local.len),
            // Its word is not counted.
            Operation::Atomic { .. } => Traffic::default(),
        };
        match self.post::<0>(lane, Request::Operation(operation)) {
            Ok(()) => {
                self.stats.rdma += 1;
                self.stats.atomics += u64::from(is_atomic);
                if let Some(ep) = self.endpoints.get_mut(index) {
                    ep.traffic.add(bytes);
                    ep.rdma_out += u32::from(path.is_none());
                }
            }
            Err(error) => {
                if let Some(path) = path {
                    self.paths.release_place(path);
                }
                self.operation_refused(index, &error);
            }
        }
    }

    /// Hands `cookie` back by `Upcall::Completed`, as if an operation that began now were over at
    /// once.
    #[cold]
    pub fn later(&mut self, cookie: C) {
        self.up.completed(cookie, true);
    }

    /// An RDMA operation over the peer's own queue pair completed: its entry is free again.
    #[inline]
    pub(crate) fn rdma_done(&mut self, index: u32, queue: usize, fetched: bool) {
        if let Some(ep) = self.endpoints.get_mut(index) {
            ep.rdma_out -= 1;
            if fetched && let Some(channel) = &mut ep.lanes[queue].channel {
                channel.read_done();
            }
        }
        self.entries_free(index, queue, 1);
    }

    /// A request of an atomic has completed. Where the word was not what it was taken to be, the next
    /// request goes before everything that waits.
    pub(crate) fn fetched(
        &mut self,
        to: Connection,
        (buf, by): (Posted, &Completion),
        mut fetch: Box<Fetch<C>>,
        ok: bool,
    ) {
        let was = self.tx.take_word(buf, by).filter(|_| ok);
        let Some(was) = was else { return self.up.completed(fetch.cookie, false) };
        if fetch.atomic.is_done(was) {
            return self.up.push(Upcall::Fetched { cookie: fetch.cookie, value: was });
        }
        let current = self.endpoints.has(to);
        let ep = self.endpoints.get_mut(to.index).filter(|ep| current && !ep.state().is_over());
        match (ep, self.tx.words.take()) {
            (Some(ep), Ok(buf)) => ep.rdma.push_front(Operation::Atomic { fetch, buf }),
            (_, taken) => {
                taken.into_iter().for_each(|buf| self.tx.words.put(buf));
                self.up.completed(fetch.cookie, false);
            }
        }
    }
}

/// Operations go over the endpoint's own queue pair, and none waits.
#[inline]
fn has_way<C>(ep: &Endpoint<C>) -> bool {
    ep.rdma.is_empty() && ep.route.is_none()
}

/// Takes the entry of an operation that goes over the endpoint's own queue pair, if nothing is in its way.
#[inline]
fn passes<C>(port: &OpenPort, ep: &mut Endpoint<C>, queue: usize, fetches: bool) -> bool {
    has_way(ep) && takes_operation(port, ep, queue, fetches)
}

/// Takes the entry of an operation, if one may be posted now as far as the endpoint is concerned; `fetches`: it is a read or an atomic. What
/// messages are entitled to stays free: the send queue holds both (`depth::send_depth`).
#[inline]
fn takes_operation<C>(port: &OpenPort, ep: &mut Endpoint<C>, queue: usize, fetches: bool) -> bool {
    let most_reads = fetches.then_some(port.most_reads);
    ep.state().flows()
        && ep.rdma_out < port.config.rdma_depth
        && ep.lanes[queue].may_fetch(most_reads)
        && ep.lanes[queue].budget.acquire_leaving(CONTROL_WQES)
}

/// What an operation moves.
#[inline]
fn bytes_of(op: RdmaOp, len: u32) -> Traffic {
    let len = len.into();
    match op {
        RdmaOp::Read => Traffic { sent: 0, received: len },
        RdmaOp::Write => Traffic { sent: len, received: 0 },
    }
}
