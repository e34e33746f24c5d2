//! Plans of faults as data. What carries them out is `crate::faults`, and `datapath::initiator::fates`.
//!
//! ```text
//! call    the control calls that can be made to fail
//! event   the asynchronous events that can be raised
//! plan    what is asked for: SOFTIB_FAULTS, or a program's Plan, parsed
//! step    the steps at which the process can be killed
//! state   a plan under way: counters and dice
//! ```

/// Calls by name.
pub mod call;
/// Events by name.
pub mod event;
/// The parsed plan.
pub mod plan;
/// Dice and counts of a plan.
pub mod state;
/// Steps by name.
pub mod step;
