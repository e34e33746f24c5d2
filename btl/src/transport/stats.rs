//! Counters of one transport: plain numbers, written by the thread that holds it.
//!
//! A message pays for what no other moment tells: that it went or came, and its bytes. The rest is
//! counted where something rare happens, or is read off the parts when the counters are asked for.
#![forbid(unsafe_code)]

use std::fmt;

/// Declares each counter once: its field, its line in [`Stats::TABLE`], its part of a sum.
macro_rules! counters {
    ($($(#[doc = $help:literal])+ $name:ident: $kind:ident,)+) => {
        /// What happened since the transport was opened; [`Transport::counted`](super::Transport::counted) and its owner fill in what others count.
        /// Those marked "never" should stay 0.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(C)] // in this order: those of each message are in one cache line
        pub struct Stats {
            $($(#[doc = $help])+ pub $name: u64,)+
        }

        impl Stats {
            /// Nothing has happened.
            pub const NONE: Stats = Stats { $($name: Kind::$kind.start(),)+ };

            /// Every counter.
            pub const TABLE: &'static [Counter] = &[$(Counter {
                name: stringify!($name),
                help: concat!($($help),+),
                kind: Kind::$kind,
                of: |stats| stats.$name,
            },)+];

            /// Adds what another transport has counted.
            pub fn add(&mut self, other: &Stats) {
                $(self.$name = Kind::$kind.join(self.$name, other.$name);)+
            }
        }
    };
}

/// What a counter's value does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It grows with each event.
    Sum,
    /// It is the highest that there has been.
    Highest,
    /// It is the lowest that there has been.
    Lowest,
}

impl Kind {
    /// The value while there has been nothing.
    pub const fn start(self) -> u64 {
        match self {
            Kind::Sum | Kind::Highest => 0,
            Kind::Lowest => u64::MAX,
        }
    }

    /// The value of two transports together.
    fn join(self, one: u64, other: u64) -> u64 {
        match self {
            Kind::Sum => one + other,
            Kind::Highest => one.max(other),
            Kind::Lowest => one.min(other),
        }
    }
}

/// One counter.
#[derive(Debug)]
pub struct Counter {
    /// The name of the field.
    pub name: &'static str,
    /// What it counts, with a leading space in front of each line.
    pub help: &'static str,
    /// What its value does.
    pub kind: Kind,
    /// Its value.
    pub of: fn(&Stats) -> u64,
}

/// Lists of requests that the device took with one call, and the requests in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chains {
    /// Lists.
    pub lists: u64,
    /// Requests.
    pub requests: u64,
}

counters! {
    /// Messages sent inline, straight from the caller's buffer.
    sent_inline: Sum,
    /// Messages that were written into their receiver's ring (eager RDMA).
    sent_eager: Sum,
    /// Messages delivered to the upper layer.
    received: Sum,
    /// Peers that rings of eager RDMA were opened to.
    rings: Sum,
    /// Those among them that have been closed again, for they were not used and another peer sent much.
    rings_closed: Sum,
    /// Looks that found a message in a ring of which the device had not written everything yet, as its checksum showed.
    eager_unfinished: Sum,
    /// Messages sent from a registered buffer, or from the registered memory of a queue pair.
    sent_buffered: Sum,
    /// Queue pairs that have been given registered memory for messages that are copied.
    send_rings: Sum,
    /// Messages that had to wait for a connection, a credit or a work queue entry.
    sent_late: Sum,
    /// Bytes of messages and puts to all peers, without our headers.
    bytes_sent: Sum,
    /// Bytes of messages and of our gets from all peers, without our headers. What peers put and get they
    /// count.
    bytes_received: Sum,
    /// Bytes sent to the peer that most were sent to over one port.
    peer_bytes_sent: Highest,
    /// Bytes received from the peer that most came from over one port.
    peer_bytes_received: Highest,
    /// Times that a message found its connection not up yet.
    stalled_connecting: Sum,
    /// Times that a message found no credit of its peer.
    stalled_credits: Sum,
    /// Looks around by a thread of our own, while messages waited whose senders may have left MPI.
    background_looks: Sum,
    /// Fewest credits that a message has left on a per-peer queue, 0 if it has used up the window that was
    /// open; 2^64 - 1 without such a queue to a peer that is talked to.
    credits_low: Lowest,
    /// Times that a message found no free work queue entry.
    stalled_entries: Sum,
    /// Times that a message found the sends that a shared queue allows in flight.
    stalled_shared: Sum,
    /// Times that a long message was left with Open MPI, because it would have waited in the device's send queue while the peer sends much, too.
    long_refused: Sum,
    /// Times that a caller got no buffer, because its peer had its share of the pool.
    stalled_buffers: Sum,
    /// Requests posted only to have those before them reported, which were not signalled.
    markers: Sum,
    /// Most requests in a row that were not signalled, and reported by the completion of the one behind
    /// them.
    unsignalled_high: Highest,
    /// Lists of messages that were handed to the device with one call, because they could go at the same time.
    send_chains: Sum,
    /// Messages in them.
    send_chained: Sum,
    /// Completions of sends that were looked at.
    completions: Sum,
    /// Explicit credit messages sent.
    credit_messages: Sum,
    /// Peers that had said nothing for a while and were asked whether they are there.
    keepalives: Sum,
    /// Ends of streams that were told, and such of peers that were acknowledged: two for each connection that is taken down,
    /// or one, if the peer has left before.
    ends: Sum,
    /// Lists of receives that were handed to the device with one call.
    recv_chains: Sum,
    /// Receives in them.
    recv_chained: Sum,
    /// RDMA operations posted, atomics among them, and those that were over without that.
    rdma: Sum,
    /// softib: puts and gets that were over within the call, as their memory is mapped here, or the kernel copies it in less time than the peer
    /// would.
    rdma_at_once: Sum,
    /// Requests of atomics posted: one for each addition and compare-and-swap, one or more for another
    /// change.
    atomics: Sum,
    /// Times that a shared receive queue was made longer, because it was nearly empty.
    srq_grown: Sum,
    /// softib: times that a message of ours found no receive at its peer, and was tried again (RNR). Other
    /// devices do not tell.
    rnr: Sum,
    /// Times that a completion queue was made longer, for one more connection. Entries are reserved: no
    /// message waits for one.
    cq_grown: Sum,
    /// Connections that came up.
    connected: Sum,
    /// Connections that were begun anew, because the peer had left before they were up, or is back.
    renewed: Sum,
    /// Connection requests that crossed with the peer's.
    cm_raced: Sum,
    /// Messages of connection managers that were sent again.
    cm_repeated: Sum,
    /// Endpoints that failed.
    failed: Sum,
    /// Buffers taken beyond the pool's limit, because the caller was inside a receive callback.
    beyond_limit: Sum,
    /// Connections over P and S queues that broke, and that another one took the place of.
    reconnects: Sum,
    /// Connections that were begun over the device's other port, because one of the two does not serve.
    port_changes: Sum,
    /// X queues: endpoints that went on over another send queue pair, because the one to their node
    /// broke.
    rerouted: Sum,
    /// Messages that were sent again for one of these reasons; over X queues operations, too.
    replayed: Sum,
    /// X queues: messages that came a second time, and were dropped.
    repeated: Sum,
    /// Messages that were held back, because too many answers waited.
    held: Sum,
    /// Most messages that were held back at a time.
    held_high: Highest,
    /// Those among them that were executed before the answers were out, because nothing else moved.
    trickled: Sum,
    /// Messages that arrived before their endpoint was known.
    parked: Sum,
    /// Messages and modex data that no oxib of this version writes (never).
    refused: Sum,
    /// Completions of connections and requests that are gone.
    stale: Sum,
    /// Asynchronous events of the device, of every kind.
    device_events: Sum,
    /// Times that the device told of the port being down.
    port_errors: Sum,
    /// Most bytes that were registered with the device at a time, over one port: our buffers and user memory.
    registered_high: Highest,
    /// Registrations of user memory that were found in the cache.
    reg_hits: Sum,
    /// Registrations that were made anew.
    reg_misses: Sum,
    /// Registrations that left the cache for others.
    reg_evicted: Sum,
    /// Registrations that left the cache because their memory was given back to the system.
    reg_invalidated: Sum,
}

impl Stats {
    /// A completion has reported `count` requests: its own and those before it that were not signalled.
    #[inline]
    pub(super) fn note_run(&mut self, count: u16) {
        self.unsignalled_high = self.unsignalled_high.max(u64::from(count).saturating_sub(1));
    }

    /// A connection has had so few credits left.
    pub(super) fn note_credits(&mut self, fewest: Option<u16>) {
        self.credits_low = self.credits_low.min(fewest.map_or(u64::MAX, u64::from));
    }

    /// Grows with whatever the upper layer gives us to send.
    pub fn handed_over(&self) -> u64 {
        self.sent_inline + self.sent_eager + self.sent_buffered + self.sent_late + self.rdma
    }
}

impl Default for Stats {
    fn default() -> Stats {
        Stats::NONE
    }
}

/// The counters that have counted something, and the marks.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for counter in Stats::TABLE {
            let count = (counter.of)(self);
            if count != counter.kind.start() {
                write!(f, "{between}{} {count}", counter.name)?;
                between = ", ";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_has_been_counted() {
        let mut stats = Stats { sent_inline: 3, stale: 1, ..Stats::NONE };
        stats.add(&Stats { sent_inline: 4, ..Stats::NONE });
        assert_eq!(stats.to_string(), "sent_inline 7, stale 1");
        assert_eq!(Stats::NONE, Stats::default());
    }

    #[test]
    fn marks_of_two_ports_are_the_higher_and_the_lower_one_and_not_their_sum() {
        let mut stats = Stats { held_high: 3, credits_low: 7, bytes_sent: 1, ..Stats::NONE };
        stats.add(&Stats { held_high: 5, credits_low: 0, bytes_sent: 1, ..Stats::NONE });
        stats.add(&Stats::NONE);
        assert_eq!(stats.to_string(), "bytes_sent 2, credits_low 0, held_high 5");
    }
}
