//! Transports of one process over the software device, polled in turn by one thread, against a
//! model of what must arrive. The connection managers' helper threads are the real ones, unless time is virtual ([`World::simulated`]).
//!
//! ```text
//!   World: sides 0, 1, 2 ...     send(0, 1, len) --> model: a queue of messages for each (from, to, queue of the layout)
//!                                step()          --> every side polls; each message is held against the model
//! ```
//!
//! Seeds are fixed and printed; OXIB_SEED=n explores others. Nothing sleeps: every wait has a
//! deadline that panics with the books of all sides, and a watchdog ends the process if a call does
//! not return.
//!
//! A crate of its own: `Transport` is generic, so each test binary that made one of its own compiled all of the transport again.
#![allow(missing_debug_implementations, reason = "nobody prints a world")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

pub mod child;
pub mod leaving;
pub mod memory;
pub mod model;
pub mod pace;
pub mod rng;
pub mod sweep;
pub mod watchdog;

use mca_btl_oxib::protocol::layout::Layout;
use mca_btl_oxib::transport::config::{Bound, Config, Eager, Signalling};
use mca_btl_oxib::transport::device::{Choice, Filter, PortConfig, find, pair_up};
use mca_btl_oxib::transport::stats::Stats;
use mca_btl_oxib::transport::{Attempt, EpId, Glance, Next, Transport, Upcall};
use model::{Message, Model};
use pace::Virtual;
use rng::Rng;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use verbs::{Driver, Pd};
use watchdog::Watchdog;

/// No wait of these tests takes longer, unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The same in virtual time, of all waits of a world together.
pub const VIRTUAL_PATIENCE: Duration = Duration::from_secs(600);

/// And of one: whatever a fabric loses is repeated sooner, and a request that is not answered, but could be, is refused after 60 s.
const VIRTUAL_WAIT: Duration = Duration::from_secs(55);

/// Settings as the parameters' defaults have them, with this layout.
pub fn config(layout: &str) -> Config {
    Config {
        layout: Layout::parse(layout).unwrap_or_else(|error| panic!("{layout}: {error}")),
        max_inline: 136,
        pool_limit: 1024,
        pool_grow: 32,
        cq_size: 64,
        signalling: Signalling { most: 16, most_bytes: 4096 },
        hold: Bound::of_peer(64),
        min_rnr_timer: 1,
        timeout: 14,
        retry_count: 7,
        rnr_retry: 7,
        rd_atomic: 4,
        rdma_depth: 16,
        service_level: 0,
        drain: Duration::from_secs(5),
        keepalive: Duration::from_secs(5),
        gathers: false,
        send_rings: (1 << 16, 64),
        eager: Some(Eager { slots: 8, threshold: 3, most: 4, cooling: 256, checks: false }),
        reconnects: 0,
        keep_timelines: true,
        xrc_domain: domain_file(),
        cpc: cpc::Config::default(),
    }
}

/// A file for the XRC domain of one world: its sides have their settings from one call.
fn domain_file() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    std::env::temp_dir().join(format!("oxib-xrc-test-{process}-{number}"))
}

/// Opens a transport on the software device; its connection helper thread runs.
pub fn open(config: Config, name: u64) -> Transport<u64> {
    let transport = open_alone(config, name);
    transport.listen().unwrap();
    transport
}

/// Opens a transport as in a job of one process: the helper thread starts with the first peer.
pub fn open_alone(config: Config, name: u64) -> Transport<u64> {
    try_open(config, name).unwrap()
}

/// The same where it may fail, with what is said then.
pub fn try_open(config: Config, name: u64) -> Result<Transport<u64>, String> {
    let soft = || Ok(Driver::with_connections(softib::driver_table(), softib::cm_table()));
    let port = PortConfig { gid_index: None, pkey: 0, mtu: 0 };
    let mut ports = find(&Choice::Soft, &Filter::default(), port, soft).map_err(|error| error.to_string())?;
    pair_up(&mut ports, port);
    Transport::open(&ports[0], config, name).map_err(|error| error.to_string())
}

/// A fresh job number for each world: the tests of one process run side by side.
pub fn job() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed) << 32
}

/// Connection managers that have no threads of their own, with ids and jitter from this seed.
pub fn seed_managers(config: &mut Config, seed: u64, rank: u64) {
    let own = Some(seed.wrapping_mul(64).wrapping_add(rank));
    (config.cpc.ibcm.seed, config.cpc.xrc.seed, config.cpc.rdmacm.seed) = (own, own, own);
}

/// One process of the job.
pub struct Side {
    pub transport: Transport<u64>,
    pub name: u64,
    pub adverts: Vec<cpc::Advert>,
    /// Our endpoint for each rank.
    pub to: Vec<Option<EpId>>,
    /// Ranks whose endpoint failed, and why.
    pub failed: Vec<(usize, String)>,
    /// Cookies of finished put and get operations, and whether they worked.
    pub rdma: Vec<(u64, bool)>,
    /// Cookies of finished atomics, and the values before.
    pub fetched: Vec<(u64, u64)>,
    /// Messages refused by back-pressure, to be sent again.
    pub waiting: Vec<VecDeque<Message>>,
    /// How often a message was refused.
    pub refused: u64,
    /// Messages delivered.
    pub received: u64,
    /// Its process does not run: it has no turns.
    pub absent: bool,
    /// In virtual time: its connection helper.
    pub helper: u64,
    /// So many glances may follow its last look.
    glances: Option<u32>,
}

impl Side {
    /// As the module's progress function in a program of one thread.
    fn look_alone(&mut self) -> bool {
        match self.glance_or_anew() {
            Glance::Nothing => false,
            Glance::Landed => self.transport.look_landed(),
            Glance::Unclear => self.look(),
        }
    }

    fn glance_or_anew(&mut self) -> Glance {
        match self.glance() {
            Glance::Unclear if self.glances != Some(0) => self.glance_anew(),
            found => found,
        }
    }

    /// A glance in place of a look.
    pub fn glance_anew(&mut self) -> Glance {
        let found = self.transport.glance_anew();
        self.glances = (found == Glance::Nothing).then(|| self.transport.glances());
        found
    }

    /// A glance may follow: the last look has found nothing, and the next one is not due yet.
    pub fn may_glance(&self) -> bool {
        self.glances.is_some_and(|left| left != 0)
    }

    /// A glance, if one may follow.
    pub fn glance(&mut self) -> Glance {
        match self.glances.and_then(|left| left.checked_sub(1)) {
            Some(left) if !self.transport.has_begun() => {
                self.glances = Some(left);
                self.transport.glance(left)
            }
            _ => Glance::Unclear,
        }
    }

    fn look(&mut self) -> bool {
        if self.glances == Some(0) {
            self.transport.count_glances();
        }
        let found = self.transport.poll();
        self.glances = (!found).then(|| self.transport.glances());
        found
    }

    pub fn new(transport: Transport<u64>, name: u64, count: usize) -> Side {
        let adverts = transport.adverts().to_vec();
        let waiting = (0..count).map(|_| VecDeque::new()).collect();
        let (failed, rdma) = (Vec::new(), Vec::new());
        Side {
            transport,
            name,
            adverts,
            to: vec![None; count],
            failed,
            rdma,
            fetched: Vec::new(),
            waiting,
            refused: 0,
            received: 0,
            absent: false,
            helper: 0,
            glances: None,
        }
    }

    /// Changes when something has been done.
    fn fingerprint(&self) -> u64 {
        let stats = &self.transport.stats;
        Stats::TABLE.iter().fold(self.received, |hash, counter| pace::fold(hash, (counter.of)(stats)))
    }
}

/// Longer messages never go inline.
const LONGEST_INLINE: usize = 13 << 10;

/// Wants an answer of the same length, sent from within the receive callback.
pub const ECHO: u8 = 0x80;

/// Of three sides: wants an answer of the same length to go to the third.
pub const ECHO_THIRD: u8 = 0x40;

/// All processes of a job, and what they have to receive.
pub struct World {
    pub sides: Vec<Side>,
    pub model: Model,
    pub rng: Rng,
    pub layout: Layout,
    /// Looks of all sides so far.
    looks: usize,
    begin: Instant,
    _watchdog: Option<Watchdog>,
    /// Virtual time; the last to go.
    pub pace: Option<Virtual>,
    /// The protection domains of all lives, and whose they were.
    pub domains: Vec<(usize, Weak<Pd>)>,
}

impl World {
    /// `count` processes with one layout; each knows all others, none is connected.
    pub fn new(test: &str, layout: &str, count: usize) -> World {
        World::with(test, config(layout), count)
    }

    pub fn with(test: &str, config: Config, count: usize) -> World {
        let mut world = World::strangers(test, vec![config; count]);
        for from in 0..count {
            for to in (0..count).filter(|to| *to != from) {
                world.add(from, to);
            }
        }
        world
    }

    /// Processes that do not know each other yet, each with its own settings; messages are modelled
    /// by the first's.
    pub fn strangers(test: &str, configs: Vec<Config>) -> World {
        log_to_stderr();
        let layout = configs[0].layout.clone();
        let (job, count) = (job(), configs.len());
        let sides =
            configs.into_iter().zip(job..).map(|(c, name)| Side::new(open(c, name), name, count)).collect();
        World::of(test, layout, sides)
    }

    /// Of sides that are open already.
    pub fn of(test: &str, layout: Layout, sides: Vec<Side>) -> World {
        let rng = Rng::of_test(test);
        let watchdog = Some(Watchdog::new(test, PATIENCE * 2));
        let (model, begin) = (Model::default(), timing::now());
        World {
            sides,
            model,
            rng,
            layout,
            looks: 0,
            begin,
            _watchdog: watchdog,
            pace: None,
            domains: Vec::new(),
        }
    }

    /// Processes in virtual time: what happens follows from the seed.
    pub fn simulated(seed: u64, mut configs: Vec<Config>) -> World {
        log_to_stderr();
        let pace = Some(Virtual::new(seed));
        let layout = configs[0].layout.clone();
        for (rank, config) in configs.iter_mut().enumerate() {
            seed_managers(config, seed, rank as u64);
        }
        let (model, rng, begin) = (Model::default(), Rng::new(seed), timing::now());
        let (sides, domains) = (Vec::new(), Vec::new());
        let mut world = World { sides, model, rng, layout, looks: 0, begin, _watchdog: None, pace, domains };
        let count = configs.len();
        for (config, name) in configs.into_iter().zip(1 << 32..) {
            let side = Side::new(open(config, name), name, count);
            world.sides.push(side);
            world.note_helper(world.sides.len() - 1);
            world.note_domain(world.sides.len() - 1);
        }
        world
    }

    fn note_domain(&mut self, side: usize) {
        self.domains.push((side, Arc::downgrade(self.sides[side].transport.pd())));
    }

    /// The side's connection helper has just started.
    fn note_helper(&mut self, side: usize) {
        self.sides[side].helper = self.pace.as_ref().map_or(0, Virtual::newest_worker);
    }

    /// The process of a side ends as by SIGKILL: its peers hear nothing of it. What is there in its place does not listen, and has no turns
    /// until it is revived. False: none can be there now.
    pub fn kill(&mut self, rank: usize, config: Config) -> bool {
        let side = &mut self.sides[rank];
        let Ok(other) = try_open(config, side.name) else { return false };
        self.pace.as_ref().expect("virtual time").stop(side.helper);
        // Without its helper it has nothing to say; its buffers come back.
        log::debug!("side {rank} is killed: {:?}", side.transport.audit());
        std::mem::replace(&mut side.transport, other).close();
        side.to.fill(None);
        side.failed.clear();
        side.waiting.iter_mut().for_each(VecDeque::clear);
        (side.absent, side.adverts) = (true, side.transport.adverts().to_vec());
        self.note_domain(rank);
        true
    }

    /// A process of the same name runs in its place, which knows no peers.
    pub fn revive(&mut self, rank: usize) {
        self.sides[rank].transport.listen().unwrap();
        self.sides[rank].absent = false;
        self.note_helper(rank);
    }

    /// The sides that run.
    pub fn present(&self) -> Vec<usize> {
        (0..self.sides.len()).filter(|&rank| !self.sides[rank].absent).collect()
    }

    pub fn add(&mut self, from: usize, to: usize) -> EpId {
        let (name, adverts) = (self.sides[to].name, self.sides[to].adverts.clone());
        let id = self.sides[from].transport.add(name, &adverts).unwrap();
        self.sides[from].to[to] = Some(id);
        id
    }

    pub fn id(&self, from: usize, to: usize) -> EpId {
        self.sides[from].to[to].expect("an endpoint")
    }

    /// Forgets the peer, and what the model expects from this connection in either direction.
    pub fn remove(&mut self, from: usize, to: usize) {
        let id = self.sides[from].to[to].take().expect("an endpoint");
        self.sides[from].transport.remove(&[id]);
        self.sides[from].waiting[to].clear();
    }

    /// Takes the endpoint away as its owner does in MPI: when the peer has heard that it leaves, and has said so.
    pub fn leave(&mut self, from: usize, to: usize) {
        let id = self.id(from, to);
        self.until("the peer has heard that its peer leaves", |w| !w.sides[from].transport.drain(id));
        self.remove(from, to);
    }

    /// Messages of all sizes between all, some of which are answered from their callbacks.
    pub fn talk(&mut self, messages: usize) {
        let (sides, max) = (self.sides.len(), self.layout.largest_payload());
        for _ in 0..messages {
            let (from, away, len) =
                (self.rng.below(sides), 1 + self.rng.below(sides - 1), self.rng.len(max, &[8, 128]));
            let flag = if self.rng.below(8) == 0 { ECHO } else { 0 };
            let message = self.model.message(len, flag);
            self.send_message(from, (from + away) % sides, message);
            if self.rng.below(3) == 0 {
                self.step();
            }
        }
    }

    /// All say that they leave, and hear that the others have heard.
    pub fn all_part(&mut self) {
        let pairs: Vec<_> = (0..self.sides.len())
            .flat_map(|side| self.sides[side].transport.ids().into_iter().map(move |id| (side, id)))
            .collect();
        self.until("all may leave", |w| {
            pairs.iter().filter(|(side, id)| w.sides[*side].transport.drain(*id)).count() == 0
        });
    }

    /// Sends a message now, or when back-pressure ends.
    pub fn send(&mut self, from: usize, to: usize, len: usize) {
        let message = self.model.message(len, 0);
        self.send_message(from, to, message);
    }

    pub fn send_message(&mut self, from: usize, to: usize, message: Message) {
        if !self.sides[from].waiting[to].is_empty() || !self.try_send(from, to, message, true) {
            self.sides[from].refused += 1;
            self.sides[from].waiting[to].push_back(message);
        }
    }

    /// As the module does: inline if that works at once, else through a buffer. `false`: told to
    /// come again.
    pub fn try_send(&mut self, from: usize, to: usize, message: Message, can_wait: bool) -> bool {
        let (id, queue) = (self.id(from, to), self.layout.for_payload(message.len).expect("a queue"));
        let transport = &mut self.sides[from].transport;
        let before = transport.stats.sent_eager;
        let mut bytes = vec![0; message.len.min(LONGEST_INLINE)];
        message.fill(&mut bytes);
        let (head, body) = bytes.split_at(bytes.len().min(14));
        let is_short = message.len <= LONGEST_INLINE;
        let (tag, pieces) = (message.tag, [head, body]);
        let is_sent = is_short
            && match transport.goes_straight(id, message.len) {
                true => transport.sendi_straight(id, tag, pieces) == Attempt::Sent,
                false => transport.sendi_longer(id, tag, pieces, 1) == Attempt::Sent,
            };
        if !(is_sent || is_short && transport.sendi(id, tag, pieces)) {
            let Some(mut buf) = transport.take(id, message.len, can_wait) else { return false };
            message.fill(&mut buf.payload()[..message.len]);
            let send = if can_wait { Transport::send } else { Transport::answer };
            if !send(transport, id, message.tag, buf, message.len) {
                return true; // the endpoint is lost, and the message with it
            }
        }
        let queue = if transport.stats.sent_eager == before { queue } else { 0 };
        log::trace!("{from} sends {to} over queue {queue} {message:?}");
        self.model.expect((from, to, queue), message);
        true
    }

    /// One side looks around once, as the module's progress function does; with one look of four as where threads are used, or where what is
    /// found is more than messages.
    pub fn poll(&mut self, side: usize) {
        self.looks += 1;
        let in_turn = self.looks.is_multiple_of(4);
        let side_of = &mut self.sides[side];
        let found = if in_turn { side_of.look() } else { side_of.look_alone() };
        if !found {
            side_of.transport.gives_way();
        }
        if !found || !in_turn && !self.hand_up_found(side) {
            return;
        }
        while let Some(what) = self.sides[side].transport.take_upcall() {
            self.hand_up(side, what);
        }
    }

    /// Messages, one by one. Whether there is something else, too.
    fn hand_up_found(&mut self, side: usize) -> bool {
        if self.sides[side].transport.has_found_landed() {
            return self.hand_up_landed(side);
        }
        let Some(mut delivery) = self.sides[side].transport.take_message() else { return true };
        self.receive(side, delivery.endpoint(), delivery.tag, delivery.payload());
        let transport = &mut self.sides[side].transport;
        transport.look_for_completions();
        if !transport.has_upcalls() {
            transport.delivered_last(delivery);
            return false;
        }
        transport.delivered(delivery);
        while let Some(mut delivery) = self.sides[side].transport.take_message() {
            self.receive(side, delivery.endpoint(), delivery.tag, delivery.payload());
            self.sides[side].transport.delivered(delivery);
        }
        true
    }

    /// The same of messages that have landed in a ring.
    fn hand_up_landed(&mut self, side: usize) -> bool {
        let Some(mut landed) = self.sides[side].transport.take_found() else { return true };
        loop {
            let (from, tag) = (landed.endpoint(), landed.tag);
            self.receive(side, from, tag, landed.payload());
            let transport = &mut self.sides[side].transport;
            // Else its callback has sent an answer.
            let is_untouched = tag & (ECHO | ECHO_THIRD) == 0;
            let next = if is_untouched { transport.next_short(landed) } else { Next::Unknown(landed) };
            let done = match next {
                Next::Short(next) => {
                    landed = next;
                    continue;
                }
                Next::Nothing => return transport.has_more_behind(),
                Next::Unknown(done) => done,
            };
            match transport.next_landed(done) {
                Ok(next) => landed = next,
                Err(more) => return more,
            }
        }
    }

    fn hand_up(&mut self, side: usize, what: Upcall<u64>) {
        self.note(word_of(side, &what));
        match what {
            Upcall::Deliver(mut delivery) => {
                self.receive(side, delivery.endpoint(), delivery.tag, delivery.payload());
                self.sides[side].transport.delivered(delivery);
            }
            Upcall::Completed { cookie, ok } => self.sides[side].rdma.push((cookie, ok)),
            Upcall::Fetched { cookie, value } => self.sides[side].fetched.push((cookie, value)),
            Upcall::UnknownPeer { peer } => {
                let rank = self.rank(peer);
                self.add(side, rank);
            }
            Upcall::Failed { endpoint, peer, reason, .. } => {
                let rank = self.rank(peer);
                assert_eq!(
                    self.sides[side].to[rank],
                    Some(endpoint),
                    "a failure of an endpoint that is gone"
                );
                self.sides[side].waiting[rank].clear();
                self.sides[side].failed.push((rank, reason));
            }
        }
    }

    fn rank(&self, name: u64) -> usize {
        self.sides.iter().position(|side| side.name == name).expect("a process of this job")
    }

    fn receive(&mut self, to: usize, from: EpId, tag: u8, payload: &mut [u8]) {
        let from = self.sides[to].to.iter().position(|id| *id == Some(from));
        let from = from.expect("a message of an endpoint that we have");
        let len = payload.len();
        let queue = self.layout.for_payload(len).expect("a queue");
        log::trace!("{to} is handed {len} bytes with tag {tag} from {from} over queue {queue}");
        let stream = if self.model.is_next((from, to, 0), tag, payload) { 0 } else { queue };
        self.model.arrived((from, to, stream), tag, payload);
        self.sides[to].received += 1;
        if tag & ECHO != 0 {
            let answer = self.model.message(len, 0);
            assert!(self.try_send(to, from, answer, false), "an answer from a callback was refused");
        }
        if tag & ECHO_THIRD != 0 {
            let (third, answer) = (self.sides.len() - to - from, self.model.message(len, 0));
            if self.sides[to].to[third].is_none() {
                self.add(to, third);
            }
            assert!(self.try_send(to, third, answer, false), "an answer from a callback was refused");
        }
    }

    /// These sides look around once, and send what was refused before.
    pub fn step_of(&mut self, who: &[usize]) {
        for &side in who {
            self.poll(side);
            for to in 0..self.sides.len() {
                while let Some(message) = self.sides[side].waiting[to].front().copied() {
                    if !self.try_send(side, to, message, true) {
                        break;
                    }
                    self.sides[side].waiting[to].pop_front();
                }
            }
            self.completions_have_their_place(side);
        }
        self.pass(who);
    }

    /// Time passes, and those beside the test's thread have their turns.
    fn pass(&mut self, who: &[usize]) {
        let Some(pace) = &mut self.pace else { return std::thread::yield_now() };
        let state = self.sides.iter().fold(0, |state, side| pace::fold(state, side.fingerprint()));
        let looks = pace.pass(state);
        for _ in 1..looks {
            who.iter().for_each(|&side| self.poll(side));
        }
    }

    fn note(&mut self, what: u64) {
        self.pace.iter_mut().for_each(|pace| pace.note(what));
    }

    /// What has to be reserved in the completion queues is, at any time, and no more.
    fn completions_have_their_place(&self, side: usize) {
        let books = self.sides[side].transport.audit_completions();
        assert_eq!((books.reserved, &books.exceeding[..]), (books.due, &[][..]), "side {side}: {books:?}");
    }

    /// Every side polls once, and sends what was refused before.
    pub fn step(&mut self) {
        self.step_of(&self.present());
    }

    /// All sides poll until it is true.
    pub fn until(&mut self, what: &str, done: impl FnMut(&mut World) -> bool) {
        self.until_of(&self.present(), what, done);
    }

    /// These sides poll until it is true.
    pub fn until_of(&mut self, who: &[usize], what: &str, mut done: impl FnMut(&mut World) -> bool) {
        let (all, one) =
            if self.pace.is_some() { (VIRTUAL_PATIENCE, VIRTUAL_WAIT) } else { (PATIENCE, PATIENCE) };
        let begin = timing::now();
        while !done(self) {
            self.step_of(who);
            let now = timing::now();
            let in_time = now - self.begin < all && now - begin < one;
            assert!(in_time, "{what} did not come about; {}", self.books());
        }
    }

    /// Everything that was sent has arrived, and every buffer, credit and entry is back where it
    /// belongs.
    pub fn drain(&mut self) {
        self.until("every message arrives", |w| w.nothing_waits() && w.model.is_empty());
        self.balance();
        self.no_failures();
    }

    /// Every buffer, credit and entry comes back to where it belongs.
    pub fn balance(&mut self) {
        self.until("the books balance", |w| {
            w.complete();
            w.imbalance().is_none()
        });
    }

    /// What has been sent without a completion has one from now on.
    pub fn complete(&mut self) {
        for side in &mut self.sides {
            for id in side.transport.ids() {
                side.transport.busy(id);
            }
        }
    }

    pub fn nothing_waits(&self) -> bool {
        self.sides.iter().all(|side| side.waiting.iter().all(VecDeque::is_empty))
    }

    pub fn no_failures(&self) {
        for (rank, side) in self.sides.iter().enumerate() {
            assert!(side.failed.is_empty(), "side {rank}: {:?}", side.failed);
            let stats = &side.transport.stats;
            assert_eq!((stats.refused, stats.stale, stats.failed), (0, 0, 0), "side {rank}: {stats:?}");
        }
        assert_eq!(softib::stats().cq_overruns, 0);
    }

    /// What is not as it should be when nothing is in flight.
    pub fn imbalance(&self) -> Option<String> {
        let sides = self.sides.iter().enumerate();
        sides.into_iter().find_map(|(rank, side)| {
            let wrong = self.misplaced(side).or_else(|| self.lane_imbalance(side));
            wrong.map(|wrong| format!("side {rank}: {wrong}"))
        })
    }

    /// Buffers and entries of one side that are not at home.
    fn misplaced(&self, side: &Side) -> Option<String> {
        let audit = side.transport.audit();
        let busy = (audit.outstanding, audit.inflight, audit.pending, audit.parked);
        if busy != (0, 0, 0, 0) || (audit.answers, audit.held) != (0, 0) {
            return Some(format!("{busy:?} outstanding, in flight, pending, parked"));
        }
        for (queue, books) in audit.queues.iter().enumerate() {
            let (made, home) = books.recv_buffers;
            let (posted, held) = books.recv_slots;
            let sends_home = books.send_buffers.0 as usize == books.send_buffers.1;
            let slots = self.layout.queues()[queue].srq().map(|srq| u32::from(srq.sd_max));
            if !sends_home || made as usize != home + posted + held || books.send_slots != slots {
                return Some(format!("queue {queue}: {books:?}"));
            }
        }
        None
    }

    /// A lane whose credits do not add up with those of its other end.
    fn lane_imbalance(&self, side: &Side) -> Option<String> {
        let ours = side.transport.audit().lanes;
        let far = |lane: &mca_btl_oxib::transport::audit::LaneAudit| {
            let there = self.sides.iter().find(|s| s.name == lane.peer)?.transport.audit().lanes;
            there.into_iter().find(|l| l.peer == side.name && l.queue == lane.queue)
        };
        ours.into_iter().find_map(|lane| {
            let far = far(&lane)?;
            let window = self.layout.queues()[lane.queue].window()?;
            let data = lane.have.data + far.owe.data;
            let ctl = u16::from(lane.have.ctl) + u16::from(far.owe.ctl);
            let full = (data, ctl, lane.entries) == (far.window, window.rd_rsv().into(), 0);
            (!full).then(|| format!("{lane:?} and its other end {far:?}"))
        })
    }

    /// What a failure needs to be understood.
    pub fn books(&self) -> String {
        let mut text = format!("seed {}, layout {}, {}", self.rng.seed, self.layout, self.model);
        for (rank, side) in self.sides.iter().enumerate() {
            let waiting: usize = side.waiting.iter().map(VecDeque::len).sum();
            let (stats, audit) = (side.transport.stats, side.transport.audit());
            text += &format!("\nside {rank}: failed {:?}, {waiting} wait, {stats:?}, {audit:?}", side.failed);
        }
        text + &format!("\n{:?}, imbalance {:?}", softib::stats(), self.imbalance())
    }

    /// Takes everything down; nothing may be left at the device.
    pub fn close(mut self) {
        while !self.sides.is_empty() {
            self.sides.remove(0).transport.close();
        }
        for (life, (side, domain)) in self.domains.iter().enumerate() {
            assert_eq!(domain.strong_count(), 0, "life {life}, of side {side}, has left something behind");
        }
    }
}

impl Drop for World {
    /// A test that has failed gives back what it has, as others do: anything left keeps the device of the process open, and tests that
    /// name queue pairs by their place at the device break others than they mean.
    fn drop(&mut self) {
        let sides = std::mem::take(&mut self.sides);
        let _watchdog = (!sides.is_empty()).then(|| Watchdog::new("the end of a failed test", PATIENCE));
        for side in sides {
            // Whatever goes wrong here, the test has said what went wrong first.
            let _ended = catch_unwind(AssertUnwindSafe(|| side.transport.close()));
        }
    }
}

/// What tells an upcall from others, for the trace.
fn word_of(side: usize, upcall: &Upcall<u64>) -> u64 {
    let (kind, what) = match upcall {
        Upcall::Deliver(delivery) => (1, u64::from(delivery.tag) << 32 | delivery.endpoint().index as u64),
        Upcall::Completed { cookie, ok } => (2, cookie << 1 | u64::from(*ok)),
        Upcall::Fetched { cookie, value } => (3, cookie ^ value),
        Upcall::UnknownPeer { peer } => (4, *peer),
        Upcall::Failed { peer, .. } => (5, *peer),
    };
    pace::fold(side as u64 * 8 + kind, what)
}

/// Connected pairs, by name, for tests that count connections.
pub fn connections(world: &World) -> HashMap<usize, u64> {
    world.sides.iter().enumerate().map(|(rank, side)| (rank, side.transport.stats.connected)).collect()
}

/// OXIB_LOG=debug or trace prints what happens, for those who look for the reason of a failure.
fn log_to_stderr() {
    struct Logger;
    impl log::Log for Logger {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            eprintln!("{:?} {}: {}", std::thread::current().id(), record.target(), record.args());
        }
        fn flush(&self) {}
    }
    let Some(level) = std::env::var("OXIB_LOG").ok().and_then(|level| level.parse().ok()) else { return };
    // Only the first world of a process installs it.
    let _ = log::set_logger(&Logger);
    log::set_max_level(level);
}
