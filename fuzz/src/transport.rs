//! What two or three processes do with their transports over the software device, in any order: messages of any length, answers
//! from within callbacks, puts and gets, looks around, waits, endpoints that are removed and made again, connections that break.
//!
//! ```text
//!   0 layout | 1 pool, processes | 2 signalling, answers | 3 how often connections break | then records of three bytes: a deed, who and to whom, how much
//! ```
//! What must hold: each message arrives once, in order, whole ([`World`] compares with a model, and the entries of the completion queues
//! with what is due at every step); every operation ends well; at the end every buffer, credit and entry is where it belongs.
//!
//! The connection managers' threads are the real ones, so two runs of one input may differ in their order.

use btl_testing::memory::Memory;
use btl_testing::{ECHO, World, config};
use mca_btl_oxib::transport::Settled;
use mca_btl_oxib::transport::config::{Bound, Signalling};
use softib::faults::{self, Plan, When};
use std::time::Instant;
use verbs::RdmaOp;

const HEAD: usize = 4;
const RECORD: usize = 3;
/// Deeds of one input.
const MOST: usize = 64;
/// Bytes that one operation moves, at most.
const SLOT: usize = 512;

const LAYOUTS: [&str; 8] = [
    "P,128,256,192,128,4:S,2048,1024,1008,64,256,48:S,65536,512,496,32,128,24",
    "P,128,1,0,1,2:P,20000,2,1,1,2",
    "S,128,4,2,8:S,20000,4,2,8",
    "S,128,16,12,2:P,2048,2,1,2,2:S,20000,4,3,1",
    "P,20000,3,2,1,3",
    "X,128,4,2,8:X,20000,4,2,8",
    "X,128,64,48,16:X,2048,2,1,2,2:X,20000,4,3,1",
    "P,64,1,0,1,2:P,4096,1,0,1,2:P,20000,2,1,1,2",
];

pub(crate) fn run(data: &[u8]) {
    let Some((head, records)) = data.split_first_chunk::<HEAD>() else { return };
    let count = 2 + usize::from(head[1]) % 2;
    let mut config = config(LAYOUTS[usize::from(head[0]) % LAYOUTS.len()]);
    (config.pool_limit, config.pool_grow) = ([0, 2, 5, 64][usize::from(head[1] >> 1) % 4], 4);
    let (most, most_bytes) = ([0, 1, 16, 64], [0, 4096, 1 << 20]);
    let signalling = usize::from(head[2]);
    config.signalling = Signalling { most: most[signalling % 4], most_bytes: most_bytes[signalling / 4 % 3] };
    config.hold = Bound::of_peer([1, 4, 64][signalling / 12 % 3]);
    config.reconnects = 8;
    faults::set(Plan::default());
    let mut trial = Trial::new(World::with("fuzz", config, count));
    faults::set(breaks(head[0], head[3]));
    records.chunks_exact(RECORD).take(MOST).for_each(|record| trial.act([record[0], record[1], record[2]]));
    trial.end();
}

/// Requests that fail on our side, or that the peer's does not answer. Connections over X queues are made anew in another way, which lets
/// an endpoint fail. `About`, since every n-th request may be the same one of each connection, for ever.
fn breaks(layout: u8, how: u8) -> Plan {
    let (every, is_x) =
        (24 + u64::from(how / 4), LAYOUTS[usize::from(layout) % LAYOUTS.len()].starts_with('X'));
    let when = |bit: u8| (how & bit != 0 && !is_x).then_some(When::About(every + u64::from(bit)));
    Plan { error: when(1), cut: when(2), ..Plan::default() }
}

struct Trial {
    world: World,
    /// The memory that puts change and gets read, one slot for each operation; and what it should hold.
    memory: Vec<Memory>,
    model: Vec<Vec<u8>>,
    started: usize,
}

impl Trial {
    fn new(world: World) -> Trial {
        let bytes = |side: usize| (0..MOST * SLOT).map(|i| (i * 7 + side * 31) as u8).collect::<Vec<u8>>();
        let model: Vec<Vec<u8>> = (0..world.sides.len()).map(bytes).collect();
        let sides = world.sides.iter().zip(&model);
        let memory = sides.map(|(side, bytes)| Memory::new(&side.transport, bytes.clone())).collect();
        Trial { world, memory, model, started: 0 }
    }

    fn act(&mut self, [deed, who, much]: [u8; RECORD]) {
        let count = self.world.sides.len();
        let from = usize::from(who) % count;
        let to = (from + 1 + usize::from(who >> 4) % (count - 1)) % count;
        let much = usize::from(much);
        match deed % 16 {
            0..=5 => self.send((from, to), deed, much),
            6..=8 => self.world.step_of(&[from]),
            9 | 10 => (0..=much % 32).for_each(|_| self.world.step()),
            11 => self.rdma((from, to), RdmaOp::Write, 1 + much * 2 % SLOT),
            12 => self.rdma((from, to), RdmaOp::Read, 1 + much * 2 % SLOT),
            13 => self.settle((from, to)),
            14 => self.renew((from, to)),
            _ => self.world.complete(),
        }
    }

    /// Short ones, those around the size of a queue, and long ones; every fourth wants an answer.
    fn send(&mut self, (from, to): (usize, usize), deed: u8, much: usize) {
        let len = match deed % 16 / 2 {
            0 => much,
            1 => 1920 + much,
            _ => much * 78,
        };
        let message = self.world.model.message(len, if much % 4 == 3 { ECHO } else { 0 });
        self.world.send_message(from, to, message);
    }

    fn rdma(&mut self, (from, to): (usize, usize), op: RdmaOp, len: usize) {
        let at = self.started * SLOT;
        let (source, target) = if op == RdmaOp::Write { (from, to) } else { (to, from) };
        let bytes = self.model[source][at..at + len].to_vec();
        self.model[target][at..at + len].copy_from_slice(&bytes);
        let (id, cookie) = (self.world.id(from, to), self.started as u64);
        let (local, remote) = (self.memory[from].local(at, len), self.memory[to].remote(at));
        self.world.sides[from].transport.rdma(id, op, local, remote, cookie).expect("a live endpoint");
        self.started += 1;
    }

    fn settle(&mut self, (from, to): (usize, usize)) {
        let (id, begin) = (self.world.id(from, to), Instant::now());
        while self.world.sides[from].transport.settle(id, begin.elapsed()) == Settled::Kept {}
    }

    /// Operations that have begun and are not over.
    fn under_way(&self) -> usize {
        self.started - self.world.sides.iter().map(|side| side.rdma.len()).sum::<usize>()
    }

    /// Both ends are removed and made again: what was under way is lost.
    fn renew(&mut self, (a, b): (usize, usize)) {
        if self.under_way() != 0 {
            return;
        }
        let both = [(a, b), (b, a)];
        both.into_iter().for_each(|(from, to)| self.world.remove(from, to));
        both.into_iter().for_each(|(from, to)| self.world.model.forget(from, to));
        for (from, to) in both {
            self.world.add(from, to);
        }
    }

    fn end(mut self) {
        let started = self.started;
        self.world.until("every operation is over", |world| {
            world.sides.iter().map(|side| side.rdma.len()).sum::<usize>() == started
        });
        self.world.until("every message arrives", |world| world.nothing_waits() && world.model.is_empty());
        self.world.balance();
        assert!(self.world.sides.iter().all(|side| side.failed.is_empty()), "{}", self.world.books());
        assert!(self.world.sides.iter().flat_map(|side| &side.rdma).all(|(_, ok)| *ok));
        for (side, (real, model)) in self.memory.iter().zip(&self.model).enumerate() {
            assert!(real.bytes[..] == model[..], "the memory of side {side} is not as it should be");
        }
        drop(self.memory);
        faults::set(Plan::default());
        self.world.close();
    }
}
