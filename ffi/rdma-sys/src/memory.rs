//! Protection domains, memory regions, memory windows, device memory, thread domains.

use core::ffi::{c_int, c_uint, c_void};

use crate::ibv_context;

/// What an allocator of a parent domain returns to leave the allocation to the library.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = usize::MAX as *mut c_void;

/// Allocator of a parent domain: pd, pd_context, size, alignment, resource type.
pub type ibv_pd_alloc_fn = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;
/// Its counterpart: pd, pd_context, pointer, resource type.
pub type ibv_pd_free_fn = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

c_enums! {
    /// Rights of a memory region, or of the peer of a queue pair.
    ibv_access_flags: u32 {
        IBV_ACCESS_LOCAL_WRITE = 1, IBV_ACCESS_REMOTE_WRITE = 1 << 1, IBV_ACCESS_REMOTE_READ = 1 << 2,
        IBV_ACCESS_REMOTE_ATOMIC = 1 << 3, IBV_ACCESS_MW_BIND = 1 << 4, IBV_ACCESS_ZERO_BASED = 1 << 5,
        IBV_ACCESS_ON_DEMAND = 1 << 6, IBV_ACCESS_HUGETLB = 1 << 7, IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
        IBV_ACCESS_OPTIONAL_FIRST = 1 << 20, IBV_ACCESS_OPTIONAL_RANGE = 0x3ff0_0000,
    }
    /// What `ibv_rereg_mr` changes.
    ibv_rereg_mr_flags: u32 {
        IBV_REREG_MR_CHANGE_TRANSLATION = 1 << 0, IBV_REREG_MR_CHANGE_PD = 1 << 1,
        IBV_REREG_MR_CHANGE_ACCESS = 1 << 2, IBV_REREG_MR_FLAGS_SUPPORTED = 7,
    }
    /// Memory window types.
    ibv_mw_type: u32 { IBV_MW_TYPE_1 = 1, IBV_MW_TYPE_2 = 2 }
    /// Advice of `ibv_advise_mr`.
    ibv_advise_mr_advice: u32 {
        IBV_ADVISE_MR_ADVICE_PREFETCH = 0, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1,
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2,
    }
    /// Flags of `ibv_advise_mr`.
    ibv_advise_mr_flags: u32 { IBV_ADVISE_MR_FLAG_FLUSH = 1 << 0 }
    /// What `ibv_rereg_mr` returns when it fails: which region is still valid.
    ibv_rereg_mr_err_code: i32 {
        IBV_REREG_MR_ERR_INPUT = -1, IBV_REREG_MR_ERR_DONT_FORK_NEW = -2, IBV_REREG_MR_ERR_DO_FORK_OLD = -3,
        IBV_REREG_MR_ERR_CMD = -4, IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5,
    }
    /// Answer of `ibv_is_fork_initialized`.
    ibv_fork_status: u32 { IBV_FORK_DISABLED = 0, IBV_FORK_ENABLED = 1, IBV_FORK_UNNEEDED = 2 }
    /// Bits of `ibv_dm.comp_mask`.
    ibv_dm_mask: u32 { IBV_DM_MASK_HANDLE = 1 << 0 }
    /// Bits of `ibv_parent_domain_init_attr.comp_mask`.
    ibv_parent_domain_init_attr_mask: u32 {
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1 << 0, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1,
    }
}

/// Protection domain (`ibv_alloc_pd(3)`).
#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}

/// Memory region (`ibv_reg_mr(3)`).
#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// Memory window (`ibv_alloc_mw(3)`).
#[repr(C)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub r#type: ibv_mw_type,
}

/// What a memory window is bound to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

/// A bind request for a type 1 window (`ibv_bind_mw(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mw_bind {
    pub wr_id: u64,
    pub send_flags: c_uint,
    pub bind_info: ibv_mw_bind_info,
}

/// Request for device memory (`ibv_alloc_dm(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_alloc_dm_attr {
    pub length: usize,
    pub log_align_req: u32,
    pub comp_mask: u32,
}

/// Device memory, with its copy functions.
#[repr(C)]
pub struct ibv_dm {
    pub context: *mut ibv_context,
    pub memcpy_to_dm: Option<unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int>,
    pub memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int>,
    pub comp_mask: u32,
    pub handle: u32,
}

/// Thread domain: a promise that its objects are used by one thread at a time.
#[repr(C)]
pub struct ibv_td {
    pub context: *mut ibv_context,
}

/// Attributes of a thread domain (`ibv_alloc_td(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_td_init_attr {
    pub comp_mask: u32,
}

/// A protection domain with a thread domain or allocators of its own
/// (`ibv_alloc_parent_domain(3)`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_parent_domain_init_attr {
    pub pd: *mut ibv_pd,
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc: Option<ibv_pd_alloc_fn>,
    pub free: Option<ibv_pd_free_fn>,
    pub pd_context: *mut c_void,
}

zeroed_default!(ibv_mw_bind_info, ibv_mw_bind, ibv_parent_domain_init_attr);
