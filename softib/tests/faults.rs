//! Faults on demand: each strikes when and as it was asked to, and programs see what a fabric would show them.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::time::{Duration, Instant};

/// A plan belongs to the whole process: each test runs in a child of its own, in the role of its name.
#[test]
fn child_main() {
    let Some(role) = role() else { return };
    match role.as_str() {
        "lossy" => lossy(),
        "storm" => storm(),
        "latency" => latency(),
        "error" => error(),
        "cut" => cut(),
        "outage" => outage(),
        "switched" => switched(),
        "killed" => killed(),
        "calls" => calls(),
        "data path" => data_path(),
        "steps" => steps(),
        "every name" => every_name(),
        "refuses" => refuses(),
        "off" => off(),
        "events" => events(),
        other => panic!("no such role: {other}"),
    }
    say(&[1]);
    listen();
}

fn with(role: &str, plan: &str) {
    let mut child = Child::start_with(role, &[("SOFTIB_FAULTS", plan)]);
    assert_eq!(child.hear(), [1]);
    child.finish();
}

const QKEY: u32 = 5;
const DATAGRAMS: u64 = 1000;

/// Sends numbered datagrams to itself; what arrived, in order of arrival.
fn datagrams(dev: &Dev) -> Vec<u64> {
    let (a, b) = (dev.qp(IBV_QPT_UD, dev.cq(64)), dev.qp(IBV_QPT_UD, dev.cq(256)));
    let mut buf = dev.buf(64 * 128);
    a.ready_ud(QKEY);
    b.ready_ud(QKEY);
    for slot in 0..64 {
        assert_eq!(b.recv(slot, &[buf.sge(slot as usize * 64, 64)]), 0);
    }
    let ah = dev.ah();
    let mut arrived = Vec::new();
    let take = |arrived: &mut Vec<u64>, wc: ibv_wc, buf: &Buf| {
        let at = wc.wr_id as usize * 64;
        arrived.push(u64::from_ne_bytes(buf.data[at + 40..at + 48].try_into().unwrap()));
        assert_eq!(b.recv(wc.wr_id, &[buf.sge(at, 64)]), 0);
    };
    for number in 0..DATAGRAMS {
        buf.data[8000..8008].copy_from_slice(&number.to_ne_bytes());
        assert_eq!(a.datagram(number, &[buf.sge(8000, 8)], ah, (b.num(), QKEY)), 0);
        assert_eq!(a.wait().status, IBV_WC_SUCCESS, "a lost datagram completes like any other");
        while let Some(wc) = poll(b.cq) {
            take(&mut arrived, wc, &buf);
        }
    }
    // What was held back comes within milliseconds.
    let end = Instant::now() + Duration::from_millis(200);
    while Instant::now() < end {
        if let Some(wc) = poll(b.cq) {
            take(&mut arrived, wc, &buf);
        }
    }
    arrived
}

/// Losses, copies and overtaking in the numbers asked for, and the same ones in a second run.
fn lossy() {
    let dev = Dev::open();
    let plan: softib::faults::Plan = std::env::var("SOFTIB_FAULTS").unwrap().parse().unwrap();
    let mut runs = Vec::new();
    for _ in 0..2 {
        softib::faults::set(plan.clone());
        let arrived = datagrams(&dev);
        let counts = softib::faults::counts();
        assert!((150..250).contains(&counts.dropped), "{counts:?}");
        assert!(
            (50..130).contains(&counts.duplicated) && (50..130).contains(&counts.reordered),
            "{counts:?}"
        );
        assert_eq!(arrived.len() as u64, DATAGRAMS - counts.dropped + counts.duplicated);
        assert!(arrived.windows(2).any(|pair| pair[0] > pair[1]), "nothing was overtaken");
        let mut different = arrived.clone();
        different.sort_unstable();
        different.dedup();
        runs.push((counts, different));
    }
    assert!(runs[0] == runs[1], "one seed, two courses");
}

#[test]
fn datagrams_are_lost_doubled_and_overtaken_as_the_seed_has_it() {
    with("lossy", "seed=3,drop=20%,duplicate=10%,reorder=10%");
}

/// A sender with a retry count of `rnr_retry`, a receiver with receives posted.
fn pair(dev: &Dev, rnr_retry: u8) -> (Qp, Qp, Buf) {
    let (a, b) = loopback(dev, &Path { rnr_retry, ..Path::default() });
    let buf = dev.buf(4096);
    for wr_id in 0..16 {
        assert_eq!(b.recv(wr_id, &[buf.sge(2048, 1024)]), 0);
    }
    (a, b, buf)
}

fn storm() {
    let dev = Dev::open();
    let (a, b, buf) = pair(&dev, 7);
    for round in 1..=6 {
        let start = Instant::now();
        assert_eq!(a.send(1, &[buf.sge(0, 8)]), 0);
        assert_eq!((a.wait().status, b.wait().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
        assert!(round % 3 != 0 || start.elapsed() >= Duration::from_millis(20));
    }
    assert_eq!(softib::faults::counts().rnr_storms, 2);
    assert!(softib::stats().rnr >= 2);
    // With few retries the storm outlasts the sender's patience.
    let (a, _b, buf) = pair(&dev, 1);
    let sent = std::iter::repeat_with(|| {
        assert_eq!(a.send(1, &[buf.sge(0, 8)]), 0);
        a.wait().status
    });
    assert!(sent.take(3).any(|status| status == IBV_WC_RNR_RETRY_EXC_ERR));
}

#[test]
fn every_third_send_meets_a_storm_of_rnr_naks() {
    with("storm", "rnr=every:3:20ms");
}

fn latency() {
    let dev = Dev::open();
    let (a, b, buf) = pair(&dev, 7);
    let start = Instant::now();
    for number in 0..8 {
        assert_eq!(a.send(number, &[buf.sge(0, 8)]), 0);
    }
    let order: Vec<u64> = (0..8).map(|_| a.wait().wr_id).collect();
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert_eq!(order, (0..8).collect::<Vec<_>>());
    (0..8).for_each(|_| assert_eq!(b.wait().status, IBV_WC_SUCCESS));
    assert_eq!(softib::faults::counts().delayed, 8);
}

#[test]
fn latency_delays_each_send_and_keeps_their_order() {
    with("latency", "delay=30ms");
}

fn next_event(dev: &Dev) -> u32 {
    let mut event: ibv_async_event = unsafe { std::mem::zeroed() };
    assert_eq!(unsafe { (table().get_async_event)(dev.ctx, &mut event) }, 0);
    unsafe { (table().ack_async_event)(&mut event) };
    event.event_type
}

fn error() {
    let dev = Dev::open();
    let (a, b, buf) = pair(&dev, 7);
    let statuses: Vec<u32> = (0..4)
        .map(|_| {
            assert_eq!(a.send(1, &[buf.sge(0, 8)]), 0);
            a.wait().status
        })
        .collect();
    let (good, flushed) = (IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR);
    assert_eq!(statuses, [good, good, IBV_WC_LOC_QP_OP_ERR, flushed]);
    assert_eq!(a.state(), IBV_QPS_ERR);
    let events = std::iter::repeat_with(|| next_event(&dev));
    assert!(events.take(4).any(|event| event == IBV_EVENT_QP_FATAL));
    (0..2).for_each(|_| assert_eq!(b.wait().status, good));
    // The count is the process': another queue pair goes on from it.
    let (a, _b, buf) = pair(&dev, 7);
    assert_eq!(a.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(a.wait().status, good);
}

#[test]
fn the_third_request_breaks_its_queue_pair() {
    with("error", "error=at:3");
}

fn cut() {
    let dev = Dev::open();
    let (a, b, buf) = pair(&dev, 7);
    assert_eq!(a.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    assert_eq!(a.rdma(2, IBV_WR_RDMA_WRITE, buf.sge(0, 8), buf.addr() + 512, buf.key()), 0);
    assert_eq!(a.wait().status, IBV_WC_RETRY_EXC_ERR);
    // The other side hears nothing until it sends itself.
    assert_eq!(b.wait().status, IBV_WC_SUCCESS);
    assert!(poll(b.cq).is_none());
    assert_eq!(b.send(3, &[buf.sge(0, 8)]), 0);
    assert_eq!(b.wait().status, IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn a_connection_that_is_cut_fails_on_both_sides() {
    with("cut", "cut=at:2");
}

fn port_state(dev: &Dev) -> u32 {
    let mut attr = ibv_port_attr::default();
    assert_eq!(unsafe { (table().query_port)(dev.ctx, 1, &mut attr) }, 0);
    attr.state
}

/// A port that goes down and comes back by the clock, seen by a program that only waits for events.
fn outage() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &Path { timeout: 18, retry_cnt: 7, ..Path::default() });
    let buf = dev.buf(64);
    assert_eq!(b.recv(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(next_event(&dev), IBV_EVENT_PORT_ERR);
    assert_eq!(port_state(&dev), IBV_PORT_DOWN);
    // Its retries outlast the outage.
    assert_eq!(a.send(1, &[buf.sge(16, 8)]), 0);
    assert!(poll(a.cq).is_none());
    assert_eq!(next_event(&dev), IBV_EVENT_PORT_ACTIVE);
    assert_eq!(port_state(&dev), IBV_PORT_ACTIVE);
    assert_eq!((a.wait().status, b.wait().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    assert_eq!(softib::faults::counts().outages, 1);
}

#[test]
fn a_port_that_is_down_for_a_while_is_waited_for() {
    with("outage", "port-down=100ms:300ms");
}

/// Both directions, and datagrams, by call.
fn switched() {
    let dev = Dev::open();
    let (a, _b, buf) = pair(&dev, 7);
    let (c, d) = (dev.qp(IBV_QPT_UD, dev.cq(8)), dev.qp(IBV_QPT_UD, dev.cq(8)));
    c.ready_ud(QKEY);
    d.ready_ud(QKEY);
    assert_eq!(d.recv(1, &[buf.sge(0, 64)]), 0);
    softib::faults::set_port(false).unwrap();
    assert_eq!(next_event(&dev), IBV_EVENT_PORT_ERR);
    assert_eq!(a.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(a.wait().status, IBV_WC_RETRY_EXC_ERR);
    let ah = dev.ah();
    assert_eq!(c.datagram(1, &[buf.sge(64, 8)], ah, (d.num(), QKEY)), 0);
    assert_eq!(c.wait().status, IBV_WC_SUCCESS);
    softib::faults::set_port(true).unwrap();
    assert_eq!(c.datagram(2, &[buf.sge(64, 8)], ah, (d.num(), QKEY)), 0);
    assert_eq!((c.wait().status, d.wait().wr_id), (IBV_WC_SUCCESS, 1));
    assert!(poll(d.cq).is_none(), "the datagram of before is lost");
}

#[test]
fn sends_through_a_port_that_is_down_time_out() {
    with("switched", "");
}

fn killed() {
    let dev = Dev::open();
    let (a, b, buf) = pair(&dev, 7);
    softib::faults::kill_connection(b.num()).unwrap();
    assert_eq!(b.wait().status, IBV_WC_WR_FLUSH_ERR);
    assert_eq!(next_event(&dev), IBV_EVENT_QP_FATAL);
    assert_eq!(a.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(a.wait().status, IBV_WC_RETRY_EXC_ERR);
    assert!(softib::faults::kill_connection(b.num() ^ 0x800).is_err());
}

#[test]
fn a_connection_can_be_killed_by_call() {
    with("killed", "");
}

/// What the plan raises without a cause: of one queue pair, of all, of a port that works on, of the
/// device.
fn events() {
    let dev = Dev::open();
    let (a, b, buf) = pair(&dev, 7);
    assert_eq!(next_event(&dev), IBV_EVENT_LID_CHANGE);
    assert_eq!(port_state(&dev), IBV_PORT_ACTIVE);
    assert_eq!(next_event(&dev), IBV_EVENT_PATH_MIG);
    assert_eq!(a.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!((a.wait().status, b.wait().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    assert_eq!(next_event(&dev), IBV_EVENT_DEVICE_FATAL);
    assert_eq!(a.send(2, &[buf.sge(0, 8)]), 0);
    assert_eq!(a.wait().status, IBV_WC_WR_FLUSH_ERR);
    assert_eq!(softib::faults::counts().events, 3);
    let again = softib::faults::EventFault::named("cq-err", 2).unwrap();
    assert_eq!(softib::faults::raise(again), Ok(1));
    assert_eq!(next_event(&dev), IBV_EVENT_CQ_ERR);
    assert!(softib::faults::EventFault::named("cq-error", 2).is_none());
}

#[test]
fn events_are_raised_when_the_plan_says_and_their_queue_pairs_break() {
    with("events", "event=lid-change:200ms,event=path-mig:300ms:2,event=device-fatal:800ms:1");
}

fn calls() {
    let dev = Dev::open();
    let create = || unsafe { (table().create_cq)(dev.ctx, 4, std::ptr::null_mut(), std::ptr::null_mut(), 0) };
    assert!(!create().is_null());
    assert!(create().is_null());
    assert_eq!(last_errno(), libc::ENOMEM);
    assert!(!create().is_null(), "only the second call fails");
    let qp = dev.qp(IBV_QPT_RC, dev.cq(4));
    assert_eq!(qp.to_state(IBV_QPS_RESET), libc::EIO);
    assert_eq!(qp.to_state(IBV_QPS_RESET), 0);
    assert_eq!(softib::faults::counts().calls, 2);
}

#[test]
fn the_control_calls_that_were_named_fail_once() {
    with("calls", "fail=create_cq:2:ENOMEM,fail=modify_qp:1:EIO");
}

/// Each refuses its list once, and names its first request.
fn data_path() {
    let dev = Dev::open();
    let (a, b, buf) = pair(&dev, 7);
    let (mut sge, mut wr) = (buf.sge(0, 8), ibv_recv_wr::default());
    (wr.sg_list, wr.num_sge) = (&raw mut sge, 1);
    let mut bad = std::ptr::null_mut();
    assert_eq!(unsafe { ibv_post_recv(b.qp, &raw mut wr, &raw mut bad) }, libc::EINVAL);
    assert_eq!(bad, &raw mut wr);
    assert_eq!((a.send(1, &[buf.sge(0, 8)]), a.send(2, &[buf.sge(0, 8)])), (libc::ENOMEM, 0));
    assert_eq!(unsafe { ibv_poll_cq(a.cq, 1, &mut ibv_wc::default()) }, -1);
    assert_eq!(a.wait().wr_id, 2);
    assert_eq!(softib::faults::counts().calls, 3);
    let calls = softib::faults::calls();
    assert!(calls.contains(&("post_send", 2)) && calls.contains(&("post_recv", 17)), "{calls:?}");
}

#[test]
fn requests_and_polls_that_were_named_fail_once() {
    with("data path", "fail=post_recv:17:EINVAL,fail=post_send:1:ENOMEM,fail=poll_cq:1:EIO");
}

/// Says a word after each step.
fn steps() {
    let dev = Dev::open();
    let (path, buf) = (Path::default(), dev.buf(64));
    let (a, b, ud) =
        (dev.qp(IBV_QPT_RC, dev.cq(4)), dev.qp(IBV_QPT_RC, dev.cq(4)), dev.qp(IBV_QPT_UD, dev.cq(4)));
    let mut said = 0;
    let mut done = || {
        said += 1;
        say(&[said]);
    };
    ud.ready_ud(QKEY);
    assert_eq!(ud.datagram(0, &[buf.sge(0, 8)], dev.ah(), (ud.num(), QKEY)), 0);
    done();
    for (qp, other) in [(&a, &b), (&b, &a)] {
        qp.init(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
        done();
        qp.rtr(other.num(), &path);
        done();
        qp.rts(&path);
        done();
    }
    assert_eq!(b.recv(1, &[buf.sge(0, 8)]), 0);
    done();
    assert_eq!(a.send(1, &[buf.sge(0, 8)]), 0);
    done();
    for opcode in [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
        assert_eq!(a.rdma(2, opcode, buf.sge(0, 8), buf.addr() + 32, buf.key()), 0);
        done();
    }
    assert_eq!(a.to_state(IBV_QPS_ERR), 0);
    done();
    a.destroy();
    done();
}

/// What had been done when the process killed itself.
const STEPS: [(&str, u64); 19] = [
    ("create_qp:2", 0),
    ("modify_qp:2", 0),
    ("datagram:1", 0),
    ("datagram_posted:1", 0),
    ("to_init:1", 1),
    ("to_rtr:1", 2),
    ("to_rts:1", 3),
    ("to_init:2", 4),
    ("to_rts:2", 6),
    ("recv:1", 7),
    ("recv_posted:1", 7),
    ("send:1", 8),
    ("send_posted:1", 8),
    ("post_send:2", 8),
    ("write:1", 9),
    ("write_posted:1", 9),
    ("read:1", 10),
    ("to_err:1", 11),
    ("destroy_qp:1", 12),
];

#[test]
fn a_process_kills_itself_at_the_step_that_was_named() {
    for (step, done) in STEPS {
        let folder = Folder::new("steps");
        let plan = format!("kill={step}");
        let environment = [("SOFTIB_FAULTS", plan.as_str()), ("SOFTIB_DIR", folder.path())];
        let mut child = Child::start_with("steps", &environment);
        let said = std::iter::from_fn(|| child.hear_or_end()).last();
        assert_eq!(said.map_or(0, |words| words[0]), done, "{step}");
    }
    with("steps", "kill=to_init:3,kill=atomic:1,report");
}

/// The names that docs/softib.md lists are all there are.
#[test]
fn the_documented_calls_are_those_that_can_fail() {
    let text = include_str!("../../docs/softib.md");
    let part =
        text.split("**Calls** that can fail").nth(1).unwrap().split("**Steps** at which").next().unwrap();
    let quoted = part.split('`').skip(1).step_by(2).filter(|word| !word.starts_with("ibv_"));
    let mut plan = String::new();
    for name in quoted {
        plan += &format!("fail={name}:1000000:EIO,");
    }
    let part = text.split("**Steps** at which").nth(1).unwrap().split("\n\n").nth(1).unwrap();
    for name in part.split('`').skip(1).step_by(2).filter(|word| !word.starts_with("ibv_")) {
        plan += &format!("kill={name}:1000000,");
    }
    with("every name", &(plan + "report"));
}

fn every_name() {
    let plan: softib::faults::Plan = std::env::var("SOFTIB_FAULTS").unwrap().parse().unwrap();
    let mut calls: Vec<_> = plan.fail.iter().map(|fault| fault.call).collect();
    calls.dedup();
    assert_eq!(calls.len(), softib::faults::Call::COUNT);
    assert_eq!(plan.kill.len(), softib::faults::Step::COUNT);
}

fn refuses() {
    unsafe {
        let list = (table().get_device_list)(std::ptr::null_mut());
        for _ in 0..2 {
            assert!((table().open_device)(*list).is_null());
            assert_eq!(last_errno(), libc::EINVAL);
        }
    }
}

#[test]
fn a_plan_that_cannot_be_read_keeps_the_device_shut() {
    with("refuses", "drop=20");
}

/// A plan that ends leaves queue pairs as they were without it.
fn off() {
    let dev = Dev::open();
    let (a, b, buf) = pair(&dev, 7);
    assert_eq!(a.send(1, &[buf.sge(0, 8)]), 0);
    softib::faults::set("".parse().unwrap());
    // The delayed one is before it in the queue, and is not waited for any longer than it was to be.
    assert_eq!(a.send(2, &[buf.sge(0, 8)]), 0);
    assert_eq!((a.wait().wr_id, a.wait().wr_id), (1, 2));
    assert_eq!((b.wait().status, b.wait().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    assert_eq!(softib::faults::counts().delayed, 0);
}

#[test]
fn a_plan_can_be_ended() {
    with("off", "delay=20ms");
}
