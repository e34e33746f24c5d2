//! Counters of one transport: plain numbers, written by the thread that holds it.
#![forbid(unsafe_code)]

use std::fmt;

/// Declares each counter once: its field, its line in [`Stats::TABLE`], its part of a sum.
macro_rules! counters {
    ($($(#[doc = $help:literal])+ $name:ident,)+) => {
        /// What happened since the transport was opened; [`Transport::counted`](super::Transport::counted) and its owner fill in what others count.
        /// Those marked "never" should stay 0.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[doc = $help])+ pub $name: u64,)+
        }

        impl Stats {
            /// Nothing has happened.
            pub const NONE: Stats = Stats { $($name: 0,)+ };

            /// Every counter.
            pub const TABLE: &'static [Counter] =
                &[$(Counter { name: stringify!($name), help: concat!($($help),+), of: |stats| stats.$name },)+];

            /// Adds what another transport has counted.
            pub fn add(&mut self, other: &Stats) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

/// One counter.
#[derive(Debug)]
pub struct Counter {
    /// The name of the field.
    pub name: &'static str,
    /// What it counts, with a leading space in front of each line.
    pub help: &'static str,
    /// Its value.
    pub of: fn(&Stats) -> u64,
}

counters! {
    /// Messages sent inline, straight from the caller's buffer.
    sent_inline,
    /// Messages sent from a registered buffer.
    sent_buffered,
    /// Messages that had to wait for a connection, a credit or a work queue entry.
    sent_late,
    /// Times that a message found its connection not up yet.
    stalled_connecting,
    /// Times that a message found no credit of its peer.
    stalled_credits,
    /// Times that a message found no free work queue entry.
    stalled_entries,
    /// Times that a message found the sends that a shared queue allows in flight.
    stalled_shared,
    /// Times that a caller got no buffer, because its peer had its share of the pool.
    stalled_buffers,
    /// Requests posted only to have those before them reported, which were not signalled.
    markers,
    /// Completions of sends that were looked at.
    completions,
    /// Messages delivered to the upper layer.
    received,
    /// Explicit credit messages sent.
    credit_messages,
    /// RDMA operations posted, atomics among them.
    rdma,
    /// Requests of atomics posted: one for each addition and compare-and-swap, one or more for another
    /// change.
    atomics,
    /// Times that a shared receive queue was made longer, because it was nearly empty.
    srq_grown,
    /// Connections that came up.
    connected,
    /// Connections that were begun anew, because the peer had left before they were up, or is back.
    renewed,
    /// Connection requests that crossed with the peer's.
    cm_raced,
    /// Messages of connection managers that were sent again.
    cm_repeated,
    /// Endpoints that failed.
    failed,
    /// Buffers taken beyond the pool's limit, because the caller was inside a receive callback.
    beyond_limit,
    /// X queues: endpoints that went on over another send queue pair, because the one to their node
    /// broke.
    rerouted,
    /// X queues: messages and operations that were posted again for that reason.
    replayed,
    /// X queues: messages that came a second time, and were dropped.
    repeated,
    /// Messages that were held back, because too many answers waited.
    held,
    /// Those among them that were executed before the answers were out, because nothing else moved.
    trickled,
    /// Messages that arrived before their endpoint was known.
    parked,
    /// Messages and modex data that no oxib of this version writes (never).
    refused,
    /// Completions of connections and requests that are gone.
    stale,
    /// Asynchronous events of the device, of every kind.
    device_events,
    /// Times that the device told of the port being down.
    port_errors,
    /// Registrations of user memory that were found in the cache.
    reg_hits,
    /// Registrations that were made anew.
    reg_misses,
    /// Registrations that left the cache for others.
    reg_evicted,
    /// Registrations that left the cache because their memory was given back to the system.
    reg_invalidated,
}

impl Stats {
    /// Grows with whatever the upper layer gives us to send.
    pub fn handed_over(&self) -> u64 {
        self.sent_inline + self.sent_buffered + self.sent_late + self.rdma
    }
}

/// The counters that are not zero.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for counter in Stats::TABLE {
            let count = (counter.of)(self);
            if count != 0 {
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
}
