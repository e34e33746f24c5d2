//! Memory that peers map: `share_memory` and `unshare_memory` of the driver's table.

use crate::abi::guard::{guard, guard_ptr};
use crate::abi::handle::engine;
use crate::errno::Errno;
use std::ffi::{c_int, c_void};

/// `share_memory` of the driver table. Null, and errno: there is none.
pub unsafe extern "C" fn share_memory(len: usize) -> *mut c_void {
    guard_ptr(|| {
        let mut state = engine()?.enter();
        let w = &mut state.w;
        Ok(w.shared.alloc(&w.segment, &mut w.heap, len)?.as_ptr().cast())
    })
}

/// `unshare_memory` of the driver table. EBUSY: a region is in it.
pub unsafe extern "C" fn unshare_memory(addr: *mut c_void) -> c_int {
    guard(|| {
        let mut state = engine()?.enter();
        let (w, addr) = (&mut state.w, addr as u64);
        let len = w.shared.len_of(addr).ok_or(Errno::INVAL)?;
        if w.mrs.has_regions_in(addr, len) {
            return Err(Errno::BUSY);
        }
        w.shared.free(&w.segment, &mut w.heap, addr)
    })
}
