//! The decision for every state of a link and every input, as one table.
//!
//! What is not named is ignored and counted. `tests/xrc_matrix.txt` has what follows from every cell; `tests/xrc_simulator.rs`,
//! `xrc_breaks.rs` and `xrc_lives.rs` drive it.

use super::Machine;
use super::state::{Input, InputKind, State, StateKind};
use crate::core::table::transitions;

transitions! { Xrc:
    Queued | Creating { Dreq: dreq_before_up }
    Creating { SenderCreated: qps_ready, SenderFailed: create_failed }
    ReqSent { Rep: replied, Mra: wait_longer, Rej: rejected, Dreq: dreq_overtook_rep, Timeout: repeat_req }
    Queued | Creating | ReqSent | Failed { Remove: withdraw }
    ToRts { SenderUp: qps_up_done, SenderDown: bring_up_failed }
    Connected { Renew: renew_link }
    ToRts | Connected { Rej: rejected_later, Dreq: dreq_received }
    ToRts | Connected | RepSent { Remove: disconnect }
    Joining { ReceiverHeld: reply, NoReceiverHeld: refuse }
    RepSent { ReqDup: repeat_rep, Rej: disowned }
    Joining | RepSent { ReqNew: rejoin, Dreq: dreq_from_sender }
    DreqSent { Rej: rejected_after_dreq, Dreq: dreqs_crossed, Drep: drep_received, Timeout: repeat_dreq }
    TimeWait { Timeout: forget }
    Joining | Disconnected { Remove: forget }
    Failed | Disconnected { Rep: disown }
    TimeWait | Failed | Disconnected { Dreq: answer_dreq }
}
