//! Parameters of the connection managers that carry datagrams: ibcm and xrc.

use std::time::Duration;

use crate::wire::time::decode_time;

/// Parameters of ibcm, or of xrc. `Params::default()` suits jobs of up to a few thousand processes.
#[derive(Clone, Debug)]
pub struct Params {
    /// Selection priority, 0 to 100; the common component with the highest priority of either side wins.
    pub priority: u8,
    /// Receive buffers of the UD queue pair: how many datagrams may arrive in a burst before some are lost.
    pub recv_count: u32,
    /// First wait for an answer; it doubles with each repetition, up to `max_timeout`, with a jitter of a quarter.
    pub timeout: Duration,
    /// Longest wait for an answer.
    pub max_timeout: Duration,
    /// How often a REQ, REP or DREQ is repeated before its exchange is given up.
    pub max_retries: u32,
    /// How many connections may wait for the first answer to their REQ at a time; later ones queue.
    pub window: u32,
    /// How long a REQ of a process that we have no endpoint for is kept.
    pub unknown_wait: Duration,
    /// The answer "it takes longer" (MRA) asks the peer to wait this long before it repeats its REQ.
    pub mra_wait: Duration,
    /// The longest that one exchange may take, MRAs included.
    pub patience: Duration,
    /// The longest that a closed connection still answers: it does so for twice the lifetime of a packet, as the ACK timeout has it.
    pub time_wait: Duration,
    /// Seed of ids, PSNs and jitter; `None` takes one from the system. For reproducible runs.
    pub seed: Option<u64>,
}

impl Params {
    /// How long an answer to the `tries`-th repetition is awaited (0 = the first sending), before jitter.
    pub(crate) fn wait(&self, tries: u32) -> Duration {
        self.timeout.saturating_mul(1 << tries.min(16)).min(self.max_timeout)
    }

    /// As `wait`, for an answer that the peer takes `response` for.
    pub(crate) fn wait_for(&self, response: Duration, tries: u32) -> Duration {
        self.wait(tries).max(response.saturating_mul(1 << tries.min(16)).min(self.max_timeout))
    }

    /// How long late packets of a connection may still arrive: twice their lifetime and the time that the device takes to acknowledge, which
    /// is what the local ACK timeout (4.096 us * 2^`ack_timeout`; 0: none) stands for (IBTA 12.7).
    pub(crate) fn time_wait(&self, ack_timeout: u8) -> Duration {
        match ack_timeout {
            0 => self.time_wait,
            code => decode_time(code).min(self.time_wait),
        }
    }
}

impl Default for Params {
    fn default() -> Params {
        Params {
            priority: 40,
            recv_count: 512,
            timeout: Duration::from_millis(100),
            max_timeout: Duration::from_secs(2),
            // 0.1 + 0.2 + ... + 1.6 + 8 * 2 s: a peer that is silent for some 19 s is reported.
            max_retries: 12,
            window: 64,
            unknown_wait: Duration::from_secs(60),
            mra_wait: Duration::from_secs(1),
            patience: Duration::from_secs(90),
            time_wait: Duration::from_secs(4),
            seed: None,
        }
    }
}
