//! A connection breaks among sends, puts and flushes, whatever is signalled: each callback comes once with its own status, each flush ends,
//! each buffer comes back, and other connections go on (seed 001: the mark rises for failed requests, too).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::memory::Memory;
use btl_testing::{World, config};
use mca_btl_oxib::transport::config::Signalling;
use mca_btl_oxib::transport::flush::Mark;
use proptest::prelude::*;
use verbs::{RKey, RdmaOp};

#[derive(Clone, Copy, Debug)]
enum Step {
    /// From side 0 to side 1, or to the one that nothing happens to.
    Send {
        to: usize,
        len: usize,
    },
    Put {
        len: usize,
    },
    Flush,
    Poll {
        side: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![0usize..=130, 1900usize..=2100, 0usize..=4000];
    prop_oneof![
        5 => (1usize..3, len()).prop_map(|(to, len)| Step::Send { to, len }),
        2 => (1usize..=64).prop_map(|len| Step::Put { len }),
        1 => Just(Step::Flush),
        2 => (0usize..3).prop_map(|side| Step::Poll { side }),
    ]
}

const LAYOUTS: [&str; 5] = [
    "P,128,256,192,128,4:S,2048,1024,1008,64,256,48:S,65536,512,496,32,128,24",
    "P,4000,8,6,2,3",
    "P,128,1,0,1,2:P,4000,2,1,1,2",
    "S,128,4,2,8:S,4000,4,2,8",
    "X,128,4,2,8:X,4000,4,2,8",
];

struct Run {
    world: World,
    near: Memory,
    far: Memory,
    puts: u64,
    marks: Vec<Mark>,
}

impl Run {
    fn new(layout: &str, signalling: Signalling) -> Run {
        let mut config = config(layout);
        config.signalling = signalling;
        let mut world = World::with("breaks", config, 3);
        for (from, to) in [(0, 1), (1, 0), (0, 2)] {
            world.send(from, to, 8);
        }
        world.drain();
        let near = Memory::new(&world.sides[0].transport, (0..64).collect());
        let far = Memory::new(&world.sides[1].transport, vec![0; 64]);
        Run { world, near, far, puts: 0, marks: Vec::new() }
    }

    fn put(&mut self, len: usize, wrong: u32) -> bool {
        let (id, (addr, key)) = (self.world.id(0, 1), self.far.remote(0));
        let (local, remote) = (self.near.local(0, len), (addr, RKey(key.0 ^ wrong)));
        let begun = self.world.sides[0].transport.rdma(id, RdmaOp::Write, local, remote, self.puts).is_ok();
        self.puts += u64::from(begun);
        begun
    }

    fn step(&mut self, step: Step) {
        let gone = !self.world.sides[0].failed.is_empty();
        match step {
            Step::Send { to: 1, .. } if gone => {}
            Step::Send { to, len } => self.world.send(0, to, len),
            Step::Put { len } => {
                self.put(len, 0);
            }
            Step::Flush => {
                let id = self.world.id(0, 1);
                self.marks.extend(self.world.sides[0].transport.begin_flush(Some(id)));
            }
            Step::Poll { side } => self.world.step_of(&[side]),
        }
    }

    /// Everything is over but what side 1 was to get.
    fn is_over(&mut self) -> bool {
        let transport = &mut self.world.sides[0].transport;
        self.marks.retain_mut(|mark| transport.is_ahead(mark, &[]));
        let side = &self.world.sides[0];
        let done = side.rdma.len() as u64 == self.puts && self.marks.is_empty();
        done && !side.failed.is_empty() && side.waiting[2].is_empty() && self.world.model.missing(0, 2) == 0
    }

    fn end(mut self, bad: u64) {
        let begin = std::time::Instant::now();
        while !self.is_over() {
            self.world.step();
            assert!(begin.elapsed() < btl_testing::PATIENCE, "{}", self.world.books());
        }
        let mut results = std::mem::take(&mut self.world.sides[0].rdma);
        results.sort_unstable();
        let expected: Vec<(u64, bool)> = (0..self.puts).map(|put| (put, put < bad)).collect();
        assert_eq!(results, expected, "puts behind number {bad} fail, those before it do not");
        self.world.remove(0, 1);
        self.world.remove(1, 0);
        self.world.until("side 0 has everything back", |world| {
            world.complete();
            world.step();
            // The offer of a ring may wait for its credit.
            let audit = world.sides[0].transport.audit();
            (audit.outstanding, audit.pending) == (0, 0)
        });
        let audit = self.world.sides[0].transport.audit();
        assert_eq!((audit.inflight, audit.pending, audit.answers, audit.held), (0, 0, 0, 0), "{audit:?}");
        for queue in &audit.queues {
            assert_eq!(queue.send_buffers.0 as usize, queue.send_buffers.1, "{audit:?}");
            assert_eq!(queue.share_free, 1024, "{audit:?}");
        }
        self.world.close();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_under_way_when_a_connection_broke_comes_back_once_with_its_own_status(
        layout in prop::sample::select(&LAYOUTS[..]),
        most in prop::sample::select(&[0u16, 1, 16, 64][..]),
        most_bytes in prop::sample::select(&[0u32, 4096, 1 << 20][..]),
        before in prop::collection::vec(step(), 0..80),
        after in prop::collection::vec(step(), 0..80),
    ) {
        let mut run = Run::new(layout, Signalling { most, most_bytes });
        before.into_iter().for_each(|step| run.step(step));
        let bad = run.puts;
        prop_assert!(run.put(64, 0x00ff_0000));
        after.into_iter().for_each(|step| run.step(step));
        run.end(bad);
    }
}
