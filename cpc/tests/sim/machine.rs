//! What the managers' machines have in common, for a world of any of them.

use std::fmt::Debug;
use std::time::Instant;

use cpc::wire::Qpns;
use cpc::{ConnectError, EndpointCommand, EndpointKey, ProcessName, StreamNum};

/// As cpc's machines have it: a call of the manager's own, or an event for the transport.
pub enum Action<C> {
    Call(C),
    Agreed { key: EndpointKey, stream: StreamNum },
    Connected { key: EndpointKey },
    Failed { key: EndpointKey, error: ConnectError },
    Disconnected { key: EndpointKey },
    Unlisted { key: EndpointKey },
    Asked { key: EndpointKey },
    Retracted { key: EndpointKey },
    UnknownPeer { peer: ProcessName },
}

pub trait Machine {
    type Call;

    fn next_action(&mut self) -> Option<Action<Self::Call>>;
    fn command(&mut self, key: EndpointKey, command: EndpointCommand, now: Instant);
    fn poll_timeout(&self) -> Option<Instant>;
    fn handle_timeout(&mut self, now: Instant);
}

/// A machine whose endpoints have queue pairs of their own: ibcm's and rdmacm's.
pub trait QpMachine: Machine {
    type State: Copy + PartialEq + Debug;
    /// The state of a connection that is up.
    const UP: Self::State;

    fn state(&self, key: EndpointKey) -> Option<Self::State>;
    /// True if an endpoint in this state waits for nothing but its removal.
    fn is_spent(state: Self::State) -> bool;
    fn qps_created(&mut self, key: EndpointKey, qpns: Qpns, now: Instant);
    fn qps_up(&mut self, key: EndpointKey, now: Instant);
}

macro_rules! machines {
    ($($manager:ident)*) => {$(
        impl Machine for cpc::$manager::machine::Machine {
            type Call = cpc::$manager::machine::Call;

            fn next_action(&mut self) -> Option<Action<Self::Call>> {
                use cpc::$manager::machine::Action as From;
                Some(match self.poll_action()? {
                    From::Call(call) => Action::Call(call),
                    From::Agreed { key, stream } => Action::Agreed { key, stream },
                    From::Connected { key } => Action::Connected { key },
                    From::Failed { key, error } => Action::Failed { key, error },
                    From::Disconnected { key } => Action::Disconnected { key },
                    From::Unlisted { key } => Action::Unlisted { key },
                    From::Asked { key } => Action::Asked { key },
                    From::Retracted { key } => Action::Retracted { key },
                    From::UnknownPeer { peer } => Action::UnknownPeer { peer },
                })
            }

            fn command(&mut self, key: EndpointKey, command: EndpointCommand, now: Instant) {
                self.command(key, command, now);
            }

            fn poll_timeout(&self) -> Option<Instant> {
                self.poll_timeout()
            }

            fn handle_timeout(&mut self, now: Instant) {
                self.handle_timeout(now);
            }
        }
    )*};
}

macro_rules! qp_machines {
    ($($manager:ident)*) => {$(
        impl QpMachine for cpc::$manager::machine::Machine {
            type State = cpc::$manager::machine::StateKind;
            const UP: Self::State = Self::State::Connected;

            fn state(&self, key: EndpointKey) -> Option<Self::State> {
                self.state(key)
            }

            fn is_spent(state: Self::State) -> bool {
                matches!(state, Self::State::Disconnected | Self::State::Failed)
            }

            fn qps_created(&mut self, key: EndpointKey, qpns: Qpns, now: Instant) {
                self.qps_created(key, Ok(qpns), now);
            }

            fn qps_up(&mut self, key: EndpointKey, now: Instant) {
                self.qps_up(key, Ok(()), now);
            }
        }
    )*};
}

machines!(ibcm rdmacm xrc);
qp_machines!(ibcm rdmacm);
