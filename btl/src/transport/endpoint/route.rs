//! X queues: the route to a peer's process.
#![forbid(unsafe_code)]

use super::QueuedRdma;
use crate::transport::port::buffer::SendBuf;
use cpc::Route;
use std::collections::VecDeque;
use std::sync::Arc;
use verbs::{Qp, SrqNum};

/// A message that is to be posted again. It still has its entry and its send slot.
#[derive(Debug)]
pub struct Kept {
    pub queue: u8,
    pub buf: SendBuf,
    pub total: u32,
}

/// The route to a peer's process: the send queue pair to its node, and its SRQs there.
#[derive(Debug)]
pub struct XrcRoute<C> {
    pub path: u32,
    pub qp: Arc<Qp>,
    pub srqs: Vec<SrqNum>,
    /// In the headers of our messages.
    pub label: u32,
    /// Of a broken path: messages that were flushed, in order.
    pub messages: VecDeque<Kept>,
    /// Of a broken path: operations that were flushed, in order.
    pub operations: VecDeque<QueuedRdma<C>>,
    /// The next route, which is there before this one has been drained.
    pub next: Option<Route>,
}

impl<C> XrcRoute<C> {
    /// Over this route of the connection manager.
    pub fn new(route: Route) -> XrcRoute<C> {
        XrcRoute {
            path: route.path,
            qp: route.qp,
            srqs: route.srqs,
            label: route.label,
            messages: VecDeque::new(),
            operations: VecDeque::new(),
            next: None,
        }
    }

    /// What is to be posted again.
    pub fn kept(&self) -> usize {
        self.messages.len() + self.operations.len()
    }
}
