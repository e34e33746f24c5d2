//! The values that stand in modex blobs and in the private data of RDMA-CM: round trips, and bytes from anywhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod listener {
    use cpc::wire::AddressError;
    use cpc::wire::listener::{ADDRESS_LEN, Address};
    use cpc::wire::{Incarnation, VERSION};
    use proptest::prelude::*;
    use verbs::{Gid, Lid, Qpn};

    fn addresses() -> impl Strategy<Value = Address> {
        (1..=255_u8, 1..=5_u8, any::<bool>(), any::<u16>(), 2..1_u32 << 24, any::<u32>(), any::<[u8; 16]>())
            .prop_map(|(port, mtu, ethernet, lid, qpn, incarnation, gid)| Address {
                port,
                mtu,
                ethernet,
                lid: Lid(lid),
                qpn: Qpn(qpn),
                incarnation: Incarnation(incarnation),
                gid: Gid(gid),
            })
    }

    proptest! {
        #[test]
        fn an_address_survives_the_modex(address in addresses()) {
            prop_assert_eq!(Address::parse(&address.emit()), Ok(address));
        }

        #[test]
        fn arbitrary_blobs_never_panic(blob in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(address) = Address::parse(&blob) {
                prop_assert_eq!(Address::parse(&address.emit()), Ok(address));
            }
        }

        #[test]
        fn exactly_one_of_two_addresses_outranks_the_other(a in addresses(), b in addresses()) {
            prop_assume!((a.lid, a.qpn, a.incarnation, a.gid) != (b.lid, b.qpn, b.incarnation, b.gid));
            prop_assert_ne!(a.outranks(&b), b.outranks(&a));
        }
    }

    #[test]
    fn a_truncated_or_foreign_blob_is_refused_by_name() {
        assert_eq!(Address::parse(&[1; 31]), Err(AddressError::Length("ibcm", 31, 32)));
        assert_eq!(Address::parse(&[9; 32]), Err(AddressError::Version("ibcm", 9, 2)));
        let mut blob = [0_u8; ADDRESS_LEN];
        blob[..4].copy_from_slice(&[VERSION, 1, 5, 1]);
        assert_eq!(Address::parse(&blob), Err(AddressError::Field("queue pair number")));
        blob[3] = 7;
        assert_eq!(Address::parse(&blob), Err(AddressError::Field("link layer")));
    }

    #[test]
    fn every_field_has_its_bounds_and_the_first_bad_one_is_named() {
        let parsed = |byte: usize, value: u8| {
            let mut blob = address(7, 99, 5, [3; 16]).emit();
            blob[byte] = value;
            Address::parse(&blob).map(|_| ())
        };
        let outcome = |good: bool, name| if good { Ok(()) } else { Err(AddressError::Field(name)) };
        for value in 0..=255 {
            assert_eq!(parsed(1, value), outcome(value != 0, "port number"));
            assert_eq!(parsed(2, value), outcome((1..=5).contains(&value), "MTU"));
            assert_eq!(parsed(3, value), outcome(matches!(value, 1 | 2), "link layer"));
            assert_eq!(parsed(8, value), outcome(value == 0, "queue pair number"), "24 bits");
            assert_eq!(
                parsed(11, value),
                outcome(value > 1, "queue pair number"),
                "0 and 1 are of management"
            );
        }
    }

    #[test]
    fn an_address_lies_in_the_blob_as_the_format_says() {
        let mut blob = [VERSION, 1, 5, 1, 0x12, 0x34, 0, 0, 0, 0xab, 0xcd, 0xef, 1, 2, 3, 4].to_vec();
        blob.extend([9; 16]);
        assert_eq!(address(0x1234, 0xab_cdef, 0x0102_0304, [9; 16]).emit().to_vec(), blob);
    }

    /// LID, queue pair, incarnation, GID: the first that differs decides, and the lower one stands.
    #[test]
    fn the_lower_address_outranks_the_other() {
        let own = address(7, 99, 5, [3; 16]);
        for lower in [
            address(6, 100, 6, [4; 16]),
            address(7, 98, 6, [4; 16]),
            address(7, 99, 4, [4; 16]),
            address(7, 99, 5, [2; 16]),
        ] {
            assert!(lower.outranks(&own) && !own.outranks(&lower), "{lower:?}");
        }
        assert!(!own.outranks(&own));
    }

    fn address(lid: u16, qpn: u32, incarnation: u32, gid: [u8; 16]) -> Address {
        Address {
            port: 1,
            mtu: 5,
            ethernet: false,
            lid: Lid(lid),
            qpn: Qpn(qpn),
            incarnation: Incarnation(incarnation),
            gid: Gid(gid),
        }
    }
}

mod domain {
    use cpc::wire::AddressError;
    use cpc::wire::Incarnation;
    use cpc::wire::domain::{Address, DomainId};
    use cpc::wire::listener::{Address as Listener, Facing};
    use verbs::{Gid, Lid, Qpn};

    fn address() -> Address {
        let listener = Listener {
            port: 1,
            mtu: 5,
            ethernet: false,
            lid: Lid(7),
            qpn: Qpn(99),
            incarnation: Incarnation(5),
            gid: Gid([3; 16]),
        };
        Address { listener, domain: DomainId::new(0x801, 77) }
    }

    #[test]
    fn an_address_survives_the_modex_and_any_other_length_is_refused() {
        let blob = address().emit();
        assert_eq!(Address::parse(&blob), Ok(address()));
        for len in [0, 31, 32, 47] {
            assert_eq!(Address::parse(&blob[..len]), Err(AddressError::Length("xrc", len, 48)));
        }
        assert_eq!(Address::parse(&[0; 48]), Err(AddressError::Version("ibcm", 0, 2)));
    }

    #[test]
    fn processes_of_one_port_and_domain_are_one_place() {
        let place = |address: Address| Facing::from(address).place();
        let (a, mut b) = (address(), address());
        (b.listener.qpn, b.listener.incarnation) = (Qpn(100), Incarnation(6));
        assert_eq!(place(a), place(b));
        b.domain = DomainId::new(0x801, 78);
        assert_ne!(place(a), place(b));
        let from = |gid| Facing { address: address(), our_gid: Some(Gid([gid; 16])) }.place();
        assert_ne!(from(1), from(2), "a send queue pair starts from one GID of ours");
    }
}

mod ip {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

    use cpc::wire::AddressError;
    use cpc::wire::ip::{ADDRESS_LEN, Address, Listening, MAX_FURTHER, VERSION};
    use proptest::prelude::*;

    fn addresses() -> impl Strategy<Value = Address> {
        let v4 = (1..0xe000_0000_u32).prop_map(|ip| IpAddr::V4(Ipv4Addr::from(ip)));
        let v6 = (1..1_u128 << 120).prop_map(|ip| IpAddr::V6(Ipv6Addr::from(ip)));
        (prop_oneof![v4, v6], 1..=u16::MAX, any::<u32>())
            .prop_map(|(ip, port, incarnation)| Address { socket: SocketAddr::new(ip, port), incarnation })
    }

    proptest! {
        #[test]
        fn an_address_survives_the_modex(address in addresses()) {
            prop_assert_eq!(Address::parse(&address.emit()), Ok(address));
        }

        #[test]
        fn further_addresses_survive_the_modex(
            address in addresses(),
            further in proptest::collection::vec(addresses(), 0..=MAX_FURTHER),
        ) {
            let further = further.iter().map(|address| address.socket);
            let further = further.map(|at| SocketAddr::new(at.ip().to_canonical(), at.port())).collect();
            let listening = Listening { address, further };
            prop_assert_eq!(Listening::parse(&listening.emit()), Ok(listening));
        }

        #[test]
        fn arbitrary_blobs_never_panic(blob in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Address::parse(&blob);
            let _ = Listening::parse(&blob);
        }

        #[test]
        fn exactly_one_of_two_addresses_outranks_the_other(a in addresses(), b in addresses()) {
            prop_assume!(a != b);
            prop_assert_ne!(a.outranks(&b), b.outranks(&a));
        }
    }

    #[test]
    fn a_list_of_addresses_that_is_too_long_or_cut_off_is_refused() {
        let socket: SocketAddr = "10.1.0.1:7".parse().unwrap();
        let address = Address { socket, incarnation: 1 };
        let blob = Listening { address, further: vec![socket; MAX_FURTHER] }.emit();
        let refused = |blob: &[u8]| Listening::parse(blob).unwrap_err();
        let list = AddressError::Field("list of addresses");
        assert_eq!(refused(&blob[..blob.len() - 1]), list);
        assert_eq!(refused(&[&blob[..], &blob[ADDRESS_LEN..ADDRESS_LEN + 18]].concat()), list);
        let mut zero = blob.clone();
        zero[ADDRESS_LEN + 16..ADDRESS_LEN + 18].fill(0);
        assert_eq!(refused(&zero), AddressError::Field("address or port"));
        assert_eq!(refused(&[1; 27]), AddressError::Length("rdmacm", 27, 28));
    }

    #[test]
    fn a_truncated_or_foreign_blob_is_refused_by_name() {
        assert_eq!(Address::parse(&[1; 27]), Err(AddressError::Length("rdmacm", 27, 28)));
        assert_eq!(Address::parse(&[9; 28]), Err(AddressError::Version("rdmacm", 9, 1)));
        let mut blob = [0_u8; ADDRESS_LEN];
        (blob[0], blob[1]) = (VERSION, 5);
        assert_eq!(Address::parse(&blob), Err(AddressError::Field("address family")));
        blob[1] = 4;
        assert_eq!(Address::parse(&blob), Err(AddressError::Field("address or port")));
    }
}

mod join {
    use cpc::ProcessName;
    use cpc::StreamNum;
    use cpc::wire::join::{JOIN_LEN, Join};
    use cpc::wire::{Hello, Layout, Qpns};
    use proptest::prelude::*;
    use verbs::Qpn;

    fn joins() -> impl Strategy<Value = Join> {
        let qpns = || prop::array::uniform2((0..1_u32 << 24).prop_map(Qpn));
        (1..15_u8, any::<u64>(), qpns(), qpns()).prop_map(|(queue, name, from, to)| Join {
            queue,
            name: ProcessName(name),
            from,
            to,
        })
    }

    proptest! {
        #[test]
        fn a_join_survives_the_way_padded_or_not(join in joins(), padding in 0..100_usize) {
            let mut data = join.emit().to_vec();
            data.resize(JOIN_LEN + padding, 0);
            prop_assert_eq!(Join::parse(&data), Some(join));
        }

        #[test]
        fn arbitrary_bytes_never_panic(data in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Join::parse(&data);
        }
    }

    #[test]
    fn hello_and_join_are_never_taken_for_each_other() {
        let qpns = Qpns::new(&[Qpn(5), Qpn(6)]).unwrap();
        let mut hello = [0; 56];
        let layout = Layout::new([false, false]).unwrap();
        Hello { layout, name: ProcessName(9), qpns, stream: StreamNum(3) }.emit(&mut hello);
        assert_eq!(Join::parse(&hello), None);
        let join = Join::new(1, ProcessName(9), &qpns, &qpns).unwrap();
        let mut padded = join.emit().to_vec();
        padded.resize(56, 0);
        assert!(Hello::parse(&padded).is_err());
        assert_eq!(Join::new(2, ProcessName(9), &qpns, &qpns), None);
    }
}

mod refusal {
    use cpc::wire::Layout;
    use cpc::wire::refusal::Refusal;

    const PLAIN: [Refusal; 7] = [
        Refusal::Crossing,
        Refusal::Late,
        Refusal::UnknownPeer,
        Refusal::Failed,
        Refusal::NoResources,
        Refusal::Malformed,
        Refusal::Closing,
    ];

    #[test]
    fn every_refusal_survives_the_way_padded_or_not() {
        let layout = Refusal::Layout(Layout::new([false, true, true]).unwrap());
        for refusal in PLAIN.into_iter().chain([layout]) {
            let mut data = refusal.emit().to_vec();
            assert_eq!(Refusal::parse(&data), Some(refusal));
            data.resize(148, 0);
            assert_eq!(Refusal::parse(&data), Some(refusal));
        }
    }

    #[test]
    fn foreign_short_or_impossible_data_are_none() {
        assert_eq!(Refusal::parse(&[]), None);
        assert_eq!(Refusal::parse(&[0; 148]), None);
        assert_eq!(Refusal::parse(&Refusal::Late.emit()[..7]), None);
        for code in 0..=255_u8 {
            let mut data = Refusal::Late.emit();
            data[4] = code;
            assert_eq!(Refusal::parse(&data).is_some(), (1..=7).contains(&code), "{code}");
        }
    }
}
