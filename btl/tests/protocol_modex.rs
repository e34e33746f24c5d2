//! The modex message: round trip, exact refusals, later minor versions, and no panic on anything.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use mca_btl_oxib::protocol::layout::Layout;
use mca_btl_oxib::protocol::modex::{Advert, DeviceKind, LinkLayer, Modex, ModexError, Port};
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
    };
    Modex {
        boot_id: [9; 16],
        uid: 1000,
        device: DeviceKind::Soft,
        segment_dir: "/dev/shm".into(),
        ports: vec![port],
    }
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
    let mut expected = b"OXIB\x01\x00\x27\x00".to_vec();
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
    assert_eq!(refuse(&bytes), ModexError::Version { major: 2, minor: 0 });
}

#[test]
fn every_truncation_is_refused_even_when_the_length_is_made_to_fit() {
    let bytes = encoded(&sample());
    for len in 0..bytes.len() {
        let cut = &bytes[..len];
        assert!(matches!(refuse(cut), ModexError::Truncated { .. }), "cut to {len}");
        if len >= 8 {
            let error = refuse(&relength(cut.to_vec()));
            assert!(matches!(error, ModexError::Overrun(_)), "cut to {len}: {error}");
        }
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(refuse(&longer), ModexError::Trailing(1));
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
    bytes[5] = 1;
    assert_eq!(Modex::decode(&bytes), Ok(modex));
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
    assert_eq!(change(&|m| m.ports[0].adverts[0].name = "IBCM".into()), name);
    assert_eq!(change(&|m| m.ports[0].adverts[1].name = "ibcm".into()), ModexError::Duplicate("ibcm".into()));
    let error = change(&|m| m.ports[0].adverts[0].blob = vec![0; 256]);
    assert_eq!(error, ModexError::TooLong { what: "connection component's data", len: 256, limit: 255 });
    assert!(matches!(change(&|m| m.segment_dir = "x".repeat(300)), ModexError::TooLong { .. }));

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
    let link = prop_oneof![Just(LinkLayer::InfiniBand), Just(LinkLayer::Ethernet)];
    (any::<[u8; 16]>(), any::<u16>(), 1..=5_u8, link, layout, adverts).prop_map(
        |(gid, lid, mtu, link_layer, layout, adverts)| Port { gid, lid, mtu, link_layer, layout, adverts },
    )
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
