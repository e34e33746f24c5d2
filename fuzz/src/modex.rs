//! The address message of a process, and in it the address of each connection manager.

use cpc::wire::{domain, ip, listener};
use mca_btl_oxib::protocol::layout::Layout;
use mca_btl_oxib::protocol::modex::{LinkLayer, Modex, Port};
use mca_btl_oxib::protocol::pairing::{Pair, pairs};
use mca_btl_oxib::protocol::roce::{Row, Rows, Version};

pub(crate) fn run(data: &[u8]) {
    addresses(data);
    let Ok(modex) = Modex::decode(data) else { return };
    for advert in modex.ports.iter().flat_map(|port| &port.adverts) {
        addresses(&advert.blob);
    }
    // A message of a newer minor version may hold more than this one writes: what this one read of it must still stand.
    let bytes = modex.encode().expect("what has been read can be written");
    assert_eq!(Modex::decode(&bytes).as_ref(), Ok(&modex));
    meet(&modex);
}

/// Whatever a peer publishes, both sides come to the same pairs of ports and rows, and to none that is not there.
fn meet(theirs: &Modex) {
    let ours = known();
    let mirrored = |pair: &Pair| (pair.theirs, pair.ours, pair.rows.map(|(ours, theirs)| (theirs, ours)));
    let seen = |pair: &Pair| (pair.ours, pair.theirs, pair.rows);
    let mut by_us: Vec<_> = pairs(&ours, &theirs.ports).iter().map(seen).collect();
    let mut by_them: Vec<_> = pairs(&theirs.ports, &ours).iter().map(mirrored).collect();
    by_us.sort_unstable();
    by_them.sort_unstable();
    assert_eq!(by_us, by_them);
    for (mine, its, rows) in by_us {
        let (mine, its) = (&ours[mine], &theirs.ports[its]);
        if let Some((own, their)) = rows {
            assert!(own < mine.rows.rows.len() && their < its.rows.rows.len());
        }
    }
}

/// Two RoCE ports on `10.1.0.0/24` and `10.2.0.0/24`, and one of InfiniBand.
fn known() -> Vec<Port> {
    let roce = |net| {
        let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, net, 0, 1];
        let link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, net];
        let rows = vec![Row { gid, prefix: Some(24) }, Row { gid: link_local, prefix: None }];
        port(gid, LinkLayer::Ethernet, Rows { version: Version::V2, rows })
    };
    let subnet = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    vec![roce(1), port(subnet, LinkLayer::InfiniBand, Rows::default()), roce(2)]
}

fn port(gid: [u8; 16], link_layer: LinkLayer, rows: Rows) -> Port {
    let layout = Layout::parse("P,4096,8").expect("a layout");
    Port { gid, lid: 1, mtu: 5, link_layer, layout, adverts: Vec::new(), rows }
}

fn addresses(blob: &[u8]) {
    if let Ok(address) = ip::Address::parse(blob) {
        assert_eq!(ip::Address::parse(&address.emit()), Ok(address));
        assert!(!address.outranks(&address), "a peer with our own address is no better than we are");
    }
    if let Ok(listening) = ip::Listening::parse(blob) {
        assert_eq!(ip::Listening::parse(&listening.emit()), Ok(listening));
    }
    if let Ok(address) = listener::Address::parse(blob) {
        assert_eq!(listener::Address::parse(&address.emit()), Ok(address));
        assert!(!address.outranks(&address), "a peer with our own address is no better than we are");
    }
    if let Ok(address) = domain::Address::parse(blob) {
        assert_eq!(domain::Address::parse(&address.emit()), Ok(address));
    }
}
