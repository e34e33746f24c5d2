//! The software device as an iWARP one: connections are streams, brought up by RDMA-CM, and the initiator sends first.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "a C program in Rust: live objects of the device throughout"
)]

mod common;
#[path = "common/connections.rs"]
mod connections;

use common::{ALL_ACCESS, Buf, Dev, Qp, last_errno, poll, table};
use connections::{Channel, cm, destroy};
use rdma_cm_sys::*;
use rdma_sys::*;
use softib::port::{LinkLayer, Settings, configure};
use std::ptr::{null, null_mut};
use std::sync::Once;

/// The device with an iWARP port.
fn dev() -> Dev {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        configure(Settings { link_layers: vec![LinkLayer::Iwarp], ..Settings::default() }).unwrap()
    });
    Dev::open()
}

fn idle(dev: &Dev) -> Qp {
    let qp = dev.qp(IBV_QPT_RC, dev.cq(32));
    qp.init(ALL_ACCESS);
    qp
}

fn param(qp: u32, private: &[u8]) -> rdma_conn_param {
    let private_data = if private.is_empty() { null() } else { private.as_ptr().cast() };
    rdma_conn_param {
        private_data,
        private_data_len: private.len() as u8,
        responder_resources: 1,
        initiator_depth: 1,
        qp_num: qp,
        ..Default::default()
    }
}

/// Two ends of a stream: the one that asked first.
struct Pair {
    channel: Channel,
    ids: [*mut rdma_cm_id; 3],
    opens: Qp,
    waits: Qp,
}

impl Pair {
    fn connect(dev: &Dev) -> Pair {
        let (channel, opens, waits) = (Channel::open(), idle(dev), idle(dev));
        let (listener, port) = channel.listener(RDMA_PS_TCP);
        let active = channel.resolved(RDMA_PS_TCP, port);
        assert_eq!(unsafe { (cm().connect)(active, &mut param(opens.num(), b"request")) }, 0);
        let request = channel.next();
        assert_eq!((request.kind, &request.private[..]), (RDMA_CM_EVENT_CONNECT_REQUEST, &b"request"[..]));
        let passive = request.id;
        assert_eq!(unsafe { (cm().accept)(passive, &mut param(waits.num(), b"reply")) }, 0);
        let first = channel.next();
        assert_eq!((first.kind, first.id), (RDMA_CM_EVENT_ESTABLISHED, passive));
        let second = channel.next();
        assert_eq!((second.kind, second.id), (RDMA_CM_EVENT_ESTABLISHED, active));
        assert_eq!(second.private, b"reply");
        assert_eq!((opens.state(), waits.state()), (IBV_QPS_RTS, IBV_QPS_RTS));
        Pair { channel, ids: [listener, active, passive], opens, waits }
    }

    fn end(self) {
        self.ids.into_iter().for_each(destroy);
        self.opens.destroy();
        self.waits.destroy();
    }
}

#[test]
fn the_device_says_what_it_is() {
    let dev = dev();
    unsafe {
        let device = &*(*dev.ctx).device;
        assert_eq!((device.node_type, device.transport_type), (IBV_NODE_RNIC, IBV_TRANSPORT_IWARP));
        let mut attr = ibv_device_attr::default();
        assert_eq!((table().query_device)(dev.ctx, &mut attr), 0);
        assert_eq!((attr.atomic_cap, attr.max_sge_rd, attr.max_mw), (IBV_ATOMIC_NONE, 1, 0));
        let mut port = ibv_port_attr::default();
        assert_eq!((table().query_port)(dev.ctx, 1, &mut port), 0);
        assert_eq!((port.link_layer, port.lid, port.gid_tbl_len), (IBV_LINK_LAYER_ETHERNET, 0, 1));
    }
}

#[test]
fn there_are_reliable_queue_pairs_only_and_programs_cannot_bring_them_up() {
    let dev = dev();
    for kind in [IBV_QPT_UD, IBV_QPT_UC] {
        let cq = dev.cq(4);
        let mut init = ibv_qp_init_attr { send_cq: cq, recv_cq: cq, qp_type: kind, ..Default::default() };
        assert!(unsafe { (table().create_qp)(dev.pd, &mut init) }.is_null());
        assert_eq!(last_errno(), libc::EOPNOTSUPP);
    }
    let qp = idle(&dev);
    assert_eq!(qp.to_state(IBV_QPS_RTR), libc::EINVAL);
    assert_eq!(qp.state(), IBV_QPS_INIT);
    qp.destroy();
}

#[test]
fn what_iwarp_does_not_have_is_refused_when_it_is_posted() {
    let dev = dev();
    let pair = Pair::connect(&dev);
    let buf = dev.buf(64);
    for opcode in [IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_ATOMIC_FETCH_AND_ADD] {
        assert_eq!(pair.opens.post(1, opcode, &[buf.sge(0, 8)], |_| ()), libc::EINVAL, "{opcode}");
    }
    let two = [buf.sge(0, 8), buf.sge(8, 8)];
    assert_eq!(pair.opens.post(1, IBV_WR_RDMA_READ, &two, |_| ()), libc::EINVAL);
    pair.end();
}

#[test]
fn after_the_initiators_first_message_both_sides_send() {
    let dev = dev();
    let (pair, buf) = (Pair::connect(&dev), dev.buf(64));
    assert_eq!(pair.waits.recv(10, &[buf.sge(0, 16)]), 0);
    assert_eq!(pair.opens.recv(20, &[buf.sge(16, 16)]), 0);
    assert_eq!(pair.opens.send(11, &[buf.sge(32, 8)]), 0);
    let done = |qp: &Qp| {
        let wc = qp.wait();
        (wc.wr_id, wc.status)
    };
    assert_eq!(done(&pair.opens), (11, IBV_WC_SUCCESS));
    assert_eq!(done(&pair.waits), (10, IBV_WC_SUCCESS));
    assert_eq!(pair.waits.send(21, &[buf.sge(32, 8)]), 0);
    assert_eq!(done(&pair.waits), (21, IBV_WC_SUCCESS));
    assert_eq!(done(&pair.opens), (20, IBV_WC_SUCCESS));
    pair.end();
}

#[test]
fn a_responder_that_sends_first_loses_its_connection() {
    let dev = dev();
    let (pair, buf) = (Pair::connect(&dev), dev.buf(64));
    assert_eq!(pair.opens.recv(20, &[buf.sge(16, 16)]), 0);
    assert_eq!(pair.waits.send(21, &[buf.sge(32, 8)]), 0);
    assert_eq!(pair.waits.wait().status, IBV_WC_LOC_QP_OP_ERR);
    assert_eq!(pair.waits.state(), IBV_QPS_ERR);
    pair.end();
}

#[test]
fn a_write_of_the_initiator_opens_the_stream_as_well() {
    let dev = dev();
    let (pair, buf) = (Pair::connect(&dev), dev.buf(64));
    assert_eq!(pair.opens.rdma(1, IBV_WR_RDMA_WRITE, buf.sge(0, 8), buf.addr() + 32, buf.key()), 0);
    assert_eq!(pair.opens.wait().status, IBV_WC_SUCCESS);
    assert_eq!(pair.opens.recv(20, &[buf.sge(16, 16)]), 0);
    assert_eq!(pair.waits.send(21, &[buf.sge(32, 8)]), 0);
    assert_eq!(pair.waits.wait().status, IBV_WC_SUCCESS);
    pair.end();
}

#[test]
fn a_message_without_a_receive_ends_the_connection_at_once() {
    let dev = dev();
    let (pair, buf) = (Pair::connect(&dev), dev.buf(64));
    assert_eq!(pair.opens.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(pair.opens.wait().status, IBV_WC_RNR_RETRY_EXC_ERR);
    assert_eq!(pair.opens.state(), IBV_QPS_ERR);
    pair.end();
}

#[test]
fn the_target_of_a_read_must_allow_remote_writes() {
    let dev = dev();
    let (pair, source) = (Pair::connect(&dev), dev.buf(64));
    let wide = dev.buf(64);
    assert_eq!(pair.opens.rdma(1, IBV_WR_RDMA_READ, wide.sge(0, 8), source.addr(), source.key()), 0);
    assert_eq!(pair.opens.wait().status, IBV_WC_SUCCESS);
    let narrow = Buf::new(&dev, 64, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(pair.opens.rdma(2, IBV_WR_RDMA_READ, narrow.sge(0, 8), source.addr(), source.key()), 0);
    assert_eq!(pair.opens.wait().status, IBV_WC_LOC_PROT_ERR);
    pair.end();
}

#[test]
fn the_end_of_a_connection_takes_both_queue_pairs_to_the_error_state() {
    let dev = dev();
    let pair = Pair::connect(&dev);
    let [_, active, passive] = pair.ids;
    assert_eq!(unsafe { (cm().disconnect)(active) }, 0);
    assert_eq!(pair.opens.state(), IBV_QPS_ERR);
    let event = pair.channel.next();
    assert_eq!((event.kind, event.id), (RDMA_CM_EVENT_DISCONNECTED, passive));
    assert_eq!(pair.waits.state(), IBV_QPS_ERR);
    pair.end();
}

/// The connection manager takes the queue pair to ERR when it hears of the end; that is no reason to lose what came before it.
#[test]
fn a_message_before_the_end_of_a_connection_is_received() {
    let dev = dev();
    let (pair, mut buf) = (Pair::connect(&dev), dev.buf(64));
    buf.data[..5].copy_from_slice(b"hello");
    (1..3).for_each(|wr_id| assert_eq!(pair.waits.recv(wr_id, &[buf.sge(32, 16)]), 0));
    // From now on nothing is delivered unless this program polls an empty queue, for some milliseconds.
    (0..300).for_each(|_| assert!(poll(pair.opens.cq).is_none()));
    assert_eq!(pair.opens.send(3, &[buf.sge(0, 5)]), 0);
    assert_eq!(pair.opens.wait().status, IBV_WC_SUCCESS);
    assert_eq!(unsafe { (cm().disconnect)(pair.ids[1]) }, 0);
    assert_eq!(pair.channel.next().kind, RDMA_CM_EVENT_DISCONNECTED);
    let (first, second) = (pair.waits.wait(), pair.waits.wait());
    assert_eq!((first.wr_id, first.status), (1, IBV_WC_SUCCESS));
    assert_eq!((second.wr_id, second.status), (2, IBV_WC_WR_FLUSH_ERR));
    assert_eq!(&buf.data[32..37], b"hello");
    pair.end();
}

#[test]
fn a_refusal_has_the_number_of_iwarp_and_its_data_as_long_as_they_are() {
    let dev = dev();
    let (channel, qp) = (Channel::open(), idle(&dev));
    let (listener, port) = channel.listener(RDMA_PS_TCP);
    let active = channel.resolved(RDMA_PS_TCP, port);
    assert_eq!(unsafe { (cm().connect)(active, &mut param(qp.num(), b"")) }, 0);
    let request = channel.next();
    assert_eq!(unsafe { (cm().reject)(request.id, b"no".as_ptr().cast(), 2) }, 0);
    let event = channel.next();
    assert_eq!((event.kind, event.status), (RDMA_CM_EVENT_REJECTED, -libc::ECONNREFUSED));
    assert_eq!((&event.private[..], qp.state()), (&b"no"[..], IBV_QPS_ERR), "as with siw");
    [listener, active, request.id].into_iter().for_each(destroy);
    qp.destroy();
    let (qp, again) = (idle(&dev), channel.resolved(RDMA_PS_TCP, port));
    assert_eq!(unsafe { (cm().connect)(again, &mut param(qp.num(), b"")) }, 0);
    let event = channel.next();
    assert_eq!((event.kind, event.status), (RDMA_CM_EVENT_REJECTED, -libc::ECONNREFUSED), "no listener");
    assert_eq!(qp.state(), IBV_QPS_INIT, "no peer has heard of it");
    destroy(again);
    qp.destroy();
}

#[test]
fn a_connection_needs_a_queue_pair_that_is_idle() {
    let dev = dev();
    let channel = Channel::open();
    let active = channel.resolved(RDMA_PS_TCP, 9);
    let fresh = dev.qp(IBV_QPT_RC, dev.cq(4));
    for qpn in [fresh.num(), 0xff_fffe] {
        assert_eq!(unsafe { (cm().connect)(active, &mut param(qpn, b"")) }, -1);
        assert_eq!(last_errno(), libc::EINVAL);
    }
    destroy(active);
    fresh.destroy();
}

#[test]
fn datagram_ids_find_no_device() {
    let dev = dev();
    let channel = Channel::open();
    let id = channel.id(RDMA_PS_UDP);
    let mut to = address::emit("127.0.0.1:9".parse().unwrap());
    assert_eq!(unsafe { (cm().resolve_addr)(id, null_mut(), (&raw mut to).cast(), 1000) }, -1);
    assert_eq!(last_errno(), libc::ENODEV);
    destroy(id);
    assert!(!dev.ctx.is_null());
}
