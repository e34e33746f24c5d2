//! The decision for every state and every input, as one table.
//!
//! What is not named is ignored and counted. So are cells that only a confused driver could reach: the
//! machine trusts neither side. A test walks every cell.

use super::Machine;
use super::state::{Input, InputKind, State, StateKind};
use crate::core::table::transitions;

transitions! { RdmaCm:
    Idle { Connect: enqueue }
    Idle | Queued | Resolving | Routing | Yielding | Pausing { Unlist: unlist_unanswered }
    Idle | Queued | Resolving | Routing | Creating | Yielding | Pausing { Remove: forget }
    Idle | Queued | Resolving | Routing | Creating | ReqSent | Yielding | Pausing { Abandon: give_up_early }
    Idle | Queued | Yielding | Pausing { Request(request): accept }
    Resolving { AddrResolved: route }
    Routing { RouteResolved: open }
    Resolving | Routing { Broken(why): retry }
    Resolving | Routing | Creating { Request(request): adopt }
    Creating {
        Unlist: unlist_creating, QpsMade(qpns): qps_ready, QpsFailed(error): create_failed, Refused: request_gone, Broken: request_gone,
        Disconnected: request_gone,
    }
    ReqSent {
        Remove: withdraw, Unlist: withdraw_and_unlist, Request(request): merge, Response(hello): replied, Malformed: malformed_rep, Refused(refused): refused, Broken(why): retry,
        Disconnected["it has gone meanwhile"]: retry,
    }
    Resolving | Routing | ReqSent | Yielding { Timeout["no answer"]: retry }
    Pausing { Timeout: again }
    Creating | ToRts | RepSent | Joining { Connect: note_connect }
    ToRts { Abandon: abandon_rising, FirstData: note_data, QpsUp: qps_up_done, QpsDown(error): bring_up_failed }
    RepSent { FirstData: confirm_by_data, Established: confirm, Timeout: not_confirmed, Join(request): confirm_by_join }
    Joining { Timeout: join_late, Join(request): take_join, StreamUp(queue): stream_up, StreamLost(why): stream_lost }
    ToRts | RepSent | Joining { Refused(refused): refused_before_up, Broken(why): broken_before_up }
    Connected { Unconfirmed(why): broken_before_up }
    Connected { Refused: dreq_received, Broken: dreq_received, StreamLost: dreq_received }
    RepSent | Joining | Connected { Abandon: abandon }
    ToRts | RepSent | Joining | Connected { Remove: disconnect, Request(request): superseded, Disconnected: dreq_received }
    DreqSent {
        Remove: unlist_abandoned, Refused: drep_received, Broken: drep_received, Disconnected: drep_received,
        Timeout: drep_received,
    }
    DreqSent | Failed { Request(request): refuse_spent }
    Failed | Disconnected { Remove: forget }
    Disconnected { Request(request): park_request }
    Idle | Queued | Resolving | Routing | Creating | ReqSent | Yielding | Pausing { Join(request): refuse_join }
    ToRts | Connected | DreqSent | Failed | Disconnected { Join(request): refuse_join }
}
