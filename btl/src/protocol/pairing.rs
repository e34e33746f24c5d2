//! Which port of ours talks to which of a peer's. Both sides compare the same two lists of ports, and come to the same pairs.
//!
//! ```text
//!   InfiniBand, iWARP   the n-th of ours on a subnet and the n-th of theirs there
//!   RoCE                network by network: the n-th of ours on it and the n-th of theirs there, among those that have no pair yet;
//!                       what is on no network that is known, and all of it where the two processes share no network: kind by kind
//!                       of address, the n-th of ours that has one and the n-th of theirs
//! ```
#![forbid(unsafe_code)]

use super::modex::{LinkLayer, Port};
use super::roce::{KINDS, Network, Rows};

/// Two ports that talk, by their places in the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Our port.
    pub ours: usize,
    /// Theirs.
    pub theirs: usize,
    /// RoCE: places of our row and theirs among the rows that the ports publish.
    pub rows: Option<(usize, usize)>,
}

/// The pairs of our ports and theirs; no port is in two.
pub fn pairs(ours: &[Port], theirs: &[Port]) -> Vec<Pair> {
    let mut pairs = by_subnet(ours, theirs);
    pairs.extend(Sides::new(ours, theirs).paired());
    pairs
}

/// Ports that are told apart by their subnets.
fn by_subnet(ours: &[Port], theirs: &[Port]) -> Vec<Pair> {
    let subnet = |port: &Port| {
        (port.link_layer != LinkLayer::Ethernet).then(|| (port.link_layer, port.subnet_prefix()))
    };
    let on = |ports: &[Port], wanted| {
        let places = ports.iter().enumerate().filter(move |(_, port)| subnet(port) == Some(wanted));
        places.map(|(place, _)| place).collect::<Vec<_>>()
    };
    let pair = |(place, port): (usize, &Port)| {
        let wanted = subnet(port)?;
        let rank = on(ours, wanted).iter().position(|&at| at == place)?;
        Some(Pair { ours: place, theirs: *on(theirs, wanted).get(rank)?, rows: None })
    };
    ours.iter().enumerate().filter_map(pair).collect()
}

/// The RoCE ports of one process that have no pair yet, by their places in its list.
type Free<'a> = Vec<(usize, &'a Rows)>;

/// The RoCE ports of both processes.
struct Sides<'a> {
    ours: Free<'a>,
    theirs: Free<'a>,
    pairs: Vec<Pair>,
}

impl<'a> Sides<'a> {
    fn new(ours: &'a [Port], theirs: &'a [Port]) -> Sides<'a> {
        let roce = |ports: &'a [Port]| {
            let ports = ports.iter().enumerate().filter(|(_, port)| port.link_layer == LinkLayer::Ethernet);
            ports.map(|(place, port)| (place, &port.rows)).collect()
        };
        Sides { ours: roce(ours), theirs: roce(theirs), pairs: Vec::new() }
    }

    fn paired(mut self) -> Vec<Pair> {
        let shared = self.shared();
        for network in &shared {
            self.pair_those(|rows| rows.networks().any(|of_port| of_port == *network));
        }
        for kind in KINDS {
            self.pair_those(|rows| {
                (shared.is_empty() || rows.networks().next().is_none()) && rows.first_of(kind).is_some()
            });
        }
        self.pairs
    }

    /// The networks that both are on, in an order that is the same on both sides.
    fn shared(&self) -> Vec<Network> {
        let networks = |ports: &Free<'a>| {
            let mut all: Vec<Network> = ports.iter().flat_map(|(_, rows)| rows.networks()).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        let theirs = networks(&self.theirs);
        let mut shared = networks(&self.ours);
        shared.retain(|network| theirs.binary_search(network).is_ok());
        shared
    }

    /// Pairs the n-th of ours that fits with the n-th of theirs.
    fn pair_those(&mut self, fits: impl Fn(&Rows) -> bool) {
        let fitting =
            |ports: &Free<'a>| ports.iter().copied().filter(|(_, rows)| fits(rows)).collect::<Vec<_>>();
        for ((ours, rows), (theirs, their_rows)) in fitting(&self.ours).into_iter().zip(fitting(&self.theirs))
        {
            if let Some(met) = rows.meet(their_rows) {
                self.pairs.push(Pair { ours, theirs, rows: Some(met) });
                self.ours.retain(|(place, _)| *place != ours);
                self.theirs.retain(|(place, _)| *place != theirs);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::layout::Layout;
    use crate::protocol::roce::{Row, Version};
    use proptest::prelude::*;
    use std::net::Ipv6Addr;

    fn port(link_layer: LinkLayer, gid: [u8; 16], rows: Rows) -> Port {
        let layout = Layout::parse("P,4096,8").expect("a layout");
        Port { gid, lid: 0, mtu: 5, link_layer, layout, adverts: Vec::new(), rows }
    }

    fn roce(version: Version, rows: Vec<Row>) -> Port {
        port(LinkLayer::Ethernet, rows[0].gid, Rows { version, rows })
    }

    /// A port whose rows are `10.N.0.HOST/24`, and a link-local one.
    fn on(networks: &[u8], host: u8) -> Port {
        let ipv4 = |net: &u8| Row {
            gid: std::net::Ipv4Addr::new(10, *net, 0, host).to_ipv6_mapped().octets(),
            prefix: Some(24),
        };
        let mut rows: Vec<Row> = networks.iter().map(ipv4).collect();
        let own = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, host.into());
        rows.push(Row { gid: own.octets(), prefix: Some(64) });
        roce(Version::V2, rows)
    }

    fn places(ours: &[Port], theirs: &[Port]) -> Vec<(usize, usize)> {
        let mut pairs: Vec<_> = pairs(ours, theirs).iter().map(|pair| (pair.ours, pair.theirs)).collect();
        pairs.sort_unstable();
        pairs
    }

    #[test]
    fn crossed_networks_pair_crosswise() {
        let (ours, theirs) = ([on(&[1], 1), on(&[2], 1)], [on(&[2], 2), on(&[1], 2)]);
        assert_eq!(places(&ours, &theirs), [(0, 1), (1, 0)]);
    }

    #[test]
    fn a_port_whose_network_the_peer_is_not_on_has_no_pair_where_another_is_shared() {
        let (ours, theirs) = ([on(&[1], 1), on(&[2], 1)], [on(&[3], 2), on(&[1], 2)]);
        assert_eq!(places(&ours, &theirs), [(0, 1)]);
    }

    #[test]
    fn without_a_shared_network_ports_pair_in_their_order() {
        let (ours, theirs) = ([on(&[1], 1), on(&[2], 1)], [on(&[3], 2), on(&[4], 2)]);
        assert_eq!(places(&ours, &theirs), [(0, 0), (1, 1)]);
        let (ours, theirs) = ([on(&[], 1), on(&[2], 1)], [on(&[], 2), on(&[2], 2)]);
        assert_eq!(places(&ours, &theirs), [(0, 0), (1, 1)]);
    }

    #[test]
    fn several_ports_on_one_network_pair_in_their_order() {
        let (ours, theirs) = ([on(&[1], 1), on(&[1], 2), on(&[1], 3)], [on(&[1], 4), on(&[1], 5)]);
        assert_eq!(places(&ours, &theirs), [(0, 0), (1, 1)]);
    }

    #[test]
    fn infiniband_and_ethernet_do_not_mix() {
        let infiniband = |subnet| port(LinkLayer::InfiniBand, [subnet; 16], Rows::default());
        let ours = [infiniband(1), on(&[1], 1), infiniband(2), infiniband(1)];
        assert_eq!(places(&ours, &[infiniband(1), infiniband(2), infiniband(1)]), [(0, 0), (2, 1), (3, 2)]);
        assert_eq!(places(&ours, &[on(&[1], 2)]), [(1, 0)]);
        assert_eq!(places(&ours, &[infiniband(3)]), []);
    }

    fn row() -> impl Strategy<Value = Row> {
        let ipv4 = (0..4_u8, 1..5_u8)
            .prop_map(|(net, host)| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, net, 0, host]);
        let ipv6 = |first: [u8; 2]| {
            (0..3_u8, 1..5_u8).prop_map(move |(net, host)| {
                let mut gid = [0; 16];
                (gid[0], gid[1], gid[3], gid[15]) = (first[0], first[1], net, host);
                gid
            })
        };
        let gid = prop_oneof![ipv4, ipv6([0xfd, 0]), ipv6([0xfe, 0x80])];
        let prefix = prop_oneof![3 => Just(Some(24)), 1 => Just(None), 1 => Just(Some(16)), 1 => (1..=32_u8).prop_map(Some)];
        (gid, prefix).prop_map(|(gid, prefix)| Row { gid, prefix })
    }

    fn any_port() -> impl Strategy<Value = Port> {
        let version =
            prop_oneof![4 => Just(Version::V2), 1 => Just(Version::V1), 1 => Just(Version::Unknown)];
        let roce = (version, proptest::collection::vec(row(), 1..=8))
            .prop_map(|(version, rows)| roce(version, rows));
        let infiniband =
            (0..3_u8).prop_map(|subnet| port(LinkLayer::InfiniBand, [subnet; 16], Rows::default()));
        prop_oneof![4 => roce, 1 => infiniband]
    }

    fn ports() -> impl Strategy<Value = Vec<Port>> {
        proptest::collection::vec(any_port(), 0..6)
    }

    fn row_of(port: &Port, place: usize) -> Option<&Row> {
        port.rows.rows.get(place)
    }

    proptest! {
        #[test]
        fn both_sides_come_to_the_same_pairs(ours in ports(), theirs in ports()) {
            let seen = pairs(&ours, &theirs);
            let mirrored = |pair: &Pair| Pair {
                ours: pair.theirs,
                theirs: pair.ours,
                rows: pair.rows.map(|(ours, theirs)| (theirs, ours)),
            };
            let mut by_them: Vec<Pair> = pairs(&theirs, &ours).iter().map(mirrored).collect();
            by_them.sort_by_key(|pair| pair.ours);
            let mut by_us = seen;
            by_us.sort_by_key(|pair| pair.ours);
            prop_assert_eq!(by_us, by_them);
        }

        #[test]
        fn what_is_paired_exists_once_and_can_talk(ours in ports(), theirs in ports()) {
            let mut taken = (Vec::new(), Vec::new());
            for Pair { ours: mine, theirs: its, rows } in pairs(&ours, &theirs) {
                prop_assert!(!taken.0.contains(&mine) && !taken.1.contains(&its));
                taken.0.push(mine);
                taken.1.push(its);
                let (mine, its) = (&ours[mine], &theirs[its]);
                prop_assert_eq!(mine.link_layer, its.link_layer);
                prop_assert_eq!(rows.is_some(), mine.link_layer == LinkLayer::Ethernet);
                let Some((one, other)) = rows else { continue };
                let (one, other) = (row_of(mine, one), row_of(its, other));
                prop_assert!(one.is_some() && other.is_some());
                prop_assert_eq!(one.map(Row::kind), other.map(Row::kind));
                // Where they share a network, they use one that they share.
                let shares = mine.rows.networks().any(|net| its.rows.networks().any(|of_it| of_it == net));
                prop_assert!(!shares || one.and_then(Row::network) == other.and_then(Row::network));
            }
        }
    }
}
