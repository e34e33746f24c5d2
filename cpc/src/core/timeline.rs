//! When each step of a connection happened: always kept, one small array for each that has begun.
//!
//! The helper thread marks what the connection manager does, the main thread what the transport does; the two halves are
//! merged when the connection is up or given up. Times are those of the process itself: no clock is compared with a peer's.

use std::fmt;
use std::time::{Duration, Instant};

/// The steps, in order: the enum, all of its values, and their names in logs and files.
macro_rules! steps {
    ($($(#[$doc:meta])* $Step:ident = $name:literal),+ $(,)?) => {
        /// A step on the way of a connection, roughly in the order in which they happen. Which side
        /// asks and which answers decides about some: a connection has either `ReqSent` or
        /// `ReqReceived`, or both if two requests crossed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Step { $($(#[$doc])* $Step),+ }

        const STEPS: usize = [$($name),+].len();

        impl Step {
            /// Every step, those of the side that asks and of the one that answers, in the order in which they usually come.
            pub const ALL: [Step; STEPS] = [$(Step::$Step),+];

            /// Its name in logs and files.
            pub fn name(self) -> &'static str {
                match self { $(Step::$Step => $name),+ }
            }
        }
    };
}

steps! {
    /// The peer became known.
    Created = "created",
    /// There was something to send to it.
    Wanted = "wanted",
    /// Address and route of the peer are known (RDMA-CM; ibcm has them from the modex).
    Resolved = "resolved",
    /// The peer's connection request came.
    ReqReceived = "req_received",
    /// The queue pairs exist.
    QpsCreated = "qps_created",
    /// Our connection request left for the first time.
    ReqSent = "req_sent",
    /// The peer's answer to our request came.
    RepReceived = "rep_received",
    /// Our queue pairs are in RTS.
    QpsUp = "qps_up",
    /// Our answer to the peer's request left for the first time.
    RepSent = "rep_sent",
    /// Our confirmation left for the first time.
    RtuSent = "rtu_sent",
    /// The peer's confirmation came.
    RtuReceived = "rtu_received",
    /// The main thread has posted the real receive buffers.
    Posted = "buffers_posted",
    /// Our clear-to-send is posted.
    CtsSent = "cts_sent",
    /// The peer's clear-to-send came.
    CtsReceived = "cts_received",
    /// Messages may flow.
    Connected = "connected",
    /// The first message of the upper layer went out or came in.
    FirstMessage = "first_message",
}

/// The times of one connection's steps. A process that knows all ranks of a large job talks to few of
/// them: an endpoint that is no more than created has no array.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline(Times);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Times {
    #[default]
    None,
    One(Step, Instant),
    Several(Box<[Option<Instant>; STEPS]>),
}

impl Timeline {
    /// Notes a step; only its first time counts.
    pub fn mark(&mut self, step: Step, now: Instant) {
        match &mut self.0 {
            Times::None => self.0 = Times::One(step, now),
            Times::One(known, _) if *known == step => {}
            Times::One(known, at) => {
                let mut times = Box::new([None; STEPS]);
                (times[*known as usize], times[step as usize]) = (Some(*at), Some(now));
                self.0 = Times::Several(times);
            }
            Times::Several(times) => {
                times[step as usize].get_or_insert(now);
            }
        }
    }

    /// Takes over the steps that `other` has and this one has not.
    pub fn merge(&mut self, other: &Timeline) {
        for step in Step::ALL {
            if let Some(at) = other.at(step) {
                self.mark(step, at);
            }
        }
    }

    /// When this step was marked first; `None` if it has not been, or not by this side.
    pub fn at(&self, step: Step) -> Option<Instant> {
        match &self.0 {
            Times::None => None,
            Times::One(known, at) => (*known == step).then_some(*at),
            Times::Several(times) => times[step as usize],
        }
    }

    /// What happened, in the order of time, each with its distance from the first of all.
    pub fn rows(&self) -> Vec<(Step, Duration)> {
        let Some(begin) = Step::ALL.iter().filter_map(|&step| self.at(step)).min() else { return Vec::new() };
        let mut rows: Vec<(Step, Duration)> = Step::ALL
            .iter()
            .filter_map(|&step| Some((step, self.at(step)?.saturating_duration_since(begin))))
            .collect();
        rows.sort_by_key(|&(_, after)| after);
        rows
    }
}

/// `created 0, wanted 15, ..., first_message 480 us`.
impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (step, after)) in self.rows().into_iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{} {}", step.name(), after.as_micros())?;
        }
        f.write_str(" us")
    }
}
