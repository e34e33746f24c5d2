//! Message header and control payloads: exact bytes, round trips, refusals, and no panic on
//! anything.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use mca_btl_oxib::protocol::credits::Grant;
use mca_btl_oxib::protocol::wire::{
    Arrived, Cts, DataHeader, End, HEADER_LEN, Header, Kind, MOST_SLOTS, Offer, VERSION, WireError,
    XrcHeader, counted,
};
use proptest::prelude::*;

#[test]
fn the_header_has_the_documented_bytes() {
    let grant = Grant { data: 0x1234, ctl: 0x56 };
    let bytes = [0x41, 0, 0x34, 0x12, 0x56, 3, 0, 0];
    assert_eq!(DataHeader::new(0x41, 3, grant).emit(), bytes);
    assert_eq!(Header::data(0x41, 3, grant).emit(), bytes);
    assert_eq!(Header::credit(3, grant).emit(), [0, 1, 0x34, 0x12, 0x56, 3, 0, 0]);
    assert_eq!(Header::cts(3).emit(), [0, 2, 0, 0, 0, 3, 0, 0]);
    assert_eq!(Header::open(3).emit(), [0, 7, 0, 0, 0, 3, 0, 0]);
    assert_eq!(Header::parse(&Header::open(3).emit()), Ok((Header::open(3), &[][..])));
    for (kind, value) in [(Kind::End, 3), (Kind::EndAck, 4), (Kind::Eager, 5)] {
        let bytes = [0, value, 0x34, 0x12, 0x56, 3, 0, 0];
        assert_eq!(DataHeader::new(0, 3, grant).of_kind(kind).emit(), bytes);
        assert_eq!(Header::parse(&bytes), Ok((Header { kind, tag: 0, queue: 3, grant }, &[][..])));
    }
    let documented = format!("version of sections 2 to 4: {VERSION}\n");
    assert!(include_str!("../../docs/protocol.md").contains(&documented), "docs/protocol.md, section 4");
    let cts = Cts { queues: 4, layout: 0xa1b2_c3d4 };
    let message = [0, 2, 0, 0, 0, 1, 0, 0, 12, 0, 4, 0, 0xd4, 0xc3, 0xb2, 0xa1];
    assert_eq!(cts.message(1), message);
}

#[test]
fn each_defect_of_a_header_has_its_own_refusal() {
    let refuse = |bytes: &[u8]| Header::parse(bytes).expect_err("must be refused");
    let not_zero = |field, value| WireError::NotZero { field, value };
    assert_eq!(refuse(&[0; 7]), WireError::Short { what: "header", len: 7, need: 8 });
    assert_eq!(refuse(&[0, 0x10, 0, 0, 0, 0, 0, 0]), not_zero("flags", 0x10));
    assert_eq!(refuse(&[0, 0, 0, 0, 0, 0, 1, 2]), not_zero("reserved", 0x201));
    assert_eq!(refuse(&[1, 5, 0, 0, 0, 0, 0, 0]), not_zero("tag", 1));
    let long = WireError::Long { what: "eager RDMA offer", len: 17, limit: 16 };
    assert_eq!(refuse(&[&[0, 5, 0, 0, 0, 0, 0, 0][..], &[0; 17]].concat()), long);
    assert_eq!(refuse(&[0, 6, 0, 0, 1, 0, 0, 0]), not_zero("ctl", 1));
    assert_eq!(refuse(&[0, 15, 0, 0, 0, 0, 0, 0]), WireError::UnknownKind(15));
    assert_eq!(refuse(&[0, 1, 0, 0, 9, 0, 0, 0]), WireError::EmptyCredit);
    assert_eq!(refuse(&[7, 1, 1, 0, 0, 0, 0, 0]), not_zero("tag", 7));
    assert_eq!(refuse(&[0, 2, 1, 0, 0, 0, 0, 0]), not_zero("credits", 1));
    assert_eq!(refuse(&[0, 2, 0, 0, 1, 0, 0, 0]), not_zero("ctl", 1));
    assert_eq!(refuse(&[0, 7, 1, 0, 0, 0, 0, 0]), not_zero("credits", 1));
    assert_eq!(refuse(&[5, 3, 1, 0, 0, 0, 0, 0]), not_zero("tag", 5));
    let long = WireError::Long { what: "end of stream payload", len: 5, limit: 4 };
    assert_eq!(refuse(&[0, 4, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5]), long);
    let long = WireError::Long { what: "opening message payload", len: 1, limit: 0 };
    assert_eq!(refuse(&[0, 7, 0, 0, 0, 0, 0, 0, 0xff]), long);
    let long = WireError::Long { what: "credit message payload", len: 1, limit: 0 };
    assert_eq!(refuse(&[0, 1, 1, 0, 0, 0, 0, 0, 0xff]), long);
}

#[test]
fn an_offer_has_the_documented_bytes_and_its_slots_are_a_power_of_two() {
    let offer = Offer { addr: 0x0102_0304_0506_0708, rkey: 0xa1b2_c3d4, slots: 0x40, checks: true };
    let payload = [8, 7, 6, 5, 4, 3, 2, 1, 0xd4, 0xc3, 0xb2, 0xa1, 0x40, 0, 1, 0];
    assert_eq!(
        (offer.message()[..HEADER_LEN].to_vec(), &offer.message()[HEADER_LEN..]),
        (vec![0; 8], &payload[..])
    );
    assert_eq!(Offer::parse(&payload), Ok(offer));
    assert_eq!(Offer::parse(&Offer::NONE.message()[HEADER_LEN..]), Ok(Offer::NONE));
    let with = |at: usize, byte| {
        let mut payload = payload;
        payload[at] = byte;
        Offer::parse(&payload)
    };
    assert_eq!(with(12, 0x41), Err(WireError::Slots(0x41)));
    assert_eq!(with(13, 0x20), Err(WireError::Slots(0x2040)));
    assert_eq!(with(14, 0), Ok(Offer { checks: false, ..offer }));
    assert!(matches!(with(14, 3), Err(WireError::NotZero { value: 2, .. })));
    assert!(matches!(with(15, 1), Err(WireError::NotZero { value: 0x100, .. })));
    assert!(matches!(Offer::parse(&payload[1..]), Err(WireError::Short { len: 15, .. })));
}

#[test]
fn an_end_of_stream_says_how_many_messages_came_before_it() {
    let end = End { count: 0xa1b2_c3d4 };
    assert_eq!(end.message(), [0, 0, 0, 0, 0, 0, 0, 0, 0xd4, 0xc3, 0xb2, 0xa1]);
    assert_eq!(End::parse(&end.message()[8..]), Ok(end));
    let short = WireError::Short { what: "end of stream", len: 3, need: 4 };
    assert_eq!(End::parse(&[1, 2, 3]), Err(short));
    assert_eq!(End::parse(&[0; 5]), Err(WireError::Long { what: "end of stream payload", len: 5, limit: 4 }));
}

#[test]
fn what_resumes_says_of_each_queue_how_many_messages_have_come() {
    let arrived = Arrived::new([0x0102, 0xfffe]);
    assert_eq!(arrived.message(1), [0, 6, 0, 0, 0, 1, 0, 0, 0x02, 0x01, 0xfe, 0xff]);
    assert_eq!(Arrived::parse(&arrived.message(1)[8..], 2), Ok(arrived));
    let what = "counts of a resumed connection";
    assert_eq!(Arrived::parse(&[1, 2, 3], 2), Err(WireError::Short { what, len: 3, need: 4 }));
    assert_eq!(Arrived::parse(&[0; 6], 2), Err(WireError::Long { what, len: 6, limit: 4 }));
    let most = Arrived::new([7; 20]);
    assert_eq!((most.counts().len(), most.message(0).len()), (Arrived::MOST, Arrived::LONGEST));
    assert_eq!(Arrived::parse(&most.message(0)[8..], Arrived::MOST), Ok(most));
}

#[test]
fn on_x_queues_an_end_of_stream_has_label_and_number_like_a_message() {
    for (kind, value) in [(Kind::Data, 0), (Kind::End, 3), (Kind::EndAck, 4)] {
        let header = XrcHeader::new(9, 2, 0, 0x1234).of_kind(kind).labelled(0x0056_789a);
        let bytes = [9, value, 0x9a, 0x78, 0x56, 2, 0x34, 0x12];
        assert_eq!(header.emit(), bytes);
        let parsed = XrcHeader::parse(bytes).expect("a valid header");
        assert_eq!((parsed.kind(), parsed.label(), parsed.number()), (kind, 0x0056_789a, 0x1234));
        assert_eq!((parsed.tag(), parsed.queue()), (9, 2));
    }
    for kind in [1, 2, 5, 6, 7, 8, 0x10, 0x13] {
        assert_eq!(XrcHeader::parse([0, kind, 0, 0, 0, 0, 0, 0]), None, "kind {kind:#x}");
    }
}

#[test]
fn a_message_that_takes_the_last_credit_has_a_flag_of_its_own() {
    let header = DataHeader::new(0x41, 3, Grant { data: 0x1234, ctl: 0x56 });
    let bytes = [0x41, 0x10, 0x34, 0x12, 0x56, 3, 0, 0];
    assert_eq!(header.flag_last(true).emit(), bytes);
    assert_eq!(header.flag_last(false), header);
    assert_eq!(DataHeader::parse(bytes), None, "it takes the other way");
    assert_eq!(DataHeader::parse_last(bytes), Some(header));
    assert_eq!(DataHeader::parse_last(header.emit()), None);
    for (at, bits) in [(1, 0x30), (1, 0x11), (6, 1), (7, 1)] {
        let mut wrong = bytes;
        wrong[at] = bits;
        assert_eq!(DataHeader::parse_last(wrong), None, "byte {at} is {bits:#x}");
    }
}

#[test]
fn data_and_both_messages_of_an_end_are_counted_and_no_others() {
    let data = DataHeader::new(0x41, 3, Grant { data: 2, ctl: 1 });
    assert_eq!(counted(data.emit()), Some((Kind::Data, 0x41)));
    assert_eq!(counted(data.flag_last(true).emit()), Some((Kind::Data, 0x41)));
    for (kind, expected) in [
        (Kind::End, Some((Kind::End, 0))),
        (Kind::EndAck, Some((Kind::EndAck, 0))),
        (Kind::Credit, None),
        (Kind::Cts, None),
        (Kind::Resume, None),
        (Kind::Open, None),
    ] {
        assert_eq!(counted(DataHeader::new(0, 3, Grant::NONE).of_kind(kind).emit()), expected, "{kind:?}");
    }
}

#[test]
fn a_cts_of_another_version_or_length_is_refused() {
    let message = Cts { queues: 1, layout: 9 }.message(0);
    let payload = &message[8..];
    let mut other = payload.to_vec();
    other[0] += 1;
    assert_eq!(Cts::parse(&other), Err(WireError::Version { theirs: VERSION + 1 }));
    assert_eq!(Cts::parse(&payload[..7]), Err(WireError::Short { what: "CTS", len: 7, need: 8 }));
    let long = [payload, &[0]].concat();
    assert_eq!(Cts::parse(&long), Err(WireError::Long { what: "CTS payload", len: 9, limit: 8 }));
    let mut reserved = payload.to_vec();
    reserved[3] = 1;
    assert_eq!(Cts::parse(&reserved), Err(WireError::NotZero { field: "CTS reserved", value: 1 }));
}

fn grant() -> impl Strategy<Value = Grant> {
    (any::<u16>(), any::<u8>(), any::<bool>()).prop_map(
        |(data, ctl, some)| {
            if some { Grant { data, ctl } } else { Grant::NONE }
        },
    )
}

proptest! {
    #[test]
    fn any_bytes_are_an_offer_that_says_the_same_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
        if let Ok(offer) = Offer::parse(&bytes) {
            let slots = offer.slots;
            prop_assert!(slots == 0 || slots.is_power_of_two() && slots <= MOST_SLOTS);
            prop_assert!(slots == 0 || offer.message()[HEADER_LEN..] == bytes[..]);
        }
    }

    #[test]
    fn an_offer_says_what_it_was_told(addr in 0u64..u64::MAX - (1 << 20), rkey: u32, shift in 0u32..=12, checks: bool) {
        let offer = Offer { addr, rkey, slots: 1 << shift, checks };
        prop_assert_eq!(Offer::parse(&offer.message()[HEADER_LEN..]), Ok(offer));
    }

    #[test]
    fn data_headers_round_trip_on_both_paths(tag: u8, queue: u8, grant in grant(), payload: Vec<u8>) {
        let header = DataHeader::new(tag, queue, grant);
        let parsed = DataHeader::parse(header.emit()).expect("a data header");
        prop_assert_eq!((parsed.tag(), parsed.queue(), parsed.grant()), (tag, queue, grant));
        prop_assert_eq!(parsed.has_grant(), !grant.is_none());
        let message = [&header.emit()[..], &payload].concat();
        let (full, rest) = Header::parse(&message).expect("a data header");
        prop_assert_eq!(full, Header::data(tag, queue, grant));
        prop_assert_eq!(rest, &payload[..]);
    }

    #[test]
    fn control_messages_round_trip_and_are_no_data(queue: u8, grant in grant(), queues: u8, layout: u32) {
        let credit = Header::credit(queue, Grant { data: grant.data.max(1), ..grant });
        let message = credit.emit();
        prop_assert_eq!(Header::parse(&message), Ok((credit, &[][..])));
        prop_assert_eq!(DataHeader::parse(credit.emit()), None);
        let message = Cts { queues, layout }.message(queue);
        let (header, payload) = Header::parse(&message).expect("a CTS");
        prop_assert_eq!(header, Header::cts(queue));
        prop_assert_eq!(Cts::parse(payload), Ok(Cts { queues, layout }));
    }

    /// One valid header in front of most inputs, so that the checks behind the first ones are
    /// reached.
    #[test]
    fn arbitrary_bytes_never_panic_and_what_parses_emits_the_same_bytes(
        mut bytes: Vec<u8>,
        kind in proptest::option::of(0..20_u8),
    ) {
        if let (Some(kind), Some(slot)) = (kind, bytes.get_mut(1)) {
            *slot = kind;
        }
        if let Some(reserved) = bytes.get_mut(6..8).filter(|_| kind.is_some()) {
            reserved.fill(0);
        }
        if let Ok((header, payload)) = Header::parse(&bytes) {
            prop_assert_eq!(&header.emit()[..], &bytes[..8]);
            prop_assert_eq!(payload, &bytes[8..]);
        }
        let _ = Cts::parse(&bytes);
    }

    #[test]
    fn the_fast_path_agrees_with_the_full_parser(bytes: [u8; 8], mask in any::<[bool; 3]>()) {
        let mut bytes = bytes;
        for (at, keep) in [1, 6, 7].into_iter().zip(mask) {
            if !keep { bytes[at] = 0; }
        }
        let full = Header::parse(&bytes).ok().map(|(header, _)| header).filter(|h| h.kind == Kind::Data);
        let fast = DataHeader::parse(bytes).map(|h| Header::data(h.tag(), h.queue(), h.grant()));
        prop_assert_eq!(fast, full);
    }
}
