//! The table of a protocol machine: one handler for each pair of state and input.
//!
//! `kinds!` makes an enum of states or inputs, and with it the rows or columns: the enum without the data, all of its values in order, and
//! `kind()`. `transitions!` makes the table. A cell that is not named is `Machine::ignore`: counted, nothing done.
//!
//! ```text
//!   kinds! { pub enum State, StateKind { Idle, ReqSent { id: CommId }, Up, Failed } }
//!   kinds! { pub enum Input<'a>, InputKind { Connect, Rep(&'a Rep) } }
//!   transitions! { Ibcm:
//!       Idle { Connect: send_req }
//!       ReqSent { Rep(rep): connected }
//!       Up | Failed { Rep(rep): disown_rep }
//!   }
//! ```
//! A handler gets what stands in parentheses, the input's own value, between slot and time; or, in brackets, one that the table names.
//! Which states follow is the handlers' affair; the golden files below `cpc/tests` say it for every cell, and a test walks them all.

/// An enum, and the enum of its values without their data.
macro_rules! kinds {
    ($(#[$doc:meta])* pub enum $Full:ident $(<$life:lifetime>)?, $Kind:ident {
        $($(#[$value_doc:meta])* $Name:ident $({ $($field:ident: $Field:ty),+ })? $(($Value:ty))?),+ $(,)?
    }) => {
        $(#[$doc])*
        pub enum $Full $(<$life>)? {
            $($(#[$value_doc])* $Name $({ $($field: $Field),+ })? $(($Value))?),+
        }

        #[doc = concat!("`", stringify!($Full), "` without its data.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $Kind { $($(#[$value_doc])* $Name),+ }

        impl $Kind {
            /// All of them, in order.
            pub const ALL: [$Kind; [$(stringify!($Name)),+].len()] = [$($Kind::$Name),+];
        }

        impl $(<$life>)? $crate::core::kinds::Kinds for $Full $(<$life>)? {
            type Kind = $Kind;

            fn kind(&self) -> $Kind {
                match self { $(Self::$Name { .. } => $Kind::$Name),+ }
            }
        }
    };
}

/// The table of a manager's `Machine`, whose rows are `StateKind` and whose columns are `InputKind`: `handler`, and `Machine::transitions`.
macro_rules! transitions {
    ($Manager:ident: $($($State:ident)|+ {
        $($Input:ident $(($arg:ident))? $([$fixed:literal])?: $handler:ident),* $(,)?
    })+) => {
        type Handler = fn(&mut Machine, usize, &Input<'_>, std::time::Instant);

        impl $crate::core::machine::Table for super::$Manager {
            type State = State;
            type Input<'a> = Input<'a>;

            const QUEUED: StateKind = StateKind::Queued;
            const FAILED: State = State::Failed;
            const LEFT: State = State::Disconnected;
            const LEAVING: StateKind = StateKind::DreqSent;
            const TIMEOUT: Input<'static> = Input::Timeout;

            fn handler(state: &State, input: &Input<'_>) -> Handler {
                use $crate::core::kinds::Kinds;
                TABLE[state.kind() as usize][input.kind() as usize].0
            }
        }

        /// The handlers and their names, "" where an input is ignored.
        const TABLE: [[(Handler, &str); InputKind::ALL.len()]; StateKind::ALL.len()] = {
            let mut table = [[(Machine::ignore as Handler, ""); InputKind::ALL.len()]; StateKind::ALL.len()];
            $({
                let states = [$(StateKind::$State),+];
                let mut n = 0;
                while n < states.len() {
                    let row = &mut table[states[n] as usize];
                    $(
                        assert!(row[InputKind::$Input as usize].1.is_empty(), "a cell stands twice");
                        row[InputKind::$Input as usize] = (
                            |machine, slot, _input, now| {
                                $(let Input::$Input($arg) = _input else { return };)?
                                machine.$handler(slot, $($arg,)? $($fixed,)? now);
                            },
                            stringify!($handler),
                        );
                    )*
                    n += 1;
                }
            })+
            table
        };

        impl Machine {
            /// Every cell in which something is done, and its handler's name: for documentation and tests.
            pub fn transitions() -> impl Iterator<Item = (StateKind, InputKind, &'static str)> {
                let cells = StateKind::ALL.into_iter().flat_map(|s| InputKind::ALL.map(|i| (s, i)));
                let named = cells.map(|(s, i)| (s, i, TABLE[s as usize][i as usize].1));
                named.filter(|(_, _, name)| !name.is_empty())
            }
        }
    };
}

/// `QpInputs` for an enum of inputs that has these under their usual names.
macro_rules! qp_inputs {
    ($Input:ty) => {
        impl $crate::core::kinds::QpInputs for $Input {
            fn command(command: $crate::EndpointCommand) -> Option<Self> {
                use $crate::EndpointCommand::{Abandon, Connect, FirstData, Remove, Renew, Unlist};
                match command {
                    Connect => Some(Self::Connect),
                    Remove => Some(Self::Remove),
                    Unlist => Some(Self::Unlist),
                    Abandon => Some(Self::Abandon),
                    FirstData => Some(Self::FirstData),
                    Renew => None,
                }
            }

            fn qps_created(qpns: Result<$crate::wire::Qpns, String>) -> Self {
                qpns.map_or_else(Self::QpsFailed, Self::QpsMade)
            }

            fn qps_up(outcome: Result<(), String>) -> Self {
                outcome.map_or_else(Self::QpsDown, |()| Self::QpsUp)
            }
        }
    };
}

pub(crate) use {kinds, qp_inputs, transitions};
