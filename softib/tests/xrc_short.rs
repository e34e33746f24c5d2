//! Messages over XRC that take the short ways: where they go when what a sender, or a poll, knows by heart has changed.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "common/xrc.rs"]
mod xrc;
use common::*;
use rdma_sys::*;
use std::time::Instant;
use xrc::*;

const LEN: usize = 1000;

/// A send queue pair to two SRQs of this process.
struct World {
    dev: Dev,
    from: Qp,
    to: Qp,
    srqs: [Srq; 2],
    out: Buf,
    into: Buf,
}

impl World {
    fn new() -> World {
        let dev = Dev::open();
        let xrcd = open_xrcd(&dev, -1, libc::O_CREAT).unwrap();
        let srqs = [Srq::new(&dev, xrcd, 64), Srq::new(&dev, xrcd, 64)];
        let (from, to) = pair(&dev, xrcd, &impatient());
        let (out, into) = (dev.buf(LEN), dev.buf(2 * LEN));
        World { dev, from, to, srqs, out, into }
    }

    fn receive(&self, srq: usize) {
        assert_eq!(srq_recv(self.srqs[srq].srq, srq as u64, self.into.sge(srq * LEN, LEN)), 0);
    }

    /// Posts a message of `len` bytes that depend on `seed` to an SRQ.
    fn post(&mut self, srq: usize, seed: u64, len: usize) {
        self.out.data[..len].copy_from_slice(&pattern(seed, len));
        post(self.from, IBV_WR_SEND, self.srqs[srq].num, self.out.sge(0, len), |wr| {
            wr.send_flags = IBV_SEND_SIGNALED;
        });
    }

    /// Sends one, which arrives.
    fn transfer(&mut self, srq: usize, seed: u64, len: usize) {
        self.receive(srq);
        self.post(srq, seed, len);
        assert_eq!(self.from.wait().status, IBV_WC_SUCCESS);
        let wc = wait(self.srqs[srq].cq);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len as usize), (srq as u64, IBV_WC_SUCCESS, len));
        assert_eq!((wc.qp_num, wc.src_qp), (self.to.num(), self.from.num()));
        assert_eq!(self.into.data[srq * LEN..][..len], pattern(seed, len), "{srq}, {len} bytes");
    }

    /// Enough polls for a program to become the owner of progress, and a message to each queue.
    fn settle(&mut self) {
        (0..600).for_each(|_| assert!(poll(self.srqs[0].cq).is_none()));
        (0..2).for_each(|srq| self.transfer(srq, 1, 8));
    }
}

#[test]
fn messages_of_every_length_reach_the_queue_that_they_name() {
    let mut world = World::new();
    world.settle();
    for (seed, len) in [0, 1, 8, 64, 200, 479, 480, 481, 999, LEN].into_iter().enumerate() {
        for srq in [0, 1, 1, 0] {
            world.transfer(srq, seed as u64, len);
        }
    }
}

#[test]
fn a_long_message_is_read_where_it_lies() {
    let mut world = World::new();
    let enable = table().place_messages.expect("the linked-in device has it");
    let word = unsafe { enable(world.srqs[0].cq, 500).as_ref() }.expect("a queue of ours");
    world.settle();
    let begin = Instant::now();
    for seed in 0.. {
        (0..600).for_each(|_| assert!(poll(world.srqs[0].cq).is_none()));
        world.into.data.fill(0);
        world.receive(0);
        world.post(0, seed, LEN);
        assert_eq!(world.from.wait().status, IBV_WC_SUCCESS);
        let wc = wait(world.srqs[0].cq);
        assert_eq!((wc.status, wc.byte_len as usize, wc.qp_num), (IBV_WC_SUCCESS, LEN, world.to.num()));
        let at = word.at();
        if wc.wc_flags & IBV_WC_PLACED == 0 {
            // One with which more of the ring comes to be used is copied.
            assert!(begin.elapsed() < PATIENCE, "none stays");
            assert!(at.is_null() && world.into.data[..LEN] == pattern(seed, LEN));
            continue;
        }
        let there = unsafe { std::slice::from_raw_parts(at, LEN) };
        assert!(there == pattern(seed, LEN) && world.into.data.iter().all(|byte| *byte == 0));
        assert!(word.release(at));
        return;
    }
}

#[test]
fn an_srq_that_is_gone_takes_nothing_and_the_other_one_goes_on() {
    let mut world = World::new();
    world.settle();
    let gone = world.srqs[0];
    gone.destroy();
    world.transfer(1, 3, LEN);
    post(world.from, IBV_WR_SEND, gone.num, world.out.sge(0, 8), |wr| wr.send_flags = IBV_SEND_SIGNALED);
    assert_eq!(world.from.wait().status, IBV_WC_REM_INV_REQ_ERR);
}

#[test]
fn a_receive_queue_pair_that_ends_takes_no_more() {
    let mut world = World::new();
    world.settle();
    world.receive(0);
    assert_eq!(world.to.to_state(IBV_QPS_ERR), 0);
    world.post(0, 4, 8);
    assert_eq!(world.from.wait().status, IBV_WC_RETRY_EXC_ERR, "it does not answer");
    (0..1000).for_each(|_| assert!(poll(world.srqs[0].cq).is_none()));
    assert_eq!(event(&world.dev), Some(IBV_EVENT_COMM_EST));
}
