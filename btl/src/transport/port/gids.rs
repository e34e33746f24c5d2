//! Which rows of a port's GID table its connections may use.
//!
//! An InfiniBand port has its own GID in row 0. A RoCE port has rows for each address of its network interfaces, mostly one of RoCE v1 and
//! one of v2, in an order that differs between drivers and hosts:
//!
//! ```text
//!   row  GID                     type       rank
//!   0    fe80::5054:ff:fe12:1    RoCE v1
//!   1    fe80::5054:ff:fe12:1    RoCE v2    3: reaches its own Ethernet segment
//!   2    ::ffff:10.1.0.7         RoCE v1    v1 after all rows of v2: it passes no router
//!   3    ::ffff:10.1.0.7         RoCE v2    1
//!   5    2001:db8::7             RoCE v2    2
//! ```
//! The port's own GID is the best row; a connection takes the row that fits its peer's ([`roce`](crate::protocol::roce)), for which each row
//! needs the network of its address: that of its network interface.
#![forbid(unsafe_code)]

use crate::protocol::roce::{self, Kind, MAX_ROWS, Rows, Version};
use std::fmt;
use std::net::Ipv6Addr;
use verbs::{Gid, GidType};

/// A filled row of a GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its number.
    pub index: u8,
    /// What it holds.
    pub gid: Gid,
    /// `None` where it is not known.
    pub kind: Option<GidType>,
    /// How many bits of its address are the network's, where that is known.
    pub prefix: Option<u8>,
}

impl Row {
    /// As peers are told of it.
    fn published(&self) -> roce::Row {
        roce::Row { gid: self.gid.0, prefix: self.prefix }
    }

    /// What its address is.
    fn address(&self) -> Kind {
        self.published().kind()
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.index, Ipv6Addr::from(self.gid.0))?;
        self.prefix.map_or(Ok(()), |prefix| write!(f, "/{prefix}"))?;
        self.kind.map_or(Ok(()), |kind| write!(f, " {kind}"))
    }
}

/// The rows that an Ethernet port's connections may use, unless the user names one, best first: of RoCE v2, of v1 only where
/// there are none; then an IPv4 address rather than a global IPv6 address rather than a link-local one, then the lowest index. Of rows with
/// one GID, the first. If there are more than peers are told of, a link-local one is among those that are left, for every port has that.
pub fn usable(rows: impl IntoIterator<Item = Row>) -> Vec<Row> {
    let mut rows: Vec<Row> = rows.into_iter().collect();
    rows.sort_by_key(|row| (version_rank(row.kind), row.address(), row.index));
    let best = rows.first().map(|row| version_rank(row.kind));
    rows.retain(|row| Some(version_rank(row.kind)) == best);
    let mut kept: Vec<Row> = Vec::new();
    for row in rows {
        if kept.iter().all(|before| before.gid != row.gid) {
            kept.push(row);
        }
    }
    let link_local = kept.iter().skip(MAX_ROWS).find(|row| row.address() == Kind::LinkLocal).copied();
    let has_one = kept.iter().take(MAX_ROWS).any(|row| row.address() == Kind::LinkLocal);
    kept.truncate(MAX_ROWS);
    if let (Some(last), Some(row), false) = (kept.last_mut(), link_local, has_one) {
        *last = row;
    }
    kept
}

/// What peers are told of them.
pub fn published(rows: &[Row]) -> Rows {
    let version = match rows.first().and_then(|row| row.kind) {
        None => Version::Unknown,
        Some(GidType::RoceV2) => Version::V2,
        Some(GidType::RoceV1 | GidType::Ib) => Version::V1,
    };
    Rows { version, rows: rows.iter().map(Row::published).collect() }
}

fn version_rank(kind: Option<GidType>) -> u8 {
    match kind {
        Some(GidType::RoceV2) => 0,
        None => 1,
        Some(GidType::RoceV1 | GidType::Ib) => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows as they are listed, from index 0.
    fn rows(listed: &[(&str, Option<GidType>)]) -> Vec<Row> {
        let row = |(index, (gid, kind)): (usize, &(&str, Option<GidType>))| {
            let gid: Ipv6Addr = gid.parse().expect("an address");
            Row { index: index as u8, gid: Gid(gid.octets()), kind: *kind, prefix: None }
        };
        listed.iter().enumerate().map(row).collect()
    }

    fn found(listed: &[(&str, Option<GidType>)]) -> Option<u8> {
        usable(rows(listed)).first().map(|row| row.index)
    }

    const V1: Option<GidType> = Some(GidType::RoceV1);
    const V2: Option<GidType> = Some(GidType::RoceV2);

    #[test]
    fn the_version_comes_first_and_then_the_kind_of_address() {
        let table = [
            ("fe80::1", V1),
            ("fe80::1", V2),
            ("::ffff:10.1.0.7", V1),
            ("2001:db8::7", V2),
            ("::ffff:10.1.0.7", V2),
        ];
        assert_eq!(found(&table), Some(4));
        assert_eq!(found(&table[..4]), Some(3));
        assert_eq!(found(&table[..3]), Some(1), "v2 of a link-local address rather than v1 of any");
        assert_eq!(found(&table[..1]), Some(0));
        assert_eq!(found(&[]), None);
    }

    fn all_of(listed: &[(&str, Option<GidType>)]) -> Vec<u8> {
        usable(rows(listed)).iter().map(|row| row.index).collect()
    }

    #[test]
    fn usable_rows_are_of_one_version_and_have_each_gid_once() {
        let table = [
            ("fe80::1", V1),
            ("fe80::1", V2),
            ("::ffff:10.1.0.7", V1),
            ("::ffff:10.1.0.7", V2),
            ("fe80::1", V2),
        ];
        assert_eq!(all_of(&table), [3, 1]);
        assert_eq!(all_of(&[table[0], table[2]]), [1, 0], "v1 where there is no v2");
        assert_eq!(published(&usable(rows(&table))).version, Version::V2);
    }

    #[test]
    fn of_many_rows_a_link_local_one_is_left() {
        let addresses: Vec<String> = (0..12).map(|net| format!("::ffff:10.{net}.0.7")).collect();
        let mut table = vec![("fe80::1", V2)];
        table.extend(addresses.iter().map(|address| (address.as_str(), V2)));
        assert_eq!(all_of(&table), [1, 2, 3, 4, 5, 6, 7, 0]);
        assert_eq!(all_of(&table[1..]), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn of_equals_the_first_is_taken() {
        assert_eq!(found(&[("fe80::1", V2), ("::ffff:10.1.0.7", V2), ("::ffff:10.2.0.7", V2)]), Some(1));
    }

    #[test]
    fn an_ipv4_address_that_an_interface_gave_itself_comes_last() {
        assert_eq!(found(&[("::ffff:169.254.3.4", V2), ("fe80::1", V2)]), Some(1));
    }

    #[test]
    fn without_types_the_address_decides() {
        assert_eq!(found(&[("fe80::1", None), ("::ffff:10.1.0.7", None)]), Some(1));
        assert_eq!(found(&[("fe80::1", None), ("::ffff:10.1.0.7", V1)]), Some(0));
    }

    #[test]
    fn a_row_in_words_has_index_address_network_and_type() {
        let mut rows = rows(&[("fe80::1", V1), ("::ffff:10.1.0.7", None)]);
        rows[1].prefix = Some(24);
        let words: Vec<String> = rows.iter().map(Row::to_string).collect();
        assert_eq!(words, ["0: fe80::1 RoCE v1", "1: ::ffff:10.1.0.7/24"]);
    }
}
