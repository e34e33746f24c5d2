//! SEND with invalidation, on the target's side (`initiator::window`).

use super::receive::{self, broken_receive};
use crate::objects::events::Subject;
use crate::objects::qp::Qp;
use crate::objects::world::World;
use crate::shm::cell::{Found, flag};
use rdma_sys::*;

/// A SEND with invalidation, or a part of it (target).
pub fn send_arrived(qp: &mut Qp, w: &mut World, found: &Found) {
    let head = &found.head;
    if head.flags & flag::LAST == 0 {
        return receive::send(qp, w, found);
    }
    match w.mrs.invalidable(head.imm, qp.num) {
        Some(index) => {
            w.mrs.unbind(&w.segment, index);
            receive::send(qp, w, found);
        }
        // Our own program was faster than the message.
        None => refuse(qp, w, found),
    }
}

fn refuse(qp: &mut Qp, w: &mut World, found: &Found) {
    w.async_event(qp.context, IBV_EVENT_QP_ACCESS_ERR, Subject::Qp(qp.index));
    if found.head.flags & flag::FIRST != 0 {
        return broken_receive(qp, w, found.head.pos, IBV_WC_LOC_ACCESS_ERR);
    }
    qp.fail(w);
}
