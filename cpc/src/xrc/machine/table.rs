//! The decision for every state of a link and every input, as one table.
//!
//! ```text
//! columns: Made Unmade Raised Unraised Joined Unjoined | Renew Remove | AskNew AskDup Tell Mra Rej Dreq Drep | Timeout
//! ```
//! `NO` is [`Machine::ignore`]: counted, nothing done. `tests/xrc_matrix.txt` has what follows from every cell; `tests/xrc_simulator.rs`,
//! `xrc_breaks.rs` and `xrc_lives.rs` drive it.

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

const OPENED: Handler = Machine::opened;
const UNOPENED: Handler = Machine::unopened;
const RISEN: Handler = Machine::risen;
const UNRISEN: Handler = Machine::unrisen;
const AGAIN: Handler = Machine::ask_again;
const TOLD: Handler = Machine::told;
const WAIT: Handler = Machine::wait_longer;
const REJECTED: Handler = Machine::rejected;
const OUTRUN: Handler = Machine::outrun;
const RENEW: Handler = Machine::renew_link;

const TELL: Handler = Machine::tell;
const REFUSE: Handler = Machine::refuse;
const REPEAT: Handler = Machine::repeat_tell;
const REJOIN: Handler = Machine::rejoin;
const CLOSED: Handler = Machine::sender_left;
const DISOWNED: Handler = Machine::disowned;

const FORGET: Handler = Machine::forget;
const WITHDRAW: Handler = Machine::withdraw;
const LEAVE: Handler = Machine::leave;
const LEAVE_AGAIN: Handler = Machine::leave_again;
const RELEASED: Handler = Machine::released;
const LATE: Handler = Machine::disowned_late;
const BOTH: Handler = Machine::release_both;
const AGREE: Handler = Machine::answer_dreq;
const EARLY: Handler = Machine::let_go_early;
const LET_GO: Handler = Machine::let_go;
const LET_DOWN: Handler = Machine::let_down;
const DISOWN: Handler = Machine::disown;

#[rustfmt::skip]
const TABLE: [[Handler; INPUTS]; STATES] = [
    /* Queued   */ [NO,     NO,       NO,    NO,      NO,   NO,     NO,    WITHDRAW, NO,     NO,     NO,     NO,   NO,       EARLY,  NO,       NO],
    /* Opening  */ [OPENED, UNOPENED, NO,    NO,      NO,   NO,     NO,    WITHDRAW, NO,     NO,     NO,     NO,   NO,       EARLY,  NO,       NO],
    /* Asking   */ [NO,     NO,       NO,    NO,      NO,   NO,     NO,    WITHDRAW, NO,     NO,     TOLD,   WAIT, REJECTED, OUTRUN, NO,       AGAIN],
    /* Rising   */ [NO,     NO,       RISEN, UNRISEN, NO,   NO,     NO,    LEAVE,    NO,     NO,     NO,     NO,   LET_DOWN, LET_GO, NO,       NO],
    /* Up       */ [NO,     NO,       NO,    NO,      NO,   NO,     RENEW, LEAVE,    NO,     NO,     NO,     NO,   LET_DOWN, LET_GO, NO,       NO],
    /* Joining  */ [NO,     NO,       NO,    NO,      TELL, REFUSE, NO,    FORGET,   REJOIN, NO,     NO,     NO,   NO,       CLOSED, NO,       NO],
    /* Told     */ [NO,     NO,       NO,    NO,      NO,   NO,     NO,    LEAVE,    REJOIN, REPEAT, NO,     NO,   DISOWNED, CLOSED, NO,       NO],
    /* Leaving  */ [NO,     NO,       NO,    NO,      NO,   NO,     NO,    NO,       NO,     NO,     NO,     NO,   LATE,     BOTH,   RELEASED, LEAVE_AGAIN],
    /* TimeWait */ [NO,     NO,       NO,    NO,      NO,   NO,     NO,    NO,       NO,     NO,     NO,     NO,   NO,       AGREE,  NO,       FORGET],
    /* Failed   */ [NO,     NO,       NO,    NO,      NO,   NO,     NO,    WITHDRAW, NO,     NO,     DISOWN, NO,   NO,       AGREE,  NO,       NO],
    /* Left     */ [NO,     NO,       NO,    NO,      NO,   NO,     NO,    FORGET,   NO,     NO,     DISOWN, NO,   NO,       AGREE,  NO,       NO],
];
