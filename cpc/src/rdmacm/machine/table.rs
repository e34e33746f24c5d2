//! The decision for every state and every input, as one table.
//!
//! What is not named is ignored and counted. So are cells that only a confused driver could reach: the
//! machine trusts neither side. A test walks every cell.

use super::Machine;
use super::state::{Input, InputKind, StateKind};
use crate::core::table::transitions;

transitions! {
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
    Opening {
        Connect: want, Remove: forget, Abandon: give_up_early, QpsMade: opened, QpsFailed: open_failed, Request: adopt,
        Refused: let_be, Broken: let_be, Disconnected: let_be, Join: refuse_join,
    }
    Asked {
        Remove: forget, Abandon: give_up_early, Request: merge, Response: replied, Nonsense: garbled, Refused: refused,
        Broken: retry, Disconnected: retry, Timeout: retry, Join: refuse_join,
    }
    Yielding {
        Remove: forget, Abandon: give_up_early, Request: accept, Timeout: retry, Join: refuse_join,
    }
    Pausing {
        Remove: forget, Abandon: give_up_early, Request: accept, Timeout: again, Join: refuse_join,
    }
    Rising {
        Connect: want, Remove: leave, Abandon: abandon_rising, FirstData: note_data, QpsUp: risen, QpsDown: rise_failed,
        Request: superseded, Refused: spoilt, Broken: spoilt, Disconnected: let_go, Join: refuse_join,
    }
    Replied {
        Connect: want, Remove: leave, Abandon: abandon, FirstData: confirm_by_data, Request: superseded,
        Established: confirm, Refused: spoilt, Broken: spoilt, Disconnected: let_go, Timeout: spoilt,
        Join: confirm_by_join,
    }
    Joining {
        Connect: want, Remove: leave, Abandon: abandon, Request: superseded, Refused: spoilt, Broken: spoilt,
        Disconnected: let_go, Timeout: join_late, Join: take_join, StreamUp: stream_up,
        StreamLost: stream_lost,
    }
    Up {
        Remove: leave, Abandon: abandon, Request: superseded, Refused: let_go, Broken: let_go, Disconnected: let_go,
        Join: refuse_join, StreamLost: let_go,
    }
    Leaving {
        Remove: unlist_abandoned, Request: turn_away, Refused: released, Broken: released,
        Disconnected: released, Timeout: released, Join: refuse_join,
    }
    Failed {
        Remove: forget, Request: turn_away, Join: refuse_join,
    }
    Left {
        Remove: forget, Request: hold, Join: refuse_join,
    }
}
