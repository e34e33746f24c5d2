//! The end of a request of a send queue.

use crate::objects::qp::Qp;
use crate::objects::work::Work;
use crate::objects::world::World;
use rdma_sys::*;

/// Ends the request at the head of the SQ.
pub fn finish_head(qp: &mut Qp, w: &mut World, status: u32) {
    let Some(queued) = qp.pop_head() else { return };
    if status == IBV_WC_SUCCESS {
        qp.complete_send(w, &queued.work, status);
    } else {
        qp.recall();
        fail_send(qp, w, &queued.work, status);
    }
}

/// An error completion on an SQ: RC and XRC go to ERR, the others to SQE.
#[cold]
pub fn fail_send(qp: &mut Qp, w: &mut World, work: &Work, status: u32) {
    if matches!(qp.kind, IBV_QPT_RC | IBV_QPT_XRC_SEND) {
        qp.begin_end(w, Some((*work, status)));
    } else {
        qp.complete_send(w, work, status);
        qp.set_state(IBV_QPS_SQE, w);
        qp.flush_sends(w);
    }
}
