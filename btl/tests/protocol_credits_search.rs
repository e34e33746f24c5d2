//! Exhaustive search of the credit protocol: two real `Credits` machines, two FIFO channels, every
//! schedule.
//!
//! For every window that the grammar allows with `rd_num` 1 to 4 the whole state space is walked
//! breadth first. A state is the two machines, the messages in flight and the messages received and
//! held; a step is anything that one side can do next, in any order: send data (if `Traffic` says
//! that this side has any), take a message from the channel, process a held one, repost a due
//! batch, send a due credit message. Steps that the rules make due may be late, as they are when no
//! work request is free. Windows begin with any part of the whole one; when a message says that it
//! took the last credit, the window grows, or does not, as when memory is short.
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
    /// Oldest first; one word a message as [`Message::pack`] makes it, 0 is none.
    slots: [u16; MAX_IN_FLIGHT],
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Message {
    explicit: bool,
    grant: Grant,
    /// It took its sender's last credit.
    last: bool,
}

/// Opens a queue pair; no credit message looks like it.
const OPENER: Message = Message { explicit: true, grant: Grant::NONE, last: false };

impl Message {
    fn pack(self) -> u16 {
        assert!(self.grant.data < 8 && self.grant.ctl < 8);
        let flags = 0x80 | u16::from(self.explicit) | u16::from(self.last) << 8;
        flags | self.grant.data << 1 | u16::from(self.grant.ctl) << 4
    }

    fn unpack(word: u16) -> Option<Self> {
        let grant = Grant { data: word >> 1 & 7, ctl: (word >> 4 & 7) as u8 };
        (word != 0).then_some(Self { explicit: word & 1 == 1, grant, last: word & 0x100 != 0 })
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
    /// Data receives that side `i` has opened to the other.
    open: [u16; 2],
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
    /// The whole window, and how much of it is open at first.
    window: Window,
    init: u16,
    traffic: Traffic,
    /// Explicit credit messages are sent; without them the search must find the deadlock.
    explicit: bool,
    /// iWARP: the queue pair is opened by a message of side 0, before which side 1 sends nothing.
    opens: bool,
}

impl Model {
    fn initial(&self) -> State {
        let side = Credits::new(&self.window.part(self.init));
        let (channels, open) = ([Channel::default(); 2], [self.init; 2]);
        let mut state = State { sides: [side; 2], channels, held: [0; 2], open };
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
                self.receive(state, side, true),
                self.receive(state, side, false),
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
        let last = !next.sides[side].has_data();
        next.channels[1 - side].push(Message { explicit: false, grant, last });
        Some(next)
    }

    /// The part of the window that a side has opened.
    fn open(&self, state: &State, side: usize) -> Window {
        self.window.part(state.open[side])
    }

    /// Takes a message; `widens`: where it asks for that, the window becomes larger.
    fn receive(&self, state: &State, side: usize, widens: bool) -> Option<State> {
        let mut next = *state;
        let message = next.channels[side].pop()?;
        let window = self.open(state, side);
        if widens && !(message.last && window.wanted() > 0) {
            return None;
        }
        next.sides[side].accept(&window, message.grant).expect("an honest grant");
        if message.explicit {
            let opener = self.opens && message == OPENER;
            assert!(message.grant.data >= 1 || opener, "an explicit credit message returns something");
            next.sides[side].credit_message_reposted(&window).expect("an honest credit message");
        } else {
            next.held[side] += 1;
        }
        if widens {
            next.sides[side].widened(window.wanted());
            next.open[side] += window.wanted();
        }
        Some(next)
    }

    fn process(&self, state: &State, side: usize) -> Option<State> {
        let mut next = *state;
        next.held[side] = next.held[side].checked_sub(1)?;
        next.sides[side].consumed(&self.open(state, side)).expect("an honest data message");
        Some(next)
    }

    fn repost(&self, state: &State, side: usize) -> Option<State> {
        let mut next = *state;
        let count = next.sides[side].repost_due(&self.open(state, side));
        next.sides[side].reposted(count);
        (count > 0).then_some(next)
    }

    fn explicit(&self, state: &State, side: usize) -> Option<State> {
        let mut next = *state;
        let (credits, window) = (&mut next.sides[side], self.open(state, side));
        if !self.explicit || !credits.explicit_due(&window) {
            return None;
        }
        credits.reposted(credits.unposted());
        let grant = credits.acquire_explicit(&window)?;
        next.channels[1 - side].push(Message { explicit: true, grant, last: false });
        Some(next)
    }

    /// Conservation, and a posted receive for every message.
    fn check(&self, state: &State) {
        let rd_rsv = u16::from(self.window.rd_rsv());
        for side in 0..2 {
            let rd_num = state.open[side];
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
                self.receive(&now, side, false)
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
        let State { sides, channels: [c0, c1], held: [h0, h1], open: [o0, o1] } = state;
        let mirror = State { sides: swap(sides), channels: [c1, c0], held: [h1, h0], open: [o1, o0] };
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

/// Searches every window of `rd_num`, which begins with `init`; those that differ only in an `rd_low`
/// without effect are searched once.
fn search_windows(rd_num: u16, init: u16, traffic: Traffic, opens: bool) {
    let windows: HashSet<Window> = windows(rd_num).collect();
    let model = |&window: &Window| Model { window, init, traffic, explicit: true, opens };
    let states: usize = windows.iter().map(|window| model(window).search()).sum();
    let count = windows.len();
    println!("rd_num {rd_num} from {init}, {traffic:?}, opens {opens}: {count} windows, {states} states");
    assert!(states >= 8 * windows.len(), "the search went nowhere");
}

/// The same with windows that are whole from the beginning.
fn search_all(rd_num: u16, traffic: Traffic, opens: bool) {
    search_windows(rd_num, rd_num, traffic, opens);
}

#[test]
fn windows_that_grow_cannot_deadlock() {
    for rd_num in 2..=4 {
        (1..rd_num).for_each(|init| search_windows(rd_num, init, Traffic::OneWay, false));
    }
    for rd_num in 2..=3 {
        (1..rd_num).for_each(|init| search_windows(rd_num, init, Traffic::TwoWay, false));
    }
    search_windows(3, 1, Traffic::OneWay, true);
    search_windows(2, 1, Traffic::TwoWay, true);
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
    Model { window, init: 4, traffic: Traffic::OneWay, explicit: false, opens: false }.search();
}

#[test]
#[should_panic = "deadlock: a side without credits"]
fn the_search_finds_the_deadlock_of_two_exhausted_sides_without_credit_messages() {
    let window = Window::new(2, 1, 1, 2).expect("a window of the grammar");
    Model { window, init: 2, traffic: Traffic::TwoWay, explicit: false, opens: false }.search();
}
