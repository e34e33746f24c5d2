//! The ends of requests and of queue pairs: completions, and the moves that take along all that is outstanding (error, flush, reset).

use crate::datapath::pieces::is_whole;
use crate::objects::cq::Cqe;
use crate::objects::events::Subject;
use crate::objects::peers::Absent;
use crate::objects::qp::{Ending, Qp, Stream};
use crate::objects::qp_state::is_receiving;
use crate::objects::recvq::RecvQ;
use crate::objects::work::Work;
use crate::objects::world::World;
use rdma_sys::*;

/// The `ibv_wc_opcode` of a request's completion.
#[inline]
pub fn code_of(opcode: u32) -> u32 {
    match opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => IBV_WC_RDMA_WRITE,
        IBV_WR_RDMA_READ => IBV_WC_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP => IBV_WC_COMP_SWAP,
        IBV_WR_ATOMIC_FETCH_AND_ADD => IBV_WC_FETCH_ADD,
        IBV_WR_ATOMIC_WRITE => IBV_WC_ATOMIC_WRITE,
        IBV_WR_BIND_MW => IBV_WC_BIND_MW,
        IBV_WR_LOCAL_INV => IBV_WC_LOCAL_INV,
        _ => IBV_WC_SEND,
    }
}

impl Qp {
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
        let takes = is_receiving(self.state);
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
        if self.kind == IBV_QPT_UC || !is_receiving(self.state) {
            return;
        }
        let invalid = status == IBV_WC_REM_INV_REQ_ERR;
        let kind = if invalid { IBV_EVENT_QP_REQ_ERR } else { IBV_EVENT_QP_ACCESS_ERR };
        w.async_event(self.context, kind, Subject::Qp(self.index));
        self.fail(w);
    }

    /// Completes all waiting sends with WR_FLUSH_ERR.
    pub fn flush_sends(&mut self, w: &mut World) {
        self.end_gifts(w);
        self.ahead = 0;
        while let Some(queued) = self.sq.pop_front() {
            self.complete_send(w, &queued.work, IBV_WC_WR_FLUSH_ERR);
        }
    }

    /// WRITEs whose data is being given to the peer go on without us, or not at all: others of our process may give.
    fn end_gifts(&self, w: &mut World) {
        let Some(peer) = self.link.as_ref().and_then(|link| w.peers.attached(link.slot)) else { return };
        for queued in self.sq.iter().filter(|queued| queued.work.is_given()) {
            peer.ring.give_is_over(is_whole(queued.work.len));
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
        w.complete_receive_error((self.recv_cq, self.num), wr_id, status);
    }

    /// Reports the end of a send request: always if it failed, else if it asked for it.
    #[inline]
    pub fn complete_send(&mut self, w: &mut World, work: &Work, status: u32) {
        if status == IBV_WC_SUCCESS && !work.signalled {
            return;
        }
        let wc = ibv_wc {
            wr_id: work.wr_id,
            status,
            opcode: code_of(work.opcode),
            vendor_err: if status == IBV_WC_RETRY_EXC_ERR { self.why_silent(w) } else { 0 },
            byte_len: work.len,
            qp_num: self.num,
            ..Default::default()
        };
        self.complete_wc(w, wc, work.number);
    }

    /// What is known of a peer that does not answer.
    #[cold]
    fn why_silent(&self, w: &mut World) -> u32 {
        let connected = self.link.as_ref().map(|link| w.peers.connected(link));
        if matches!(connected, Some(Err(Absent::Gone))) { VENDOR_ERR_PEER_HAS_ENDED } else { 0 }
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
        self.end_gifts(w);
        self.sq.clear();
        self.ahead = 0;
        (self.inbound, self.held, self.stream) = (None, None, Stream::Free);
        (self.refused, self.refuses_gifts) = (None, false);
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
