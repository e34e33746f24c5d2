//! What a connection that broke has not carried out, and another one is to carry out in its place.
#![forbid(unsafe_code)]

use super::Endpoint;
use super::ends::Ends;
use super::lane::Lane;
use crate::protocol::wire::{Arrived, Kind};
use crate::transport::channel::Operation;
use crate::transport::port::buffer::SendBuf;
use std::collections::VecDeque;

/// A message that is to be sent again. Over X queues it still has its entry and its send slot.
#[derive(Debug)]
pub struct Kept {
    pub queue: u8,
    pub buf: SendBuf,
    /// Bytes, header included.
    pub total: u32,
}

/// Requests of each connection before the upper layer's: the CTS, and what has come.
const OPENING: u32 = 2;

/// What was flushed.
#[derive(Debug)]
pub struct Retained<C> {
    /// Messages, those of a queue in order.
    pub messages: VecDeque<Kept>,
    /// Reads and writes, in order.
    pub operations: VecDeque<Operation<C>>,
}

impl<C> Default for Retained<C> {
    fn default() -> Self {
        Retained { messages: VecDeque::new(), operations: VecDeque::new() }
    }
}

impl<C> Retained<C> {
    /// Messages and operations.
    pub fn len(&self) -> usize {
        self.messages.len() + self.operations.len()
    }
}

/// P and S queues: a connection that has broken, until another one has taken its place.
#[derive(Debug)]
pub struct Resume<C> {
    /// Why it broke.
    pub reason: String,
    /// What has been flushed, until the queue pairs are gone.
    pub retained: Retained<C>,
    /// By queue: messages in front of those that wait which the broken connection may have carried out.
    pub again: Vec<u16>,
    /// What the peer says has come to it.
    pub arrived: Option<Arrived>,
    /// Something could not be kept, and why.
    pub lost: Option<String>,
}

impl<C> Resume<C> {
    /// Of a connection with so many queues; nothing is kept yet.
    pub fn new(queues: usize) -> Resume<C> {
        Resume {
            reason: String::new(),
            retained: Retained::default(),
            again: vec![0; queues],
            arrived: None,
            lost: None,
        }
    }
}

/// The counts of a connection whose peer has said that it leaves, and has been acknowledged. If that connection has broken on the
/// peer's side first, the peer comes back, and resumes.
#[derive(Debug)]
pub struct Former {
    ends: Ends,
    /// By queue: messages to the peer and from it.
    counts: Vec<(u16, u16)>,
}

impl Former {
    /// Of a connection with such lanes and ends.
    pub fn of(lanes: &[Lane], ends: Ends) -> Option<Box<Former>> {
        let counts = || lanes.iter().map(|lane| (lane.sent, lane.received)).collect();
        ends.peer_is_done().then(|| Box::new(Former { ends, counts: counts() }))
    }
}

impl<C> Endpoint<C> {
    /// The peer may be about to go on with the connection before this one: its first message says.
    pub fn may_go_back(&self) -> bool {
        self.former.is_some() && self.ends == Ends::default()
    }

    /// The peer goes on with the connection before this one: so do we, from the counts of that one, or from none if nothing has come or gone
    /// here. False: something has passed over this one.
    pub fn go_back(&mut self) -> bool {
        if self.ends != Ends::default() {
            return false;
        }
        if let Some(former) = self.former.take() {
            self.ends = former.ends;
            for (lane, counts) in self.lanes.iter_mut().zip(former.counts) {
                (lane.sent, lane.received) = counts;
            }
        }
        self.resume = Some(Box::new(Resume::new(self.lanes.len())));
        true
    }

    /// A connection of its own that has been up, or the one that is to take its place.
    pub fn can_resume(&self) -> bool {
        let comes_again = self.resume.is_some() && self.state().is_coming_up();
        !self.is_to_itself() && self.first.is_none() && (comes_again || self.state().flows())
    }

    /// What this connection does not carry out is kept for another one.
    pub fn keeps(&self) -> bool {
        self.resume.is_some() || self.can_resume()
    }

    /// Its connection breaks once more, on our side. Whether something has passed since the last time, or it is the `most`-th
    /// time at most that nothing has.
    pub fn may_lose(&mut self, most: u8) -> bool {
        let completed: u32 = self.lanes.iter().map(|lane| lane.completed).sum();
        if completed > OPENING || self.moved != self.ends.received {
            (self.moved, self.losses) = (self.ends.received, 0);
        }
        let may = self.losses < most;
        self.losses = self.losses.saturating_add(1);
        may
    }

    /// X queues: the send queue pair has failed with a request to it. As [`Self::may_lose`], of another send queue pair.
    pub fn may_reroute(&mut self, most: u8) -> bool {
        let moved = self.lanes.iter().fold(self.ends.received, |sum, lane| sum.wrapping_add(lane.completed));
        if moved != self.moved {
            (self.moved, self.losses) = (moved, 0);
        }
        let may = self.losses < most;
        self.losses = self.losses.saturating_add(1);
        may
    }

    /// The next connection is ours to ask for: something waits, or there is something to say or to hear.
    pub fn has_to_resume(&self) -> bool {
        self.resume.is_some() && (self.ends.are_open() || !self.ends.peer_has_ended())
    }

    /// A message goes out, or is known to have gone.
    pub fn count_sent(&mut self, queue: usize, kind: Kind, len: u32) {
        self.lanes[queue].sent = self.lanes[queue].sent.wrapping_add(1);
        if kind == Kind::Data {
            self.traffic.sent += u64::from(len);
            self.ends.sent = self.ends.sent.wrapping_add(1);
        }
    }

    /// It may not have gone.
    pub fn unsend(&mut self, queue: usize, kind: Kind, len: u32) {
        self.lanes[queue].sent = self.lanes[queue].sent.wrapping_sub(1);
        if kind == Kind::Data {
            self.traffic.sent -= u64::from(len);
            self.ends.sent = self.ends.sent.wrapping_sub(1);
        }
    }
}
