//! One run: what the processes do, in an order that the seed decides, and what must hold meanwhile and at the end.
//!
//! A pair of processes is *sound* until one of them is killed: its messages arrive once, in order and intact, its operations end well,
//! and no endpoint fails. Afterwards the pair is *broken*: endpoints may fail, messages may be lost, but none comes twice, out of order
//! or changed, and none of a former life. It is sound again when both ends have been removed and made anew.

use crate::schedule::{Setting, is_of_rdmacm, setting};
use btl_testing::memory::Memory;
use btl_testing::pace::Virtual;
use btl_testing::rng::Rng;
use btl_testing::{ECHO, ECHO_THIRD, World, seed_managers};
use mca_btl_oxib::transport::Settled;
use softib::faults::{self, EventFault, Plan};
use softib::port::configure;
use verbs::RdmaOp;

/// Deeds of one run.
const MOST: usize = 60;
/// Bytes that one operation moves, at most.
const SLOT: usize = 512;

pub struct Trial {
    seed: u64,
    world: World,
    rng: Rng,
    setting: Setting,
    /// The memory that puts change and gets read, one slot for each operation; and what it should hold.
    memory: Vec<Memory>,
    model: Vec<Vec<u8>>,
    started: usize,
}

fn sorted(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

/// No endpoint of a sound pair has failed.
fn only_broken_fail(world: &World) {
    for (rank, side) in world.sides.iter().enumerate() {
        for (peer, reason) in &side.failed {
            let expected = world.model.unsure.contains(&sorted(rank, *peer));
            assert!(expected, "side {rank}, to {peer}: {reason}; {}", world.books());
        }
    }
}

/// No side has more credits than its peer may have receives.
fn credits_stay_within_their_windows(world: &World) {
    for (rank, side) in world.sides.iter().enumerate() {
        for lane in side.transport.audit().lanes {
            let window = world.layout.queues()[lane.queue].window().expect("a per-peer queue");
            let (data, ctl) = (lane.have.data.max(lane.owe.data), lane.have.ctl.max(lane.owe.ctl));
            let fits = data <= window.rd_num() && u16::from(ctl) <= u16::from(window.rd_rsv());
            assert!(fits, "side {rank}: {lane:?}; {}", world.books());
        }
    }
}

impl Trial {
    pub fn new(seed: u64) -> Trial {
        let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9));
        let setting = setting(&mut rng, seed);
        let (sides, config) = (setting.sides, setting.config.clone());
        faults::set(Plan::default());
        configure(setting.device.clone()).expect("the device is not open");
        let world = World::simulated(seed, vec![config; sides]);
        if is_of_rdmacm(seed) {
            world.pace.iter().for_each(Virtual::look_often);
        }
        let bytes = |side: usize| (0..MOST * SLOT).map(|i| (i * 7 + side * 31) as u8).collect::<Vec<u8>>();
        let model: Vec<Vec<u8>> = (0..sides).map(bytes).collect();
        let memory =
            world.sides.iter().zip(&model).map(|(s, m)| Memory::new(&s.transport, m.clone())).collect();
        Trial { seed, world, rng, setting, memory, model, started: 0 }
    }

    pub fn run(mut self) -> u64 {
        log::debug!("faults: {:?}", self.setting.plan);
        faults::set(self.setting.plan.clone());
        self.meet();
        for _ in 0..1 + self.rng.below(MOST) {
            self.act();
            only_broken_fail(&self.world);
            credits_stay_within_their_windows(&self.world);
        }
        self.end()
    }

    /// Most know each other from the start; the others are added when they are talked to, or ask.
    fn meet(&mut self) {
        for (from, to) in self.pairs() {
            if self.rng.below(4) != 0 {
                self.know(from, to);
            }
        }
    }

    fn pairs(&self) -> Vec<(usize, usize)> {
        let count = self.world.sides.len();
        let all = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        all.filter(|(from, to)| from != to).collect()
    }

    fn know(&mut self, from: usize, to: usize) {
        if self.world.sides[from].to[to].is_none() {
            self.world.add(from, to);
        }
    }

    /// Two different sides, of which the first runs.
    fn pair(&mut self) -> (usize, usize) {
        let (present, count) = (self.world.present(), self.world.sides.len());
        let from = present[self.rng.below(present.len())];
        (from, (from + 1 + self.rng.below(count - 1)) % count)
    }

    fn is_sound(&self, (from, to): (usize, usize)) -> bool {
        !self.world.model.unsure.contains(&sorted(from, to))
    }

    fn act(&mut self) {
        let (pair, deed) = (self.pair(), self.rng.below(24));
        log::info!(
            "{:?}: deed {deed} by {} to {}; broken {:?}",
            timing::now(),
            pair.0,
            pair.1,
            self.world.model.unsure
        );
        match deed {
            0..=6 => self.send(pair),
            7 | 8 => (0..1 + self.rng.below(12)).for_each(|_| self.world.step_of(&[pair.0])),
            9..=11 => (0..self.rng.below(32)).for_each(|_| self.world.step()),
            12 => self.rdma(pair, RdmaOp::Write),
            13 => self.rdma(pair, RdmaOp::Read),
            14 => self.settle(pair),
            15 => self.renew(pair),
            16 => self.world.complete(),
            17 => self.leave(pair),
            18 => self.kill_or_revive(),
            19 => self.heal(),
            20 => self.break_one(),
            21 => self.flap(),
            _ => self.world.step(),
        }
    }

    /// Short ones, those around the size of a queue, and long ones, some of which are answered.
    fn send(&mut self, (from, to): (usize, usize)) {
        self.know(from, to);
        let max = self.world.layout.largest_payload();
        let third = self.world.sides.len() == 3 && self.world.sides[to].to.iter().flatten().count() == 2;
        let flags = if third { [0, 0, ECHO, ECHO_THIRD] } else { [0, 0, 0, ECHO] };
        for _ in 0..1 + self.rng.below(8) {
            let (len, flag) = (self.rng.len(max.min(20_000), &[8, 128, 2048]), flags[self.rng.below(4)]);
            let message = self.world.model.message(len, flag);
            self.world.send_message(from, to, message);
        }
    }

    fn rdma(&mut self, (from, to): (usize, usize), op: RdmaOp) {
        if !self.is_sound((from, to)) {
            return;
        }
        self.know(from, to);
        let (at, len) = (self.started * SLOT, 1 + self.rng.below(SLOT));
        let (id, cookie) = (self.world.id(from, to), self.started as u64);
        let (local, remote) = (self.memory[from].local(at, len), self.memory[to].remote(at));
        if self.world.sides[from].transport.rdma(id, op, local, remote, cookie).is_err() {
            return; // the peer has left
        }
        let (source, target) = if op == RdmaOp::Write { (from, to) } else { (to, from) };
        let bytes = self.model[source][at..at + len].to_vec();
        self.model[target][at..at + len].copy_from_slice(&bytes);
        self.started += 1;
    }

    fn settle(&mut self, (from, to): (usize, usize)) {
        self.know(from, to);
        let (id, begin) = (self.world.id(from, to), timing::now());
        while self.world.sides[from].transport.settle(id, timing::now() - begin) == Settled::Kept {
            timing::relax();
        }
        for _ in 0..3 {
            let _waiting = self.world.sides[from].transport.serve_in_background();
            timing::relax();
        }
    }

    /// Operations that have begun and are not over.
    fn under_way(&self) -> usize {
        self.started - self.world.sides.iter().map(|side| side.rdma.len()).sum::<usize>()
    }

    /// Removes an end, if there is one.
    fn remove(&mut self, from: usize, to: usize) {
        if self.world.sides[from].to[to].is_some() {
            self.world.remove(from, to);
        }
        self.world.sides[from].failed.retain(|(rank, _)| *rank != to);
    }

    /// Both ends are removed and made again: what was under way is lost.
    fn renew(&mut self, (a, b): (usize, usize)) {
        if self.under_way() != 0 || [a, b].iter().any(|&side| self.world.sides[side].absent) {
            return;
        }
        let both = [(a, b), (b, a)];
        both.into_iter().for_each(|(from, to)| self.remove(from, to));
        both.into_iter().for_each(|(from, to)| self.world.model.forget(from, to));
        self.world.model.unsure.remove(&sorted(a, b));
        both.into_iter().for_each(|(from, to)| self.know(from, to));
    }

    /// One side takes its end down as MPI does, and makes it again; the other one keeps its own. Not over X queues: there a peer that has only
    /// sent may send to the end that is gone for a while. Nor on iWARP, where what was sent to an end that is gone is not sent again.
    fn leave(&mut self, (from, to): (usize, usize)) {
        let is_known = self.world.sides[from].to[to].is_some();
        if self.under_way() != 0 || !self.is_sound((from, to)) || !is_known || !self.setting.leaves {
            return;
        }
        let id = self.world.id(from, to);
        self.world.until("the peer has heard that its peer leaves", |w| {
            only_broken_fail(w);
            w.sides[from].waiting[to].is_empty() && !w.sides[from].transport.drain(id)
        });
        // One whose peer has left before it was connected does not wait for another connection.
        let is_connected = !self.world.sides[from].transport.is_unconnected(id);
        assert!(self.world.model.missing(from, to) == 0 || !is_connected, "{}", self.world.books());
        self.remove(from, to);
        self.world.model.may_lose(from, to);
        self.world.model.may_lose(to, from);
        if self.rng.below(2) == 0 {
            self.know(from, to);
        }
    }

    /// A process is killed, or another one runs in its place.
    fn kill_or_revive(&mut self) {
        if let Some(rank) = (0..self.world.sides.len()).find(|&rank| self.world.sides[rank].absent) {
            return self.world.revive(rank);
        }
        let victim = self.rng.below(self.world.sides.len());
        if self.rng.below(3) != 0 || self.under_way() != 0 {
            return;
        }
        // A process that starts while one of its ports is down knows the other one only.
        if self.setting.device.ports == 2 {
            faults::set_port(true).expect("an open device");
        }
        let mut config = self.setting.config.clone();
        seed_managers(&mut config, self.seed ^ self.rng.word(), victim as u64);
        if !self.world.kill(victim, config) {
            return;
        }
        self.memory[victim] = Memory::new(&self.world.sides[victim].transport, self.model[victim].clone());
        for other in (0..self.world.sides.len()).filter(|other| *other != victim) {
            self.world.model.may_lose(victim, other);
            self.world.model.may_lose(other, victim);
            self.world.model.unsure.insert(sorted(victim, other));
        }
    }

    /// A pair that is broken begins anew.
    fn heal(&mut self) {
        if let Some(pair) = self.world.model.unsure.first().copied() {
            self.renew(pair);
        }
    }

    /// A connected queue pair goes to the error state.
    fn break_one(&mut self) {
        if self.setting.breaks && self.rng.below(2) == 0 {
            let event = EventFault::named("qp-fatal", 1 + self.rng.word() % 6).expect("a name");
            faults::raise(event).expect("an open device");
        }
    }

    /// All ports are down for a moment; of two ports also one of them, which may stay so as long as the other is up.
    fn flap(&mut self) {
        if !self.setting.breaks || self.rng.below(2) != 0 {
            return;
        }
        let num =
            if self.setting.device.ports == 2 { [None, Some(1), Some(2)][self.rng.below(3)] } else { None };
        let stays = num.is_some() && self.rng.below(2) == 0;
        if stays {
            faults::set_port(true).expect("an open device");
        }
        faults::set_ports(num, false).expect("an open device");
        (0..self.rng.below(40)).for_each(|_| self.world.step());
        if !stays {
            faults::set_ports(num, true).expect("an open device");
        }
    }

    /// Everything arrives, comes back and ends well.
    fn end(mut self) -> u64 {
        while let Some(rank) = (0..self.world.sides.len()).find(|&rank| self.world.sides[rank].absent) {
            self.world.revive(rank);
        }
        let started = self.started;
        self.until("every operation is over", |world| {
            world.sides.iter().map(|side| side.rdma.len()).sum::<usize>() == started
        });
        while !self.world.model.unsure.is_empty() {
            self.heal();
        }
        self.until("every message arrives", |world| world.nothing_waits() && world.model.is_empty());
        self.until("the books balance", |world| {
            world.complete();
            world.imbalance().is_none()
        });
        assert!(self.world.sides.iter().flat_map(|side| &side.rdma).all(|(_, ok)| *ok));
        for (side, (real, model)) in self.memory.iter().zip(&self.model).enumerate() {
            assert!(real.bytes[..] == model[..], "the memory of side {side} is not as it should be");
        }
        if self.rng.below(2) == 0 {
            self.part();
        }
        log::debug!("at the end: {}", self.world.books());
        drop(self.memory);
        faults::set(Plan::default());
        let trace = self.world.pace.as_ref().map_or(0, |pace| pace.trace);
        self.world.close();
        trace
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut World) -> bool) {
        self.world.until(what, |world| {
            only_broken_fail(world);
            done(world)
        });
    }

    /// All leave at the same time, as in MPI_Finalize.
    fn part(&mut self) {
        let ends: Vec<_> = (0..self.world.sides.len())
            .flat_map(|side| self.world.sides[side].transport.ids().into_iter().map(move |id| (side, id)))
            .collect();
        self.until("all have heard that all leave", |world| {
            let waits = ends.iter().filter(|(side, id)| world.sides[*side].transport.drain(*id)).count();
            waits == 0
        });
    }
}
