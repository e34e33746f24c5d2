//! Queue pairs: what they hold, and the moves that take all of it along (flush, error, reset).

use super::CBox;
use super::cq::Cqe;
use super::events::Subject;
use super::extended::QpEx;
use super::peer::Link;
use super::recvq::{RecvQ, Taken};
use crate::engine::world::World;
use crate::faults::sends::Held;
use crate::iwarp::Stream;
use crate::send::{Queued, Work};
use crate::shm::cell::{Head, destination, flag, op};
use crate::shm::layout::{QP_BITS, QPS};
use crate::shm::qptable::{self, Public};
use crate::xrc::send::SendLink;
use rdma_sys::*;
use std::collections::VecDeque;

/// A message of several fragments on its way in.
#[derive(Debug)]
pub struct Inbound {
    pub taken: Taken,
    pub received: u32,
}

/// What a cell says that brings a whole SEND of the plain kind: its sender, and the queue pair that
/// it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usual {
    /// The process of the sender; 0: none, and no message is of this kind.
    pub incarnation: u64,
    pub src_qpn: u32,
    /// Operation, flags, index and generation of the receiver ([`Head::meaning`]).
    pub meaning: u32,
    /// The completion queue that its completion goes to.
    pub cq: usize,
}

/// A queue pair.
pub struct Qp {
    pub c: CBox<QpEx>,
    pub context: usize,
    pub index: usize,
    pub num: u32,
    pub kind: u32,
    pub state: u32,
    /// In RTS, and nothing keeps its sends from going straight out: no plan of faults, the port is up, an iWARP stream is open.
    pub direct: bool,
    /// The same, and reliable: short sends take the shortcut.
    pub short: bool,
    /// The messages that need no more questions: those of the connected peer, once connections are established on both sides.
    pub usual: Usual,
    pub pd: usize,
    pub send_cq: usize,
    pub recv_cq: usize,
    pub srq: Option<usize>,
    pub cap: ibv_qp_cap,
    pub sig_all: bool,
    /// What modify_qp has set, for query_qp and for the machine.
    pub attr: ibv_qp_attr,
    pub generation: u32,
    pub link: Option<Link>,
    pub rq: Option<RecvQ>,
    pub inbound: Option<Inbound>,
    /// Sends that could not go out at once, in order.
    pub sq: VecDeque<Queued>,
    /// Send requests posted, and those whose completion has been polled (or covered by a polled one).
    pub sq_posted: u32,
    pub sq_retired: u32,
    pub busy: bool,
    /// An RDMA WRITE through the ring that was refused, for this reason, and is not over yet (unreliable QPs).
    pub refused: Option<(u32, u32)>,
    pub established: bool,
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

/// A queue pair that is in the error state and has not been flushed: what was acknowledged before is taken in first (`engine::ending`).
#[derive(Debug)]
pub struct Ending {
    /// The send request whose failure is the cause, with its status.
    failed: Option<(Work, u32)>,
    /// It was open, and no receive has failed since: acknowledged messages complete with success.
    pub takes: bool,
}

impl std::fmt::Debug for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Qp({:#x}, type {}, state {})", self.num, self.kind, self.state)
    }
}

impl std::fmt::Debug for Queued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queued(wr_id {:#x})", self.work.wr_id)
    }
}

/// All queue pairs of the process, by index.
#[derive(Debug)]
pub struct Qps {
    table: Vec<Option<Box<Qp>>>,
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
            table: vec![None, None],
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
        self.table.push(None);
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
        self.table[index] = Some(qp);
    }

    /// Takes a queue pair out; its index rests before it is used again.
    pub fn remove(&mut self, index: usize) -> Option<Box<Qp>> {
        let qp = self.table.get_mut(index)?.take()?;
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
        self.table.get_mut(index)?.as_deref_mut()
    }

    /// All queue pairs.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.table.iter_mut().filter_map(|qp| qp.as_deref_mut())
    }
}

/// The QPN of QP `index` in `slot`.
pub fn number(slot: usize, index: usize) -> u32 {
    (slot as u32) << QP_BITS | index as u32
}

impl Qp {
    /// What programs know it by.
    pub fn pointer(&self) -> *mut ibv_qp {
        self.c.as_ptr().cast()
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
            state: if w.ports.up { self.state } else { IBV_QPS_RESET },
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
    pub fn set_state(&mut self, state: u32, w: &World) {
        self.state = state;
        self.direct = state == IBV_QPS_RTS && w.is_plain() && self.stream == Stream::Free;
        self.short = self.direct && self.kind == IBV_QPT_RC;
        self.usual = self.usual_messages();
        // SAFETY: our own C struct, alive as long as self; programs only read `state`.
        unsafe { (*self.pointer()).state = state };
        self.publish(w);
    }

    /// The messages that come to a connected queue pair all the time; none while it takes none,
    /// when their arrival changes its state, or when it shares its receives.
    fn usual_messages(&self) -> Usual {
        let (Some(link), Some(_)) = (&self.link, &self.rq) else { return Usual::default() };
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

    /// Moves to the error state, for something that the peer has sent: what came before it has been delivered, so everything that
    /// is outstanding is flushed at once. For other causes there is [`Self::begin_end`].
    #[cold]
    pub fn fail(&mut self, w: &mut World) {
        if let Some(ending) = self.ending.as_mut() {
            ending.takes = false;
        }
        if self.state != IBV_QPS_ERR && self.state != IBV_QPS_RESET {
            self.set_state(IBV_QPS_ERR, w);
            self.flush(w);
        }
    }

    /// Moves to the error state, because of the send request that has `failed` if it says so. The flush follows when what was
    /// acknowledged before has been taken in: `State::settle`, which is called before the engine's lock is given back.
    #[cold]
    pub fn begin_end(&mut self, w: &mut World, failed: Option<(Work, u32)>) {
        if self.state == IBV_QPS_ERR || self.state == IBV_QPS_RESET {
            if let Some((work, status)) = failed {
                self.complete_send(w, &work, status);
            }
            return;
        }
        let takes = super::qp_state::is_receiving(self.state);
        self.set_state(IBV_QPS_ERR, w);
        self.ending = Some(Box::new(Ending { failed, takes }));
        w.ending.push(self.index);
    }

    /// Completes what [`Self::begin_end`] has left.
    #[cold]
    pub fn end(&mut self, w: &mut World) {
        let Some(ending) = self.ending.take() else { return };
        if let Some((work, status)) = ending.failed {
            self.complete_send(w, &work, status);
        }
        self.flush(w);
    }

    /// Whether it takes a message in that was acknowledged before it went to the error state. Requests that are still to be answered
    /// have not been.
    #[cold]
    pub fn takes_in(&self, head: &Head) -> bool {
        let acknowledged =
            [op::SEND, op::SEND_INV, op::WRITE_IMM, op::DATAGRAM, op::TOO_LONG, op::BAD_RECEIVE];
        let takes = self.ending.as_ref().is_some_and(|ending| ending.takes);
        takes && (acknowledged.contains(&head.op) || head.op == op::RESPONSE)
    }

    /// Completes everything that is outstanding, each request once.
    fn flush(&mut self, w: &mut World) {
        self.flush_sends(w);
        self.flush_receives(w);
        if self.srq.is_some() {
            w.async_event(self.context, IBV_EVENT_QP_LAST_WQE_REACHED, Subject::Qp(self.index));
        }
    }

    /// The end of a QP whose peer asked for what it may not, with the event for it: `status` is what the peer gets (IBTA
    /// 11.6.3.3). An unreliable one drops such requests and lives on.
    #[cold]
    pub fn refuse(&mut self, w: &mut World, status: u32) {
        if self.kind == IBV_QPT_UC || !super::qp_state::is_receiving(self.state) {
            return;
        }
        let invalid = status == IBV_WC_REM_INV_REQ_ERR;
        let kind = if invalid { IBV_EVENT_QP_REQ_ERR } else { IBV_EVENT_QP_ACCESS_ERR };
        w.async_event(self.context, kind, Subject::Qp(self.index));
        self.fail(w);
    }

    /// Completes all waiting sends with WR_FLUSH_ERR.
    pub fn flush_sends(&mut self, w: &mut World) {
        while let Some(queued) = self.sq.pop_front() {
            self.complete_send(w, &queued.work, IBV_WC_WR_FLUSH_ERR);
        }
    }

    fn flush_receives(&mut self, w: &mut World) {
        if let Some(inbound) = self.inbound.take() {
            self.complete_flushed(w, inbound.taken.wr_id);
        }
        for taken in self.rq.as_mut().map(RecvQ::take_all).unwrap_or_default() {
            self.complete_flushed(w, taken.wr_id);
        }
    }

    /// Completes a receive with WR_FLUSH_ERR.
    pub fn complete_flushed(&mut self, w: &mut World, wr_id: u64) {
        self.complete_receive_error(w, wr_id, IBV_WC_WR_FLUSH_ERR);
    }

    /// Completes a receive that got no message.
    pub fn complete_receive_error(&mut self, w: &mut World, wr_id: u64, status: u32) {
        let wc = ibv_wc { wr_id, status, opcode: IBV_WC_RECV, qp_num: self.num, ..Default::default() };
        w.complete(self.recv_cq, Cqe { wc, retire: None }, true);
    }

    /// Reports the end of a send request: always if it failed, else if it asked for it.
    #[inline]
    pub fn complete_send(&mut self, w: &mut World, work: &Work, status: u32) {
        if status == IBV_WC_SUCCESS && !work.signalled {
            return;
        }
        let opcode = match work.opcode {
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => IBV_WC_RDMA_WRITE,
            IBV_WR_RDMA_READ => IBV_WC_RDMA_READ,
            IBV_WR_ATOMIC_CMP_AND_SWP => IBV_WC_COMP_SWAP,
            IBV_WR_ATOMIC_FETCH_AND_ADD => IBV_WC_FETCH_ADD,
            IBV_WR_ATOMIC_WRITE => IBV_WC_ATOMIC_WRITE,
            IBV_WR_BIND_MW => IBV_WC_BIND_MW,
            IBV_WR_LOCAL_INV => IBV_WC_LOCAL_INV,
            _ => IBV_WC_SEND,
        };
        let wc = ibv_wc {
            wr_id: work.wr_id,
            status,
            opcode,
            byte_len: work.len,
            qp_num: self.num,
            ..Default::default()
        };
        self.complete_wc(w, wc, work.number);
    }

    /// Completes the send request that was the `number`-th to be posted.
    #[inline]
    pub fn complete_wc(&self, w: &mut World, wc: ibv_wc, number: u32) {
        let retire = Some((self.index as u16, self.generation, number));
        w.complete(self.send_cq, Cqe { wc, retire }, false);
    }

    /// Forgets everything and becomes a new QP with the same number.
    pub fn reset(&mut self, w: &mut World) {
        self.generation = self.generation.wrapping_add(1);
        self.sq.clear();
        (self.inbound, self.held, self.stream) = (None, None, Stream::Free);
        (self.link, self.ending) = (None, None);
        self.xrc = None;
        self.established = false;
        (self.sq_posted, self.sq_retired) = (0, 0);
        (self.attr, self.port) = (ibv_qp_attr::default(), 0);
        self.set_state(IBV_QPS_RESET, w);
        if let Some(rq) = self.rq.as_mut() {
            rq.reset();
        }
        for cq in [self.send_cq, self.recv_cq] {
            if let Some(cq) = w.cqs.get_mut(cq) {
                cq.forget(self.num);
            }
        }
    }
}
