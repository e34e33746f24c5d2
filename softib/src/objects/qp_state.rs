//! The queue pair state machine: which transitions exist, and which attributes each needs and allows.
//!
//! Pure data (IBTA vol. 1, 11.2.5.2 and table 91; ibv_modify_qp(3)). `check` is what `ibv_modify_qp` asks first.

#![forbid(unsafe_code)]

use crate::errno::Errno;
use rdma_sys::*;

/// Attribute masks of one transition: required, and allowed on top.
struct Rule {
    required: u32,
    optional: u32,
}

const fn rule(required: u32, optional: u32) -> Option<Rule> {
    Some(Rule { required, optional })
}

const PATH: u32 = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
const MIGRATION: u32 = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;

fn to_init(kind: u32) -> u32 {
    let last = if kind == IBV_QPT_UD { IBV_QP_QKEY } else { IBV_QP_ACCESS_FLAGS };
    IBV_QP_PKEY_INDEX | IBV_QP_PORT | last
}

fn init_to_rtr(kind: u32) -> Option<Rule> {
    let optional = IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX;
    match kind {
        IBV_QPT_RC => rule(PATH | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, optional),
        IBV_QPT_XRC_RECV => rule(PATH | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, optional),
        IBV_QPT_UC | IBV_QPT_XRC_SEND => rule(PATH, optional),
        _ => rule(0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
    }
}

fn rtr_to_rts(kind: u32) -> Option<Rule> {
    let retry = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    match kind {
        IBV_QPT_RC | IBV_QPT_XRC_SEND => rule(IBV_QP_SQ_PSN | retry, running(kind)),
        IBV_QPT_XRC_RECV => rule(IBV_QP_SQ_PSN | IBV_QP_TIMEOUT, running(kind)),
        _ => rule(IBV_QP_SQ_PSN, running(kind)),
    }
}

/// What may change on the way into, and within, RTS.
fn running(kind: u32) -> u32 {
    match kind {
        IBV_QPT_RC | IBV_QPT_XRC_RECV => {
            IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | MIGRATION | IBV_QP_MIN_RNR_TIMER
        }
        IBV_QPT_UC | IBV_QPT_XRC_SEND => IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | MIGRATION,
        _ => IBV_QP_CUR_STATE | IBV_QP_QKEY,
    }
}

fn drained(kind: u32) -> u32 {
    let common = IBV_QP_AV | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | MIGRATION;
    let reliable = IBV_QP_PORT | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER;
    match kind {
        IBV_QPT_RC => common | reliable | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC,
        IBV_QPT_XRC_SEND => common | reliable & !IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_QP_RD_ATOMIC,
        IBV_QPT_XRC_RECV => {
            common | IBV_QP_PORT | IBV_QP_TIMEOUT | IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_DEST_RD_ATOMIC
        }
        IBV_QPT_UC => common,
        _ => IBV_QP_PKEY_INDEX | IBV_QP_QKEY,
    }
}

fn find(kind: u32, from: u32, to: u32) -> Option<Rule> {
    match (from, to) {
        // Nothing can fail in RESET (IBTA figure 124 has no such arrow; Linux refuses it as well).
        (IBV_QPS_RESET, IBV_QPS_ERR) => None,
        (_, IBV_QPS_RESET | IBV_QPS_ERR) => rule(0, 0),
        (IBV_QPS_RESET, IBV_QPS_INIT) => rule(to_init(kind), 0),
        (IBV_QPS_INIT, IBV_QPS_INIT) => rule(0, to_init(kind)),
        (IBV_QPS_INIT, IBV_QPS_RTR) => init_to_rtr(kind),
        (IBV_QPS_RTR, IBV_QPS_RTS) => rtr_to_rts(kind),
        (IBV_QPS_RTS, IBV_QPS_RTS) | (IBV_QPS_SQD, IBV_QPS_RTS) => rule(0, running(kind)),
        (IBV_QPS_SQE, IBV_QPS_RTS) if matches!(kind, IBV_QPT_UC | IBV_QPT_UD) => {
            rule(0, running(kind) & !MIGRATION)
        }
        (IBV_QPS_RTS, IBV_QPS_SQD) => rule(0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (IBV_QPS_SQD, IBV_QPS_SQD) => rule(0, drained(kind)),
        _ => None,
    }
}

/// `mask` without what the other side of an XRC connection has: programs set up both with the same attributes, and Linux drops
/// what does not apply.
pub fn applicable(kind: u32, mask: u32) -> u32 {
    match kind {
        IBV_QPT_XRC_SEND => mask & !(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
        IBV_QPT_XRC_RECV => mask & !(IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY),
        _ => mask,
    }
}

/// Whether a QP of `kind` may go `from` -> `to` with the attributes in `mask`.
pub fn check(kind: u32, from: u32, to: u32, mask: u32) -> Result<(), Errno> {
    let rule = find(kind, from, to).ok_or(Errno::INVAL)?;
    let mask = mask & !IBV_QP_STATE;
    // CUR_STATE names the state the caller believes in; it is allowed wherever a state change is.
    let extra = mask & !(rule.required | rule.optional | IBV_QP_CUR_STATE);
    if mask & rule.required == rule.required && extra == 0 { Ok(()) } else { Err(Errno::INVAL) }
}

/// Whether receives may be posted.
#[inline]
pub fn takes_receives(state: u32) -> bool {
    state != IBV_QPS_RESET
}

/// Whether receives that are posted wait for messages; in ERR they are flushed at once.
#[inline]
pub fn keeps_receives(state: u32) -> bool {
    takes_receives(state) && state != IBV_QPS_ERR
}

/// Whether messages are accepted from the wire.
#[inline]
pub fn is_receiving(state: u32) -> bool {
    matches!(state, IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RC_RTR: u32 = IBV_QP_STATE | PATH | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;

    #[test]
    fn rc_needs_its_whole_path_for_rtr() {
        assert!(check(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, RC_RTR).is_ok());
        for bit in (0..21).map(|b| 1 << b).filter(|b| RC_RTR & b != 0 && *b != IBV_QP_STATE) {
            assert!(check(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, RC_RTR & !bit).is_err());
        }
    }

    #[test]
    fn attributes_of_another_type_are_refused() {
        assert!(check(IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_STATE).is_ok());
        assert!(check(IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_RTR, RC_RTR).is_err());
        assert!(check(IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR, RC_RTR).is_err());
    }

    #[test]
    fn both_sides_of_xrc_take_each_others_attributes_and_leave_them() {
        let retry = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        for kind in [IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV] {
            assert!(check(kind, IBV_QPS_INIT, IBV_QPS_RTR, applicable(kind, RC_RTR)).is_ok());
            let rts = applicable(kind, IBV_QP_STATE | IBV_QP_SQ_PSN | retry);
            assert!(check(kind, IBV_QPS_RTR, IBV_QPS_RTS, rts).is_ok());
            assert!(check(kind, IBV_QPS_RTR, IBV_QPS_RTS, rts & !IBV_QP_TIMEOUT).is_err());
        }
        assert!(check(IBV_QPT_XRC_SEND, IBV_QPS_INIT, IBV_QPS_RTR, RC_RTR).is_err());
    }

    const STATES: [u32; 7] =
        [IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPS_ERR];

    /// What ibv_modify_qp(3) lists as the least that each step needs.
    #[test]
    fn each_step_needs_what_the_man_page_lists() {
        let first = IBV_QP_PKEY_INDEX | IBV_QP_PORT;
        let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        let retry = IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT;
        let served = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        let access = IBV_QP_ACCESS_FLAGS;
        for (kind, needs) in [
            (IBV_QPT_UD, [first | IBV_QP_QKEY, 0, IBV_QP_SQ_PSN]),
            (IBV_QPT_UC, [first | access, path, IBV_QP_SQ_PSN]),
            (IBV_QPT_RC, [first | access, path | served, IBV_QP_SQ_PSN | retry]),
        ] {
            for (step, need) in STATES.windows(2).zip(needs) {
                let mask = IBV_QP_STATE | need;
                assert!(check(kind, step[0], step[1], mask).is_ok());
                for bit in (0..21).map(|bit| 1 << bit).filter(|bit| need & bit != 0) {
                    assert!(check(kind, step[0], step[1], mask & !bit).is_err(), "{kind} {step:?} {bit:#x}");
                }
            }
        }
    }

    /// The arrows of IBTA figure 124, and no others.
    #[test]
    fn there_are_no_other_transitions() {
        for (kind, recovers) in [(IBV_QPT_RC, false), (IBV_QPT_UC, true), (IBV_QPT_UD, true)] {
            for (from, to) in STATES.into_iter().flat_map(|from| STATES.map(|to| (from, to))) {
                let exists = find(kind, from, to).is_some();
                let expected = match (from, to) {
                    (_, IBV_QPS_RESET) => true,
                    (_, IBV_QPS_ERR) => from != IBV_QPS_RESET,
                    (IBV_QPS_RESET | IBV_QPS_INIT, IBV_QPS_INIT) => true,
                    (IBV_QPS_INIT, IBV_QPS_RTR) | (IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD, IBV_QPS_RTS) => {
                        true
                    }
                    (IBV_QPS_RTS | IBV_QPS_SQD, IBV_QPS_SQD) => true,
                    (IBV_QPS_SQE, IBV_QPS_RTS) => recovers,
                    _ => false,
                };
                assert_eq!(exists, expected, "{kind}: {from} -> {to}");
            }
        }
    }

    #[test]
    fn states_cannot_be_skipped() {
        for kind in [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD] {
            assert!(check(kind, IBV_QPS_RESET, IBV_QPS_RTR, u32::MAX).is_err());
            assert!(check(kind, IBV_QPS_INIT, IBV_QPS_RTS, u32::MAX).is_err());
            assert!(check(kind, IBV_QPS_ERR, IBV_QPS_INIT, to_init(kind)).is_err());
            assert!(check(kind, IBV_QPS_ERR, IBV_QPS_RESET, IBV_QP_STATE).is_ok());
        }
    }
}
