//! What the core knows of a manager's states and inputs. The macros of `table` implement it.

use crate::EndpointCommand;
use crate::wire::Qpns;

/// An enum with data, and the enum of its values without.
pub trait Kinds {
    /// The values without their data.
    type Kind: Copy + PartialEq;

    /// Which of them it is.
    fn kind(&self) -> Self::Kind;
}

/// What comes to a link with queue pairs of its own from outside the exchange.
pub trait QpInputs: Sized {
    /// The main thread wants something of its endpoint; `None` if that is nothing to such a link.
    fn command(command: EndpointCommand) -> Option<Self>;
    /// Its QPs are made, or why not.
    fn qps_created(qpns: Result<Qpns, String>) -> Self;
    /// Its QPs are in RTS, or why not.
    fn qps_up(outcome: Result<(), String>) -> Self;
}
