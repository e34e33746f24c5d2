//! Connection pseudo-components: the queue pairs of an endpoint come up on a helper thread, while the application computes.
//!
//! ```text
//!   main thread                      |  helper thread
//!   Service  -- commands, waker -->  |  drivers (ibcm, rdmacm, xrc): make QPs, walk them INIT, RTR, RTS,
//!            <-- events, one flag -- |  exchange datagrams with the peers' modules
//! ```
//! The main thread adds endpoints and asks for connections; it posts the real receive buffers and runs the clear-to-send
//! handshake. The helper thread owns the state of connections and nothing of the transport: it posts one very small receive per
//! endpoint, handed in with it, and only where the layout has a per-peer queue (seed 004).
//!
//! The way through the files, from the ground up; each imports only what stands above it:
//!
//! ```text
//!   names, error, connect_error
//!   wire/       everything that is said to a peer: bytes and values, no states
//!   core/       what every manager's machine does: endpoints and links, deadlines, window, parking, counters, the tables' macros
//!   config/     parameters of the managers
//!   plan        what the transport hands in              event      what it is told
//!   queues      the two queues between the threads       manager    what a connection manager is
//!   exchange/   what the managers that carry datagrams share, ibcm and xrc: routing, repetitions, MRA, DREQ and DREP
//!   ibcm/ rdmacm/ xrc/      the protocol of one manager, as a machine without I/O; none knows another
//!   driver/     the helper thread; the manager trait, once; a backend each: queue pairs, datagrams, CM ids
//!   registry    the managers there are, and which serves a port and a peer
//!   service     what the transport sees: [`Service`]
//! ```
#![forbid(unsafe_code)]

/// Parameters.
pub mod config;
mod connect_error;
mod core;
mod driver;
mod error;
mod event;
mod exchange;
/// The manager for P and S queues that needs no IP address.
pub mod ibcm;
/// What every manager implements.
pub mod manager;
mod names;
mod plan;
mod queues;
/// The manager for P and S queues over RDMA-CM.
pub mod rdmacm;
/// The list of managers, and the choice among them.
pub mod registry;
mod service;
/// Bytes and values.
pub mod wire;
/// The manager for X queues.
pub mod xrc;

pub use config::Config;
pub use connect_error::{ConnectCause, ConnectError};
pub use core::timeline::{Step, Timeline};
pub use driver::to_itself;
pub use error::{Error, SelectError};
pub use event::{Event, First, Route};
pub use manager::Advert;
pub use names::{EndpointCommand, EndpointKey, ProcessName, StreamNum};
pub use plan::{Choice, CtsRecv, EndpointPlan, GidPair, PortPlan, QpPlan, QueuePlan, ReceiveQueues, XrcPlan};
pub use queues::Outbox;
pub use service::Service;
