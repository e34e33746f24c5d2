//! Random schedules: sends, polls, puts, gets and waits in any order, against a model of what must
//! come of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::memory::Memory;
use btl_testing::{ECHO, World, config};
use mca_btl_oxib::transport::Settled;
use mca_btl_oxib::transport::config::{Bound, Signalling};
use proptest::prelude::*;
use std::time::Instant;
use verbs::RdmaOp;

/// Bytes that one operation moves.
const SLOT: usize = 512;

#[derive(Clone, Copy, Debug)]
enum Step {
    Send { from: usize, to: usize, len: usize, echo: bool },
    Poll { side: usize },
    Rdma { from: usize, to: usize, put: bool, len: usize },
    Settle { from: usize, to: usize },
}

fn pair() -> impl Strategy<Value = (usize, usize)> {
    (0usize..3, 1usize..3).prop_map(|(from, by)| (from, (from + by) % 3))
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..=130, 1900usize..=2100, 0usize..=20_000]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (pair(), len(), prop::bool::weighted(0.3))
            .prop_map(|((from, to), len, echo)| Step::Send { from, to, len, echo }),
        3 => (0usize..3).prop_map(|side| Step::Poll { side }),
        1 => (pair(), any::<bool>(), 1..=SLOT).prop_map(|((from, to), put, len)| Step::Rdma { from, to, put, len }),
        1 => pair().prop_map(|(from, to)| Step::Settle { from, to }),
    ]
}

const LAYOUTS: [&str; 7] = [
    "P,128,256,192,128,4:S,2048,1024,1008,64,256,48:S,65536,512,496,32,128,24",
    "P,128,1,0,1,2:P,20000,2,1,1,2",
    "S,128,4,2,8:S,20000,4,2,8",
    "S,128,16,12,2:P,2048,2,1,2,2:S,20000,4,3,1",
    "P,20000,3,2,1,3",
    "X,128,4,2,8:X,20000,4,2,8",
    "X,128,64,48,16:X,2048,2,1,2,2:X,20000,4,3,1",
];

/// The memory of each side: what puts change and gets read, one slot per operation.
struct Memories {
    real: Vec<Memory>,
    model: Vec<Vec<u8>>,
    used: usize,
}

impl Memories {
    fn new(world: &World, slots: usize) -> Memories {
        let bytes = |side: usize| (0..slots * SLOT).map(|i| (i * 7 + side * 31) as u8).collect::<Vec<u8>>();
        let model: Vec<Vec<u8>> = (0..3).map(bytes).collect();
        let real =
            world.sides.iter().zip(&model).map(|(s, m)| Memory::new(&s.transport, m.clone())).collect();
        Memories { real, model, used: 0 }
    }

    fn start(&mut self, world: &mut World, (from, to): (usize, usize), put: bool, len: usize) {
        let at = self.used * SLOT;
        let (op, source, target) = if put { (RdmaOp::Write, from, to) } else { (RdmaOp::Read, to, from) };
        let bytes = self.model[source][at..at + len].to_vec();
        self.model[target][at..at + len].copy_from_slice(&bytes);
        let (id, cookie) = (world.id(from, to), self.used as u64);
        let (local, remote) = (self.real[from].local(at, len), self.real[to].remote(at));
        world.sides[from].transport.rdma(id, op, local, remote, cookie).expect("a live endpoint");
        self.used += 1;
    }
}

fn run(layout: &str, pool_limit: u32, signalling: Signalling, answers: u32, steps: &[Step]) {
    let mut config = config(layout);
    (config.pool_limit, config.pool_grow) = (pool_limit, 4);
    (config.signalling, config.hold) = (signalling, Bound::of_peer(answers));
    let mut world = World::with("schedule", config, 3);
    let mut memories = Memories::new(&world, steps.len().max(1));
    for step in steps {
        match *step {
            Step::Send { from, to, len, echo } => {
                let message = world.model.message(len, if echo { ECHO } else { 0 });
                world.send_message(from, to, message);
            }
            Step::Poll { side } => world.step_of(&[side]),
            Step::Rdma { from, to, put, len } => memories.start(&mut world, (from, to), put, len),
            Step::Settle { from, to } => {
                let id = world.id(from, to);
                let begin = Instant::now();
                while world.sides[from].transport.settle(id, begin.elapsed()) == Settled::Kept {}
            }
        }
    }
    let started = memories.used;
    world
        .until("every operation is over", |w| w.sides.iter().map(|s| s.rdma.len()).sum::<usize>() == started);
    world.drain();
    assert!(world.sides.iter().flat_map(|s| &s.rdma).all(|(_, ok)| *ok));
    for (side, (real, model)) in memories.real.iter().zip(&memories.model).enumerate() {
        assert!(real.bytes[..] == model[..], "the memory of side {side} is not as it should be");
    }
    world.close();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_schedule_delivers_what_it_was_given(
        layout in prop::sample::select(&LAYOUTS[..]),
        pool_limit in prop_oneof![Just(0u32), 2u32..64],
        most in prop::sample::select(&[0u16, 1, 16, 64][..]),
        most_bytes in prop::sample::select(&[0u32, 4096, 1 << 20][..]),
        answers in prop::sample::select(&[1u32, 4, 64][..]),
        steps in prop::collection::vec(step(), 0..250),
    ) {
        run(layout, pool_limit, Signalling { most, most_bytes }, answers, &steps);
    }
}
