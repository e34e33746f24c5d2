//! The decision for every state of a link and every input, as one table.
//!
//! What is not named is ignored and counted. `tests/xrc_matrix.txt` has what follows from every cell; `tests/xrc_simulator.rs`,
//! `xrc_breaks.rs` and `xrc_lives.rs` drive it.

use super::Machine;
use super::state::{Input, InputKind, State, StateKind};
use crate::core::table::transitions;

transitions! { Xrc:
    Queued {
        Remove: withdraw, Dreq: dreq_before_up,
    }
    Creating {
        SenderCreated: qps_ready, SenderFailed: create_failed, Remove: withdraw, Dreq: dreq_before_up,
    }
    ReqSent {
        Remove: withdraw, Rep: replied, Mra: wait_longer, Rej: rejected, Dreq: dreq_overtook_rep,
        Timeout: repeat_req,
    }
    ToRts {
        SenderUp: qps_up_done, SenderDown: bring_up_failed, Remove: disconnect, Rej: rejected_later, Dreq: dreq_received,
    }
    Connected {
        Renew: renew_link, Remove: disconnect, Rej: rejected_later, Dreq: dreq_received,
    }
    Joining {
        ReceiverHeld: reply, NoReceiverHeld: refuse, Remove: forget, ReqNew: rejoin, Dreq: dreq_from_sender,
    }
    RepSent {
        Remove: disconnect, ReqNew: rejoin, ReqDup: repeat_rep, Rej: disowned, Dreq: dreq_from_sender,
    }
    DreqSent {
        Rej: rejected_after_dreq, Dreq: dreqs_crossed, Drep: drep_received, Timeout: repeat_dreq,
    }
    TimeWait {
        Dreq: answer_dreq, Timeout: forget,
    }
    Failed {
        Remove: withdraw, Rep: disown, Dreq: answer_dreq,
    }
    Disconnected {
        Remove: forget, Rep: disown, Dreq: answer_dreq,
    }
}
