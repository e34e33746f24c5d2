//! Finding the address that belongs to the RDMA port, and listening there.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use verbs::cm::{CmId, EventChannel, Token, interface_addresses};

use crate::config::rdmacm::Params;
use crate::{Error, QpPlan};

/// The listener's own name among ids.
pub(super) const LISTENER: Token = Token(0);
/// Requests that the connection manager keeps until we look.
const BACKLOG: i32 = 1024;

/// Listens on the first address that leads to the plan's port.
pub(super) fn open(
    plan: &QpPlan,
    params: &Params,
    channel: &Arc<EventChannel>,
) -> Result<(CmId, SocketAddr), Error> {
    let mut reasons = Vec::new();
    for ip in candidates(params)? {
        match listen(plan, SocketAddr::new(ip, params.port), channel) {
            Ok(found) => return Ok(found),
            Err(reason) => reasons.push(format!("{ip}: {reason}")),
        }
    }
    let port = format!("{} port {}", plan.port.ctx.name(), plan.port.num);
    let reasons = if reasons.is_empty() { "this host has none".to_owned() } else { reasons.join("; ") };
    Err(Error::NoAddress { port, reasons })
}

/// The address of the parameter, or all that the host has: IPv4 first, loopback last. Addresses that mean
/// something on their own link only are no use to a peer.
fn candidates(params: &Params) -> Result<Vec<IpAddr>, Error> {
    if let Some(ip) = params.address {
        return Ok(vec![ip]);
    }
    let mut all: Vec<IpAddr> = interface_addresses()?.into_iter().map(|address| address.ip()).collect();
    all.retain(|ip| match ip {
        IpAddr::V4(v4) => !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    });
    all.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6()));
    all.dedup();
    Ok(all)
}

fn listen(plan: &QpPlan, at: SocketAddr, channel: &Arc<EventChannel>) -> Result<(CmId, SocketAddr), String> {
    let id = CmId::create(channel, LISTENER).map_err(|e| e.to_string())?;
    id.bind(at).map_err(|e| e.to_string())?;
    belongs(plan, &id)?;
    id.listen(BACKLOG).map_err(|e| e.to_string())?;
    let port = id.local_port();
    Ok((id, SocketAddr::new(at.ip(), port)))
}

/// Whether an id's address is one of the plan's port.
pub(super) fn belongs(plan: &QpPlan, id: &CmId) -> Result<(), String> {
    match id.device() {
        Some((name, port)) if name == plan.port.ctx.name() && port == plan.port.num => Ok(()),
        Some((name, port)) => Err(format!("it belongs to {name} port {port}")),
        None => Err("it belongs to no RDMA device".to_owned()),
    }
}
