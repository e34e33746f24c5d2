//! Send completions, and completions of either kind that are errors.
//!
//! A completion names its line in the ledger of its queue pair and retires all lines up to it. Those
//! before it have succeeded: one that fails, or is flushed, has a completion of its own, signalled or
//! not.
#![forbid(unsafe_code)]

use super::Tx;
use crate::transport::Transport;
use crate::transport::channel::{Connection, GivesBack, Held, Ledger, LineId};
use verbs::{Completion, RdmaOp, Wc, WcStatus};

/// Messages that have completed one after the other.
pub(super) struct Run {
    /// The connection and queue of the layout that those from buffers went over.
    pub to: Option<(Connection, u8)>,
    /// How many.
    pub count: u16,
    /// The one that the completion is of is among them.
    pub last: bool,
}

impl<C> Tx<C> {
    /// Takes the oldest lines of a queue pair off, up to the one that has completed, as long as they are messages over one connection and
    /// queue. All have succeeded.
    pub(super) fn retire_run(&mut self, ledger: &mut Ledger, wc: &Completion, id: LineId) -> Run {
        let mut run = Run { to: None, count: 0, last: false };
        while !run.last
            && let Some(line) = ledger.oldest(id.line())
        {
            match line.gives_back() {
                GivesBack::Inline(_) => {}
                GivesBack::Held(key) if self.take_message(key, &mut run.to, wc) => {}
                _ => break,
            }
            self.awaited -= u32::from(line.is_signalled());
            run.count += 1;
            run.last = ledger.retire(id.line()).is_some_and(|(_, last)| last);
        }
        run
    }

    /// Takes the operation off that has completed and succeeded, if nothing was posted before it that has not completed.
    #[inline]
    fn retire_operation(&mut self, ledger: &mut Ledger, id: LineId) -> Option<Held<C>> {
        let key = ledger.held_by_oldest(id.line())? as usize;
        if !matches!(self.held.get(key), Some(Held::Rdma { .. } | Held::Atomic { .. })) {
            return None;
        }
        let (line, _) = ledger.retire(id.line())?;
        self.awaited -= u32::from(line.is_signalled());
        self.held.try_remove(key)
    }

    /// Takes the buffer back that is held under this key, if that is a message of the run, which is known by its first one.
    fn take_message(&mut self, key: u32, run: &mut Option<(Connection, u8)>, by: &Completion) -> bool {
        let Some(Held::Message { to, queue, .. }) = self.held.get(key as usize) else { return false };
        let target = (*to, *queue);
        let is_of_run = *run.get_or_insert(target) == target;
        if is_of_run && let Some(Held::Message { buf, share, .. }) = self.held.try_remove(key as usize) {
            self.take_sent(buf, by, (target.1, share));
        }
        is_of_run
    }
}

impl<C> Transport<C> {
    /// Looks at the send completions; how many there were. It may be called again from within, and
    /// then goes on behind the completion at hand: those of a queue pair are looked at in order.
    pub(crate) fn poll_sends(&mut self) -> usize {
        if self.tx.batch.is_empty()
            && let Err(error) = self.tx.cq.poll(&mut self.tx.batch)
        {
            self.cq_broken(&error);
        }
        let mut seen = 0;
        while let Some(done) = self.tx.batch.take() {
            self.sent(&done);
            seen += 1;
        }
        self.stats.completions += seen as u64;
        seen
    }

    /// A send work request has completed.
    #[inline]
    fn sent(&mut self, wc: &Completion) {
        let id = LineId(wc.wr_id());
        if let Some(path) = id.path() {
            return self.sent_over_xrc(wc, path, id);
        }
        let (index, queue) = (id.index(), id.queue());
        let Some(ep) = self.endpoints.get_mut(index) else { return self.stats.stale += 1 };
        let Some(lane) = ep.lanes.get_mut(queue) else { return self.stats.stale += 1 };
        if !wc.is_ok() {
            return self.request_failed(index, wc, id);
        }
        let (count, last) = match (lane.retire_inline(id), lane.ledger_of(id)) {
            (Some((count, last)), _) => {
                self.tx.awaited -= u32::from(last.is_signalled());
                (count, true)
            }
            (None, Some(ledger)) => {
                if let Some(held) = self.tx.retire_operation(ledger, id) {
                    self.stats.note_run(1);
                    return self.retire(held, wc, true);
                }
                let run = self.tx.retire_run(ledger, wc, id);
                (run.count, run.last)
            }
            (None, None) => return self.stats.stale += 1,
        };
        if count != 0 {
            self.sends_done(index, queue, count);
        }
        if last {
            self.stats.note_run(count);
        } else {
            self.retire_through(wc, id, count);
        }
    }

    /// The same of one that has failed, or was flushed. It is kept, if another connection may take the place of this one.
    #[cold]
    fn request_failed(&mut self, index: u32, wc: &Completion, id: LineId) {
        match self.retire_through(wc, id, 0) {
            // Where a marker fails nothing is lost: what was posted before it has succeeded. Its
            // queue pair is broken, which the next message will find, if one comes: a peer that
            // leaves may take ours along (iWARP), or not answer any more.
            None | Some(GivesBack::Marker) => {}
            Some(GivesBack::Probe) => self.unanswered(index, wc),
            Some(GivesBack::Inline(_) | GivesBack::Held(_)) => {
                self.fail_with(index, wc);
                // Lanes that wait for the send slot of a message that is kept. The endpoint has left
                // its connection by now, so that no message follows over the broken queue pair.
                self.serve();
            }
        }
    }

    /// Gives back what the lines hold, the oldest first, up to the one that has completed; what that
    /// was. Some of its run have been given back before.
    #[inline(never)]
    fn retire_through(&mut self, wc: &Completion, id: LineId, before: u16) -> Option<GivesBack> {
        let (index, queue) = (id.index(), id.queue());
        for count in before + 1.. {
            let line = self.endpoints.lane(index, queue).and_then(|lane| lane.retire(id));
            let Some((line, last)) = line else {
                self.stats.stale += 1;
                return None;
            };
            self.tx.awaited -= u32::from(line.is_signalled());
            let failed = last && !wc.is_ok();
            match line.gives_back() {
                GivesBack::Marker | GivesBack::Probe => self.entries_free(index, queue, 1),
                gives_back if failed && self.outlives(index, wc) => {
                    self.keep_line(index, queue, gives_back, wc)
                }
                GivesBack::Inline(_) => self.sends_done(index, queue, 1),
                GivesBack::Held(key) => {
                    if let Some(held) = self.tx.held.try_remove(key as usize) {
                        self.retire(held, wc, !failed);
                    }
                }
            }
            if last {
                self.stats.note_run(count);
                return Some(line.gives_back());
            }
        }
        None
    }

    #[inline]
    fn retire(&mut self, held: Held<C>, by: &Completion, ok: bool) {
        match held {
            Held::Message { to, queue, buf, share, .. } => {
                self.tx.take_sent(buf, by, (queue, share));
                self.sends_done(to.index, queue.into(), 1);
            }
            Held::Rdma { to, queue, rdma } => {
                self.up.completed(rdma.cookie, ok);
                self.rdma_done(to.index, queue.into(), rdma.op == RdmaOp::Read);
            }
            Held::Atomic { to, queue, buf, fetch } => {
                self.fetched(to, (buf, by), fetch, ok);
                self.rdma_done(to.index, queue.into(), true);
            }
        }
    }

    /// A work request failed. A flushed one only follows another that says why, and that may still
    /// be in the queue.
    #[cold]
    pub(crate) fn fail_with(&mut self, index: u32, wc: &Wc) {
        if wc.status() == WcStatus::Flushed
            && self.endpoints.is_alive(index)
            && self.tx.outstanding != 0
            && !self.tx.seeking
        {
            self.tx.seeking = true;
            while self.poll_sends() != 0 && self.endpoints.is_alive(index) {}
            self.tx.seeking = false;
        }
        let reason = format_args!("work request on {}: {}", wc.qp_num(), wc.status());
        if wc.may_pass() { self.broken(index, &reason) } else { self.broken_for_good(index, &reason) }
    }

    #[cold]
    pub(crate) fn cq_broken(&mut self, error: &verbs::Error) -> usize {
        self.all_broken(&format!("completion queue broken: {error}"));
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::layout::{DEFAULT, Layout};
    use crate::transport::channel::Signalling;
    use crate::transport::config::{Bound, Config};
    use crate::transport::device::{Choice, Filter, PortConfig, find};
    use crate::transport::wrid::{Kind, WrId};
    use std::sync::Arc;
    use std::time::Duration;
    use verbs::{Driver, Posted, Qp, QpCap, QpInit, QpKind};

    fn transport() -> Transport<u64> {
        let soft = || Ok(Driver::with_connections(softib::driver_table(), softib::cm_table()));
        let port = PortConfig { gid_index: None, pkey: 0, mtu: 0 };
        let ports = find(&Choice::Soft, &Filter::default(), port, soft).unwrap();
        let config = Config {
            layout: Layout::parse(DEFAULT).unwrap(),
            max_inline: 136,
            pool_limit: 1024,
            pool_grow: 32,
            cq_size: 64,
            signalling: Signalling { most: 16, most_bytes: 4096 },
            hold: Bound::of_peer(64),
            min_rnr_timer: 1,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            rd_atomic: 4,
            rdma_depth: 16,
            service_level: 0,
            drain: Duration::from_secs(5),
            keepalive: Duration::from_secs(5),
            gathers: false,
            send_rings: (1 << 16, 64),
            eager: None,
            reconnects: 0,
            keep_timelines: false,
            xrc_domain: std::env::temp_dir(),
            cpc: cpc::Config::default(),
        };
        Transport::open(&ports[0], config, 1 << 40).unwrap()
    }

    /// The receive of the CTS in one epoch of the endpoint at position 0, as the connection manager
    /// posts it.
    fn cts_receive(t: &mut Transport<u64>, epoch: u32) -> (Arc<Qp>, Posted) {
        let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let (send_cq, recv_cq) = (t.tx.cq.clone(), t.rx.cq.clone());
        let init = QpInit { kind: QpKind::Rc, send_cq, recv_cq, srq: None, cap, sig_all: false };
        let qp = Qp::create(&t.port.pd, &init).unwrap();
        let (access, qkey) = (verbs::Access::LOCAL_WRITE, verbs::QKey(0));
        qp.to_init(&verbs::InitAttr { port: 1, pkey_index: 0, access, qkey }).unwrap();
        let (_, buf) = t.rx.cts.take(Some(0)).unwrap().unwrap();
        let posted = qp.post_recv(WrId::new(Kind::Cts, 0, epoch, 0).0, buf).map_err(|(_, error)| error);
        (qp, posted.unwrap())
    }

    /// The device was too slow to flush it before the endpoint was taken down.
    #[test]
    fn a_late_cts_completion_of_a_former_life_leaves_the_buffer_of_the_new_one_to_the_device() {
        let mut t = transport();
        let adverts = t.adverts().to_vec();
        let id = t.add(2 << 40, &adverts).unwrap();
        assert_eq!((id.index, id.generation), (0, 0));
        let (former, late) = cts_receive(&mut t, 0);
        t.rx.cts.insert(Connection { index: 0, epoch: 0 }, late);
        t.endpoints.set_epoch(0, 1);
        if let Some(ep) = t.endpoints.get_mut(0) {
            ep.epoch = 1;
        }
        let (_later, posted) = cts_receive(&mut t, 1);
        t.rx.cts.insert(Connection { index: 0, epoch: 1 }, posted);
        former.to_error().unwrap();
        t.poll();
        while t.take_upcall().is_some() {}
        assert!(t.rx.cts.is_posted(Connection { index: 0, epoch: 1 }), "the device still has it");
        assert!(!t.rx.cts.is_posted(Connection { index: 0, epoch: 0 }), "the former epoch's has come back");
        assert_eq!((t.stats.stale, t.stats.failed), (1, 0));
    }

    /// The connection manager has made queue pairs for an endpoint that is removed before it hears of them.
    #[test]
    fn the_receive_of_a_cts_comes_back_from_queue_pairs_that_no_endpoint_has_heard_of() {
        let mut t = transport();
        let adverts = t.adverts().to_vec();
        let id = t.add(2 << 40, &adverts).unwrap();
        let key = t.endpoints.get(id.index).unwrap().key(id.index);
        t.remove(&[id]);
        let (made, home) = t.rx.cts.tally();
        let (qp, posted) = cts_receive(&mut t, key.generation);
        t.qps_created(key, vec![qp], Some(posted));
        t.poll();
        while t.take_upcall().is_some() {}
        assert!(!t.rx.cts.is_posted(Connection { index: key.index, epoch: key.generation }));
        assert!(!t.rx.cts.has_orphans() && t.rx.cts.tally() == (made, home));
        assert_eq!((t.stats.stale, t.stats.failed), (1, 0));
        t.close();
    }
}
