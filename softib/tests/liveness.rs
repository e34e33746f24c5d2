//! Peers that die, stop or leave: completions in error instead of hangs, and nothing left behind.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn child_main() {
    match role().as_deref() {
        Some("victim") => victim(|| {}),
        Some("victim whose mappings stay") => victim(lend_address_space),
        Some("storm") => storm(),
        Some("opens") => drop_in_on(Dev::open()),
        Some("leaves") => {
            Dev::open();
        }
        Some("crowd") => crowd(),
        other => assert_eq!(other, None, "no such role"),
    }
}

fn drop_in_on(dev: Dev) {
    say(&[1]);
    listen();
    unsafe {
        assert_eq!((table().dealloc_pd)(dev.pd), 0);
        assert_eq!((table().close_device)(dev.ctx), 0);
    }
}

/// A peer that is killed after it has unset the bell and before it wakes the device thread leaves it asleep.
#[test]
fn a_close_ends_though_a_killed_peer_has_unset_the_bell_and_woken_no_thread() {
    use softib::shm::{layout, map::Map, segment};
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(8));
    let (dir, slot) = (segment::directory(), (qp.num() >> layout::QP_BITS) as usize);
    let tables = Map::new(&segment::open_slot(&dir, slot).unwrap(), layout::TABLES_LEN).unwrap();
    let (bell, end) = (tables.u32(layout::BELL), Instant::now() + PATIENCE);
    // The bell is set a little before the thread sleeps; the wake-up is lost only if it does.
    while bell.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < end, "the device thread does not sleep");
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(50));
    bell.store(0, Ordering::SeqCst);
    qp.destroy();
    let (done, ended) = std::sync::mpsc::channel();
    let context = dev.ctx as usize;
    unsafe { assert_eq!((table().destroy_cq)(qp.cq) | (table().dealloc_pd)(dev.pd), 0) };
    std::thread::spawn(move || done.send(unsafe { (table().close_device)(context as *mut ibv_context) }));
    assert_eq!(ended.recv_timeout(Duration::from_secs(3)), Ok(0), "the close hangs");
}

const LEN: usize = 5 << 18;

/// Connects, posts as many receives as told, and does nothing more but `last`.
fn victim(last: impl FnOnce()) {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let buf = dev.buf(LEN);
    say(&[qp.num().into()]);
    let hello = listen().unwrap();
    qp.init(ALL_ACCESS);
    for wr_id in 0..hello[1] {
        assert_eq!(qp.recv(wr_id, &[buf.sge(0, LEN)]), 0);
    }
    qp.rtr(hello[0] as u32, &Path::default());
    qp.rts(&Path::default());
    last();
    say(&[buf.addr(), buf.key().into()]);
    listen();
}

/// Begins a process that has our address space, but no descriptor of ours beyond the standard ones, until its input ends: our mappings outlive us, as
/// they do while another process reads about us in /proc.
fn lend_address_space() {
    static READY: AtomicBool = AtomicBool::new(false);
    // What it shares with us includes `errno`: it makes no call that fails.
    extern "C" fn stay(_: *mut libc::c_void) -> libc::c_int {
        let mut byte = 0u8;
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
        READY.store(true, Ordering::Release);
        while unsafe { libc::read(0, (&raw mut byte).cast(), 1) } > 0 {}
        0
    }
    let stack = Box::leak(Box::new([0u128; 4096]));
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    let made = unsafe { libc::clone(stay, stack.as_mut_ptr_range().end.cast(), flags, std::ptr::null_mut()) };
    assert!(made > 0, "{}", std::io::Error::last_os_error());
    while !READY.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

/// A child in role "victim" and our QP connected to it.
fn with_victim(dev: &Dev, receives: u64) -> (Child, Qp, Vec<u64>) {
    with_victim_in("victim", dev, receives)
}

fn with_victim_in(role: &str, dev: &Dev, receives: u64) -> (Child, Qp, Vec<u64>) {
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let mut child = Child::start(role);
    let theirs = child.hear()[0] as u32;
    qp.init(ALL_ACCESS);
    child.tell(&[qp.num().into(), receives]);
    let memory = child.hear();
    // A long patience: only death may end the wait.
    let path = Path { timeout: 20, retry_cnt: 7, ..Path::default() };
    qp.rtr(theirs, &path);
    qp.rts(&path);
    (child, qp, memory)
}

#[test]
fn a_send_to_a_killed_process_is_given_up_at_once() {
    for role in ["victim", "victim whose mappings stay"] {
        a_send_is_given_up_at_once(role);
    }
}

fn a_send_is_given_up_at_once(role: &str) {
    let dev = Dev::open();
    let (mut child, qp, memory) = with_victim_in(role, &dev, 4);
    let buf = dev.buf(64);
    assert_eq!(qp.send(1, &[buf.sge(0, 8)]), 0);
    assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    child.kill();
    assert_eq!(qp.send(2, &[buf.sge(0, 8)]), 0);
    assert_eq!((qp.wait().status, qp.state()), (IBV_WC_RETRY_EXC_ERR, IBV_QPS_ERR));
    assert_eq!(qp.rdma(3, IBV_WR_RDMA_READ, buf.sge(0, 8), memory[0], memory[1] as u32), 0);
    assert_eq!(qp.wait().status, IBV_WC_WR_FLUSH_ERR);
}

#[test]
fn a_send_to_a_process_that_has_ended_without_closing_is_given_up_at_once() {
    let dev = Dev::open();
    let buf = dev.buf(64);
    for _ in 0..8 {
        let (child, qp, _) = with_victim(&dev, 4);
        assert_eq!(qp.send(1, &[buf.sge(0, 8)]), 0);
        assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
        child.finish();
        assert_eq!(qp.send(2, &[buf.sge(0, 8)]), 0);
        assert_eq!(qp.wait().status, IBV_WC_RETRY_EXC_ERR);
    }
}

#[test]
fn rdma_to_a_killed_process_is_given_up_at_once() {
    let dev = Dev::open();
    let (mut child, qp, memory) = with_victim(&dev, 0);
    let buf = dev.buf(64);
    child.kill();
    assert_eq!(qp.rdma(3, IBV_WR_RDMA_WRITE, buf.sge(0, 8), memory[0], memory[1] as u32), 0);
    assert_eq!(qp.wait().status, IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn sends_that_wait_for_a_receive_end_when_the_peer_is_killed() {
    let dev = Dev::open();
    let (mut child, qp, _) = with_victim(&dev, 0);
    let buf = dev.buf(64);
    for wr_id in 0..3 {
        assert_eq!(qp.send(wr_id, &[buf.sge(0, 8)]), 0);
    }
    assert!(poll(qp.cq).is_none());
    child.kill();
    let statuses: Vec<u32> = (0..3).map(|_| qp.wait().status).collect();
    assert_eq!(statuses, [IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR]);
}

#[test]
fn a_stopped_process_is_waited_for() {
    let dev = Dev::open();
    let (child, qp, _) = with_victim(&dev, 8);
    let buf = dev.buf(LEN);
    child.stop();
    // More than the ring holds: the rest waits.
    for wr_id in 0..4 {
        assert_eq!(qp.send(wr_id, &[buf.sge(0, LEN)]), 0);
    }
    let start = Instant::now();
    while start.elapsed().as_millis() < 300 {
        assert!(poll(qp.cq).is_none());
        std::thread::yield_now();
    }
    child.signal(libc::SIGCONT);
    for wr_id in 0..4 {
        let wc = qp.wait();
        assert_eq!((wc.wr_id, wc.status), (wr_id, IBV_WC_SUCCESS));
    }
    child.finish();
}

#[test]
fn a_stopped_process_that_is_then_killed_is_given_up() {
    let dev = Dev::open();
    let (mut child, qp, _) = with_victim(&dev, 8);
    let buf = dev.buf(LEN);
    child.stop();
    assert_eq!(qp.send(0, &[buf.sge(0, LEN)]), 0);
    assert!(poll(qp.cq).is_none());
    child.kill();
    assert_eq!(qp.wait().status, IBV_WC_RETRY_EXC_ERR);
}

/// Sends to the parent's SRQ as fast as it can, until it is killed or told to stop by an error.
fn storm() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(256));
    let mut buf = dev.buf(40_000);
    say(&[qp.num().into()]);
    let hello = listen().unwrap();
    qp.connect(hello[0] as u32, &Path::default());
    for i in 0u64.. {
        let len = [8, 100, 3000, 40_000][i as usize % 4];
        buf.data[..8].copy_from_slice(&i.to_ne_bytes());
        assert_eq!(qp.send(i, &[buf.sge(0, len)]), 0);
        if qp.wait().status != IBV_WC_SUCCESS {
            return;
        }
    }
}

/// Senders are killed at any moment; the receives of the SRQ survive all of them, and no message is lost or doubled before
/// the end of its sender.
#[test]
fn killed_senders_take_no_receives_along() {
    const RECEIVES: usize = 32;
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let dev = Dev::open();
    let srq = dev.srq(RECEIVES as u32);
    let buf = dev.buf(RECEIVES * 40_000);
    for slot in 0..RECEIVES {
        assert_eq!(srq_recv(srq, slot as u64, buf.sge(slot * 40_000, 40_000)), 0);
    }
    let mut outstanding = RECEIVES;
    for round in 0..10 {
        let qp = dev.qp_with(IBV_QPT_RC, dev.cq(256), srq, |_| ());
        let mut child = Child::start("storm");
        let theirs = child.hear()[0] as u32;
        qp.connect(theirs, &Path::default());
        child.tell(&[qp.num().into()]);
        let until = 1 + (pattern(seed + round, 1)[0] as u64) * 20;
        let mut next = 0u64;
        while next < until {
            let wc = qp.wait();
            assert_eq!(wc.status, IBV_WC_SUCCESS);
            let slot = wc.wr_id as usize;
            assert_eq!(buf.data[slot * 40_000..][..8], next.to_ne_bytes());
            assert_eq!(srq_recv(srq, wc.wr_id, buf.sge(slot * 40_000, 40_000)), 0);
            next += 1;
        }
        child.kill();
        // What was under way arrives or not; then every receive is either posted or completed.
        assert_eq!(qp.to_state(IBV_QPS_ERR), 0);
        while let Some(wc) = poll(qp.cq) {
            outstanding -= usize::from(wc.wr_id < RECEIVES as u64);
            if srq_recv(srq, wc.wr_id, buf.sge(wc.wr_id as usize * 40_000, 40_000)) == 0 {
                outstanding += 1;
            }
        }
        qp.destroy();
    }
    // The last proof: a sender of our own gets through as many messages as there are receives.
    let a = dev.qp(IBV_QPT_RC, dev.cq(256));
    let b = dev.qp_with(IBV_QPT_RC, dev.cq(256), srq, |_| ());
    a.connect(b.num(), &Path::default());
    b.connect(a.num(), &Path::default());
    for i in 0..outstanding as u64 {
        assert_eq!(a.send(i, &[buf.sge(0, 8)]), 0);
        assert_eq!((a.wait().status, b.wait().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    }
}

/// A folder of its own for segments.
fn folder(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn segments(dir: &PathBuf) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
fn segments_of_the_dead_are_swept_and_those_of_the_living_stay() {
    let dir = folder("sweep");
    let env = [("SOFTIB_DIR", dir.to_str().unwrap())];
    let mut children: Vec<Child> = (0..3).map(|_| Child::start_with("opens", &env)).collect();
    for child in &mut children {
        child.hear();
    }
    assert_eq!(segments(&dir), 3);
    children[0].kill();
    children[1].kill();
    assert_eq!(segments(&dir), 3);
    let mut fourth = Child::start_with("opens", &env);
    fourth.hear();
    assert_eq!(segments(&dir), 2);
    fourth.finish();
    assert_eq!(segments(&dir), 1);
    children.remove(2).finish();
    assert_eq!(segments(&dir), 0);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_program_that_ends_without_closing_leaves_nothing() {
    let dir = folder("exit");
    Child::start_with("leaves", &[("SOFTIB_DIR", dir.to_str().unwrap())]).finish();
    assert_eq!(segments(&dir), 0);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_segment_is_for_its_user_only() {
    use std::os::unix::fs::PermissionsExt;
    let dir = folder("mode");
    let mut child = Child::start_with("opens", &[("SOFTIB_DIR", dir.to_str().unwrap())]);
    child.hear();
    let file = std::fs::read_dir(&dir).unwrap().next().unwrap().unwrap();
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    child.finish();
    std::fs::remove_dir_all(dir).unwrap();
}

/// Sends its number once, then leaves.
fn crowd() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_UD, dev.cq(16));
    let (buf, ah) = (dev.buf(64), dev.ah());
    qp.ready_ud(1);
    let hello: u32 = std::env::var("SOFTIB_DEST").unwrap().parse().unwrap();
    assert_eq!(qp.datagram(1, &[buf.sge(0, 8)], ah, (hello, 1)), 0);
    assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
    say(&[qp.num().into()]);
}

/// More senders than hot rings; each ring is found, and free again later.
#[test]
fn many_senders_come_and_go() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_UD, dev.cq(64));
    let buf = dev.buf(4096);
    qp.ready_ud(1);
    for slot in 0..24 {
        assert_eq!(qp.recv(slot, &[buf.sge(slot as usize * 64, 64)]), 0);
    }
    let dest = qp.num().to_string();
    let mut children: Vec<Child> =
        (0..24).map(|_| Child::start_with("crowd", &[("SOFTIB_DEST", &dest)])).collect();
    let mut said: Vec<u64> = children.iter_mut().map(|child| child.hear()[0]).collect();
    let mut seen: Vec<u64> = (0..24).map(|_| u64::from(qp.wait().src_qp)).collect();
    said.sort_unstable();
    seen.sort_unstable();
    assert_eq!(said, seen);
    children.into_iter().for_each(Child::finish);
}

/// What a fork child finds of the device, as an exit code: it may open it for itself, and talk to its parent's queue pair.
fn in_fork_child(parent: &Dev, dest: u32) -> i32 {
    let dev = Dev::open();
    if std::ptr::eq(dev.ctx, parent.ctx) || unsafe { (table().close_device)(parent.ctx) } == 0 {
        return 1;
    }
    let (qp, buf) = (dev.qp(IBV_QPT_UD, dev.cq(4)), dev.buf(8));
    qp.ready_ud(3);
    if qp.datagram(1, &[buf.sge(0, 8)], dev.ah(), (dest, 3)) != 0 || qp.wait().status != IBV_WC_SUCCESS {
        return 2;
    }
    0
}

#[test]
fn a_fork_child_opens_the_device_for_itself() {
    let dev = Dev::open();
    let (qp, buf) = (dev.qp(IBV_QPT_UD, dev.cq(4)), dev.buf(64));
    qp.ready_ud(3);
    assert_eq!(qp.recv(7, &[buf.sge(0, 64)]), 0);
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = in_fork_child(&dev, qp.num());
        // The hooks of the device are to run: the child has a segment of its own.
        unsafe { libc::exit(code) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!((qp.wait().wr_id, buf.data[40]), (7, 0));
}
