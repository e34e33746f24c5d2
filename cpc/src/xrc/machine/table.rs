//! The decision for every state of a link and every input, as one table.
//!
//! What is not named is ignored and counted. `tests/xrc_matrix.txt` has what follows from every cell; `tests/xrc_simulator.rs`,
//! `xrc_breaks.rs` and `xrc_lives.rs` drive it.

use super::Machine;
use super::state::{Input, InputKind, StateKind};
use crate::core::table::transitions;

transitions! {
    Queued {
        Remove: withdraw, Dreq: let_go_early,
    }
    Opening {
        Made: opened, Unmade: unopened, Remove: withdraw, Dreq: let_go_early,
    }
    Asking {
        Remove: withdraw, Tell: told, Mra: wait_longer, Rej: rejected, Dreq: outrun,
        Timeout: ask_again,
    }
    Rising {
        Raised: risen, Unraised: unrisen, Remove: leave, Rej: let_down, Dreq: let_go,
    }
    Up {
        Renew: renew_link, Remove: leave, Rej: let_down, Dreq: let_go,
    }
    Joining {
        Joined: tell, Unjoined: refuse, Remove: forget, AskNew: rejoin, Dreq: sender_left,
    }
    Told {
        Remove: leave, AskNew: rejoin, AskDup: repeat_tell, Rej: disowned, Dreq: sender_left,
    }
    Leaving {
        Rej: disowned_late, Dreq: release_both, Drep: released, Timeout: leave_again,
    }
    TimeWait {
        Dreq: answer_dreq, Timeout: forget,
    }
    Failed {
        Remove: withdraw, Tell: disown, Dreq: answer_dreq,
    }
    Left {
        Remove: forget, Tell: disown, Dreq: answer_dreq,
    }
}
