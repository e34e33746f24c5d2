//! What differs between release families, as one table of functions. A new family is a new implementation.

use crate::btl::{
    mca_btl_active_message_callback_t, mca_btl_base_descriptor_t, mca_btl_base_endpoint_t,
    mca_btl_base_module_t, mca_btl_base_segment_t, mca_btl_base_tag_t,
};
use crate::process::{opal_proc_t, opal_process_name_t};
use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;

/// What messages are handed up in, one after the other: their one piece, and what 4.1 says besides. It is made once for several of them.
#[allow(missing_debug_implementations, reason = "pointers of Open MPI's")]
pub struct Tray {
    pub(crate) segment: mca_btl_base_segment_t,
    pub(crate) descriptor: mca_btl_base_descriptor_t,
}

impl Tray {
    /// An empty one.
    #[inline]
    pub fn new() -> Tray {
        // SAFETY: pointers, numbers and an optional function: all-zero is valid.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    /// This piece is in it. What a callback has written elsewhere in the descriptor is there for the next one.
    #[inline(always)] // with every message
    pub(crate) fn put(&mut self, payload: &mut [u8]) {
        self.segment =
            mca_btl_base_segment_t { seg_addr: payload.as_mut_ptr().cast(), seg_len: payload.len() as u64 };
    }
}

impl Default for Tray {
    fn default() -> Tray {
        Tray::new()
    }
}

/// Calls a receive callback with the piece in a tray: the callback and its argument, the module, the endpoint (which only 5.0
/// passes on; NULL when unknown), the tag, the tray. All of them are passed in registers.
///
/// # Safety
/// The callback comes from the table of active messages and has a function; the piece is readable memory; no lock of ours is held,
/// for the callback may call every function of the module.
pub type Deliver = unsafe fn(
    mca_btl_active_message_callback_t,
    *mut mca_btl_base_module_t,
    *mut mca_btl_base_endpoint_t,
    mca_btl_base_tag_t,
    &mut Tray,
);

/// Functions whose ABI depends on the release family.
pub trait Family: Send + Sync + std::fmt::Debug {
    /// For messages: "Open MPI 4.1 (BTL 3.1)".
    fn name(&self) -> &'static str;

    /// Publishes bytes under a key for every process of the job; visible after MPI_Init's exchange.
    ///
    /// # Errors
    /// [`ModexError`] when the value is too large or the runtime refused it.
    fn modex_put(&self, key: &CStr, bytes: &[u8]) -> Result<(), ModexError>;

    /// Fetches what a process published; may wait for the runtime: 2 s in 4.1, when nothing was published.
    ///
    /// # Errors
    /// [`ModexError::NotFound`] when that process published nothing under the key.
    fn modex_get(&self, process: opal_process_name_t, key: &CStr) -> Result<Vec<u8>, ModexError>;

    /// Number of processes of a job.
    ///
    /// # Errors
    /// [`ModexError`] when the runtime does not know.
    fn job_size(&self, jobid: u32) -> Result<u32, ModexError>;

    /// The flag for a module whose puts are in the peer's memory when they are complete; 0 if the family has none.
    fn remote_completion(&self) -> u32;

    /// Name of the host where a process runs, if it is known here without a request to another
    /// process.
    ///
    /// # Safety
    /// `process` comes from `add_procs` or [`Abi::proc_for_name`](crate::Abi::proc_for_name) and has not been deleted.
    unsafe fn host_of(&self, process: *const opal_proc_t) -> Option<String>;

    /// Where in `opal_process_info` the job's session directory is.
    fn session_dir_offset(&self) -> usize;

    /// How a receive callback is called.
    fn deliver(&self) -> Deliver;
}

/// Why an exchange of addresses failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModexError {
    /// Nothing under this key: the peer has no such component, or another version of it.
    NotFound { key: String },
    /// The runtime refused; `status` is its code: OPAL's in 4.1, PMIx's in 5.0.
    Refused { key: String, status: c_int },
    /// More bytes than the runtime's 31-bit size.
    TooLarge { key: String, bytes: usize },
    /// The value has another type than expected.
    WrongType { key: String, kind: u16 },
}

impl std::fmt::Display for ModexError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFound { key } => write!(f, "modex key {key} is not published by the peer"),
            Self::Refused { key, status } => write!(f, "modex key {key}: the runtime answered {status}"),
            Self::TooLarge { key, bytes } => write!(f, "modex key {key}: {bytes} bytes are too many"),
            Self::WrongType { key, kind } => {
                write!(f, "modex key {key} has type {kind}, not the expected one")
            }
        }
    }
}

impl std::error::Error for ModexError {}

/// A message arrived for a tag that has no receiver (or for no valid tag at all): drop it, and
/// count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoReceiver {
    /// The tag that it came with.
    pub tag: u8,
}

impl std::fmt::Display for NoReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no function is registered for active message tag 0x{:02x}", self.tag)
    }
}

impl std::error::Error for NoReceiver {}
