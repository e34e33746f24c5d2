//! Processes of a job: names, locality, and the head of `opal_proc_t` that both release families share.

use crate::class::opal_list_item_t;
use std::ffi::{c_char, c_void};
use std::mem::{offset_of, size_of};

/// Name of a process: job and rank in that job's MPI_COMM_WORLD.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct opal_process_name_t {
    pub jobid: u32,
    pub vpid: u32,
}

/// Stands for every process of a job, in lookups of facts about the job itself.
pub const OPAL_VPID_WILDCARD: u32 = u32::MAX - 1;

impl opal_process_name_t {
    /// Both halves in one word, the job above the rank: equal words mean equal names.
    pub fn word(self) -> u64 {
        u64::from(self.jobid) << 32 | u64::from(self.vpid)
    }

    /// The name whose [`word`](Self::word) this is.
    pub fn from_word(word: u64) -> Self {
        Self { jobid: (word >> 32) as u32, vpid: word as u32 }
    }
}

impl std::fmt::Display for opal_process_name_t {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} (job 0x{:08x})", self.vpid, self.jobid)
    }
}

/// A process as the BML hands it to `add_procs`. The last field exists in 4.1 only (5.0's struct ends at 64):
/// ask [`Abi::host_of`](crate::Abi::host_of) for it.
#[repr(C)]
pub struct opal_proc_t {
    pub super_: opal_list_item_t,
    pub proc_name: opal_process_name_t,
    pub proc_arch: u32,
    pub proc_flags: u16,
    pub proc_convertor: *mut c_void,
}

/// `opal_proc_t` of 4.1 to its end.
#[repr(C)]
pub(crate) struct opal_proc_4_1_t {
    pub(crate) common: opal_proc_t,
    pub(crate) proc_hostname: *mut c_char,
}

/// `opal_process_info_t` of 4.1 as far as we need it.
#[repr(C)]
pub(crate) struct opal_process_info_4_1_t {
    pub(crate) nodename: *const c_char,
    pub(crate) job_session_dir: *const c_char,
}

/// On the same host, as far as the launcher knows.
pub const OPAL_PROC_ON_HOST: u16 = 0x0004;
/// On the same board.
pub const OPAL_PROC_ON_BOARD: u16 = 0x0008;

impl opal_proc_t {
    /// True when the process runs on our node. The launcher decides by daemon, not by host name.
    pub fn is_on_local_node(&self) -> bool {
        const NODE: u16 = OPAL_PROC_ON_HOST | OPAL_PROC_ON_BOARD;
        self.proc_flags & NODE == NODE
    }
}

/// Bit per process that a module can reach; opaque, written with [`Abi::set_bit`](crate::Abi::set_bit).
#[repr(C)]
pub struct opal_bitmap_t {
    _opaque: [u8; 0],
}

const _: () = {
    assert!(size_of::<opal_process_name_t>() == 8);
    assert!(size_of::<opal_proc_t>() == 64);
    assert!(offset_of!(opal_proc_t, proc_name) == 40);
    assert!(offset_of!(opal_proc_t, proc_arch) == 48);
    assert!(offset_of!(opal_proc_t, proc_flags) == 52);
    assert!(offset_of!(opal_proc_t, proc_convertor) == 56);
    assert!(size_of::<opal_proc_4_1_t>() == 72);
    assert!(offset_of!(opal_proc_4_1_t, proc_hostname) == 64);
    assert!(offset_of!(opal_process_info_4_1_t, job_session_dir) == 8);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_survives_the_way_through_its_word() {
        let name = opal_process_name_t { jobid: 0x7c2a_0001, vpid: 3 };
        assert_eq!(name.word(), 0x7c2a_0001_0000_0003);
        assert_eq!(opal_process_name_t::from_word(name.word()), name);
    }
}
