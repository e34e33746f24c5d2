//! A model of the kernel's InfiniBand connection manager (Linux, drivers/infiniband/core/cm.c and
//! cma.c), as rdmacm sees it.
//!
//! What matters is kept: requests, replies and disconnects are repeated every 4.3 s, 15 times;
//! repetitions are recognised as long as the exchange lives and are new ones after; a reply for an
//! id that is gone is dropped in silence; destroying an id tells the other side once; a
//! confirmation (RTU) that is lost is repeated only for a repeated reply. Addresses and routes
//! resolve at once.

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

#[derive(Clone, Copy)]
enum Kind {
    Req { port: u16 },
    Rep,
    Rtu,
    Rej { nobody: bool },
    Dreq,
    Drep,
}

#[derive(Clone)]
pub struct Mad {
    kind: Kind,
    from: CommId,
    /// 0 where its sender knows of no id.
    to: CommId,
    /// Private data.
    pub data: Vec<u8>,
}

/// What happened to an id. `R` says whose request it is.
#[derive(Clone)]
pub enum News<R> {
    AddrResolved,
    RouteResolved,
    Request(R, Vec<u8>),
    Response(Vec<u8>),
    Established,
    Refused(Vec<u8>),
    NotListening,
    Unreachable,
    Disconnected,
}

#[derive(Clone, Copy, PartialEq, Eq)]
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
    /// The port that the process listens on.
    port: u16,
    last: CommId,
    connections: HashMap<CommId, Connection>,
    by_id: HashMap<Token, CommId>,
    /// Requests that were taken in and live on.
    known: HashMap<(Qpn, CommId), CommId>,
    timers: BTreeSet<(Instant, CommId)>,
    out: VecDeque<(Qpn, Mad)>,
    news: VecDeque<(Token, News<CommId>)>,
}

impl Manager {
    /// `number` numbers the managers: no two use the same names for connections.
    pub fn new(port: u16, number: u32) -> Manager {
        Manager {
            port,
            last: number << 12,
            connections: HashMap::new(),
            by_id: HashMap::new(),
            known: HashMap::new(),
            timers: BTreeSet::new(),
            out: VecDeque::new(),
            news: VecDeque::new(),
        }
    }

    pub fn next_datagram(&mut self) -> Option<(Qpn, Mad)> {
        self.out.pop_front()
    }

    pub fn next_news(&mut self) -> Option<(Token, News<CommId>)> {
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
        let name = self.add(id, State::Idle, peer, 0, port);
        self.by_id.insert(id, name);
        self.news.push_back((id, News::AddrResolved));
    }

    pub fn route(&mut self, id: Token) {
        self.news.push_back((id, News::RouteResolved));
    }

    pub fn connect(&mut self, id: Token, data: Vec<u8>, now: Instant) {
        if let Some(name) = self.in_state(id, &[State::Idle]) {
            let port = self.connections[&name].port;
            self.send_until_answered(name, State::ReqSent, Kind::Req { port }, data, now);
        }
    }

    /// The process has a name for the request.
    pub fn name(&mut self, name: CommId, id: Token) {
        if let Some(connection) = self.connections.get_mut(&name) {
            connection.id = id;
            self.by_id.insert(id, name);
        }
    }

    pub fn accept(&mut self, id: Token, data: Vec<u8>, now: Instant) {
        if let Some(name) = self.in_state(id, &[State::ReqReceived]) {
            self.send_until_answered(name, State::RepSent, Kind::Rep, data, now);
        }
    }

    pub fn establish(&mut self, id: Token) {
        if let Some(name) = self.in_state(id, &[State::RepReceived]) {
            self.set_state(name, State::Established);
            self.send_empty(name, Kind::Rtu);
        }
    }

    pub fn notify(&mut self, id: Token) {
        if let Some(name) = self.in_state(id, &[State::RepSent]) {
            self.report(name, State::Established, News::Established);
        }
    }

    pub fn refuse(&mut self, id: Token, data: Vec<u8>) {
        if let Some(name) = self.in_state(id, &[State::ReqReceived, State::RepReceived, State::RepSent]) {
            self.send(name, Kind::Rej { nobody: false }, data);
            self.set_state(name, State::Over);
        }
        self.close(id);
    }

    pub fn disconnect(&mut self, id: Token, now: Instant) {
        if let Some(name) = self.in_state(id, &[State::Established]) {
            self.send_until_answered(name, State::DreqSent, Kind::Dreq, Vec::new(), now);
        } else if let Some(name) = self.in_state(id, &[State::DreqReceived]) {
            self.send_empty(name, Kind::Drep);
            self.set_state(name, State::Over);
        }
    }

    pub fn close(&mut self, id: Token) {
        let Some(name) = self.by_id.remove(&id) else { return };
        match self.connections[&name].state {
            State::Idle | State::DreqSent | State::Over => {}
            State::ReqSent | State::ReqReceived | State::RepSent | State::RepReceived => {
                self.send_empty(name, Kind::Rej { nobody: false });
            }
            State::Established => self.send_empty(name, Kind::Dreq),
            State::DreqReceived => self.send_empty(name, Kind::Drep),
        }
        self.set_state(name, State::Over);
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

    pub fn datagram(&mut self, peer: Qpn, mad: &Mad) {
        let Mad { kind, from, to, ref data } = *mad;
        let state = self.connections.get(&to).map(|connection| connection.state);
        match (kind, state) {
            (Kind::Req { port }, _) => self.requested(peer, from, port, data),
            (Kind::Rep, Some(State::ReqSent)) => {
                self.connections.entry(to).and_modify(|connection| connection.theirs = from);
                self.report(to, State::RepReceived, News::Response(data.clone()));
            }
            (Kind::Rep, Some(State::Established)) if self.connections[&to].theirs == from => {
                self.send_empty(to, Kind::Rtu);
            }
            (Kind::Rtu, Some(State::RepSent)) => self.report(to, State::Established, News::Established),
            // A sender that gives up before it knew of an id of ours is known by its own.
            (Kind::Rej { nobody }, _) => {
                let name = if to == 0 { self.known.get(&(peer, from)).copied() } else { Some(to) };
                name.into_iter().for_each(|name| self.rejected(name, nobody, data));
            }
            (Kind::Dreq, Some(State::RepSent | State::Established | State::DreqSent)) => {
                self.report(to, State::DreqReceived, News::Disconnected);
            }
            (Kind::Dreq, Some(State::DreqReceived)) => {}
            (Kind::Dreq, _) => self.send_unknown(peer, from, Kind::Drep),
            (Kind::Drep, Some(State::DreqSent)) => self.report(to, State::Over, News::Disconnected),
            (Kind::Rep | Kind::Rtu | Kind::Drep, _) => {}
        }
    }

    fn requested(&mut self, peer: Qpn, theirs: CommId, port: u16, data: &[u8]) {
        if port != self.port {
            return self.send_unknown(peer, theirs, Kind::Rej { nobody: true });
        }
        if !self.known.contains_key(&(peer, theirs)) {
            let name = self.add(Token(0), State::ReqReceived, peer, theirs, port);
            self.known.insert((peer, theirs), name);
            self.news.push_back((Token(0), News::Request(name, data.to_vec())));
        }
    }

    fn rejected(&mut self, name: CommId, nobody: bool, data: &[u8]) {
        let Some(connection) = self.connections.get(&name) else { return };
        if !matches!(connection.state, State::Idle | State::DreqSent | State::DreqReceived | State::Over) {
            let news = if nobody { News::NotListening } else { News::Refused(data.to_vec()) };
            self.report(name, State::Over, news);
        }
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, name)) = self.timers.first().filter(|&&(at, _)| at <= now) {
            self.timers.remove(&(at, name));
            self.repeat(name, now);
        }
    }

    fn repeat(&mut self, name: CommId, now: Instant) {
        let Some(connection) = self.connections.get_mut(&name) else { return };
        connection.deadline = None;
        let Some(mad) = connection.pending.clone() else { return };
        if connection.tries >= RETRIES {
            let over = connection.state == State::DreqSent;
            let news = if over { News::Disconnected } else { News::Unreachable };
            return self.report(name, State::Over, news);
        }
        connection.tries += 1;
        self.out.push_back((connection.peer, mad));
        self.wait(name, now);
    }

    // Helpers.

    fn add(&mut self, id: Token, state: State, peer: Qpn, theirs: CommId, port: u16) -> CommId {
        self.last += 1;
        let (pending, tries, deadline) = (None, 0, None);
        let connection = Connection { id, state, peer, theirs, port, pending, tries, deadline };
        self.connections.insert(self.last, connection);
        self.last
    }

    fn in_state(&self, id: Token, states: &[State]) -> Option<CommId> {
        let name = *self.by_id.get(&id)?;
        states.contains(&self.connections.get(&name)?.state).then_some(name)
    }

    /// Sends what is to be repeated until it is answered.
    fn send_until_answered(&mut self, name: CommId, state: State, kind: Kind, data: Vec<u8>, now: Instant) {
        self.set_state(name, state);
        self.send(name, kind, data);
        if let Some(connection) = self.connections.get_mut(&name) {
            connection.tries = 0;
            connection.pending = self.out.back().map(|(_, mad)| mad.clone());
            self.wait(name, now);
        }
    }

    fn wait(&mut self, name: CommId, now: Instant) {
        if let Some(connection) = self.connections.get_mut(&name) {
            connection.deadline = Some(now + RESPONSE);
            self.timers.insert((now + RESPONSE, name));
        }
    }

    /// Nothing is repeated any more.
    fn set_state(&mut self, name: CommId, state: State) {
        if let Some(connection) = self.connections.get_mut(&name) {
            (connection.state, connection.pending) = (state, None);
            if let Some(at) = connection.deadline.take() {
                self.timers.remove(&(at, name));
            }
        }
    }

    /// The connection is in another state, and its process is told why.
    fn report(&mut self, name: CommId, state: State, news: News<CommId>) {
        self.set_state(name, state);
        self.news.push_back((self.connections[&name].id, news));
    }

    fn send(&mut self, from: CommId, kind: Kind, data: Vec<u8>) {
        let Connection { peer, theirs: to, .. } = self.connections[&from];
        self.out.push_back((peer, Mad { kind, from, to, data }));
    }

    fn send_empty(&mut self, name: CommId, kind: Kind) {
        self.send(name, kind, Vec::new());
    }

    /// Says something of an exchange that this manager does not know.
    fn send_unknown(&mut self, peer: Qpn, to: CommId, kind: Kind) {
        self.out.push_back((peer, Mad { kind, from: 0, to, data: Vec::new() }));
    }
}
