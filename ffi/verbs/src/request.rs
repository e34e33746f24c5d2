//! Send work requests: what they are made of, and the C struct of one.

use crate::types::{LKey, RKey, SrqNum};
use rdma_sys as sys;
use std::mem::MaybeUninit;

bitflags::bitflags! {
    /// How a send is to be done (`ibv_send_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// A completion comes.
        const SIGNALED = sys::IBV_SEND_SIGNALED;
        /// Not before all reads and atomics before it are done.
        const FENCE = sys::IBV_SEND_FENCE;
        /// The receiver's completion is a solicited one.
        const SOLICITED = sys::IBV_SEND_SOLICITED;
    }
}

/// A one-sided operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaOp {
    /// Remote memory into local.
    Read,
    /// Local memory into remote.
    Write,
}

/// An atomic operation on eight aligned bytes of a peer's memory, a number in the peer's byte order (IBTA 9.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds, modulo 2^64.
    FetchAdd(u64),
    /// Puts `swap` in the place of `compare`; anything else stays.
    CompareSwap { compare: u64, swap: u64 },
}

/// A piece of registered local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Key of its registration.
    pub lkey: LKey,
}

/// A place in a peer's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address there.
    pub addr: u64,
    /// Key of its registration there.
    pub rkey: RKey,
}

#[inline]
/// `ibv_wr_opcode`.
pub(crate) fn opcode_of(op: RdmaOp) -> u32 {
    match op {
        RdmaOp::Read => sys::IBV_WR_RDMA_READ,
        RdmaOp::Write => sys::IBV_WR_RDMA_WRITE,
    }
}

pub(crate) fn rdma_request(
    op: RdmaOp,
    wr_id: u64,
    sge: *mut sys::ibv_sge,
    remote: Remote,
    flags: SendFlags,
) -> sys::ibv_send_wr {
    let mut wr = request(wr_id, sge, opcode_of(op), flags.bits());
    wr.wr.rdma = sys::ibv_send_wr_rdma { remote_addr: remote.addr, rkey: remote.rkey.0 };
    wr
}

pub(crate) fn atomic_request(
    op: AtomicOp,
    wr_id: u64,
    sge: *mut sys::ibv_sge,
    remote: Remote,
    flags: SendFlags,
) -> sys::ibv_send_wr {
    let (opcode, compare_add, swap) = match op {
        AtomicOp::FetchAdd(add) => (sys::IBV_WR_ATOMIC_FETCH_AND_ADD, add, 0),
        AtomicOp::CompareSwap { compare, swap } => (sys::IBV_WR_ATOMIC_CMP_AND_SWP, compare, swap),
    };
    let mut wr = request(wr_id, sge, opcode, flags.bits());
    let Remote { addr: remote_addr, rkey } = remote;
    wr.wr.atomic = sys::ibv_send_wr_atomic { remote_addr, compare_add, swap, rkey: rkey.0 };
    wr
}

#[inline]
pub(crate) fn request(wr_id: u64, sge: *mut sys::ibv_sge, opcode: u32, flags: u32) -> sys::ibv_send_wr {
    *write_request(&mut MaybeUninit::uninit(), wr_id, sge, opcode, flags)
}

/// Writes a request where it is going to be posted from: it is long, and half of it is never looked at.
#[inline(always)]
pub(crate) fn write_request(
    wr: &mut MaybeUninit<sys::ibv_send_wr>,
    wr_id: u64,
    sge: *mut sys::ibv_sge,
    opcode: u32,
    flags: u32,
) -> &mut sys::ibv_send_wr {
    let at = wr.as_mut_ptr();
    // SAFETY: every field that is not a union is written; a union of plain data may be anything, and
    // a driver reads those members only that belong to the opcode.
    unsafe {
        (&raw mut (*at).wr_id).write(wr_id);
        (&raw mut (*at).next).write(std::ptr::null_mut());
        (&raw mut (*at).sg_list).write(sge);
        (&raw mut (*at).num_sge).write(1);
        (&raw mut (*at).opcode).write(opcode);
        (&raw mut (*at).send_flags).write(flags);
        wr.assume_init_mut()
    }
}

/// The request goes to this SRQ, over an XRC send queue pair.
#[inline]
pub(crate) fn address(mut wr: sys::ibv_send_wr, srq: SrqNum) -> sys::ibv_send_wr {
    wr.qp_type.xrc = sys::ibv_send_wr_xrc { remote_srqn: srq.0 };
    wr
}
