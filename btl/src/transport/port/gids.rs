//! Which row of a port's GID table its connections use.
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
#![forbid(unsafe_code)]

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
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.index, Ipv6Addr::from(self.gid.0))?;
        self.kind.map_or(Ok(()), |kind| write!(f, " {kind}"))
    }
}

/// The row that an Ethernet port's connections use, unless the user names another: RoCE v2 rather than v1, then an IPv4 address rather
/// than a global IPv6 address rather than a link-local one, then the lowest index. `None` for an empty table.
pub fn best(rows: impl IntoIterator<Item = Row>) -> Option<Row> {
    rows.into_iter().min_by_key(|row| (version_rank(row.kind), address_rank(row.gid), row.index))
}

fn version_rank(kind: Option<GidType>) -> u8 {
    match kind {
        Some(GidType::RoceV2) => 0,
        None => 1,
        Some(GidType::RoceV1 | GidType::Ib) => 2,
    }
}

fn address_rank(gid: Gid) -> u8 {
    let address = Ipv6Addr::from(gid.0);
    match address.to_ipv4_mapped() {
        Some(address) if address.is_link_local() => 3,
        Some(_) => 0,
        None if address.is_unicast_link_local() => 2,
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows as they are listed, from index 0.
    fn rows(listed: &[(&str, Option<GidType>)]) -> Vec<Row> {
        let row = |(index, (gid, kind)): (usize, &(&str, Option<GidType>))| {
            let gid: Ipv6Addr = gid.parse().expect("an address");
            Row { index: index as u8, gid: Gid(gid.octets()), kind: *kind }
        };
        listed.iter().enumerate().map(row).collect()
    }

    fn found(listed: &[(&str, Option<GidType>)]) -> Option<u8> {
        best(rows(listed)).map(|row| row.index)
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
    fn a_row_in_words_has_index_address_and_type() {
        let words: Vec<String> =
            rows(&[("fe80::1", V1), ("::ffff:10.1.0.7", None)]).iter().map(Row::to_string).collect();
        assert_eq!(words, ["0: fe80::1 RoCE v1", "1: ::ffff:10.1.0.7"]);
    }
}
