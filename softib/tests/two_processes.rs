//! RC, UD and one-sided operations between two processes.

mod common;
use common::*;
use rdma_sys::*;

/// The other process; does nothing when the test runner calls it.
#[test]
fn child_main() {
    match role().as_deref() {
        Some("echo") => echo(),
        _ => {}
    }
}

const SLOTS: usize = 16;
const LEN: usize = 1 << 20;

/// Sends back every message it receives, until the parent closes.
fn echo() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let buf = dev.buf(SLOTS * LEN);
    say(&[qp.num().into()]);
    let hello = listen().unwrap();
    qp.init(ALL_ACCESS);
    for slot in 0..SLOTS {
        assert_eq!(qp.recv(slot as u64, &[buf.sge(slot * LEN, LEN)]), 0);
    }
    qp.rtr(hello[0] as u32, &Path::default());
    qp.rts(&Path::default());
    say(&[0]);
    for _ in 0..hello[1] {
        let wc = qp.wait();
        assert_eq!(wc.status, IBV_WC_SUCCESS);
        let slot = wc.wr_id as usize;
        assert_eq!(qp.send(0, &[buf.sge(slot * LEN, wc.byte_len as usize)]), 0);
        while qp.wait().opcode != IBV_WC_SEND {}
        assert_eq!(qp.recv(slot as u64, &[buf.sge(slot * LEN, LEN)]), 0);
    }
    listen();
}

#[test]
fn messages_of_all_sizes_come_back_unchanged() {
    let sizes = [0, 1, 8, 40, 41, 64, 104, 105, 128, 1000, 4096, 16384, 16385, 40000, 65536, 300_000, LEN];
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let (mut out, back) = (dev.buf(LEN), dev.buf(LEN));
    let mut child = Child::start("echo");
    let theirs = child.hear()[0] as u32;
    qp.init(ALL_ACCESS);
    child.tell(&[qp.num().into(), 4 * sizes.len() as u64]);
    child.hear();
    qp.rtr(theirs, &Path::default());
    qp.rts(&Path::default());
    for round in 0..4 {
        for size in sizes {
            out.data[..size].copy_from_slice(&pattern(round * 100 + size as u64, size));
            assert_eq!(qp.recv(7, &[back.sge(0, LEN)]), 0);
            assert_eq!(qp.send(8, &[out.sge(0, size)]), 0);
            let (one, two) = (qp.wait(), qp.wait());
            let got = if one.wr_id == 7 { one } else { two };
            assert_eq!((one.status, two.status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
            assert_eq!(got.byte_len as usize, size);
            assert!(back.data[..size] == out.data[..size], "size {size}");
        }
    }
    child.finish();
}
