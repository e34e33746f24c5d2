//! FETCH_ADD and CMP_SWAP: values, refusals, order, and atomicity among processes, dying ones included.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn child_main() {
    match role().as_deref() {
        Some("counts") => counts(),
        Some("counts_for_ever") => counts_for_ever(),
        other => assert_eq!(other, None, "no such role"),
    }
}

const ATOMIC: u32 = ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC;

fn path() -> Path {
    Path { access: ATOMIC, timeout: 20, ..Path::default() }
}

impl Qp {
    fn atomic(
        &self,
        opcode: u32,
        sge: ibv_sge,
        (remote_addr, rkey): (u64, u32),
        operands: (u64, u64),
    ) -> i32 {
        let (compare_add, swap) = operands;
        self.post(opcode.into(), opcode, &[sge], |wr| {
            wr.wr.atomic = ibv_send_wr_atomic { remote_addr, compare_add, swap, rkey };
        })
    }

    /// Adds `n` to a remote word; the value before, which also lands in `sge`.
    fn add(&self, buf: &Buf, word: (u64, u32), n: u64) -> Result<u64, u32> {
        assert_eq!(self.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, buf.sge(0, 8), word, (n, 0)), 0);
        self.result(buf, IBV_WC_FETCH_ADD)
    }

    fn swap(&self, buf: &Buf, word: (u64, u32), compare: u64, new: u64) -> Result<u64, u32> {
        assert_eq!(self.atomic(IBV_WR_ATOMIC_CMP_AND_SWP, buf.sge(0, 8), word, (compare, new)), 0);
        self.result(buf, IBV_WC_COMP_SWAP)
    }

    fn result(&self, buf: &Buf, opcode: u32) -> Result<u64, u32> {
        let wc = self.wait();
        if wc.status != IBV_WC_SUCCESS {
            return Err(wc.status);
        }
        assert_eq!((wc.opcode, wc.byte_len), (opcode, 8));
        Ok(word_at(buf, 0))
    }
}

fn word_at(buf: &Buf, index: usize) -> u64 {
    let word = (buf.addr() as usize + 8 * index) as *mut u64;
    // SAFETY: a Buf of this test, allocated with at least so many words, and aligned (see aligned()).
    unsafe { AtomicU64::from_ptr(word) }.load(Ordering::SeqCst)
}

/// Registered words, at an address that is a multiple of 8.
fn words(dev: &Dev, count: usize, access: u32) -> Buf {
    let buf = Buf::new(dev, 8 * count, access);
    assert!(buf.addr().is_multiple_of(8));
    buf
}

#[test]
fn the_device_says_that_it_has_atomics() {
    let dev = Dev::open();
    let mut attr = ibv_device_attr::default();
    assert_eq!(unsafe { (table().query_device)(dev.ctx, &mut attr) }, 0);
    assert_eq!(attr.atomic_cap, IBV_ATOMIC_GLOB);
}

#[test]
fn an_atomic_returns_the_value_before_and_changes_the_word() {
    let dev = Dev::open();
    let (a, _b) = loopback(&dev, &path());
    let (target, back) = (words(&dev, 2, ATOMIC), words(&dev, 1, ATOMIC));
    let second = (target.addr() + 8, target.key());
    assert_eq!(a.add(&back, second, 5), Ok(0));
    assert_eq!(a.add(&back, second, u64::MAX), Ok(5));
    assert_eq!(a.swap(&back, second, 5, 9), Ok(4));
    assert_eq!(a.swap(&back, second, 4, 1 << 63), Ok(4));
    assert_eq!((word_at(&target, 0), word_at(&target, 1)), (0, 1 << 63));
}

#[test]
fn the_value_before_may_be_scattered() {
    let dev = Dev::open();
    let (a, _b) = loopback(&dev, &path());
    let (mut target, back) = (words(&dev, 1, ATOMIC), words(&dev, 4, ATOMIC));
    target.data.copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let sges = [back.sge(0, 3), back.sge(10, 0), back.sge(16, 5)];
    let wr = ibv_send_wr_atomic { remote_addr: target.addr(), compare_add: 0, swap: 0, rkey: target.key() };
    assert_eq!(a.post(1, IBV_WR_ATOMIC_FETCH_AND_ADD, &sges, |to| to.wr.atomic = wr), 0);
    assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    assert_eq!((&back.data[..4], &back.data[16..22]), (&[1, 2, 3, 0][..], &[4, 5, 6, 7, 8, 0][..]));
}

/// What each refusal needs to be different from a request that is granted.
#[test]
fn an_atomic_needs_key_bounds_rights_alignment_and_a_willing_queue_pair() {
    let dev = Dev::open();
    let (target, back) = (words(&dev, 2, ATOMIC), words(&dev, 1, ATOMIC));
    let plain = words(&dev, 1, ALL_ACCESS);
    let foreign = words(&Dev { ctx: dev.ctx, pd: unsafe { (table().alloc_pd)(dev.ctx) } }, 1, ATOMIC);
    let deaf = Path { access: ALL_ACCESS, ..path() };
    let cases = [
        (target.addr(), target.key() ^ 1, path(), Err(IBV_WC_REM_ACCESS_ERR)),
        (target.addr() + 16, target.key(), path(), Err(IBV_WC_REM_ACCESS_ERR)),
        (u64::MAX - 7, target.key(), path(), Err(IBV_WC_REM_ACCESS_ERR)),
        (plain.addr(), plain.key(), path(), Err(IBV_WC_REM_ACCESS_ERR)),
        (foreign.addr(), foreign.key(), path(), Err(IBV_WC_REM_ACCESS_ERR)),
        (target.addr() + 4, target.key(), path(), Err(IBV_WC_REM_INV_REQ_ERR)),
        (target.addr(), target.key(), deaf, Err(IBV_WC_REM_INV_REQ_ERR)),
        (target.addr(), target.key(), path(), Ok(0)),
    ];
    for (at, (addr, key, path, expected)) in cases.into_iter().enumerate() {
        let (a, _b) = loopback(&dev, &path);
        assert_eq!(a.add(&back, (addr, key), 1), expected, "case {at}");
        assert_eq!(a.state(), if expected.is_ok() { IBV_QPS_RTS } else { IBV_QPS_ERR });
    }
    assert_eq!((word_at(&target, 0), word_at(&target, 1)), (1, 0));
}

#[test]
fn the_local_buffer_must_be_writable_and_eight_bytes_long() {
    let dev = Dev::open();
    let (target, back) = (words(&dev, 1, ATOMIC), words(&dev, 2, ATOMIC));
    let readable = words(&dev, 1, 0);
    let word = (target.addr(), target.key());
    for (sge, expected) in [
        (readable.sge(0, 8), IBV_WC_LOC_PROT_ERR),
        (back.sge(0, 7), IBV_WC_LOC_LEN_ERR),
        (back.sge(0, 16), IBV_WC_LOC_LEN_ERR),
    ] {
        let (a, _b) = loopback(&dev, &path());
        assert_eq!(a.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, sge, word, (1, 0)), 0);
        assert_eq!(a.wait().status, expected);
    }
    assert_eq!(word_at(&target, 0), 0);
}

#[test]
fn atomics_are_for_reliable_connections_and_never_inline() {
    let dev = Dev::open();
    let (target, back) = (words(&dev, 1, ATOMIC), words(&dev, 1, ATOMIC));
    let word = ibv_send_wr_atomic { remote_addr: target.addr(), compare_add: 1, swap: 0, rkey: target.key() };
    let uc = dev.qp(IBV_QPT_UC, dev.cq(4));
    uc.connect(uc.num(), &path());
    let (rc, _b) = loopback(&dev, &path());
    for (qp, flags) in [(uc, 0), (rc, IBV_SEND_INLINE)] {
        let refused = qp.post(1, IBV_WR_ATOMIC_FETCH_AND_ADD, &[back.sge(0, 8)], |wr| {
            (wr.wr.atomic, wr.send_flags) = (word, flags);
        });
        assert_eq!(refused, libc::EINVAL);
    }
}

/// A WRITE, an atomic on what it wrote, a READ of what that made, a SEND: each sees the one before.
#[test]
fn atomics_keep_their_place_among_other_operations() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &path());
    let (target, mut back) = (words(&dev, 1, ATOMIC), words(&dev, 4, ATOMIC));
    back.data[..8].copy_from_slice(&40u64.to_ne_bytes());
    let (addr, key) = (target.addr(), target.key());
    assert_eq!(b.recv(9, &[target.sge(0, 8)]), 0);
    assert_eq!(a.rdma(1, IBV_WR_RDMA_WRITE, back.sge(0, 8), addr, key), 0);
    assert_eq!(a.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, back.sge(8, 8), (addr, key), (2, 0)), 0);
    assert_eq!(a.rdma(3, IBV_WR_RDMA_READ, back.sge(16, 8), addr, key), 0);
    assert_eq!(a.atomic(IBV_WR_ATOMIC_CMP_AND_SWP, back.sge(24, 8), (addr, key), (42, 7)), 0);
    assert_eq!(a.send(5, &[back.sge(0, 8)]), 0);
    let opcodes: Vec<u32> = (0..5).map(|_| a.wait().opcode).collect();
    let expected = [IBV_WC_RDMA_WRITE, IBV_WC_FETCH_ADD, IBV_WC_RDMA_READ, IBV_WC_COMP_SWAP, IBV_WC_SEND];
    assert_eq!(opcodes, expected);
    assert_eq!(b.wait().wr_id, 9);
    let seen: Vec<u64> = (0..4).map(|at| word_at(&back, at)).collect();
    assert_eq!((seen, word_at(&target, 0)), (vec![40, 40, 42, 42], 40));
}

const ROUNDS: u64 = 1000;

/// The child's side of a connection to the parent's words: the QP, a buffer for results, address and key.
fn join_in(dev: &Dev) -> (Qp, Buf, (u64, u32)) {
    let qp = dev.qp(IBV_QPT_RC, dev.cq(16));
    say(&[qp.num().into()]);
    let hello = listen().unwrap();
    qp.connect(hello[0] as u32, &path());
    say(&[0]);
    (qp, words(dev, 1, ATOMIC), (hello[1], hello[2] as u32))
}

/// Adds to the first word in both ways, ROUNDS times each.
fn counts() {
    let dev = Dev::open();
    let (qp, back, word) = join_in(&dev);
    listen();
    let mut last = None;
    for _ in 0..ROUNDS {
        let seen = qp.add(&back, word, 1).unwrap();
        assert!(last < Some(seen), "the value before never goes back");
        last = Some(seen);
    }
    let mut seen = last.unwrap();
    for _ in 0..ROUNDS {
        loop {
            let before = qp.swap(&back, word, seen, seen + 1).unwrap();
            if std::mem::replace(&mut seen, before) == before {
                break;
            }
        }
    }
    say(&[1]);
    listen();
}

/// Adds to the first word and then to its own, until it is killed.
fn counts_for_ever() {
    let dev = Dev::open();
    let (qp, back, (addr, key)) = join_in(&dev);
    let own = (addr + 8 * listen().unwrap()[0], key);
    while qp.add(&back, (addr, key), 1).is_ok() && qp.add(&back, own, 1).is_ok() {}
}

/// Starts a child that works on `target`.
fn worker(dev: &Dev, target: &Buf, name: &str, env: &[(&str, &str)]) -> (Child, Qp) {
    let qp = dev.qp(IBV_QPT_RC, dev.cq(16));
    let mut child = Child::start_with(name, env);
    qp.connect(child.hear()[0] as u32, &path());
    child.tell(&[qp.num().into(), target.addr(), target.key().into()]);
    child.hear();
    (child, qp)
}

fn many_count(env: &[(&str, &str)]) {
    let dev = Dev::open();
    let target = words(&dev, 1, ATOMIC);
    let mut all: Vec<(Child, Qp)> = (0..3).map(|_| worker(&dev, &target, "counts", env)).collect();
    all.iter_mut().for_each(|(child, _)| child.tell(&[1]));
    // The owner of the memory takes part, with atomics of its CPU.
    let own = unsafe { AtomicU64::from_ptr(target.addr() as *mut u64) };
    for _ in 0..ROUNDS {
        own.fetch_add(1, Ordering::SeqCst);
        poll(all[0].1.cq);
    }
    for (mut child, _) in all {
        child.hear();
        child.finish();
    }
    assert_eq!(word_at(&target, 0), 7 * ROUNDS);
}

#[test]
fn no_count_is_lost_among_processes() {
    many_count(&[]);
}

#[test]
fn no_count_is_lost_without_process_vm() {
    many_count(&[("SOFTIB_CMA", "0")]);
}

/// Initiators are killed at any moment: every add was done once or not at all, and others are not held up.
#[test]
fn killed_initiators_leave_their_adds_whole() {
    const ALL: usize = 12;
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let dev = Dev::open();
    let target = words(&dev, 1 + ALL, ATOMIC);
    let (survivor, _b) = loopback(&dev, &path());
    let (back, word) = (words(&dev, 1, ATOMIC), (target.addr(), target.key()));
    let mut own = 0;
    for at in 1..=ALL {
        let (mut child, qp) = worker(&dev, &target, "counts_for_ever", &[]);
        child.tell(&[at as u64]);
        let until = u64::from(pattern(seed + at as u64, 1)[0]);
        while word_at(&target, at) < until {
            own += u64::from(survivor.add(&back, word, 1).is_ok());
        }
        child.kill();
        own += u64::from(survivor.add(&back, word, 1).is_ok());
        assert_eq!(qp.to_state(IBV_QPS_ERR), 0);
        qp.destroy();
    }
    let theirs: u64 = (1..=ALL).map(|at| word_at(&target, at)).sum();
    let missing = word_at(&target, 0) - own - theirs;
    assert!(missing <= ALL as u64, "{missing} adds were done more than once");
}

/// An atomic that its target can no longer answer ends in error.
#[test]
fn an_atomic_on_a_killed_process_is_given_up() {
    let dev = Dev::open();
    let (back, qp) = (words(&dev, 1, ATOMIC), dev.qp(IBV_QPT_RC, dev.cq(16)));
    let mut child = Child::start("counts");
    let theirs = child.hear()[0] as u32;
    child.tell(&[qp.num().into(), back.addr(), back.key().into()]);
    child.hear();
    qp.connect(theirs, &path());
    child.stop();
    assert_eq!(qp.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, back.sge(0, 8), (4096, 256), (1, 0)), 0);
    assert!(poll(qp.cq).is_none());
    child.kill();
    assert_eq!((qp.wait().status, qp.state()), (IBV_WC_RETRY_EXC_ERR, IBV_QPS_ERR));
}
