//! A model of the kernel's InfiniBand connection manager (Linux, drivers/infiniband/core/cm.c and cma.c), as rdmacm sees it.
//!
//! What matters is kept: requests, replies and disconnects are repeated every 4.3 s, 15 times; repetitions are recognised as long as
//! the exchange lives and are new ones after; a reply for an id that is gone is dropped in silence; destroying an id tells the
//! other side once; a confirmation (RTU) that is lost is repeated only for a repeated reply. Addresses and routes resolve at once.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use verbs::cm::Token;
use verbs::{Psn, Qpn};

/// CMA_CM_RESPONSE_TIMEOUT, 4.096 µs * 2^20.
const RESPONSE: Duration = Duration::from_micros(4_294_967);
/// CMA_MAX_CM_RETRIES.
const RETRIES: u32 = 15;

/// The manager's name for one of its connections; also the PSN that its side starts with.
type CommId = u32;

#[derive(Clone, Debug)]
pub enum Mad {
    Req {
        from: CommId,
        port: u16,
        data: Vec<u8>,
    },
    Rep {
        from: CommId,
        to: CommId,
        data: Vec<u8>,
    },
    Rtu {
        from: CommId,
        to: CommId,
    },
    /// `to` is 0 where its sender knows of no id.
    Rej {
        from: CommId,
        to: CommId,
        nobody: bool,
        data: Vec<u8>,
    },
    Dreq {
        from: CommId,
        to: CommId,
    },
    Drep {
        to: CommId,
    },
}

impl Mad {
    pub fn private_data_mut(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            Mad::Req { data, .. } | Mad::Rep { data, .. } | Mad::Rej { data, .. } => Some(data),
            Mad::Rtu { .. } | Mad::Dreq { .. } | Mad::Drep { .. } => None,
        }
    }
}

/// What happened to an id.
pub enum News {
    AddrResolved,
    RouteResolved,
    Request(CommId, Vec<u8>),
    Response(Vec<u8>),
    Established,
    Refused(Vec<u8>),
    NotListening,
    Unreachable,
    Disconnected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    ReqSent,
    ReqReceived,
    RepSent,
    RepReceived,
    Established,
    DreqSent,
    DreqReceived,
    Over,
}

struct Connection {
    id: Token,
    state: State,
    /// The other manager, and its name for this.
    peer: Qpn,
    theirs: CommId,
    port: u16,
    /// What is repeated until an answer comes, and how often it was.
    pending: Option<Mad>,
    tries: u32,
    deadline: Option<Instant>,
}

pub struct Manager {
    reach: Qpn,
    /// The port that the process listens on.
    port: u16,
    last: CommId,
    connections: HashMap<CommId, Connection>,
    by_id: HashMap<Token, CommId>,
    /// Requests that were taken in and live on.
    known: HashMap<(Qpn, CommId), CommId>,
    timers: BTreeSet<(Instant, CommId)>,
    out: VecDeque<(Qpn, Mad)>,
    news: VecDeque<(Token, News)>,
}

impl Manager {
    /// `birth` numbers the managers: no two use the same names for connections.
    pub fn new(reach: Qpn, port: u16, birth: u32) -> Manager {
        Manager {
            reach,
            port,
            last: birth << 12,
            connections: HashMap::new(),
            by_id: HashMap::new(),
            known: HashMap::new(),
            timers: BTreeSet::new(),
            out: VecDeque::new(),
            news: VecDeque::new(),
        }
    }

    pub fn reach(&self) -> Qpn {
        self.reach
    }

    pub fn next_datagram(&mut self) -> Option<(Qpn, Mad)> {
        self.out.pop_front()
    }

    pub fn next_news(&mut self) -> Option<(Token, News)> {
        loop {
            let (id, news) = self.news.pop_front()?;
            // What happened to an id that was destroyed is not told.
            if matches!(news, News::Request(..)) || self.by_id.contains_key(&id) {
                return Some((id, news));
            }
        }
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// The PSNs of both sides.
    pub fn psns(&self, id: Token) -> Option<(Psn, Psn)> {
        let name = *self.by_id.get(&id)?;
        Some((Psn(name), Psn(self.connections[&name].theirs)))
    }

    // The calls.

    pub fn resolve(&mut self, id: Token, peer: Qpn, port: u16) {
        let name = self.add(Connection {
            id,
            state: State::Idle,
            peer,
            theirs: 0,
            port,
            pending: None,
            tries: 0,
            deadline: None,
        });
        self.by_id.insert(id, name);
        self.news.push_back((id, News::AddrResolved));
    }

    pub fn route(&mut self, id: Token) {
        self.news.push_back((id, News::RouteResolved));
    }

    pub fn connect(&mut self, id: Token, data: Vec<u8>, now: Instant) {
        let Some(name) = self.in_state(id, &[State::Idle]) else { return };
        let port = self.connections[&name].port;
        self.ask(name, State::ReqSent, Mad::Req { from: name, port, data }, now);
    }

    /// The process has a name for the request.
    pub fn name(&mut self, name: CommId, id: Token) {
        if let Some(connection) = self.connections.get_mut(&name) {
            connection.id = id;
            self.by_id.insert(id, name);
        }
    }

    pub fn accept(&mut self, id: Token, data: Vec<u8>, now: Instant) {
        let Some(name) = self.in_state(id, &[State::ReqReceived]) else { return };
        let to = self.connections[&name].theirs;
        self.ask(name, State::RepSent, Mad::Rep { from: name, to, data }, now);
    }

    pub fn establish(&mut self, id: Token) {
        let Some(name) = self.in_state(id, &[State::RepReceived]) else { return };
        self.rest(name, State::Established);
        self.say(name, |from, to| Mad::Rtu { from, to });
    }

    pub fn notify(&mut self, id: Token) {
        let Some(name) = self.in_state(id, &[State::RepSent]) else { return };
        self.rest(name, State::Established);
        self.news.push_back((id, News::Established));
    }

    pub fn refuse(&mut self, id: Token, data: Vec<u8>) {
        if let Some(name) = self.in_state(id, &[State::ReqReceived, State::RepReceived, State::RepSent]) {
            self.say(name, |from, to| Mad::Rej { from, to, nobody: false, data });
            self.rest(name, State::Over);
        }
        self.close(id);
    }

    pub fn disconnect(&mut self, id: Token, now: Instant) {
        if let Some(name) = self.in_state(id, &[State::Established]) {
            let to = self.connections[&name].theirs;
            self.ask(name, State::DreqSent, Mad::Dreq { from: name, to }, now);
        } else if let Some(name) = self.in_state(id, &[State::DreqReceived]) {
            self.say(name, |_, to| Mad::Drep { to });
            self.rest(name, State::Over);
        }
    }

    pub fn close(&mut self, id: Token) {
        let Some(name) = self.by_id.remove(&id) else { return };
        let rej = |from, to| Mad::Rej { from, to, nobody: false, data: Vec::new() };
        match self.connections[&name].state {
            State::Idle | State::DreqSent | State::Over => {}
            State::ReqSent | State::ReqReceived | State::RepSent | State::RepReceived => self.say(name, rej),
            State::Established => self.say(name, |from, to| Mad::Dreq { from, to }),
            State::DreqReceived => self.say(name, |_, to| Mad::Drep { to }),
        }
        self.rest(name, State::Over);
        if let Some(gone) = self.connections.remove(&name) {
            self.known.remove(&(gone.peer, gone.theirs));
        }
    }

    pub fn close_all(&mut self) {
        let mut ids: Vec<(CommId, Token)> = self.by_id.iter().map(|(&id, &name)| (name, id)).collect();
        ids.sort_unstable_by_key(|&(name, _)| name);
        ids.into_iter().for_each(|(_, id)| self.close(id));
    }

    // The network.

    pub fn datagram(&mut self, from: Qpn, mad: &Mad, now: Instant) {
        match mad {
            Mad::Req { from: theirs, port, data } => self.requested(from, *theirs, *port, data),
            Mad::Rep { from: theirs, to, data } => self.replied(*theirs, *to, data, now),
            Mad::Rtu { to, .. } => self.confirmed(*to),
            Mad::Rej { from: theirs, to, nobody, data } => self.rejected(from, *theirs, *to, *nobody, data),
            Mad::Dreq { from: theirs, to } => self.disconnecting(from, *theirs, *to),
            Mad::Drep { to } => self.disconnected(*to),
        }
    }

    fn requested(&mut self, from: Qpn, theirs: CommId, port: u16, data: &[u8]) {
        if port != self.port {
            let rej = Mad::Rej { from: 0, to: theirs, nobody: true, data: Vec::new() };
            return self.out.push_back((from, rej));
        }
        if self.known.contains_key(&(from, theirs)) {
            return;
        }
        let (id, state) = (Token(0), State::ReqReceived);
        let name = self.add(Connection {
            id,
            state,
            peer: from,
            theirs,
            port,
            pending: None,
            tries: 0,
            deadline: None,
        });
        self.known.insert((from, theirs), name);
        self.news.push_back((id, News::Request(name, data.to_vec())));
    }

    fn replied(&mut self, theirs: CommId, to: CommId, data: &[u8], _: Instant) {
        let Some(connection) = self.connections.get_mut(&to) else { return };
        match connection.state {
            State::ReqSent => {
                connection.theirs = theirs;
                let id = connection.id;
                self.rest(to, State::RepReceived);
                self.news.push_back((id, News::Response(data.to_vec())));
            }
            State::Established if connection.theirs == theirs => {
                self.say(to, |from, to| Mad::Rtu { from, to })
            }
            _ => {}
        }
    }

    fn confirmed(&mut self, to: CommId) {
        if self.connections.get(&to).is_some_and(|c| c.state == State::RepSent) {
            let id = self.connections[&to].id;
            self.rest(to, State::Established);
            self.news.push_back((id, News::Established));
        }
    }

    fn rejected(&mut self, from: Qpn, theirs: CommId, to: CommId, nobody: bool, data: &[u8]) {
        // One who gives up before he knew of an id of ours is known by his own.
        let name = if to == 0 { self.known.get(&(from, theirs)).copied() } else { Some(to) };
        let Some(name) = name else { return };
        let Some(connection) = self.connections.get(&name) else { return };
        if !matches!(connection.state, State::Idle | State::DreqSent | State::DreqReceived | State::Over) {
            let id = connection.id;
            self.rest(name, State::Over);
            let news = if nobody { News::NotListening } else { News::Refused(data.to_vec()) };
            self.news.push_back((id, news));
        }
    }

    fn disconnecting(&mut self, from: Qpn, theirs: CommId, to: CommId) {
        let state = self.connections.get(&to).map(|c| c.state);
        match state {
            Some(State::RepSent | State::Established | State::DreqSent) => {
                let id = self.connections[&to].id;
                self.rest(to, State::DreqReceived);
                self.news.push_back((id, News::Disconnected));
            }
            Some(State::DreqReceived) => {}
            _ => self.out.push_back((from, Mad::Drep { to: theirs })),
        }
    }

    fn disconnected(&mut self, to: CommId) {
        if self.connections.get(&to).is_some_and(|c| c.state == State::DreqSent) {
            let id = self.connections[&to].id;
            self.rest(to, State::Over);
            self.news.push_back((id, News::Disconnected));
        }
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, name)) = self.timers.first() {
            if at > now {
                return;
            }
            self.timers.remove(&(at, name));
            self.repeat(name, now);
        }
    }

    fn repeat(&mut self, name: CommId, now: Instant) {
        let Some(connection) = self.connections.get_mut(&name) else { return };
        connection.deadline = None;
        let Some(mad) = connection.pending.clone() else { return };
        if connection.tries >= RETRIES {
            let news =
                if connection.state == State::DreqSent { News::Disconnected } else { News::Unreachable };
            let id = connection.id;
            self.rest(name, State::Over);
            return self.news.push_back((id, news));
        }
        connection.tries += 1;
        let to = connection.peer;
        self.wait(name, now);
        self.out.push_back((to, mad));
    }

    // Helpers.

    fn add(&mut self, connection: Connection) -> CommId {
        self.last += 1;
        self.connections.insert(self.last, connection);
        self.last
    }

    fn in_state(&self, id: Token, states: &[State]) -> Option<CommId> {
        let name = *self.by_id.get(&id)?;
        states.contains(&self.connections.get(&name)?.state).then_some(name)
    }

    /// Sends what is to be repeated until it is answered.
    fn ask(&mut self, name: CommId, state: State, mad: Mad, now: Instant) {
        self.rest(name, state);
        if let Some(connection) = self.connections.get_mut(&name) {
            (connection.tries, connection.pending) = (0, Some(mad.clone()));
            let to = connection.peer;
            self.wait(name, now);
            self.out.push_back((to, mad));
        }
    }

    fn wait(&mut self, name: CommId, now: Instant) {
        if let Some(connection) = self.connections.get_mut(&name) {
            connection.deadline = Some(now + RESPONSE);
            self.timers.insert((now + RESPONSE, name));
        }
    }

    /// Nothing is repeated any more.
    fn rest(&mut self, name: CommId, state: State) {
        if let Some(connection) = self.connections.get_mut(&name) {
            (connection.state, connection.pending) = (state, None);
            if let Some(at) = connection.deadline.take() {
                self.timers.remove(&(at, name));
            }
        }
    }

    fn say(&mut self, name: CommId, mad: impl FnOnce(CommId, CommId) -> Mad) {
        let connection = &self.connections[&name];
        self.out.push_back((connection.peer, mad(name, connection.theirs)));
    }
}
