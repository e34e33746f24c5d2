//! The states of an endpoint: one table of (state, event), no I/O.
//!
//! ```text
//!          connect / peer's REQ          CPC: QPs exist            CPC: both sides up
//!   Idle ----------------------> Connecting ------------> HaveQps ---------------> CtsSent
//!                                    |                       |  peer's CTS came first    |  peer's CTS
//!                                    |                       +-------> HaveCts ----------> Ready
//!                                    v                                                     |  first message
//!                                  Failed  <---------- any error, peer gone ---- Connected <
//!   Connected -- the end begins, something is queued or in flight --> Draining -- all is out --> Drained
//!   any that flows -- the peer's stream has ended, and we have acknowledged that --> Ended
//!   any of them -- the peer has taken it down --> Disconnected
//!   any of them -- close --> Closed
//!   any of these, for a Reason: --> Renewing(reason) -- the next poll --> Retiring(reason) -- flushed --> Idle, of the next connection (`renew`)
//!     any that flows or comes up -- its connection has broken --> Broken; the next connection: .. --> Resuming -- the peer's counts --> Ready
//!     any before Ready -- the peer has left ------------------> PeerLeft
//!     Disconnected -- the peer is back -----------------------> PeerBack
//!     any before Ready -- the device's other port serves -----> OtherPort
//!     any before Ready -- our request is withdrawn -----------> Withdrawn
//! ```
//! A connection that takes the place of one that broke (`resumes`) stops before `Ready` until each side has told how many
//! messages have come to it, so that none is sent twice (`link::resume`).
//!
//! [`Endpoint::on`](super::Endpoint::on) is the only writer of a state: what an endpoint is about is
//! nowhere but here.
//!
//! `CtsSent` means that our real buffers are posted and our CTS is on its way (seed 004); `Ready`
//! means that the peer has said the same, `Connected` that a message has passed since, so that the
//! hot paths look at one state only and the first message takes the slow path, where it is noted.
//! Layouts without a per-peer queue have no CTS: they go from `HaveQps` straight to `Ready` and
//! rely on RNR and retransmission.
//!
//! iWARP (MPA, RFC 5044): on each queue pair the side that asked has to send first. It sends its
//! CTS as ever, and, once it has the peer's, one message over each of the other queue pairs. The
//! other side takes two more steps:
//!
//! ```text
//!   HaveQps -- CPC: up --> Posted -- peer's CTS: ours goes out --> AwaitingFirst -- something has come over each --> Ready
//! ```
#![forbid(unsafe_code)]

/// How the two sides tell each other that their receives are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// Not at all: no per-peer queue.
    None,
    /// Each by a CTS, in any order.
    Cts,
    /// iWARP: we have to send first, on every queue pair.
    Opens,
    /// iWARP: the peer has to.
    Answers,
}

/// Why another connection takes the place of the one at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is broken, and the peer may be there: the next one goes on with its stream (`link::resume`).
    Broken,
    /// The peer has left before it was up: what waits goes over the next one, if the peer has another endpoint.
    PeerLeft,
    /// The peer had left after it was up, and is back.
    PeerBack,
    /// It is given up before it is up, for one over the device's other port (`link::alternate`). Messages that have come over it
    /// belong to the stream of the next one.
    OtherPort,
    /// We leave, and have withdrawn the request for it, which the peer has not answered: what waits goes over the next one, if either side asks
    /// for that before the endpoint is removed.
    Withdrawn,
}

/// Where an endpoint stands. Only `Ready` and `Connected` let fragments out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Known to us, nothing begun.
    Idle,
    /// A connection was asked for, by us; no queue pair yet.
    Connecting,
    /// The connection manager made the queue pairs (ours or the peer's wish); they may not be up
    /// yet.
    HaveQps,
    /// As `HaveQps`, and the peer's CTS has already arrived.
    HaveCts,
    /// Queue pairs are up, our buffers are posted, our CTS is sent; the peer's CTS is still to
    /// come.
    CtsSent,
    /// Queue pairs are up, our buffers are posted; the peer's CTS has to come before ours may go.
    Posted,
    /// As `Ready`, but over some queue pairs nothing has come yet, so nothing may go.
    AwaitingFirst,
    /// Both have posted, and ours has told what has come over the connection that broke before; the peer has not.
    Resuming,
    /// Both have posted: fragments may flow, none has yet.
    Ready,
    /// Fragments flow.
    Connected,
    /// As `Connected`, and the endpoint is to be taken down when what is queued or in flight is out.
    Draining,
    /// As `Draining`, and all is out.
    Drained,
    /// The peer is leaving and has been told that all has come: no more messages of the upper layer go.
    Ended,
    /// Another connection is about to be begun, and this one takes no part any more.
    Renewing(Reason),
    /// As `Renewing`, and the queue pairs of this connection are being flushed: what fails with
    /// them says nothing.
    Retiring(Reason),
    /// The connection is lost for good.
    Failed,
    /// Taken down by the peer, who may be back.
    Disconnected,
    /// Taken down by us: the device gives back what it holds, then the endpoint goes.
    Closed,
}

/// What can happen to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The upper layer wants to send.
    WantSend,
    /// The connection manager created the queue pairs.
    QpsCreated,
    /// The connection manager says that both sides are up.
    CpcConnected,
    /// The peer's CTS completed.
    CtsReceived,
    /// Something has come over every queue pair.
    Opened,
    /// The upper layer's first message goes out or has come in.
    Message,
    /// X queues: the send queue pair has broken, and another one has been asked for.
    Rerouted,
    /// The connection manager gave up, a work request failed, or the peer is gone.
    Error,
    /// The endpoint is to be taken down; something is queued or in flight.
    Drain,
    /// The same, and all is out.
    AllOut,
    /// The end of the peer's stream is acknowledged.
    Acknowledged,
    /// The peer has taken the connection down.
    PeerLeft,
    /// The peer has told what has come to it over the connection that broke.
    Resumed,
    /// Another connection is to take the place of this one, and why.
    Renew(Reason),
    /// That one's time has come: this one's queue pairs go.
    Retire,
    /// They are gone.
    Retired,
    /// We take the endpoint down.
    Close,
}

/// What the caller has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    None,
    /// Ask the connection manager for a connection.
    StartConnect,
    /// Post the real buffers and send our CTS; then fragments wait for the peer's CTS.
    PostAndSendCts,
    /// As `PostAndSendCts`, and the peer's CTS is here already: let the pending fragments flow.
    PostSendCtsAndFlow,
    /// Post the real buffers.
    Post,
    /// Send our CTS.
    SendCts,
    /// Send something over every queue pair that nothing has gone over yet, then let the pending
    /// fragments flow.
    OpenAndFlow,
    /// Tell the peer what has come over the connection that broke.
    Resume,
    /// As `PostAndSendCts`, then `Resume`.
    PostSendCtsAndResume,
    /// Let the pending fragments flow.
    Flow,
    /// Complete everything that is queued with an error.
    FailAll,
    /// Have the next poll begin another connection.
    Renew,
    /// Take the queue pairs down, so that everything is flushed.
    TakeDown,
    /// The event makes no sense here: a protocol error of the peer or a bug; count it, go on.
    Refuse,
}

impl State {
    /// A connection is under way.
    pub fn is_coming_up(self) -> bool {
        matches!(
            self,
            State::Connecting
                | State::HaveQps
                | State::HaveCts
                | State::CtsSent
                | State::Posted
                | State::AwaitingFirst
                | State::Resuming
                | State::Renewing(_)
                | State::Retiring(_)
        )
    }

    /// Another connection is about to take the place of the one at hand.
    pub fn is_replaced(self) -> bool {
        matches!(self, State::Renewing(_) | State::Retiring(_))
    }

    /// The real buffers are posted, and more may be.
    pub fn has_posted(self) -> bool {
        let waits = matches!(self, State::CtsSent | State::Posted | State::AwaitingFirst | State::Resuming);
        waits || self.flows()
    }

    /// A connection of P or S queues is there: whole, or as far as the queue pairs.
    pub fn has_queue_pairs(self) -> bool {
        matches!(self, State::HaveQps | State::HaveCts | State::CtsSent | State::Resuming) || self.flows()
    }

    /// Nothing has gone out yet, and things may still begin to.
    pub fn precedes_connection(self) -> bool {
        self == State::Idle || self.is_coming_up()
    }

    /// Fragments may go out; from one that has ended, our own only.
    pub fn flows(self) -> bool {
        matches!(self, State::Ready | State::Connected | State::Draining | State::Drained | State::Ended)
    }

    /// The upper layer may hand it something to be sent.
    pub fn is_open(self) -> bool {
        !self.is_over() && self != State::Ended
    }

    /// Nothing goes out any more, and nothing is going to unless the peer comes back.
    pub fn is_over(self) -> bool {
        matches!(self, State::Failed | State::Disconnected | State::Closed)
    }

    /// It takes no part in its connection any more: what that still says changes nothing.
    fn ignores_connection(self) -> bool {
        self.is_over() || self.is_replaced()
    }

    /// The next state and what to do; `resumes`: the connection takes the place of one that broke.
    pub fn on(self, event: Event, handshake: Handshake, resumes: bool) -> (State, Action) {
        match self.next(event, handshake) {
            (State::Ready, Action::Flow) if resumes && self != State::Resuming => {
                (State::Resuming, Action::Resume)
            }
            (State::Ready, Action::PostSendCtsAndFlow) if resumes => {
                (State::Resuming, Action::PostSendCtsAndResume)
            }
            next => next,
        }
    }

    fn next(self, event: Event, handshake: Handshake) -> (State, Action) {
        match event {
            Event::WantSend => self.want_send(),
            Event::QpsCreated => self.qps_created(),
            Event::CpcConnected => self.cpc_connected(handshake),
            Event::CtsReceived => self.cts_received(handshake),
            Event::Opened => self.opened(),
            Event::Message => self.message(),
            Event::Rerouted => self.rerouted(),
            Event::Error => self.error(),
            Event::Drain => self.drain(),
            Event::AllOut => self.all_out(),
            Event::Acknowledged => self.acknowledged(),
            Event::PeerLeft => self.peer_left(),
            Event::Resumed => self.resumed(),
            Event::Renew(reason) => self.renew(reason),
            Event::Retire => self.retire(),
            Event::Retired => self.retired(),
            Event::Close => self.close(),
        }
    }

    fn want_send(self) -> (State, Action) {
        match self {
            State::Idle => (State::Connecting, Action::StartConnect),
            other => (other, Action::None),
        }
    }

    /// The peer may have asked first, so `Idle` is as good as `Connecting`.
    fn qps_created(self) -> (State, Action) {
        match self {
            State::Idle | State::Connecting => (State::HaveQps, Action::None),
            state if state.ignores_connection() => (self, Action::None),
            other => (other, Action::Refuse),
        }
    }

    fn cpc_connected(self, handshake: Handshake) -> (State, Action) {
        match (self, handshake) {
            (State::HaveQps, Handshake::None) => (State::Ready, Action::Flow),
            (State::HaveQps, Handshake::Answers) => (State::Posted, Action::Post),
            (State::HaveQps, _) => (State::CtsSent, Action::PostAndSendCts),
            (State::HaveCts, Handshake::Answers) => (State::AwaitingFirst, Action::PostAndSendCts),
            (State::HaveCts, _) => (State::Ready, Action::PostSendCtsAndFlow),
            (state, _) if state.ignores_connection() => (self, Action::None),
            (other, _) => (other, Action::Refuse),
        }
    }

    fn cts_received(self, handshake: Handshake) -> (State, Action) {
        match self {
            State::HaveQps if handshake != Handshake::None => (State::HaveCts, Action::None),
            State::CtsSent if handshake == Handshake::Opens => (State::Ready, Action::OpenAndFlow),
            State::CtsSent => (State::Ready, Action::Flow),
            State::Posted => (State::AwaitingFirst, Action::SendCts),
            state if state.ignores_connection() => (self, Action::None),
            other => (other, Action::Refuse),
        }
    }

    fn opened(self) -> (State, Action) {
        match self {
            State::AwaitingFirst => (State::Ready, Action::Flow),
            other => (other, Action::None),
        }
    }

    /// A message that overtakes the peer's CTS or the connection manager's last word changes
    /// nothing.
    fn message(self) -> (State, Action) {
        match self {
            State::Ready => (State::Connected, Action::None),
            other => (other, Action::None),
        }
    }

    fn rerouted(self) -> (State, Action) {
        match self {
            state if state.flows() => (State::Connecting, Action::None),
            other => (other, Action::None),
        }
    }

    fn error(self) -> (State, Action) {
        match self {
            State::Failed | State::Disconnected | State::Closed | State::Retiring(_) => (self, Action::None),
            _ => (State::Failed, Action::FailAll),
        }
    }

    /// One that is not connected yet, or whose first message has not gone, goes on as it is.
    fn drain(self) -> (State, Action) {
        match self {
            State::Connected | State::Drained => (State::Draining, Action::None),
            other => (other, Action::None),
        }
    }

    fn all_out(self) -> (State, Action) {
        match self {
            State::Connected | State::Draining => (State::Drained, Action::None),
            other => (other, Action::None),
        }
    }

    fn acknowledged(self) -> (State, Action) {
        match self {
            state if state.flows() => (State::Ended, Action::None),
            other => (other, Action::None),
        }
    }

    fn peer_left(self) -> (State, Action) {
        match self {
            State::Closed | State::Renewing(_) | State::Retiring(_) => (self, Action::None),
            _ => (State::Disconnected, Action::None),
        }
    }

    fn resumed(self) -> (State, Action) {
        match self {
            State::Resuming => (State::Ready, Action::Flow),
            state if state.ignores_connection() => (self, Action::None),
            other => (other, Action::Refuse),
        }
    }

    /// The first reason stays. iWARP and X queues go other ways than that of a broken connection.
    fn renew(self, reason: Reason) -> (State, Action) {
        let may = match reason {
            Reason::Broken => self.flows() || self.is_coming_up(),
            Reason::PeerBack => self == State::Disconnected,
            Reason::PeerLeft | Reason::OtherPort | Reason::Withdrawn => self.precedes_connection(),
        };
        match self {
            State::Renewing(_) | State::Retiring(_) => (self, Action::None),
            _ if may => (State::Renewing(reason), Action::Renew),
            other => (other, Action::Refuse),
        }
    }

    fn retire(self) -> (State, Action) {
        match self {
            State::Renewing(reason) => (State::Retiring(reason), Action::TakeDown),
            other => (other, Action::None),
        }
    }

    fn retired(self) -> (State, Action) {
        match self {
            State::Retiring(_) => (State::Idle, Action::None),
            other => (other, Action::None),
        }
    }

    /// The queue pairs of one that retires are down already.
    fn close(self) -> (State, Action) {
        match self {
            State::Retiring(_) | State::Closed => (State::Closed, Action::None),
            _ => (State::Closed, Action::TakeDown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REASONS: [Reason; 5] =
        [Reason::Broken, Reason::PeerLeft, Reason::PeerBack, Reason::OtherPort, Reason::Withdrawn];
    const STATES: [State; 26] = [
        State::Idle,
        State::Connecting,
        State::HaveQps,
        State::HaveCts,
        State::CtsSent,
        State::Posted,
        State::AwaitingFirst,
        State::Resuming,
        State::Ready,
        State::Connected,
        State::Draining,
        State::Drained,
        State::Ended,
        State::Renewing(Reason::Broken),
        State::Renewing(Reason::PeerLeft),
        State::Renewing(Reason::PeerBack),
        State::Renewing(Reason::OtherPort),
        State::Renewing(Reason::Withdrawn),
        State::Retiring(Reason::Broken),
        State::Retiring(Reason::PeerLeft),
        State::Retiring(Reason::PeerBack),
        State::Retiring(Reason::OtherPort),
        State::Retiring(Reason::Withdrawn),
        State::Failed,
        State::Disconnected,
        State::Closed,
    ];
    const EVENTS: [Event; 21] = [
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
        Event::Resumed,
        Event::Renew(Reason::Broken),
        Event::Renew(Reason::PeerLeft),
        Event::Renew(Reason::PeerBack),
        Event::Renew(Reason::OtherPort),
        Event::Renew(Reason::Withdrawn),
        Event::Retire,
        Event::Retired,
        Event::Close,
    ];

    fn run(handshake: Handshake, events: &[Event]) -> (State, Vec<Action>) {
        let mut state = State::Idle;
        let actions = events
            .iter()
            .map(|e| {
                let (next, action) = state.on(*e, handshake, false);
                state = next;
                action
            })
            .collect();
        (state, actions)
    }

    #[test]
    fn an_active_open_posts_before_it_flows() {
        let (state, actions) = run(
            Handshake::Cts,
            &[Event::WantSend, Event::QpsCreated, Event::CpcConnected, Event::CtsReceived],
        );
        assert_eq!(state, State::Ready);
        assert_eq!(state.on(Event::Message, Handshake::Cts, false), (State::Connected, Action::None));
        assert_eq!(actions, [Action::StartConnect, Action::None, Action::PostAndSendCts, Action::Flow]);
    }

    #[test]
    fn a_cts_that_overtakes_the_connection_manager_is_kept() {
        let (state, actions) =
            run(Handshake::Cts, &[Event::QpsCreated, Event::CtsReceived, Event::CpcConnected]);
        assert_eq!(state, State::Ready);
        assert_eq!(actions[2], Action::PostSendCtsAndFlow);
    }

    #[test]
    fn a_layout_without_per_peer_queue_needs_no_cts() {
        let (state, actions) =
            run(Handshake::None, &[Event::WantSend, Event::QpsCreated, Event::CpcConnected]);
        assert_eq!((state, actions[2]), (State::Ready, Action::Flow));
        assert_eq!(State::HaveQps.on(Event::CtsReceived, Handshake::None, false).1, Action::Refuse);
    }

    #[test]
    fn errors_fail_the_queue_once_and_terminal_states_stay() {
        for state in STATES {
            let (next, action) = state.on(Event::Error, Handshake::Cts, false);
            let deaf = state.is_over() || matches!(state, State::Retiring(_));
            assert_eq!(action == Action::FailAll, !deaf);
            assert_eq!(next.on(Event::Error, Handshake::Cts, false).1, Action::None);
        }
        for event in EVENTS {
            assert!(matches!(State::Closed.on(event, Handshake::Cts, false).0, State::Closed));
        }
    }

    /// What came over a connection is taken up before it is retired (`reap`), and may be bad.
    #[test]
    fn an_endpoint_that_fails_before_its_connection_is_retired_stays_failed() {
        let (failed, _) = State::Renewing(Reason::Broken).on(Event::Error, Handshake::Cts, false);
        for event in [Event::Retire, Event::Retired] {
            assert_eq!(failed.on(event, Handshake::Cts, false), (State::Failed, Action::None), "{event:?}");
        }
    }

    /// What the connection that is gone still says changes nothing; nothing goes out over it.
    #[test]
    fn an_endpoint_that_is_about_to_be_connected_anew_waits_for_that_alone() {
        for event in EVENTS {
            for state in STATES.into_iter().filter(|state| state.is_replaced()) {
                let (next, action) = state.on(event, Handshake::Cts, false);
                let expected = match (event, state) {
                    (Event::Error, State::Renewing(_)) => (State::Failed, Action::FailAll),
                    (Event::Retire, State::Renewing(reason)) => (State::Retiring(reason), Action::TakeDown),
                    (Event::Retired, State::Retiring(_)) => (State::Idle, Action::None),
                    (Event::Close, State::Renewing(_)) => (State::Closed, Action::TakeDown),
                    (Event::Close, _) => (State::Closed, Action::None),
                    _ => (state, Action::None),
                };
                assert_eq!((next, action), expected, "{event:?}");
                assert!(state.precedes_connection() && !state.flows());
            }
        }
    }

    #[test]
    fn an_endpoint_drains_while_messages_flow_and_is_drained_when_all_is_out() {
        let on = |state: State, event| state.on(event, Handshake::Cts, false);
        assert_eq!(on(State::Connected, Event::Drain), (State::Draining, Action::None));
        assert_eq!(on(State::Draining, Event::AllOut), (State::Drained, Action::None));
        // A callback has sent meanwhile.
        assert_eq!(on(State::Drained, Event::Drain), (State::Draining, Action::None));
        assert!(State::Draining.flows() && State::Drained.flows());
        for state in STATES {
            let (next, _) = on(state, Event::Drain);
            assert!(next == state || next == State::Draining, "{state:?}");
            assert_eq!(next.flows(), state.flows(), "{state:?}");
        }
    }

    #[test]
    fn an_endpoint_whose_peer_is_leaving_goes_with_it_and_sends_nothing_more() {
        for state in STATES {
            let (next, action) = state.on(Event::Acknowledged, Handshake::Cts, false);
            assert_eq!(next == State::Ended, state.flows(), "{state:?}");
            assert_eq!(action, Action::None);
        }
        for event in EVENTS {
            let (next, _) = State::Ended.on(event, Handshake::Cts, false);
            let goes = matches!(
                event,
                Event::Error
                    | Event::PeerLeft
                    | Event::Close
                    | Event::Rerouted
                    | Event::Renew(Reason::Broken)
            );
            assert_eq!(next == State::Ended, !goes, "{event:?}");
        }
        assert!(!State::Ended.is_open() && State::Ended.flows());
    }

    /// Nothing flows over the next connection before the peer has told what has come over the last one.
    #[test]
    fn an_endpoint_whose_connection_breaks_resumes_before_it_flows() {
        for state in STATES {
            let (next, action) = state.on(Event::Renew(Reason::Broken), Handshake::Cts, true);
            let alive = state.flows() || state.is_coming_up();
            assert_eq!(next.is_replaced(), alive, "{state:?}");
            let renews = alive && !state.is_replaced();
            assert_eq!((action == Action::Renew, action == Action::Refuse), (renews, !alive), "{state:?}");
        }
        let posted = [
            (Handshake::None, vec![Event::QpsCreated, Event::CpcConnected], Action::Resume),
            (
                Handshake::Cts,
                vec![Event::QpsCreated, Event::CpcConnected, Event::CtsReceived],
                Action::Resume,
            ),
            (
                Handshake::Cts,
                vec![Event::QpsCreated, Event::CtsReceived, Event::CpcConnected],
                Action::PostSendCtsAndResume,
            ),
        ];
        for (handshake, events, last) in posted {
            let (mut state, mut action) = (State::Idle, Action::None);
            for event in events {
                (state, action) = state.on(event, handshake, true);
            }
            assert_eq!((state, action), (State::Resuming, last));
            assert!(!state.flows() && state.has_posted());
            assert_eq!(state.on(Event::Resumed, handshake, true), (State::Ready, Action::Flow));
        }
    }

    /// Its queue pairs are taken down once, by whatever ends it first.
    #[test]
    fn only_an_endpoint_that_the_peer_has_taken_down_comes_back() {
        for state in STATES {
            let (left, _) = state.on(Event::PeerLeft, Handshake::Cts, false);
            for reason in REASONS {
                let renewed = left.on(Event::Renew(reason), Handshake::Cts, false);
                if left == State::Disconnected && reason == Reason::PeerBack {
                    assert_eq!(renewed, (State::Renewing(reason), Action::Renew), "{state:?}");
                } else {
                    assert_eq!(renewed.0, left, "{state:?}");
                }
            }
            let (closed, _) = left.on(Event::Close, Handshake::Cts, false);
            assert_eq!(closed.on(Event::Close, Handshake::Cts, false), (State::Closed, Action::None));
        }
    }

    #[test]
    fn on_iwarp_the_side_that_asked_opens_every_queue_pair_when_the_peer_has_posted() {
        let events = [Event::WantSend, Event::QpsCreated, Event::CpcConnected, Event::CtsReceived];
        let (state, actions) = run(Handshake::Opens, &events);
        assert_eq!((state, actions[2]), (State::Ready, Action::PostAndSendCts));
        assert_eq!(actions[3], Action::OpenAndFlow);
    }

    #[test]
    fn on_iwarp_the_other_side_says_nothing_before_it_has_heard_something() {
        let usual = [Event::QpsCreated, Event::CpcConnected, Event::CtsReceived, Event::Opened];
        let (state, actions) = run(Handshake::Answers, &usual);
        assert_eq!(
            (state, &actions[1..]),
            (State::Ready, &[Action::Post, Action::SendCts, Action::Flow][..])
        );
        let early = [Event::QpsCreated, Event::CtsReceived, Event::CpcConnected, Event::Opened];
        let (state, actions) = run(Handshake::Answers, &early);
        let expected = [Action::None, Action::PostAndSendCts, Action::Flow];
        assert_eq!((state, &actions[1..]), (State::Ready, &expected[..]));
    }

    /// Fragments flow only when our buffers are posted and, with a per-peer queue, the peer's CTS
    /// is in; as the side that answers on iWARP, only when every queue pair is open.
    #[test]
    fn no_order_of_events_connects_without_posting() {
        for handshake in [Handshake::Cts, Handshake::Opens, Handshake::Answers] {
            for order in orders() {
                let (state, actions) = run(handshake, &order);
                let posting = [Action::PostAndSendCts, Action::PostSendCtsAndFlow, Action::Post];
                if state.flows() {
                    let posted = actions.iter().any(|action| posting.contains(action));
                    assert!(posted && order.contains(&Event::CtsReceived), "{order:?}");
                    let opened = handshake != Handshake::Answers || order.contains(&Event::Opened);
                    assert!(opened, "{order:?}");
                }
            }
        }
    }

    /// All orders of five events.
    fn orders() -> impl Iterator<Item = [Event; 5]> {
        let count = EVENTS.len();
        (0..count.pow(5)).map(move |n| std::array::from_fn(|i| EVENTS[n / count.pow(i as u32) % count]))
    }
}
