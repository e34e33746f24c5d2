//! Counters of one transport: plain numbers, written by the thread that holds it.
#![forbid(unsafe_code)]

/// What happened since the transport was opened. Those marked "never" should stay 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages sent inline, straight from the caller's buffer.
    pub sent_inline: u64,
    /// Messages sent from a registered buffer.
    pub sent_buffered: u64,
    /// Messages that had to wait for a connection, a credit or a work queue entry.
    pub sent_late: u64,
    /// Completions of sends that were looked at.
    pub completions: u64,
    /// Messages delivered to the upper layer.
    pub received: u64,
    /// Explicit credit messages sent.
    pub credit_messages: u64,
    /// RDMA operations posted.
    pub rdma: u64,
    /// Connections that came up.
    pub connected: u64,
    /// Connections that were begun anew, because the peer had left before they were up, or is back.
    pub renewed: u64,
    /// Endpoints that failed.
    pub failed: u64,
    /// Buffers taken beyond the pool's limit, because the caller was inside a receive callback.
    pub beyond_limit: u64,
    /// X queues: endpoints that went on over another send queue pair, because the one to their node
    /// broke.
    pub rerouted: u64,
    /// X queues: messages and operations that were posted again for that reason.
    pub replayed: u64,
    /// X queues: messages that came a second time, and were dropped.
    pub repeated: u64,
    /// Messages that were held back, because too many answers waited.
    pub held: u64,
    /// Those among them that were executed before the answers were out, because nothing else moved.
    pub trickled: u64,
    /// Messages that arrived before their endpoint was known.
    pub parked: u64,
    /// Messages and modex data that no oxib of this version writes (never).
    pub refused: u64,
    /// Completions of connections and requests that are gone.
    pub stale: u64,
}

impl Stats {
    /// Grows with whatever the upper layer gives us to send.
    pub fn handed_over(&self) -> u64 {
        self.sent_inline + self.sent_buffered + self.sent_late + self.rdma
    }
}
