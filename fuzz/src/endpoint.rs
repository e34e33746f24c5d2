//! Events of an endpoint in any order, and the ends of its two streams.
//!
//! ```text
//!   byte 0       how the sides tell each other that their receives are posted
//!   each other   below 0xc0: event `byte % events`;  else what the link does with the ends of the streams
//! ```
//!
//! Whatever order they come in (a connection manager, a device and a peer that say what they like), the table keeps its promises:
//! nothing flows before receives are posted and the peer has said so of its own, queue pairs are taken down once, what is over
//! stays over.

use cpc::{Choice, First};
use mca_btl_oxib::transport::EpId;
use mca_btl_oxib::transport::endpoint::{Endpoint, Resume};
use mca_btl_oxib::transport::port::entries::Entries;
use mca_btl_oxib::transport::state::{Action, Event, Handshake, Reason, State};

const EVENTS: [Event; 20] = [
    Event::WantSend,
    Event::QpsCreated,
    Event::CpcConnected,
    Event::CtsReceived,
    Event::Opened,
    Event::Message,
    Event::Rerouted,
    Event::Error,
    Event::Drain,
    Event::AllOut,
    Event::Acknowledged,
    Event::PeerLeft,
    Event::Renew(Reason::Broken),
    Event::Resumed,
    Event::Renew(Reason::PeerBack),
    Event::Retire,
    Event::Retired,
    Event::Close,
    Event::Renew(Reason::PeerLeft),
    Event::Renew(Reason::OtherPort),
];

/// From here on a byte is an operation on the ends of the streams.
const STREAMS: u8 = 0xc0;

pub(crate) fn run(data: &[u8]) {
    let Some((how, steps)) = data.split_first() else { return };
    let mut trial = Trial::new(*how);
    for step in steps {
        match *step {
            step if step >= STREAMS => trial.stream(step),
            step => trial.event(EVENTS[usize::from(step) % EVENTS.len()]),
        }
    }
}

/// An endpoint, and what has happened since its present connection was begun.
struct Trial {
    endpoint: Endpoint<u64>,
    cts: bool,
    posted: bool,
    peer_posted: bool,
    opened: bool,
    taken_down: u32,
    /// What waits has been failed, which happens once before another connection is begun.
    failed: bool,
}

impl Trial {
    fn new(how: u8) -> Trial {
        let choice =
            Choice { component: "ibcm".to_owned(), peer_blob: Vec::new(), gids: None, alternate: None };
        let id = EpId { index: 0, generation: 1 };
        let mut endpoint = Endpoint::new(id, 7, Some(Box::new(choice)), Entries::default());
        endpoint.first = [None, Some(First::Us), Some(First::Peer)][usize::from(how >> 1) % 3];
        let cts = how & 1 != 0;
        let (posted, peer_posted, opened, failed) = (false, false, false, false);
        Trial { endpoint, cts, posted, peer_posted, opened, taken_down: 0, failed }
    }

    fn event(&mut self, event: Event) {
        let was = self.endpoint.state();
        // As `link::resume` does. iWARP does not resume.
        let breaks = event == Event::Renew(Reason::Broken) && (was.flows() || was.is_coming_up());
        if breaks && self.endpoint.first.is_none() {
            self.endpoint.resume.get_or_insert_with(|| Box::new(Resume::new(1)));
        }
        let action = self.endpoint.on(event, self.cts);
        let state = self.endpoint.state();
        if was == State::Resuming && action == Action::Flow {
            self.endpoint.resume = None;
        }
        self.note(event, action, (was, state));
        self.check_step(event, action, (was, state));
        self.check_state(state);
    }

    fn note(&mut self, event: Event, action: Action, (was, state): (State, State)) {
        if matches!(was, State::Retiring(_)) && state == State::Idle {
            (self.posted, self.peer_posted, self.opened) = (false, false, false);
            (self.taken_down, self.failed) = (0, false);
        }
        self.failed &= action != Action::Renew;
        // Each action that posts receives is named so.
        self.posted |= format!("{action:?}").starts_with("Post");
        self.peer_posted |= event == Event::CtsReceived && action != Action::Refuse;
        self.opened |= event == Event::Opened;
        self.taken_down += u32::from(action == Action::TakeDown);
    }

    fn check_step(&mut self, event: Event, action: Action, (was, state): (State, State)) {
        let step = || format!("{was:?} on {event:?} -> {state:?}, {action:?}");
        if action == Action::Refuse {
            assert_eq!(was, state, "what is refused changes nothing");
        }
        if action == Action::StartConnect {
            assert!(was == State::Idle && state == State::Connecting, "{}", step());
        }
        if action == Action::FailAll {
            assert!(state == State::Failed && !was.is_over() && !self.failed, "{}", step());
            self.failed = true;
        }
        if matches!(action, Action::Flow | Action::OpenAndFlow | Action::PostSendCtsAndFlow) {
            assert!(state.flows() && !was.flows(), "{}", step());
        }
        if was == State::Closed {
            assert!(state == State::Closed && matches!(action, Action::None | Action::Refuse), "{}", step());
        }
        if was.is_over() && !state.is_over() {
            let is_anew = was == State::Disconnected && event == Event::Renew(Reason::PeerBack);
            assert!(is_anew, "{}: only one that its peer has left comes back", step());
        }
        assert!(self.taken_down <= 1, "{}: queue pairs are taken down once", step());
    }

    fn check_state(&self, state: State) {
        let kinds = [state == State::Idle, state.is_coming_up(), state.flows(), state.is_over()];
        assert_eq!(kinds.iter().filter(|is| **is).count(), 1, "{state:?} is of one kind");
        assert_eq!(state.is_open(), !state.is_over() && state != State::Ended, "{state:?}");
        let handshake = self.endpoint.handshake(self.cts);
        if handshake != Handshake::None && state.has_posted() {
            assert!(self.posted, "{state:?} without receives");
        }
        if handshake != Handshake::None && state.flows() {
            assert!(self.peer_posted, "{state:?}, and the peer has not said that it may");
        }
        assert!(
            !state.flows() || self.endpoint.resume.is_none(),
            "{state:?}, and what was lost is not sent again"
        );
        if handshake == Handshake::Answers && state.flows() {
            assert!(self.opened, "{state:?}, and nothing has come over some queue pair");
        }
    }

    /// The link counts messages, and tells and hears where the streams end.
    fn stream(&mut self, step: u8) {
        let (ends, by) = (&mut self.endpoint.ends, u32::from(step & 7));
        match step >> 3 & 7 {
            0 => ends.sent = ends.sent.wrapping_add(by),
            1 => ends.received = ends.received.wrapping_add(by),
            2 => assert_eq!(ends.tell(), ends.sent),
            3 => {
                let known = ends.hear(ends.sent.wrapping_sub(by));
                assert!(known || !ends.is_told() || by != 0, "the acknowledgement of what was told is known");
            }
            4 => ends.peer_ends(ends.received.wrapping_add(by)),
            5 => ends.peer_ends(ends.received.wrapping_sub(by)),
            6 => {
                if let Some(count) = ends.due() {
                    assert!(ends.received.wrapping_sub(count) < 1 << 31, "all of it has come");
                    ends.acknowledged();
                    assert_eq!(ends.due(), None, "an end is acknowledged once");
                }
            }
            _ => (ends.sent, ends.received) = (u32::MAX - by, u32::MAX - by),
        }
        assert!(!self.endpoint.may_end() || self.endpoint.state().flows() && !self.endpoint.ends.is_told());
        // All that may be left to say then is that the peer's stream has come as far as it goes.
        let ends = &self.endpoint.ends;
        assert!(
            !self.endpoint.has_parted()
                || !ends.are_open()
                || ends.due().is_some()
                || self.endpoint.state() == State::Ended
        );
    }
}
