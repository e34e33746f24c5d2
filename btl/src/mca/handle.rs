//! Registration handles: the part that travels to the peer (the keys) in front, the registration
//! behind. All users of a registration have the same handle.

use crate::protocol::regcache::Key;
use opal_sys::*;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use verbs::{Access, LKey, Mr, Pd, RKey};

/// Bytes of a handle that ob1 copies into its messages.
pub const HANDLE_LEN: usize = 8;

/// A registration as Open MPI holds it. Peers see the first [`HANDLE_LEN`] bytes.
#[repr(C)]
#[derive(Debug)]
pub struct RegHandle {
    rkey: u32,
    lkey: u32,
    key: Key,
    _registered: Registered,
}

/// A registration of user memory.
#[derive(Debug)]
pub struct Registered {
    mr: Mr,
    _lent: Lent,
}

/// Registrations of user memory, those without a user among them, over all modules: they may share a device's table of
/// keys.
static LENT: AtomicU32 = AtomicU32::new(0);

/// One of them.
#[derive(Debug)]
struct Lent;

impl Lent {
    /// None: there are `most` already.
    fn take(most: u32) -> Option<Lent> {
        let more = |lent: u32| (lent < most).then_some(lent + 1);
        LENT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Lent)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        LENT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why there is no registration. The upper layer sends copies instead, or comes again.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It has its share.
    #[error(
        "{0} registrations are in use for large messages, and the rest of the device's is kept for the transport's own buffers: \
         further large messages are copied"
    )]
    Share(u32),
    /// The transport has no buffers of its own.
    #[error("no registration for a large message: {0}")]
    Buffers(#[from] verbs::PoolError),
    /// The device said no.
    #[error("no registration for a large message: {0}")]
    Device(#[from] verbs::Error),
}

const _: () = assert!(std::mem::offset_of!(RegHandle, lkey) + 4 == HANDLE_LEN);

impl Registered {
    /// Registers memory, unless there are `most` registrations already.
    ///
    /// # Safety
    /// As [`Mr::register`].
    pub unsafe fn new(
        pd: &Arc<Pd>,
        range: &Range<usize>,
        access: Access,
        most: u32,
    ) -> Result<Self, Refused> {
        let lent = Lent::take(most).ok_or(Refused::Share(most))?;
        // SAFETY: the caller promises what this asks for.
        let mr = unsafe { Mr::register(pd, range.start as *mut u8, range.len(), access) }?;
        Ok(Registered { mr, _lent: lent })
    }

    /// The handle of a registration that the cache has under `key`.
    pub fn handle(self, key: Key) -> RegHandle {
        RegHandle { rkey: self.mr.rkey().0, lkey: self.mr.lkey().0, key, _registered: self }
    }
}

impl Refused {
    /// Fewer registrations would help.
    pub fn is_shortage(&self) -> bool {
        match self {
            Refused::Share(_) | Refused::Buffers(_) => true,
            Refused::Device(error) => error.errno() == libc::ENOMEM,
        }
    }
}

impl RegHandle {
    /// What the cache has the registration under.
    ///
    /// # Safety
    /// `handle` is one that `register_mem` returned, not deregistered yet.
    pub unsafe fn key(handle: *const mca_btl_base_registration_handle_t) -> Key {
        // SAFETY: the handle is a live `RegHandle`, which is only read.
        unsafe { (*handle.cast::<RegHandle>()).key }
    }

    /// The key for local use, of a handle of ours.
    ///
    /// # Safety
    /// `handle` is one that `register_mem` returned, not deregistered yet.
    pub unsafe fn local(handle: *const mca_btl_base_registration_handle_t) -> LKey {
        // SAFETY: the handle is a live `RegHandle`.
        LKey(unsafe { (*handle.cast::<RegHandle>()).lkey })
    }

    /// The key for remote use, of a peer's handle: [`HANDLE_LEN`] bytes anywhere in a message.
    ///
    /// # Safety
    /// `handle` points to [`HANDLE_LEN`] readable bytes.
    pub unsafe fn remote(handle: *const mca_btl_base_registration_handle_t) -> RKey {
        // SAFETY: the first 4 of HANDLE_LEN readable bytes; an unaligned read takes any address.
        RKey(unsafe { handle.cast::<u32>().read_unaligned() })
    }
}

/// What `flags` (`MCA_BTL_REG_FLAG_*`) ask for. A peer that may write, or change words, needs memory that the device may write locally, too (IBTA 10.6.3.1). On
/// iWARP the answer to a READ is written as a peer writes (ibv_reg_mr(3)).
pub fn access(flags: u32, iwarp: bool, atomics: bool) -> Access {
    let mut access = Access::empty();
    let writes =
        MCA_BTL_REG_FLAG_LOCAL_WRITE | MCA_BTL_REG_FLAG_REMOTE_WRITE | MCA_BTL_REG_FLAG_REMOTE_ATOMIC;
    if flags & writes != 0 {
        access |= Access::LOCAL_WRITE;
    }
    if atomics && flags & MCA_BTL_REG_FLAG_REMOTE_ATOMIC != 0 {
        access |= Access::REMOTE_ATOMIC;
    }
    if flags & MCA_BTL_REG_FLAG_REMOTE_WRITE != 0 || iwarp && access.contains(Access::LOCAL_WRITE) {
        access |= Access::REMOTE_WRITE;
    }
    if flags & MCA_BTL_REG_FLAG_REMOTE_READ != 0 {
        access |= Access::REMOTE_READ;
    }
    access
}
