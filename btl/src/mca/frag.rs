//! Descriptors: what the upper layer fills between `btl_alloc` (or `prepare_src`) and `btl_send`.
//!
//! The descriptor begins with OPAL's free-list header, which nothing reads; zeroes suit it. It
//! points to one segment, and that into a registered buffer behind our header. The buffer leaves
//! the descriptor when it is sent.

use crate::transport::SendBuf;
use opal_sys::{MCA_BTL_NO_ORDER, mca_btl_base_descriptor_t, mca_btl_base_segment_t};

/// A descriptor with its segment and its buffer.
#[repr(C)]
#[allow(missing_debug_implementations, reason = "foreign structures have nothing to print")]
pub struct Frag {
    /// First, so that a pointer to it is a pointer to the fragment.
    pub desc: mca_btl_base_descriptor_t,
    segment: mca_btl_base_segment_t,
    buf: Option<SendBuf>,
}

impl Frag {
    /// A fragment that waits in the free list.
    pub fn new() -> Box<Frag> {
        // SAFETY: a descriptor is numbers, raw pointers and an optional function: zero is valid for
        // each.
        let desc = unsafe { std::mem::zeroed() };
        let segment = mca_btl_base_segment_t { seg_addr: std::ptr::null_mut(), seg_len: 0 };
        Box::new(Frag { desc, segment, buf: None })
    }

    /// Arms the fragment with a buffer, of which `len` bytes are to be sent; the descriptor to hand
    /// out.
    pub fn hand_out(
        mut self: Box<Self>,
        mut buf: SendBuf,
        len: usize,
        flags: u32,
    ) -> *mut mca_btl_base_descriptor_t {
        self.segment.seg_addr = buf.payload().as_mut_ptr().cast();
        self.segment.seg_len = len as u64;
        self.buf = Some(buf);
        self.desc.des_segment_count = 1;
        self.desc.des_flags = flags;
        self.desc.order = MCA_BTL_NO_ORDER;
        self.desc.des_cbfunc = None;
        let raw = Box::into_raw(self);
        // SAFETY: `raw` is a live fragment; its segment lives as long as its descriptor.
        unsafe { (*raw).desc.des_segments = &raw mut (*raw).segment };
        raw.cast()
    }

    /// The fragment of a descriptor that `hand_out` made.
    ///
    /// # Safety
    /// `desc` came from `hand_out` and has not been taken back since.
    pub unsafe fn take_back(desc: *mut mca_btl_base_descriptor_t) -> Box<Frag> {
        // SAFETY: the descriptor is the fragment's first field, and the caller vouches for the
        // rest.
        unsafe { Box::from_raw(desc.cast()) }
    }

    /// What the upper layer wants sent; `None` when the buffer has been taken out or is smaller
    /// than that.
    pub fn payload(&mut self) -> Option<&[u8]> {
        let len = self.segment.seg_len as usize;
        self.buf.as_mut()?.payload().get(..len)
    }

    /// Takes the buffer out, and how many bytes of it the upper layer wants sent.
    pub fn buffer(&mut self) -> Option<(SendBuf, usize)> {
        self.buf.take().map(|buf| (buf, self.segment.seg_len as usize))
    }
}
