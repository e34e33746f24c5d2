//! XRC between processes that leave and die: what belongs to the domain stays, what belonged to the dead goes.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "common/xrc.rs"]
mod xrc;
use common::*;
use rdma_sys::*;
use std::os::fd::AsRawFd;
use std::time::Instant;
use xrc::*;

#[test]
fn child_main() {
    match role().as_deref() {
        Some("creator") => creator(),
        Some("owner") => owner(),
        Some("exclusive") => exclusive(),
        Some("domains") => domains(),
        other => assert_eq!(other, None, "no such role"),
    }
}

/// Makes a receive queue pair for the sender it is told of, and waits to be killed; or, told so, says what events it got, and leaves.
fn creator() {
    let dev = Dev::open();
    let to = receiver(&dev, domain_of_parent(&dev));
    let sender = listen().unwrap()[0] as u32;
    expect(to, sender, &patient());
    say(&[to.num().into()]);
    if listen().is_some() {
        say(&[wait_for_event(&dev).into()]);
        listen();
    }
}

/// Has an SRQ, and a handle of the receive queue pair it is told of (0: none). Each line it hears is a number of messages to
/// receive, which it does and says how many came through which queue pair; 0: it closes its handle.
fn owner() {
    let dev = Dev::open();
    let xrcd = domain_of_parent(&dev);
    let (srq, buf) = (Srq::new(&dev, xrcd, 64), Buf::new(&dev, 64, XRC_ACCESS));
    for wr_id in 0..64 {
        assert_eq!(srq_recv(srq.srq, wr_id, buf.sge(0, 64)), 0);
    }
    let number = listen().unwrap()[0] as u32;
    let handle = (number != 0).then(|| open_qp(&dev, xrcd, number).unwrap());
    say(&[srq.num.into(), buf.addr(), buf.key().into()]);
    while let Some(words) = listen() {
        if words[0] == 0 {
            handle.unwrap().destroy();
            say(&[0]);
            continue;
        }
        let got: Vec<ibv_wc> = (0..words[0]).map(|_| wait(srq.cq)).collect();
        assert!(got.iter().all(|wc| wc.status == IBV_WC_SUCCESS && wc.qp_num == got[0].qp_num));
        got.iter().for_each(|wc| assert_eq!(srq_recv(srq.srq, wc.wr_id, buf.sge(0, 64)), 0));
        say(&[got.len() as u64, got[0].qp_num.into()]);
    }
}

/// Says what came of an exclusive open.
fn exclusive() {
    let dev = Dev::open();
    let file = std::fs::File::open(std::env::var("XRC_FILE").unwrap()).unwrap();
    let opened = open_xrcd(&dev, file.as_raw_fd(), libc::O_CREAT | libc::O_EXCL);
    say(&[opened.err().unwrap_or(0) as u64]);
    listen();
}

/// Has a private domain and the parent's open, with something in each.
fn domains() {
    let dev = Dev::open();
    let xrcd = open_xrcd(&dev, -1, libc::O_CREAT).unwrap();
    receiver(&dev, xrcd);
    Srq::new(&dev, domain_of_parent(&dev), 8);
    say(&[1]);
    listen();
}

fn wait_for_event(dev: &Dev) -> u32 {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(kind) = event(dev) {
            return kind;
        }
        assert!(Instant::now() < end, "no event came");
        std::thread::yield_now();
    }
}

/// A sender of ours, connected to a receive queue pair that a child in role "creator" has made.
fn connected(dev: &Dev, name: &Name) -> (Qp, Child, u32) {
    let from = sender(dev);
    let mut child = Child::start_with("creator", &[name.env()]);
    child.tell(&[from.num().into()]);
    let number = child.hear()[0] as u32;
    from.connect(number, &patient());
    (from, child, number)
}

/// A child in role "owner" and its SRQ's number.
fn with_owner(name: &Name, handle: u32) -> (Child, u32) {
    let mut child = Child::start_with("owner", &[name.env()]);
    child.tell(&[handle.into()]);
    let number = child.hear()[0] as u32;
    (child, number)
}

#[test]
fn a_queue_pair_outlives_its_creator_and_goes_with_its_last_handle() {
    let (dev, name) = (Dev::open(), Name::new());
    let (from, mut creator, number) = connected(&dev, &name);
    let (mut owner, srqn) = with_owner(&name, number);
    let buf = dev.buf(64);
    let ten = |from: Qp| (0..10).for_each(|_| assert_eq!(send(from, srqn, buf.sge(0, 8)), IBV_WC_SUCCESS));
    ten(from);
    creator.kill();
    ten(from);
    owner.tell(&[20]);
    assert_eq!(owner.hear(), [20, u64::from(number)]);
    // A third process comes when the creator is long gone.
    let (mut second, other) = with_owner(&name, number);
    owner.tell(&[0]);
    owner.hear();
    ten(from);
    assert_eq!(send(from, other, buf.sge(0, 8)), IBV_WC_SUCCESS);
    second.tell(&[1]);
    assert_eq!(second.hear(), [1, u64::from(number)]);
    second.tell(&[0]);
    second.hear();
    // From now on no process answers; a short patience will do.
    let attr = ibv_qp_attr { qp_state: IBV_QPS_SQD, ..Default::default() };
    assert_eq!(from.modify(&attr, IBV_QP_STATE), 0);
    let attr = ibv_qp_attr { qp_state: IBV_QPS_SQD, timeout: 8, retry_cnt: 1, ..Default::default() };
    assert_eq!(from.modify(&attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT), 0);
    assert_eq!(from.to_state(IBV_QPS_RTS), 0);
    assert_eq!(send(from, srqn, buf.sge(0, 8)), IBV_WC_RETRY_EXC_ERR);
    owner.finish();
    second.finish();
}

#[test]
fn senders_hear_at_once_when_the_last_holder_is_killed() {
    let (dev, name) = (Dev::open(), Name::new());
    let (from, mut creator, _) = connected(&dev, &name);
    // The SRQ's process has no handle: it lives on, and the queue pair does not.
    let (owner, srqn) = with_owner(&name, 0);
    let buf = dev.buf(64);
    assert_eq!(send(from, srqn, buf.sge(0, 8)), IBV_WC_SUCCESS);
    creator.kill();
    assert_eq!(send(from, srqn, buf.sge(0, 8)), IBV_WC_RETRY_EXC_ERR);
    owner.finish();
}

#[test]
fn the_death_of_one_srqs_process_fails_what_is_sent_to_it_and_nothing_else() {
    let (dev, name) = (Dev::open(), Name::new());
    let (from, first, number) = connected(&dev, &name);
    let (other, second, _) = connected(&dev, &name);
    let (mut victim, dead) = with_owner(&name, number);
    let (survivor, srqn) = with_owner(&name, number);
    let buf = dev.buf(64);
    for (qp, srqn) in [(from, dead), (from, srqn), (other, dead), (other, srqn)] {
        assert_eq!(send(qp, srqn, buf.sge(0, 8)), IBV_WC_SUCCESS);
    }
    victim.kill();
    assert_eq!(send(other, srqn, buf.sge(0, 8)), IBV_WC_SUCCESS);
    assert_eq!(send(from, dead, buf.sge(0, 8)), IBV_WC_REM_INV_REQ_ERR);
    assert_eq!(send(other, srqn, buf.sge(0, 8)), IBV_WC_SUCCESS);
    // Another sender takes the place of the one that failed, on the same queue pair.
    let again = sender(&dev);
    let xrcd = domain(&dev, &name.file);
    let handle = open_qp(&dev, xrcd, number).unwrap();
    assert_eq!(handle.state(), IBV_QPS_RTR);
    assert_eq!(handle.to_state(IBV_QPS_RESET), 0);
    expect(handle, again.num(), &patient());
    again.connect(number, &patient());
    assert_eq!(send(again, srqn, buf.sge(0, 8)), IBV_WC_SUCCESS);
    survivor.finish();
    first.finish();
    second.finish();
}

#[test]
fn one_sided_operations_find_the_memory_of_the_srqs_process() {
    for cma in ["1", "0"] {
        let (dev, name) = (Dev::open(), Name::new());
        let from = sender(&dev);
        let xrcd = domain(&dev, &name.file);
        let to = receiver(&dev, xrcd);
        expect(to, from.num(), &patient());
        from.connect(to.num(), &patient());
        let mut owner = Child::start_with("owner", &[name.env(), ("SOFTIB_CMA", cma)]);
        owner.tell(&[0]);
        let words = owner.hear();
        let (srqn, target) =
            (words[0] as u32, ibv_send_wr_rdma { remote_addr: words[1], rkey: words[2] as u32 });
        let mut buf = dev.buf(64);
        buf.data[..8].copy_from_slice(&5u64.to_ne_bytes());
        post(from, IBV_WR_RDMA_WRITE, srqn, buf.sge(0, 8), |wr| wr.wr.rdma = target);
        assert_eq!(from.wait().status, IBV_WC_SUCCESS);
        let word = ibv_send_wr_atomic { remote_addr: words[1], compare_add: 6, swap: 0, rkey: target.rkey };
        post(from, IBV_WR_ATOMIC_FETCH_AND_ADD, srqn, buf.sge(8, 8), |wr| wr.wr.atomic = word);
        assert_eq!(from.wait().status, IBV_WC_SUCCESS);
        post(from, IBV_WR_RDMA_READ, srqn, buf.sge(16, 8), |wr| wr.wr.rdma = target);
        assert_eq!(from.wait().status, IBV_WC_SUCCESS);
        assert_eq!((buf.data[8], buf.data[16]), (5, 11));
        owner.finish();
    }
}

#[test]
fn every_holder_hears_of_the_queue_pairs_events() {
    let (dev, name) = (Dev::open(), Name::new());
    let (from, mut creator, number) = connected(&dev, &name);
    let xrcd = domain(&dev, &name.file);
    let _handle = open_qp(&dev, xrcd, number).unwrap();
    let (mut owner, srqn) = with_owner(&name, number);
    let buf = dev.buf(64);
    assert_eq!(send(from, srqn, buf.sge(0, 8)), IBV_WC_SUCCESS);
    assert_eq!(wait_for_event(&dev), IBV_EVENT_COMM_EST);
    creator.tell(&[0]);
    assert_eq!(creator.hear(), [u64::from(IBV_EVENT_COMM_EST)]);
    owner.tell(&[1]);
    assert_eq!(owner.hear(), [1, u64::from(number)]);
    creator.finish();
    owner.finish();
}

#[test]
fn an_exclusive_open_fails_while_another_process_has_the_domain_and_lives() {
    let name = Name::new();
    let mut first = Child::start_with("exclusive", &[name.env()]);
    assert_eq!(first.hear(), [0]);
    let mut second = Child::start_with("exclusive", &[name.env()]);
    assert_eq!(second.hear(), [libc::EINVAL as u64]);
    first.kill();
    let mut third = Child::start_with("exclusive", &[name.env()]);
    assert_eq!(third.hear(), [0]);
    second.finish();
    third.finish();
}

#[test]
fn nothing_of_a_domain_is_left_when_its_processes_have_ended_or_been_killed() {
    let name = Name::new();
    let folder = std::path::PathBuf::from(format!("/dev/shm/softib-xrc-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let env = [name.env(), ("SOFTIB_DIR", folder.to_str().unwrap())];
    let left = || std::fs::read_dir(&folder).unwrap().count();
    let start = || {
        let mut child = Child::start_with("domains", &env);
        assert_eq!(child.hear(), [1]);
        child
    };
    let (one, other) = (start(), start());
    // Two processes, a private domain each, and one in common.
    assert_eq!(left(), 5);
    one.finish();
    assert_eq!(left(), 3);
    other.finish();
    assert_eq!(left(), 0);
    start().kill();
    assert_eq!(left(), 3);
    // The next one sweeps.
    start().finish();
    assert_eq!(left(), 0);
    std::fs::remove_dir(&folder).unwrap();
}
