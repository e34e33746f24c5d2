//! XRC between ports of two devices: a domain is one device's, its receive queue pairs are bound to ports, its SRQs are not.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "common/xrc.rs"]
mod xrc;
use common::*;
use rdma_sys::*;
use std::ptr::null_mut;
use xrc::*;

const VARIABLES: [(&str, &str); 3] = [("SOFTIB_DEVICES", "2"), ("SOFTIB_PORTS", "2"), ("SOFTIB_CMA", "0")];

#[test]
fn child_main() {
    match role().as_deref() {
        Some("operations") => operations(),
        Some("misled") => misled(),
        other => assert_eq!(other, None, "no such role"),
    }
}

fn devices() -> [Dev; 2] {
    [0, 1].map(|at| unsafe {
        let list = (table().get_device_list)(null_mut());
        let ctx = (table().open_device)(*list.add(at));
        (table().free_device_list)(list);
        Dev { ctx, pd: (table().alloc_pd)(ctx) }
    })
}

fn lid_of(dev: &Dev, num: u8) -> u16 {
    let mut attr = ibv_port_attr::default();
    assert_eq!(unsafe { (table().query_port)(dev.ctx, num, &mut attr) }, 0);
    attr.lid
}

/// Takes a queue pair at port `num` to RTS: both sides of XRC may be given the same attributes.
fn connect(qp: Qp, num: u8, dest_qp_num: u32, dlid: u16) {
    let access = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    let path = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    let served = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    let retry = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    let masks = [access, path | served, IBV_QP_STATE | IBV_QP_SQ_PSN | retry];
    for (qp_state, mask) in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS].into_iter().zip(masks) {
        let attr = ibv_qp_attr {
            qp_state,
            port_num: num,
            qp_access_flags: XRC_ACCESS,
            path_mtu: IBV_MTU_4096,
            dest_qp_num,
            ah_attr: ibv_ah_attr { dlid, port_num: num, ..Default::default() },
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            timeout: 8,
            ..Default::default()
        };
        assert_eq!(qp.modify(&attr, mask), 0, "to {qp_state}");
    }
}

/// Messages, and operations that are answered through the ring.
fn operations() {
    let [near, far] = devices();
    let xrcd = open_xrcd(&far, -1, libc::O_CREAT).unwrap();
    let (srq, from, to) = (Srq::new(&far, xrcd, 8), sender(&near), receiver(&far, xrcd));
    connect(to, 2, from.num(), lid_of(&near, 2));
    connect(from, 2, to.num(), lid_of(&far, 2));
    let (mut out, mut there) = (near.buf(64), Buf::new(&far, 64, XRC_ACCESS));
    out.data[..4].copy_from_slice(b"sent");
    assert_eq!(srq_recv(srq.srq, 3, there.sge(0, 16)), 0);
    assert_eq!(send(from, srq.num, out.sge(0, 4)), IBV_WC_SUCCESS);
    let wc = wait(srq.cq);
    assert_eq!((wc.status, wc.qp_num, &there.data[..4]), (IBV_WC_SUCCESS, to.num(), &b"sent"[..]));
    there.data[16..20].copy_from_slice(b"read");
    let (addr, key) = (there.addr(), there.key());
    post(from, IBV_WR_RDMA_READ, srq.num, out.sge(8, 4), |wr| {
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr: addr + 16, rkey: key };
    });
    assert_eq!((from.wait().status, &out.data[8..12]), (IBV_WC_SUCCESS, &b"read"[..]));
    post(from, IBV_WR_RDMA_WRITE, srq.num, out.sge(0, 4), |wr| {
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr: addr + 32, rkey: key };
    });
    assert_eq!((from.wait().status, &there.data[32..36]), (IBV_WC_SUCCESS, &b"sent"[..]));
    say(&[1]);
    listen();
}

/// A path to a port that the receive queue pair is not bound to, and one from a port that it does not answer to.
fn misled() {
    let [near, far] = devices();
    let xrcd = open_xrcd(&far, -1, libc::O_CREAT).unwrap();
    let (srq, there, out) = (Srq::new(&far, xrcd, 8), far.buf(64), near.buf(64));
    assert_eq!(srq_recv(srq.srq, 3, there.sge(0, 16)), 0);
    for (back, forth) in [(lid_of(&near, 2), lid_of(&far, 1)), (lid_of(&near, 1), lid_of(&far, 2))] {
        let (from, to) = (sender(&near), receiver(&far, xrcd));
        connect(to, 2, from.num(), back);
        connect(from, 2, to.num(), forth);
        assert_eq!(send(from, srq.num, out.sge(0, 4)), IBV_WC_RETRY_EXC_ERR);
    }
    say(&[1]);
    listen();
}

#[test]
fn every_kind_of_operation_works_between_second_ports() {
    let mut child = Child::start_with("operations", &VARIABLES);
    assert_eq!(child.hear(), [1]);
    child.finish();
}

#[test]
fn a_receive_queue_pair_hears_and_answers_at_its_own_port_only() {
    let mut child = Child::start_with("misled", &VARIABLES);
    assert_eq!(child.hear(), [1]);
    child.finish();
}
