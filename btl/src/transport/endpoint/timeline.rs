//! When what happened to each connection: marked on the cold paths, told at debug level, kept for a
//! file if one is wanted.
#![forbid(unsafe_code)]

use super::state::{Event, State};
use super::{Endpoint, Endpoints};
use crate::transport::Transport;
use cpc::{Step, Timeline};
use std::fmt::Write;

/// The connection of one peer, for [`json`].
#[derive(Clone, Debug)]
pub struct Record {
    /// Process name of the peer: job id in the upper half, rank in the lower.
    pub peer: u64,
    /// The connection manager.
    pub component: String,
    /// Where it stood when it was looked at.
    pub state: State,
    /// When what happened.
    pub steps: Timeline,
}

impl Record {
    /// The connection that this endpoint has now. Every process makes an endpoint to itself; one that
    /// no operation has needed is no connection.
    pub fn of<C>(ep: &Endpoint<C>) -> Option<Record> {
        if ep.is_to_itself() && ep.steps.at(Step::Wanted).is_none() {
            return None;
        }
        Some(Record {
            peer: ep.peer,
            component: ep.component().to_owned(),
            state: ep.state,
            steps: ep.steps.clone(),
        })
    }
}

impl<C> Endpoint<C> {
    fn component(&self) -> &str {
        self.choice.as_ref().map_or("itself", |choice| &choice.component)
    }
}

impl<C> Endpoints<C> {
    /// Notes a step of an endpoint's connection.
    pub fn mark(&mut self, index: u32, step: Step) {
        if let Some(ep) = self.get_mut(index) {
            ep.steps.mark(step, timing::now());
        }
    }

    /// What the helper thread has seen of it.
    pub fn merge_steps(&mut self, index: u32, steps: &Timeline) {
        if let Some(ep) = self.get_mut(index) {
            ep.steps.merge(steps);
        }
    }

    /// The connections that there are and, if they are wanted, those that there were.
    pub fn timelines(&self) -> Vec<Record> {
        let open = self.iter().filter_map(|(_, ep)| Record::of(ep));
        self.history.iter().flatten().cloned().chain(open).collect()
    }
}

impl<C> Transport<C> {
    /// The upper layer's first message goes out or has come in.
    #[cold]
    pub(crate) fn first_message(&mut self, index: u32) {
        self.on_event(index, Event::Message);
        self.endpoints.mark(index, Step::FirstMessage);
        if let Some(ep) = self.endpoints.get(index) {
            log::debug!("endpoint {index} to {:#x} over {}: {}", ep.peer, ep.component(), ep.steps);
        }
    }

    /// The connections that there are and, with `keep_timelines`, those that there were.
    pub fn timelines(&self) -> Vec<Record> {
        self.endpoints.timelines()
    }
}

/// The steps of a connection that begins now.
pub(super) fn begun() -> Timeline {
    let mut steps = Timeline::default();
    steps.mark(Step::Created, timing::now());
    steps
}

/// Records as a JSON array; times in microseconds since the first step of each connection.
pub fn json(records: &[Record]) -> String {
    let mut text = String::from("[");
    for (i, r) in records.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let (job, rank) = (r.peer >> 32, r.peer & 0xffff_ffff);
        let (component, state) = (&r.component, r.state);
        // Writing to a String cannot fail. Names are ours: nothing in them needs escaping.
        let _ = write!(
            text,
            "{comma}\n  {{\"job\": {job}, \"rank\": {rank}, \"component\": \"{component}\", \"state\": \"{state:?}\", \"us\": {{"
        );
        text.push_str(&steps(&r.steps));
        text.push_str("}}");
    }
    text.push_str("\n]");
    text
}

fn steps(timeline: &Timeline) -> String {
    let rows = timeline.rows().into_iter();
    let rows = rows.map(|(step, at)| format!("\"{}\": {:.1}", step.name(), at.as_nanos() as f64 / 1000.0));
    rows.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn records_become_json_with_times_in_microseconds() {
        let (mut timeline, begin) = (Timeline::default(), Instant::now());
        timeline.mark(Step::Created, begin);
        timeline.mark(Step::ReqSent, begin + Duration::from_nanos(1500));
        let (component, state) = ("ibcm".to_owned(), State::Connected);
        let one = Record { peer: 7 << 32 | 3, component, state, steps: timeline };
        let text = json(&[one.clone(), one]);
        let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed[1]["rank"], 3);
        assert_eq!(parsed[0]["job"], 7);
        assert_eq!(parsed[0]["us"]["req_sent"], 1.5);
        assert_eq!(json(&[]), "[\n]");
    }
}
