//! Connection pseudo-components: the queue pairs of an endpoint come up on a helper thread, while the application computes.
//!
//! ```text
//!   main thread                      |  helper thread
//!   Service  -- commands, waker -->  |  modules (ibcm, rdmacm, xrc): make QPs, walk them INIT, RTR, RTS,
//!            <-- events, one flag -- |  exchange datagrams with the peers' modules
//! ```
//! The main thread adds endpoints and asks for connections; it posts the real receive buffers and runs the clear-to-send
//! handshake. The helper thread owns the state of connections and nothing of the transport: it posts one very small receive per
//! endpoint, handed in with it, and only where the layout has a per-peer queue (seed 004).
//!
//! The way through the files: [`Service`] (`service`), what goes in (`plan`) and what comes out (`event`); the thread (`helper`);
//! components, selection and modex (`framework`); the components ([`ibcm`], [`rdmacm`], [`xrc`]); QPs in motion (`qp_set`);
//! when what happened ([`Timeline`]).
#![forbid(unsafe_code)]

mod connect_error;
mod error;
mod event;
pub mod framework;
mod helper;
pub mod ibcm;
mod names;
mod plan;
mod qp_set;
pub mod rdmacm;
mod service;
mod timeline;
pub mod xrc;

pub use connect_error::{ConnectCause, ConnectError};
pub use error::{Error, SelectError};
pub use event::{Event, First, Route};
pub use framework::{Advert, Choice};
pub use names::{EndpointKey, ProcessName};
pub use plan::{Config, CtsRecv, EndpointPlan, PortPlan, QpPlan, QueuePlan, ReceiveQueues, XrcPlan};
pub use service::Service;
pub use timeline::{Step, Timeline};
