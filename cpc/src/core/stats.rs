//! What the machines count. Each manager shows those that it uses.

/// The counters, all from 0.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// The counters of one machine. "Should stay 0" is said where it holds.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats { $($(#[$doc])* pub $name: u64),+ }
    };
}

counters! {
    /// Datagrams taken in.
    received,
    /// Datagrams sent, repetitions included.
    sent,
    /// Repetitions sent. Should stay 0 on a fabric that loses nothing.
    repeated,
    /// Datagrams that were not ours: wrong length, class, magic, sender. Should stay 0.
    foreign,
    /// Messages of ours with impossible fields or of another version. Should stay 0.
    malformed,
    /// Datagrams of a former incarnation or exchange.
    stale,
    /// Inputs that change nothing.
    ignored,
    /// Peers that were found at another address than the modex said, having begun MPI anew.
    relearned,
    /// Crossing requests.
    raced,
    /// Requests refused because the peer's queues differ. Should stay 0.
    layout_refused,
    /// Requests of processes without an endpoint here.
    parked,
    /// Connections that came up.
    connected,
    /// Connections given up. Should stay 0.
    failed,
    /// Confirmations that data stood in for.
    first_data,
    /// rdmacm: requests sent.
    asked,
    /// rdmacm: requests taken in.
    requests,
    /// rdmacm: new tries after a failure. Should stay 0.
    retried,
    /// rdmacm: requests that came after their sender had answered ours.
    late,
    /// xrc: send queue pairs made: one for each node, and one for each time that one broke.
    senders,
    /// xrc: receive queue pairs that this process has made, or taken a handle of.
    joined,
    /// xrc: requests that named a receive queue pair which was gone.
    gone,
}

/// Rows of name and value: `rows!(stats, "ibcm": received sent)`.
macro_rules! rows {
    ($stats:expr, $manager:literal: $($name:ident)+) => {
        vec![$((concat!($manager, "_", stringify!($name)), $stats.$name)),+]
    };
}

pub(crate) use rows;
