//! Contexts and their asynchronous events.
//!
//! An event names an object by its index; it is turned into the C union when the program fetches it, and an
//! object that is destroyed before takes its undelivered events along.

use super::CBox;
use super::cq::raise;
use rdma_sys::{ibv_event_type, verbs_context};
use std::collections::VecDeque;
use std::fs::File;

/// What an asynchronous event is about, by its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    Cq(usize),
    Qp(usize),
    Srq(usize),
    /// A port, by its number.
    Port(u8),
    /// A handle of a domain's receive queue pair.
    Handle(usize),
}

/// An asynchronous event that waits to be taken.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// What happened.
    pub kind: ibv_event_type,
    /// What it happened to.
    pub subject: Subject,
}

/// An open device, as one `ibv_open_device` made it.
#[derive(Debug)]
pub struct Context {
    /// What programs know it by.
    pub c: CBox<verbs_context>,
    /// Which device: 0 for softib0.
    pub device: usize,
    /// Objects made with it.
    pub users: u32,
    /// Events that wait to be taken.
    pub queue: VecDeque<Event>,
    /// The eventfd behind `async_fd`.
    pub file: File,
    /// `cmd_fd`: programs may duplicate it or set flags on it; there is no kernel behind it.
    pub _command: File,
}

impl Context {
    /// Queues an event and makes the descriptor readable.
    pub fn post(&mut self, event: Event) {
        self.queue.push_back(event);
        raise(&self.file);
    }
}
