//! Which rows of two RoCE ports' GID tables a connection uses.
//!
//! Each side publishes the rows that it could use, best first, with what is known of their networks ([`modex`](super::modex)). Both
//! compare the two lists, and come to the same pair of rows without a word ([`Rows::meet`]):
//!
//! ```text
//!   ours                       theirs                     pair
//!   ::ffff:10.9.0.1/24         ::ffff:10.1.0.2/24         10.1.0.1 and 10.1.0.2: the network that both share
//!   ::ffff:10.1.0.1/24         fe80::2
//!   ::ffff:10.9.0.1/24         ::ffff:10.8.0.2/24         10.9.0.1 and 10.8.0.2: there is a router, it is hoped
//!   ::ffff:10.9.0.1/24 fe80::1 fe80::2                    fe80::1 and fe80::2: the same segment, it is hoped
//! ```
//! A network of IPv4 comes before one of IPv6; without a common one, what both have is taken: IPv4, global IPv6, link-local IPv6,
//! link-local IPv4. An IPv4 address talks to no IPv6 address, a row of RoCE v1 to none of v2.
#![forbid(unsafe_code)]

use std::net::Ipv6Addr;

/// Rows that a port publishes at most.
pub const MAX_ROWS: usize = 8;

/// Bits in front of an IPv4 address in a GID.
const MAPPED: u8 = 96;

/// The prefix of a global IPv6 address that is told without one: the subnet prefix of a GID (IBTA 4.1.1).
const SUBNET: u8 = 64;

/// How packets of a row are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Version {
    /// Neither the kernel nor the library says.
    #[default]
    Unknown,
    /// RoCE v1: Ethernet frames.
    V1,
    /// RoCE v2: UDP.
    V2,
}

impl Version {
    /// Whether rows of the two may talk.
    fn suits(self, other: Version) -> bool {
        self == other || self == Version::Unknown || other == Version::Unknown
    }
}

/// A row of a GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// What it holds.
    pub gid: [u8; 16],
    /// How many bits of the address are its network's, from 1: of 32 for IPv4, of 128 for IPv6. `None`: not known.
    pub prefix: Option<u8>,
}

/// What an address is. The order is that of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// IPv4.
    Ipv4,
    /// IPv6 beyond its own segment.
    Global,
    /// Link-local IPv6.
    LinkLocal,
    /// An IPv4 address that the interface gave itself.
    Ipv4LinkLocal,
}

/// All kinds, the best first.
pub const KINDS: [Kind; 4] = [Kind::Ipv4, Kind::Global, Kind::LinkLocal, Kind::Ipv4LinkLocal];

/// A network that is known. The order has no meaning but that it is the same everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    kind: Kind,
    /// Bits of the GID that are the network's.
    len: u8,
    bits: u128,
}

impl Row {
    /// What its address is.
    pub fn kind(&self) -> Kind {
        let address = Ipv6Addr::from(self.gid);
        match address.to_ipv4_mapped() {
            Some(address) if address.is_link_local() => Kind::Ipv4LinkLocal,
            Some(_) => Kind::Ipv4,
            None if address.is_unicast_link_local() => Kind::LinkLocal,
            None => Kind::Global,
        }
    }

    /// The network that it is on, if that is known. Link-local addresses do not tell segments apart.
    pub fn network(&self) -> Option<Network> {
        let kind = self.kind();
        let len = match kind {
            Kind::Ipv4 => self.prefix?.checked_add(MAPPED)?,
            Kind::Global => self.prefix.unwrap_or(SUBNET),
            Kind::LinkLocal | Kind::Ipv4LinkLocal => return None,
        };
        let host = 128_u32.checked_sub(len.into())?;
        Some(Network { kind, len, bits: u128::from_be_bytes(self.gid).checked_shr(host)? })
    }

    /// Whether it can be a row of a port, with a network of a size that there is.
    pub fn is_fair(&self) -> bool {
        let address = Ipv6Addr::from(self.gid);
        let most = if address.to_ipv4_mapped().is_some() { 32 } else { 128 };
        let network = self.prefix.is_none_or(|len| (1..=most).contains(&len));
        network && !address.is_unspecified() && !address.is_multicast()
    }
}

/// The rows of a port's GID table that its connections may use, all of one version, best first, no GID twice. The first is the
/// port's own GID. Empty: the port is no RoCE port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Version of all of them.
    pub version: Version,
    /// At most [`MAX_ROWS`].
    pub rows: Vec<Row>,
}

impl Rows {
    /// The positions of our row and theirs for a connection, alike on both sides; `None` if no two can talk.
    pub fn meet(&self, theirs: &Rows) -> Option<(usize, usize)> {
        if !self.suits(theirs) {
            return None;
        }
        self.on_a_network(theirs).or_else(|| KINDS.iter().find_map(|&kind| self.of_kind(theirs, kind)))
    }

    /// Whether the versions of the two may talk.
    pub fn suits(&self, theirs: &Rows) -> bool {
        self.version.suits(theirs.version)
    }

    /// The networks that it is on, as far as they are known.
    pub fn networks(&self) -> impl Iterator<Item = Network> {
        self.rows.iter().filter_map(Row::network)
    }

    /// Whether a port with these rows reaches every peer that one with `others` does: it is on each of their networks. Not where a network is not
    /// known; link-local addresses alone do not tell.
    pub fn cover(&self, others: &Rows) -> bool {
        let covers = |row: &Row| match (row.network(), row.kind()) {
            (Some(network), _) => self.networks().any(|ours| ours == network),
            (None, kind @ (Kind::LinkLocal | Kind::Ipv4LinkLocal)) => self.first_of(kind).is_some(),
            (None, Kind::Ipv4 | Kind::Global) => false,
        };
        self.suits(others) && others.networks().next().is_some() && others.rows.iter().all(covers)
    }

    /// The first row of a kind.
    pub fn first_of(&self, kind: Kind) -> Option<usize> {
        self.rows.iter().position(|row| row.kind() == kind)
    }

    /// The best pair of rows on one network. The sum of places and the network are the same from either side.
    fn on_a_network(&self, theirs: &Rows) -> Option<(usize, usize)> {
        let first_on = |network: Network| theirs.rows.iter().position(|row| row.network() == Some(network));
        let mut shared = Vec::new();
        for (ours, row) in self.rows.iter().enumerate() {
            if let Some(network) = row.network()
                && let Some(theirs) = first_on(network)
            {
                shared.push((network.kind, ours + theirs, network, (ours, theirs)));
            }
        }
        shared.into_iter().min().map(|(.., pair)| pair)
    }

    fn of_kind(&self, theirs: &Rows, kind: Kind) -> Option<(usize, usize)> {
        self.first_of(kind).zip(theirs.first_of(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str) -> Row {
        let (ip, prefix) = text.split_once('/').map_or((text, None), |(ip, len)| (ip, len.parse().ok()));
        let ip: std::net::IpAddr = ip.parse().expect("an address");
        let gid = match ip {
            std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            std::net::IpAddr::V6(ip) => ip,
        };
        Row { gid: gid.octets(), prefix }
    }

    fn v2(rows: &[&str]) -> Rows {
        Rows { version: Version::V2, rows: rows.iter().map(|text| row(text)).collect() }
    }

    fn meet(ours: &[&str], theirs: &[&str]) -> Option<(usize, usize)> {
        let pair = v2(ours).meet(&v2(theirs));
        assert_eq!(v2(theirs).meet(&v2(ours)), pair.map(|(ours, theirs)| (theirs, ours)));
        pair
    }

    #[test]
    fn the_network_that_both_share_is_found_wherever_it_stands() {
        assert_eq!(meet(&["10.9.0.1/24", "10.1.0.1/24"], &["10.1.0.2/24", "10.8.0.2/24"]), Some((1, 0)));
        assert_eq!(meet(&["10.1.0.1/24", "fd00:1::1/64"], &["10.2.0.1/24", "fd00:1::2/64"]), Some((1, 1)));
    }

    #[test]
    fn of_several_shared_networks_ipv4_comes_first_and_then_what_both_have_in_front() {
        let (ours, theirs) = (["10.2.0.1/24", "10.1.0.1/24"], ["10.2.0.2/24", "10.1.0.2/24"]);
        assert_eq!(meet(&ours, &theirs), Some((0, 0)));
        assert_eq!(meet(&ours, &["10.1.0.2/24", "10.2.0.2/24"]), Some((1, 0)), "the lower network decides");
        assert_eq!(meet(&["fd00::1/64", "10.1.0.1/24"], &["fd00::2/64", "10.1.0.2/24"]), Some((1, 1)));
    }

    #[test]
    fn of_several_shared_networks_the_one_with_the_least_sum_of_places_is_taken() {
        let ours = ["10.1.0.1/24", "10.2.0.1/24"];
        let theirs = ["10.8.0.2/24", "10.2.0.2/24", "10.9.0.2/24", "10.1.0.2/24"];
        assert_eq!(meet(&ours, &theirs), Some((1, 1)), "10.1 is first of ours, but fourth of theirs");
    }

    #[test]
    fn a_network_is_the_same_only_with_the_same_length() {
        assert_eq!(meet(&["10.1.0.1/24", "10.1.9.1/16"], &["10.1.0.2/16"]), Some((1, 0)));
        assert_eq!(row("10.1.0.1/24").network(), row("10.1.0.9/24").network());
        assert_ne!(row("10.1.0.1/31").network(), row("10.1.0.2/31").network());
    }

    #[test]
    fn without_a_shared_network_both_take_the_best_kind_that_they_have() {
        assert_eq!(meet(&["10.1.0.1/24", "fe80::1"], &["10.2.0.1/24", "fe80::2"]), Some((0, 0)));
        assert_eq!(meet(&["10.1.0.1/24", "fe80::1"], &["fd00::2/64", "fe80::2"]), Some((1, 1)));
        assert_eq!(meet(&["10.1.0.1/24", "fe80::1"], &["fe80::2"]), Some((1, 0)));
        assert_eq!(meet(&["10.1.0.1"], &["10.2.0.1/24"]), Some((0, 0)), "nothing is known of one");
        assert_eq!(meet(&["10.1.0.1/24"], &["fe80::2"]), None);
        assert_eq!(meet(&["10.1.0.1/24"], &[]), None);
    }

    #[test]
    fn an_address_that_an_interface_gave_itself_is_link_local_and_comes_last_of_ipv4() {
        let rows = ["10.1.0.1/24", "fd00::1/64", "fe80::1/64", "169.254.0.1/16"].map(row);
        assert_eq!(rows.map(|row| row.kind()), KINDS);
        assert_eq!(rows.map(|row| row.network().is_some()), [true, true, false, false]);
        assert_eq!(meet(&["169.254.0.1/16", "fe80::1"], &["169.254.0.2/16", "fe80::2"]), Some((1, 1)));
        assert_eq!(meet(&["169.254.0.1/16"], &["169.254.0.2/16"]), Some((0, 0)));
        assert_eq!(meet(&["169.254.0.1/16"], &["10.1.0.2/24", "fe80::2"]), None);
    }

    #[test]
    fn rows_cover_others_if_they_are_on_all_of_their_networks() {
        let ours = v2(&["10.1.0.1/24", "10.2.0.1/24", "fd00:1::1/64", "fe80::1"]);
        for others in [&["10.1.0.9/24"][..], &["10.2.0.2/24", "fe80::2"], &["fd00:1::2/64", "10.1.0.2/24"]] {
            assert!(ours.cover(&v2(others)), "{others:?}");
        }
        let beyond = [&["10.3.0.2/24"][..], &["10.1.0.2/24", "10.3.0.2/24"], &["10.1.0.2/16"], &["10.1.0.2"]];
        for others in beyond.into_iter().chain([&["fe80::2"][..], &[]]) {
            assert!(!ours.cover(&v2(others)), "{others:?}");
        }
        assert!(!v2(&["10.1.0.1/24"]).cover(&v2(&["10.1.0.2/24", "fe80::2"])), "no link-local row");
        let v1 = Rows { version: Version::V1, ..ours.clone() };
        assert!(!ours.cover(&v1) && v1.cover(&v1));
    }

    #[test]
    fn rows_of_v1_and_v2_do_not_meet() {
        let v1 = Rows { version: Version::V1, ..v2(&["10.1.0.1/24"]) };
        assert_eq!(v1.meet(&v2(&["10.1.0.2/24"])), None);
        let unknown = Rows { version: Version::Unknown, ..v1.clone() };
        assert_eq!((unknown.meet(&v1), v1.meet(&v1)), (Some((0, 0)), Some((0, 0))));
    }

    #[test]
    fn a_prefix_is_no_longer_than_its_address() {
        let fair = ["10.1.0.1/32", "10.1.0.1/33", "10.1.0.1/0", "fd00::1/128", "::", "ff02::1", "fe80::1"];
        assert_eq!(fair.map(|text| row(text).is_fair()), [true, false, false, true, false, false, true]);
        assert_eq!(row("10.1.0.1/255").network(), None);
    }
}
