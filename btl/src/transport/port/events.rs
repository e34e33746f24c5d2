//! Asynchronous events of the device, and what is done about each: one table, [`TABLE`], which is
//! also `docs/events.md`.
//!
//! ```text
//!   device --> async fd --> helper thread (cpc): reads, acknowledges --> queue, flag --> TABLE
//! ```
//! The helper's queue keeps the order: an event of a queue pair is looked at before the connection
//! manager's word on a later one of the same number. A poll that finds nothing pays for events what
//! it pays for the connection managers: one load of a flag.
#![forbid(unsafe_code)]

use crate::transport::Transport;
use std::time::Instant;
use verbs::{AsyncEvent, CqId, EventKind, Qpn, SrqId, Subject};

/// What is done about an event. Those about objects of others are passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The shared receive queue keeps twice as many receives, is refilled and armed again.
    Grow,
    /// The queue pair's connection is broken, with the reason of a failed work request if there is one.
    /// Of an XRC receive queue pair: said once, by the process that made it.
    Broken,
    /// Every endpoint fails, and no peer is added any more.
    FailAll,
    /// Said, as a warning; connections go over the other port, if there is one (`link::alternate`).
    PortDown,
    /// Said; connections over the other port, if that is down, go over this one.
    PortUp,
    /// Said: what is published of the port, this of it, is no longer so.
    Stale(&'static str),
    /// Noted for those who look for the reason of something else (`btl_oxib_verbose` debug).
    Note,
}

/// One kind of event.
#[derive(Debug)]
pub struct Row {
    /// Its kind.
    pub kind: EventKind,
    /// What is done.
    pub action: Action,
    /// That as a sentence, with the reason.
    pub does: &'static str,
}

const fn row(kind: EventKind, action: Action, does: &'static str) -> Row {
    Row { kind, action, does }
}

const QP_FAILS: &str = "The connection of the queue pair is broken: another one takes its place, or its endpoint fails, with the reason that its work requests give, else this one. Of an \
     XRC receive queue pair: said once a node, by the process that made it; the requests of its senders fail, which decides about their endpoints.";

/// Every kind, in the order of `ibv_event_type`.
pub const TABLE: &[Row] = &[
    row(
        EventKind::CqError,
        Action::FailAll,
        "Of a completion queue for messages: every endpoint fails, and no peer is added any more.",
    ),
    row(EventKind::QpFatal, Action::Broken, QP_FAILS),
    row(EventKind::QpRequestError, Action::Broken, QP_FAILS),
    row(EventKind::QpAccessError, Action::Broken, QP_FAILS),
    row(EventKind::CommEst, Action::Note, "Nothing: the message that caused it is in the completion queue."),
    row(EventKind::SqDrained, Action::Note, "Nothing: no queue pair of oxib goes to SQD."),
    row(EventKind::PathMigrated, Action::Note, "Nothing: the connection goes on, over its other path."),
    row(
        EventKind::PathMigrationError,
        Action::Note,
        "Nothing: the connection stays on its path; its retries decide.",
    ),
    row(
        EventKind::DeviceFatal,
        Action::FailAll,
        "Every endpoint fails, sends are refused, and no peer is added any more.",
    ),
    row(
        EventKind::PortActive,
        Action::PortUp,
        "Said (info). If the device has another port, which is down, connections go over this one, as below.",
    ),
    row(
        EventKind::PortError,
        Action::PortDown,
        "Said (warn), and counted; nothing fails: the device's own retries decide. If the device has another port, which is up (protocol.md 4.7), connections that are coming up go over that at once, and \
         those that are up when the port has been down for 100 ms.",
    ),
    row(EventKind::LidChange, Action::Stale("LID"), STALE),
    row(EventKind::PkeyChange, Action::Stale("P_Key table"), STALE),
    row(EventKind::SmChange, Action::Note, "Nothing: oxib asks the subnet manager for nothing."),
    row(
        EventKind::SrqError,
        Action::FailAll,
        "Of a queue of the port: every endpoint fails, and no peer is added any more, for all receive through it.",
    ),
    row(
        EventKind::SrqLimitReached,
        Action::Grow,
        "That queue keeps twice as many receives (up to `rd_num`), is refilled and armed again.",
    ),
    row(
        EventKind::LastWqeReached,
        Action::Note,
        "Nothing waits for it: not every device tells of it, and the end of an endpoint waits for completions.",
    ),
    row(
        EventKind::ClientReregister,
        Action::Note,
        "Nothing: oxib has registered nothing with the subnet manager.",
    ),
    row(EventKind::GidChange, Action::Stale("GID table"), STALE),
    row(EventKind::WqFatal, Action::Note, "Nothing: oxib makes no work queues."),
];

const STALE: &str = "Said (info): what peers were told of the port when the job began may not be so any more. Connections that are \
     up stay; later ones may fail.";

/// The row of an event.
fn row_of(kind: EventKind) -> Option<&'static Row> {
    TABLE.get(kind.code() as usize)
}

/// What has been heard of the device that stays so.
#[derive(Debug, Default)]
pub struct Heard {
    /// Why the port takes no more peers.
    pub broken: Option<String>,
    /// Ports that are down, of those that connections can go over, and since when: when the event of it was looked at first.
    down: Vec<(u8, Instant)>,
    /// An event without a row has been told of.
    unknown: bool,
}

impl Heard {
    /// The port is down, and since when, as the device has told.
    pub fn down_since(&self, num: u8) -> Option<Instant> {
        self.down.iter().find(|(down, _)| *down == num).map(|(_, since)| *since)
    }

    /// The device tells that a port has gone down.
    fn port_down(&mut self, num: u8) {
        if self.down_since(num).is_none() {
            self.down.push((num, timing::now()));
        }
    }

    /// The device tells that a port is up.
    fn port_up(&mut self, num: u8) {
        self.down.retain(|(down, _)| *down != num);
    }
}

impl<C> Transport<C> {
    /// The helper thread has read an event.
    #[cold]
    pub(crate) fn device_event(&mut self, event: AsyncEvent) {
        log::debug!("{}: {} of {:?}", self.port.device(), event.kind.name(), event.subject);
        self.stats.device_events += 1;
        match row_of(event.kind) {
            Some(row) => self.act(row.action, event),
            None => self.unknown_event(event.kind),
        }
    }

    fn act(&mut self, action: Action, event: AsyncEvent) {
        match (action, event.subject) {
            (Action::Grow, Subject::Srq(srq)) => self.rx.limit_reached(srq),
            (Action::Broken, Subject::Qp(qpn)) => self.queue_pair_broken(qpn, event.kind),
            (Action::FailAll, Subject::Device) => self.port_broken(event.kind, "the device is broken"),
            (Action::FailAll, Subject::Cq(cq)) => self.completions_broken(cq, event.kind),
            (Action::FailAll, Subject::Srq(srq)) => self.receives_broken(srq, event.kind),
            (Action::PortDown | Action::PortUp | Action::Stale(_), Subject::Port(num)) => {
                self.port_changed(num, action);
            }
            _ => {}
        }
    }

    /// An event of a receive queue pair of the XRC domain that this process has made.
    #[cold]
    pub(crate) fn receiver_event(&mut self, event: AsyncEvent) {
        self.stats.device_events += 1;
        let fails = row_of(event.kind).is_some_and(|row| row.action == Action::Broken);
        let level = if fails { log::Level::Info } else { log::Level::Debug };
        let Subject::Qp(qpn) = event.subject else { return };
        let then = if fails { ": what its senders send fails" } else { "" };
        let (device, name) = (self.port.device(), event.kind.name());
        log::log!(level, "{device} reports {name} for XRC receive queue pair {qpn}{then}");
    }

    /// A work request that has failed says more than the event, and may have completed already.
    fn queue_pair_broken(&mut self, qpn: Qpn, kind: EventKind) {
        self.poll_sends();
        if let Some(endpoint) = self.rx.qpns.endpoint(qpn) {
            self.broken(endpoint, &format_args!("the device reports {} for {qpn}", kind.name()));
        }
    }

    fn completions_broken(&mut self, cq: CqId, kind: EventKind) {
        if cq == self.rx.cq.id() || cq == self.tx.cq.id() {
            self.port_broken(kind, "a completion queue overran");
        } else {
            log::warn!("{}: a completion queue of a connection manager overran", self.port.device());
        }
    }

    fn receives_broken(&mut self, srq: SrqId, kind: EventKind) {
        if self.rx.queue_of(srq).is_some() {
            self.port_broken(kind, "a shared receive queue is broken");
        }
    }

    /// Nothing goes over this port any more.
    fn port_broken(&mut self, kind: EventKind, what: &str) {
        let reason = format!("{what} ({} reports {})", self.port.device(), kind.name());
        self.all_broken(&reason);
        self.port.heard.broken.get_or_insert(reason);
    }

    fn port_changed(&mut self, num: u8, action: Action) {
        if num == self.port.num || Some(num) == self.port.alternate {
            match action {
                Action::PortDown => self.port.heard.port_down(num),
                Action::PortUp => self.port.heard.port_up(num),
                _ => {}
            }
            self.leave_port_that_is_down();
        }
        let device = self.port.device();
        match action {
            _ if num != self.port.num => {}
            Action::PortDown => {
                log::warn!("port {num} of {device} is down");
                self.stats.port_errors += 1;
            }
            Action::PortUp => log::info!("port {num} of {device} is up"),
            Action::Stale(what) => log::info!(
                "the {what} of port {num} of {device} has changed: connections that are up stay, later ones may fail"
            ),
            _ => {}
        }
    }

    fn unknown_event(&mut self, kind: EventKind) {
        if !std::mem::replace(&mut self.port.heard.unknown, true) {
            log::info!("{} reports an event of unknown type {}", self.port.device(), kind.code());
        }
    }

    pub(crate) fn all_broken(&mut self, reason: &str) {
        let all: Vec<u32> = self.endpoints.iter().map(|(index, _)| index).collect();
        for index in all {
            self.fail(index, &reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const HEAD: &str = "\
# Asynchronous events

Made from the table in `btl/src/transport/port/events.rs`; please change it there.

What the device tells beside completions (`ibv_get_async_event(3)`). The connection helper thread of each port reads and acknowledges an
event when it comes, and hands it to the main thread, which acts upon it at its next poll. Each port has its device open for
itself, so it hears of its own queues only; of the device's other ports it heeds what an alternate one says of being down or up. Events are counted (`device_events`), and each is
noted at level debug. One that is in no row is noted once, at level info.

| event | what is done |
|-------|--------------|
";

    #[test]
    fn every_event_has_its_row() {
        let kinds: Vec<EventKind> = TABLE.iter().map(|row| row.kind).collect();
        assert_eq!(kinds, EventKind::ALL);
        assert!(row_of(EventKind::Unknown(20)).is_none());
    }

    #[test]
    fn the_page_in_docs_is_the_one_of_the_table() {
        let row = |row: &Row| format!("| `{}` | {} |\n", row.kind.name(), row.does);
        let page = TABLE.iter().fold(HEAD.to_owned(), |page, of| page + &row(of));
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/events.md");
        if std::env::var_os("OXIB_WRITE_DOCS").is_some() {
            std::fs::write(&file, &page).expect("docs/ is writable");
        }
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(written == page, "out of date: OXIB_WRITE_DOCS=1 cargo test -p btl --lib docs");
    }
}
