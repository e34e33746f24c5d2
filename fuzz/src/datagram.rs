//! A datagram of ibcm or xrc: what parses says the same when it is written and read again.

use cpc::wire::datagram::{Datagram, Request};
use cpc::wire::{MAD_LEN, Req, xrc};

pub(crate) fn run(data: &[u8]) {
    reads_its_own::<Req>(data);
    reads_its_own::<xrc::Req>(data);
}

fn reads_its_own<Q: Request>(data: &[u8]) {
    let Ok(datagram) = Datagram::<Q>::parse(data) else { return };
    assert_eq!(data.len(), MAD_LEN, "a datagram of another length");
    let mut mad = [0xa5; MAD_LEN];
    datagram.emit(&mut mad);
    assert_eq!(Datagram::parse(&mad), Ok(datagram), "read again");
    assert_ne!(mad[0], 0xa5, "the header is written");
}
