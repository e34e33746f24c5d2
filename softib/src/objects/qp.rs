//! Queue pairs: what they hold, and what their peers see of it. How they end is `datapath::ends`.

use super::extended::QpC;
use super::fillers;
use super::peer::Link;
use super::qp_state::is_receiving;
use super::recvq::{Partial, RecvQ};
use super::table::Table;
use super::work::{Held, Queued, Wait, Work};
use super::world::World;
use super::xrc_link::SendLink;
use crate::shm::cell::{Head, destination, flag, op};
use crate::shm::layout::{QP_BITS, QPS};
use crate::shm::qptable::{self, Public};
use rdma_sys::*;
use std::collections::VecDeque;

/// What a cell says that brings a whole SEND of the plain kind: its sender, and the queue pair that
/// it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usual {
    /// The process of the sender; 0: none, and no message is of this kind.
    pub incarnation: u64,
    /// The sender's queue pair.
    pub src_qpn: u32,
    /// Operation, flags, index and generation of the receiver ([`Head::meaning`]).
    pub meaning: u32,
    /// The completion queue that its completion goes to.
    pub cq: usize,
}

/// Where a queue pair stands with the order of first messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stream {
    /// Either side may send; on InfiniBand and RoCE always.
    #[default]
    Free,
    /// We have to send first.
    Opens,
    /// The peer has to send first.
    Waits,
}

/// A queue pair.
#[repr(C, align(64))] // in this order: what each message touches comes first
pub struct Qp {
    /// In RTS, and nothing keeps its sends from going straight out: no plan of faults, the port is up, an iWARP stream is open.
    pub direct: bool,
    /// The same, and reliable: short sends take the shortcut.
    pub short: bool,
    /// The same, and short writes that are no requests may stand in for these.
    pub writes: bool,
    /// Every send is signalled.
    pub sig_all: bool,
    /// Sends that could not go out at once, in order.
    pub sq: VecDeque<Queued>,
    /// The other side, while it is connected.
    pub link: Option<Link>,
    /// Send requests posted, and those whose completion has been polled (or covered by a polled one).
    pub sq_posted: u32,
    pub sq_retired: u32,
    /// What programs know it by.
    pub c: QpC,
    /// Index of its context.
    pub context: usize,
    /// Its row in the QP table.
    pub index: usize,
    /// Its QPN.
    pub num: u32,
    /// `ibv_qp_type`.
    pub kind: u32,
    /// `ibv_qp_state`.
    pub state: u32,
    /// The messages that need no more questions: those of the connected peer, once connections are established on both sides.
    pub usual: Usual,
    /// Index of its protection domain.
    pub pd: usize,
    /// Index of the completion queue of its sends.
    pub send_cq: usize,
    /// Index of the completion queue of its receives.
    pub recv_cq: usize,
    /// Index of its SRQ, if it receives through one.
    pub srq: Option<usize>,
    /// Its capabilities, as granted.
    pub cap: ibv_qp_cap,
    /// What modify_qp has set, for query_qp and for the machine.
    pub attr: ibv_qp_attr,
    /// Rises with every reset ([`Public::generation`]).
    pub generation: u32,
    /// Its receive queue, unless it has an SRQ or receives nothing.
    pub rq: Option<RecvQ>,
    /// A message of several fragments on its way in.
    pub inbound: Option<Partial>,
    /// How many requests behind the first one have gone out (`initiator::ahead`).
    pub ahead: usize,
    /// It is in [`World::busy`](super::world::World::busy).
    pub busy: bool,
    /// An RDMA WRITE through the ring that was refused, for this reason, and is not over yet (unreliable QPs).
    pub refused: Option<(u32, u32)>,
    /// Of the RDMA WRITEs that we are given one has not been placed, so those behind it are not, either, up to one that has none before it.
    pub refuses_gifts: bool,
    /// READs and WRITEs that its peer has asked us for, or given us.
    pub heard: u32,
    /// COMM_EST has been raised.
    pub established: bool,
    /// Asynchronous events of it that the program has been given.
    pub async_events: u32,
    /// A datagram that the plan of faults holds back.
    pub held: Option<Box<Held>>,
    /// Who has to send first.
    pub stream: Stream,
    /// An XRC send queue pair's way to its receive queue pair.
    pub xrc: Option<Box<SendLink>>,
    /// Which of the process' ports it is bound to, from INIT on.
    pub port: u8,
    /// It is on its way to the error state.
    pub ending: Option<Box<Ending>>,
}

const _: () = assert!(std::mem::offset_of!(Qp, link) == 64, "whether it may write; then, where to");

/// A queue pair that is in the error state and has not been flushed: what was acknowledged before is taken in first (`engine::ending`).
#[derive(Debug)]
pub struct Ending {
    /// The send request whose failure is the cause, with its status.
    pub failed: Option<(Work, u32)>,
    /// It was open, and no receive has failed since: acknowledged messages complete with success.
    pub takes: bool,
}

impl std::fmt::Debug for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Qp({:#x}, type {}, state {})", self.num, self.kind, self.state)
    }
}

/// All queue pairs of the process, by index.
#[derive(Debug)]
#[repr(C)] // in this order
pub struct Qps {
    table: Table<Qp>,
    generations: Vec<u32>,
    /// The SRQ that the QP of an index has, or had: messages for it may still be under way.
    shared: Vec<Option<usize>>,
    free: VecDeque<usize>,
}

/// Freed indices rest until so many others have been freed, so that a QPN is not reused at once.
const RESTING: usize = 64;

impl Qps {
    /// No queue pair yet.
    pub fn new() -> Qps {
        // QP numbers 0 and 1 are special in InfiniBand; their indices stay empty in every slot.
        Qps {
            table: Table::of_empty(2),
            generations: vec![0, 0],
            shared: vec![None, None],
            free: VecDeque::new(),
        }
    }

    /// An index for a new QP, and its generation. Give it back with [`Self::release`] if it is not used.
    pub fn reserve(&mut self) -> Option<(usize, u32)> {
        let fresh = self.table.len() < QPS;
        let index = if fresh && self.free.len() <= RESTING { self.grow() } else { self.free.pop_front()? };
        self.generations[index] = self.generations[index].wrapping_add(1);
        Some((index, self.generations[index]))
    }

    fn grow(&mut self) -> usize {
        self.table.grow();
        self.generations.push(0);
        self.shared.push(None);
        self.table.len() - 1
    }

    /// Takes an index back that was reserved and not used.
    pub fn release(&mut self, index: usize) {
        self.free.push_back(index);
    }

    /// Enters a queue pair under its index.
    pub fn insert(&mut self, qp: Box<Qp>) {
        let index = qp.index;
        self.shared[index] = qp.srq;
        self.table.insert(index, qp);
    }

    /// Takes a queue pair out; its index rests before it is used again.
    pub fn remove(&mut self, index: usize) -> Option<Box<Qp>> {
        let qp = self.table.take(index)?;
        self.generations[index] = qp.generation;
        self.free.push_back(index);
        Some(qp)
    }

    /// Notes that a reserved index is that of an XRC SRQ.
    pub fn lend(&mut self, index: usize, srq: usize) {
        self.shared[index] = Some(srq);
    }

    /// The SRQ of the QP that has, or had last, this index.
    pub fn shared_queue(&self, index: usize) -> Option<usize> {
        *self.shared.get(index)?
    }

    /// Forgets an SRQ that goes away.
    pub fn forget_srq(&mut self, srq: usize) {
        for known in self.shared.iter_mut().filter(|known| **known == Some(srq)) {
            *known = None;
        }
    }

    /// The queue pair of an index.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Qp> {
        self.table.get_mut(index)
    }

    /// The same, which is most often the one that was asked for in this way last.
    #[inline(always)]
    pub fn get_again(&mut self, index: usize) -> Option<&mut Qp> {
        self.table.get_again(index)
    }

    /// A completion has been polled: the send queue that it frees, up to where ([`Cqe`](super::cq::Cqe)).
    #[inline]
    pub fn retire(&mut self, retire: Option<(u16, u32, u32)>) {
        if let Some((index, generation, upto)) = retire
            && let Some(qp) = self.get_mut(index as usize)
            && qp.generation == generation
        {
            qp.sq_retired = upto;
        }
    }

    /// All queue pairs.
    pub fn iter(&self) -> impl Iterator<Item = &Qp> {
        self.table.iter()
    }

    /// All queue pairs, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.table.iter_mut()
    }
}

/// The QPN of QP `index` in `slot`.
pub fn number(slot: usize, index: usize) -> u32 {
    (slot as u32) << QP_BITS | index as u32
}

impl Qp {
    /// A cell is from the connected queue pair, and nothing is unusual about ours.
    #[inline(always)]
    pub fn is_usually_from(&self, head: &Head, incarnation: u64) -> bool {
        let meaning = Head::meaning(op::SEND, flag::FIRST | flag::LAST, head.dst);
        self.short && self.usual == Usual { incarnation, src_qpn: head.src_qpn, meaning, cq: self.usual.cq }
    }

    /// Takes the first request out of the send queue, which is over.
    #[inline(always)] // it is not moved for those that only drop it
    pub fn pop_head(&mut self) -> Option<Queued> {
        self.ahead = self.ahead.saturating_sub(1);
        self.sq.pop_front()
    }

    /// No request that has gone out behind another one is waited for any more: the peer owes an answer to each.
    #[cold]
    pub fn recall(&mut self) {
        let mut owed = 0;
        for queued in self.sq.iter_mut().filter(|queued| queued.wait == Wait::Asked) {
            (queued.work.late, queued.work.recalled, queued.wait) = (true, true, Wait::Turn);
            owed += 1;
        }
        self.ahead = 0;
        self.link.iter_mut().for_each(|link| link.owed += owed);
    }

    /// The link that a request has just gone through.
    #[inline]
    pub fn last_link(&mut self) -> Option<&mut Link> {
        match self.link.as_mut() {
            None => self.xrc.as_mut()?.last(),
            link => link,
        }
    }

    /// What programs know it by.
    pub fn pointer(&self) -> *mut ibv_qp {
        self.c.pointer()
    }

    /// What its peer may ask for. READ and atomics need resources here, too (max_dest_rd_atomic; IBTA 9.4.4): without any there
    /// is no such request to a queue pair.
    pub fn offers(&self) -> u32 {
        let serves = self.attr.max_dest_rd_atomic > 0;
        let answered = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        self.attr.qp_access_flags & if serves { u32::MAX } else { !answered }
    }

    /// Tells peers what this QP is now.
    pub fn publish(&self, w: &World) {
        let queue = match self.srq {
            Some(srq) => w.srqs.get(srq).map(|srq| &srq.queue),
            None => self.rq.as_ref(),
        };
        let public = Public {
            // Peers reach no queue pair through a port that is down.
            state: if w.ports.is_up(self.port) { self.state } else { IBV_QPS_RESET },
            kind: self.kind,
            generation: self.generation,
            dest_qpn: self.attr.dest_qp_num,
            dest_incarnation: match (&self.link, &self.xrc) {
                (Some(link), _) => link.incarnation,
                (None, Some(xrc)) => xrc.incarnation(),
                (None, None) => 0,
            },
            qkey: self.attr.qkey,
            access: self.offers(),
            pd: self.pd as u32,
            rq_offset: queue.map_or(0, |queue| queue.place.offset as u64),
            rq_size: queue.map_or(0, |queue| queue.place.size),
            rq_shared: queue.is_some_and(|queue| queue.shared),
            min_rnr_timer: self.attr.min_rnr_timer.into(),
            pkey: if self.state == IBV_QPS_RESET { 0 } else { w.ports.pkey(self.attr.pkey_index).into() },
            port: self.port,
            dest_port: match (&self.link, &self.xrc) {
                (Some(link), _) => link.theirs,
                (None, Some(xrc)) => xrc.theirs(),
                (None, None) => 0,
            },
        };
        qptable::publish(&w.segment.map, self.index, &public);
    }

    /// Takes a state on, and tells the program's struct and the peers.
    pub fn set_state(&mut self, state: u32, w: &mut World) {
        let closes = is_receiving(self.state) && !is_receiving(state);
        self.state = state;
        self.direct = state == IBV_QPS_RTS && w.is_plain() && self.stream == Stream::Free;
        self.short = self.direct && self.kind == IBV_QPT_RC;
        self.writes = self.short && !w.asks_at_requests;
        self.usual = self.usual_messages();
        // SAFETY: our own C struct, alive as long as self; programs only read `state`.
        unsafe { (*self.pointer()).state = state };
        self.publish(w);
        if closes {
            fillers::wait(&w.segment.map, &mut w.peers, (self.index, self.generation));
        }
    }

    /// The messages that come to a connected queue pair all the time; none while it takes none, or when their arrival changes its state.
    fn usual_messages(&self) -> Usual {
        let Some(link) = &self.link else { return Usual::default() };
        let usual = matches!(self.kind, IBV_QPT_RC | IBV_QPT_UC)
            && matches!(self.state, IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE);
        if !usual {
            return Usual::default();
        }
        let dst = destination(self.index, self.generation);
        Usual {
            incarnation: link.incarnation,
            src_qpn: self.attr.dest_qp_num,
            meaning: Head::meaning(op::SEND, flag::FIRST | flag::LAST, dst),
            cq: self.recv_cq,
        }
    }

    /// Whether it takes a message in that was acknowledged before it went to the error state. Requests that are still to be answered
    /// have not been.
    #[cold]
    pub fn takes_in(&self, head: &Head) -> bool {
        let acknowledged =
            [op::SEND, op::SEND_INV, op::WRITE_IMM, op::FILLED, op::DATAGRAM, op::TOO_LONG, op::BAD_RECEIVE];
        let takes = self.ending.as_ref().is_some_and(|ending| ending.takes);
        takes && (acknowledged.contains(&head.op) || head.op == op::RESPONSE)
    }
}
