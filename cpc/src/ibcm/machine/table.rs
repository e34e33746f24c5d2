//! The decision for every state and every input, as one table, and the reasons.
//!
//! What is not named is ignored and counted. So are cells that only a confused driver could reach: the machine
//! trusts neither side. `cpc/tests/matrix.txt` says what follows from each cell and what is said; a test walks them all.
//!
//! # By column
//! * **Connect** counts in `Idle` only: elsewhere a connection is up, under way, or will not come.
//! * **Remove**: where the peer knows of nothing, everything is dropped. A REQ that is out is withdrawn (REJ "timeout"), and a REP that is still
//!   on its way disowned. Where the peer may have a connection (we have its id), it is asked to let go (DREQ). What is leaving already only becomes invisible.
//! * **Abandon** is Remove for an end that has failed: the peer hears that, and the endpoint stays, to refuse, until it is removed.
//! * **Unlist** is Remove, and reported, where the peer has neither asked nor answered: from then on its request waits for another endpoint.
//!   Elsewhere it may have the connection up, and the main thread hears what has become of that before it may take the endpoint down.
//! * **FirstData** stands in for the RTU (IBTA 12.9.7.2, "communication established"), also ahead of our own QPs' last step; the active
//!   side has had its REP and needs no such word.
//! * **QpsMade, QpsFailed, QpsUp, QpsDown** answer `CreateQps` and `BringUp`, which are asked for in `Creating` and `ToRts` only.
//! * **ReqNew**: a first REQ is served; one that crosses ours is decided by address; one from a peer that we take for connected says
//!   that it has started anew. Ids older than the last one, and queue pairs of another peer, have been rejected as stale before
//!   the table is asked, and the active side asks again under a new id (`REJECTED`).
//! * **ReqDup**: our REP answers it; before there is one, an MRA does (12.6.6). In `Connected` the active side has had our REP.
//! * **ReqUnlike**: refused, and reported where an endpoint still hopes for a connection.
//! * **Rep**: awaited in `ReqSent`; the same again means that the RTU was lost (`Connected`) or that we are slow (`ToRts`: MRA). Any other is of an
//!   exchange that is gone, and its sender must not wait: REJ "invalid communication id".
//! * **Rtu** ends `RepSent`. Where the connection is gone, a REJ says so, or the peer would keep half of it.
//! * **Mra** counts where its stage says that it answers what we wait for (12.6.6): the wait becomes what it asks for, no longer than
//!   `patience` in all.
//! * **Rej** counts if it is of this exchange. In `ReqSent` "stale" and "invalid communication id" mean: ask again, a bounded number of times;
//!   everything else is reported. Later, "stale", "invalid communication id", "timeout" and "no resources" mean that the peer has no such
//!   exchange any more, and may have another; everything else is reported. In `DreqSent` it is as good as a DREP. No REJ is ever answered.
//! * **Dreq** is answered in every state, for its sender waits; it ends what is connected. In `ReqSent` the REP that it follows
//!   may still come and must not connect to what is gone: a new id.
//! * **Drep** ends `DreqSent`; anywhere else it is a twin.
//! * **Displaced** ends what claims to be connected to a queue pair that another process has now (12.9.8.3.1, a stale connection of 12.4.1). The
//!   book's DREQ is left out: it would go to the process that had the queue pair, which is gone or has said goodbye itself.
//! * **Timeout**: repetition in `ReqSent`, `RepSent` and `DreqSent`, the end of `TimeWait`; no other state has a timer.

use super::Machine;
use super::state::{Input, InputKind, State, StateKind};
use crate::core::table::transitions;

transitions! { Ibcm:
    Idle | Queued | Creating { Remove: forget, Abandon: give_up, Dreq(dreq): answer_dreq }
    Idle { Connect: enqueue }
    Idle | Queued { Unlist: unlist_unanswered, ReqNew(received): accept }
    Creating {
        Unlist: unlist_creating, QpsMade(qpns): qps_ready, QpsFailed(error): create_failed, ReqNew(received): adopt, ReqDup: acknowledge_req, Rej(rej): rejected_later,
    }
    ReqSent {
        Remove: withdraw, Unlist: withdraw_and_unlist, Abandon: withdraw_and_give_up, ReqNew(received): merge, Rep(rep): replied, Mra(mra): wait_longer, Rej(rej): rejected,
        Dreq(dreq): dreq_overtook_rep, Timeout: repeat_req,
    }
    ToRts {
        FirstData: note_data, QpsUp: qps_up_done, QpsDown(error): bring_up_failed, ReqDup: acknowledge_req,
        Rep(rep): acknowledge_or_disown_rep,
    }
    RepSent {
        FirstData: confirm_by_data, ReqDup: repeat_rep, Rtu: confirm, Mra(mra): reply_later, Timeout: repeat_rep_or_fail,
    }
    Connected { Rep(rep): repeat_rtu }
    ToRts | RepSent | Connected {
        Remove: disconnect, Abandon: abandon, ReqNew(received): superseded, Rej(rej): rejected_later, Dreq(dreq): dreq_received,
        Displaced: displaced,
    }
    Idle | Queued | Creating | ReqSent | ToRts | RepSent | Connected { ReqUnlike(req): queues_differ }
    DreqSent {
        Remove: unlist_abandoned, Rej(rej): rejected_after_dreq, Dreq(dreq): dreqs_crossed, Drep: drep_received,
        Timeout: repeat_dreq,
    }
    DreqSent | Failed { ReqNew(received): refuse_spent }
    DreqSent | Failed | Disconnected { ReqUnlike(req): refuse_unlike }
    TimeWait { Timeout: forget }
    Failed | Disconnected { Remove: forget }
    Disconnected { ReqNew(received): park_request }
    TimeWait | Failed | Disconnected { Rtu(rtu): disown_rtu, Dreq(dreq): answer_dreq }
    Idle | Queued | Creating | RepSent | DreqSent | TimeWait | Failed | Disconnected { Rep(rep): disown_rep }
}
