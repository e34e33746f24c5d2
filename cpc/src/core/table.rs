//! The table of a protocol machine: one handler for each pair of state and input.
//!
//! `kinds!` makes the rows and the columns from the enums of states and inputs: the enum without the data, all of its values in order, and
//! `kind()`. `transitions!` makes the table. A cell that is not named is `Machine::ignore`: counted, nothing done.
//!
//! ```text
//!   kinds! { pub enum StateKind: State { Idle, ReqSent, Up } }
//!   kinds! { pub enum InputKind: Input<'_> { Connect, Rep } }
//!   transitions! {
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

        impl $Full {
            pub(super) fn kind(&self) -> $Kind {
                match self { $(Self::$Name { .. } => $Kind::$Name),+ }
            }
        }
    };
}

/// The table of `Machine`, whose rows are `StateKind` and whose columns are `InputKind`: `handler`, and `Machine::transitions`.
macro_rules! transitions {
    ($($State:ident { $($Input:ident: $handler:ident),* $(,)? })+) => {
        pub(super) type Handler = fn(&mut Machine, usize, &Input<'_>, std::time::Instant);

        const STATES: usize = StateKind::ALL.len();
        const INPUTS: usize = InputKind::ALL.len();

        /// The handler of one cell.
        pub(super) fn handler(state: StateKind, input: InputKind) -> Handler {
            TABLE[state as usize][input as usize]
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

pub(crate) use {kinds, transitions};
