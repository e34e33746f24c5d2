//! Shared receive queues of ids, and the two kinds of queue pairs of XRC.
//!
//! ```text
//!   active    rdma_create_ep (RDMA_PS_IB, XRC_SEND)      a send queue pair
//!   passive   rdma_create_ep (RDMA_PS_IB, XRC_RECV)      connections get a receive queue pair of the domain
//!             rdma_create_srq on the new id              an XRC SRQ of the same domain; its number goes into the private data
//! ```
//! Whatever comes without a domain is in the private one of this process' device, as with librdmacm (rdma_create_srq_ex(3)).

use super::device;
use super::queues::{checked, drop_receive_queue, make_queue};
use super::world::{World, id_key, world};
use crate::abi::guard::guard_minus;
use crate::driver_table;
use crate::errno::Errno;
use rdma_cm_sys::rdma_cm_id;
use rdma_sys::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Makes the receive queue pair of an XRC domain: the one named, else the device's default.
pub fn create_receive_qp(
    world: &mut World,
    pd: *mut ibv_pd,
    qp_context: *mut c_void,
    xrcd: *mut ibv_xrcd,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: a domain of the device, ours or the program's.
    let context = unsafe { (*pd).context };
    let xrcd = if xrcd.is_null() { device::default_xrcd(world, context)? } else { xrcd };
    let mut init = ibv_qp_init_attr_ex {
        qp_context,
        qp_type: IBV_QPT_XRC_RECV,
        comp_mask: IBV_QP_INIT_ATTR_XRCD,
        xrcd,
        ..Default::default()
    };
    // SAFETY: an open context of ours, and a domain that is ours or that the program vouches for.
    checked(unsafe { ibv_create_qp_ex(driver_table(), context, &mut init) })
}

/// `rdma_create_srq`: an XRC SRQ for an id that receives by XRC, else a basic one.
pub unsafe extern "C" fn create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    guard_minus(|| {
        // SAFETY: an id of ours and attributes by the rules of the API.
        let (key, attr, receives) = unsafe { (id_key(id)?, &mut *attr, (*id).qp_type == IBV_QPT_XRC_RECV) };
        let mut ex = ibv_srq_init_attr_ex {
            srq_context: attr.srq_context,
            attr: attr.attr,
            comp_mask: IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
            srq_type: if receives { IBV_SRQT_XRC } else { IBV_SRQT_BASIC },
            pd,
            ..Default::default()
        };
        create(key, &mut ex)?;
        attr.attr = ex.attr;
        Ok(())
    })
}

/// `rdma_create_srq_ex`: what the attributes leave open (protection domain, XRC domain, completion queue) is the id's.
pub unsafe extern "C" fn create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    guard_minus(|| {
        // SAFETY: an id of ours and attributes by the rules of the API.
        let (key, attr) = unsafe { (id_key(id)?, &mut *attr) };
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
            return Err(Errno::INVAL);
        }
        create(key, attr)
    })
}

fn create(key: usize, attr: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    let mut world = world();
    let c = world.id(key)?.c();
    // SAFETY: our own struct.
    let (context, has_srq, own_pd) = unsafe { ((*c).verbs, !(*c).srq.is_null(), (*c).pd) };
    if context.is_null() || has_srq {
        return Err(Errno::INVAL);
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.pd = own_pd;
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    if attr.srq_type == IBV_SRQT_XRC {
        complete(&mut world, key, context, attr)?;
    }
    // SAFETY: an open context of ours, and objects that are ours or that the program vouches for.
    let srq = unsafe { ibv_create_srq_ex(driver_table(), context, attr) };
    if srq.is_null() {
        let error = Errno::last();
        drop_queue(&mut world, key);
        return Err(error);
    }
    // SAFETY: our own struct.
    unsafe { ((*c).srq, (*c).pd) = (srq, attr.pd) };
    Ok(())
}

/// Adds the domain and the completion queue that an XRC SRQ was given none of.
fn complete(
    world: &mut World,
    key: usize,
    context: *mut ibv_context,
    attr: &mut ibv_srq_init_attr_ex,
) -> Result<(), Errno> {
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
        attr.xrcd = device::default_xrcd(world, context)?;
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
        let id = world.id(key)?;
        let c = id.c();
        // SAFETY: our own struct.
        unsafe {
            if !(*c).recv_cq.is_null() {
                return Err(Errno::INVAL);
            }
            ((*c).recv_cq_channel, (*c).recv_cq) = make_queue(context, attr.attr.max_wr)?;
            attr.cq = (*c).recv_cq;
        }
        id.owns.srq_cq = true;
    }
    attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    Ok(())
}

/// Takes down the completion queue that was made for the id's XRC SRQ, if one was.
fn drop_queue(world: &mut World, key: usize) {
    let Ok(id) = world.id(key) else { return };
    if std::mem::take(&mut id.owns.srq_cq) {
        // SAFETY: our own struct; the SRQ that used the queue is gone.
        unsafe { drop_receive_queue(id.c()) };
    }
}

/// `rdma_destroy_srq`.
pub unsafe extern "C" fn destroy_srq(id: *mut rdma_cm_id) {
    guard_minus(|| {
        // SAFETY: an id of ours by the rules of the API; its SRQ is live while the pointer is set.
        unsafe {
            let key = id_key(id)?;
            let srq = std::mem::replace(&mut (*id).srq, null_mut());
            if !srq.is_null() {
                (driver_table().destroy_srq)(srq);
            }
            drop_queue(&mut world(), key);
        }
        Ok(())
    });
}
