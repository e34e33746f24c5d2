//! The decision for every state and every input, as one table.
//!
//! ```text
//! columns: Connect Remove Abandon FirstData | QpsMade QpsFailed QpsUp QpsDown | ReqNew ReqDup Rep Rtu Mra Rej Dreq Drep | Timeout
//! ```
//! `no` is [`Machine::ignore`]: counted, nothing done. Cells that only a confused driver could reach are `no` as well: the machine
//! trusts neither side. A test walks every cell.

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
const CONFIRM: Handler = Machine::confirm;
const BY_DATA: Handler = Machine::confirm_by_data;
const REPEAT_REP: Handler = Machine::repeat_rep;
const REPLY_AGAIN: Handler = Machine::reply_again;
const REPLY_LATER: Handler = Machine::reply_later;

const FORGET: Handler = Machine::forget;
const GIVE_UP: Handler = Machine::give_up;
const ABANDON: Handler = Machine::abandon;
const UNLIST: Handler = Machine::unlist_abandoned;
const LEAVE: Handler = Machine::leave;
const LEAVE_AGAIN: Handler = Machine::leave_again;
const RELEASED: Handler = Machine::released;
const BOTH: Handler = Machine::release_both;
const AGREE: Handler = Machine::answer_dreq;
const LET_GO: Handler = Machine::let_go;
const LET_DOWN: Handler = Machine::let_down;
const SUPERSEDED: Handler = Machine::superseded;
const DISOWN_RTU: Handler = Machine::disown_rtu;
const HOLD: Handler = Machine::hold;
const TURN_AWAY: Handler = Machine::turn_away;

#[rustfmt::skip]
const TABLE: [[Handler; INPUTS]; STATES] = [
    /* Idle     */ [ENQUEUE, FORGET, GIVE_UP, NO,        NO, NO, NO, NO,                 ACCEPT,     NO,         DISOWN,     NO,      NO,          NO,       AGREE,  NO,       NO],
    /* Queued   */ [NO,      FORGET, GIVE_UP, NO,        NO, NO, NO, NO,                 ACCEPT,     NO,         DISOWN,     NO,      NO,          NO,       AGREE,  NO,       NO],
    /* Opening  */ [NO,      FORGET, GIVE_UP, NO,        OPENED, OPEN_FAILED, NO, NO,    ADOPT,      NO,         DISOWN,     NO,      NO,          NO,       AGREE,  NO,       NO],
    /* ReqSent  */ [NO,      FORGET, GIVE_UP, NO,        NO, NO, NO, NO,                 MERGE,      NO,         REPLIED,    NO,      WAIT,        REJECTED, OUTRUN,  NO,       ASK_AGAIN],
    /* Rising   */ [NO,      LEAVE,  ABANDON, NOTE_DATA, NO, NO, RISEN, RISE_FAILED,     SUPERSEDED, NO,         NO,         NO,      NO,          LET_DOWN, LET_GO, NO,       NO],
    /* RepSent  */ [NO,      LEAVE,  ABANDON, BY_DATA,   NO, NO, NO, NO,                 SUPERSEDED, REPEAT_REP, DISOWN,     CONFIRM, REPLY_LATER, LET_DOWN, LET_GO, NO,       REPLY_AGAIN],
    /* Up       */ [NO,      LEAVE,  ABANDON, NO,        NO, NO, NO, NO,                 SUPERSEDED, NO,         REPEAT_RTU, NO,      NO,          LET_DOWN, LET_GO, NO,       NO],
    /* Leaving  */ [NO,      UNLIST, NO,      NO,        NO, NO, NO, NO,                 TURN_AWAY,          NO,         NO,         NO,      NO,          RELEASED, BOTH,   RELEASED, LEAVE_AGAIN],
    /* TimeWait */ [NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, DISOWN_RTU, NO, NO, AGREE, NO, FORGET],
    /* Failed   */ [NO, FORGET, NO, NO, NO, NO, NO, NO, TURN_AWAY, NO, DISOWN, DISOWN_RTU, NO, NO, AGREE, NO, NO],
    /* Left     */ [NO, FORGET, NO, NO, NO, NO, NO, NO, HOLD, NO, DISOWN, DISOWN_RTU, NO, NO, AGREE, NO, NO],
];
