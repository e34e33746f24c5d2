//! The receiving side, and the turning of completions into what the upper layer hears.
//!
//! Receive completions are looked at first; send completions only when nothing arrived and something is in flight.
//! A message's credits are applied as soon as its header is parsed; its own buffer is posted again, and its credit
//! returned, only when the upper layer has given it back.
#![forbid(unsafe_code)]

use super::endpoint::EpId;
use super::inflight::Waiting;
use super::qpns::Owner;
use super::queue::NO_ENDPOINT;
use super::state::{Event, State};
use super::wrid::{Kind, WrId};
use super::{BATCH, Delivery, SendBuf, Transport, Upcall};
use crate::protocol::credits::{CreditError, Grant};
use crate::protocol::wire::{Cts, DataHeader, HEADER_LEN, Header, Kind as MessageKind};
use verbs::{Buf, SendFlags, Wc, WcStatus};

impl<C> Transport<C> {
    /// Looks around once: connection events, completions. True if there is something for [`Transport::take_upcall`].
    #[inline]
    pub fn poll(&mut self) -> bool {
        if self.service.pending() {
            self.connection_events();
        }
        if self.recv_batch.next == self.recv_batch.len {
            self.recv_batch.next = 0;
            self.recv_batch.len = match self.recv_cq.poll(&mut self.recv_batch.wcs) {
                Ok(len) => len,
                Err(error) => self.cq_broken(&error),
            };
            if self.recv_batch.len == 0 && self.outstanding != 0 {
                self.poll_sends();
            }
        }
        self.recv_batch.next != self.recv_batch.len || !self.up.is_empty()
    }

    /// The next thing for the upper layer, of what the last `poll` found.
    #[inline]
    pub fn take_upcall(&mut self) -> Option<Upcall<C>> {
        while self.recv_batch.next != self.recv_batch.len {
            let wc = self.recv_batch.wcs[self.recv_batch.next];
            self.recv_batch.next += 1;
            if let Some(delivery) = self.received(&wc) {
                return Some(Upcall::Deliver(delivery));
            }
        }
        self.up.pop_front()
    }

    /// Takes a receive completion apart; a message for the upper layer comes back.
    #[inline]
    fn received(&mut self, wc: &Wc) -> Option<Delivery> {
        let id = WrId(wc.wr_id());
        if !wc.is_ok() {
            self.receive_failed(wc, id);
            return None;
        }
        let slot = id.index();
        let queue = id.queue();
        let index = match id.kind() {
            Some(Kind::RecvPeer) => self.slots.at(id)?.endpoint,
            Some(Kind::RecvShared) => self.sender(wc)?,
            _ => return self.cts_received(wc, id),
        };
        let buf = self.slots.at(id)?.posted.take()?.completed();
        let len = (wc.byte_len() as usize).min(buf.capacity() as usize);
        let header = buf.as_slice()[..len].first_chunk().and_then(|head| DataHeader::parse(*head));
        let Some(header) = header.filter(|h| usize::from(h.queue()) == queue) else {
            self.control(index, queue, slot, buf, len);
            return None;
        };
        let Some(Some(ep)) = self.endpoints.get_mut(index as usize) else {
            self.repost(queue, slot, buf);
            return None;
        };
        if ep.state != State::Connected {
            self.early(index);
        }
        self.accept(index, queue, header.grant());
        self.stats.received += 1;
        let generation = self.generations[index as usize];
        let endpoint = EpId { index, generation };
        Some(Delivery {
            endpoint,
            tag: header.tag(),
            buf,
            len: (len - HEADER_LEN) as u32,
            slot,
            queue: queue as u8,
        })
    }

    /// Credits that a message of the peer brought.
    #[inline]
    fn accept(&mut self, index: u32, queue: usize, grant: Grant) {
        if grant == Grant::NONE {
            return;
        }
        let Some(lane) = self.lane(index, queue) else { return };
        let accepted = match &mut lane.credits {
            Some((credits, window)) => credits.accept(window, grant),
            None => Err(CreditError::DataGrant { granted: grant.data, have: 0, window: 0 }),
        };
        match accepted {
            Ok(()) => self.wake(index, queue),
            Err(error) => self.fail(index, &error.to_string()),
        }
    }

    /// The upper layer is done with a message: post its buffer again, return its credit.
    #[inline]
    pub fn delivered(&mut self, delivery: Delivery) {
        let queue = delivery.queue as usize;
        let slot = delivery.slot;
        if self.queues[queue].shared.is_some() {
            return self.repost(queue, slot, delivery.buf);
        }
        let index = delivery.endpoint.index;
        let Some(ep) = self.endpoint(delivery.endpoint) else {
            return self.drop_slot(queue, slot, delivery.buf);
        };
        let lane = &mut ep.lanes[queue];
        let Some((credits, window)) = &mut lane.credits else { return };
        let overrun = credits.consumed(window).err();
        let due = credits.repost_due(window) != 0 || credits.explicit_due(window);
        lane.consumed.push(slot);
        self.slots.by_index(slot).held = Some(delivery.buf);
        if let Some(error) = overrun {
            self.fail(index, &error.to_string());
        } else if due {
            self.return_credits(index, queue);
        }
    }

    /// Posts the consumed buffers of a per-peer lane again; sends an explicit credit message if one is due.
    fn return_credits(&mut self, index: u32, queue: usize) {
        if let Err(error) = self.repost_lane(index, queue) {
            return self.fail(index, &format!("post of a receive failed: {error}"));
        }
        self.send_credits_if_due(index, queue);
    }

    fn repost_lane(&mut self, index: u32, queue: usize) -> Result<(), verbs::Error> {
        let Some(Some(ep)) = self.endpoints.get_mut(index as usize) else { return Ok(()) };
        let lane = &mut ep.lanes[queue];
        let (Some(qp), Some((credits, _))) = (&lane.qp, &mut lane.credits) else { return Ok(()) };
        if !matches!(ep.state, State::Up | State::Connected) {
            return Ok(());
        }
        while let Some(slot) = lane.consumed.pop() {
            let wr_id = self.slots.wr_id(Kind::RecvPeer, slot);
            let s = self.slots.by_index(slot);
            let Some(buf) = s.held.take() else { continue };
            match qp.post_recv(wr_id, buf) {
                Ok(posted) => s.posted = Some(posted),
                Err((buf, error)) => {
                    s.held = Some(buf);
                    return Err(error);
                }
            }
            credits.reposted(1);
        }
        Ok(())
    }

    /// Sends an explicit credit message if so much is owed that one is due.
    #[inline]
    pub(super) fn send_credits_if_due(&mut self, index: u32, queue: usize) {
        let due = match self.lane(index, queue) {
            Some(lane) => lane.credits.as_ref().is_some_and(|(credits, window)| credits.explicit_due(window)),
            None => false,
        };
        if due {
            self.send_credits(index, queue);
        }
    }

    /// An explicit credit message, out of its own credits and one of the entries that data never takes.
    #[cold]
    fn send_credits(&mut self, index: u32, queue: usize) {
        let Some(Some(ep)) = self.endpoints.get_mut(index as usize) else { return };
        if ep.state != State::Connected {
            return;
        }
        let lane = &mut ep.lanes[queue];
        let (Some(qp), Some((credits, window))) = (&lane.qp, &mut lane.credits) else { return };
        if !lane.wqe.acquire() {
            return; // the next completion tries again
        }
        let Some(grant) = credits.acquire_explicit(window) else {
            lane.wqe.release(1);
            return;
        };
        let message = Header::credit(queue as u8, grant).emit();
        let wr = WrId::new(Kind::SendInline, queue, ep.generation, index);
        match qp.post_send_inline(wr.0, &message, SendFlags::SIGNALED) {
            Ok(()) => {
                ep.outstanding += 1;
                self.outstanding += 1;
                self.stats.credit_messages += 1;
            }
            Err(error) => self.fail(index, &format!("post of a credit message failed: {error}")),
        }
    }

    /// Everything that is no data message: credit messages, and what should not be.
    #[cold]
    fn control(&mut self, index: u32, queue: usize, slot: u32, buf: Buf, len: usize) {
        let parsed = Header::parse(&buf.as_slice()[..len]).map(|(header, _)| header);
        self.repost_control(index, queue, slot, buf);
        match parsed {
            Ok(header) if header.kind == MessageKind::Credit => {
                self.credit_message(index, queue, header.grant)
            }
            Ok(header) => self.refuse(index, &format!("a {:?} message came on queue {queue}", header.kind)),
            Err(error) => self.refuse(index, &error.to_string()),
        }
    }

    fn credit_message(&mut self, index: u32, queue: usize, grant: Grant) {
        let Some(lane) = self.lane(index, queue) else { return };
        let Some((credits, window)) = &mut lane.credits else {
            return self.refuse(index, "a credit message came on a shared queue");
        };
        match credits.credit_message_reposted(window) {
            Ok(()) => self.accept(index, queue, grant),
            Err(error) => self.fail(index, &error.to_string()),
        }
    }

    #[cold]
    fn refuse(&mut self, index: u32, reason: &str) {
        self.stats.refused += 1;
        self.fail(index, reason);
    }

    /// The buffer of a control message goes back at once: it is outside of the data window.
    fn repost_control(&mut self, index: u32, queue: usize, slot: u32, buf: Buf) {
        if self.queues[queue].shared.is_some() {
            return self.repost(queue, slot, buf);
        }
        let Some(Some(ep)) = self.endpoints.get_mut(index as usize) else {
            return self.drop_slot(queue, slot, buf);
        };
        let Some(qp) = &ep.lanes[queue].qp else { return };
        match qp.post_recv(self.slots.wr_id(Kind::RecvPeer, slot), buf) {
            Ok(posted) => self.slots.by_index(slot).posted = Some(posted),
            Err((buf, error)) => {
                self.drop_slot(queue, slot, buf);
                self.fail(index, &format!("post of a receive failed: {error}"));
            }
        }
    }

    /// A shared queue's buffer has been consumed: post it again with its batch.
    #[inline]
    fn repost(&mut self, queue: usize, slot: u32, buf: Buf) {
        self.slots.by_index(slot).held = Some(buf);
        let Some(shared) = &mut self.queues[queue].shared else { return };
        shared.consumed.push(slot);
        if shared.refill_due() {
            self.refill(queue);
        }
    }

    /// Posts what has been consumed of a shared queue, and as many new buffers as it is to hold.
    pub(super) fn refill(&mut self, queue: usize) {
        let res = &mut self.queues[queue];
        let Some(shared) = &mut res.shared else { return };
        while shared.posted < shared.target {
            let slot = shared.consumed.pop().unwrap_or_else(|| self.slots.take(NO_ENDPOINT, queue));
            let buf = match self.slots.by_index(slot).held.take().map_or_else(|| res.recv.take(), Ok) {
                Ok(buf) => buf,
                Err(error) => {
                    log::error!("shared queue {queue} cannot be filled: {error}");
                    return self.slots.release(slot);
                }
            };
            if let Err(error) = shared.post(&mut self.slots, slot, buf) {
                log::error!("post to shared queue {queue} failed: {error}");
                return shared.consumed.push(slot);
            }
        }
    }

    /// A buffer that nobody will post again.
    #[cold]
    fn drop_slot(&mut self, queue: usize, slot: u32, buf: Buf) {
        self.queues[queue].recv.put(buf);
        self.slots.release(slot);
    }

    /// Which endpoint sent a message that came through a shared queue. Unknown ones are parked: the helper's
    /// event that names the queue pair may be behind the message.
    #[inline]
    fn sender(&mut self, wc: &Wc) -> Option<u32> {
        let queue = WrId(wc.wr_id()).queue();
        if let Some(shared) = &mut self.queues[queue].shared {
            shared.posted -= 1;
            if shared.posted == 0 {
                self.ran_empty(queue);
            }
        }
        match self.qpns.find(wc.qp_num()) {
            Some(Owner::Lane { endpoint, .. }) => Some(endpoint),
            _ => self.sender_late(wc),
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

    #[cold]
    fn sender_late(&mut self, wc: &Wc) -> Option<u32> {
        self.connection_events();
        match self.qpns.find(wc.qp_num()) {
            Some(Owner::Lane { endpoint, .. }) => Some(endpoint),
            Some(Owner::Retired) => {
                self.stats.stale += 1;
                self.give_up(wc);
                None
            }
            None => {
                self.stats.parked += 1;
                // Its receive is looked at again when the queue pair is known.
                self.park(*wc);
                None
            }
        }
    }

    /// A message of a connection that is gone: its buffer is posted again.
    fn give_up(&mut self, wc: &Wc) {
        let id = WrId(wc.wr_id());
        let buf = self.slots.at(id).and_then(|s| s.posted.take());
        if let Some(buf) = buf {
            self.repost(id.queue(), id.index(), buf.completed());
        }
    }

    fn park(&mut self, wc: Wc) {
        if let Some(shared) = &mut self.queues[WrId(wc.wr_id()).queue()].shared {
            shared.posted += 1; // counted down again when it is looked at
        }
        self.parked.push(wc);
    }

    /// Messages whose queue pair is known by now go back into the batch.
    pub(super) fn unpark(&mut self) {
        let mut rest = Vec::new();
        for wc in std::mem::take(&mut self.parked) {
            match self.qpns.find(wc.qp_num()) {
                None => rest.push(wc),
                Some(_) => {
                    if let Some(delivery) = self.received(&wc) {
                        self.up.push_back(Upcall::Deliver(delivery));
                    }
                }
            }
        }
        self.parked = rest;
    }

    /// Data before the connection manager's last word stands in for it.
    #[cold]
    fn early(&mut self, index: u32) {
        let Some(Some(ep)) = self.endpoints.get_mut(index as usize) else { return };
        if matches!(ep.state, State::HaveQps | State::HaveCts) {
            let key = cpc::EndpointKey { index, generation: ep.generation };
            self.service.first_data(key);
        }
    }

    /// The peer has posted its buffers (seed 004).
    #[cold]
    fn cts_received(&mut self, wc: &Wc, id: WrId) -> Option<Delivery> {
        let index = id.index();
        if id.kind() != Some(Kind::RecvCts) || self.generations.get(index as usize) != Some(&id.generation())
        {
            self.stats.stale += 1;
            return None;
        }
        if !self.cts_buffers.contains_key(&index) {
            // The helper posted this receive; what it says about it may still be in its queue.
            self.connection_events();
        }
        let buf = self.cts_buffers.remove(&index)?.completed();
        let len = (wc.byte_len() as usize).min(buf.capacity() as usize);
        let told = Header::parse(&buf.as_slice()[..len]).and_then(|(header, rest)| match header.kind {
            MessageKind::Cts => Cts::parse(rest).map(Some),
            _ => Ok(None),
        });
        self.cts_pool.put(buf);
        let ours = Cts { queues: self.layout.queues().len() as u8, layout: self.layout.fingerprint() };
        match told {
            Ok(Some(theirs)) if theirs == ours => {
                self.early(index);
                self.on_event(index, Event::CtsReceived);
            }
            Ok(Some(_)) => self.refuse(index, "the peer's receive_queues differ from ours"),
            Ok(None) => self.refuse(index, "the first message of the peer was no CTS"),
            Err(error) => self.refuse(index, &error.to_string()),
        }
        None
    }

    /// A receive came back with an error: flushed, or the reason why its queue pair is in ERR.
    #[cold]
    fn receive_failed(&mut self, wc: &Wc, id: WrId) {
        let (slot, queue) = (id.index(), id.queue());
        match id.kind() {
            Some(Kind::RecvCts) => {
                if let Some(buf) = self.cts_buffers.remove(&slot) {
                    self.cts_pool.put(buf.completed());
                }
                self.fail_with(slot, wc);
            }
            Some(Kind::RecvPeer) => {
                let Some(s) = self.slots.at(id) else { return self.stats.stale += 1 };
                let endpoint = s.endpoint;
                if let Some(buf) = s.posted.take() {
                    self.drop_slot(queue, slot, buf.completed());
                }
                self.fail_with(endpoint, wc);
            }
            Some(Kind::RecvShared) => {
                let owner = self.qpns.find(wc.qp_num());
                if let Some(shared) = &mut self.queues[queue].shared {
                    shared.posted -= 1;
                }
                self.give_up(wc);
                if let Some(Owner::Lane { endpoint, .. }) = owner {
                    self.fail_with(endpoint, wc);
                }
            }
            _ => self.stats.stale += 1,
        }
    }

    /// Looks at the send completions.
    fn poll_sends(&mut self) {
        let mut wcs = [Wc::default(); BATCH];
        let got = match self.send_cq.poll(&mut wcs) {
            Ok(got) => got,
            Err(error) => self.cq_broken(&error),
        };
        for wc in &wcs[..got] {
            self.sent(wc);
        }
    }

    #[inline]
    fn sent(&mut self, wc: &Wc) {
        let id = WrId(wc.wr_id());
        match id.kind() {
            Some(Kind::SendInline) => match self.generations.get(id.index() as usize) {
                Some(generation) if *generation == id.generation() => self.send_done(id.index(), id.queue()),
                _ => return self.stats.stale += 1,
            },
            Some(Kind::Send | Kind::Rdma) => return self.retire(wc, id),
            _ => return self.stats.stale += 1,
        }
        if !wc.is_ok() {
            self.fail_with(id.index(), wc);
        }
    }

    /// Gives back what waited for this completion.
    fn retire(&mut self, wc: &Wc, id: WrId) {
        let endpoint = match self.inflight.complete(id.index(), id.generation()) {
            Some(Waiting::Send { endpoint, buf, share }) => {
                self.give_back(SendBuf { buf: buf.completed(), class: id.queue() as u8, share });
                self.send_done(endpoint, id.queue());
                endpoint
            }
            Some(Waiting::Rdma { endpoint, cookie }) => {
                self.up.push_back(Upcall::RdmaDone { cookie, ok: wc.is_ok() });
                self.rdma_done(endpoint, id.queue());
                endpoint
            }
            None => return self.stats.stale += 1,
        };
        if !wc.is_ok() {
            self.fail_with(endpoint, wc);
        }
    }

    /// A work request failed. A flushed one only follows another that says why, and that may still be in the queue.
    #[cold]
    fn fail_with(&mut self, index: u32, wc: &Wc) {
        let alive = matches!(self.endpoints.get(index as usize), Some(Some(ep)) if ep.state != State::Failed);
        if wc.status() == WcStatus::Flushed && alive && self.outstanding != 0 && !self.seeking {
            self.seeking = true;
            self.poll_sends();
            self.seeking = false;
        }
        self.fail(index, &format!("work request on {}: {}", wc.qp_num(), wc.status()));
    }

    #[cold]
    fn cq_broken(&mut self, error: &verbs::Error) -> usize {
        for index in 0..self.endpoints.len() as u32 {
            self.fail(index, &format!("completion queue broken: {error}"));
        }
        0
    }
}
