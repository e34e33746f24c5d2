//! A verbs program's end: one connected RC queue pair, polled.

use rdma_sys::*;
use std::ptr::null_mut;

use super::MAX;

const DEPTH: usize = 512;
/// A signalled send ends so many unsignalled ones, as programs that care for speed do it.
const SIGNAL_EVERY: usize = 64;
/// A stream's receiver says after so many messages that it has them; the sender is at most two such batches ahead.
const BATCH: usize = DEPTH / 4;

/// One end.
pub struct End {
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    rcq: *mut ibv_cq,
    /// Prepared once, as programs that care for speed do it.
    send: Box<(ibv_send_wr, ibv_sge)>,
    receive: Box<(ibv_recv_wr, ibv_sge)>,
    unsent: usize,
}

impl End {
    /// Opens the device; all receives are posted.
    pub fn open() -> End {
        let table = softib::driver_table();
        unsafe {
            let list = (table.get_device_list)(null_mut());
            let context = (table.open_device)(*list);
            assert!(!context.is_null());
            let pd = (table.alloc_pd)(context);
            let cq = (table.create_cq)(context, 2 * DEPTH as i32, null_mut(), null_mut(), 0);
            let rcq = (table.create_cq)(context, 2 * DEPTH as i32, null_mut(), null_mut(), 0);
            let mut init =
                ibv_qp_init_attr { send_cq: cq, recv_cq: rcq, qp_type: IBV_QPT_RC, ..Default::default() };
            (init.cap.max_send_wr, init.cap.max_recv_wr) = (DEPTH as u32, DEPTH as u32);
            let qp = (table.create_qp)(pd, &mut init);
            let buf = vec![0u8; 2 * MAX].leak().as_mut_ptr();
            let mr = (table.reg_mr)(pd, buf.cast(), 2 * MAX, IBV_ACCESS_LOCAL_WRITE as i32);
            let sge = |at| ibv_sge { addr: buf as u64 + at as u64, length: MAX as u32, lkey: (*mr).lkey };
            let mut send = Box::new((ibv_send_wr { wr_id: 2, num_sge: 1, ..Default::default() }, sge(0)));
            (send.0.opcode, send.0.sg_list) = (IBV_WR_SEND, &raw mut send.1);
            let mut receive =
                Box::new((ibv_recv_wr { wr_id: 1, num_sge: 1, ..Default::default() }, sge(MAX)));
            receive.0.sg_list = &raw mut receive.1;
            let mut end = End { qp, cq, rcq, send, receive, unsent: 0 };
            let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, ..Default::default() };
            end.modify(&mut attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
            (0..DEPTH).for_each(|_| end.post_recv());
            end
        }
    }

    /// Its queue pair's number.
    pub fn number(&self) -> u32 {
        unsafe { (*self.qp).qp_num }
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: u32) {
        let mask = (IBV_QP_STATE | mask) as i32;
        assert_eq!(unsafe { (softib::driver_table().modify_qp)(self.qp, attr, mask) }, 0);
    }

    /// Connects to the queue pair of that number.
    pub fn connect(&self, dest: u32) {
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_RTR, path_mtu: IBV_MTU_4096, ..Default::default() };
        (attr.dest_qp_num, attr.min_rnr_timer, attr.max_dest_rd_atomic) = (dest, 1, 1);
        (attr.ah_attr.dlid, attr.ah_attr.port_num) = (1, 1);
        let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        self.modify(&mut attr, path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_RTS, timeout: 14, ..Default::default() };
        (attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic) = (7, 7, 1);
        let retry = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, IBV_QP_SQ_PSN | retry);
    }

    #[inline]
    fn post_recv(&mut self) {
        let mut bad = null_mut();
        assert_eq!(unsafe { ibv_post_recv(self.qp, &mut self.receive.0, &mut bad) }, 0);
    }

    /// Sends; now and then waits for the completion of what it has sent.
    #[inline]
    pub fn post_send(&mut self, len: usize) {
        let (wr, sge) = &mut *self.send;
        sge.length = len as u32;
        self.unsent += 1;
        wr.send_flags = if self.unsent == SIGNAL_EVERY { IBV_SEND_SIGNALED } else { 0 };
        let mut bad = null_mut();
        assert_eq!(unsafe { ibv_post_send(self.qp, wr, &mut bad) }, 0);
        if self.unsent == SIGNAL_EVERY {
            self.unsent = 0;
            self.wait(self.cq);
        }
    }

    #[inline]
    fn wait(&self, cq: *mut ibv_cq) {
        let mut wc = ibv_wc::default();
        // Without a pause, as verbs programs poll: a poll is long enough.
        while unsafe { ibv_poll_cq(cq, 1, &mut wc) } == 0 {}
        assert_eq!(wc.status, IBV_WC_SUCCESS);
    }

    /// Waits for a message, and posts its receive again.
    #[inline]
    pub fn wait_recv(&mut self) {
        self.wait(self.rcq);
        self.post_recv();
    }

    /// Round trips; `first` begins. The answer goes out first, then the receive is posted again: there are many.
    pub fn rounds(&mut self, count: usize, len: usize, first: bool) {
        for _ in 0..count {
            if first {
                self.post_send(len);
            }
            self.wait(self.rcq);
            if !first {
                self.post_send(len);
            }
            self.post_recv();
        }
    }

    /// Messages in one direction, a multiple of a batch at least as large as `count`: their number.
    pub fn stream(&mut self, count: usize, len: usize, sends: bool) -> usize {
        let batches = count.div_ceil(BATCH).max(2);
        for batch in 0..batches {
            if sends && batch >= 2 {
                self.wait_recv();
            }
            (0..BATCH).for_each(|_| if sends { self.post_send(len) } else { self.wait_recv() });
            if !sends {
                self.post_send(0);
            }
        }
        if sends {
            (0..2).for_each(|_| self.wait_recv());
        }
        batches * BATCH
    }
}
