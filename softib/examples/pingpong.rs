//! Half round trip at the verbs level between two pinned, polling processes, beside a raw shared-memory ping-pong.
//!
//! `cargo run --release -p softib --example pingpong [-- MESSAGES]`; prints a table and the doorbells that were rung.

// A bench: it calls the C functions with what it has just made, and stops when something fails.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

use rdma_sys::*;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const MAX: usize = 1 << 20;
const DEPTH: usize = 512;
const SIZES: [usize; 12] = [0, 8, 16, 32, 40, 64, 128, 1024, 4096, 16384, 65536, MAX];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "--child") {
        return child(&args[1]);
    }
    if args.first().is_some_and(|arg| arg == "--self") {
        return to_self();
    }
    let many = args.first().and_then(|arg| arg.parse().ok()).unwrap_or(1_000_000);
    parent(many);
}

/// The cost of the software alone: one thread sends to itself.
fn to_self() {
    pin(0);
    let mut end = End::open();
    end.connect(unsafe { (*end.qp).qp_num });
    for len in [8, 64, 4096] {
        let once = |count| {
            for _ in 0..count {
                end.post_send(len);
                end.wait_recv();
            }
        };
        println!("{len:>8} bytes to self: {:.3} us a message", 2.0 * best(len, once));
    }
}

struct End {
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    rcq: *mut ibv_cq,
    buf: *mut u8,
    lkey: u32,
    unsent: usize,
}

impl End {
    fn open() -> End {
        let table = softib::driver_table();
        unsafe {
            let list = (table.get_device_list)(null_mut());
            let ctx = (table.open_device)(*list);
            assert!(!ctx.is_null());
            let pd = (table.alloc_pd)(ctx);
            let cq = (table.create_cq)(ctx, 2 * DEPTH as i32, null_mut(), null_mut(), 0);
            let rcq = (table.create_cq)(ctx, 2 * DEPTH as i32, null_mut(), null_mut(), 0);
            let mut init =
                ibv_qp_init_attr { send_cq: cq, recv_cq: rcq, qp_type: IBV_QPT_RC, ..Default::default() };
            init.cap.max_send_wr = DEPTH as u32;
            init.cap.max_recv_wr = DEPTH as u32;
            let qp = (table.create_qp)(pd, &mut init);
            let buf = vec![0u8; 2 * MAX].leak().as_mut_ptr();
            let mr = (table.reg_mr)(pd, buf.cast(), 2 * MAX, IBV_ACCESS_LOCAL_WRITE as i32);
            let end = End { qp, cq, rcq, buf, lkey: (*mr).lkey, unsent: 0 };
            let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, ..Default::default() };
            end.modify(&mut attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
            for _ in 0..DEPTH {
                end.post_recv();
            }
            end
        }
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: u32) {
        assert_eq!(unsafe { (softib::driver_table().modify_qp)(self.qp, attr, mask as i32) }, 0);
    }

    fn connect(&self, dest: u32) {
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_RTR, path_mtu: IBV_MTU_4096, ..Default::default() };
        (attr.dest_qp_num, attr.min_rnr_timer, attr.max_dest_rd_atomic) = (dest, 1, 1);
        (attr.ah_attr.dlid, attr.ah_attr.port_num) = (1, 1);
        let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        self.modify(&mut attr, IBV_QP_STATE | path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..Default::default()
        };
        attr.max_rd_atomic = 1;
        let retry = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, IBV_QP_STATE | IBV_QP_SQ_PSN | retry);
    }

    #[inline]
    fn post_recv(&self) {
        let mut sge = ibv_sge { addr: self.buf as u64 + MAX as u64, length: MAX as u32, lkey: self.lkey };
        let mut wr = ibv_recv_wr { wr_id: 1, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
        let mut bad = null_mut();
        assert_eq!(unsafe { ibv_post_recv(self.qp, &mut wr, &mut bad) }, 0);
    }

    /// Sends; every 64th is signalled, as programs that care for speed do it.
    #[inline]
    fn post_send(&mut self, len: usize) {
        let mut sge = ibv_sge { addr: self.buf as u64, length: len as u32, lkey: self.lkey };
        let mut wr = ibv_send_wr {
            wr_id: 2,
            opcode: IBV_WR_SEND,
            sg_list: &mut sge,
            num_sge: 1,
            ..Default::default()
        };
        self.unsent += 1;
        if self.unsent == 64 {
            wr.send_flags = IBV_SEND_SIGNALED;
        }
        let mut bad = null_mut();
        assert_eq!(unsafe { ibv_post_send(self.qp, &mut wr, &mut bad) }, 0);
        if self.unsent == 64 {
            self.unsent = 0;
            self.wait(self.cq);
        }
    }

    #[inline]
    fn wait(&self, cq: *mut ibv_cq) {
        let mut wc = ibv_wc::default();
        loop {
            match unsafe { ibv_poll_cq(cq, 1, &mut wc) } {
                0 => std::hint::spin_loop(),
                _ => break assert_eq!(wc.status, IBV_WC_SUCCESS),
            }
        }
    }

    #[inline]
    fn wait_recv(&self) {
        self.wait(self.rcq);
        self.post_recv();
    }

    fn rounds(&mut self, count: usize, len: usize, first: bool) {
        for _ in 0..count {
            if first {
                self.post_send(len);
            }
            self.wait_recv();
            if !first {
                self.post_send(len);
            }
        }
    }
}

fn pin(cpu: usize) {
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

fn rounds_for(len: usize) -> usize {
    (1_000_000 / (len + 1000)).clamp(4, 1000)
}

/// Windows per size; the best one counts. They are short, so that a busy machine leaves some undisturbed.
const REPEATS: usize = 100;

fn child(dir: &str) {
    // SAFETY: no pointers; the child must not poll on for ever when the parent is killed.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    pin(1);
    let mut end = End::open();
    println!("{}", unsafe { (*end.qp).qp_num });
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let words: Vec<usize> = line.split_whitespace().map(|w| w.parse().unwrap()).collect();
    end.connect(words[0] as u32);
    println!("ready");
    let mut raw = Raw::open(dir, false);
    for len in SIZES {
        for _ in 0..REPEATS {
            end.rounds(rounds_for(len), len, false);
            raw.rounds(rounds_for(len), len);
        }
    }
    end.rounds(words[1], 8, false);
    std::io::stdin().read_line(&mut line).unwrap();
}

/// The raw ping-pong: two flags in shared memory, each in front of its own payload.
struct Raw {
    base: *mut u8,
    local: Vec<u8>,
    first: bool,
    turn: u64,
}

impl Raw {
    const SIDE: usize = MAX + 4096;

    fn open(dir: &str, first: bool) -> Raw {
        let path = std::path::Path::new(dir).join("raw");
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path).unwrap();
        file.set_len(2 * Raw::SIDE as u64).unwrap();
        let (prot, fd) = (libc::PROT_READ | libc::PROT_WRITE, std::os::fd::AsRawFd::as_raw_fd(&file));
        let base = unsafe { libc::mmap(null_mut(), 2 * Raw::SIDE, prot, libc::MAP_SHARED, fd, 0) };
        assert!(base != libc::MAP_FAILED);
        Raw { base: base.cast(), local: vec![1; MAX], first, turn: 0 }
    }

    fn flag(&self, side: usize) -> &AtomicU64 {
        unsafe { &*self.base.add(side * Raw::SIDE).cast::<AtomicU64>() }
    }

    #[inline]
    fn put(&self, len: usize) {
        let side = usize::from(!self.first);
        unsafe {
            std::ptr::copy_nonoverlapping(self.local.as_ptr(), self.base.add(side * Raw::SIDE + 64), len)
        };
        self.flag(side).store(self.turn, Ordering::Release);
    }

    #[inline]
    fn take(&mut self, len: usize) {
        let side = usize::from(self.first);
        while self.flag(side).load(Ordering::Acquire) != self.turn {
            std::hint::spin_loop();
        }
        let from = unsafe { self.base.add(side * Raw::SIDE + 64) };
        unsafe { std::ptr::copy_nonoverlapping(from, self.local.as_mut_ptr(), len) };
    }

    fn rounds(&mut self, count: usize, len: usize) {
        for _ in 0..count {
            self.turn += 1;
            if self.first {
                self.put(len);
            }
            self.take(len);
            if !self.first {
                self.put(len);
            }
        }
    }
}

/// Best windows of both, taken in turns so that both see the same machine: softib, raw (half round trips in us).
fn compare(end: &mut End, raw: &mut Raw, len: usize) -> (f64, f64) {
    let (mut verbs, mut flags) = (f64::MAX, f64::MAX);
    for _ in 0..REPEATS {
        verbs = verbs.min(window(len, |count| end.rounds(count, len, true)));
        flags = flags.min(window(len, |count| raw.rounds(count, len)));
    }
    (verbs, flags)
}

fn window(len: usize, run: impl FnOnce(usize)) -> f64 {
    let (count, start) = (rounds_for(len), Instant::now());
    run(count);
    start.elapsed().as_secs_f64() * 1e6 / count as f64 / 2.0
}

/// Best of the windows of one thing alone, in microseconds.
fn best(len: usize, mut run: impl FnMut(usize)) -> f64 {
    (0..REPEATS).map(|_| window(len, &mut run)).fold(f64::MAX, f64::min)
}

fn parent(many: usize) {
    let dir = std::env::temp_dir().join(format!("softib-pingpong-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("--child").arg(&dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    pin(0);
    let (mut to, mut from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    let mut end = End::open();
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    writeln!(to, "{} {many}", unsafe { (*end.qp).qp_num }).unwrap();
    end.connect(line.trim().parse().unwrap());
    from.read_line(&mut line).unwrap();
    let mut raw = Raw::open(dir.to_str().unwrap(), true);
    println!("{:>8} {:>12} {:>12} {:>7} {:>10}", "bytes", "softib us", "raw shm us", "ratio", "MB/s");
    for len in SIZES {
        let (verbs, raw) = compare(&mut end, &mut raw, len);
        println!("{len:>8} {verbs:>12.3} {raw:>12.3} {:>7.2} {:>10.0}", verbs / raw, len as f64 / verbs);
    }
    let before = softib::stats();
    end.rounds(many, 8, true);
    let after = softib::stats();
    println!("{many} round trips of 8 bytes: {} doorbells from here", after.doorbells - before.doorbells);
    println!("{after:?}");
    drop(to);
    child.wait().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}
