//! The modex message: round trip, exact refusals, later minor versions, and no panic on anything.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use mca_btl_oxib::protocol::layout::Layout;
use mca_btl_oxib::protocol::modex::{Advert, DeviceKind, LinkLayer, MAX_NAME, Modex, ModexError, Port};
use mca_btl_oxib::protocol::roce::{MAX_ROWS, Row, Rows, Version};
use proptest::prelude::*;

fn layout(text: &str) -> Layout {
    Layout::parse(text).expect("a layout")
}

fn sample() -> Modex {
    let advert =
        |name: &str, priority, blob: &[u8]| Advert { name: name.into(), priority, blob: blob.into() };
    let port = Port {
        gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8],
        lid: 7,
        mtu: 5,
        link_layer: LinkLayer::InfiniBand,
        layout: layout("P,128,256:S,65536,16"),
        adverts: vec![advert("ibcm", 40, &[1, 2, 3]), advert("rdmacm", 30, &[])],
        rows: Rows::default(),
    };
    Modex {
        boot_id: [9; 16],
        uid: 1000,
        device: DeviceKind::Soft,
        segment_dir: "/dev/shm".into(),
        ports: vec![port],
    }
}

/// A RoCE port with these rows.
fn roce(rows: Rows) -> Modex {
    let modex = sample();
    let gid = rows.rows[0].gid;
    let port = Port { gid, lid: 0, link_layer: LinkLayer::Ethernet, rows, ..modex.ports[0].clone() };
    Modex { ports: vec![port], ..modex }
}

/// So many rows of RoCE v2: `10.1.N.7/24`.
fn v2(count: u8) -> Rows {
    let row = |net| Row { gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 1, net, 7], prefix: Some(24) };
    Rows { version: Version::V2, rows: (0..count).map(row).collect() }
}

fn encoded(modex: &Modex) -> Vec<u8> {
    modex.encode().expect("encodes")
}

fn refuse(bytes: &[u8]) -> ModexError {
    Modex::decode(bytes).expect_err("must be refused")
}

/// Sets the total length, as an honest writer of these bytes would.
fn relength(mut bytes: Vec<u8>) -> Vec<u8> {
    let length = (bytes.len() as u16).to_le_bytes();
    bytes[6..8].copy_from_slice(&length);
    bytes
}

#[test]
fn the_message_begins_with_the_documented_bytes() {
    let bytes = encoded(&Modex { ports: vec![], ..sample() });
    let mut expected = b"OXIB\x01\x01\x27\x00".to_vec();
    expected.extend([9; 16]);
    expected.extend([0xe8, 3, 0, 0, 0, 8]);
    expected.extend(b"/dev/shm\0");
    assert_eq!(bytes, expected);
    assert_eq!(Modex::decode(&bytes).expect("no port is valid").ports, []);
}

#[test]
fn foreign_and_other_versions_are_named() {
    assert_eq!(refuse(b"TCP!....abc"), ModexError::Foreign(*b"TCP!"));
    assert_eq!(refuse(b""), ModexError::Truncated { len: 0, need: 8 });
    let mut bytes = encoded(&sample());
    bytes[4] = 2;
    assert_eq!(refuse(&bytes), ModexError::Version { major: 2, minor: 1 });
}

#[test]
fn every_truncation_is_refused_even_when_the_length_is_made_to_fit() {
    every_truncation_is_refused(&encoded(&sample()));
    every_truncation_is_refused(&encoded(&roce(v2(3))));
}

fn every_truncation_is_refused(bytes: &[u8]) {
    for len in 0..bytes.len() {
        let cut = &bytes[..len];
        assert!(matches!(refuse(cut), ModexError::Truncated { .. }), "cut to {len}");
        if len >= 8 {
            let error = refuse(&relength(cut.to_vec()));
            assert!(matches!(error, ModexError::Overrun(_)), "cut to {len}: {error}");
        }
    }
    let longer = [bytes, &[0]].concat();
    assert_eq!(refuse(&longer), ModexError::Trailing(1));
    assert_eq!(refuse(&[bytes, &[0; 300]].concat()), ModexError::Trailing(300));
    assert_eq!(refuse(&relength(longer)), ModexError::Trailing(1));
}

#[test]
fn a_newer_minor_version_may_append_to_ports_and_to_the_message() {
    let modex = sample();
    let mut bytes = encoded(&modex);
    let record = 8 + 16 + 4 + 1 + 9 + 1;
    let length = u16::from_le_bytes([bytes[record], bytes[record + 1]]) + 2;
    bytes[record..record + 2].copy_from_slice(&length.to_le_bytes());
    bytes.extend([0xaa; 5]);
    bytes = relength(bytes);
    assert!(matches!(refuse(&bytes), ModexError::Trailing(_)), "the same version writes no more");
    bytes[5] = 2;
    assert_eq!(Modex::decode(&bytes), Ok(modex));
    assert_eq!(refuse(&[&bytes[..], &[0; 4]].concat()), ModexError::Trailing(4), "beyond its length");
}

#[test]
fn values_out_of_range_are_refused_on_both_sides() {
    let change = |edit: &dyn Fn(&mut Modex)| {
        let mut modex = sample();
        edit(&mut modex);
        modex.encode().expect_err("must not encode")
    };
    let value = |field, value| ModexError::Value { field, value };
    let name = ModexError::Text("connection component's name");
    assert_eq!(change(&|m| m.ports[0].mtu = 0), value("mtu", 0));
    assert_eq!(change(&|m| m.ports[0].adverts[0].priority = 101), value("priority", 101));
    for bad in ["IBCM", "", "a name", &"a".repeat(300)] {
        assert_eq!(change(&|m| m.ports[0].adverts[0].name = bad.into()), name, "{bad}");
    }
    assert_eq!(change(&|m| m.ports[0].adverts[1].name = "ibcm".into()), ModexError::Duplicate("ibcm".into()));
    let error = change(&|m| m.ports[0].adverts[0].blob = vec![0; 256]);
    assert_eq!(error, ModexError::TooLong { what: "connection component's data", len: 256, limit: 255 });
    assert!(matches!(change(&|m| m.segment_dir = "x".repeat(300)), ModexError::TooLong { .. }));
    assert_eq!(change(&|m| m.ports[0].adverts[0].name = "a".repeat(MAX_NAME + 1)), name);
    let mut longest = sample();
    longest.ports[0].adverts[0].name = "a".repeat(MAX_NAME);
    assert_eq!(Modex::decode(&encoded(&longest)), Ok(longest));

    let bytes = encoded(&sample());
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        refuse(&bytes)
    };
    let port = 8 + 16 + 4 + 1 + 9 + 1 + 2;
    assert_eq!(with(28, 2), value("device kind", 2));
    assert_eq!(with(30, 0xff), ModexError::Text("segment directory"));
    assert_eq!(with(port + 18, 6), value("mtu", 6));
    assert_eq!(with(port + 19, 0), value("link layer", 0));
    assert!(matches!(with(port + 22, b'Q'), ModexError::Layout(_)));
}

#[test]
fn the_rows_of_a_roce_port_follow_its_connection_components() {
    let bytes = encoded(&roce(v2(2)));
    let mut expected = vec![2, 24, 1];
    expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 1, 1, 7, 24]);
    assert!(bytes.ends_with(&expected), "{bytes:?}");
    let infiniband = encoded(&sample()).len();
    assert_eq!(bytes.len(), infiniband + expected.len(), "an InfiniBand port has nothing there");
}

#[test]
fn rows_that_a_port_cannot_have_are_refused_on_both_sides() {
    let encode = |rows| roce(rows).encode().expect_err("must not encode");
    let with = |edit: &dyn Fn(&mut Rows)| {
        let mut rows = v2(3);
        edit(&mut rows);
        encode(rows)
    };
    let row = |net: u8| v2(net + 1).rows[usize::from(net)];
    assert_eq!(with(&|rows| rows.rows[1].prefix = Some(33)), ModexError::Row(row(1).gid));
    assert_eq!(with(&|rows| rows.rows[2] = row(0)), ModexError::Row(row(0).gid), "twice");
    assert_eq!(with(&|rows| rows.rows[1].gid = [0; 16]), ModexError::Row([0; 16]));
    assert_eq!(encode(v2(9)), ModexError::TooLong { what: "list of GIDs", len: 9, limit: MAX_ROWS });
    let mut modex = roce(v2(2));
    modex.ports[0].gid = [7; 16];
    assert_eq!(modex.encode(), Err(ModexError::Row([7; 16])), "its own GID is the first");

    let bytes = encoded(&roce(v2(2)));
    let end = bytes.len();
    let damaged = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[end - at] = byte;
        refuse(&bytes)
    };
    let value = |field, value| ModexError::Value { field, value };
    assert_eq!(damaged(20, 3), value("RoCE version", 3));
    assert_eq!(damaged(19, 33), ModexError::Row(row(0).gid));
    assert_eq!(damaged(18, 8), value("count of GIDs", 8));
    assert_eq!(damaged(18, 2), ModexError::Overrun("list of GIDs"));
    assert_eq!(damaged(18, 0), ModexError::Trailing(17));
    assert_eq!(damaged(1, 33), ModexError::Row(row(1).gid));
    assert_eq!(damaged(3, 0), ModexError::Row(row(0).gid), "twice");
}

#[test]
fn a_roce_port_of_an_older_minor_version_has_its_own_row_and_no_network() {
    let modex = roce(v2(1));
    let mut bytes = encoded(&modex);
    let record = 8 + 16 + 4 + 1 + 9 + 1;
    bytes.truncate(bytes.len() - 3);
    let length = u16::from_le_bytes([bytes[record], bytes[record + 1]]) - 3;
    bytes[record..record + 2].copy_from_slice(&length.to_le_bytes());
    bytes[5] = 0;
    let rows = Modex::decode(&relength(bytes)).expect("older").ports[0].rows.clone();
    let own = Row { prefix: None, ..v2(1).rows[0] };
    assert_eq!(rows, Rows { version: Version::Unknown, rows: vec![own] });
}

#[test]
fn soft_devices_reach_each_other_only_with_the_same_kernel_owner_and_segments() {
    let me = sample();
    assert!(me.shares_segments(&sample()));
    let others = [
        Modex { boot_id: [8; 16], ..sample() },
        Modex { uid: 1001, ..sample() },
        Modex { segment_dir: "/tmp/shm".into(), ..sample() },
        Modex { device: DeviceKind::Hard, ..sample() },
    ];
    for other in others {
        assert!(!me.shares_segments(&other) && !other.shares_segments(&me), "{other:?}");
    }
}

fn advert(index: usize) -> impl Strategy<Value = Advert> {
    (0..=100_u8, proptest::collection::vec(any::<u8>(), 0..=255)).prop_map(move |(priority, blob)| Advert {
        name: format!("cpc_{index}"),
        priority,
        blob,
    })
}

fn port() -> impl Strategy<Value = Port> {
    let layout = prop_oneof![
        Just(layout("P,128,256")),
        Just(layout("S,128,256:S,65536,16,8,4")),
        Just(layout("X,128,256:X,65536,16")),
    ];
    let adverts = (0..4_usize).prop_flat_map(|count| (0..count).map(advert).collect::<Vec<_>>());
    let rows = prop_oneof![Just(Rows::default()), rows()];
    let without_rows = prop_oneof![Just(LinkLayer::InfiniBand), Just(LinkLayer::Iwarp)];
    (any::<[u8; 16]>(), any::<u16>(), 1..=5_u8, without_rows, rows, layout, adverts).prop_map(
        |(gid, lid, mtu, without_rows, rows, layout, adverts)| {
            let own = rows.rows.first().map(|row| row.gid);
            let link_layer = own.map_or(without_rows, |_| LinkLayer::Ethernet);
            Port { gid: own.unwrap_or(gid), lid, mtu, link_layer, layout, adverts, rows }
        },
    )
}

fn rows() -> impl Strategy<Value = Rows> {
    let version = prop_oneof![Just(Version::Unknown), Just(Version::V1), Just(Version::V2)];
    let row = (any::<[u8; 16]>(), any::<bool>(), proptest::option::of(1..=32_u8));
    let row = row.prop_map(|(mut gid, ipv4, prefix)| {
        if ipv4 {
            gid[..12].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255]);
        }
        Row { gid, prefix }
    });
    let row = row.prop_filter("a GID that a port can have", Row::is_fair);
    let rows = proptest::collection::vec(row, 1..=MAX_ROWS).prop_map(|mut rows| {
        rows.sort_by_key(|row| row.gid);
        rows.dedup_by_key(|row| row.gid);
        rows
    });
    (version, rows).prop_map(|(version, rows)| Rows { version, rows })
}

fn modex() -> impl Strategy<Value = Modex> {
    let device = prop_oneof![Just(DeviceKind::Soft), Just(DeviceKind::Hard)];
    (any::<[u8; 16]>(), any::<u32>(), device, ".{0,60}", proptest::collection::vec(port(), 0..5)).prop_map(
        |(boot_id, uid, device, segment_dir, ports)| Modex { boot_id, uid, device, segment_dir, ports },
    )
}

proptest! {
    #[test]
    fn messages_round_trip(modex in modex()) {
        prop_assert_eq!(Modex::decode(&encoded(&modex)), Ok(modex));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
        let _ = Modex::decode(&bytes);
        let framed = relength([b"OXIB\x01\x00..", &bytes[..]].concat());
        let _ = Modex::decode(&framed);
    }

    #[test]
    fn a_damaged_message_never_panics_and_what_it_decodes_to_is_sound(
        modex in modex(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = encoded(&modex);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(decoded) = Modex::decode(&bytes) {
            let again = decoded.encode();
            prop_assert!(again.is_ok(), "{:?}", again);
            prop_assert_eq!(Modex::decode(&again.unwrap_or_default()), Ok(decoded));
        }
    }
}
