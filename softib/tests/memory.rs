//! Memory that requests address otherwise than this process does: device memory, zero-based and null regions, chosen addresses;
//! and parent domains.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use std::ffi::c_void;
use std::ptr::null_mut;

#[test]
fn child_main() {
    match role().as_deref() {
        Some("initiator") => initiates(),
        Some("opens") => opens(),
        other => assert_eq!(other, None, "no such role"),
    }
}

const ATOMIC: u32 = ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC;

fn path() -> Path {
    Path { access: ATOMIC, timeout: 20, ..Path::default() }
}

fn extension(dev: &Dev) -> &'static verbs_context {
    unsafe { &*verbs_get_ctx(dev.ctx) }
}

/// Device memory of a test.
struct Dm {
    dm: *mut ibv_dm,
    free: unsafe extern "C" fn(*mut ibv_dm) -> i32,
}

impl Dm {
    fn new(dev: &Dev, length: usize, log_align_req: u32) -> Option<Dm> {
        let mut attr = ibv_alloc_dm_attr { length, log_align_req, comp_mask: 0 };
        let dm = unsafe { extension(dev).alloc_dm.unwrap()(dev.ctx, &mut attr) };
        (!dm.is_null()).then(|| Dm { dm, free: extension(dev).free_dm.unwrap() })
    }

    fn region(&self, dev: &Dev, offset: u64, len: usize, access: u32) -> *mut ibv_mr {
        unsafe { extension(dev).reg_dm_mr.unwrap()(dev.pd, self.dm, offset, len, access) }
    }

    fn put(&self, offset: u64, bytes: &[u8]) -> i32 {
        let put = unsafe { (*self.dm).memcpy_to_dm.unwrap() };
        unsafe { put(self.dm, offset, bytes.as_ptr().cast(), bytes.len()) }
    }

    fn fetch(&self, offset: u64, len: usize) -> Result<Vec<u8>, i32> {
        let mut bytes = vec![0; len];
        let fetch = unsafe { (*self.dm).memcpy_from_dm.unwrap() };
        match unsafe { fetch(bytes.as_mut_ptr().cast(), self.dm, offset, len) } {
            0 => Ok(bytes),
            error => Err(error),
        }
    }

    fn free(&self) -> i32 {
        unsafe { (self.free)(self.dm) }
    }
}

const ZERO_BASED: u32 = ATOMIC | IBV_ACCESS_ZERO_BASED;

fn sge(mr: *mut ibv_mr, addr: u64, length: u32) -> ibv_sge {
    ibv_sge { addr, length, lkey: unsafe { (*mr).lkey } }
}

fn dereg(mr: *mut ibv_mr) {
    assert_eq!(unsafe { (table().dereg_mr)(mr) }, 0);
}

/// The other process: connects to the QP of the first line; then (opcode, address, key), answered by the status and 8 bytes.
fn initiates() {
    let dev = Dev::open();
    let mut buf = Buf::new(&dev, 8, ATOMIC);
    let qp = dev.qp(IBV_QPT_RC, dev.cq(16));
    say(&[qp.num().into()]);
    qp.connect(listen().unwrap()[0] as u32, &path());
    while let Some(line) = listen() {
        buf.data.copy_from_slice(&line[3].to_le_bytes());
        let (opcode, remote_addr, rkey) = (line[0] as u32, line[1], line[2] as u32);
        let posted = qp.post(1, opcode, &[buf.sge(0, 8)], |wr| match opcode {
            IBV_WR_ATOMIC_FETCH_AND_ADD => {
                wr.wr.atomic = ibv_send_wr_atomic { remote_addr, compare_add: line[3], swap: 0, rkey };
            }
            _ => wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey },
        });
        assert_eq!(posted, 0);
        let status = qp.wait().status;
        say(&[status.into(), u64::from_le_bytes(buf.data[..8].try_into().unwrap())]);
    }
}

struct Asked {
    child: Child,
    qp: Qp,
}

impl Asked {
    fn new(dev: &Dev, cma: &str) -> Asked {
        let mut child = Child::start_with("initiator", &[("SOFTIB_CMA", cma)]);
        let qp = dev.qp(IBV_QPT_RC, dev.cq(16));
        qp.connect(child.hear()[0] as u32, &path());
        child.tell(&[qp.num().into()]);
        Asked { child, qp }
    }

    fn ask(&mut self, opcode: u32, addr: u64, rkey: u32, word: u64) -> (u32, u64) {
        self.child.tell(&[opcode.into(), addr, rkey.into(), word]);
        let answer = self.child.hear();
        (answer[0] as u32, answer[1])
    }
}

#[test]
fn device_memory_is_reached_by_every_operation_of_another_process() {
    let dev = Dev::open();
    for cma in ["1", "0"] {
        let dm = Dm::new(&dev, 256, 3).unwrap();
        let mr = dm.region(&dev, 64, 128, ZERO_BASED);
        let rkey = unsafe { (*mr).rkey };
        let mut peer = Asked::new(&dev, cma);
        assert_eq!(peer.ask(IBV_WR_RDMA_WRITE, 8, rkey, 0x1234).0, IBV_WC_SUCCESS);
        assert_eq!(peer.ask(IBV_WR_RDMA_READ, 8, rkey, 0), (IBV_WC_SUCCESS, 0x1234));
        assert_eq!(peer.ask(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, rkey, 1), (IBV_WC_SUCCESS, 0x1234));
        assert_eq!(dm.fetch(72, 8).unwrap(), 0x1235u64.to_le_bytes());
        assert_eq!(peer.qp.recv(1, &[sge(mr, 120, 8)]), 0);
        assert_eq!(peer.ask(IBV_WR_SEND, 0, 0, 0x55).0, IBV_WC_SUCCESS);
        assert_eq!(peer.qp.wait().status, IBV_WC_SUCCESS);
        assert_eq!(dm.fetch(184, 8).unwrap(), 0x55u64.to_le_bytes());
        assert_eq!(peer.ask(IBV_WR_RDMA_WRITE, 121, rkey, 0).0, IBV_WC_REM_ACCESS_ERR);
        peer.child.finish();
        assert_eq!(dm.free(), libc::EBUSY);
        dereg(mr);
        assert_eq!(dm.free(), 0);
    }
}

#[test]
fn device_memory_is_a_buffer_of_own_requests() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &path());
    let dm = Dm::new(&dev, 64, 0).unwrap();
    let mr = dm.region(&dev, 0, 64, ZERO_BASED);
    let mut buf = Buf::new(&dev, 64, ATOMIC);
    buf.data.copy_from_slice(&pattern(1, 64));
    assert_eq!(b.recv(1, &[sge(mr, 32, 16), buf.sge(0, 16)]), 0);
    assert_eq!(a.send(2, &[buf.sge(16, 32)]), 0);
    assert_eq!((a.wait().status, b.wait().byte_len), (IBV_WC_SUCCESS, 32));
    assert_eq!(dm.fetch(32, 16).unwrap(), buf.data[16..32]);
    assert_eq!(a.rdma(3, IBV_WR_RDMA_READ, sge(mr, 0, 8), buf.addr() + 40, buf.key()), 0);
    assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    assert_eq!(dm.fetch(0, 8).unwrap(), buf.data[40..48]);
    // Another offset is another byte, not another process's address; beyond the end is nothing.
    for wrong in [sge(mr, 60, 8), sge(mr, buf.addr(), 8)] {
        let (a, _b) = loopback(&dev, &path());
        assert_eq!(a.rdma(4, IBV_WR_RDMA_WRITE, wrong, buf.addr(), buf.key()), 0);
        assert_eq!(a.wait().status, IBV_WC_LOC_PROT_ERR);
    }
    dereg(mr);
    assert_eq!(dm.free(), 0);
}

#[test]
fn device_memory_that_cannot_be_had_is_refused() {
    let dev = Dev::open();
    let mut attr = ibv_device_attr_ex::default();
    assert_eq!(unsafe { ibv_query_device_ex(table(), dev.ctx, &mut attr) }, 0);
    let max = attr.max_dm_size as usize;
    assert!(max > 0 && Dm::new(&dev, max + 1, 0).is_none());
    assert_eq!(last_errno(), libc::EINVAL);
    let dm = Dm::new(&dev, 100, 12).unwrap();
    for (offset, len) in [(3, 4), (4, 3), (104, 4), (0, 104), (u64::MAX - 3, 4)] {
        assert_eq!(dm.put(offset, &vec![0; len]), libc::EINVAL);
        assert_eq!(dm.fetch(offset, len), Err(libc::EINVAL));
    }
    for (offset, len, access) in [(0, 104, ZERO_BASED), (100, 4, ZERO_BASED), (0, 8, ATOMIC)] {
        assert!(dm.region(&dev, offset, len, access).is_null());
        assert_eq!(last_errno(), libc::EINVAL);
    }
    assert_eq!(dm.free(), 0);
}

#[test]
fn device_memory_can_be_imported_and_is_the_same_memory() {
    let dev = Dev::open();
    let dm = Dm::new(&dev, 8, 0).unwrap();
    let handle = unsafe { (*dm.dm).handle };
    let again = Dm { dm: unsafe { softib::import_dm(dev.ctx, handle) }, free: dm.free };
    assert_eq!(dm.put(0, b"softib00"), 0);
    assert_eq!(again.fetch(0, 8).unwrap(), b"softib00");
    unsafe { softib::unimport_dm(again.dm) };
    assert_eq!(dm.free(), 0);
    assert!(unsafe { softib::import_dm(dev.ctx, handle) }.is_null());
}

#[test]
fn a_region_can_have_the_address_that_a_program_chooses() {
    let dev = Dev::open();
    let mut memory = vec![0u8; 4096].into_boxed_slice();
    let at: *mut c_void = memory.as_mut_ptr().cast();
    let iova = 0x7000_0000_0000;
    let chosen = unsafe { softib::reg_mr_iova(dev.pd, at, 4096, iova, ATOMIC) };
    let zero = unsafe { (table().reg_mr)(dev.pd, at, 4096, ZERO_BASED as i32) };
    for cma in ["1", "0"] {
        let mut peer = Asked::new(&dev, cma);
        for (mr, base) in [(chosen, iova), (zero, 0)] {
            let rkey = unsafe { (*mr).rkey };
            assert_eq!(peer.ask(IBV_WR_RDMA_WRITE, base + 4088, rkey, 7).0, IBV_WC_SUCCESS);
            assert_eq!(peer.ask(IBV_WR_RDMA_READ, base + 4088, rkey, 0), (IBV_WC_SUCCESS, 7));
        }
        let rkey = unsafe { (*chosen).rkey };
        assert_eq!(peer.ask(IBV_WR_RDMA_WRITE, at as u64, rkey, 0).0, IBV_WC_REM_ACCESS_ERR);
        peer.child.finish();
    }
    assert_eq!(memory[4088], 7);
    let changed =
        unsafe { softib::rereg_mr(zero, IBV_REREG_MR_CHANGE_ACCESS as i32, null_mut(), null_mut(), 0, 0) };
    assert_eq!((changed, last_errno()), (IBV_REREG_MR_ERR_CMD, libc::EINVAL));
    [chosen, zero].into_iter().for_each(dereg);
}

#[test]
fn a_null_region_reads_as_zeroes_and_swallows_what_is_written() {
    let dev = Dev::open();
    let (a, b) = loopback(&dev, &path());
    let null = unsafe { extension(&dev).alloc_null_mr.unwrap()(dev.pd) };
    let mut buf = Buf::new(&dev, 1 << 20, ATOMIC);
    buf.data.fill(9);
    // 8 bytes between nothing and nothing.
    assert_eq!(b.recv(1, &[sge(null, 77, 100), buf.sge(0, 8), sge(null, 0, u32::MAX)]), 0);
    assert_eq!(a.send(2, &[buf.sge(64, 104), buf.sge(1000, 4), buf.sge(0, 500_000)]), 0);
    assert_eq!((a.wait().status, b.wait().byte_len), (IBV_WC_SUCCESS, 500_108));
    buf.data[..9].fill(1);
    assert_eq!(b.recv(3, &[buf.sge(0, 16)]), 0);
    assert_eq!(a.send(4, &[sge(null, u64::MAX - 5, 5), buf.sge(100, 1), sge(null, 0, 3)]), 0);
    assert_eq!((a.wait().status, b.wait().byte_len), (IBV_WC_SUCCESS, 9));
    assert_eq!(buf.data[..10], [0, 0, 0, 0, 0, 9, 0, 0, 0, 9]);
    // It is no key for peers.
    assert_eq!(a.rdma(5, IBV_WR_RDMA_WRITE, buf.sge(0, 8), 0, unsafe { (*null).lkey }), 0);
    assert_eq!(a.wait().status, IBV_WC_REM_ACCESS_ERR);
    dereg(null);
}

unsafe extern "C" fn refuse_to_allocate(
    _pd: *mut ibv_pd,
    _context: *mut c_void,
    _size: usize,
    _alignment: usize,
    _kind: u64,
) -> *mut c_void {
    null_mut()
}

unsafe extern "C" fn free_nothing(_pd: *mut ibv_pd, _context: *mut c_void, _at: *mut c_void, _kind: u64) {}

#[test]
fn a_parent_domain_stands_for_the_domain_it_was_made_from() {
    let dev = Dev::open();
    let functions = extension(&dev);
    let mut init = ibv_td_init_attr { comp_mask: 0 };
    let td = unsafe { functions.alloc_td.unwrap()(dev.ctx, &mut init) };
    let mut attr = ibv_parent_domain_init_attr {
        pd: dev.pd,
        td,
        comp_mask: IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
        alloc: Some(refuse_to_allocate),
        free: Some(free_nothing),
        pd_context: null_mut(),
    };
    let make = functions.alloc_parent_domain.unwrap();
    let parent = Dev { ctx: dev.ctx, pd: unsafe { make(dev.ctx, &mut attr) } };
    assert!(!parent.pd.is_null() && parent.pd != dev.pd);
    // A queue pair of one, memory of the other.
    let (a, b) = (parent.qp(IBV_QPT_RC, dev.cq(8)), dev.qp(IBV_QPT_RC, dev.cq(8)));
    a.connect(b.num(), &path());
    b.connect(a.num(), &path());
    let (mut plain, mut other) = (dev.buf(8), parent.buf(8));
    assert_eq!(b.recv(1, &[other.sge(0, 8)]), 0);
    assert_eq!(a.send(2, &[plain.sge(0, 8)]), 0);
    assert_eq!((a.wait().status, b.wait().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    let end = |pd| unsafe { (table().dealloc_pd)(pd) };
    assert_eq!((end(parent.pd), unsafe { functions.dealloc_td.unwrap()(td) }), (libc::EBUSY, libc::EBUSY));
    a.destroy();
    assert_eq!(end(parent.pd), libc::EBUSY, "a region is left");
    other.dereg();
    b.destroy();
    plain.dereg();
    assert_eq!(end(dev.pd), libc::EBUSY, "the parent domain is left");
    assert_eq!((end(parent.pd), unsafe { functions.dealloc_td.unwrap()(td) }, end(dev.pd)), (0, 0, 0));
    attr.comp_mask = 1 << 7;
    assert!(unsafe { make(dev.ctx, &mut attr) }.is_null());
    assert_eq!(last_errno(), libc::EINVAL);
}

#[test]
fn a_device_can_be_imported_by_a_duplicate_of_its_command_descriptor() {
    let dev = Dev::open();
    let copy = unsafe { libc::dup((*dev.ctx).cmd_fd) };
    let again = unsafe { softib::import_device(copy) };
    assert!(!again.is_null() && again != dev.ctx && unsafe { (*again).cmd_fd } == copy);
    let imported = Dev { ctx: again, pd: unsafe { softib::import_pd(again, (*dev.pd).handle) } };
    let (mut buf, other) = (dev.buf(8), Buf::new(&dev, 8, ATOMIC));
    let mr = unsafe { softib::import_mr(imported.pd, (*buf.mr).handle) };
    buf.data.copy_from_slice(b"the same");
    // A queue pair made with the import, memory registered with the original.
    let (a, b) = (imported.qp(IBV_QPT_RC, imported.cq(8)), dev.qp(IBV_QPT_RC, dev.cq(8)));
    a.connect(b.num(), &path());
    b.connect(a.num(), &path());
    let from = ibv_sge { lkey: unsafe { (*mr).lkey }, ..buf.sge(0, 8) };
    assert_eq!(a.rdma(1, IBV_WR_RDMA_WRITE, from, other.addr(), other.key()), 0);
    assert_eq!(a.wait().status, IBV_WC_SUCCESS);
    assert_eq!(other.data[..], *b"the same");
    let cq = a.cq;
    a.destroy();
    assert_eq!(unsafe { (table().destroy_cq)(cq) }, 0);
    unsafe {
        softib::unimport_mr(mr);
        assert_eq!(((table().close_device)(again), last_errno()), (-1, libc::EBUSY));
        softib::unimport_pd(imported.pd);
        assert_eq!((table().close_device)(again), 0);
        assert_eq!((libc::fcntl(copy, libc::F_GETFD), last_errno()), (-1, libc::EBADF));
    }
}

#[test]
fn what_is_no_command_descriptor_of_this_process_is_not_imported() {
    let dev = Dev::open();
    let import = |fd| unsafe { (softib::import_device(fd).is_null(), last_errno()) };
    assert_eq!(import(-1), (true, libc::EINVAL));
    assert_eq!(import(unsafe { (*dev.ctx).async_fd }), (true, libc::EINVAL));
    let mut child = Child::start("opens");
    let theirs = format!("/proc/{}/fd/{}", child.process.id(), child.hear()[0]);
    let theirs = std::fs::File::open(theirs).unwrap();
    assert_eq!(import(std::os::fd::AsRawFd::as_raw_fd(&theirs)), (true, libc::EOPNOTSUPP));
    child.finish();
    assert!(unsafe { softib::import_pd(dev.ctx, 4711) }.is_null());
    assert!(unsafe { softib::import_mr(dev.pd, 4711) }.is_null());
}

/// The other process: has the device open until its input ends.
fn opens() {
    let dev = Dev::open();
    say(&[unsafe { (*dev.ctx).cmd_fd } as u64]);
    assert!(listen().is_none());
}

/// A fork child has no device, but what it needs to know of device memory it may ask, and the memory is the family's.
#[test]
fn a_fork_child_takes_its_part_of_the_same_device_memory() {
    let dev = Dev::open();
    let shared = Dm::new(&dev, 64, 0).unwrap();
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut attr = ibv_device_attr_ex::default();
        let asked = unsafe { ibv_query_device_ex(table(), dev.ctx, &mut attr) } == 0 && attr.max_dm_size > 0;
        let own = Dm::new(&dev, 64, 0);
        let fine = asked
            && own.is_some_and(|own| unsafe { (*own.dm).handle != (*shared.dm).handle } && own.free() == 0)
            && shared.put(0, b"child   ") == 0;
        // SAFETY: the child has nothing to clean up that its parent does not.
        unsafe { libc::_exit(if fine { 0 } else { 1 }) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!((status, &shared.fetch(0, 8).unwrap()[..]), (0, &b"child   "[..]));
    assert_eq!(shared.free(), 0);
}
