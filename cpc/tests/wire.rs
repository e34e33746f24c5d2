//! The datagrams of ibcm: round trips, layout on the wire, and bytes from anywhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use cpc::ProcessName;
use cpc::wire::*;
use proptest::prelude::*;
use verbs::{Gid, Lid, Psn, Qpn};

fn hellos() -> impl Strategy<Value = Hello> {
    (proptest::collection::vec((any::<bool>(), 2..1_u32 << 24), 1..=MAX_QUEUES), any::<u64>(), 0..16_u8)
        .prop_map(|(queues, name, stream)| {
            let qpns: Vec<Qpn> = queues.iter().map(|q| Qpn(q.1)).collect();
            Hello {
                layout: Layout::new(queues.iter().map(|q| q.0)).unwrap(),
                name: ProcessName(name),
                qpns: Qpns::new(&qpns).unwrap(),
                stream: cpc::StreamNum(stream),
            }
        })
}

fn queues() -> impl Strategy<Value = Queues> {
    (any::<u32>(), "[!-~]{0,200}").prop_map(|(fingerprint, text)| Queues::new(fingerprint, &text))
}

fn ids() -> impl Strategy<Value = (CommId, CommId)> {
    (1..=u32::MAX, any::<u32>()).prop_map(|(a, b)| (CommId(a), CommId(b)))
}

fn stages() -> impl Strategy<Value = Stage> {
    prop_oneof![Just(Stage::Req), Just(Stage::Rep), Just(Stage::Other)]
}

fn reasons() -> impl Strategy<Value = Reason> {
    prop_oneof![
        Just(Reason::NoResources),
        Just(Reason::Timeout),
        Just(Reason::InvalidCommId),
        Just(Reason::InvalidServiceId),
        Just(Reason::Stale),
        Just(Reason::UnknownPeer),
        Just(Reason::Refused),
        hellos().prop_map(|h| Reason::Layout(h.layout)),
        queues().prop_map(Reason::Queues),
        (11_u16..=u16::MAX).prop_map(Reason::Other),
    ]
}

fn paths() -> impl Strategy<Value = Path> {
    (any::<[u16; 2]>(), any::<[[u8; 16]; 2]>(), 0..16_u8, 0..32_u8).prop_map(
        |(lids, gids, sl, ack_timeout)| {
            let ([a, b], [c, d]) = (lids.map(Lid), gids.map(Gid));
            Path { local_lid: a, remote_lid: b, local_gid: c, remote_gid: d, sl, ack_timeout }
        },
    )
}

fn depths() -> impl Strategy<Value = Depth> {
    any::<[u8; 2]>().prop_map(|[a, b]| Depth { responder_resources: a, initiator_depth: b })
}

fn reqs() -> impl Strategy<Value = Req> {
    let bits = (1..=5_u8, any::<u16>(), 0..8_u8, 0..8_u8, 0..16_u8, 0..32_u8, any::<bool>());
    (ids(), any::<u64>(), hellos(), queues(), 0..1_u32 << 24, depths(), paths(), bits).prop_map(
        |((local, _), service, hello, queues, psn, depth, path, bits)| Req {
            head: ReqHead {
                local,
                service: ProcessName(service),
                psn: Psn(psn),
                depth,
                path,
                mtu: bits.0,
                pkey: bits.1,
                retry_count: bits.2,
                rnr_retry: bits.3,
                max_cm_retries: bits.4,
                response_timeout: bits.5,
            },
            hello,
            queues,
            srq: bits.6,
        },
    )
}

fn reps() -> impl Strategy<Value = Rep> {
    (ids(), hellos(), queues(), 0..1_u32 << 24, depths(), 0..8_u8, any::<bool>()).prop_map(
        |((local, remote), hello, queues, psn, depth, rnr_retry, srq)| Rep {
            local,
            remote,
            hello,
            queues,
            psn: Psn(psn),
            depth,
            rnr_retry,
            srq,
        },
    )
}

fn messages() -> impl Strategy<Value = Message> {
    prop_oneof![
        reqs().prop_map(Message::Req),
        reps().prop_map(Message::Rep),
        (ids(), stages(), 0..32_u8).prop_map(|((local, remote), stage, service_timeout)| {
            Message::Mra(Mra { local, remote, stage, service_timeout })
        }),
        (ids(), stages(), reasons()).prop_map(|((local, remote), stage, reason)| {
            Message::Rej(Rej { local, remote, stage, reason })
        }),
        ids().prop_map(|(local, remote)| Message::Rtu(Rtu { local, remote })),
        (ids(), 0..1_u32 << 24).prop_map(|((local, remote), qpn)| {
            Message::Dreq(Dreq { local, remote, remote_qpn: Qpn(qpn), failed: qpn % 2 == 1 })
        }),
        ids().prop_map(|(local, remote)| Message::Drep(Drep { local, remote })),
    ]
}

fn emitted(datagram: &Datagram) -> [u8; MAD_LEN] {
    let mut mad = [0xa5; MAD_LEN];
    datagram.emit(&mut mad);
    mad
}

proptest! {
    #[test]
    fn every_message_survives_the_wire(message in messages(), from in any::<u32>(), to in any::<u32>()) {
        let datagram = Datagram { from: Incarnation(from), to: Incarnation(to), message };
        prop_assert_eq!(Datagram::parse(&emitted(&datagram)), Ok(datagram));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Datagram::parse(&bytes).is_err());
    }

    /// Gets past the header checks, so that the message parsers see arbitrary bytes; what they take they can write.
    #[test]
    fn arbitrary_bytes_behind_our_header_never_panic(
        message in messages(),
        body in proptest::collection::vec(any::<u8>(), MAD_LEN - 24),
        attribute in 0x10..0x18_u8,
        keep in 0..MAD_LEN - 24,
    ) {
        let mut mad = emitted(&Datagram { from: Incarnation(1), to: Incarnation(2), message });
        mad[17] = attribute;
        mad[24 + keep..].copy_from_slice(&body[keep..]);
        if let Ok(datagram) = Datagram::parse(&mad) {
            prop_assert_eq!(Datagram::parse(&emitted(&datagram)), Ok(datagram));
        }
    }

    #[test]
    fn one_flipped_bit_of_the_fixed_header_makes_a_datagram_foreign(message in messages(), bit in 0..32_usize) {
        let mut mad = emitted(&Datagram { from: Incarnation(1), to: Incarnation(2), message });
        mad[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(matches!(Datagram::parse(&mad), Err(WireError::Foreign(_))));
    }

    #[test]
    fn a_datagram_of_another_length_is_refused(message in messages(), len in 0..MAD_LEN) {
        let mad = emitted(&Datagram { from: Incarnation(1), to: Incarnation(2), message });
        prop_assert_eq!(Datagram::parse(&mad[..len]), Err(WireError::Length(len, 256)));
    }
}

fn a_req() -> Req {
    Req {
        head: ReqHead {
            local: CommId(0x0102_0304),
            service: ProcessName(0x1112_1314_1516_1718),
            psn: Psn(0x61_6263),
            depth: Depth { responder_resources: 4, initiator_depth: 8 },
            path: Path {
                local_lid: Lid(0x0708),
                remote_lid: Lid(0x090a),
                local_gid: Gid([0xfe; 16]),
                remote_gid: Gid([0xfe; 16]),
                sl: 3,
                ack_timeout: 20,
            },
            mtu: 5,
            pkey: 0xffff,
            retry_count: 7,
            rnr_retry: 6,
            max_cm_retries: 12,
            response_timeout: 15,
        },
        hello: Hello {
            layout: Layout::new([false, true, true]).unwrap(),
            name: ProcessName(0x2122_2324_2526_2728),
            qpns: Qpns::new(&[Qpn(0x31_3233), Qpn(0x41_4243), Qpn(0x51_5253)]).unwrap(),
            stream: cpc::StreamNum(9),
        },
        queues: Queues::new(0x7172_7374, "P,128,8:S,4096,8:S,65536,16,12,3,4,1"),
        srq: true,
    }
}

/// Offsets and bits of IBTA vol. 1, table of 12.6.5, counted from the start of the MAD (message offset + 24).
#[test]
fn a_req_lies_on_the_wire_as_the_specification_says() {
    let mad = emitted(&Datagram {
        from: Incarnation(0xaabb_ccdd),
        to: Incarnation(0x1122_3344),
        message: Message::Req(a_req()),
    });
    let at = |offset: usize, len: usize| mad[offset..offset + len].to_vec();
    assert_eq!(at(0, 4), [1, 7, 2, 3], "base version, class, class version, method");
    assert_eq!(at(8, 8), [0xaa, 0xbb, 0xcc, 0xdd, 0x11, 0x22, 0x33, 0x44], "transaction id");
    assert_eq!(at(16, 2), [0, 0x10], "attribute id");
    assert_eq!(at(20, 4), *b"oxc\x02", "attribute modifier");
    assert_eq!(at(24, 4), [1, 2, 3, 4], "local communication id");
    assert_eq!(at(32, 8), [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18], "service id");
    assert_eq!(at(56, 4), [0x31, 0x32, 0x33, 4], "local QPN, responder resources");
    assert_eq!(mad[24 + 39], 8, "initiator depth");
    assert_eq!(mad[24 + 43] >> 3, 15, "remote CM response timeout");
    assert_eq!(at(24 + 44, 3), [0x61, 0x62, 0x63], "starting PSN");
    assert_eq!(mad[24 + 47], 15 << 3 | 7, "local CM response timeout, retry count");
    assert_eq!(at(24 + 48, 2), [0xff, 0xff], "partition key");
    assert_eq!(mad[24 + 50], 5 << 4 | 6, "path MTU, RNR retry count");
    assert_eq!(mad[24 + 51], 12 << 4 | 1 << 3, "max CM retries, SRQ");
    assert_eq!(at(24 + 52, 4), [7, 8, 9, 10], "local and remote LID");
    assert_eq!(mad[24 + 94], 3 << 4 | 1 << 3, "SL, subnet local");
    assert_eq!(mad[24 + 95], 20 << 3, "local ACK timeout");
    assert_eq!(
        at(24 + 140, 3),
        [0x29, 0, 0b1110],
        "private data: version and stream, three queues, of which two are shared"
    );
    assert_eq!(at(24 + 143, 8), [0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28], "private data: name");
    assert_eq!(at(24 + 151, 3), [0x31, 0x32, 0x33], "private data: first QPN");
    assert_eq!(
        at(24 + 196, 8),
        [1, 36, 0, 0, 0x71, 0x72, 0x73, 0x74],
        "private data: the queues' fingerprint"
    );
    assert_eq!(at(24 + 204, 28), *b"P,128,8:S,4096,8:S,65536,16,", "private data: what fits of their text");
}

#[test]
fn another_version_is_told_from_foreign_bytes() {
    let mut mad =
        emitted(&Datagram { from: Incarnation(1), to: Incarnation(2), message: Message::Req(a_req()) });
    mad[23] = 1;
    assert_eq!(Datagram::parse(&mad), Err(WireError::Version(1)));
    mad[20..24].fill(0);
    assert_eq!(
        Datagram::parse(&mad),
        Err(WireError::Foreign("attribute modifier")),
        "as a kernel's CM sends it"
    );
}

#[test]
fn impossible_fields_are_named() {
    let spoil = |offset: usize, value: u8| {
        let mut mad =
            emitted(&Datagram { from: Incarnation(1), to: Incarnation(2), message: Message::Req(a_req()) });
        mad[offset] = value;
        Datagram::parse(&mad)
    };
    assert_eq!(spoil(24 + 142, 0), Err(WireError::Field("queue layout")));
    assert_eq!(spoil(24 + 142, 1), Err(WireError::Field("queue layout")));
    assert_eq!(spoil(24 + 140, 0x13), Err(WireError::Version(1)));
    assert_eq!(spoil(24 + 50, 0x96), Err(WireError::Field("path MTU")));
    assert_eq!(spoil(24 + 34, 0x34), Err(WireError::Field("queue pair number")));
    assert_eq!(spoil(24 + 196, 7), Err(WireError::Version(7)));
    assert_eq!(spoil(24 + 198, 1), Err(WireError::Field("receive queues")));
    assert_eq!(spoil(24 + 210, 0x1b), Err(WireError::Field("receive queues")));
    assert_eq!(spoil(24 + 43, 0b10), Err(WireError::Field("transport service type")));
}

#[test]
fn a_newer_id_is_newer_across_the_wrap() {
    assert!(CommId(5).is_newer_than(CommId(4)));
    assert!(CommId(2).is_newer_than(CommId(u32::MAX - 2)));
    assert!(!CommId(4).is_newer_than(CommId(4)));
    assert!(!CommId(u32::MAX).is_newer_than(CommId(3)));
}

#[test]
fn a_layout_holds_one_to_fifteen_queues_and_shows_them() {
    assert_eq!(Layout::new([]), None);
    assert_eq!(Layout::new([true; 16]), None);
    assert_eq!(Layout::new([false, true, true]).unwrap().to_string(), "PSS");
    assert_eq!(Qpns::new(&[]), None);
    assert_eq!(Qpns::new(&[Qpn(7); 16]), None);
}
