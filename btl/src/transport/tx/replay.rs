//! A work request has failed, and with it the send queue pair that leads to all processes of a
//! node.
//!
//! ```text
//!   completions of the path:   ok  ok  FAILED(B)  flushed(C)  flushed(B)  flushed(C)
//!                                      B is lost  kept        given up    kept        then C: renew, a new route, posted again
//! ```
//! The endpoint whose request failed is lost: its process or SRQ is gone, the access was wrong, or
//! it did not answer; unless it is our queue pair that failed. What was flushed behind it, or when we gave the queue pair up ourselves, is
//! posted again. It may have been carried out all the same, without our hearing of it: a message is
//! known by its number, and a read or write has the same outcome twice as long as the upper layer
//! has not been told that it is over. An atomic has not: it is reported as failed.
#![forbid(unsafe_code)]

use super::Tx;
use super::path::Paths;
use crate::transport::channel::{Connection, Held, Operation};
use crate::transport::endpoint::retained::Kept;
use crate::transport::endpoint::state::{Event, State};
use crate::transport::endpoint::{CONNECT_PATIENCE, Endpoint};
use crate::transport::upcall::Upcalls;
use crate::transport::{SendBuf, Transport};
use verbs::{Completion, Wc, WcStatus};

impl<C> Tx<C> {
    /// The endpoint keeps what the line of its broken path held, to post it again. Not so an atomic:
    /// it may have been carried out, and the word would change twice.
    fn keep(
        &mut self,
        ep: &mut Endpoint<C>,
        (paths, up): (&mut Paths, &mut Upcalls<C>),
        held: Held<C>,
        by: &Completion,
    ) {
        let Some(route) = &mut ep.route else { return };
        self.keeps = true;
        ep.outstanding -= 1;
        self.outstanding -= 1;
        match held {
            Held::Message { queue, buf, share, total, .. } => {
                if let Some(buf) = buf.completed_up_to(by) {
                    let buf = SendBuf { buf, class: queue, share };
                    route.retained.messages.push_back(Kept { queue, buf, total });
                }
            }
            Held::Rdma { queue, rdma, .. } => {
                route.retained.operations.push_back(Operation::Rdma(rdma));
                ep.lanes[usize::from(queue)].budget.release(1);
                paths.release_place(route.path);
            }
            Held::Atomic { queue, buf, fetch, .. } => {
                self.take_word(buf, by);
                up.completed(fetch.cookie, false);
                ep.lanes[usize::from(queue)].budget.release(1);
                paths.release_place(route.path);
            }
        }
    }
}

impl<C> Transport<C> {
    /// A work request has not been carried out, or failed.
    #[cold]
    pub(crate) fn unsent(&mut self, wc: &Completion, held: Held<C>, path: u32) {
        let to = held.target().0;
        let again = wc.status() == WcStatus::Flushed || self.is_our_fault(to, wc);
        self.break_path(path, (!again).then_some(to), &reason(wc));
        match self.endpoints.on_hold(to, path).filter(|_| again) {
            Some(ep) => self.tx.keep(ep, (&mut self.paths, &mut self.up), held, wc),
            None => self.retire_from_path(held, wc, path, false),
        }
    }

    /// The request failed for the sake of our queue pair, which says nothing of the peer: it goes over another one, if not all do so.
    fn is_our_fault(&mut self, to: Connection, wc: &Completion) -> bool {
        let (most, current) = (self.port.config.reconnects, self.endpoints.has(to));
        let ep = self.endpoints.get_mut(to.index).filter(|_| current && wc.status() == WcStatus::LocQpOp);
        ep.is_some_and(|ep| ep.may_reroute(most))
    }

    /// The path leads nowhere any more: its endpoints are lost or find another.
    pub(crate) fn break_path(&mut self, id: u32, failed: Option<Connection>, reason: &str) {
        let Some(path) = self.paths.get_mut(id) else { return };
        if path.broken {
            return;
        }
        let marked = path.take_down();
        self.tx.count_markers(marked.into());
        log::debug!("the send queue pair of path {id} is broken: {reason}");
        let members: Vec<u32> = self.endpoints.on_path(id).collect();
        for index in members {
            let has_failed = failed.is_some_and(|to| to.index == index && self.endpoints.has(to));
            match self.endpoints.get(index) {
                Some(ep) if ep.has_parted() || has_failed && ep.has_only_to_hear() => {
                    self.left_unheard(index)
                }
                _ if has_failed => self.fail(index, &reason),
                _ => self.reroute(index),
            }
        }
    }

    /// The endpoint goes on over another send queue pair. What is sent meanwhile may answer what
    /// has come while the last one was up.
    pub(crate) fn reroute(&mut self, index: u32) {
        self.on_event(index, Event::Rerouted);
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        if ep.state() == State::Connecting {
            (ep.patience, ep.peer_has_sent) = (CONNECT_PATIENCE, true);
            self.stats.rerouted += 1;
            self.port.service.renew(ep.key(index));
        }
    }
}

pub(super) fn reason(wc: &Wc) -> String {
    match wc.status() {
        // What it means where sizes have been compared before.
        WcStatus::RemInvReq => {
            format!("work request on {}: the peer's process or its shared receive queue is gone", wc.qp_num())
        }
        status => format!("work request on {}: {status}", wc.qp_num()),
    }
}
