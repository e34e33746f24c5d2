//! What a connection that broke has not carried out, and another one is to carry out in its place.
#![forbid(unsafe_code)]

use super::Endpoint;
use super::ends::Ends;
use super::lane::Lane;
use crate::protocol::wire::{Arrived, Kind, counted};
use crate::transport::channel::Operation;
use crate::transport::port::buffer::SendBuf;
use cpc::StreamNum;
use std::collections::VecDeque;

/// A message that is to be sent again. Over X queues it still has its entry and its send slot.
#[derive(Debug)]
pub struct Kept {
    /// Index of its queue.
    pub queue: u8,
    /// The buffer that it lies in.
    pub buf: SendBuf,
    /// Bytes, header included.
    pub total: u32,
}

/// The bytes of a message without the buffer that it was in, header included.
#[derive(Debug)]
pub struct Copied {
    /// Index of its queue.
    pub queue: u8,
    /// Header and payload.
    pub bytes: Box<[u8]>,
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
    /// It is the connection at hand that has broken, not the one before it.
    pub is_at_hand: bool,
    /// What has been flushed, until the queue pairs are gone.
    pub retained: Retained<C>,
    /// By queue: messages in front of those that wait which the broken connection may have carried out.
    pub again: Vec<u16>,
    /// Operations in front of those that wait, likewise.
    pub again_operations: usize,
    /// What had come when the next connection began: messages by queue, and the upper layer's.
    pub base: (Vec<u16>, u32),
    /// Our acknowledgement of the peer's end waited when the connection broke.
    pub acknowledges: bool,
    /// What the peer says has come to it.
    pub arrived: Option<Arrived>,
    /// Something could not be kept, and why.
    pub lost: Option<String>,
}

/// The stream before this one, whose end its peer had told and heard of. It has left since, or has sent more: then it goes on with that stream, as the
/// connection managers agree.
#[derive(Debug)]
pub struct Former {
    /// Its number.
    pub stream: StreamNum,
    /// Messages over each queue, to the peer and from it.
    counts: Vec<(u16, u16)>,
    ends: Ends,
    /// What was flushed of it, by queue: a peer that has left does not miss it, one that goes on does.
    kept: Vec<Copied>,
}

impl Former {
    /// Of these lanes, if the peer may have left.
    pub fn of(lanes: &[Lane], ends: Ends, stream: StreamNum) -> Option<Box<Former>> {
        let counts = lanes.iter().map(|lane| (lane.sent, lane.received)).collect();
        ends.peer_is_done().then(|| Box::new(Former { stream, counts, ends, kept: Vec::new() }))
    }

    /// What had come, by queue.
    pub fn received(&self) -> Vec<u16> {
        self.counts.iter().map(|(_, received)| *received).collect()
    }
}

impl Kept {
    fn copied(&self) -> Copied {
        let bytes = self.buf.buf.as_slice();
        let bytes = &bytes[..bytes.len().min(self.total as usize)];
        Copied { queue: self.queue, bytes: bytes.into() }
    }

    fn is_acknowledgement(&self) -> bool {
        let head = self.buf.buf.as_slice().first_chunk().copied();
        head.and_then(counted).is_some_and(|(kind, _)| kind == Kind::EndAck)
    }
}

impl<C> Resume<C> {
    /// The peer may not have heard that all it has said has come: the acknowledgement has not gone, or it was flushed.
    pub fn has_to_acknowledge(&self) -> bool {
        self.acknowledges || self.retained.messages.iter().any(Kept::is_acknowledgement)
    }

    /// Of a connection with so many queues; nothing is kept yet.
    pub fn new(queues: usize) -> Resume<C> {
        Resume {
            reason: String::new(),
            is_at_hand: true,
            retained: Retained::default(),
            again: vec![0; queues],
            again_operations: 0,
            base: (vec![0; queues], 0),
            acknowledges: false,
            arrived: None,
            lost: None,
        }
    }
}

impl<C> Endpoint<C> {
    /// A connection of its own, or the one that is to take its place.
    pub fn can_resume(&self) -> bool {
        let comes_again = self.resume.is_some() && self.state().is_coming_up();
        !self.is_to_itself() && self.first.is_none() && (comes_again || self.state().has_queue_pairs())
    }

    /// Nothing has passed over the connections so far, as far as both sides know.
    pub fn is_at_the_beginning(&self) -> bool {
        let received = self.resume.iter().flat_map(|resume| &resume.base.0);
        let mut counts = self.lanes.iter().map(|lane| &lane.sent).chain(received);
        counts.all(|count| *count == 0)
    }

    /// Messages have come over the connection at hand.
    pub fn has_brought(&self) -> bool {
        let before = self.resume.as_ref().filter(|resume| !resume.is_at_hand).map(|resume| &resume.base.0);
        let count_before = |queue| before.and_then(|counts| counts.get(queue)).copied().unwrap_or(0);
        self.lanes.iter().enumerate().any(|(queue, lane)| lane.received != count_before(queue))
    }

    /// The peer has left, as it has said, and has begun anew: counts begin with what has come over this connection.
    pub fn begin_anew(&mut self, resume: &Resume<C>) {
        let (received, of_data) = (&resume.base.0, resume.base.1);
        for (lane, before) in self.lanes.iter_mut().zip(received) {
            (lane.sent, lane.received) = (0, lane.received.wrapping_sub(*before));
        }
        self.ends = Ends::after(self.ends.received.wrapping_sub(of_data));
    }

    /// What the next connection goes on with, if its peer does.
    pub fn offered(&self) -> StreamNum {
        match (&self.former, &self.resume) {
            (Some(former), _) => former.stream,
            (None, Some(resume)) if !resume.is_at_hand => self.stream,
            (None, _) => StreamNum::NONE,
        }
    }

    /// The peer has left, as far as is known: what was flushed waits, without its buffers, until it is back.
    pub fn part(&mut self) {
        self.former = Former::of(&self.lanes, self.ends, self.stream);
        if let (Some(former), Some(resume)) = (&mut self.former, &self.resume) {
            former.kept = resume.retained.messages.iter().map(Kept::copied).collect();
        }
    }

    /// The peer goes on with the stream that it had ended: so do we, with what has passed over this connection added. What was kept of it.
    pub fn go_back(&mut self) -> Vec<Copied> {
        let Some(former) = self.former.take() else { return Vec::new() };
        for (lane, (sent, received)) in self.lanes.iter_mut().zip(&former.counts) {
            lane.sent = lane.sent.wrapping_add(*sent);
            lane.received = lane.received.wrapping_add(*received);
        }
        let base = (former.received(), former.ends.received);
        (self.stream, self.ends) = (former.stream, former.ends.followed_by(self.ends));
        let queues = self.lanes.len();
        let resume = self.resume.get_or_insert_with(|| Box::new(Resume::new(queues)));
        (resume.base, resume.is_at_hand) = (base, false);
        former.kept
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

    /// A data message has gone, and its lane has counted it: what is left to count, but for its completion if there is to be one.
    #[inline(always)] // with every message
    pub fn count_written(&mut self, len: usize) {
        self.traffic.sent += len as u64;
        self.ends.sent = self.ends.sent.wrapping_add(1);
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
