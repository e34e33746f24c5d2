//! The decision for every state and every input, as one table.
//!
//! What is not named is ignored and counted. So are cells that only a confused driver could reach: the
//! machine trusts neither side. A test walks every cell.

use super::Machine;
use super::state::{Input, InputKind, State, StateKind};
use crate::core::table::transitions;

transitions! { RdmaCm:
    Idle {
        Connect: enqueue, Remove: forget, Abandon: give_up_early, Request: accept, Join: refuse_join,
    }
    Queued {
        Remove: forget, Abandon: give_up_early, Request: accept, Join: refuse_join,
    }
    Resolving {
        Remove: forget, Abandon: give_up_early, AddrResolved: route, Request: adopt, Broken: retry, Timeout: retry,
        Join: refuse_join,
    }
    Routing {
        Remove: forget, Abandon: give_up_early, RouteResolved: open, Request: adopt, Broken: retry, Timeout: retry,
        Join: refuse_join,
    }
    Creating {
        Connect: note_connect, Remove: forget, Abandon: give_up_early, QpsMade: qps_ready, QpsFailed: create_failed, Request: adopt,
        Refused: request_gone, Broken: request_gone, Disconnected: request_gone, Join: refuse_join,
    }
    ReqSent {
        Remove: withdraw, Abandon: give_up_early, Request: merge, Response: replied, Malformed: malformed_rep, Refused: refused,
        Broken: retry, Disconnected: retry, Timeout: retry, Join: refuse_join,
    }
    Yielding {
        Remove: forget, Abandon: give_up_early, Request: accept, Timeout: retry, Join: refuse_join,
    }
    Pausing {
        Remove: forget, Abandon: give_up_early, Request: accept, Timeout: again, Join: refuse_join,
    }
    ToRts {
        Connect: note_connect, Remove: disconnect, Abandon: abandon_rising, FirstData: note_data, QpsUp: qps_up_done, QpsDown: bring_up_failed,
        Request: superseded, Refused: broken_before_up, Broken: broken_before_up, Disconnected: dreq_received, Join: refuse_join,
    }
    RepSent {
        Connect: note_connect, Remove: disconnect, Abandon: abandon, FirstData: confirm_by_data, Request: superseded,
        Established: confirm, Refused: broken_before_up, Broken: broken_before_up, Disconnected: dreq_received, Timeout: broken_before_up,
        Join: confirm_by_join,
    }
    Joining {
        Connect: note_connect, Remove: disconnect, Abandon: abandon, Request: superseded, Refused: broken_before_up, Broken: broken_before_up,
        Disconnected: dreq_received, Timeout: join_late, Join: take_join, StreamUp: stream_up,
        StreamLost: stream_lost,
    }
    Connected {
        Remove: disconnect, Abandon: abandon, Request: superseded, Refused: dreq_received, Broken: dreq_received, Disconnected: dreq_received,
        Join: refuse_join, StreamLost: dreq_received,
    }
    DreqSent {
        Remove: unlist_abandoned, Request: refuse_spent, Refused: drep_received, Broken: drep_received,
        Disconnected: drep_received, Timeout: drep_received, Join: refuse_join,
    }
    Failed {
        Remove: forget, Request: refuse_spent, Join: refuse_join,
    }
    Disconnected {
        Remove: forget, Request: park_request, Join: refuse_join,
    }
}
