//! Completion events: which completions raise one.
//!
//! Programs fetch an event and then arm and poll, or poll and arm. Between two such steps further completions come; the tests place
//! them there. The completions are those of RDMA WRITEs within the process, which are done when the post returns.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::ptr::null_mut;

/// A queue with a channel, and a queue pair that completes to it.
struct Setup {
    dev: Dev,
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
    qp: Qp,
    buf: Buf,
}

fn setup(depth: i32) -> Setup {
    let dev = Dev::open();
    let channel = unsafe { (table().create_comp_channel)(dev.ctx) };
    unsafe { libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK) };
    let cq = dev.cq_on(depth, channel);
    let qp = connected(&dev, cq);
    let buf = dev.buf(16);
    Setup { dev, channel, cq, qp, buf }
}

fn connected(dev: &Dev, cq: *mut ibv_cq) -> Qp {
    let (qp, peer) = (dev.qp(IBV_QPT_RC, cq), dev.qp(IBV_QPT_RC, dev.cq(1)));
    let path = Path { access: ALL_ACCESS, ..Path::default() };
    qp.connect(peer.num(), &path);
    peer.connect(qp.num(), &path);
    qp
}

impl Setup {
    /// So many completions are added.
    fn complete(&self, count: usize) {
        (0..count).for_each(|_| self.complete_on(&self.qp));
    }

    fn complete_on(&self, qp: &Qp) {
        let (from, to) = (self.buf.sge(0, 8), self.buf.addr() + 8);
        assert_eq!(qp.rdma(1, IBV_WR_RDMA_WRITE, from, to, self.buf.key()), 0);
    }

    fn arm(&self) {
        assert_eq!(unsafe { ibv_req_notify_cq(self.cq, 0) }, 0);
    }

    fn arm_for_solicited(&self) {
        assert_eq!(unsafe { ibv_req_notify_cq(self.cq, 1) }, 0);
    }

    /// Fetches and acknowledges an event, if there is one.
    fn event(&self) -> bool {
        let (mut cq, mut context) = (null_mut(), null_mut());
        let got = unsafe { (table().get_cq_event)(self.channel, &mut cq, &mut context) } == 0;
        if got {
            assert_eq!(cq, self.cq);
            unsafe { (table().ack_cq_events)(cq, 1) };
        }
        got
    }

    /// Polls once for so many; how many there were.
    fn poll(&self, room: usize) -> usize {
        let mut found = vec![ibv_wc::default(); room];
        let got = unsafe { ibv_poll_cq(self.cq, room as i32, found.as_mut_ptr()) };
        let got = usize::try_from(got).unwrap();
        assert!(found[..got].iter().all(|wc| wc.status == IBV_WC_SUCCESS));
        got
    }
}

/// Open MPI's udcm polls and arms after an event, and does not poll again.
#[test]
fn a_completion_that_comes_between_polling_and_arming_fires_the_queue() {
    let s = setup(16);
    s.arm();
    s.complete(1);
    for _ in 0..100 {
        assert!(s.event());
        assert_eq!(s.poll(4), 1);
        s.complete(1);
        s.arm();
    }
    assert!(s.event());
    assert!(!s.event(), "one completion, one event");
}

/// perftest's latency tests arm and poll after an event, and take each event for one completion.
#[test]
fn the_completion_that_raised_an_event_raises_no_second_one() {
    let s = setup(16);
    s.arm();
    for _ in 0..100 {
        s.complete(1);
        assert!(s.event());
        s.arm();
        assert!(!s.event());
        assert_eq!(s.poll(1), 1);
    }
}

/// perftest's bandwidth tests in both directions poll once for an event, for fewer completions than may have come.
#[test]
fn a_program_that_polls_once_for_each_event_gets_every_completion() {
    for room in 1..8 {
        let s = setup(64);
        s.arm();
        s.complete(50);
        let mut got = 0;
        while s.event() {
            s.arm();
            got += s.poll(room);
        }
        assert_eq!(got, 50, "{room} for an event");
        s.complete(1);
        assert!(s.event(), "it is armed");
    }
}

#[test]
fn an_empty_queue_does_not_fire_when_it_is_armed() {
    let s = setup(4);
    s.arm();
    assert!(!s.event());
    for _ in 0..20 {
        s.complete(3);
        assert!(s.event());
        assert_eq!(s.poll(4), 3);
        s.arm();
        assert!(!s.event());
    }
}

#[test]
fn what_waits_when_a_queue_is_armed_for_solicited_ones_does_not_fire_it() {
    let s = setup(16);
    s.complete(2);
    s.arm_for_solicited();
    s.complete(1);
    assert!(!s.event());
    s.arm();
    assert!(s.event());
    assert!(!s.event(), "it is not armed any more");
}

#[test]
fn a_resized_queue_knows_what_its_events_told() {
    let s = setup(8);
    s.arm();
    s.complete(6);
    assert!(s.event());
    assert_eq!(s.poll(5), 5);
    s.complete(1);
    assert_eq!(unsafe { (table().resize_cq)(s.cq, 3) }, 0);
    s.arm();
    assert!(s.event(), "two wait, and neither raised the event");
    s.arm();
    assert!(s.event());
    assert_eq!(unsafe { (table().resize_cq)(s.cq, 100) }, 0);
    s.arm();
    assert!(!s.event());
    assert_eq!(s.poll(9), 2);
}

/// Its completions go with a queue pair.
#[test]
fn a_queue_pair_that_goes_leaves_the_queue_with_what_it_told_of_others() {
    let s = setup(16);
    let other = connected(&s.dev, s.cq);
    s.arm();
    s.complete_on(&other);
    assert!(s.event());
    s.complete(1);
    s.arm();
    assert!(s.event());
    other.destroy();
    s.arm();
    assert!(!s.event(), "an event has told of the one that is left");
    s.complete(1);
    assert!(s.event());
    assert_eq!(s.poll(9), 2);
}

/// A queue of a depth that is no power of two keeps to it, wherever in the ring its completions lie.
#[test]
fn a_queue_holds_as_many_completions_as_its_depth_and_no_more() {
    let s = setup(5);
    for _ in 0..30 {
        s.complete(5);
        assert_eq!(s.poll(3), 3);
        s.complete(3);
        assert_eq!(s.poll(9), 5);
    }
    s.complete(6);
    assert_eq!(s.poll(9), 5);
    let mut wc = ibv_wc::default();
    assert!(unsafe { ibv_poll_cq(s.cq, 1, &mut wc) } < 0, "the sixth is lost");
}
