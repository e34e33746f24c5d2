//! Where every buffer, credit and entry of a transport is: what tests and a stuck job's dump look
//! at.
//!
//! When nothing is in flight, nothing is missing: all send buffers are in their pools, every
//! receive buffer is in its pool, posted, or waits to be posted, and the credits of the two sides
//! of a lane add up to the window that is open.
#![forbid(unsafe_code)]

use super::Transport;
use super::endpoint::lane::Lane;
use super::endpoint::state::State;
use super::endpoint::{Endpoint, Endpoints};
use super::port::OpenPort;
use super::port::depth::CqRoom;
use super::port::entries::Count;
use super::port::queue::{RecvQueue, SendQueue, SendSlots};
use crate::protocol::credits::Grant;

/// A snapshot of a whole transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// A flush of all endpoints would return at once, without a look at each.
    pub all_done: bool,
    /// Work requests that have not completed, over all endpoints.
    pub outstanding: u32,
    /// Buffers and operations that the device owns.
    pub inflight: usize,
    /// Messages that wait for a connection, a credit or an entry.
    pub pending: usize,
    /// Messages whose sender is not known yet.
    pub parked: usize,
    /// Messages that receive callbacks have sent and that wait.
    pub answers: u32,
    /// Received messages that are held back meanwhile.
    pub held: usize,
    /// Buffers for clear-to-send messages: made, and in their pool. An endpoint that is not
    /// connected holds one.
    pub cts_buffers: (u32, usize),
    /// Entries of the completion queues.
    pub completions: CompletionAudit,
    /// One for each queue of the layout.
    pub queues: Vec<QueueAudit>,
    /// One for each queue pair of a per-peer queue.
    pub lanes: Vec<LaneAudit>,
}

/// Entries of the completion queues: `reserved` equals `due`, and `exceeding` is empty, always.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionAudit {
    /// Entries that there are.
    pub depth: Count,
    /// Those that are reserved.
    pub reserved: Count,
    /// Those that have to be, by what all peers share and by where each endpoint stands.
    pub due: Count,
    /// Peers whose connections have posted, or may post, more than is reserved for them.
    pub exceeding: Vec<u64>,
}

/// The buffers of one queue of the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueAudit {
    /// Send buffers made, and those in the pool.
    pub send_buffers: (u32, usize),
    /// Send buffers of the pool's limit that no peer holds.
    pub share_free: u32,
    /// Receive buffers made, and those in the pool.
    pub recv_buffers: (u32, usize),
    /// Receive buffers that the device holds, and those that wait to be posted again.
    pub recv_slots: (usize, usize),
    /// Sends that a shared queue still allows; none for a per-peer queue.
    pub send_slots: Option<u32>,
}

/// The credits of one per-peer queue to one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneAudit {
    /// The peer.
    pub peer: u64,
    /// Queue of the layout.
    pub queue: usize,
    /// What we may send: data and credit messages.
    pub have: Grant,
    /// What we owe the peer, buffers that are not posted yet included.
    pub owe: Grant,
    /// Data messages that the peer may have under way: the window that is open to it.
    pub window: u16,
    /// Send work queue entries in use.
    pub entries: u16,
}

impl<C> Transport<C> {
    /// Counts everything. Not for the hot path: it walks over all receive slots.
    pub fn audit(&self) -> Audit {
        let queues = self.tx.queues.iter().zip(&self.rx.queues).enumerate();
        let tally = |(queue, (send, recv))| audit_queue(send, recv, self.rx.slots.tally(queue));
        Audit {
            all_done: self.is_all_done(),
            outstanding: self.tx.outstanding,
            inflight: self.tx.held.len(),
            pending: self.tx.pending.len(),
            parked: self.rx.parked.len(),
            answers: self.tx.answers,
            held: self.rx.hold.len(),
            cts_buffers: self.rx.cts.tally(),
            completions: self.audit_completions(),
            queues: queues.map(tally).collect(),
            lanes: audit_lanes(&self.endpoints),
        }
    }

    /// Counts the entries of the completion queues.
    pub fn audit_completions(&self) -> CompletionAudit {
        let of = |number: fn(&CqRoom) -> u32| Count {
            recv: number(&self.port.recv_room),
            send: number(&self.port.send_room),
        };
        let due = |sum, (_, ep): (u32, &Endpoint<C>)| sum + entries_due(ep, &self.port);
        let exceeds = |(index, ep): (u32, &Endpoint<C>)| {
            let may_post = Count { recv: self.rx.slots.owned(index), send: sends(ep) };
            let covered = ep.entries.count();
            (may_post.recv > covered.recv || may_post.send > covered.send).then_some(ep.peer)
        };
        CompletionAudit {
            depth: of(|room| room.cq().depth()),
            reserved: of(CqRoom::reserved),
            due: self.endpoints.iter().fold(self.port.reserved_for_all(), due),
            exceeding: self.endpoints.iter().filter_map(exceeds).collect(),
        }
    }
}

/// What has to be reserved for an endpoint. One that is over keeps what it had: the device may still
/// hold what it has posted.
fn entries_due<C>(ep: &Endpoint<C>, port: &OpenPort) -> Count {
    let itself = ep.is_to_itself();
    let (added, connected) = (port.when_added(itself), port.when_connected(itself));
    match ep.state() {
        State::Idle => added,
        // X queues: on its way from a route that broke to another.
        State::Connecting if ep.route.is_some() => added + connected,
        State::Connecting => added,
        State::HaveQps
        | State::HaveCts
        | State::CtsSent
        | State::Posted
        | State::AwaitingFirst
        | State::Resuming => added + connected,
        State::Ready | State::Connected | State::Draining | State::Drained | State::Ended => {
            added + connected
        }
        State::Renewing(_) | State::Retiring(_) | State::Failed | State::Disconnected | State::Closed => {
            ep.entries.count()
        }
    }
}

/// Send work requests that the endpoint's own queue pairs may have out.
fn sends<C>(ep: &Endpoint<C>) -> u32 {
    let own = ep.lanes.iter().filter(|lane| lane.channel.is_some());
    own.map(|lane| u32::from(lane.budget.total())).sum()
}

fn audit_queue(send: &SendQueue, recv: &RecvQueue, recv_slots: (usize, usize)) -> QueueAudit {
    QueueAudit {
        send_buffers: (send.bufs.allocated(), send.bufs.free_len()),
        share_free: send.shares.free(),
        recv_buffers: (recv.bufs.allocated(), recv.bufs.free_len()),
        recv_slots,
        send_slots: send.slots.as_ref().map(SendSlots::free),
    }
}

/// Those of connections: before and after one, credits say nothing.
fn audit_lanes<C>(endpoints: &Endpoints<C>) -> Vec<LaneAudit> {
    let of = |(_, ep): (u32, &Endpoint<C>)| {
        let lanes = ep.lanes.iter().enumerate();
        lanes.filter_map(|(queue, lane)| audit_lane(ep.peer, queue, lane)).collect::<Vec<_>>()
    };
    endpoints.iter().filter(|(_, ep)| ep.state().has_posted()).flat_map(of).collect()
}

fn audit_lane(peer: u64, queue: usize, lane: &Lane) -> Option<LaneAudit> {
    let (credits, window) = lane.credits.as_ref()?;
    let owed = credits.owed();
    Some(LaneAudit {
        peer,
        queue,
        have: Grant { data: credits.data(), ctl: credits.ctl() },
        owe: Grant { data: owed.data + credits.unposted(), ctl: owed.ctl },
        window: window.rd_num(),
        entries: lane.budget.in_flight(),
    })
}
