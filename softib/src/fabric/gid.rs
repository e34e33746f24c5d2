//! The GID table of a port.
//!
//! ```text
//! InfiniBand   0: fe80:: and the GUID                 then one row for each further address
//! Ethernet     0, 1: fe80:: and the GUID              RoCE v1 in even rows, v2 in odd ones;
//!              2, 3: ::ffff:127.0.h.l (node number)    then two rows for each further address; not where one says its network
//! iWARP        0: the port's Ethernet address           reaches no peer: RDMA-CM uses IP addresses
//! ```
//!
//! The loopback address of a RoCE port is one that the host really answers to, and another for each node.

use crate::shm::card::LinkLayer;
use rdma_sys::{IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address for a port's GID table, and how many bits of it are its network, if that is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortAddress {
    /// The address; an IPv4 one stands in the table mapped into IPv6.
    pub ip: IpAddr,
    /// Bits of `ip` that are its network; `None`: not said.
    pub prefix: Option<u8>,
}

impl PortAddress {
    /// As the table has it.
    pub fn gid(&self) -> Ipv6Addr {
        match self.ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        }
    }

    /// Whether another address is on its network.
    pub fn shares(&self, other: IpAddr) -> bool {
        let bits = |ip| u128::from(PortAddress { ip, prefix: None }.gid());
        let host = 128_u32.saturating_sub(self.net().into());
        (bits(self.ip) ^ bits(other)).checked_shr(host).unwrap_or(0) == 0
    }

    /// How many bits of the GID are its network; 0 if that is not said.
    pub fn net(&self) -> u8 {
        let before = if self.ip.is_ipv4() { MAPPED } else { 0 };
        self.prefix.map_or(0, |prefix| prefix + before)
    }
}

/// Bits in front of an IPv4 address in a GID.
const MAPPED: u8 = 96;

/// The table of a port of node `number`: GIDs, and how many bits of each are its network.
pub fn table(link: LinkLayer, guid: &[u8; 8], number: u16, further: &[PortAddress]) -> Vec<([u8; 16], u8)> {
    let says_network = further.iter().any(|address| address.prefix.is_some());
    let further = further.iter().map(|address| (address.gid().octets(), address.net()));
    let own = (link_local(guid), 0);
    match link {
        LinkLayer::InfiniBand => std::iter::once(own).chain(further).collect(),
        LinkLayer::Ethernet => {
            let loopback = (!says_network).then(|| (loopback(number), 0));
            let all = std::iter::once(own).chain(loopback).chain(further);
            all.flat_map(|row| [row, row]).collect()
        }
        LinkLayer::Iwarp => vec![(ethernet_address(guid), 0)],
    }
}

/// The default subnet prefix and a GUID.
fn link_local(guid: &[u8; 8]) -> [u8; 16] {
    let mut gid = [0; 16];
    (gid[0], gid[1]) = (0xfe, 0x80);
    gid[8..].copy_from_slice(guid);
    gid
}

/// As the kernel has it for iWARP ports: the MAC, then zeroes.
fn ethernet_address(guid: &[u8; 8]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[0] = guid[0];
    gid[1..6].copy_from_slice(&guid[3..]);
    gid
}

fn loopback(number: u16) -> [u8; 16] {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(127, 0, high, low).to_ipv6_mapped().octets()
}

/// What row `index` is for (`ibv_gid_type`).
pub fn kind(link: LinkLayer, index: usize) -> u32 {
    match link {
        LinkLayer::InfiniBand | LinkLayer::Iwarp => IBV_GID_TYPE_IB,
        LinkLayer::Ethernet if index.is_multiple_of(2) => IBV_GID_TYPE_ROCE_V1,
        LinkLayer::Ethernet => IBV_GID_TYPE_ROCE_V2,
    }
}

/// The IPv4 address in a GID that is one.
pub fn ipv4(gid: &[u8; 16]) -> Option<Ipv4Addr> {
    Ipv6Addr::from(*gid).to_ipv4_mapped()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUID: [u8; 8] = [2, 0, 0, 0, 0, 0, 0, 9];

    #[test]
    fn addresses_share_a_network_if_its_bits_are_theirs() {
        let at = |ip: &str, prefix| PortAddress { ip: ip.parse().unwrap(), prefix: Some(prefix) };
        let shares = |own: PortAddress, other: &str| own.shares(other.parse().unwrap());
        assert!(shares(at("10.1.0.7", 24), "10.1.0.9") && !shares(at("10.1.0.7", 24), "10.1.1.7"));
        assert!(shares(at("fd00::7", 64), "fd00::9") && !shares(at("fd00::7", 64), "fd00:0:0:1::7"));
        assert!(!shares(at("10.1.0.7", 24), "fd00::7"));
    }

    #[test]
    fn an_address_with_its_network_takes_the_place_of_the_loopback_address() {
        let address = PortAddress { ip: "10.1.0.7".parse().unwrap(), prefix: Some(24) };
        let rows = table(LinkLayer::Ethernet, &GUID, 1, &[address]);
        let nets: Vec<u8> = rows.iter().map(|(_, net)| *net).collect();
        assert_eq!(nets, [0, 0, 120, 120]);
        assert_eq!(ipv4(&rows[3].0), Some(Ipv4Addr::new(10, 1, 0, 7)));
    }

    #[test]
    fn a_roce_port_has_each_address_in_both_versions() {
        let address = PortAddress { ip: "fd00::5".parse().unwrap(), prefix: None };
        let rows = table(LinkLayer::Ethernet, &GUID, 0x0102, &[address]);
        assert_eq!(rows.len(), 6);
        assert!(rows.chunks(2).all(|rows| rows[0] == rows[1]));
        assert_eq!(ipv4(&rows[2].0), Some(Ipv4Addr::new(127, 0, 1, 2)));
        assert_eq!(kind(LinkLayer::Ethernet, 2), IBV_GID_TYPE_ROCE_V1);
        assert_eq!(kind(LinkLayer::Ethernet, 3), IBV_GID_TYPE_ROCE_V2);
    }
}
