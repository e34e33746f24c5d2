//! Numbers to words. Programs print them, and a few compare them, so they are libibverbs' own words (a test compares them
//! with the installed library).

use crate::guarded;
use std::ffi::{CStr, c_char, c_int};

const NODE_TYPES: &[&CStr] = &[
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATES: &[&CStr] =
    &[c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

const EVENT_TYPES: &[&CStr] = &[
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

const WC_STATUSES: &[&CStr] = &[
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const WR_OPCODES: &[&CStr] = &[
    c"IBV_WR_RDMA_WRITE",
    c"IBV_WR_RDMA_WRITE_WITH_IMM",
    c"IBV_WR_SEND",
    c"IBV_WR_SEND_WITH_IMM",
    c"IBV_WR_RDMA_READ",
    c"IBV_WR_ATOMIC_CMP_AND_SWP",
    c"IBV_WR_ATOMIC_FETCH_AND_ADD",
    c"IBV_WR_LOCAL_INV",
    c"IBV_WR_BIND_MW",
    c"IBV_WR_SEND_WITH_INV",
    c"IBV_WR_TSO",
    c"IBV_WR_DRIVER1",
];

/// The word for the number `at`, when the first word stands for `first`.
fn word(words: &[&'static CStr], first: c_int, at: c_int) -> *const c_char {
    let found = at.checked_sub(first).and_then(|at| words.get(usize::try_from(at).ok()?).copied());
    found.unwrap_or(c"unknown").as_ptr()
}

/// Declares one function a list.
macro_rules! words {
    ($( $(#[$doc:meta])* $name:ident = $words:ident from $first:literal; )*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// None needed; the C ABI asks for the keyword.
        pub unsafe extern "C" fn $name(number: c_int) -> *const c_char {
            guarded(c"unknown".as_ptr(), || word($words, $first, number))
        }
    )* };
}

words! {
    /// `ibv_node_type_str`
    node_type_str = NODE_TYPES from 1;
    /// `ibv_port_state_str`
    port_state_str = PORT_STATES from 0;
    /// `ibv_event_type_str`
    event_type_str = EVENT_TYPES from 0;
    /// `ibv_wc_status_str`
    wc_status_str = WC_STATUSES from 0;
    /// `ibv_wr_opcode_str` (private)
    wr_opcode_str = WR_OPCODES from 0;
}
