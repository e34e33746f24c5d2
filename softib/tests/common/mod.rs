//! A thin, owned face over the raw driver table, for tests: what a C program would write, with fewer lines.
//!
//! Two-process tests run the test binary again: `Child::start("name")` executes the test `child_main` with SOFTIB_ROLE
//! set, and both talk in lines over the child's stdin and stdout.

#![allow(dead_code, missing_debug_implementations, clippy::wrong_self_convention)]

use rdma_sys::*;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr::{null_mut, slice_from_raw_parts_mut};
use std::time::{Duration, Instant};

/// Long enough for a loaded machine; a test that needs it has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn table() -> &'static Table {
    softib::driver_table()
}

pub fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// An open device with a PD; everything made from it is destroyed by the test or leaks with the process.
pub struct Dev {
    pub ctx: *mut ibv_context,
    pub pd: *mut ibv_pd,
}

impl Dev {
    pub fn open() -> Dev {
        unsafe {
            let list = (table().get_device_list)(null_mut());
            let ctx = (table().open_device)(*list);
            assert!(!ctx.is_null(), "open_device: {}", std::io::Error::last_os_error());
            (table().free_device_list)(list);
            Dev { ctx, pd: (table().alloc_pd)(ctx) }
        }
    }

    pub fn cq(&self, depth: i32) -> *mut ibv_cq {
        self.cq_on(depth, null_mut())
    }

    pub fn cq_on(&self, depth: i32, channel: *mut ibv_comp_channel) -> *mut ibv_cq {
        let cq = unsafe { (table().create_cq)(self.ctx, depth, null_mut(), channel, 0) };
        assert!(!cq.is_null());
        cq
    }

    pub fn buf(&self, len: usize) -> Buf {
        Buf::new(self, len, ALL_ACCESS)
    }

    pub fn srq(&self, max_wr: u32) -> *mut ibv_srq {
        let mut init = ibv_srq_init_attr::default();
        (init.attr.max_wr, init.attr.max_sge) = (max_wr, 1);
        let srq = unsafe { (table().create_srq)(self.pd, &mut init) };
        assert!(!srq.is_null());
        srq
    }

    pub fn qp(&self, kind: u32, cq: *mut ibv_cq) -> Qp {
        self.qp_with(kind, cq, null_mut(), |_| ())
    }

    pub fn qp_with(
        &self,
        kind: u32,
        cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        change: impl FnOnce(&mut ibv_qp_init_attr),
    ) -> Qp {
        let mut init =
            ibv_qp_init_attr { send_cq: cq, recv_cq: cq, srq, qp_type: kind, ..Default::default() };
        init.cap = ibv_qp_cap {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        change(&mut init);
        let qp = unsafe { (table().create_qp)(self.pd, &mut init) };
        assert!(!qp.is_null(), "create_qp: {}", std::io::Error::last_os_error());
        Qp { qp, cq: init.send_cq }
    }

    pub fn ah(&self) -> *mut ibv_ah {
        let mut attr = ibv_ah_attr { dlid: 1, port_num: 1, ..Default::default() };
        unsafe { (table().create_ah)(self.pd, &mut attr) }
    }
}

pub const ALL_ACCESS: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

/// Memory of a test: private, or, with TEST_MEMORY=file, a shared mapping of a file.
pub struct Memory {
    bytes: ManuallyDrop<Box<[u8]>>,
    /// Peers map it by this descriptor.
    file: Option<File>,
}

impl Memory {
    pub fn new(len: usize) -> Memory {
        let is_file = std::env::var("TEST_MEMORY").is_ok_and(|memory| memory == "file");
        let file = is_file.then(|| memory_file(len));
        let bytes = match &file {
            Some(file) => unsafe { Box::from_raw(slice_from_raw_parts_mut(mapped(file, len), len)) },
            None => vec![0u8; len].into_boxed_slice(),
        };
        Memory { bytes: ManuallyDrop::new(bytes), file }
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.file {
            Some(_) => assert_eq!(unsafe { libc::munmap(self.as_mut_ptr().cast(), self.len()) }, 0),
            None => unsafe { ManuallyDrop::drop(&mut self.bytes) },
        }
    }
}

/// Registered memory.
pub struct Buf {
    pub data: Memory,
    pub mr: *mut ibv_mr,
}

impl Buf {
    pub fn new(dev: &Dev, len: usize, access: u32) -> Buf {
        let mut data = Memory::new(len);
        let mr = unsafe { (table().reg_mr)(dev.pd, data.as_mut_ptr().cast(), len, access as i32) };
        assert!(!mr.is_null());
        Buf { data, mr }
    }

    pub fn sge(&self, offset: usize, len: usize) -> ibv_sge {
        ibv_sge { addr: self.addr() + offset as u64, length: len as u32, lkey: self.key() }
    }

    pub fn dereg(&mut self) {
        if !self.mr.is_null() {
            assert_eq!(unsafe { (table().dereg_mr)(self.mr) }, 0);
            self.mr = std::ptr::null_mut();
        }
    }

    pub fn addr(&self) -> u64 {
        self.data.as_ptr() as u64
    }

    pub fn key(&self) -> u32 {
        unsafe { (*self.mr).lkey }
    }
}

/// What is still under way fails then, instead of writing to memory that is gone.
impl Drop for Buf {
    fn drop(&mut self) {
        self.dereg();
    }
}

/// A file of so many bytes without a name.
pub fn memory_file(len: usize) -> File {
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"softib-test".as_ptr(), 0)) };
    file.set_len(len as u64).unwrap();
    file
}

/// A shared mapping of so many bytes of a file.
pub fn mapped(file: &File, len: usize) -> *mut u8 {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    let at = unsafe { libc::mmap(null_mut(), len, rights, flags, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    at.cast()
}

/// A seeded sequence of numbers (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// The seed of a test: SOFTIB_SEED, or one that differs from run to run. It is printed.
    pub fn from_environment() -> Random {
        let given = std::env::var("SOFTIB_SEED").ok().and_then(|text| text.parse().ok());
        let clock = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let seed = given.unwrap_or_else(clock);
        println!("SOFTIB_SEED={seed}");
        Random(seed)
    }
}

/// How often a test repeats what it does: the number in `variable`, or `usual`.
pub fn rounds(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// A folder of its own for segments, in memory, that must be empty in the end.
pub struct Folder(std::path::PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::path::PathBuf::from(format!("/dev/shm/softib-test-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub fn files(&self) -> Vec<std::path::PathBuf> {
        std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Bytes that tell messages apart.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(|_| next()).collect()
}

#[derive(Clone, Copy)]
pub struct Qp {
    pub qp: *mut ibv_qp,
    pub cq: *mut ibv_cq,
}

/// What a test may want to be different in a connection.
#[derive(Clone, Copy)]
pub struct Path {
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub access: u32,
    /// READs and atomics at a time, as initiator and as responder.
    pub rd_atomic: (u8, u8),
}

impl Default for Path {
    fn default() -> Path {
        let rd_atomic = (1, 1);
        Path { timeout: 8, retry_cnt: 3, rnr_retry: 7, min_rnr_timer: 1, access: ALL_ACCESS, rd_atomic }
    }
}

impl Qp {
    pub fn num(&self) -> u32 {
        unsafe { (*self.qp).qp_num }
    }

    pub fn modify(&self, attr: &ibv_qp_attr, mask: u32) -> i32 {
        let mut attr = *attr;
        unsafe { (table().modify_qp)(self.qp, &mut attr, mask as i32) }
    }

    pub fn to_state(&self, state: u32) -> i32 {
        self.modify(&ibv_qp_attr { qp_state: state, ..Default::default() }, IBV_QP_STATE)
    }

    pub fn state(&self) -> u32 {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        assert_eq!(unsafe { (table().query_qp)(self.qp, &mut attr, 0, &mut init) }, 0);
        attr.qp_state
    }

    /// The longest inline payload that was granted.
    pub fn max_inline(&self) -> usize {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        assert_eq!(unsafe { (table().query_qp)(self.qp, &mut attr, 0, &mut init) }, 0);
        init.cap.max_inline_data as usize
    }

    pub fn init(&self, access: u32) {
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: 1,
            qp_access_flags: access,
            ..Default::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        assert_eq!(self.modify(&attr, mask), 0);
    }

    pub fn rtr(&self, dest: u32, path: &Path) {
        assert_eq!(self.try_rtr(dest, path), 0);
    }

    /// The same; what `ibv_modify_qp` returns.
    pub fn try_rtr(&self, dest: u32, path: &Path) -> i32 {
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_RTR, path_mtu: IBV_MTU_4096, ..Default::default() };
        (attr.dest_qp_num, attr.max_dest_rd_atomic) = (dest, path.rd_atomic.1);
        attr.min_rnr_timer = path.min_rnr_timer;
        (attr.ah_attr.dlid, attr.ah_attr.port_num) = (1, 1);
        let connected = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        let reliable = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        let mask = if self.is_reliable() { connected | reliable } else { connected };
        self.modify(&attr, mask)
    }

    pub fn rts(&self, path: &Path) {
        assert_eq!(self.try_rts(path), 0);
    }

    pub fn try_rts(&self, path: &Path) -> i32 {
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_RTS, ..Default::default() };
        attr.max_rd_atomic = path.rd_atomic.0;
        (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (path.timeout, path.retry_cnt, path.rnr_retry);
        let reliable = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        let plain = IBV_QP_STATE | IBV_QP_SQ_PSN;
        self.modify(&attr, if self.is_reliable() { plain | reliable } else { plain })
    }

    fn is_reliable(&self) -> bool {
        matches!(unsafe { (*self.qp).qp_type }, IBV_QPT_RC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV)
    }

    /// All the way to RTS, connected to `dest`.
    pub fn connect(&self, dest: u32, path: &Path) {
        self.init(path.access);
        self.rtr(dest, path);
        self.rts(path);
    }

    /// A UD QP all the way to RTS.
    pub fn ready_ud(&self, qkey: u32) {
        let attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, qkey, ..Default::default() };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
        assert_eq!(self.modify(&attr, mask), 0);
        assert_eq!(self.to_state(IBV_QPS_RTR), 0);
        let attr = ibv_qp_attr { qp_state: IBV_QPS_RTS, ..Default::default() };
        assert_eq!(self.modify(&attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
    }

    pub fn recv(&self, wr_id: u64, sges: &[ibv_sge]) -> i32 {
        let mut wr = recv_wr(wr_id, sges);
        let mut bad = null_mut();
        unsafe { ibv_post_recv(self.qp, &mut wr, &mut bad) }
    }

    pub fn send(&self, wr_id: u64, sges: &[ibv_sge]) -> i32 {
        self.post(wr_id, IBV_WR_SEND, sges, |_| ())
    }

    pub fn post(
        &self,
        wr_id: u64,
        opcode: u32,
        sges: &[ibv_sge],
        change: impl FnOnce(&mut ibv_send_wr),
    ) -> i32 {
        let mut wr = ibv_send_wr { wr_id, opcode, send_flags: IBV_SEND_SIGNALED, ..Default::default() };
        (wr.sg_list, wr.num_sge) = (sges.as_ptr().cast_mut(), sges.len() as i32);
        change(&mut wr);
        let mut bad = null_mut();
        unsafe { ibv_post_send(self.qp, &mut wr, &mut bad) }
    }

    pub fn rdma(&self, wr_id: u64, opcode: u32, sge: ibv_sge, remote: u64, rkey: u32) -> i32 {
        self.post(wr_id, opcode, &[sge], |wr| wr.wr.rdma = ibv_send_wr_rdma { remote_addr: remote, rkey })
    }

    /// `rdma_at_once` of the driver table: whether it has been carried out.
    pub fn rdma_at_once(
        &self,
        opcode: u32,
        sge: ibv_sge,
        (remote, rkey): (u64, u32),
        in_burst: bool,
    ) -> bool {
        let carry_out = table().rdma_at_once.expect("the linked-in device has it");
        match unsafe { carry_out(self.qp, opcode, &sge, remote, rkey, in_burst.into()) } {
            0 => true,
            code => {
                assert_eq!(code, libc::EAGAIN);
                false
            }
        }
    }

    pub fn datagram(&self, wr_id: u64, sges: &[ibv_sge], ah: *mut ibv_ah, dest: (u32, u32)) -> i32 {
        let ud = ibv_send_wr_ud { ah, remote_qpn: dest.0, remote_qkey: dest.1 };
        self.post(wr_id, IBV_WR_SEND, sges, |wr| wr.wr.ud = ud)
    }

    /// The next completion of the QP's CQ, which must come.
    pub fn wait(&self) -> ibv_wc {
        wait(self.cq)
    }

    pub fn destroy(self) {
        assert_eq!(unsafe { (table().destroy_qp)(self.qp) }, 0);
    }
}

pub fn recv_wr(wr_id: u64, sges: &[ibv_sge]) -> ibv_recv_wr {
    ibv_recv_wr { wr_id, next: null_mut(), sg_list: sges.as_ptr().cast_mut(), num_sge: sges.len() as i32 }
}

pub fn srq_recv(srq: *mut ibv_srq, wr_id: u64, sge: ibv_sge) -> i32 {
    let sges = [sge];
    let mut wr = recv_wr(wr_id, &sges);
    let mut bad = null_mut();
    unsafe { ibv_post_srq_recv(srq, &mut wr, &mut bad) }
}

pub fn poll(cq: *mut ibv_cq) -> Option<ibv_wc> {
    let mut wc = ibv_wc::default();
    match unsafe { ibv_poll_cq(cq, 1, &mut wc) } {
        0 => None,
        1 => Some(wc),
        error => panic!("poll_cq: {error}"),
    }
}

pub fn wait(cq: *mut ibv_cq) -> ibv_wc {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(wc) = poll(cq) {
            return wc;
        }
        assert!(Instant::now() < end, "no completion came");
        std::thread::yield_now();
    }
}

/// Two connected RC QPs of this process.
pub fn loopback(dev: &Dev, path: &Path) -> (Qp, Qp) {
    let (a, b) = (dev.qp(IBV_QPT_RC, dev.cq(256)), dev.qp(IBV_QPT_RC, dev.cq(256)));
    a.connect(b.num(), path);
    b.connect(a.num(), path);
    (a, b)
}

/// The kind of the next asynchronous event of a device, acknowledged; None: there is none.
pub fn event(dev: &Dev) -> Option<u32> {
    let mut event = ibv_async_event::default();
    unsafe {
        libc::fcntl((*dev.ctx).async_fd, libc::F_SETFL, libc::O_NONBLOCK);
        let got = (table().get_async_event)(dev.ctx, &mut event) == 0;
        got.then(|| {
            (table().ack_async_event)(&mut event);
            event.event_type
        })
    }
}

/// This test program. Found out once: in a mount namespace of its own below another root folder the system names it by a path that
/// leads nowhere.
pub fn program() -> &'static std::path::Path {
    static PROGRAM: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
    PROGRAM.get_or_init(|| std::env::current_exe().unwrap())
}

/// The other process of a test, which ends with it.
pub struct Child {
    pub process: Process,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Child {
    /// Runs this test binary again, in `role`.
    pub fn start(role: &str) -> Child {
        Child::start_with(role, &[])
    }

    pub fn start_with(role: &str, env: &[(&str, &str)]) -> Child {
        Child::spawn(Child::command(program(), role).envs(env.iter().copied()))
    }

    /// The command that runs a role.
    pub fn command(program: &std::path::Path, role: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["--exact", "child_main", "--nocapture", "--test-threads=1", "--quiet"]);
        command.env("SOFTIB_ROLE", role);
        command
    }

    pub fn spawn(command: &mut Command) -> Child {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = process.stdin.take();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        Child { process, stdin, stdout }
    }

    pub fn tell(&mut self, words: &[u64]) {
        writeln!(self.stdin.as_mut().unwrap(), "{}", join(words)).unwrap();
    }

    /// The next line of numbers; the test runner's own output is skipped.
    pub fn hear(&mut self) -> Vec<u64> {
        self.hear_or_end().expect("the child ended early")
    }

    /// The same; None: it has ended.
    pub fn hear_or_end(&mut self) -> Option<Vec<u64>> {
        loop {
            let mut line = String::new();
            if self.stdout.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some(at) = line.find("> ") {
                return Some(split(&line[at + 2..]));
            }
        }
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub fn signal(&self, signal: i32) {
        assert_eq!(unsafe { libc::kill(self.process.id() as i32, signal) }, 0);
    }

    /// Stops the child and waits until every one of its threads has stopped: the signal only asks for it.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.process.id());
        let stopped = || {
            std::fs::read_dir(&tasks).unwrap().all(|task| {
                let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
                stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
            })
        };
        while !stopped() {
            std::thread::yield_now();
        }
    }

    pub fn finish(mut self) {
        drop(self.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }

    /// The same for a child whose standard error is a pipe: what it has written there.
    pub fn finish_and_read(mut self) -> String {
        drop(self.stdin.take());
        let text = errors_of(&mut self.process);
        assert!(self.process.wait().unwrap().success(), "{text}");
        text
    }

    /// How such a child ended, and what it has written to its standard error.
    pub fn last_words(&mut self) -> String {
        let text = errors_of(&mut self.process);
        format!("{}\n{text}", self.process.wait().unwrap())
    }
}

/// What it says at its end is read by nobody, but is not refused either: the pipe is there until it has ended.
impl Drop for Child {
    fn drop(&mut self) {
        drop(self.stdin.take());
        if std::thread::panicking() {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}

fn errors_of(process: &mut Process) -> String {
    let mut text = String::new();
    process.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

fn join(words: &[u64]) -> String {
    words.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
}

fn split(line: &str) -> Vec<u64> {
    line.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// In the child: says numbers to the parent.
pub fn say(words: &[u64]) {
    println!("> {}", join(words));
}

/// In the child: the parent's next line; None when it has closed.
pub fn listen() -> Option<Vec<u64>> {
    let mut line = String::new();
    (std::io::stdin().read_line(&mut line).unwrap() > 0).then(|| split(&line))
}

pub fn role() -> Option<String> {
    std::env::var("SOFTIB_ROLE").ok()
}
