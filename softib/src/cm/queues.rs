//! Completion queues, with their channels, for queue pairs whose program brings none.

use super::world::Owned;
use crate::driver_table;
use crate::errno::Errno;
use rdma_cm_sys::rdma_cm_id;
use rdma_sys::*;
use std::ptr::null_mut;

/// A fresh queue pair, or why there is none.
pub fn checked(qp: *mut ibv_qp) -> Result<*mut ibv_qp, Errno> {
    if qp.is_null() { Err(Errno::last()) } else { Ok(qp) }
}

/// Completion queues, with channels, for a QP whose program brought none and whose id has none.
pub fn make_queues(
    c: *mut rdma_cm_id,
    context: *mut ibv_context,
    init: &mut ibv_qp_init_attr,
) -> Result<Owned, Errno> {
    let mut owns = Owned::default();
    // SAFETY: an open context of ours; our own struct.
    unsafe {
        if init.send_cq.is_null() {
            let (events, cq) = make_queue(context, init.cap.max_send_wr)?;
            ((*c).send_cq_channel, (*c).send_cq, init.send_cq, owns.send_cq) = (events, cq, cq, true);
        }
        if init.recv_cq.is_null() && init.qp_type != IBV_QPT_XRC_SEND {
            init.recv_cq = (*c).recv_cq;
        }
        if init.recv_cq.is_null() && init.qp_type != IBV_QPT_XRC_SEND {
            let made = make_queue(context, init.cap.max_recv_wr);
            if made.is_err() {
                drop_queues(c, owns);
            }
            let (events, cq) = made?;
            ((*c).recv_cq_channel, (*c).recv_cq, init.recv_cq, owns.recv_cq) = (events, cq, cq, true);
        }
    }
    Ok(owns)
}

/// One of them, armed.
pub fn make_queue(
    context: *mut ibv_context,
    depth: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    let table = driver_table();
    let depth = depth.clamp(1, 1 << 20).cast_signed();
    // SAFETY: an open context of ours.
    unsafe {
        let events = (table.create_comp_channel)(context);
        if events.is_null() {
            return Err(Errno::last());
        }
        let cq = (table.create_cq)(context, depth, null_mut(), events, 0);
        if cq.is_null() {
            let error = Errno::last();
            (table.destroy_comp_channel)(events);
            return Err(error);
        }
        ibv_req_notify_cq(cq, 0);
        Ok((events, cq))
    }
}

/// Takes down the queues that were made for the id.
pub fn drop_queues(c: *mut rdma_cm_id, owns: Owned) {
    let table = driver_table();
    // SAFETY: our own struct; the queues are ours, and the QP that used them is gone.
    unsafe {
        if owns.send_cq {
            (table.destroy_cq)(std::mem::replace(&mut (*c).send_cq, null_mut()));
            (table.destroy_comp_channel)(std::mem::replace(&mut (*c).send_cq_channel, null_mut()));
        }
        if owns.recv_cq {
            drop_receive_queue(c);
        }
    }
}

/// Takes down a receive completion queue that was made for the id.
///
/// # Safety
/// An id of ours; the queue is ours, and what used it is gone.
pub unsafe fn drop_receive_queue(c: *mut rdma_cm_id) {
    let table = driver_table();
    // SAFETY: the caller passes an id of ours whose receive queue and its channel are of our
    // making, and what used them is gone; the pointers to both are cleared.
    unsafe {
        (table.destroy_cq)(std::mem::replace(&mut (*c).recv_cq, null_mut()));
        (table.destroy_comp_channel)(std::mem::replace(&mut (*c).recv_cq_channel, null_mut()));
    }
}
