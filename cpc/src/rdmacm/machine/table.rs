//! The decision for every state and every input, as one table.
//!
//! ```text
//! columns: Connect Remove FirstData | AddrResolved RouteResolved | QpsMade QpsFailed QpsUp QpsDown
//!          | Request Response Nonsense Established | Refused Broken Disconnected Timeout | Join StreamUp StreamLost
//! ```
//! `NO` is [`Machine::ignore`]: counted, nothing done. Cells that only a confused driver could reach are `NO` as well: the
//! machine trusts neither side. A test walks every cell.

use std::time::Instant;

use super::Machine;
use super::state::{Input, InputKind, StateKind};

pub(super) type Handler = fn(&mut Machine, usize, &Input<'_>, Instant);

const INPUTS: usize = InputKind::StreamLost as usize + 1;
const STATES: usize = StateKind::Left as usize + 1;

/// The handler of one cell.
pub(super) fn handler(state: StateKind, input: InputKind) -> Handler {
    TABLE[state as usize][input as usize]
}

const NO: Handler = Machine::ignore;

const ENQUEUE: Handler = Machine::enqueue;
const ROUTE: Handler = Machine::route;
const OPEN: Handler = Machine::open;
const OPENED: Handler = Machine::opened;
const OPENFAIL: Handler = Machine::open_failed;
const REPLIED: Handler = Machine::replied;
const GARBLED: Handler = Machine::garbled;
const REFUSED: Handler = Machine::refused;
const RETRY: Handler = Machine::retry;
const AGAIN: Handler = Machine::again;

const ACCEPT: Handler = Machine::accept;
const ADOPT: Handler = Machine::adopt;
const MERGE: Handler = Machine::merge;
const RISEN: Handler = Machine::risen;
const RISEFAIL: Handler = Machine::rise_failed;
const NOTE: Handler = Machine::note_data;
const CONFIRM: Handler = Machine::confirm;
const BY_DATA: Handler = Machine::confirm_by_data;
const LET_BE: Handler = Machine::let_be;
const SPOILT: Handler = Machine::spoilt;

const TAKE: Handler = Machine::take_join;
const BY_JOIN: Handler = Machine::confirm_by_join;
const NO_JOIN: Handler = Machine::refuse_join;
const ST_UP: Handler = Machine::stream_up;
const ST_LOST: Handler = Machine::stream_lost;
const ST_LATE: Handler = Machine::join_late;

const WANT: Handler = Machine::want;
const FORGET: Handler = Machine::forget;
const LEAVE: Handler = Machine::leave;
const GONE: Handler = Machine::forget;
const LET_GO: Handler = Machine::let_go;
const ANEW: Handler = Machine::superseded;
const HOLD: Handler = Machine::hold;
const TURN: Handler = Machine::turn_away;

#[rustfmt::skip]
const TABLE: [[Handler; INPUTS]; STATES] = [
    /* Idle      */ [ENQUEUE, FORGET, NO,      NO,    NO,   NO,     NO,       NO,    NO,       ACCEPT, NO,      NO,      NO,      NO,      NO,     NO,     NO,      NO_JOIN, NO,    NO],
    /* Queued    */ [NO,      FORGET, NO,      NO,    NO,   NO,     NO,       NO,    NO,       ACCEPT, NO,      NO,      NO,      NO,      NO,     NO,     NO,      NO_JOIN, NO,    NO],
    /* Resolving */ [NO,      FORGET, NO,      ROUTE, NO,   NO,     NO,       NO,    NO,       ADOPT,  NO,      NO,      NO,      NO,      RETRY,  NO,     RETRY,   NO_JOIN, NO,    NO],
    /* Routing   */ [NO,      FORGET, NO,      NO,    OPEN, NO,     NO,       NO,    NO,       ADOPT,  NO,      NO,      NO,      NO,      RETRY,  NO,     RETRY,   NO_JOIN, NO,    NO],
    /* Opening   */ [WANT,    FORGET, NO,      NO,    NO,   OPENED, OPENFAIL, NO,    NO,       ADOPT,  NO,      NO,      NO,      LET_BE,  LET_BE, LET_BE, NO,      NO_JOIN, NO,    NO],
    /* Asked     */ [NO,      FORGET, NO,      NO,    NO,   NO,     NO,       NO,    NO,       MERGE,  REPLIED, GARBLED, NO,      REFUSED, RETRY,  RETRY,  RETRY,   NO_JOIN, NO,    NO],
    /* Yielding  */ [NO,      FORGET, NO,      NO,    NO,   NO,     NO,       NO,    NO,       ACCEPT, NO,      NO,      NO,      NO,      NO,     NO,     RETRY,   NO_JOIN, NO,    NO],
    /* Pausing   */ [NO,      FORGET, NO,      NO,    NO,   NO,     NO,       NO,    NO,       ACCEPT, NO,      NO,      NO,      NO,      NO,     NO,     AGAIN,   NO_JOIN, NO,    NO],
    /* Rising    */ [WANT,    LEAVE,  NOTE,    NO,    NO,   NO,     NO,       RISEN, RISEFAIL, ANEW,   NO,      NO,      NO,      SPOILT,  SPOILT, LET_GO, NO,      NO_JOIN, NO,    NO],
    /* Replied   */ [WANT,    LEAVE,  BY_DATA, NO,    NO,   NO,     NO,       NO,    NO,       ANEW,   NO,      NO,      CONFIRM, SPOILT,  SPOILT, LET_GO, SPOILT,  BY_JOIN, NO,    NO],
    /* Joining   */ [WANT,    LEAVE,  NO,      NO,    NO,   NO,     NO,       NO,    NO,       ANEW,   NO,      NO,      NO,      SPOILT,  SPOILT, LET_GO, ST_LATE, TAKE,    ST_UP, ST_LOST],
    /* Up        */ [NO,      LEAVE,  NO,      NO,    NO,   NO,     NO,       NO,    NO,       ANEW,   NO,      NO,      NO,      LET_GO,  LET_GO, LET_GO, NO,      NO_JOIN, NO,    LET_GO],
    /* Leaving   */ [NO,      NO,     NO,      NO,    NO,   NO,     NO,       NO,    NO,       NO,     NO,      NO,      NO,      GONE,    GONE,   GONE,   GONE,    NO_JOIN, NO,    NO],
    /* Failed    */ [NO,      FORGET, NO,      NO,    NO,   NO,     NO,       NO,    NO,       TURN,   NO,      NO,      NO,      NO,      NO,     NO,     NO,      NO_JOIN, NO,    NO],
    /* Left      */ [NO,      FORGET, NO,      NO,    NO,   NO,     NO,       NO,    NO,       HOLD,   NO,      NO,      NO,      NO,      NO,     NO,     NO,      NO_JOIN, NO,    NO],
];
