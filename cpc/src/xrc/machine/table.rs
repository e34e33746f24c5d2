//! The decision for every state of a link and every input, as one table.
//!
//! What is not named is ignored and counted. `tests/xrc_matrix.txt` has what follows from every cell; `tests/xrc_simulator.rs`,
//! `xrc_breaks.rs` and `xrc_restarts.rs` drive it.

use super::Machine;
use super::state::{Input, InputKind, State, StateKind};
use crate::core::table::transitions;

transitions! { Xrc:
    Queued | Creating { Dreq(dreq): dreq_before_up }
    Creating { SenderCreated: qps_ready, SenderFailed(error): create_failed }
    ReqSent { Rep(rep): replied, Mra(mra): wait_longer, Rej(rej): rejected, Dreq(dreq): dreq_overtook_rep, Timeout: repeat_req }
    Queued | Creating | ReqSent | Failed { Remove: withdraw }
    ToRts { SenderUp: qps_up_done, SenderDown(error): bring_up_failed }
    Connected { Renew: renew_link }
    ToRts | Connected { Rej(rej): rejected_later, Dreq(dreq): dreq_received }
    ToRts | Connected | RepSent { Remove: disconnect }
    Joining { ReceiverHeld(receiver): reply, NoReceiverHeld(error): refuse }
    RepSent { ReqDup: repeat_rep, Rej: disowned }
    Joining | RepSent { ReqNew(req): rejoin, Dreq(dreq): dreq_from_sender }
    DreqSent { Rej(rej): rejected_after_dreq, Dreq(dreq): dreqs_crossed, Drep: drep_received, Timeout: repeat_dreq }
    TimeWait { Timeout: forget }
    Joining | Disconnected { Remove: forget }
    Failed | Disconnected { Rep(rep): disown }
    TimeWait | Failed | Disconnected { Dreq(dreq): answer_dreq }
}
