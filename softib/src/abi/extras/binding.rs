//! What a program asks for when it binds a memory window (ibv_bind_mw(3), IBV_WR_BIND_MW), checked.

use crate::abi::handle::pd_key;
use crate::errno::Errno;
use crate::objects::mw::{Binding, WINDOW_ACCESS};
use crate::shm::mrtable::index_of;
use rdma_sys::*;

/// A bind in a list of work requests, which is for type 2 windows. EINVAL, EPERM: it is none that could be carried out.
pub fn requested(bind: &ibv_send_wr_bind_mw) -> Result<Binding, Errno> {
    // SAFETY: the program passes a window of ours.
    let (kind, own) = unsafe { ((*bind.mw).r#type, (*bind.mw).rkey) };
    if kind != IBV_MW_TYPE_2 || index_of(own) != index_of(bind.rkey) {
        return Err(Errno::INVAL);
    }
    check(bind.mw, bind.rkey, &bind.bind_info)
}

/// What can be wrong with a bind before it is its turn.
pub fn check(mw: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> Result<Binding, Errno> {
    let access = info.mw_access_flags;
    let known = WINDOW_ACCESS | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE;
    if access & !known != 0 || info.mr.is_null() && (info.addr != 0 || info.length != 0) {
        return Err(Errno::INVAL);
    }
    let mut binding = Binding { rkey, mr: 0, access, addr: info.addr, len: info.length };
    if !info.mr.is_null() {
        // SAFETY: the program passes a region and a window of ours.
        if unsafe { pd_key((*info.mr).pd) != pd_key((*mw).pd) } {
            return Err(Errno(libc::EPERM));
        }
        // SAFETY: the program passes null or a region of ours, and it is not null (checked above).
        binding.mr = unsafe { (*info.mr).lkey };
    }
    Ok(binding)
}
