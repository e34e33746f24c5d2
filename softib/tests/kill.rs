//! kill -9 at any moment of either of two processes that exchange everything there is: SEND, WRITE, READ, atomics, datagrams.
//!
//! ```text
//!   referee   starts two players, introduces them to each other, kills one at a random moment, and replaces it
//!   player    sends and receives until a completion says that its partner is dead; then waits for the next partner
//! ```
//!
//! The survivor must get an error completion for what can't be done any more, exactly one completion for each request, and
//! never a wrong byte: every payload says what it must be. It plays on with a new partner, so whatever a
//! victim leaves in the survivor's segment is tested by the next round. In the end no file is left.
//!
//! Usually 100 rounds with process_vm_* and 100 without. For more, with a seed to repeat a run:
//!
//!     SOFTIB_KILL_ROUNDS=10000 SOFTIB_SEED=1 cargo test -p softib --test kill -- --nocapture

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;

#[path = "common/player.rs"]
mod player;

use std::time::Duration;

/// A live pair has exchanged so many requests when it may part.
const ENOUGH: u64 = 2000;

#[test]
fn child_main() {
    if role().as_deref() == Some("player") {
        player::run();
    }
}

struct Referee {
    folder: Folder,
    way: Way,
    random: Random,
    players: [Child; 2],
}

/// How far a round goes before its victim is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Opening,
    Preparing,
    Connecting,
    Playing,
}

/// What SOFTIB_CMA is, and the players' memory.
type Way = (&'static str, &'static str);

fn start(folder: &Folder, (cma, memory): Way) -> Child {
    let env = [("SOFTIB_DIR", folder.path()), ("SOFTIB_CMA", cma), ("TEST_MEMORY", memory)];
    Child::start_with("player", &env)
}

impl Referee {
    fn new(name: &str, way: Way) -> Referee {
        let folder = Folder::new(name);
        let players = [start(&folder, way), start(&folder, way)];
        Referee { folder, way, random: Random::from_environment(), players }
    }

    /// One round; says when the victim was killed.
    fn round(&mut self) -> Moment {
        let victim = self.random.below(2) as usize;
        let moments = [Moment::Opening, Moment::Preparing, Moment::Connecting];
        let moment = moments.get(self.random.below(8) as usize).copied().unwrap_or(Moment::Playing);
        match moment {
            Moment::Opening => {}
            Moment::Preparing => {
                let words = self.preparation();
                self.players[victim].tell(&words);
                self.pause(300);
            }
            Moment::Connecting => {
                self.introduce();
                self.pause(300);
            }
            Moment::Playing => {
                self.introduce();
                assert!(self.players.iter_mut().all(|player| player.hear() == [1]));
                self.players.iter_mut().for_each(|player| player.tell(&[player::PLAY, u64::MAX]));
                // What peers map is looked at after a while.
                self.pause(if self.way.1 == "file" { 100_000 } else { 8000 });
            }
        }
        self.players[victim].kill();
        self.hear_survivor(1 - victim, moment);
        self.players[victim] = start(&self.folder, self.way);
        if moment == Moment::Opening {
            // The new one is killed while it starts.
            self.pause(6000);
            self.players[victim].kill();
            self.players[victim] = start(&self.folder, self.way);
        }
        moment
    }

    /// What the survivor has to say is said without delay, or its own watchdog ends it.
    fn hear_survivor(&mut self, survivor: usize, moment: Moment) {
        let player = &mut self.players[survivor];
        match moment {
            Moment::Opening | Moment::Preparing => return,
            Moment::Connecting => {
                assert_eq!(player.hear(), [1]);
                player.tell(&[player::PLAY, u64::MAX]);
            }
            Moment::Playing => {}
        }
        let played = player.hear_or_end().expect("the survivor has ended: see its message above");
        assert_eq!(played[0], player::PARTNER_IS_DEAD);
    }

    /// The message that makes a player prepare: polling or sleeping, and its share of randomness.
    fn preparation(&mut self) -> [u64; 3] {
        [player::PREPARE, self.random.below(2), self.random.next()]
    }

    /// Tells each player of the other.
    fn introduce(&mut self) {
        for seat in 0..2 {
            let words = self.preparation();
            self.players[seat].tell(&words);
        }
        let cards: Vec<Vec<u64>> = self.players.iter_mut().map(Child::hear).collect();
        for (seat, card) in cards.iter().enumerate() {
            let mut words = vec![player::CONNECT];
            words.extend(card);
            self.players[1 - seat].tell(&words);
        }
    }

    fn pause(&mut self, micros: u64) {
        std::thread::sleep(Duration::from_micros(self.random.below(micros)));
    }

    /// The last pair plays to the end; then nothing is left.
    fn close(mut self) {
        self.introduce();
        for player in &mut self.players {
            assert_eq!(player.hear(), [1]);
        }
        self.players.iter_mut().for_each(|player| player.tell(&[player::PLAY, ENOUGH]));
        for player in &mut self.players {
            assert_eq!(player.hear()[0], player::PARTNER_IS_ALIVE);
        }
        let Referee { folder, players, .. } = self;
        players.into_iter().for_each(Child::finish);
        assert_eq!(folder.files(), [] as [std::path::PathBuf; 0]);
    }
}

fn play_rounds(name: &str, way: Way) {
    let mut referee = Referee::new(name, way);
    let rounds = rounds("SOFTIB_KILL_ROUNDS", 100);
    let mut playing = 0;
    for round in 0..rounds {
        playing += u64::from(referee.round() == Moment::Playing);
        if (round + 1) % 1000 == 0 {
            println!("{name}: {} rounds, {playing} of them in the middle of traffic", round + 1);
        }
    }
    referee.close();
}

#[test]
fn whoever_survives_a_kill_gets_errors_and_plays_on() {
    play_rounds("kill-cma", ("1", "private"));
}

#[test]
fn whoever_survives_a_kill_gets_errors_and_plays_on_through_the_rings() {
    play_rounds("kill-rings", ("0", "private"));
}

/// Where the memory of both is files, which peers map.
#[test]
fn whoever_survives_a_kill_gets_errors_and_plays_on_with_memory_that_peers_map() {
    play_rounds("kill-files", ("1", "file"));
}
