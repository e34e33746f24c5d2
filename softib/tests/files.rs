//! Memory that a program has as a shared mapping of a file: who writes to it often, reads it, or changes its words maps it, too, and so moves the data
//! without a system call; nothing else about it changes.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::null_mut;
use std::slice::from_raw_parts;
use std::time::{Duration, Instant};

/// The other process; does nothing when the test runner calls it. Tests that count what this process did are processes of their own as well.
#[test]
fn child_main() {
    match role().as_deref() {
        Some("owner") => owner(),
        Some("without process_vm") => without_process_vm(),
        Some("forbidden") => forbidden(),
        Some("cut short") => cut_short(),
        Some("their region") => their_region(),
        other => assert_eq!(other, None, "no such role"),
    }
}

/// Bytes of the files, of which a region has those from `SKIPPED` on.
const FILE: usize = 64 << 10;
const SKIPPED: usize = 4096 + 64;
const LEN: usize = 40 << 10;
const WITH_ATOMICS: u32 = ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC;

/// What the owner's memory is.
const KINDS: [&str; 5] = ["named", "removed", "memfd", "private", "anonymous"];

/// A mapping of a file of this kind, and the file.
fn mapping(kind: &str) -> (*mut u8, Option<File>) {
    let file = match kind {
        "anonymous" => None,
        "memfd" => Some(unsafe { File::from_raw_fd(libc::memfd_create(c"softib-test".as_ptr(), 0)) }),
        _ => Some(file_in_folder(kind != "named")),
    };
    file.iter().for_each(|file| file.set_len(FILE as u64).unwrap());
    let flags = match kind {
        "private" => libc::MAP_PRIVATE,
        "anonymous" => libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        _ => libc::MAP_SHARED,
    };
    let fd = file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
    let at = unsafe { libc::mmap(null_mut(), FILE, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
    assert_ne!(at, libc::MAP_FAILED, "{kind}: {}", std::io::Error::last_os_error());
    (at.cast(), file)
}

/// A new file, removed at once or by the test's end.
fn file_in_folder(removed: bool) -> File {
    let path = std::path::PathBuf::from(std::env::var("TEST_FILE").unwrap());
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    if removed {
        std::fs::remove_file(&path).unwrap();
    }
    file
}

/// Registers memory, and does as it is told: [0, offset, len, seed] compares it, [1] deregisters it, [2] is the end, [3, len] cuts the file, [4, offset]
/// tells a word, [5] registers other memory under the same key.
fn owner() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(64));
    let (mut at, file) = mapping(&std::env::var("TEST_KIND").unwrap());
    at = unsafe { at.add(SKIPPED) };
    let access = std::env::var("TEST_ACCESS").unwrap().parse().unwrap();
    let mr = unsafe { (table().reg_mr)(dev.pd, at.cast(), LEN, access) };
    assert!(!mr.is_null(), "{}", std::io::Error::last_os_error());
    let (dev, inode) = file.as_ref().map_or((0, 0), |file| {
        let metadata = file.metadata().unwrap();
        (metadata.dev(), metadata.ino())
    });
    qp.init(WITH_ATOMICS);
    say(&[at as u64, unsafe { (*mr).rkey }.into(), qp.num().into(), dev, inode]);
    qp.rtr(listen().unwrap()[0] as u32, &Path::default());
    qp.rts(&Path::default());
    say(&[]);
    while let Some(words) = listen() {
        let mut answer = Vec::new();
        match words[..] {
            [0, from, len, seed] => {
                let bytes = unsafe { from_raw_parts(at.add(from as usize), len as usize) };
                assert_eq!(bytes, pattern(seed, len as usize), "{len} bytes at {from}");
            }
            [1] => assert_eq!(unsafe { (table().dereg_mr)(mr) }, 0),
            [3, len] => file.as_ref().unwrap().set_len(len).unwrap(),
            [4, from] => answer.push(unsafe { at.add(from as usize).cast::<u64>().read_volatile() }),
            [5] => {
                at = Vec::leak(vec![0u8; LEN]).as_mut_ptr();
                let flags = IBV_REREG_MR_CHANGE_TRANSLATION.cast_signed();
                assert_eq!(unsafe { softib::rereg_mr(mr, flags, null_mut(), at.cast(), LEN, 0) }, 0);
                answer.push(at as u64);
            }
            _ => break,
        }
        say(&answer);
    }
}

/// The end of the test's file.
struct Removed(String);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// One that works on the memory of an owner.
struct Initiator {
    buf: Buf,
    qp: Qp,
    child: Child,
    addr: u64,
    rkey: u32,
    /// Device and inode of its file.
    id: (u64, u64),
    _file: Removed,
}

impl Initiator {
    fn new(kind: &str, access: u32) -> Initiator {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = format!("/dev/shm/softib-test-file-{}-{number}", std::process::id());
        let dev = Dev::open();
        let (qp, buf) = (dev.qp(IBV_QPT_RC, dev.cq(64)), dev.buf(LEN));
        let access = access.to_string();
        let env = [("TEST_KIND", kind), ("TEST_ACCESS", &access), ("TEST_FILE", &path)];
        let mut child = Child::start_with("owner", &env);
        let hello = child.hear();
        qp.connect(hello[2] as u32, &Path::default());
        child.tell(&[qp.num().into()]);
        child.hear();
        let (addr, rkey, id) = (hello[0], hello[1] as u32, (hello[3], hello[4]));
        Initiator { buf, qp, child, addr, rkey, id, _file: Removed(path) }
    }

    fn asks(&mut self, words: &[u64]) -> Vec<u64> {
        self.child.tell(words);
        self.child.hear()
    }

    /// Carries a request for `len` bytes at `at` out; its status.
    fn does(&self, opcode: u32, at: usize, len: usize) -> u32 {
        let posted = self.qp.rdma(1, opcode, self.buf.sge(0, len), self.addr + at as u64, self.rkey);
        assert_eq!(posted, 0);
        self.qp.wait().status
    }

    fn writes(&mut self, at: usize, len: usize, seed: u64) -> u32 {
        self.buf.data[..len].copy_from_slice(&pattern(seed, len));
        self.does(IBV_WR_RDMA_WRITE, at, len)
    }

    /// The old value of a word that is changed.
    fn changes(&self, opcode: u32, at: usize, compare_add: u64, swap: u64) -> u64 {
        let posted = self.qp.post(1, opcode, &[self.buf.sge(8, 8)], |wr| {
            let (remote_addr, rkey) = (self.addr + at as u64, self.rkey);
            wr.wr.atomic = ibv_send_wr_atomic { remote_addr, compare_add, swap, rkey };
        });
        assert_eq!((posted, self.qp.wait().status), (0, IBV_WC_SUCCESS));
        u64::from_ne_bytes(self.buf.data[8..16].try_into().unwrap())
    }

    /// Uses the memory until it has been looked at.
    fn uses_often(&self, opcode: u32) {
        for _ in 0..300 {
            assert_eq!(self.does(opcode, 0, 8), IBV_WC_SUCCESS);
        }
    }

    /// Uses the memory until writes to it are copied as they are posted: the lock of the device is this thread's by then.
    fn warms_up(&mut self) {
        (0..2000).for_each(|_| assert_eq!(self.writes(0, 8, 1), IBV_WC_SUCCESS));
    }

    /// Whether the owner's file is mapped here.
    fn has_mapped(&self) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let id = format!(" {:02x}:{:02x} {} ", libc::major(self.id.0), libc::minor(self.id.0), self.id.1);
        maps.lines().any(|line| line.contains(&id))
    }

    fn ends(mut self) {
        self.child.tell(&[2]);
        self.child.finish();
    }
}

/// What the test of all kinds does, once the memory has been used often.
fn everything(initiator: &mut Initiator, kind: &str) {
    for (round, len) in (0..120).chain([511, 4096, 10_000]).enumerate() {
        let (seed, at) = (round as u64 + 1, 7 * round % 1000);
        assert_eq!(initiator.writes(at, len, seed), IBV_WC_SUCCESS, "{kind}, {len} bytes");
        initiator.asks(&[0, at as u64, len as u64, seed]);
        initiator.buf.data[..len].fill(0);
        assert_eq!(initiator.does(IBV_WR_RDMA_READ, at, len), IBV_WC_SUCCESS);
        assert_eq!(initiator.buf.data[..len], pattern(seed, len), "{kind}, {len} bytes");
    }
    // To its last byte, and no further.
    assert_eq!(initiator.writes(LEN - 9, 9, 77), IBV_WC_SUCCESS);
    initiator.asks(&[0, LEN as u64 - 9, 9, 77]);
    let before = initiator.asks(&[4, 64])[0];
    assert_eq!(initiator.changes(IBV_WR_ATOMIC_FETCH_AND_ADD, 64, 5, 0), before);
    assert_eq!(initiator.changes(IBV_WR_ATOMIC_CMP_AND_SWP, 64, before, 9), before.wrapping_add(5));
    assert_eq!(initiator.asks(&[4, 64]), [before.wrapping_add(5)], "the comparison has failed");
    assert_eq!(
        initiator.changes(IBV_WR_ATOMIC_CMP_AND_SWP, 64, before.wrapping_add(5), 9),
        before.wrapping_add(5)
    );
    assert_eq!(initiator.asks(&[4, 64]), [9]);
}

#[test]
fn all_that_is_done_to_it_is_done_whatever_it_is_and_files_are_mapped() {
    for kind in KINDS {
        let mut initiator = Initiator::new(kind, WITH_ATOMICS);
        initiator.uses_often(IBV_WR_RDMA_WRITE);
        if kind != "anonymous" {
            assert_eq!(initiator.has_mapped(), kind != "private", "{kind}");
        }
        everything(&mut initiator, kind);
        assert_eq!(initiator.writes(LEN - 8, 9, 3), IBV_WC_REM_ACCESS_ERR, "behind its end");
        initiator.ends();
    }
}

#[test]
fn what_is_used_otherwise_is_mapped_as_well() {
    let initiator = Initiator::new("memfd", IBV_ACCESS_REMOTE_READ);
    initiator.uses_often(IBV_WR_RDMA_READ);
    assert!(initiator.has_mapped());
    assert_eq!(initiator.does(IBV_WR_RDMA_WRITE, 0, 8), IBV_WC_REM_ACCESS_ERR, "it may be read only");
    initiator.ends();
    let initiator = Initiator::new("memfd", WITH_ATOMICS);
    (0..40).for_each(|count| assert_eq!(initiator.changes(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 1, 0), count));
    assert!(initiator.has_mapped());
    let posted = initiator.qp.post(1, IBV_WR_ATOMIC_FETCH_AND_ADD, &[initiator.buf.sge(8, 8)], |wr| {
        let (remote_addr, rkey) = (initiator.addr + 4, initiator.rkey);
        wr.wr.atomic = ibv_send_wr_atomic { remote_addr, compare_add: 1, swap: 0, rkey };
    });
    assert_eq!((posted, initiator.qp.wait().status), (0, IBV_WC_REM_INV_REQ_ERR), "no aligned word");
    initiator.ends();
}

#[test]
fn it_ends_with_its_region_and_the_mapping_goes() {
    Child::start("their region").finish();
}

fn their_region() {
    let mut initiator = Initiator::new("memfd", WITH_ATOMICS);
    initiator.warms_up();
    assert!(initiator.has_mapped());
    initiator.asks(&[1]);
    let began = Instant::now();
    while initiator.has_mapped() {
        assert!(began.elapsed() < PATIENCE, "the device's rounds give it back");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(initiator.writes(0, 8, 1), IBV_WC_REM_ACCESS_ERR);
    initiator.ends();
}

#[test]
fn other_memory_under_the_same_key_is_other_memory() {
    let mut initiator = Initiator::new("memfd", WITH_ATOMICS);
    initiator.uses_often(IBV_WR_RDMA_WRITE);
    initiator.addr = initiator.asks(&[5])[0];
    for seed in 0..40 {
        assert_eq!(initiator.writes(8, 100, seed), IBV_WC_SUCCESS);
        initiator.asks(&[0, 8, 100, seed]);
    }
    initiator.ends();
}

/// Whoever has the file can cut it; the process that has it mapped must not die of that.
#[test]
fn a_file_that_is_cut_short_is_a_remote_error() {
    for (opcode, len) in [(IBV_WR_RDMA_WRITE, 8), (IBV_WR_RDMA_WRITE, 9000), (IBV_WR_RDMA_READ, 100)] {
        let mut initiator = Initiator::new("named", WITH_ATOMICS);
        initiator.uses_often(IBV_WR_RDMA_WRITE);
        assert!(initiator.has_mapped());
        initiator.asks(&[3, 8192]);
        assert_eq!(initiator.writes(0, 4000, 8), IBV_WC_SUCCESS, "what is left of it");
        initiator.asks(&[0, 0, 4000, 8]);
        assert_eq!(initiator.does(opcode, 8192, len), IBV_WC_REM_ACCESS_ERR, "{opcode} {len}");
        assert!(!initiator.has_mapped());
        initiator.ends();
    }
}

/// As where a container or the system does not let processes reach into each other's memory.
#[test]
fn it_is_mapped_where_processes_may_not_reach_into_each_others_memory() {
    Child::start("without process_vm").finish();
}

fn without_process_vm() {
    refuse(&[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev]);
    let mut initiator = Initiator::new("removed", WITH_ATOMICS);
    initiator.warms_up();
    assert!(initiator.has_mapped());
    let before = softib::stats();
    everything(&mut initiator, "removed");
    let now = softib::stats();
    assert!(now.rdma_direct > before.rdma_direct + 200, "{now:?}");
    assert_eq!(now.rdma_ring, before.rdma_ring);
    initiator.ends();
}

/// System calls of these numbers fail from now on.
fn refuse(calls: &[libc::c_long]) {
    let line = |code: u32, jump: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: jump, k };
    let (load, compare) =
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
    let result = libc::BPF_RET | libc::BPF_K;
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
    let mut lines = vec![line(load, 0, 0)];
    for call in calls {
        lines.extend([line(compare, 1, *call as u32), line(result, 0, refused)]);
    }
    lines.push(line(result, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: lines.len() as u16, filter: lines.as_mut_ptr() };
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

#[test]
fn a_file_that_is_cut_short_is_one_where_writes_are_copied_as_they_are_posted() {
    Child::start("cut short").finish();
}

fn cut_short() {
    let mut initiator = Initiator::new("memfd", WITH_ATOMICS);
    initiator.warms_up();
    initiator.asks(&[3, 8192]);
    assert_eq!(initiator.writes(8192, 8, 2), IBV_WC_REM_ACCESS_ERR);
    initiator.ends();
}

#[test]
fn it_is_not_mapped_where_the_user_forbids_it() {
    Child::start_with("forbidden", &[("SOFTIB_CMA", "0")]).finish();
}

fn forbidden() {
    let mut initiator = Initiator::new("memfd", WITH_ATOMICS);
    initiator.uses_often(IBV_WR_RDMA_WRITE);
    everything(&mut initiator, "memfd");
    assert!(!initiator.has_mapped());
    assert_eq!(softib::stats().rdma_direct, 0);
    initiator.ends();
}
