//! The credits of per-peer queues in motion: the first receives, reposting what was consumed, telling the peer, and
//! control messages.
//!
//! The rules are in `protocol::credits`; here they meet buffers and queue pairs.
#![forbid(unsafe_code)]

use super::Rx;
use super::slots::LIST;
use crate::protocol::credits::{Grant, Window};
use crate::protocol::layout::Queue;
use crate::protocol::wire::{Arrived, HEADER_LEN, Header, Kind as MessageKind};
use crate::transport::Transport;
use crate::transport::channel::Channel;
use crate::transport::endpoint::Endpoint;
use crate::transport::endpoint::lane::Lane;
use verbs::{Lent, Qp, RecvList};

impl Rx {
    /// Fills a per-peer queue of the endpoint at position `index`: its connection has just come up.
    ///
    /// # Errors
    /// Memory is short, or the device has refused a receive.
    pub fn post_lane(&mut self, index: u32, queue: usize, lane: &Lane) -> Result<(), String> {
        let (Some(qp), Some((_, window))) = (lane.qp(), &lane.credits) else { return Ok(()) };
        let mut left = window.receives();
        self.post_new((index, queue), qp, &mut left)
    }

    /// Posts `left` new buffers on a per-peer queue, and counts them down.
    fn post_new(&mut self, (index, queue): (u32, usize), qp: &Qp, left: &mut u32) -> Result<(), String> {
        let pool = &mut self.queues[queue].bufs;
        while *left != 0 {
            let mut list = RecvList::<_, LIST>::new(qp);
            let filled = self.slots.fill((index, queue), pool, *left as usize, &mut list);
            let (count, posted) = match filled {
                Ok(()) => self.slots.post(&mut list),
                Err(error) => {
                    self.slots.empty(&mut list, pool);
                    return Err(error.to_string());
                }
            };
            *left -= count as u32;
            if let Err(error) = posted {
                self.slots.empty(&mut list, pool);
                return Err(error.to_string());
            }
        }
        Ok(())
    }

    /// Opens a wider part of the whole window to the peer of a lane.
    ///
    /// # Errors
    /// As many as could be posted are; the rest has to wait for the next time.
    fn widen_lane(&mut self, name: (u32, usize), lane: &mut Lane, whole: &Window) -> Result<(), String> {
        let (Some(Channel { qp, .. }), Some((credits, window))) = (&lane.channel, &mut lane.credits) else {
            return Ok(());
        };
        let wanted = window.wanted();
        let mut left = u32::from(wanted);
        let posted = self.post_new(name, qp, &mut left);
        let more = wanted - left as u16;
        *window = whole.part(window.rd_num() + more);
        credits.widened(more);
        posted
    }

    /// Posts the consumed buffers of a per-peer lane again, in lists.
    #[inline]
    fn repost_lane<C>(&mut self, ep: &mut Endpoint<C>, queue: usize) -> Result<(), verbs::Error> {
        if !ep.state().has_posted() {
            return Ok(());
        }
        let lane = &mut ep.lanes[queue];
        let (Some(Channel { qp, .. }), Some((credits, _))) = (&lane.channel, &mut lane.credits) else {
            return Ok(());
        };
        while !lane.consumed.is_empty() {
            let mut list = RecvList::new(&**qp);
            self.slots.take_consumed(&mut lane.consumed, LIST, &mut list);
            let (count, posted) = self.slots.post(&mut list);
            credits.reposted(count as u16);
            if let Err(error) = posted {
                self.slots.put_back(&mut list, &mut lane.consumed);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The buffer of a control message goes back at once: it is outside of the data window. Without
    /// `lane` its endpoint is gone.
    fn repost_control(
        &mut self,
        lane: Option<&Lane>,
        queue: usize,
        slot: u32,
        bytes: Lent,
    ) -> Result<(), verbs::Error> {
        if self.queues[queue].shared.is_some() {
            self.repost(queue, slot, bytes);
            return Ok(());
        }
        let Some(lane) = lane else {
            self.drop_slot(queue, slot, bytes);
            return Ok(());
        };
        let Some(qp) = lane.qp() else { return Ok(()) };
        let mut list = RecvList::new(&**qp);
        self.slots.back(slot, bytes);
        self.slots.add(slot, &mut list);
        let posted = self.slots.post(&mut list).1;
        if posted.is_err() {
            self.slots.empty(&mut list, &mut self.queues[queue].bufs);
        }
        posted
    }
}

impl<C> Transport<C> {
    /// Posts the consumed buffers of a per-peer lane again; sends an explicit credit message if one
    /// is due.
    pub(crate) fn return_credits(&mut self, index: u32, queue: usize) {
        self.repost_early(index, queue);
        self.send_credits_if_due(index, queue);
    }

    /// Posts consumed buffers again while there is nothing else to do, before their batch is due:
    /// in an exchange of single messages that takes the posting out of the way of the answer.
    #[inline]
    pub(crate) fn repost_early(&mut self, index: u32, queue: usize) {
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        if let Err(error) = self.rx.repost_lane(ep, queue) {
            self.fail(index, &format!("post of a receive failed: {error}"));
        }
    }

    /// The peer has used up its credits for a queue.
    #[cold]
    pub(crate) fn widen(&mut self, index: u32, queue: usize) {
        let whole = self.port.layout().queues().get(queue).and_then(Queue::window);
        let (Some(whole), Some(lane)) = (whole, self.endpoints.lane(index, queue)) else { return };
        if let Err(reason) = self.rx.widen_lane((index, queue), lane, &whole) {
            log::debug!("queue {queue} of endpoint {index} stays as short as it is: {reason}");
        }
        self.send_credits_if_due(index, queue);
    }

    /// Everything that is no data message: credit messages, and what should not be.
    #[cold]
    pub(crate) fn control(&mut self, index: u32, queue: usize, slot: u32, buf: Lent, len: usize) {
        if queue == 0 {
            self.land_before(index);
        }
        let parsed = Header::parse(&buf.as_slice()[..len]).map(|(header, _)| header);
        if let Ok(header) = parsed
            && usize::from(header.queue) == queue
            && matches!(header.kind, MessageKind::End | MessageKind::EndAck)
        {
            return self.end_received((index, queue, slot), header, (buf, len));
        }
        if let Ok(header) = parsed
            && usize::from(header.queue) == queue
            && header.kind == MessageKind::Eager
        {
            return self.offer_received((index, queue, slot), header, (buf, len));
        }
        let queues = self.rx.queues.len();
        let arrived = match &parsed {
            Ok(Header { kind: MessageKind::Resume, .. }) => {
                Some(Arrived::parse(&buf.as_slice()[HEADER_LEN..len], queues))
            }
            _ => None,
        };
        let lane = self.endpoints.lane(index, queue);
        if let Err(error) = self.rx.repost_control(lane.as_deref(), queue, slot, buf) {
            self.fail(index, &format!("post of a receive failed: {error}"));
        }
        match (parsed, arrived) {
            (_, Some(Err(error))) => self.refuse(index, &error.to_string()),
            (Ok(header), _) if usize::from(header.queue) != queue => {
                self.refuse(index, &format!("a message for queue {} came on queue {queue}", header.queue));
            }
            (Ok(_), Some(Ok(arrived))) => self.resume_received(index, queue, arrived),
            (Ok(header), _) if matches!(header.kind, MessageKind::Credit | MessageKind::Open) => {
                self.credit_message(index, queue, header.grant);
                self.opened(index, queue);
            }
            (Ok(header), _) => {
                self.refuse(index, &format!("a {:?} message came on queue {queue}", header.kind))
            }
            (Err(error), _) => self.refuse(index, &error.to_string()),
        }
    }

    /// Its receive is outside of the data window, as a credit message's.
    fn resume_received(&mut self, index: u32, queue: usize, arrived: Arrived) {
        self.early(index, queue);
        let lane = self.endpoints.lane(index, queue);
        if lane.is_some_and(|lane| lane.credits.is_some()) {
            self.credit_message(index, queue, Grant::NONE);
        }
        self.resumes(index, arrived);
    }

    pub(crate) fn credit_message(&mut self, index: u32, queue: usize, grant: Grant) {
        let Some(lane) = self.endpoints.lane(index, queue) else { return };
        let Some((credits, window)) = &mut lane.credits else {
            return self.refuse(index, "a credit message came on a shared queue");
        };
        match credits.credit_message_reposted(window) {
            Ok(()) => self.accept(index, queue, grant),
            Err(error) => self.fail(index, &error),
        }
    }

    #[cold]
    pub(crate) fn refuse(&mut self, index: u32, reason: &str) {
        self.stats.refused += 1;
        self.fail(index, &reason);
    }
}
