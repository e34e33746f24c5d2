//! The decision for every state and every input, as one table, and the reasons.
//!
//! `no` is [`Machine::ignore`]: counted, nothing done. Cells that only a confused driver could reach are `no` as well: the machine
//! trusts neither side. `cpc/tests/matrix.txt` says what follows from each cell and what is said; a test walks them all.
//!
//! # By column
//! * **Connect** counts in `Idle` only: elsewhere a connection is up, under way, or will not come.
//! * **Remove**: where the peer knows of nothing, everything is dropped. A REQ that is out is withdrawn (REJ "timeout"), and a REP that is still
//!   on its way disowned. Where the peer may have a connection (we have its id), it is asked to let go (DREQ). What is leaving already only becomes invisible.
//! * **Abandon** is Remove for an end that has failed: the peer hears that, and the endpoint stays, to refuse, until it is removed.
//! * **FirstData** stands in for the RTU (IBTA 12.9.7.2, "communication established"), also ahead of our own QPs' last step; the active
//!   side has had its REP and needs no such word.
//! * **QpsMade, QpsFailed, QpsUp, QpsDown** answer `CreateQps` and `BringUp`, which are asked for in `Opening` and `Rising` only.
//! * **ReqNew**: a first REQ is served; one that crosses ours is decided by address; one from a peer that we take for connected says
//!   that it has started anew. Ids older than the last one, and queue pairs that somebody else has, have been rejected as stale before
//!   the table is asked, and the active side asks again under a new id (`REJECTED`).
//! * **ReqDup**: our REP answers it; before there is one, an MRA does (12.6.6). In `Up` the active side has had our REP.
//! * **ReqUnlike**: refused, and reported where an endpoint still hopes for a connection.
//! * **Rep**: awaited in `ReqSent`; the same again means that the RTU was lost (`Up`) or that we are slow (`Rising`: MRA). Any other is of an
//!   exchange that is gone, and its sender must not wait: REJ "invalid communication id".
//! * **Rtu** ends `RepSent`. To whom the connection is gone, he says so: REJ, or the peer would keep half of it.
//! * **Mra** counts where its stage says that it answers what we wait for (12.6.6): the wait becomes what it asks for, no longer than
//!   `patience` in all.
//! * **Rej** counts if it is of this exchange. In `ReqSent` "stale" and "invalid communication id" mean: ask again, a bounded number of times;
//!   everything else is reported. Later, "stale", "invalid communication id", "timeout" and "no resources" mean that the peer has no such
//!   exchange any more, and may have another; everything else is reported. In `Leaving` it is as good as a DREP. No REJ is ever answered.
//! * **Dreq** is answered in every state, for its sender waits; it ends what is connected. In `ReqSent` the REP that it follows
//!   may still come and must not connect to what is gone: a new id.
//! * **Drep** ends `Leaving`; anywhere else it is a twin.
//! * **Displaced** ends what claims to be connected to a queue pair that another process has now (12.9.8.3.1, a stale connection of 12.4.1). The
//!   book's DREQ is left out: it would go to the process that had the queue pair, which is gone or has said goodbye itself.
//! * **Timeout**: repetition in `ReqSent`, `RepSent` and `Leaving`, the end of `TimeWait`; nobody else has a timer.

use std::time::Instant;

use super::Machine;
use super::state::{Input, InputKind, StateKind};

pub(super) type Handler = fn(&mut Machine, usize, &Input<'_>, Instant);

const INPUTS: usize = InputKind::Timeout as usize + 1;
const STATES: usize = StateKind::Left as usize + 1;

/// The handler of one cell.
pub(super) fn handler(state: StateKind, input: InputKind) -> Handler {
    TABLE[state as usize][input as usize]
}

const NO: Handler = Machine::ignore;

const ENQUEUE: Handler = Machine::enqueue;
const OPENED: Handler = Machine::opened;
const OPEN_FAILED: Handler = Machine::open_failed;
const ASK_AGAIN: Handler = Machine::ask_again;
const REPLIED: Handler = Machine::replied;
const RISEN: Handler = Machine::risen;
const RISE_FAILED: Handler = Machine::rise_failed;
const REPEAT_RTU: Handler = Machine::repeat_rtu;
const DISOWN: Handler = Machine::disown_rep;
const WAIT: Handler = Machine::wait_longer;
const OUTRUN: Handler = Machine::outrun;
const REJECTED: Handler = Machine::rejected;

const ACCEPT: Handler = Machine::accept;
const ADOPT: Handler = Machine::adopt;
const MERGE: Handler = Machine::merge;
const NOTE_DATA: Handler = Machine::note_data;
const BUSY: Handler = Machine::ask_patience;
const BUSY_REP: Handler = Machine::ask_patience_or_disown;
const CONFIRM: Handler = Machine::confirm;
const BY_DATA: Handler = Machine::confirm_by_data;
const REPEAT_REP: Handler = Machine::repeat_rep;
const REPLY_AGAIN: Handler = Machine::reply_again;
const REPLY_LATER: Handler = Machine::reply_later;

const FORGET: Handler = Machine::forget;
const GIVE_UP: Handler = Machine::give_up;
const WITHDRAW: Handler = Machine::withdraw;
const WITHDRAWN: Handler = Machine::withdraw_and_give_up;
const ABANDON: Handler = Machine::abandon;
const UNLIST: Handler = Machine::unlist_abandoned;
const LEAVE: Handler = Machine::leave;
const LEAVE_AGAIN: Handler = Machine::leave_again;
const RELEASED: Handler = Machine::released;
const REJECTED_TOO: Handler = Machine::rejected_too;
const BOTH: Handler = Machine::release_both;
const AGREE: Handler = Machine::answer_dreq;
const LET_GO: Handler = Machine::let_go;
const LET_DOWN: Handler = Machine::let_down;
const SUPERSEDED: Handler = Machine::superseded;
const DISOWN_RTU: Handler = Machine::disown_rtu;
const HOLD: Handler = Machine::hold;
const TURN_AWAY: Handler = Machine::turn_away;
const MISFIT: Handler = Machine::misfit;
const UNLIKE: Handler = Machine::refuse_unlike;
const DISPLACED: Handler = Machine::displaced;

#[rustfmt::skip]
const TABLE: [[Handler; INPUTS]; STATES] = [
    //              Connect  Remove  Abandon  FirstData   QpsMade QpsFailed   QpsUp QpsDown      ReqNew      ReqDup      ReqUnlike Rep         Rtu         Mra          Rej       Dreq    Drep      Displaced  Timeout
    /* Idle     */ [ENQUEUE, FORGET, GIVE_UP, NO,         NO,     NO,          NO,    NO,          ACCEPT,     NO,         MISFIT,   DISOWN,     NO,         NO,          NO,       AGREE,  NO,       NO,        NO],
    /* Queued   */ [NO,      FORGET, GIVE_UP, NO,         NO,     NO,          NO,    NO,          ACCEPT,     NO,         MISFIT,   DISOWN,     NO,         NO,          NO,       AGREE,  NO,       NO,        NO],
    /* Opening  */ [NO,      FORGET, GIVE_UP, NO,         OPENED, OPEN_FAILED, NO,    NO,          ADOPT,      BUSY,       MISFIT,   DISOWN,     NO,         NO,          LET_DOWN, AGREE,  NO,       NO,        NO],
    /* ReqSent  */ [NO,      WITHDRAW, WITHDRAWN, NO,         NO,     NO,          NO,    NO,          MERGE,      NO,         MISFIT,   REPLIED,    NO,         WAIT,        REJECTED, OUTRUN, NO,       NO,        ASK_AGAIN],
    /* Rising   */ [NO,      LEAVE,  ABANDON, NOTE_DATA,  NO,     NO,          RISEN, RISE_FAILED, SUPERSEDED, BUSY,       MISFIT,   BUSY_REP,   NO,         NO,          LET_DOWN, LET_GO, NO,       DISPLACED, NO],
    /* RepSent  */ [NO,      LEAVE,  ABANDON, BY_DATA,    NO,     NO,          NO,    NO,          SUPERSEDED, REPEAT_REP, MISFIT,   DISOWN,     CONFIRM,    REPLY_LATER, LET_DOWN, LET_GO, NO,       DISPLACED, REPLY_AGAIN],
    /* Up       */ [NO,      LEAVE,  ABANDON, NO,         NO,     NO,          NO,    NO,          SUPERSEDED, NO,         MISFIT,   REPEAT_RTU, NO,         NO,          LET_DOWN, LET_GO, NO,       DISPLACED, NO],
    /* Leaving  */ [NO,      UNLIST, NO,      NO,         NO,     NO,          NO,    NO,          TURN_AWAY,  NO,         UNLIKE,   DISOWN,     NO,         NO,          REJECTED_TOO, BOTH, RELEASED, NO,      LEAVE_AGAIN],
    /* TimeWait */ [NO,      NO,     NO,      NO,         NO,     NO,          NO,    NO,          NO,         NO,         NO,       DISOWN,     DISOWN_RTU, NO,          NO,       AGREE,  NO,       NO,        FORGET],
    /* Failed   */ [NO,      FORGET, NO,      NO,         NO,     NO,          NO,    NO,          TURN_AWAY,  NO,         UNLIKE,   DISOWN,     DISOWN_RTU, NO,          NO,       AGREE,  NO,       NO,        NO],
    /* Left     */ [NO,      FORGET, NO,      NO,         NO,     NO,          NO,    NO,          HOLD,       NO,         UNLIKE,   DISOWN,     DISOWN_RTU, NO,          NO,       AGREE,  NO,       NO,        NO],
];
