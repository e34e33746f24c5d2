//! A message of the transport: the header, on both paths, and the control payloads.

use mca_btl_oxib::protocol::wire::{Cts, DataHeader, HEADER_LEN, Header, Kind, XrcHeader};

pub(crate) fn run(data: &[u8]) {
    let parsed = Header::parse(data);
    if let Ok((header, payload)) = parsed {
        assert_eq!(payload, &data[HEADER_LEN..], "the rest is the payload");
        assert_eq!(header.emit(), data[..HEADER_LEN], "the header says all that the bytes do");
        if header.kind == Kind::Cts
            && let Ok(cts) = Cts::parse(payload)
        {
            assert_eq!(cts.message(header.queue), *data);
        }
    }
    let Some(bytes) = data.first_chunk::<HEADER_LEN>() else { return };
    let fast = DataHeader::parse(*bytes);
    let slow = parsed.ok().filter(|(header, _)| header.kind == Kind::Data).map(|(header, _)| header);
    let same = fast.map(|header| Header::data(header.tag(), header.queue(), header.grant()));
    assert_eq!(same, slow, "both readers take the same data messages");
    if let Some(header) = XrcHeader::parse(*bytes) {
        let again = XrcHeader::new(header.tag(), header.queue(), header.label(), header.number());
        assert_eq!(again.emit(), *bytes);
    }
}
