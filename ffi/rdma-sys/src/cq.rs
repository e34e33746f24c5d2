//! Completions, completion queues and completion channels.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{pthread_cond_t, pthread_mutex_t};

use crate::{ibv_context, ibv_pd};

c_enums! {
    /// Outcome of a work request.
    ibv_wc_status: u32 {
        IBV_WC_SUCCESS = 0, IBV_WC_LOC_LEN_ERR = 1, IBV_WC_LOC_QP_OP_ERR = 2, IBV_WC_LOC_EEC_OP_ERR = 3,
        IBV_WC_LOC_PROT_ERR = 4, IBV_WC_WR_FLUSH_ERR = 5, IBV_WC_MW_BIND_ERR = 6, IBV_WC_BAD_RESP_ERR = 7,
        IBV_WC_LOC_ACCESS_ERR = 8, IBV_WC_REM_INV_REQ_ERR = 9, IBV_WC_REM_ACCESS_ERR = 10, IBV_WC_REM_OP_ERR = 11,
        IBV_WC_RETRY_EXC_ERR = 12, IBV_WC_RNR_RETRY_EXC_ERR = 13, IBV_WC_LOC_RDD_VIOL_ERR = 14,
        IBV_WC_REM_INV_RD_REQ_ERR = 15, IBV_WC_REM_ABORT_ERR = 16, IBV_WC_INV_EECN_ERR = 17,
        IBV_WC_INV_EEC_STATE_ERR = 18, IBV_WC_FATAL_ERR = 19, IBV_WC_RESP_TIMEOUT_ERR = 20, IBV_WC_GENERAL_ERR = 21,
        IBV_WC_TM_ERR = 22, IBV_WC_TM_RNDV_INCOMPLETE = 23,
    }
    /// Operation that completed; bit 7 marks receives. Undefined when the status is not success.
    ibv_wc_opcode: u32 {
        IBV_WC_SEND = 0, IBV_WC_RDMA_WRITE = 1, IBV_WC_RDMA_READ = 2, IBV_WC_COMP_SWAP = 3, IBV_WC_FETCH_ADD = 4,
        IBV_WC_BIND_MW = 5, IBV_WC_LOCAL_INV = 6, IBV_WC_TSO = 7, IBV_WC_ATOMIC_WRITE = 9, IBV_WC_RECV = 1 << 7,
        IBV_WC_RECV_RDMA_WITH_IMM = (1 << 7) + 1, IBV_WC_TM_ADD = (1 << 7) + 2, IBV_WC_TM_DEL = (1 << 7) + 3,
        IBV_WC_TM_SYNC = (1 << 7) + 4, IBV_WC_TM_RECV = (1 << 7) + 5, IBV_WC_TM_NO_TAG = (1 << 7) + 6,
        IBV_WC_DRIVER1 = (1 << 7) + 7, IBV_WC_DRIVER2 = (1 << 7) + 8, IBV_WC_DRIVER3 = (1 << 7) + 9,
    }
    /// Bits of `ibv_wc.wc_flags`.
    ibv_wc_flags: u32 {
        IBV_WC_GRH = 1 << 0, IBV_WC_WITH_IMM = 1 << 1, IBV_WC_IP_CSUM_OK = 1 << 2, IBV_WC_WITH_INV = 1 << 3,
        IBV_WC_TM_SYNC_REQ = 1 << 4, IBV_WC_TM_MATCH = 1 << 5, IBV_WC_TM_DATA_VALID = 1 << 6,
    }
    /// Fields that an extended CQ must deliver.
    ibv_create_cq_wc_flags: u32 {
        IBV_WC_EX_WITH_BYTE_LEN = 1 << 0, IBV_WC_EX_WITH_IMM = 1 << 1, IBV_WC_EX_WITH_QP_NUM = 1 << 2,
        IBV_WC_EX_WITH_SRC_QP = 1 << 3, IBV_WC_EX_WITH_SLID = 1 << 4, IBV_WC_EX_WITH_SL = 1 << 5,
        IBV_WC_EX_WITH_DLID_PATH_BITS = 1 << 6, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7,
        IBV_WC_EX_WITH_CVLAN = 1 << 8, IBV_WC_EX_WITH_FLOW_TAG = 1 << 9, IBV_WC_EX_WITH_TM_INFO = 1 << 10,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11, IBV_WC_STANDARD_FLAGS = 0x7f,
        IBV_CREATE_CQ_SUP_WC_FLAGS = 0xfff,
    }
    /// Which fields of `ibv_cq_init_attr_ex` are set.
    ibv_cq_init_attr_mask: u32 { IBV_CQ_INIT_ATTR_MASK_FLAGS = 1 << 0, IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1 }
    /// Creation flags of an extended CQ.
    ibv_create_cq_attr_flags: u32 {
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1 << 0, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1,
    }
    /// What `ibv_modify_cq` changes.
    ibv_cq_attr_mask: u32 { IBV_CQ_ATTR_MODERATE = 1 << 0, IBV_CQ_ATTR_RESERVED = 1 << 1 }
}

/// Immediate data or an invalidated key, whichever `wc_flags` says.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_wc_imm {
    /// `__be32`
    pub imm_data: u32,
    pub invalidated_rkey: u32,
}

/// The software device's `vendor_err` in a completion with `IBV_WC_RETRY_EXC_ERR`: the peer's process has ended. Those of adapters
/// are small numbers.
pub const VENDOR_ERR_PEER_HAS_ENDED: u32 = 0x656e_6465;

/// The software device's bit of `ibv_wc.wc_flags`, in queues that `place_messages` of [`Table`](crate::Table) was called for: the receive's
/// message has not been copied into its buffer, which is the program's again, but lies where [`Placed`] says.
pub const IBV_WC_PLACED: c_uint = 1 << 31;

/// Where the software device has left a message, of which there is one in a process at a time, until the program is done with it.
/// An adapter's scatter to CQE is the same for short messages: the driver hands them over out of its completion queue.
#[repr(transparent)]
#[derive(Debug)]
pub struct Placed(AtomicPtr<u8>);

impl Placed {
    /// No message.
    #[allow(clippy::new_without_default, reason = "a value that is not shared says nothing")]
    pub const fn new() -> Placed {
        Placed(AtomicPtr::new(null_mut()))
    }

    /// Where it lies; null: there is none.
    #[inline]
    pub fn at(&self) -> *mut u8 {
        self.0.load(Ordering::Acquire)
    }

    /// The device: it lies there.
    #[inline]
    pub fn set(&self, at: *mut u8) {
        self.0.store(at, Ordering::Release);
    }

    /// The program is done with the message that lies there. False: none does, or it has been taken back.
    #[inline]
    pub fn release(&self, at: *mut u8) -> bool {
        let lies_there = self.at() == at;
        if lies_there {
            self.set(null_mut());
        }
        lies_there
    }
}

/// A work completion (`ibv_poll_cq(3)`). `imm` is an anonymous union in C. When `status` is not
/// success only `wr_id`, `status`, `qp_num` and `vendor_err` are valid.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: ibv_wc_status,
    pub opcode: ibv_wc_opcode,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm: ibv_wc_imm,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// Completion channel: a file descriptor that turns readable when an armed CQ gets a completion.
#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// Completion queue (`ibv_create_cq(3)`).
#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

/// Argument of `ibv_start_poll`; `comp_mask` must be 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}

/// Tag-matching part of a completion.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_wc_tm_info {
    pub tag: u64,
    pub r#priv: u32,
}

/// Moderation of completion events; the period is in microseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_moderate_cq {
    pub cq_count: u16,
    pub cq_period: u16,
}

/// Argument of `ibv_modify_cq(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_modify_cq_attr {
    pub attr_mask: u32,
    pub moderate: ibv_moderate_cq,
}

/// Argument of `ibv_create_cq_ex`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}

/// Extended completion queue: begins like [`ibv_cq`], completions are read by calls instead of structs.
#[repr(C)]
pub struct ibv_cq_ex {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
    pub comp_mask: u32,
    pub status: ibv_wc_status,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int>,
    pub next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>,
    pub end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
    pub read_opcode: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> ibv_wc_opcode>,
    pub read_vendor_err: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_byte_len: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    /// Returns a `__be32`.
    pub read_imm_data: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_qp_num: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_src_qp: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_wc_flags: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint>,
    pub read_slid: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_sl: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
    pub read_dlid_path_bits: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
    pub read_completion_ts: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u64>,
    pub read_cvlan: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u16>,
    pub read_flow_tag: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_tm_info: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_wc_tm_info)>,
    pub read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u64>,
}

zeroed_default!(ibv_wc, ibv_cq_init_attr_ex);
