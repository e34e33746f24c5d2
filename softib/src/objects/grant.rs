//! What a queue pair lets its peer do with memory.

use crate::shm::mrtable::Exposed;

/// What the remote QP lets its peer do, and its number.
#[derive(Debug, Clone, Copy)]
pub struct Grant {
    /// IBV_ACCESS_REMOTE_* flags.
    pub access: u32,
    /// Its protection domain.
    pub pd: u32,
    /// Its number.
    pub qpn: u32,
}

impl Grant {
    /// Where the `len` bytes are that requests call `addr`, if `need` is granted on them.
    #[inline]
    pub fn permits(&self, exposed: &Exposed, need: u32, addr: u64, len: u64) -> Option<u64> {
        let region = &exposed.region;
        let ours = region.pd == self.pd && (exposed.qpn == 0 || exposed.qpn == self.qpn);
        let fine = self.offers(need) && region.access & need == need && ours && region.covers(addr, len);
        fine.then(|| exposed.place(addr))
    }

    /// Whether the queue pair takes such requests at all.
    pub fn offers(&self, need: u32) -> bool {
        self.access & need == need
    }
}
