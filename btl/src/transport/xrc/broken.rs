//! A work request has failed, and with it the send queue pair that leads to all processes of a node.
//!
//! ```text
//!   completions of the path:   ok  ok  FAILED(B)  flushed(C)  flushed(B)  flushed(C)
//!                                      B is lost  kept        given up    kept        then C: renew, a new way, posted again
//! ```
//! When the remote side has refused the request, its process or SRQ is gone or the access was wrong: that one endpoint is
//! lost. What was flushed behind it has not been carried out, so it can be carried out once. When there was no
//! answer at all, nobody knows what became of the requests in flight: their endpoints are lost, the others go on.
#![forbid(unsafe_code)]

use super::super::send::SendBuf;
use super::super::state::{Event, State};
use super::super::{Transport, Upcall};
use super::path::{Held, Kept};
use crate::transport::endpoint::EpId;
use cpc::EndpointKey;
use verbs::{Wc, WcStatus};

impl<C> Transport<C> {
    /// A work request has not been carried out, or failed.
    #[cold]
    pub(super) fn unsent(&mut self, wc: &Wc, held: Held<C>, queue: usize) {
        let (to, path) = held.names();
        let flushed = wc.status() == WcStatus::Flushed;
        let culprit = (!flushed).then_some(to);
        self.break_path(path, culprit, is_certain(wc.status()), &format!("{}: {}", wc.qp_num(), wc.status()));
        if flushed && self.is_on_hold(to, path) {
            self.keep(to, held, queue);
        } else {
            self.give_up_held(to, held, queue);
        }
        self.settle_path(to, path);
    }

    /// The endpoint waits for another way, and this is the one that broke.
    fn is_on_hold(&self, to: EpId, path: u32) -> bool {
        let ep = self.endpoints.get(to.index as usize).and_then(Option::as_ref);
        let on_hold = ep.is_some_and(|ep| {
            ep.state == State::Connecting && ep.way.as_ref().is_some_and(|way| way.path == path)
        });
        on_hold && self.is_current(to)
    }

    fn keep(&mut self, to: EpId, held: Held<C>, queue: usize) {
        let Some(Some(ep)) = self.endpoints.get_mut(to.index as usize) else { return };
        let Some(way) = &mut ep.way else { return };
        ep.outstanding -= 1;
        self.outstanding -= 1;
        match held {
            Held::Send { buf, share, total, .. } => {
                let buf = SendBuf { buf: buf.completed(), class: queue as u8, share };
                way.messages.push_back(Kept { queue: queue as u8, buf, total });
            }
            Held::Rdma { path, operation, .. } => {
                way.operations.push_back(operation);
                ep.lanes[queue].wqe.release(1);
                if let Some(path) = self.xrc.as_mut().and_then(|xrc| xrc.paths.get_mut(&path)) {
                    path.rdma -= 1;
                }
            }
        }
    }

    fn give_up_held(&mut self, to: EpId, held: Held<C>, queue: usize) {
        match held {
            Held::Send { buf, share, .. } => {
                self.give_back(SendBuf { buf: buf.completed(), class: queue as u8, share });
                self.send_over(to, queue);
            }
            Held::Rdma { path, operation, .. } => {
                self.up.push_back(Upcall::RdmaDone { cookie: operation.cookie, ok: false });
                self.rdma_over(to, path, queue);
            }
        }
    }

    /// The path leads nowhere any more: its endpoints are lost or find another.
    fn break_path(&mut self, id: u32, culprit: Option<EpId>, certain: bool, reason: &str) {
        let Some(path) = self.xrc.as_mut().and_then(|xrc| xrc.paths.get_mut(&id)) else { return };
        if path.broken {
            return;
        }
        path.take_down();
        log::debug!("the send queue pair of path {id} is broken: {reason}");
        let members: Vec<u32> = self.on_path(id).collect();
        for index in members {
            let in_flight = matches!(&self.endpoints[index as usize], Some(ep) if ep.outstanding != 0);
            if culprit.is_some_and(|to| to.index == index && self.is_current(to)) {
                self.fail(index, &format!("work request on {reason}"));
            } else if !certain && in_flight {
                self.fail(index, &format!("a work request on the same queue pair, {reason}"));
            } else {
                self.reroute(index);
            }
        }
    }

    /// The endpoint goes on over another send queue pair.
    pub(super) fn reroute(&mut self, index: u32) {
        self.on_event(index, Event::Rerouted);
        let Some(Some(ep)) = self.endpoints.get(index as usize) else { return };
        if ep.state == State::Connecting {
            self.stats.rerouted += 1;
            self.service.renew(EndpointKey { index, generation: ep.generation });
        }
    }

    /// What was to be posted again will not be.
    pub(in super::super) fn drop_kept(&mut self, index: u32) {
        let Some(Some(ep)) = self.endpoints.get_mut(index as usize) else { return };
        let Some(way) = &mut ep.way else { return };
        let (messages, operations) = (std::mem::take(&mut way.messages), std::mem::take(&mut way.operations));
        messages.iter().for_each(|kept| ep.lanes[usize::from(kept.queue)].wqe.release(1));
        self.up.extend(operations.into_iter().map(|o| Upcall::RdmaDone { cookie: o.cookie, ok: false }));
        for Kept { queue, buf, .. } in messages {
            self.give_back(buf);
            if let Some(shared) = &mut self.queues[usize::from(queue)].shared
                && shared.send_slots.release(index)
            {
                self.pending.wake_queue(queue);
            }
        }
    }
}

/// The remote side or our own device has refused a request: what was posted behind it has had no effect (IBTA 9.9.2.4). All else
/// may have been carried out without our hearing of it.
fn is_certain(status: WcStatus) -> bool {
    !matches!(status, WcStatus::RetryExc | WcStatus::Other(_))
}
