//! RDMA-CM, safe: connections between IP addresses, by librdmacm or by a linked-in device's own manager.
//!
//! ```text
//!   Driver ──> EventChannel ── next_event() ──> CmEvent { token, kind, private data, a request's CmId }
//!                  └──> CmId: bind, resolve, listen, connect, accept, establish, disconnect
//!                         └── prepare(RTR), prepare(RTS) ──> Qp::to_prepared
//! ```
//! Ids are used without queue pairs of their own: the caller's are on its own context and domain, and take the attributes
//! that the id has negotiated. An event is copied and acknowledged at once, so destroying an id never waits. Ids are told
//! apart by tokens of the caller's, not by pointers.

mod channel;
mod event;
mod id;
mod loader;
mod prepared;

pub use channel::EventChannel;
pub use event::{CmEvent, CmEventKind, Refusal};
pub use id::{CmId, ConnParam, Token};
pub use prepared::Prepared;

use std::net::{IpAddr, SocketAddr};

/// The most private data of a request in the TCP port space; replies and refusals take more (rdma_connect(3)).
pub const REQUEST_DATA: usize = 56;

/// The addresses of this host's interfaces, in the kernel's order; ports are 0.
///
/// # Errors
/// No memory, no descriptor.
pub fn interface_addresses() -> std::io::Result<Vec<SocketAddr>> {
    rdma_cm_sys::address::interfaces()
}

/// An address of this host with what it is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Name of the interface.
    pub interface: String,
    /// The address.
    pub address: IpAddr,
    /// How many bits of the address are the network's, from 1; `None` for a netmask that says none.
    pub prefix: Option<u8>,
}

/// The addresses of this host's interfaces with the networks that they are on.
///
/// # Errors
/// No memory, no descriptor.
pub fn interface_networks() -> std::io::Result<Vec<Network>> {
    let networks = rdma_cm_sys::address::networks()?.into_iter();
    Ok(networks.map(|(interface, address, prefix)| Network { interface, address, prefix }).collect())
}
