//! Multicast: `ibv_attach_mcast(3)` and `ibv_detach_mcast(3)`.

use crate::abi::guard::guard;
use crate::abi::handle::{engine, qp_index};
use crate::engine::state::State;
use crate::errno::Errno;
use crate::objects::groups::{Groups, group_of};
use crate::shm::groups::Group;
use crate::shm::map::Map;
use rdma_sys::{IBV_QPT_UD, ibv_gid, ibv_qp};
use std::ffi::c_int;

/// From now on, the datagrams to a multicast group come to a UD queue pair, too. EINVAL: another kind of queue pair, or no address of a
/// group; ENOMEM: as many as there can be.
///
/// # Safety
/// `qp` is a live queue pair of this device, `gid` valid.
pub unsafe extern "C" fn attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: the program passes a live queue pair of this device and a valid GID, all that
    // change() needs.
    guard(|| unsafe { change(qp, gid, lid, Groups::join) })
}

/// No longer. EINVAL: the queue pair was not attached to that group.
///
/// # Safety
/// As for [`attach_mcast`].
pub unsafe extern "C" fn detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: the program passes a live queue pair of this device and a valid GID, all that
    // change() needs.
    guard(|| unsafe { change(qp, gid, lid, Groups::leave) })
}

/// # Safety
/// As for [`attach_mcast`].
unsafe fn change(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    lid: u16,
    how: impl FnOnce(&mut Groups, &Map, usize, Group) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // SAFETY: the caller passes a valid GID; every bit pattern is valid for its raw bytes.
    let gid = unsafe { (*gid).raw };
    let mut state = engine()?.enter();
    let State { qps, w, .. } = &mut *state;
    let qp = qps.get_mut(qp_index(qp)).filter(|qp| qp.kind == IBV_QPT_UD).ok_or(Errno::INVAL)?;
    let group = group_of(w.ports.card(qp.port).link_layer, gid, lid)?;
    how(&mut w.groups, &w.segment.map, qp.index, group)
}
