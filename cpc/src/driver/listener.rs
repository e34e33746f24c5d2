//! Finding the addresses that belong to the RDMA port, and listening there: at one, and on RoCE at all that are in its GID table, for a peer may
//! be on the network of any of them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use verbs::LinkLayer;
use verbs::cm::{CmId, EventChannel, Token, interface_addresses};

use crate::config::rdmacm::Params;
use crate::wire::ip::MAX_FURTHER;
use crate::{Error, QpPlan};

/// The listener's own name among ids.
pub(super) const LISTENER: Token = Token(0);
/// Requests that the connection manager keeps until we look.
const BACKLOG: i32 = 1024;

/// Listens on the addresses of the plan's GIDs that lead to its port; if there are none, on the first of the host that does.
pub(super) fn open(
    plan: &QpPlan,
    params: &Params,
    channel: &Arc<EventChannel>,
) -> Result<(Vec<CmId>, Vec<SocketAddr>), Error> {
    let mut reasons = Vec::new();
    let mut listen = |ip: IpAddr| {
        let opened = listen(plan, SocketAddr::new(ip, params.port), channel);
        opened.map_err(|reason| reasons.push(format!("{ip}: {reason}"))).ok()
    };
    let of_rows = of_rows(plan, params);
    let found: Vec<_> = of_rows.iter().copied().filter_map(&mut listen).take(MAX_FURTHER + 1).collect();
    if !found.is_empty() {
        return Ok(found.into_iter().unzip());
    }
    let others = candidates(params)?.into_iter().filter(|ip| !of_rows.contains(ip));
    if let Some((id, at)) = others.filter_map(listen).next() {
        return Ok((vec![id], vec![at]));
    }
    let port = format!("{} port {}", plan.port.ctx.name(), plan.port.num);
    let reasons = if reasons.is_empty() { "this host has none".to_owned() } else { reasons.join("; ") };
    Err(Error::NoAddress { port, reasons })
}

/// The addresses of the port's GID table, if the parameter names none. Loopback addresses are the host's, not the port's.
fn of_rows(plan: &QpPlan, params: &Params) -> Vec<IpAddr> {
    let port = &plan.port;
    if params.address.is_some() || port.link_layer != LinkLayer::Ethernet || port.ctx.is_iwarp() {
        return Vec::new();
    }
    let gids = std::iter::once(&port.gid).chain(port.further_gids.iter().map(|(_, gid)| gid));
    let ips = gids.map(|gid| IpAddr::from(gid.0).to_canonical());
    ips.filter(|ip| !ip.is_loopback() && !is_link_local(ip)).collect()
}

/// It means something on its own link only.
fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// The address of the parameter, or all that the host has: IPv4 first, loopback last. Addresses that mean
/// something on their own link only are no use to a peer.
fn candidates(params: &Params) -> Result<Vec<IpAddr>, Error> {
    if let Some(ip) = params.address {
        return Ok(vec![ip]);
    }
    let mut all: Vec<IpAddr> = interface_addresses()?.into_iter().map(|address| address.ip()).collect();
    all.retain(|ip| !is_link_local(ip));
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
