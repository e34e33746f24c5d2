//! XRC in one process: domains, their queue pairs and SRQs, every operation, and every refusal.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "common/xrc.rs"]
mod xrc;
use common::*;
use rdma_sys::*;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use xrc::*;

#[test]
fn child_main() {
    if role().as_deref() == Some("operations") {
        every_operation();
        say(&[1]);
    }
}

#[test]
fn a_domain_is_that_of_its_inode() {
    let (dev, name) = (Dev::open(), Name::new());
    let fd = name.file.as_raw_fd();
    assert_eq!(open_xrcd(&dev, fd, 0), Err(libc::EAGAIN));
    let first = open_xrcd(&dev, fd, libc::O_CREAT | libc::O_EXCL).unwrap();
    assert_eq!(open_xrcd(&dev, fd, libc::O_CREAT | libc::O_EXCL), Err(libc::EINVAL));
    let link = name.path.with_extension("link");
    std::fs::hard_link(&name.path, &link).unwrap();
    let other = File::open(&link).unwrap();
    std::fs::remove_file(&link).unwrap();
    let second = open_xrcd(&dev, other.as_raw_fd(), 0).unwrap();
    let (from, to) = (sender(&dev), receiver(&dev, first));
    let again = open_qp(&dev, second, to.num()).unwrap();
    assert_eq!(close_xrcd(first), libc::EBUSY);
    to.destroy();
    again.destroy();
    from.destroy();
    assert_eq!((close_xrcd(first), close_xrcd(second)), (0, 0));
    assert_eq!(open_xrcd(&dev, fd, 0), Err(libc::EAGAIN));
    assert_eq!(open_xrcd(&dev, 1_000_000, libc::O_CREAT), Err(libc::EBADF));
}

#[test]
fn a_private_domain_is_another_each_time() {
    let dev = Dev::open();
    assert_eq!(open_xrcd(&dev, -1, 0), Err(libc::EAGAIN));
    let one = open_xrcd(&dev, -1, libc::O_CREAT).unwrap();
    let other = open_xrcd(&dev, -1, libc::O_CREAT | libc::O_EXCL).unwrap();
    let to = receiver(&dev, one);
    assert_eq!(open_qp(&dev, other, to.num()).err(), Some(libc::EINVAL));
    open_qp(&dev, one, to.num()).unwrap().destroy();
    to.destroy();
    assert_eq!((close_xrcd(one), close_xrcd(other)), (0, 0));
}

#[test]
fn a_domain_stays_while_an_srq_or_a_handle_uses_it() {
    let dev = Dev::open();
    let xrcd = open_xrcd(&dev, -1, libc::O_CREAT).unwrap();
    let srq = Srq::new(&dev, xrcd, 8);
    assert_eq!(close_xrcd(xrcd), libc::EBUSY);
    assert_eq!(unsafe { (table().destroy_cq)(srq.cq) }, libc::EBUSY);
    srq.destroy();
    let to = receiver(&dev, xrcd);
    assert_eq!(close_xrcd(xrcd), libc::EBUSY);
    to.destroy();
    assert_eq!(close_xrcd(xrcd), 0);
}

#[test]
fn a_receive_queue_pair_has_a_domain_and_nothing_else() {
    let dev = Dev::open();
    let xrcd = open_xrcd(&dev, -1, libc::O_CREAT).unwrap();
    let (cq, srq) = (dev.cq(8), Srq::new(&dev, xrcd, 8));
    let refused = |change: &dyn Fn(&mut ibv_qp_init_attr_ex)| create_receive(&dev, xrcd, change).err();
    assert_eq!(refused(&|init| init.recv_cq = cq), Some(libc::EINVAL));
    assert_eq!(refused(&|init| init.send_cq = cq), Some(libc::EINVAL));
    assert_eq!(refused(&|init| init.srq = srq.srq), Some(libc::EINVAL));
    let with_pd = |init: &mut ibv_qp_init_attr_ex| {
        (init.pd, init.comp_mask) = (dev.pd, init.comp_mask | IBV_QP_INIT_ATTR_PD);
    };
    assert_eq!(refused(&with_pd), Some(libc::EINVAL));
    assert_eq!(refused(&|init| init.xrcd = null_mut()), Some(libc::EINVAL));
    let (to, buf) = (receiver(&dev, xrcd), dev.buf(8));
    assert_eq!(to.recv(1, &[buf.sge(0, 8)]), libc::EINVAL);
    assert_eq!(to.send(1, &[buf.sge(0, 8)]), libc::EINVAL);
    assert_eq!(open_qp(&dev, xrcd, to.num() + 1).err(), Some(libc::EINVAL));
    // An XRC SRQ is for XRC only, and so is its number.
    let init = |srq: *mut ibv_srq| ibv_qp_init_attr {
        send_cq: cq,
        recv_cq: cq,
        srq,
        qp_type: IBV_QPT_RC,
        ..Default::default()
    };
    assert!(unsafe { (table().create_qp)(dev.pd, &mut init(srq.srq)) }.is_null());
    assert_eq!(unsafe { ibv_get_srq_num(dev.srq(4), &mut 0) }, libc::EOPNOTSUPP);
}

#[test]
fn all_handles_are_of_one_queue_pair() {
    let dev = Dev::open();
    let xrcd = open_xrcd(&dev, -1, libc::O_CREAT).unwrap();
    let (from, to) = (sender(&dev), receiver(&dev, xrcd));
    let handle = open_qp(&dev, xrcd, to.num()).unwrap();
    to.init(XRC_ACCESS);
    assert_eq!(handle.state(), IBV_QPS_INIT);
    handle.rtr(from.num(), &impatient());
    let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    assert_eq!(unsafe { (table().query_qp)(to.qp, &mut attr, 0, &mut init) }, 0);
    assert_eq!((attr.qp_state, attr.dest_qp_num, init.qp_type), (IBV_QPS_RTR, from.num(), IBV_QPT_XRC_RECV));
    assert_eq!((attr.qp_access_flags, attr.min_rnr_timer, attr.ah_attr.dlid), (XRC_ACCESS, 1, 1));
    assert_eq!(to.to_state(IBV_QPS_ERR), 0);
    assert_eq!(handle.state(), IBV_QPS_ERR);
    assert_eq!(handle.to_state(IBV_QPS_RESET), 0);
    assert_eq!((to.state(), to.to_state(IBV_QPS_RTR)), (IBV_QPS_RESET, libc::EINVAL));
}

#[test]
fn a_queue_pair_goes_with_its_last_handle() {
    let dev = Dev::open();
    let xrcd = open_xrcd(&dev, -1, libc::O_CREAT).unwrap();
    let (srq, buf) = (Srq::new(&dev, xrcd, 8), dev.buf(64));
    let (from, to) = pair(&dev, xrcd, &impatient());
    let handle = open_qp(&dev, xrcd, to.num()).unwrap();
    assert_eq!(srq_recv(srq.srq, 1, buf.sge(0, 32)), 0);
    assert_eq!(srq_recv(srq.srq, 2, buf.sge(0, 32)), 0);
    assert_eq!(send(from, srq.num, buf.sge(32, 8)), IBV_WC_SUCCESS);
    let number = to.num();
    to.destroy();
    assert_eq!(send(from, srq.num, buf.sge(32, 8)), IBV_WC_SUCCESS);
    handle.destroy();
    assert_eq!(send(from, srq.num, buf.sge(32, 8)), IBV_WC_RETRY_EXC_ERR);
    assert_eq!(open_qp(&dev, xrcd, number).err(), Some(libc::EINVAL));
    assert_eq!((wait(srq.cq).status, wait(srq.cq).status, poll(srq.cq).is_none()), (0, 0, true));
}

#[test]
fn every_operation_reaches_the_process_of_the_srq() {
    every_operation();
}

#[test]
fn every_operation_reaches_the_process_of_the_srq_through_the_rings() {
    let mut child = Child::start_with("operations", &[("SOFTIB_CMA", "0")]);
    assert_eq!(child.hear(), [1]);
    child.finish();
}

fn every_operation() {
    let dev = Dev::open();
    let xrcd = open_xrcd(&dev, -1, libc::O_CREAT).unwrap();
    let (srq, len) = (Srq::new(&dev, xrcd, 8), 100_000);
    let (mut local, mut remote) = (dev.buf(len), Buf::new(&dev, 2 * len, XRC_ACCESS));
    let (from, to) = pair(&dev, xrcd, &impatient());
    assert_eq!(event(&dev), None);
    // A SEND in many pieces, with immediate data.
    local.data.copy_from_slice(&pattern(1, len));
    assert_eq!(srq_recv(srq.srq, 11, remote.sge(0, len)), 0);
    post(from, IBV_WR_SEND_WITH_IMM, srq.num, local.sge(0, len), |wr| wr.imm.imm_data = 0x1234);
    let sent = from.wait();
    assert_eq!((sent.status, sent.opcode, sent.qp_num), (IBV_WC_SUCCESS, IBV_WC_SEND, from.num()));
    let got = wait(srq.cq);
    assert_eq!((got.wr_id, got.status, got.opcode, got.byte_len), (11, 0, IBV_WC_RECV, len as u32));
    assert_eq!((got.qp_num, unsafe { got.imm.imm_data }, got.wc_flags), (to.num(), 0x1234, IBV_WC_WITH_IMM));
    assert_eq!(remote.data[..len], pattern(1, len));
    assert_eq!(event(&dev), Some(IBV_EVENT_COMM_EST));
    // RDMA WRITE, with and without immediate data, and READ.
    let rkey = remote.key();
    let memory = |remote_addr: u64| ibv_send_wr_rdma { remote_addr, rkey };
    local.data.copy_from_slice(&pattern(2, len));
    post(from, IBV_WR_RDMA_WRITE, srq.num, local.sge(0, len), |wr| wr.wr.rdma = memory(remote.addr()));
    assert_eq!(from.wait().status, IBV_WC_SUCCESS);
    assert_eq!(remote.data[..len], pattern(2, len));
    assert_eq!(srq_recv(srq.srq, 12, remote.sge(0, 0)), 0);
    let second = memory(remote.addr() + len as u64);
    post(from, IBV_WR_RDMA_WRITE_WITH_IMM, srq.num, local.sge(0, len), |wr| wr.wr.rdma = second);
    assert_eq!(from.wait().status, IBV_WC_SUCCESS);
    let got = wait(srq.cq);
    assert_eq!((got.wr_id, got.opcode, got.byte_len), (12, IBV_WC_RECV_RDMA_WITH_IMM, len as u32));
    assert_eq!((got.qp_num, &remote.data[len..]), (to.num(), &pattern(2, len)[..]));
    remote.data.copy_from_slice(&pattern(3, 2 * len));
    post(from, IBV_WR_RDMA_READ, srq.num, local.sge(0, len), |wr| wr.wr.rdma = memory(remote.addr()));
    assert_eq!(from.wait().status, IBV_WC_SUCCESS);
    assert_eq!(local.data[..], pattern(3, 2 * len)[..len]);
    // Atomics.
    remote.data[..8].copy_from_slice(&40u64.to_ne_bytes());
    let word = ibv_send_wr_atomic { remote_addr: remote.addr(), compare_add: 2, swap: 0, rkey: remote.key() };
    post(from, IBV_WR_ATOMIC_FETCH_AND_ADD, srq.num, local.sge(0, 8), |wr| wr.wr.atomic = word);
    assert_eq!(from.wait().status, IBV_WC_SUCCESS);
    let word = ibv_send_wr_atomic { compare_add: 42, swap: 7, ..word };
    post(from, IBV_WR_ATOMIC_CMP_AND_SWP, srq.num, local.sge(8, 8), |wr| wr.wr.atomic = word);
    assert_eq!(from.wait().status, IBV_WC_SUCCESS);
    let u64_at = |data: &[u8], at: usize| u64::from_ne_bytes(data[at..at + 8].try_into().unwrap());
    assert_eq!((u64_at(&local.data, 0), u64_at(&local.data, 8), u64_at(&remote.data, 0)), (40, 42, 7));
    local.dereg();
    remote.dereg();
}

#[test]
fn an_srq_of_another_domain_or_of_none_is_refused_and_harms_nobody() {
    let dev = Dev::open();
    let (ours, theirs) = (Name::new(), Name::new());
    let (ours, theirs) = (domain(&dev, &ours.file), domain(&dev, &theirs.file));
    let (srq, foreign, buf) = (Srq::new(&dev, ours, 8), Srq::new(&dev, theirs, 8), dev.buf(64));
    for srq in [srq, foreign] {
        assert_eq!(srq_recv(srq.srq, 1, buf.sge(0, 32)), 0);
    }
    let (neighbour, _) = pair(&dev, ours, &impatient());
    for number in [foreign.num, srq.num + 100, 0, 0xff_ffff] {
        let (from, to) = pair(&dev, ours, &impatient());
        assert_eq!(send(from, number, buf.sge(32, 8)), IBV_WC_REM_INV_REQ_ERR, "srq {number:#x}");
        assert_eq!((from.state(), to.state()), (IBV_QPS_ERR, IBV_QPS_RTR));
    }
    assert_eq!(send(neighbour, srq.num, buf.sge(32, 8)), IBV_WC_SUCCESS);
    assert_eq!((wait(srq.cq).status, poll(foreign.cq).is_none()), (IBV_WC_SUCCESS, true));
}

#[test]
fn an_srq_number_that_is_gone_is_refused() {
    let dev = Dev::open();
    let xrcd = open_xrcd(&dev, -1, libc::O_CREAT).unwrap();
    let (srq, buf) = (Srq::new(&dev, xrcd, 8), dev.buf(64));
    let (from, _to) = pair(&dev, xrcd, &impatient());
    assert_eq!(srq_recv(srq.srq, 1, buf.sge(0, 32)), 0);
    assert_eq!(send(from, srq.num, buf.sge(32, 8)), IBV_WC_SUCCESS);
    assert_eq!(wait(srq.cq).status, IBV_WC_SUCCESS);
    let number = srq.num;
    srq.destroy();
    assert_eq!(send(from, number, buf.sge(32, 8)), IBV_WC_REM_INV_REQ_ERR);
}

#[test]
fn an_empty_srq_is_waited_for_as_often_as_told() {
    let dev = Dev::open();
    let xrcd = open_xrcd(&dev, -1, libc::O_CREAT).unwrap();
    let (srq, buf) = (Srq::new(&dev, xrcd, 8), dev.buf(64));
    let (from, _) = pair(&dev, xrcd, &Path { rnr_retry: 2, ..impatient() });
    assert_eq!(send(from, srq.num, buf.sge(32, 8)), IBV_WC_RNR_RETRY_EXC_ERR);
    let (from, _) = pair(&dev, xrcd, &impatient());
    post(from, IBV_WR_SEND, srq.num, buf.sge(32, 8), |_| ());
    for _ in 0..1000 {
        assert!(poll(from.cq).is_none());
    }
    assert_eq!(srq_recv(srq.srq, 1, buf.sge(0, 32)), 0);
    assert_eq!((from.wait().status, wait(srq.cq).wr_id), (IBV_WC_SUCCESS, 1));
}

#[test]
fn a_resized_srq_and_its_limit_work_as_others_do() {
    let dev = Dev::open();
    let xrcd = open_xrcd(&dev, -1, libc::O_CREAT).unwrap();
    let (srq, buf) = (Srq::new(&dev, xrcd, 4), dev.buf(64));
    let (from, _to) = pair(&dev, xrcd, &impatient());
    assert_eq!(srq_recv(srq.srq, 1, buf.sge(0, 32)), 0);
    assert_eq!(send(from, srq.num, buf.sge(32, 8)), IBV_WC_SUCCESS);
    assert_eq!((wait(srq.cq).wr_id, event(&dev)), (1, Some(IBV_EVENT_COMM_EST)));
    let modify =
        |attr: ibv_srq_attr, mask: u32| unsafe { (table().modify_srq)(srq.srq, &mut { attr }, mask as i32) };
    assert_eq!(modify(ibv_srq_attr { max_wr: 64, ..Default::default() }, IBV_SRQ_MAX_WR), 0);
    for wr_id in 2..34 {
        assert_eq!(srq_recv(srq.srq, wr_id, buf.sge(0, 32)), 0);
    }
    assert_eq!(modify(ibv_srq_attr { srq_limit: 32, ..Default::default() }, IBV_SRQ_LIMIT), 0);
    assert_eq!(send(from, srq.num, buf.sge(32, 8)), IBV_WC_SUCCESS);
    assert_eq!((wait(srq.cq).wr_id, event(&dev)), (2, Some(IBV_EVENT_SRQ_LIMIT_REACHED)));
}

#[test]
fn a_message_that_does_not_fit_ends_the_connection_on_both_sides() {
    let dev = Dev::open();
    let xrcd = open_xrcd(&dev, -1, libc::O_CREAT).unwrap();
    let (srq, buf) = (Srq::new(&dev, xrcd, 8), dev.buf(64));
    let (from, to) = pair(&dev, xrcd, &impatient());
    assert_eq!(srq_recv(srq.srq, 1, buf.sge(0, 4)), 0);
    assert_eq!(send(from, srq.num, buf.sge(32, 8)), IBV_WC_REM_INV_REQ_ERR);
    let got = wait(srq.cq);
    assert_eq!((got.status, got.qp_num), (IBV_WC_LOC_LEN_ERR, to.num()));
    assert_eq!((from.state(), to.state()), (IBV_QPS_ERR, IBV_QPS_ERR));
}

#[test]
fn memory_is_that_of_the_srqs_protection_domain() {
    let dev = Dev::open();
    let xrcd = open_xrcd(&dev, -1, libc::O_CREAT).unwrap();
    let (srq, buf) = (Srq::new(&dev, xrcd, 8), dev.buf(64));
    let other = Dev { ctx: dev.ctx, pd: unsafe { (table().alloc_pd)(dev.ctx) } };
    let foreign = other.buf(64);
    for (key, access, status, kind) in [
        (foreign.key(), XRC_ACCESS, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR),
        (buf.key(), IBV_ACCESS_LOCAL_WRITE, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR),
    ] {
        let (from, to) = pair(&dev, xrcd, &Path { access, ..impatient() });
        let target = ibv_send_wr_rdma { remote_addr: foreign.addr(), rkey: key };
        post(from, IBV_WR_RDMA_WRITE, srq.num, buf.sge(0, 8), |wr| wr.wr.rdma = target);
        assert_eq!(from.wait().status, status);
        // Our own poll delivers the refusal to the responder, which is us.
        while to.state() != IBV_QPS_ERR {
            assert!(poll(srq.cq).is_none());
        }
        let events: Vec<u32> = std::iter::from_fn(|| event(&dev)).collect();
        assert!(events.contains(&kind), "{events:?}");
    }
}

#[test]
fn the_device_says_what_it_has_of_xrc() {
    let dev = Dev::open();
    let mut attr = ibv_device_attr_ex::default();
    assert_eq!(unsafe { ibv_query_device_ex(table(), dev.ctx, &mut attr) }, 0);
    assert_ne!(attr.orig_attr.device_cap_flags & IBV_DEVICE_XRC, 0);
    assert_eq!(attr.xrc_odp_caps != 0, attr.odp_caps.general_caps != 0);
    let xrcd = open_xrcd(&dev, -1, libc::O_CREAT).unwrap();
    let (srq, mut got) = (Srq::new(&dev, xrcd, 8), ibv_srq_attr::default());
    assert_eq!(unsafe { (table().query_srq)(srq.srq, &mut got) }, 0);
    assert_eq!((got.max_wr, got.max_sge), (8, 1));
}
