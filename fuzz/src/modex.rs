//! The address message of a process, and in it the address of each connection manager.

use cpc::wire::{domain, ip, listener};
use mca_btl_oxib::protocol::modex::Modex;

pub(crate) fn run(data: &[u8]) {
    addresses(data);
    let Ok(modex) = Modex::decode(data) else { return };
    for advert in modex.ports.iter().flat_map(|port| &port.adverts) {
        addresses(&advert.blob);
    }
    // A message of a newer minor version may hold more than this one writes: what this one read of it must still stand.
    let bytes = modex.encode().expect("what has been read can be written");
    assert_eq!(Modex::decode(&bytes).as_ref(), Ok(&modex));
}

fn addresses(blob: &[u8]) {
    if let Ok(address) = ip::Address::parse(blob) {
        assert_eq!(ip::Address::parse(&address.emit()), Ok(address));
        assert!(!address.outranks(&address), "a peer with our own address is no better than we are");
    }
    if let Ok(address) = listener::Address::parse(blob) {
        assert_eq!(listener::Address::parse(&address.emit()), Ok(address));
        assert!(!address.outranks(&address), "a peer with our own address is no better than we are");
    }
    if let Ok(address) = domain::Address::parse(blob) {
        assert_eq!(domain::Address::parse(&address.emit()), Ok(address));
    }
}
