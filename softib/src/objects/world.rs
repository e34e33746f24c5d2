//! All objects of the process but its queue pairs, which are borrowed beside them.

use super::cq::{Armed, Channel, Cq, Cqe};
use super::events::{Context, Event, Subject};
use super::expected::Expected;
use super::faults::state::Faults;
use super::groups::Groups;
use super::mr::{Mrs, Pd};
use super::parent::Parent;
use super::peers::Peers;
use super::reply::Reply;
use super::shared::SharedMemory;
use super::srq::Srq;
use super::xrc::Xrc;
use crate::errno::Errno;
use crate::fabric::Ports;
use crate::shm::heap::{Extent, Heap};
use crate::shm::segment::Segment;
use rdma_sys::*;
use slab::Slab;
use std::collections::VecDeque;
use std::time::Instant;

/// Plain counters, for tests, benches and the curious.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)] // in this order: a short message counts the first one
pub struct Stats {
    /// RDMA operations done by our own hand: by process_vm_*, or in memory of the peer that is mapped here.
    pub rdma_direct: u64,
    /// System calls that woke a peer's device thread.
    pub doorbells: u64,
    /// Sends that found no receive and were put back.
    pub rnr: u64,
    /// Datagrams that were dropped: wrong Q_Key or P_Key, no receive, full ring, an address that
    /// leads to no peer.
    pub ud_dropped: u64,
    /// Messages that arrived for a queue pair that no longer wanted them.
    pub stray: u64,
    /// Sends that waited for room in a ring.
    pub ring_full: u64,
    /// Completions that found their queue full; should never be above 0.
    pub cq_overruns: u64,
    /// Times the device thread took the rings over from a program that had stopped polling.
    pub takeovers: u64,
    /// Rings that polls no longer looked at, because they had had nothing for long: each was announced again by its next message.
    pub cooled: u64,
    /// RDMA operations done by messages through the rings.
    pub rdma_ring: u64,
    /// READs that a peer was asked for and did not send in time: they were done by process_vm_readv.
    pub rdma_late: u64,
    /// Messages that the program was given where they lay in a ring.
    pub placed: u64,
    /// SENDs whose data we have placed in buffers of the peer that are mapped here.
    pub filled: u64,
}

/// So many polls may find completions that wait, and look at no ring: a program that always has some to poll is still to answer others.
const UNLOOKED: u32 = 16;

/// Everything but queue pairs and inbound rings.
#[derive(Debug)]
#[repr(C)] // in this order: what each verb touches comes first
pub struct World {
    /// Queue pairs with sends waiting, by index.
    pub busy: Vec<usize>,
    /// Queue pairs whose CQ overran under them, by number.
    pub doomed: Vec<u32>,
    /// Answers to RDMA requests that came through a ring.
    pub replies: VecDeque<Reply>,
    /// The ring whose sender has yet to be told how far it has been read, for the program was given a payload of it, and the completion
    /// queue of that.
    pub lender: Option<(usize, usize)>,
    /// Completion queues.
    pub cqs: Slab<Cq>,
    /// A short message has been posted since the last poll: the next one follows on its heels.
    pub in_burst: bool,
    /// Something has come that does not wait for the program's next poll: a request for memory, its answer, what fires a channel.
    pub hurried: bool,
    /// Polls since the rings were looked at, each of which found a completion that waited.
    pub unlooked: u32,
    /// Counters.
    pub stats: Stats,
    /// Only an answer of one piece is waited for, which is on its way.
    pub expected: Expected,
    /// When the READ or WRITE that is posted next has begun, if it is to be timed and that is known.
    pub began: Option<Instant>,
    /// Our segment.
    pub segment: Segment,
    /// What our ports are.
    pub ports: Ports,
    /// The plan of faults, if there is one.
    pub faults: Option<Box<Faults>>,
    /// A plan asks at each request of a context: what is no request may not stand in for one.
    pub asks_at_requests: bool,
    /// The free parts of its heap.
    pub heap: Heap,
    /// What of it the program has as memory that peers map.
    pub shared: SharedMemory,
    /// Open devices.
    pub contexts: Slab<Context>,
    /// Protection domains.
    pub pds: Slab<Pd>,
    /// Parent domains.
    pub parents: Vec<Parent>,
    /// Memory regions and windows.
    pub mrs: Mrs,
    /// Completion channels.
    pub channels: Slab<Channel>,
    /// Shared receive queues.
    pub srqs: Slab<Srq>,
    /// Processes that we send to.
    pub peers: Peers,
    /// Queue pairs that have gone to the error state and have not been flushed, by index; empty when the lock is free.
    pub ending: Vec<usize>,
    /// Places of destroyed receive queues, that an initiator may just be looking at.
    pub retired: Vec<(Instant, Extent)>,
    /// Domains, and what belongs to them.
    pub xrc: Xrc,
    /// Multicast groups that our queue pairs listen to.
    pub groups: Groups,
    /// When the last look was over at what waits, if something does; and whether the program was elsewhere between that and the present one.
    pub looked: Option<Instant>,
    pub was_elsewhere: bool,
    /// Messages that the last look has left in their rings.
    pub left: Left,
}

/// Long messages that are left in their rings for the poll of their own completion queue, which gives them to the program where they lie.
#[derive(Debug)]
pub struct Left {
    /// The ring of the next one, and its completion queue.
    pub next: Option<(usize, usize)>,
    /// Looks since one of them has been taken.
    pub looks: u32,
    /// The least length of a message that is left.
    pub from: u32,
}

impl Default for Left {
    fn default() -> Left {
        Left { next: None, looks: 0, from: u32::MAX }
    }
}

impl World {
    /// Nothing keeps sends from going straight out.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.faults.is_none() && self.ports.are_up()
    }

    /// Whether the ports are iWARP ones.
    pub fn is_iwarp(&self) -> bool {
        self.ports.iwarp
    }

    /// A poll has found a completion that waits; whether it may do without a look at the rings.
    #[inline]
    pub fn may_pass_by(&mut self) -> bool {
        self.unlooked += 1;
        self.unlooked <= UNLOOKED
    }

    /// The device that a context is of.
    pub fn device(&self, context: usize) -> usize {
        self.contexts.get(context).map_or(0, |context| context.device)
    }

    /// No request waits for anything, and no answer for room.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.busy.is_empty() && self.doomed.is_empty() && self.replies.is_empty()
    }

    /// Says what faults there were, if the plan wants it said.
    pub fn report_faults(&self) {
        if let Some(faults) = &self.faults {
            faults.report();
        }
    }

    /// Adds a completion to a queue and fires its channel if it is armed for it.
    pub fn complete(&mut self, key: usize, cqe: Cqe, solicited: bool) {
        let wakes = solicited || cqe.wc.status != IBV_WC_SUCCESS;
        self.complete_with(key, cqe.wc.qp_num, wakes, |slot| *slot = cqe);
    }

    /// The same for a completion of QP `qpn` that `fill` writes where it will lie. `solicited`: it fires a CQ that is armed for
    /// such.
    #[inline(always)]
    pub fn complete_with(&mut self, key: usize, qpn: u32, solicited: bool, fill: impl FnOnce(&mut Cqe)) {
        let Some(cq) = self.cqs.get_mut(key) else { return };
        if !cq.push_with(fill) {
            return self.overrun(key, qpn);
        }
        if cq.watchful {
            self.attend(key, solicited);
        }
    }

    /// Completes a receive that got no message, in queue `cq`, with `num` for a queue pair.
    pub fn complete_receive_error(&mut self, (cq, num): (usize, u32), wr_id: u64, status: u32) {
        let wc = ibv_wc { wr_id, status, opcode: IBV_WC_RECV, qp_num: num, ..Default::default() };
        self.complete(cq, Cqe { wc, retire: None }, true);
    }

    /// The rest for a queue that is armed, or keeps times.
    #[cold]
    fn attend(&mut self, key: usize, solicited: bool) {
        if self.cqs[key].attend(solicited) {
            self.fire(key);
        }
    }

    /// Arms a queue for its next completion, or fires it for one that waits and that the program may not know of ([`Cq::arm`]).
    pub fn arm(&mut self, key: usize, armed: Armed) -> Result<(), Errno> {
        if self.cqs.get_mut(key).ok_or(Errno::INVAL)?.arm(armed) {
            self.fire(key);
        }
        Ok(())
    }

    fn fire(&mut self, key: usize) {
        let cq = &self.cqs[key];
        if let Some(channel) = cq.channel.and_then(|channel| self.channels.get_mut(channel)) {
            channel.fire(key);
            self.hurried = true;
        }
    }

    #[cold]
    fn overrun(&mut self, key: usize, qpn: u32) {
        self.stats.cq_overruns += 1;
        self.doomed.push(qpn);
        let cq = &mut self.cqs[key];
        let first = !std::mem::replace(&mut cq.overrun, true);
        let context = cq.context;
        if first {
            log::error!("cq {key} overran: {} completions were waiting, the next one is lost", cq.len());
            self.async_event(context, IBV_EVENT_CQ_ERR, Subject::Cq(key));
        }
    }

    /// Queues an asynchronous event for a context's program (ibv_get_async_event(3)).
    #[cold]
    pub fn async_event(&mut self, context: usize, kind: u32, subject: Subject) {
        if let Some(context) = self.contexts.get_mut(context) {
            context.post(Event { kind, subject });
        }
    }
}
