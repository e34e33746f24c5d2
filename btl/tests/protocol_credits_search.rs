//! Exhaustive search of the credit protocol: two real `Credits` machines, two FIFO channels, every
//! schedule.
//!
//! For every window that the grammar allows with `rd_num` 1 to 4 the whole state space is walked
//! breadth first. A state is the two machines, the messages in flight and the messages received and
//! held; a step is anything that one side can do next, in any order: send data (if `Traffic` says
//! that this side has any), take a message from the channel, process a held one, repost a due
//! batch, send a due credit message. Steps that the rules make due may be late, as they are when no
//! work request is free.
//!
//! In every state: both kinds of credits are conserved, and no message is in flight without a
//! posted receive. From every state: when only what is due happens (neither side sends new data),
//! each side comes to have a data credit again. So there is no deadlock, and no side starves while
//! the other one floods it or stays silent.
//!
//! `rd_rsv` is searched up to 4. More changes nothing there: every explicit message brings a data
//! credit, so no more than `rd_num` of them can be under way or untold, and a larger reserve is
//! never touched.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};

use mca_btl_oxib::protocol::credits::{Credits, Grant, Window};

/// Longest channel: `rd_num` 4 and `rd_rsv` 4.
const MAX_IN_FLIGHT: usize = 8;

/// A fixed-size FIFO of messages: a copyable part of a state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Channel {
    /// Oldest first; one byte a message as [`Message::pack`] makes it, 0 is none.
    slots: [u8; MAX_IN_FLIGHT],
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Message {
    explicit: bool,
    grant: Grant,
}

/// Opens a queue pair; no credit message looks like it.
const OPENER: Message = Message { explicit: true, grant: Grant::NONE };

impl Message {
    fn pack(self) -> u8 {
        assert!(self.grant.data < 8 && self.grant.ctl < 8);
        0x80 | u8::from(self.explicit) | (self.grant.data as u8) << 1 | self.grant.ctl << 4
    }

    fn unpack(byte: u8) -> Option<Self> {
        let grant = Grant { data: u16::from(byte >> 1 & 7), ctl: byte >> 4 & 7 };
        (byte != 0).then_some(Self { explicit: byte & 1 == 1, grant })
    }
}

impl Channel {
    fn push(&mut self, message: Message) {
        let free = self.slots.iter().position(|&slot| slot == 0).expect("more in flight than receives");
        self.slots[free] = message.pack();
    }

    fn pop(&mut self) -> Option<Message> {
        let first = Message::unpack(self.slots[0])?;
        self.slots.copy_within(1.., 0);
        self.slots[MAX_IN_FLIGHT - 1] = 0;
        Some(first)
    }

    fn messages(&self) -> impl Iterator<Item = Message> {
        self.slots.into_iter().map_while(Message::unpack)
    }

    fn count(&self, explicit: bool) -> u16 {
        self.messages().filter(|message| message.explicit == explicit).count() as u16
    }
}

/// Both sides and what is between them; index 0 and 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    sides: [Credits; 2],
    /// `channels[i]` leads to side `i`.
    channels: [Channel; 2],
    /// Data messages received by side `i` and held: grants applied, not processed.
    held: [u8; 2],
}

/// Which sides have data to send, without end.
#[derive(Clone, Copy, Debug)]
enum Traffic {
    OneWay,
    TwoWay,
}

/// What a search explores.
#[derive(Clone, Copy, Debug)]
struct Model {
    window: Window,
    traffic: Traffic,
    /// Explicit credit messages are sent; without them the search must find the deadlock.
    explicit: bool,
    /// iWARP: the queue pair is opened by a message of side 0, before which side 1 sends nothing.
    opens: bool,
}

impl Model {
    fn initial(&self) -> State {
        let side = Credits::new(&self.window);
        let mut state = State { sides: [side; 2], channels: [Channel::default(); 2], held: [0; 2] };
        if self.opens {
            assert!(state.sides[0].acquire_opener());
            state.channels[1].push(OPENER);
        }
        state
    }

    fn successors(&self, state: &State, visit: &mut impl FnMut(State)) {
        for side in 0..2 {
            let sends = matches!(self.traffic, Traffic::TwoWay) || side == 0;
            let steps = [
                if sends { Self::send(state, side) } else { None },
                self.receive(state, side),
                self.process(state, side),
                self.repost(state, side),
                self.explicit(state, side),
            ];
            steps.into_iter().flatten().for_each(&mut *visit);
        }
    }

    fn send(state: &State, side: usize) -> Option<State> {
        let mut next = *state;
        if next.channels[side].messages().any(|message| message == OPENER) {
            return None;
        }
        let grant = next.sides[side].acquire()?;
        next.channels[1 - side].push(Message { explicit: false, grant });
        Some(next)
    }

    fn receive(&self, state: &State, side: usize) -> Option<State> {
        let mut next = *state;
        let message = next.channels[side].pop()?;
        next.sides[side].accept(&self.window, message.grant).expect("an honest grant");
        if message.explicit {
            let opener = self.opens && message == OPENER;
            assert!(message.grant.data >= 1 || opener, "an explicit credit message returns something");
            next.sides[side].credit_message_reposted(&self.window).expect("an honest credit message");
        } else {
            next.held[side] += 1;
        }
        Some(next)
    }

    fn process(&self, state: &State, side: usize) -> Option<State> {
        let mut next = *state;
        next.held[side] = next.held[side].checked_sub(1)?;
        next.sides[side].consumed(&self.window).expect("an honest data message");
        Some(next)
    }

    fn repost(&self, state: &State, side: usize) -> Option<State> {
        let mut next = *state;
        let count = next.sides[side].repost_due(&self.window);
        next.sides[side].reposted(count);
        (count > 0).then_some(next)
    }

    fn explicit(&self, state: &State, side: usize) -> Option<State> {
        let mut next = *state;
        let credits = &mut next.sides[side];
        if !self.explicit || !credits.explicit_due(&self.window) {
            return None;
        }
        credits.reposted(credits.unposted());
        let grant = credits.acquire_explicit(&self.window)?;
        next.channels[1 - side].push(Message { explicit: true, grant });
        Some(next)
    }

    /// Conservation, and a posted receive for every message.
    fn check(&self, state: &State) {
        let (rd_num, rd_rsv) = (self.window.rd_num(), u16::from(self.window.rd_rsv()));
        for side in 0..2 {
            let (me, peer) = (&state.sides[side], &state.sides[1 - side]);
            let back = state.channels[1 - side].messages();
            let (data_back, ctl_back) =
                back.fold((0, 0), |(d, c), m| (d + m.grant.data, c + u16::from(m.grant.ctl)));
            let (data_in, ctl_in) = (state.channels[side].count(false), state.channels[side].count(true));
            let owed = me.owed();
            let held = u16::from(state.held[side]);
            let data = peer.data() + data_in + held + me.unposted() + owed.data + data_back;
            assert_eq!(data, rd_num, "data credits towards side {side} are conserved");
            let ctl = u16::from(peer.ctl()) + ctl_in + u16::from(owed.ctl) + ctl_back;
            assert_eq!(ctl, rd_rsv, "control credits towards side {side} are conserved");
            let posted = rd_num + rd_rsv - held - me.unposted();
            assert!(data_in + ctl_in <= posted, "a message in flight without a posted receive");
        }
    }

    /// Runs what is due to the end, without new data, and demands a data credit on both sides.
    fn check_progress(&self, state: &State) {
        let mut now = *state;
        for _ in 0..1000 {
            let step = (0..2).find_map(|side| {
                self.receive(&now, side)
                    .or_else(|| self.process(&now, side))
                    .or_else(|| self.repost(&now, side))
                    .or_else(|| self.explicit(&now, side))
            });
            match step {
                Some(next) => now = next,
                None => {
                    assert!(now.sides.iter().all(|side| side.data() > 0), "deadlock: a side without credits");
                    return;
                }
            }
        }
        panic!("credit messages without end between two idle sides");
    }

    /// Two saturated sides are alike: of a state and its mirror image only one is walked.
    fn canonical(&self, state: State) -> State {
        if matches!(self.traffic, Traffic::OneWay) {
            return state;
        }
        let swap = |[a, b]: [Credits; 2]| [b, a];
        let State { sides, channels: [c0, c1], held: [h0, h1] } = state;
        let mirror = State { sides: swap(sides), channels: [c1, c0], held: [h1, h0] };
        let hash = |state: &State| BuildHasherDefault::<Mixer>::default().hash_one(state);
        if hash(&mirror) < hash(&state) { mirror } else { state }
    }

    /// Walks everything; returns the number of states.
    fn search(&self) -> usize {
        let first = self.canonical(self.initial());
        let mut seen: HashSet<State, BuildHasherDefault<Mixer>> = HashSet::default();
        let mut frontier = vec![first];
        seen.insert(first);
        while !frontier.is_empty() {
            let mut next = Vec::new();
            for state in &frontier {
                self.check(state);
                self.check_progress(state);
                self.successors(state, &mut |found| {
                    let found = self.canonical(found);
                    if seen.insert(found) {
                        next.push(found);
                    }
                });
            }
            frontier = next;
        }
        seen.len()
    }
}

/// A multiply-rotate hasher: the standard one costs most of the search.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

/// Every (rd_low, rd_win, rd_rsv) of a window, `rd_rsv` up to 4.
fn windows(rd_num: u16) -> impl Iterator<Item = Window> {
    let lows_wins = (0..rd_num).flat_map(move |low| (1..=rd_num).map(move |win| (low, win)));
    let all = lows_wins.flat_map(|(low, win)| (2..=4).map(move |rsv| (low, win, rsv)));
    all.map(move |(low, win, rsv)| Window::new(rd_num, low, win, rsv).expect("a window of the grammar"))
}

/// Searches every window of `rd_num`; those that differ only in an `rd_low` without effect are
/// searched once.
fn search_all(rd_num: u16, traffic: Traffic, opens: bool) {
    let windows: HashSet<Window> = windows(rd_num).collect();
    let states: usize =
        windows.iter().map(|&window| Model { window, traffic, explicit: true, opens }.search()).sum();
    println!("rd_num {rd_num}, {traffic:?}, opens {opens}: {} windows, {states} states", windows.len());
    assert!(states >= 8 * windows.len(), "the search went nowhere");
}

#[test]
fn one_way_traffic_cannot_deadlock_with_windows_of_1_to_4() {
    (1..=4).for_each(|rd_num| search_all(rd_num, Traffic::OneWay, false));
}

#[test]
fn two_way_saturation_cannot_deadlock_with_windows_of_1_to_3() {
    (1..=3).for_each(|rd_num| search_all(rd_num, Traffic::TwoWay, false));
}

#[test]
fn an_iwarp_queue_pair_that_one_side_opens_cannot_deadlock() {
    (1..=4).for_each(|rd_num| search_all(rd_num, Traffic::OneWay, true));
    (1..=3).for_each(|rd_num| search_all(rd_num, Traffic::TwoWay, true));
}

#[test]
fn two_way_saturation_cannot_deadlock_with_windows_of_4() {
    search_all(4, Traffic::TwoWay, false);
}

#[test]
#[should_panic = "deadlock: a side without credits"]
fn the_search_finds_the_deadlock_of_one_way_traffic_without_credit_messages() {
    let window = Window::new(4, 2, 2, 2).expect("a window of the grammar");
    Model { window, traffic: Traffic::OneWay, explicit: false, opens: false }.search();
}

#[test]
#[should_panic = "deadlock: a side without credits"]
fn the_search_finds_the_deadlock_of_two_exhausted_sides_without_credit_messages() {
    let window = Window::new(2, 1, 1, 2).expect("a window of the grammar");
    Model { window, traffic: Traffic::TwoWay, explicit: false, opens: false }.search();
}
