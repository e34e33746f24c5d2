//! Segments that lie: random words of shared structures are overwritten while two processes use them.
//!
//! ```text
//!   referee   makes two players exchange requests, and meanwhile writes to their segments: header, bells, ring table, QP and MR
//!             tables, receive queues, cells and bulk
//!   player    must not crash, must not write beside its buffers, and every request must have one end, though not a good one
//! ```
//!
//! Usually 50 rounds with process_vm_*, 50 without, and 50 in which only the places of regions are changed. For more, with a seed to repeat a run:
//!
//!     SOFTIB_HOSTILE_ROUNDS=5000 SOFTIB_SEED=1 cargo test -p softib --test hostile -- --nocapture
//!
//! Further: files that are cut short under their users, files that are no segments, and other users.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;

#[path = "common/sloppy.rs"]
mod sloppy;

use rdma_sys::*;
use softib::shm::cell::{Head, destination, flag, op};
use softib::shm::layout::*;
use softib::shm::map::Map;
use softib::shm::ring::SendRing;
use softib::shm::{qptable, segment};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path as FilePath;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[test]
fn child_main() {
    match role().as_deref() {
        Some("sloppy") => sloppy::run(),
        Some("stranger") => stranger(),
        other => assert_eq!(other, None, "no such role"),
    }
}

/// A segment, mapped by a process that corrupts it.
struct Intruder {
    base: *mut u8,
}

impl Intruder {
    fn map(path: &FilePath) -> Intruder {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let fd = file.as_raw_fd();
        let base = unsafe { libc::mmap(std::ptr::null_mut(), SEGMENT_LEN, prot, libc::MAP_SHARED, fd, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Intruder { base: base.cast() }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + 4 <= SEGMENT_LEN);
        unsafe { &*self.base.add(offset & !3).cast::<AtomicU32>() }
    }

    /// A place in one of the structures, in a part of it that is likely to be in use.
    fn place(random: &mut Random) -> usize {
        let ring = random.below(3) as usize;
        let (start, len) = match random.below(8) {
            0 => (HEADER, 192),
            1 => (BELL, 192),
            2 => (ring_entry(ring), RING_ENTRY),
            3 => (qp_entry(0), FIRST_QPS * QP_ENTRY),
            4 => (MR_TABLE, 16 * MR_ENTRY),
            5 => (HEAP, 4 * 4096),
            6 => (ring_data(ring) + CONTROL - 16 * CELL, 16 * CELL + 128),
            _ => (ring_data(ring) + BULK, BULK_MIN),
        };
        start + random.below(len as u64) as usize
    }

    /// Where a region of the first in the table is, by up to 4 MiB wrong: in buffers, libraries and stacks of its process.
    fn misplace(&self, random: &mut Random) {
        let base = MR_TABLE + random.below(16) as usize * MR_ENTRY + 32;
        self.word(base).fetch_xor(1 << (12 + random.below(10)), Ordering::Relaxed);
    }

    fn strike(&self, random: &mut Random) {
        let word = self.word(Intruder::place(random));
        let old = word.load(Ordering::Relaxed);
        let new = match random.below(6) {
            0 => 0,
            1 => u32::MAX,
            2 => old ^ 1 << random.below(32),
            3 => old.wrapping_add(1),
            4 => random.below(4096) as u32,
            _ => random.next() as u32,
        };
        word.store(new, Ordering::Relaxed);
    }
}

impl Drop for Intruder {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.base.cast(), SEGMENT_LEN) };
    }
}

fn start(folder: &Folder, (cma, memory): (&str, &str)) -> Child {
    let mut command = Child::command(program(), "sloppy");
    command.env("SOFTIB_DIR", folder.path()).env("SOFTIB_CMA", cma);
    command.env("TEST_MEMORY", memory).env("RUST_LOG", "off");
    Child::spawn(command.stderr(Stdio::piped()))
}

/// Introduces two players and lets them play.
fn introduce(players: &mut [Child; 2], random: &mut Random) {
    players.iter_mut().for_each(|player| player.tell(&[sloppy::PREPARE, random.next()]));
    let cards: Vec<Vec<u64>> = players.iter_mut().map(Child::hear).collect();
    for (seat, card) in cards.iter().enumerate() {
        players[1 - seat].tell(card);
    }
}

fn corrupt(name: &str, way: (&str, &str), strike: fn(&Intruder, &mut Random)) {
    let folder = Folder::new(name);
    let mut random = Random::from_environment();
    for round in 0..rounds("SOFTIB_HOSTILE_ROUNDS", 50) {
        let mut players = [start(&folder, way), start(&folder, way)];
        players.iter_mut().for_each(|player| assert_eq!(player.hear(), [0]));
        let segments: Vec<Intruder> = folder.files().iter().map(|path| Intruder::map(path)).collect();
        assert_eq!(segments.len(), 2, "round {round}");
        for _ in 0..1 + random.below(3) {
            introduce(&mut players, &mut random);
            let (end, pause) = (Instant::now() + Duration::from_millis(5), random.below(200));
            while Instant::now() < end {
                strike(&segments[random.below(2) as usize], &mut random);
                (0..pause).for_each(|_| std::hint::spin_loop());
            }
            for player in &mut players {
                let said = player.hear_or_end();
                assert!(said.is_some(), "{name}, round {round}: {}", player.last_words());
            }
        }
        players.into_iter().for_each(Child::finish);
        // What they could not recognise as their own any more, they may leave.
        folder.files().into_iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }
}

#[test]
fn corrupt_segments_crash_nobody_and_every_request_ends() {
    corrupt("hostile-cma", ("1", "private"), Intruder::strike);
}

#[test]
fn corrupt_segments_crash_nobody_and_every_request_ends_through_the_rings() {
    corrupt("hostile-rings", ("0", "private"), Intruder::strike);
}

/// Where the memory of both is files, which peers map.
#[test]
fn corrupt_segments_crash_nobody_and_every_request_ends_in_memory_that_peers_map() {
    corrupt("hostile-files", ("1", "file"), Intruder::strike);
}

/// A peer that copies by process_vm_writev used to write where the damaged entry said.
#[test]
fn regions_whose_place_was_damaged_in_the_table_are_written_nowhere_else() {
    corrupt("hostile-places", ("1", "private"), Intruder::misplace);
}

/// A process that can write to our segment can't make us write elsewhere in our own memory.
#[test]
fn a_region_that_was_widened_in_the_shared_table_grants_no_more_of_our_own_memory() {
    let dev = Dev::open();
    let (buf, private) = (dev.buf(64), vec![9u8; 64]);
    let (a, _b) = loopback(&dev, &Path::default());
    let slot = a.num() >> QP_BITS;
    let dir = softib::shm::segment::directory();
    let path = format!("{}/softib-{}-{slot}", dir.display(), unsafe { libc::geteuid() });
    let segment = Intruder::map(path.as_ref());
    let entry = MR_TABLE + (buf.key() >> 8) as usize * MR_ENTRY;
    assert_eq!(segment.word(entry).load(Ordering::Relaxed), buf.key());
    // Address 0, and all of the address space (see shm/mrtable.rs).
    for (offset, value) in [(16, 0), (20, 0), (24, u32::MAX), (28, u32::MAX)] {
        segment.word(entry + offset).store(value, Ordering::Relaxed);
    }
    assert_eq!(a.rdma(1, IBV_WR_RDMA_WRITE, buf.sge(0, 8), private.as_ptr() as u64, buf.key()), 0);
    assert_eq!(a.wait().status, IBV_WC_REM_ACCESS_ERR);
    assert!(private.iter().all(|byte| *byte == 9));
}

/// The receive that such a message had taken used to get no completion.
#[test]
fn a_write_with_immediate_of_a_wrong_length_completes_the_receive_that_it_took_with_an_error() {
    let dev = Dev::open();
    let (buf, (a, b)) = (dev.buf(64), loopback(&dev, &Path::default()));
    assert_eq!(b.recv(7, &[buf.sge(0, 64)]), 0);
    let (slot, index) = ((b.num() >> QP_BITS) as usize, b.num() as usize % QPS);
    let file = segment::open_slot(&segment::directory(), slot).unwrap();
    let tables = Arc::new(Map::new(&file, TABLES_LEN).unwrap());
    let incarnation = tables.u64(H_NONCE).load(Ordering::Relaxed);
    let mut ring = SendRing::claim(&tables, &Arc::new(file), (slot, incarnation), true, false).unwrap();
    let dst = destination(index, qptable::look_up(&tables, index).unwrap().1.generation);
    let head = Head { op: op::WRITE_IMM, flags: flag::IMM, dst, src_qpn: a.num(), len: 8, imm: 0, pos: 0 };
    let _ = ring.push(head, |payload| unsafe { payload.write_bytes(0, 8) });
    let wc = b.wait();
    assert_eq!((wc.wr_id, wc.status), (7, IBV_WC_LOC_PROT_ERR));
    assert_eq!(event(&dev), Some(IBV_EVENT_QP_FATAL));
}

#[test]
fn a_segment_that_is_cut_short_is_as_good_as_dead() {
    for len in [0, 4096, RING_TABLE + 256, HEAP + 4096, RING_DATA + 100] {
        let folder = Folder::new(&format!("cut-{len}"));
        let mut players = [start(&folder, ("1", "private")), start(&folder, ("1", "private"))];
        players.iter_mut().for_each(|player| assert_eq!(player.hear(), [0]));
        introduce(&mut players, &mut Random(len as u64));
        for path in folder.files() {
            File::options().write(true).open(path).unwrap().set_len(len as u64).unwrap();
        }
        for player in &mut players {
            let said = player.hear_or_end();
            assert!(said.is_some(), "length {len}: {}", player.last_words());
        }
        players.into_iter().for_each(Child::finish);
    }
}

/// Connects to QPN `slot << 12 | 2`, which no process has, and sends; the status it ends with.
fn outcome_of_a_send_to(dev: &Dev, dest: u32) -> u32 {
    let qp = dev.qp(IBV_QPT_RC, dev.cq(8));
    qp.connect(dest, &Path { timeout: 8, retry_cnt: 1, ..Path::default() });
    let buf = dev.buf(64);
    assert_eq!(qp.send(1, &[buf.sge(0, 8)]), 0);
    let status = qp.wait().status;
    qp.destroy();
    status
}

#[test]
fn files_that_are_no_segments_are_not_attached() {
    let dev = Dev::open();
    let dir = softib::shm::segment::directory().display().to_string();
    let uid = unsafe { libc::geteuid() };
    let slot = 4000 + std::process::id() as usize % 90;
    let path = format!("{dir}/softib-{uid}-{slot}");
    let mut random = Random::from_environment();
    for len in [0, 100, FIXED_LEN, SEGMENT_LEN - 4096, SEGMENT_LEN, SEGMENT_LEN + 4096] {
        let file = File::create(&path).unwrap();
        file.set_len(len as u64).unwrap();
        let noise: Vec<u8> = (0..len.min(4096)).map(|_| random.next() as u8).collect();
        std::os::unix::fs::FileExt::write_all_at(&file, &noise, 0).unwrap();
        // As a live owner would hold it.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as i16;
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) }, 0);
        assert_eq!(outcome_of_a_send_to(&dev, (slot as u32) << QP_BITS | 2), IBV_WC_RETRY_EXC_ERR);
        std::fs::remove_file(&path).unwrap();
    }
}

/// A process of another user in the same folder: says whether it could open a file there, and what a send to a QP came to.
fn stranger() {
    let folder = softib::segment_dir();
    let opened = std::fs::read_dir(folder).unwrap().filter(|entry| {
        let path = entry.as_ref().unwrap().path();
        path.to_string_lossy().contains("/softib-0-") && File::open(path).is_ok()
    });
    let opened = opened.count() as u64;
    let dev = Dev::open();
    let dest = std::env::var("SOFTIB_DEST").unwrap().parse().unwrap();
    say(&[opened, outcome_of_a_send_to(&dev, dest).into()]);
    listen();
}

/// Only root can become another user; others see the mode of the file in tests/liveness.rs.
#[test]
fn another_user_cannot_attach() {
    use std::os::unix::fs::PermissionsExt;
    const NOBODY: u32 = 65534;
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let folder = Folder::new("stranger");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    let mut owner = start(&folder, ("1", "private"));
    owner.hear();
    owner.tell(&[sloppy::PREPARE, 1]);
    let dest = owner.hear()[0].to_string();
    // The test binary may lie where the other user can't go. Another process copies it: a child that another test forks in the meantime
    // would have a descriptor that writes the copy, and a file that is open for writing can't be executed (ETXTBSY, execve(2)).
    let copy = format!("{}/program", folder.path());
    assert!(
        Command::new("install").args(["-m", "755"]).arg(program()).arg(&copy).status().unwrap().success()
    );
    let mut command = Child::command(copy.as_ref(), "stranger");
    command.env("SOFTIB_DIR", folder.path()).env("SOFTIB_DEST", dest).uid(NOBODY).gid(NOBODY);
    let mut child = Child::spawn(command.current_dir("/"));
    assert_eq!(child.hear(), [0, u64::from(IBV_WC_RETRY_EXC_ERR)]);
    child.finish();
    owner.kill();
}
