//! A message of the transport: the header, on all three paths, and the payloads of control messages.

use mca_btl_oxib::protocol::eager::{Expected, LONGEST};
use mca_btl_oxib::protocol::wire::{
    Arrived, Cts, DataHeader, End, HEADER_LEN, Header, Kind, LAST, Offer, XrcHeader,
};

pub(crate) fn run(data: &[u8]) {
    let parsed = Header::parse(data);
    if let Ok((header, payload)) = parsed {
        assert_eq!(payload, &data[HEADER_LEN..], "the rest is the payload");
        assert_eq!(header.emit(), data[..HEADER_LEN], "the header says all that the bytes do");
        control(header, payload, data);
    }
    let Some(bytes) = data.first_chunk::<HEADER_LEN>() else { return };
    let fast = DataHeader::parse(*bytes);
    let slow = parsed.ok().filter(|(header, _)| header.kind == Kind::Data).map(|(header, _)| header);
    let same = fast.map(|header| Header::data(header.tag(), header.queue(), header.grant()));
    assert_eq!(same, slow, "both readers take the same data messages");
    if let Some(header) = DataHeader::parse_last(*bytes) {
        assert_eq!(bytes[1], LAST, "one flag and no other");
        assert_eq!(header.flag_last(true).emit(), *bytes);
    }
    // The same word at the end of a message in a ring.
    let word = u64::from_le_bytes(*bytes);
    if let Some(trailer) = Expected::new(bytes[7], u16::from_le_bytes([bytes[3], bytes[4]])).of(word) {
        assert!(trailer.payload_len() <= LONGEST && trailer.emit() == *bytes);
    }
    if let Some(header) = XrcHeader::parse(*bytes) {
        let again = XrcHeader::new(header.tag(), header.queue(), header.label(), header.number());
        assert_eq!(again.of_kind(header.kind()).emit(), *bytes);
    }
}

/// Payloads of control messages say all that the bytes do.
fn control(header: Header, payload: &[u8], data: &[u8]) {
    match header.kind {
        Kind::Cts => {
            if let Ok(cts) = Cts::parse(payload) {
                assert_eq!(cts.message(header.queue), *data);
            }
        }
        Kind::End | Kind::EndAck => {
            if let Ok(end) = End::parse(payload) {
                assert_eq!(end.message()[HEADER_LEN..], *payload);
            }
        }
        Kind::Eager => {
            if let Ok(offer) = Offer::parse(payload) {
                assert!(
                    offer.slots == 0 || offer.message()[HEADER_LEN..] == *payload,
                    "an offer says all that the bytes do"
                );
            }
        }
        Kind::Resume => {
            if let Ok(arrived) = Arrived::parse(payload, payload.len() / 2) {
                assert_eq!(arrived.message(header.queue), *data);
            }
        }
        Kind::Credit | Kind::Open => assert!(payload.is_empty(), "{:?}", header.kind),
        Kind::Data => {}
    }
}
