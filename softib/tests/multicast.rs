//! Multicast: a datagram to a group comes to every queue pair that listens to it, in every process, and to no other.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::ptr::null_mut;

const QKEY: u32 = 7;
const ALL: u32 = 0xff_ffff;
const LID: u16 = 0xc123;
const SLOT: usize = 104;
const GRH: usize = 40;

fn group(last: u8) -> [u8; 16] {
    let mut gid = [0; 16];
    (gid[0], gid[1], gid[15]) = (0xff, 0x12, last);
    gid
}

/// A UD queue pair with receives for some datagrams.
struct End {
    qp: Qp,
    buf: Buf,
}

impl End {
    fn new(dev: &Dev) -> End {
        let qp = dev.qp_with(IBV_QPT_UD, dev.cq(64), null_mut(), |init| init.cap.max_recv_wr = 16);
        let buf = dev.buf(17 * SLOT);
        qp.ready_ud(QKEY);
        (0..16).for_each(|slot| assert_eq!(qp.recv(slot as u64, &[buf.sge(slot * SLOT, SLOT)]), 0));
        End { qp, buf }
    }

    fn attach(&self, gid: [u8; 16]) -> i32 {
        unsafe { softib::attach_mcast(self.qp.qp, &ibv_gid { raw: gid }, LID) }
    }

    fn detach(&self, gid: [u8; 16]) -> i32 {
        unsafe { softib::detach_mcast(self.qp.qp, &ibv_gid { raw: gid }, LID) }
    }

    /// Sends one byte, and waits until it is sent.
    fn send(&mut self, byte: u8, ah: *mut ibv_ah, to: u32) {
        self.buf.data[16 * SLOT] = byte;
        assert_eq!(self.qp.datagram(99, &[self.buf.sge(16 * SLOT, 1)], ah, (to, QKEY)), 0);
        while self.next().0 != 99 {}
    }

    /// The next completion: its work request, and of a receive the byte and the GID it was sent to, if it came with one.
    fn next(&mut self) -> (u64, u8, Option<[u8; 16]>) {
        let wc = self.qp.wait();
        assert_eq!(wc.status, IBV_WC_SUCCESS);
        if wc.wr_id == 99 {
            return (99, 0, None);
        }
        assert_eq!(wc.byte_len, GRH as u32 + 1);
        let at = wc.wr_id as usize * SLOT;
        let header = &self.buf.data[at..at + GRH];
        let gid = (wc.wc_flags & IBV_WC_GRH != 0).then(|| header[24..].try_into().unwrap());
        (wc.wr_id, self.buf.data[at + GRH], gid)
    }
}

fn group_handle(dev: &Dev, gid: [u8; 16]) -> *mut ibv_ah {
    let mut attr = ibv_ah_attr { dlid: LID, is_global: 1, port_num: 1, ..Default::default() };
    attr.grh.dgid = ibv_gid { raw: gid };
    let ah = unsafe { (table().create_ah)(dev.pd, &mut attr) };
    assert!(!ah.is_null());
    ah
}

#[test]
fn child_main() {
    match role().as_deref() {
        Some("listener") => listener(),
        Some("takes all groups") => takes_all_groups(),
        other => assert_eq!(other, None, "no such role"),
    }
}

/// Listens to group 1 and says what comes: a byte to the group, then one to itself alone.
fn listener() {
    let dev = Dev::open();
    let mut end = End::new(&dev);
    assert_eq!(end.attach(group(1)), 0);
    say(&[end.qp.num().into()]);
    let (first, last) = (end.next(), end.next());
    say(&[first.1.into(), last.1.into(), u64::from(first.2 == Some(group(1)))]);
    let _until_told = listen();
    assert_eq!(end.detach(group(1)), 0);
}

#[test]
fn a_datagram_to_a_group_comes_to_all_that_listen_and_to_no_other() {
    let dev = Dev::open();
    let mut children = [Child::start("listener"), Child::start("listener")];
    let numbers = children.each_mut().map(|child| child.hear()[0] as u32);
    let mut ends = [End::new(&dev), End::new(&dev), End::new(&dev)];
    assert_eq!((ends[0].attach(group(1)), ends[1].attach(group(2))), (0, 0));
    let (one, plain) = (group_handle(&dev, group(1)), dev.ah());

    let mut sender = End::new(&dev);
    sender.send(11, one, ALL);
    // What comes to one alone is behind it.
    let here = ends.each_ref().map(|end| end.qp.num());
    numbers.into_iter().chain(here).for_each(|number| sender.send(22, plain, number));

    children.iter_mut().for_each(|child| assert_eq!(child.hear(), [11, 22, 1]));
    let first = ends.each_mut().map(|end| end.next());
    assert_eq!(first.map(|(_, byte, _)| byte), [11, 22, 22]);
    assert_eq!(first[0].2, Some(group(1)));
    assert_eq!(ends[0].next().1, 22);
    for mut child in children {
        child.tell(&[1]);
        child.finish();
    }
    assert_eq!((ends[0].detach(group(1)), ends[1].detach(group(2))), (0, 0));
}

#[test]
fn a_sender_that_listens_hears_itself_until_it_leaves() {
    let dev = Dev::open();
    let (mut end, one) = (End::new(&dev), group_handle(&dev, group(3)));
    assert_eq!((end.attach(group(3)), end.attach(group(3))), (0, 0), "once is enough");
    end.buf.data[16 * SLOT] = 5;
    assert_eq!(end.qp.datagram(99, &[end.buf.sge(16 * SLOT, 1)], one, (ALL, QKEY)), 0);
    let both = [end.next(), end.next()];
    assert!(both.iter().any(|(wr_id, ..)| *wr_id == 99) && both.iter().any(|(_, byte, _)| *byte == 5));

    assert_eq!(end.detach(group(3)), 0);
    end.send(6, one, ALL);
    end.send(7, dev.ah(), end.qp.num());
    assert_eq!(end.next().1, 7, "it has left");
}

#[test]
fn only_datagram_queue_pairs_listen_only_to_groups_and_are_not_destroyed_meanwhile() {
    let dev = Dev::open();
    let end = End::new(&dev);
    let connected = End { qp: dev.qp(IBV_QPT_RC, dev.cq(1)), buf: dev.buf(1) };
    assert_eq!(connected.attach(group(1)), libc::EINVAL);
    let mut lonely = group(1);
    lonely[0] = 0xfe;
    assert_eq!(end.attach(lonely), libc::EINVAL);
    let low = unsafe { softib::attach_mcast(end.qp.qp, &ibv_gid { raw: group(1) }, 0xbfff) };
    assert_eq!((low, end.detach(group(1))), (libc::EINVAL, libc::EINVAL));

    assert_eq!(end.attach(group(1)), 0);
    assert_eq!(unsafe { (table().destroy_qp)(end.qp.qp) }, libc::EBUSY);
    assert_eq!(end.detach(group(1)), 0);
    end.qp.destroy();
}

/// A process of its own: no other test's queue pairs are attached to a group in it.
#[test]
fn there_are_only_so_many_groups() {
    Child::start("takes all groups").finish();
}

fn takes_all_groups() {
    let dev = Dev::open();
    let mut attr = ibv_device_attr::default();
    assert_eq!(unsafe { (table().query_device)(dev.ctx, &mut attr) }, 0);
    let (end, most) = (End::new(&dev), attr.max_total_mcast_qp_attach);
    let gid = |number: i32| {
        let mut gid = group(0);
        gid[8..12].copy_from_slice(&number.to_be_bytes());
        gid
    };
    assert!((0..most).all(|number| end.attach(gid(number)) == 0));
    assert_eq!(end.attach(gid(most)), libc::ENOMEM);
    assert_eq!((end.detach(gid(0)), end.attach(gid(most))), (0, 0));
    assert!((1..=most).all(|number| end.detach(gid(number)) == 0));
}
