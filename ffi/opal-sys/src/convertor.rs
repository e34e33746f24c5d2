//! The convertor: how a message lies in the user's memory, and the copy out of it.
//!
//! Only the head of `opal_convertor_t` is declared: enough for the inline functions of the C headers that tell
//! contiguous from scattered memory. The rest belongs to the library; we never make or copy a convertor.
//!
//! A convertor is valid only when there is something to convert: ob1 passes an uninitialised one with payload
//! size 0 to `btl_sendi`.

use crate::class::opal_object_t;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;

/// Sender and receiver represent data in the same way.
pub const CONVERTOR_HOMOGENEOUS: u32 = 0x0008_0000;
/// The data lies in the memory of an accelerator (4.1: of a CUDA device), where we may not touch it.
pub const CONVERTOR_ACCELERATOR: u32 = 0x0040_0000;
/// The datatype is contiguous (but may have gaps between two of its kind).
pub const OPAL_DATATYPE_FLAG_CONTIGUOUS: u32 = 0x0010;
/// Contiguous, and no gaps.
pub const OPAL_DATATYPE_FLAG_NO_GAPS: u32 = 0x0020;

/// Head of a datatype description.
#[repr(C)]
pub struct opal_datatype_t {
    pub super_: opal_object_t,
    pub flags: u16,
    pub id: u16,
    pub bdt_used: u32,
    pub size: usize,
    /// Distance in bytes from the user's address to the first byte of data; may be negative.
    pub true_lb: isize,
}

/// Head of a convertor.
#[repr(C)]
pub struct opal_convertor_t {
    pub super_: opal_object_t,
    pub remote_arch: u32,
    pub flags: u32,
    /// Bytes of the whole message.
    pub local_size: usize,
    pub remote_size: usize,
    pub p_desc: *const opal_datatype_t,
    pub use_desc: *const c_void,
    pub count: usize,
    pub stack_size: u32,
    pub p_base_buf: *mut u8,
    pub p_stack: *mut c_void,
    pub f_advance: Option<unsafe extern "C" fn()>,
    pub master: *mut c_void,
    pub stack_pos: u32,
    pub partial_length: usize,
    /// Bytes already packed.
    pub b_converted: usize,
}

pub(crate) type opal_convertor_pack_fn =
    unsafe extern "C" fn(*mut opal_convertor_t, *mut libc::iovec, *mut u32, *mut usize) -> i32;

impl opal_convertor_t {
    /// True when the data must be packed by Open MPI; false when it lies in one piece at [`current_pointer`](Self::current_pointer).
    #[inline]
    pub fn need_buffers(&self) -> bool {
        let contiguous = self.flags & OPAL_DATATYPE_FLAG_NO_GAPS != 0
            || (self.count == 1 && self.flags & OPAL_DATATYPE_FLAG_CONTIGUOUS != 0);
        let ours = self.flags & (CONVERTOR_HOMOGENEOUS | CONVERTOR_ACCELERATOR) == CONVERTOR_HOMOGENEOUS;
        !ours || !contiguous
    }

    /// Whether `len` bytes or more have not been packed yet. Both of the convertor's counts are lengths of memory.
    #[inline]
    pub fn has(&self, len: usize) -> bool {
        self.b_converted.wrapping_add(len) <= self.local_size
    }

    /// Address of the next byte, for contiguous data.
    ///
    /// # Safety
    /// The convertor is prepared for a send of at least one byte (so that its datatype is set).
    #[inline]
    pub unsafe fn current_pointer(&self) -> *const u8 {
        // SAFETY: the caller vouches for a prepared convertor, whose datatype outlives it.
        let true_lb = unsafe { (*self.p_desc).true_lb };
        self.p_base_buf.wrapping_add(self.b_converted).wrapping_offset(true_lb)
    }
}

/// Copies the next bytes of the message to `out`; returns how many, at most `out.len()`.
///
/// # Safety
/// As [`opal_convertor_t::current_pointer`], and the user's buffer is readable.
pub(crate) unsafe fn pack(
    pack: opal_convertor_pack_fn,
    convertor: *mut opal_convertor_t,
    out: &mut [u8],
) -> Result<usize, c_int> {
    let mut iov = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let mut iovs = 1u32;
    let mut packed = out.len();
    // SAFETY: the vector describes memory that we may write, and the caller vouches for the convertor.
    let status = unsafe { pack(convertor, &mut iov, &mut iovs, &mut packed) };
    if status < 0 { Err(status) } else { Ok(packed) }
}

const _: () = {
    assert!(offset_of!(opal_datatype_t, flags) == 16);
    assert!(offset_of!(opal_datatype_t, size) == 24);
    assert!(offset_of!(opal_datatype_t, true_lb) == 32);
    assert!(offset_of!(opal_convertor_t, flags) == 20);
    assert!(offset_of!(opal_convertor_t, local_size) == 24);
    assert!(offset_of!(opal_convertor_t, p_desc) == 40);
    assert!(offset_of!(opal_convertor_t, count) == 56);
    assert!(offset_of!(opal_convertor_t, p_base_buf) == 72);
    assert!(offset_of!(opal_convertor_t, b_converted) == 120);
};

#[cfg(test)]
mod tests {
    use super::*;

    fn convertor(flags: u32, count: usize) -> opal_convertor_t {
        // SAFETY: numbers, raw pointers and an optional function: all-zero is valid.
        let mut convertor: opal_convertor_t = unsafe { std::mem::zeroed() };
        convertor.flags = flags;
        convertor.count = count;
        convertor
    }

    #[test]
    fn contiguous_data_needs_no_buffer() {
        assert!(!convertor(CONVERTOR_HOMOGENEOUS | OPAL_DATATYPE_FLAG_NO_GAPS, 7).need_buffers());
        assert!(!convertor(CONVERTOR_HOMOGENEOUS | OPAL_DATATYPE_FLAG_CONTIGUOUS, 1).need_buffers());
    }

    #[test]
    fn gaps_a_foreign_architecture_or_an_accelerators_memory_need_a_buffer() {
        let device = CONVERTOR_HOMOGENEOUS | CONVERTOR_ACCELERATOR | OPAL_DATATYPE_FLAG_NO_GAPS;
        assert!(convertor(device, 1).need_buffers());
        assert!(convertor(CONVERTOR_HOMOGENEOUS | OPAL_DATATYPE_FLAG_CONTIGUOUS, 2).need_buffers());
        assert!(convertor(CONVERTOR_HOMOGENEOUS, 1).need_buffers());
        assert!(convertor(OPAL_DATATYPE_FLAG_NO_GAPS, 1).need_buffers());
    }

    #[test]
    fn the_current_pointer_counts_lower_bound_and_progress() {
        let mut memory = [0u8; 64];
        // SAFETY: a datatype is numbers and pointers: all-zero is valid.
        let mut datatype: opal_datatype_t = unsafe { std::mem::zeroed() };
        datatype.true_lb = -8;
        let mut convertor = convertor(0, 1);
        convertor.p_desc = &datatype;
        convertor.p_base_buf = memory[16..].as_mut_ptr();
        convertor.b_converted = 4;
        convertor.local_size = 10;
        // SAFETY: the datatype is set.
        assert_eq!(unsafe { convertor.current_pointer() }, memory[12..].as_ptr());
        assert!(convertor.has(6) && !convertor.has(7));
    }
}
