//! The knobs of rdmacm.

use std::net::IpAddr;
use std::time::Duration;

/// Settings of rdmacm. The kernel's manager, or softib's, repeats and times out by itself, so there are fewer than for datagrams.
#[derive(Clone, Debug)]
pub struct Params {
    /// Selection priority, 0 to 100. Below ibcm's: that one needs neither an IP address nor a kernel's manager.
    pub priority: u8,
    /// The address to listen on and to connect from; `None` takes the first one that the port has, IPv4 before IPv6.
    pub address: Option<IpAddr>,
    /// The TCP port space's port to listen on; 0 takes a free one.
    pub port: u16,
    /// How long the address, and then the route, may take to resolve.
    pub resolve_timeout: Duration,
    /// How long a request may go unanswered.
    pub connect_timeout: Duration,
    /// How often a connection that could not be made is tried again.
    pub max_retries: u32,
    /// Pause before the first new try; it doubles with each, up to 2 s, with a jitter of a quarter.
    pub retry_pause: Duration,
    /// How many connections may be on their way at a time; later ones queue.
    pub window: u32,
    /// How long a request of a process that we have no endpoint for is kept.
    pub unknown_wait: Duration,
    /// How long a disconnect waits for the peer's agreement.
    pub disconnect_timeout: Duration,
    /// Seed of jitter and incarnation; `None` takes one from the system. For reproducible runs.
    pub seed: Option<u64>,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            priority: 30,
            address: None,
            port: 0,
            resolve_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(20),
            max_retries: 7,
            retry_pause: Duration::from_millis(50),
            window: 64,
            unknown_wait: Duration::from_secs(60),
            disconnect_timeout: Duration::from_secs(1),
            seed: None,
        }
    }
}
