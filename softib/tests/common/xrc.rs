//! XRC as a C program would use it, with fewer lines.

#![allow(dead_code)]

use crate::common::*;
use rdma_sys::*;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::ptr::null_mut;

/// A file that names a domain; removed with it.
pub struct Name {
    pub path: PathBuf,
    pub file: File,
}

impl Name {
    pub fn new() -> Name {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("softib-xrc-test-{}-{number}", std::process::id()));
        let file = File::create(&path).unwrap();
        Name { path, file }
    }

    pub fn env(&self) -> (&str, &str) {
        ("XRC_FILE", self.path.to_str().unwrap())
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Opens the domain of a descriptor.
pub fn open_xrcd(dev: &Dev, fd: i32, oflags: i32) -> Result<*mut ibv_xrcd, i32> {
    let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    let mut attr = ibv_xrcd_init_attr { comp_mask, fd, oflags };
    let xrcd = unsafe { ibv_open_xrcd(dev.ctx, &mut attr) };
    if xrcd.is_null() { Err(last_errno()) } else { Ok(xrcd) }
}

/// Opens a file's domain, which may have to be made.
pub fn domain(dev: &Dev, file: &File) -> *mut ibv_xrcd {
    open_xrcd(dev, file.as_raw_fd(), libc::O_CREAT).unwrap()
}

/// A domain of the file that XRC_FILE names, for children.
pub fn domain_of_parent(dev: &Dev) -> *mut ibv_xrcd {
    domain(dev, &File::open(std::env::var("XRC_FILE").unwrap()).unwrap())
}

pub fn close_xrcd(xrcd: *mut ibv_xrcd) -> i32 {
    unsafe { ibv_close_xrcd(xrcd) }
}

/// An XRC SRQ with its number.
#[derive(Clone, Copy)]
pub struct Srq {
    pub srq: *mut ibv_srq,
    pub cq: *mut ibv_cq,
    pub num: u32,
}

impl Srq {
    pub fn new(dev: &Dev, xrcd: *mut ibv_xrcd, max_wr: u32) -> Srq {
        let cq = dev.cq(256);
        let mut init =
            ibv_srq_init_attr_ex { srq_type: IBV_SRQT_XRC, pd: dev.pd, xrcd, cq, ..Default::default() };
        (init.attr.max_wr, init.attr.max_sge) = (max_wr, 1);
        init.comp_mask =
            IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        let srq = unsafe { ibv_create_srq_ex(table(), dev.ctx, &mut init) };
        assert!(!srq.is_null(), "create_srq_ex: {}", std::io::Error::last_os_error());
        let mut num = 0;
        assert_eq!(unsafe { ibv_get_srq_num(srq, &mut num) }, 0);
        Srq { srq, cq, num }
    }

    pub fn destroy(self) {
        assert_eq!(unsafe { (table().destroy_srq)(self.srq) }, 0);
    }
}

/// Makes a receive queue pair, changed by `change` before.
pub fn create_receive(
    dev: &Dev,
    xrcd: *mut ibv_xrcd,
    change: impl FnOnce(&mut ibv_qp_init_attr_ex),
) -> Result<Qp, i32> {
    let comp_mask = IBV_QP_INIT_ATTR_XRCD;
    let mut init = ibv_qp_init_attr_ex { qp_type: IBV_QPT_XRC_RECV, comp_mask, xrcd, ..Default::default() };
    change(&mut init);
    let qp = unsafe { ibv_create_qp_ex(table(), dev.ctx, &mut init) };
    if qp.is_null() { Err(last_errno()) } else { Ok(Qp { qp, cq: null_mut() }) }
}

pub fn receiver(dev: &Dev, xrcd: *mut ibv_xrcd) -> Qp {
    create_receive(dev, xrcd, |_| ()).unwrap()
}

/// Another handle.
pub fn open_qp(dev: &Dev, xrcd: *mut ibv_xrcd, qp_num: u32) -> Result<Qp, i32> {
    let comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    let qp_type = IBV_QPT_XRC_RECV;
    let mut attr = ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_type, ..Default::default() };
    let qp = unsafe { ibv_open_qp(dev.ctx, &mut attr) };
    if qp.is_null() { Err(last_errno()) } else { Ok(Qp { qp, cq: null_mut() }) }
}

pub fn sender(dev: &Dev) -> Qp {
    dev.qp(IBV_QPT_XRC_SEND, dev.cq(256))
}

/// Everything, and atomics.
pub const XRC_ACCESS: u32 = ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC;

/// A path whose sends are given up only after a long time, unless the target refuses them.
pub fn patient() -> Path {
    Path { timeout: 20, retry_cnt: 7, access: XRC_ACCESS, ..Path::default() }
}

/// A path whose sends are given up soon.
pub fn impatient() -> Path {
    Path { access: XRC_ACCESS, ..Path::default() }
}

/// Brings a receive queue pair up for `sender`.
pub fn expect(receiver: Qp, sender: u32, path: &Path) {
    receiver.init(path.access);
    receiver.rtr(sender, path);
}

/// A send queue pair and a receive queue pair, connected.
pub fn pair(dev: &Dev, xrcd: *mut ibv_xrcd, path: &Path) -> (Qp, Qp) {
    let (from, to) = (sender(dev), receiver(dev, xrcd));
    expect(to, from.num(), path);
    from.connect(to.num(), path);
    (from, to)
}

/// Posts a request for SRQ `srqn`.
pub fn post(qp: Qp, opcode: u32, srqn: u32, sge: ibv_sge, change: impl FnOnce(&mut ibv_send_wr)) {
    let code = qp.post(7, opcode, &[sge], |wr| {
        wr.qp_type.xrc = ibv_send_wr_xrc { remote_srqn: srqn };
        change(wr);
    });
    assert_eq!(code, 0);
}

/// Sends to SRQ `srqn`; what became of it.
pub fn send(qp: Qp, srqn: u32, sge: ibv_sge) -> u32 {
    post(qp, IBV_WR_SEND, srqn, sge, |_| ());
    qp.wait().status
}
