//! What messages come for: a queue pair of ours, or an SRQ of ours through a receive queue pair of a domain (XRC).

use super::events;
use crate::objects::arrival::Arrival;
use crate::objects::events::Subject;
use crate::objects::qp::Qp;
use crate::objects::recvq::{Partial, RecvQ};
use crate::objects::srq::Srq;
use crate::objects::world::World;
use crate::objects::xrc::Flow;
use rdma_sys::*;
use slab::Slab;
use std::collections::HashMap;

/// What sets receivers apart.
pub trait Receiver {
    /// The SRQ that it takes its receives from, if it does.
    fn srq(&self) -> Option<usize>;
    /// The queue that it takes its receives from.
    fn queue<'a>(&'a mut self, srqs: &'a mut Slab<Srq>) -> Option<&'a mut RecvQ>;
    /// The protection domain of its buffers.
    fn pd(&self) -> usize;
    /// The completion queue of its receives, and the queue pair that they name.
    fn completes(&self) -> (usize, u32);
    /// Whether a message of several fragments may begin now.
    fn is_free(&mut self, w: &mut World) -> bool;
    /// Takes out what has come of a message of several fragments.
    fn take_part(&mut self, w: &mut World) -> Option<Partial>;
    /// Keeps that until the next fragment comes.
    fn keep_part(&mut self, w: &mut World, part: Partial);
    /// Its queue pair ends: a receive of its has completed with `status`.
    fn fail_after(&mut self, w: &mut World, status: u32);
    /// The sender says what can't be: its queue pair or this one is out of step. This one ends; the sender will hear.
    fn nonsense(&mut self, w: &mut World);
}

impl Receiver for Qp {
    #[inline(always)]
    fn srq(&self) -> Option<usize> {
        self.srq
    }

    #[inline(always)]
    fn queue<'a>(&'a mut self, srqs: &'a mut Slab<Srq>) -> Option<&'a mut RecvQ> {
        match self.srq {
            Some(key) => srqs.get_mut(key).map(|srq| &mut srq.queue),
            None => self.rq.as_mut(),
        }
    }

    #[inline(always)]
    fn pd(&self) -> usize {
        self.pd
    }

    #[inline(always)]
    fn completes(&self) -> (usize, u32) {
        (self.recv_cq, self.num)
    }

    /// Only one can be under way on a connected queue pair.
    fn is_free(&mut self, _: &mut World) -> bool {
        self.inbound.is_none()
    }

    fn take_part(&mut self, _: &mut World) -> Option<Partial> {
        self.inbound.take()
    }

    fn keep_part(&mut self, _: &mut World, part: Partial) {
        self.inbound = Some(part);
    }

    #[cold]
    fn fail_after(&mut self, w: &mut World, _: u32) {
        self.fail(w);
    }

    /// A datagram may come from any process: it is ignored.
    #[cold]
    fn nonsense(&mut self, w: &mut World) {
        if self.kind == IBV_QPT_UD {
            w.stats.stray += 1;
            return;
        }
        log::warn!("qp {:#x}: a message from qp {:#x} makes no sense here", self.num, self.attr.dest_qp_num);
        w.async_event(self.context, IBV_EVENT_QP_FATAL, Subject::Qp(self.index));
        self.fail(w);
    }
}

impl Receiver for Arrival {
    fn srq(&self) -> Option<usize> {
        Some(self.srq)
    }

    fn queue<'a>(&'a mut self, srqs: &'a mut Slab<Srq>) -> Option<&'a mut RecvQ> {
        srqs.get_mut(self.srq).map(|srq| &mut srq.queue)
    }

    fn pd(&self) -> usize {
        self.pd
    }

    fn completes(&self) -> (usize, u32) {
        (self.cq, self.via.qpn)
    }

    /// Each sender can have one under way. The receive of one that it left unfinished is posted again.
    fn is_free(&mut self, w: &mut World) -> bool {
        if let Some(part) = self.take_part(w)
            && let Some(queue) = self.queue(&mut w.srqs)
        {
            queue.repost(part.taken);
        }
        true
    }

    fn take_part(&mut self, w: &mut World) -> Option<Partial> {
        flows(w, self.srq)?.remove(&self.sender).map(|flow| flow.part)
    }

    fn keep_part(&mut self, w: &mut World, part: Partial) {
        let through = (self.index, self.via.generation);
        if let Some(flows) = flows(w, self.srq) {
            flows.insert(self.sender, Flow { part, seen: 0, through });
        }
    }

    #[cold]
    fn fail_after(&mut self, w: &mut World, status: u32) {
        let event = if status == IBV_WC_LOC_LEN_ERR { IBV_EVENT_QP_REQ_ERR } else { IBV_EVENT_QP_FATAL };
        events::fail(w, &self.domain, self.index, Some(self.via.generation), event);
    }

    #[cold]
    fn nonsense(&mut self, w: &mut World) {
        log::warn!("xrc qp {:#x}: a message from qp {:#x} makes no sense here", self.via.qpn, self.sender.1);
        events::fail(w, &self.domain, self.index, Some(self.via.generation), IBV_EVENT_QP_FATAL);
    }
}

fn flows(w: &mut World, srq: usize) -> Option<&mut HashMap<(u64, u32), Flow>> {
    w.srqs.get_mut(srq)?.xrc.as_mut().map(|xrc| &mut xrc.flows)
}
