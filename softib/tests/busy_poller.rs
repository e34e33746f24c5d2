//! A program that finds a completion with every poll answers what others ask of it all the same.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::time::Instant;

/// The other process; does nothing when the test runner calls it.
#[test]
fn child_main() {
    if role().as_deref() == Some("counter") {
        counter();
    }
}

const ACCESS: u32 = ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC;

fn path() -> Path {
    Path { access: ACCESS, ..Path::default() }
}

/// Adds to a word of a program that writes to memory of ours and polls, and does nothing else.
fn counter() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(16));
    let buf = dev.buf(64);
    say(&[qp.num().into(), buf.addr(), buf.key().into()]);
    let hello = listen().unwrap();
    qp.connect(hello[0] as u32, &path());
    say(&[0]);
    let word = ibv_send_wr_atomic { remote_addr: hello[1], compare_add: 1, swap: 0, rkey: hello[2] as u32 };
    let posted = qp.post(1, IBV_WR_ATOMIC_FETCH_AND_ADD, &[buf.sge(0, 8)], |wr| wr.wr.atomic = word);
    assert_eq!((posted, qp.wait().status), (0, IBV_WC_SUCCESS));
    // Our memory stays until the other has stopped writing to it, and closes our standard input.
    assert_eq!(listen(), None);
}

#[test]
fn a_word_is_counted_while_its_owner_always_has_a_completion_to_poll() {
    for at_once in [1, 4] {
        counts_beside_completions(at_once);
    }
}

fn counts_beside_completions(at_once: usize) {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(16));
    let buf = Buf::new(&dev, 64, ACCESS);
    let mut child = Child::start("counter");
    let hello = child.hear();
    qp.connect(hello[0] as u32, &path());
    // It polls until it works on its rings itself.
    (0..1000).for_each(|_| assert!(poll(qp.cq).is_none()));
    child.tell(&[qp.num().into(), buf.addr(), buf.key().into()]);
    child.hear();
    let began = Instant::now();
    while unsafe { buf.data.as_ptr().cast::<u64>().read_volatile() } == 0 {
        (0..at_once).for_each(|_| {
            assert_eq!(qp.rdma(2, IBV_WR_RDMA_WRITE, buf.sge(8, 8), hello[1] + 8, hello[2] as u32), 0)
        });
        (0..at_once).for_each(|_| assert_eq!(poll(qp.cq).map(|wc| wc.status), Some(IBV_WC_SUCCESS)));
        assert!(began.elapsed() < PATIENCE, "{:?}", softib::stats());
    }
    child.finish();
}
