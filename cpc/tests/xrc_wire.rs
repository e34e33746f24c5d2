//! The datagrams of xrc: round trips, and bytes from anywhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use cpc::ProcessName;
use cpc::wire::xrc::{Datagram, Message, Rep, Req, SrqNums};
use cpc::wire::{CommId, Depth, Incarnation, Layout, MAD_LEN, Path, ReqHead};
use cpc::xrc::DomainId;
use proptest::prelude::*;
use verbs::{Gid, Lid, Psn, Qpn, SrqNum};

/// Of numbers with 24 bits; 0 and 1 are no queue pairs of ours.
fn qpns() -> impl Strategy<Value = Qpn> {
    (2..1_u32 << 24).prop_map(Qpn)
}

fn depths() -> impl Strategy<Value = Depth> {
    any::<[u8; 2]>().prop_map(|[a, b]| Depth { responder_resources: a, initiator_depth: b })
}

fn paths() -> impl Strategy<Value = Path> {
    (any::<[u16; 2]>(), any::<[[u8; 16]; 2]>(), 0..16_u8, 0..32_u8).prop_map(
        |(lids, gids, sl, ack_timeout)| {
            let ([a, b], [c, d]) = (lids.map(Lid), gids.map(Gid));
            Path { local_lid: a, remote_lid: b, local_gid: c, remote_gid: d, sl, ack_timeout }
        },
    )
}

fn asks() -> impl Strategy<Value = Req> {
    let ids = (1..=u32::MAX, any::<u32>(), any::<u32>());
    let names = (any::<u64>(), any::<u64>(), any::<[u8; 16]>());
    let pairs = (qpns(), proptest::option::of(qpns()), 0..1_u32 << 24);
    let bits = (1..=5_u8, any::<u16>(), 0..8_u8, 0..8_u8, 0..16_u8, 0..32_u8);
    let queues = proptest::collection::vec(any::<bool>(), 1..=15);
    (ids, names, queues, pairs, depths(), paths(), bits).prop_map(
        |((local, epoch, ended), (service, name, domain), queues, pairs, depth, path, bits)| Req {
            head: ReqHead {
                local: CommId(local),
                service: ProcessName(service),
                psn: Psn(pairs.2),
                depth,
                path,
                mtu: bits.0,
                pkey: bits.1,
                retry_count: bits.2,
                rnr_retry: bits.3,
                max_cm_retries: bits.4,
                response_timeout: bits.5,
            },
            name: ProcessName(name),
            layout: Layout::new(queues).unwrap(),
            sender: pairs.0,
            receiver: pairs.1,
            epoch,
            ended: CommId(ended),
            domain: DomainId(domain),
        },
    )
}

fn tells() -> impl Strategy<Value = Rep> {
    let ids = (1..=u32::MAX, any::<u32>(), any::<u64>(), any::<u32>(), any::<u32>());
    let queues = proptest::collection::vec((any::<bool>(), 0..1_u32 << 24), 1..=15);
    (ids, queues, qpns(), depths()).prop_map(
        |((local, remote, name, label, epoch), queues, receiver, depth)| Rep {
            local: CommId(local),
            remote: CommId(remote),
            name: ProcessName(name),
            layout: Layout::new(queues.iter().map(|queue| queue.0)).unwrap(),
            receiver,
            depth,
            srqs: SrqNums::new(&queues.iter().map(|queue| SrqNum(queue.1)).collect::<Vec<_>>()).unwrap(),
            label,
            epoch,
        },
    )
}

fn round_trip(message: Message, incarnations: [u32; 2]) {
    let [from, to] = incarnations.map(Incarnation);
    let datagram = Datagram { from, to, message };
    let mut mad = [0xaa; MAD_LEN];
    datagram.emit(&mut mad);
    assert_eq!(Datagram::parse(&mad), Ok(datagram));
}

proptest! {
    #[test]
    fn an_ask_survives_the_wire(req in asks(), incarnations in any::<[u32; 2]>()) {
        round_trip(Message::Req(req), incarnations);
    }

    #[test]
    fn a_tell_survives_the_wire(rep in tells(), incarnations in any::<[u32; 2]>()) {
        round_trip(Message::Rep(rep), incarnations);
    }

    #[test]
    fn whatever_of_a_datagram_is_overwritten_it_is_taken_for_what_it_says_or_refused(
        req in asks(),
        at in 0..MAD_LEN,
        bytes in proptest::collection::vec(any::<u8>(), 1..32),
    ) {
        let mut mad = [0; MAD_LEN];
        Datagram { from: Incarnation(1), to: Incarnation(2), message: Message::Req(req) }.emit(&mut mad);
        mad.iter_mut().skip(at).zip(&bytes).for_each(|(byte, new)| *byte = *new);
        if let Ok(parsed) = Datagram::parse(&mad) {
            let mut again = [0; MAD_LEN];
            parsed.emit(&mut again);
            prop_assert_eq!(Datagram::parse(&again), Ok(parsed));
        }
    }
}

/// Where docs/protocol.md says (8.3), in the private data that begins at byte 164.
#[test]
fn the_fields_of_an_ask_lie_where_the_protocol_says() {
    let mut mad = [0; MAD_LEN];
    let req = Req {
        head: ReqHead {
            local: CommId(0x0102_0304),
            service: ProcessName(1),
            psn: Psn(0x31),
            depth: Depth { responder_resources: 1, initiator_depth: 1 },
            path: Path {
                local_lid: Lid(1),
                remote_lid: Lid(2),
                local_gid: Gid([1; 16]),
                remote_gid: Gid([2; 16]),
                sl: 0,
                ack_timeout: 14,
            },
            mtu: 5,
            pkey: 0xffff,
            retry_count: 7,
            rnr_retry: 7,
            max_cm_retries: 12,
            response_timeout: 15,
        },
        name: ProcessName(0x1112_1314_1516_1718),
        layout: Layout::new([true]).unwrap(),
        sender: Qpn(0x21),
        receiver: Some(Qpn(0x41_4243)),
        epoch: 0x5152_5354,
        ended: CommId(0x6162_6364),
        domain: DomainId([0x77; 16]),
    };
    Datagram { from: Incarnation(1), to: Incarnation(2), message: Message::Req(req) }.emit(&mut mad);
    let data = &mad[164..];
    assert_eq!(data[3..11], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
    assert_eq!(data[11..22], [0x41, 0x42, 0x43, 0x51, 0x52, 0x53, 0x54, 0x61, 0x62, 0x63, 0x64]);
    assert_eq!(data[22..38], [0x77; 16]);
}
