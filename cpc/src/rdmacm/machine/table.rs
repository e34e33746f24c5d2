//! The decision for every state and every input, as one table.
//!
//! What is not named is ignored and counted. So are cells that only a confused driver could reach: the
//! machine trusts neither side. A test walks every cell.

use super::Machine;
use super::state::{Input, InputKind, State, StateKind};
use crate::core::table::transitions;

transitions! { RdmaCm:
    Idle { Connect: enqueue }
    Idle | Queued | Resolving | Routing | Creating | Yielding | Pausing { Remove: forget }
    Idle | Queued | Resolving | Routing | Creating | ReqSent | Yielding | Pausing { Abandon: give_up_early }
    Idle | Queued | Yielding | Pausing { Request: accept }
    Resolving { AddrResolved: route }
    Routing { RouteResolved: open }
    Resolving | Routing { Broken: retry }
    Resolving | Routing | Creating { Request: adopt }
    Creating {
        QpsMade: qps_ready, QpsFailed: create_failed, Refused: request_gone, Broken: request_gone,
        Disconnected: request_gone,
    }
    ReqSent {
        Remove: withdraw, Request: merge, Response: replied, Malformed: malformed_rep, Refused: refused, Broken: retry,
        Disconnected: retry,
    }
    Resolving | Routing | ReqSent | Yielding { Timeout: retry }
    Pausing { Timeout: again }
    Creating | ToRts | RepSent | Joining { Connect: note_connect }
    ToRts { Abandon: abandon_rising, FirstData: note_data, QpsUp: qps_up_done, QpsDown: bring_up_failed }
    RepSent { FirstData: confirm_by_data, Established: confirm, Timeout: broken_before_up, Join: confirm_by_join }
    Joining { Timeout: join_late, Join: take_join, StreamUp: stream_up, StreamLost: stream_lost }
    ToRts | RepSent | Joining { Refused: broken_before_up, Broken: broken_before_up }
    Connected { Refused: dreq_received, Broken: dreq_received, StreamLost: dreq_received }
    RepSent | Joining | Connected { Abandon: abandon }
    ToRts | RepSent | Joining | Connected { Remove: disconnect, Request: superseded, Disconnected: dreq_received }
    DreqSent {
        Remove: unlist_abandoned, Refused: drep_received, Broken: drep_received, Disconnected: drep_received,
        Timeout: drep_received,
    }
    DreqSent | Failed { Request: refuse_spent }
    Failed | Disconnected { Remove: forget }
    Disconnected { Request: park_request }
    Idle | Queued | Resolving | Routing | Creating | ReqSent | Yielding | Pausing { Join: refuse_join }
    ToRts | Connected | DreqSent | Failed | Disconnected { Join: refuse_join }
}
