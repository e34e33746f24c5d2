//! The GID table of a port.
//!
//! ```text
//! InfiniBand   0: fe80:: and the GUID                 then one row for each further address
//! Ethernet     0, 1: fe80:: and the GUID              RoCE v1 in even rows, v2 in odd ones;
//!              2, 3: ::ffff:127.0.h.l (node number)    then two rows for each further address
//! iWARP        0: the port's Ethernet address           reaches no peer: RDMA-CM uses IP addresses
//! ```
//!
//! The loopback address of a RoCE port is one that the host really answers to, and another for each node.

use crate::shm::card::LinkLayer;
use rdma_sys::{IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The table of a port of node `number`.
pub fn table(link: LinkLayer, guid: &[u8; 8], number: u16, further: &[Ipv6Addr]) -> Vec<[u8; 16]> {
    let further = further.iter().map(Ipv6Addr::octets);
    match link {
        LinkLayer::InfiniBand => std::iter::once(link_local(guid)).chain(further).collect(),
        LinkLayer::Ethernet => {
            let all = [link_local(guid), loopback(number)].into_iter().chain(further);
            all.flat_map(|gid| [gid, gid]).collect()
        }
        LinkLayer::Iwarp => vec![ethernet_address(guid)],
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

    #[test]
    fn a_roce_port_has_each_address_in_both_versions() {
        let gids =
            table(LinkLayer::Ethernet, &[2, 0, 0, 0, 0, 0, 0, 9], 0x0102, &["fd00::5".parse().unwrap()]);
        assert_eq!(gids.len(), 6);
        assert!(gids.chunks(2).all(|rows| rows[0] == rows[1]));
        assert_eq!(ipv4(&gids[2]), Some(Ipv4Addr::new(127, 0, 1, 2)));
        assert_eq!(kind(LinkLayer::Ethernet, 2), IBV_GID_TYPE_ROCE_V1);
        assert_eq!(kind(LinkLayer::Ethernet, 3), IBV_GID_TYPE_ROCE_V2);
    }
}
