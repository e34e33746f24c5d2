//! The table of a protocol machine: one handler for each pair of state and input.
//!
//! `kinds!` makes the rows and the columns from the enums of states and inputs: the enum without the data, all of its values in order, and
//! `kind()`. `transitions!` makes the table. A cell that is not named is `Machine::ignore`: counted, nothing done.
//!
//! ```text
//!   kinds! { pub enum StateKind: State { Idle, ReqSent, Up } }
//!   kinds! { pub enum InputKind: Input<'_> { Connect, Rep } }
//!   transitions! { Ibcm:
//!       Idle { Connect: send_req }
//!       ReqSent { Rep: connected }
//!   }
//! ```
//! Which states follow is the handlers' affair; the golden files below `cpc/tests` say it for every cell, and a test walks them all.

/// The values of an enum without their data.
macro_rules! kinds {
    ($(#[$doc:meta])* pub enum $Kind:ident: $Full:ty { $($Name:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the enum with the data says what each is")]
        pub enum $Kind { $($Name),+ }

        impl $Kind {
            /// All of them, in order.
            pub const ALL: [$Kind; [$(stringify!($Name)),+].len()] = [$($Kind::$Name),+];
        }

        impl $crate::core::kinds::Kinds for $Full {
            type Kind = $Kind;

            fn kind(&self) -> $Kind {
                match self { $(Self::$Name { .. } => $Kind::$Name),+ }
            }
        }
    };
}

/// The table of a manager's `Machine`, whose rows are `StateKind` and whose columns are `InputKind`: `handler`, and `Machine::transitions`.
macro_rules! transitions {
    ($Manager:ident: $($State:ident { $($Input:ident: $handler:ident),* $(,)? })+) => {
        type Handler = fn(&mut Machine, usize, &Input<'_>, std::time::Instant);

        const STATES: usize = StateKind::ALL.len();
        const INPUTS: usize = InputKind::ALL.len();

        impl $crate::core::machine::Table for super::$Manager {
            type State = State;
            type Input<'a> = Input<'a>;

            const QUEUED: StateKind = StateKind::Queued;
            const FAILED: State = State::Failed;
            const LEAVING: StateKind = StateKind::DreqSent;
            const TIMEOUT: Input<'static> = Input::Timeout;

            fn handler(state: &State, input: &Input<'_>) -> Handler {
                use $crate::core::kinds::Kinds;
                TABLE[state.kind() as usize][input.kind() as usize]
            }
        }

        const TABLE: [[Handler; INPUTS]; STATES] = {
            let mut table: [[Handler; INPUTS]; STATES] = [[Machine::ignore; INPUTS]; STATES];
            $($(table[StateKind::$State as usize][InputKind::$Input as usize] = Machine::$handler;)*)+
            table
        };

        /// The handlers' names, "" where an input is ignored.
        const NAMES: [[&str; INPUTS]; STATES] = {
            let mut names = [[""; INPUTS]; STATES];
            $($(
                let cell = &mut names[StateKind::$State as usize][InputKind::$Input as usize];
                assert!(cell.is_empty(), "a cell stands twice");
                *cell = stringify!($handler);
            )*)+
            names
        };

        /// Every state has a row, and one only.
        const _: fn(StateKind) = |state| match state { $(StateKind::$State => ()),+ };

        impl Machine {
            /// Every cell in which something is done, and its handler's name: for documentation and tests.
            pub fn transitions() -> impl Iterator<Item = (StateKind, InputKind, &'static str)> {
                let cells = StateKind::ALL.into_iter().flat_map(|s| InputKind::ALL.map(|i| (s, i)));
                let named = cells.map(|(s, i)| (s, i, NAMES[s as usize][i as usize]));
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
                use $crate::EndpointCommand::{Abandon, Connect, FirstData, Remove, Renew};
                match command {
                    Connect => Some(Self::Connect),
                    Remove => Some(Self::Remove),
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
