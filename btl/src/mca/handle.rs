//! Registration handles: the part that travels to the peer (the keys) in front, the registration
//! behind.

use opal_sys::*;
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
    mr: Mr,
    _lent: Lent,
}

/// Registrations that the upper layer has, over all modules: they may share a device's table of
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

impl RegHandle {
    /// Registers memory for what `flags` (`MCA_BTL_REG_FLAG_*`) allow, unless there are `most`
    /// registrations already.
    ///
    /// # Safety
    /// The memory stays mapped as long as the handle lives.
    pub unsafe fn register(
        pd: &Arc<Pd>,
        addr: *mut u8,
        len: usize,
        flags: u32,
        most: u32,
    ) -> Result<Box<RegHandle>, Refused> {
        let lent = Lent::take(most).ok_or(Refused::Share(most))?;
        // SAFETY: the memory stays mapped as long as the handle lives, and the handle owns the
        // registration.
        let mr = unsafe { Mr::register(pd, addr, len, access(flags, pd.context().is_iwarp())) }?;
        Ok(Box::new(RegHandle { rkey: mr.rkey().0, lkey: mr.lkey().0, mr, _lent: lent }))
    }

    /// The key for local use, of a handle of ours.
    ///
    /// # Safety
    /// `handle` came from `register` and is alive.
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

/// A peer that may write needs memory that the device may write locally, too (IBTA 10.6.3.1). On
/// iWARP the answer to a READ is written as a peer writes (ibv_reg_mr(3)).
fn access(flags: u32, iwarp: bool) -> Access {
    let mut access = Access::empty();
    if flags & (MCA_BTL_REG_FLAG_LOCAL_WRITE | MCA_BTL_REG_FLAG_REMOTE_WRITE) != 0 {
        access |= Access::LOCAL_WRITE;
    }
    if flags & MCA_BTL_REG_FLAG_REMOTE_WRITE != 0 || iwarp && access.contains(Access::LOCAL_WRITE) {
        access |= Access::REMOTE_WRITE;
    }
    if flags & MCA_BTL_REG_FLAG_REMOTE_READ != 0 {
        access |= Access::REMOTE_READ;
    }
    access
}
