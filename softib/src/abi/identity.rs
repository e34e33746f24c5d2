//! Who this device is: one port of a host on an imaginary InfiniBand subnet.
//!
//! GUID and GID derive from the kernel's boot id and the user: processes that can reach each other agree in them.

use crate::shm::segment::{boot_id, uid};
use std::sync::OnceLock;

/// The port's local identifier; one node, so one LID.
pub const LID: u16 = 1;
pub const PKEY: u16 = 0xffff;
pub const NAME: &str = "softib0";

/// The node's GUID in network order.
pub fn guid() -> [u8; 8] {
    static GUID: OnceLock<[u8; 8]> = OnceLock::new();
    *GUID.get_or_init(|| {
        let seed = boot_id().into_iter().chain(uid().to_be_bytes());
        // FNV-1a: it only has to be stable and to differ between hosts and users.
        let hash =
            seed.fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        let mut guid = hash.to_be_bytes();
        // Locally administered EUI-64.
        guid[0] = 0x02;
        guid
    })
}

/// GID 0: the default subnet prefix and the GUID.
pub fn gid() -> [u8; 16] {
    let mut gid = [0; 16];
    (gid[0], gid[1]) = (0xfe, 0x80);
    gid[8..].copy_from_slice(&guid());
    gid
}
