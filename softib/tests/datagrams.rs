//! Datagrams to another process: they wait for room in its ring, and for nothing else.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::ptr::null_mut;

const QKEY: u32 = 5;
/// More than the ring of a pair of processes holds, in cells and in bytes.
const COUNT: usize = 700;
const LEN: usize = 4096;
const SLOT: usize = LEN + 40;

#[test]
fn child_main() {
    if role().as_deref() == Some("receiver") {
        receiver();
    }
}

/// Posts receives, and later says which of the datagrams arrived whole, and in which order.
fn receiver() {
    let dev = Dev::open();
    let qp = dev.qp_with(IBV_QPT_UD, dev.cq(COUNT as i32), null_mut(), |init| {
        init.cap.max_recv_wr = COUNT as u32;
    });
    let buf = dev.buf(COUNT * SLOT);
    qp.ready_ud(QKEY);
    for slot in 0..COUNT {
        assert_eq!(qp.recv(slot as u64, &[buf.sge(slot * SLOT, SLOT)]), 0);
    }
    say(&[qp.num().into()]);
    let Some(count) = listen() else { return };
    for expected in 0..count[0] {
        let wc = qp.wait();
        assert_eq!(wc.status, IBV_WC_SUCCESS);
        let (start, len) = (wc.wr_id as usize * SLOT + 40, wc.byte_len as usize - 40);
        assert_eq!(buf.data[start..start + len], pattern(expected, len));
    }
    say(&[count[0]]);
}

struct Sender {
    qp: Qp,
    buf: Buf,
    ah: *mut ibv_ah,
    dest: (u32, u32),
}

impl Sender {
    fn new(dev: &Dev, dest: u32) -> Sender {
        let qp = dev.qp_with(IBV_QPT_UD, dev.cq(COUNT as i32), null_mut(), |init| {
            init.cap.max_send_wr = COUNT as u32;
        });
        qp.ready_ud(QKEY);
        Sender { qp, buf: dev.buf(COUNT * LEN), ah: dev.ah(), dest: (dest, QKEY) }
    }

    fn send(&mut self, number: usize, len: usize) {
        self.buf.data[number * LEN..][..len].copy_from_slice(&pattern(number as u64, len));
        let sge = self.buf.sge(number * LEN, len);
        assert_eq!(self.qp.datagram(number as u64, &[sge], self.ah, self.dest), 0);
    }
}

#[test]
fn datagrams_wait_for_room_in_the_ring_of_a_peer_that_is_slow() {
    for len in [64, 1024, LEN] {
        let dev = Dev::open();
        let mut child = Child::start("receiver");
        let mut sender = Sender::new(&dev, child.hear()[0] as u32);
        child.stop();
        for number in 0..COUNT {
            sender.send(number, len);
        }
        child.signal(libc::SIGCONT);
        for number in 0..COUNT as u64 {
            let wc = sender.qp.wait();
            assert_eq!((wc.wr_id, wc.status), (number, IBV_WC_SUCCESS));
        }
        child.tell(&[COUNT as u64]);
        assert_eq!(child.hear(), [COUNT as u64]);
        child.finish();
    }
}

#[test]
fn datagrams_to_a_process_that_stays_stopped_are_lost_in_the_end() {
    let dev = Dev::open();
    let mut child = Child::start("receiver");
    let mut sender = Sender::new(&dev, child.hear()[0] as u32);
    child.stop();
    for number in 0..COUNT {
        sender.send(number, LEN);
    }
    let in_the_ring = std::iter::from_fn(|| poll(sender.qp.cq)).count() as u64;
    assert!(in_the_ring < COUNT as u64);
    for number in in_the_ring..COUNT as u64 {
        assert_eq!(sender.qp.wait().wr_id, number);
    }
    child.signal(libc::SIGCONT);
    child.finish();
}

#[test]
fn datagrams_that_wait_for_a_process_end_when_it_is_killed() {
    let dev = Dev::open();
    let mut child = Child::start("receiver");
    let mut sender = Sender::new(&dev, child.hear()[0] as u32);
    child.stop();
    for number in 0..COUNT {
        sender.send(number, LEN);
    }
    child.kill();
    for number in 0..COUNT {
        assert_eq!(sender.qp.wait().wr_id, number as u64);
    }
}
