//! The credit machine under arbitrary schedules with windows of any size, and against rogue peers.
//! (`protocol_credits_search` walks every schedule of small windows.)

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use std::collections::VecDeque;

use mca_btl_oxib::protocol::credits::{CreditError, Credits, Grant, MAX_RD_NUM, Window};
use proptest::prelude::*;

fn window() -> impl Strategy<Value = Window> {
    let rd_num = prop_oneof![1..=8_u16, 1..=300_u16, Just(MAX_RD_NUM)];
    let window = rd_num.prop_flat_map(|num| (Just(num), 0..num, 1..=num, 2..=u8::MAX));
    window.prop_map(|(num, low, win, rsv)| Window::new(num, low, win, rsv).expect("a window of the grammar"))
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send(u16),
    /// A send whose post fails.
    FailedSend,
    /// So many; the window grows where a message asks for it.
    Receive(u16),
    /// The same while memory is short.
    ReceiveOnly(u16),
    Process(u16),
    Repost,
    Explicit,
    FailedExplicit,
}

fn step() -> impl Strategy<Value = (usize, Step)> {
    let step = prop_oneof![
        4 => (1..40_u16).prop_map(Step::Send),
        1 => Just(Step::FailedSend),
        3 => (1..40_u16).prop_map(Step::Receive),
        1 => (1..40_u16).prop_map(Step::ReceiveOnly),
        4 => (1..40_u16).prop_map(Step::Process),
        2 => Just(Step::Repost),
        2 => Just(Step::Explicit),
        1 => Just(Step::FailedExplicit),
    ];
    (0..2_usize, step)
}

#[derive(Clone, Copy)]
struct Message {
    explicit: bool,
    grant: Grant,
    /// It took its sender's last credit.
    last: bool,
}

struct Side {
    credits: Credits,
    /// What it has opened to the other.
    window: Window,
    inbound: VecDeque<Message>,
    held: u16,
    posted: u32,
}

struct Pair {
    whole: Window,
    sides: [Side; 2],
}

impl Pair {
    fn new(whole: Window, init: u16) -> Self {
        let window = whole.part(init);
        let side = || Side {
            credits: Credits::new(&window),
            window,
            inbound: VecDeque::new(),
            held: 0,
            posted: window.receives(),
        };
        Self { whole, sides: [side(), side()] }
    }

    /// Whether the step was possible.
    fn step(&mut self, side: usize, step: Step) -> bool {
        match step {
            Step::Send(count) => (0..count).filter(|_| self.send(side)).count() > 0,
            Step::Receive(count) => (0..count).filter(|_| self.receive(side, true)).count() > 0,
            Step::ReceiveOnly(count) => (0..count).filter(|_| self.receive(side, false)).count() > 0,
            Step::Process(count) => (0..count).filter(|_| self.process(side)).count() > 0,
            Step::Repost => self.repost(side),
            Step::Explicit => self.explicit(side),
            Step::FailedSend => {
                let before = self.sides[side].credits;
                let grant = self.sides[side].credits.acquire();
                grant.into_iter().for_each(|grant| self.sides[side].credits.release(grant));
                assert_eq!(self.sides[side].credits, before);
                false
            }
            Step::FailedExplicit => {
                let before = self.sides[side].credits;
                let window = self.sides[side].window;
                let grant = self.sides[side].credits.acquire_explicit(&window);
                grant.into_iter().for_each(|grant| self.sides[side].credits.release_explicit(grant));
                assert_eq!(self.sides[side].credits, before);
                false
            }
        }
    }

    fn send(&mut self, side: usize) -> bool {
        let Some(grant) = self.sides[side].credits.acquire() else { return false };
        let last = !self.sides[side].credits.has_data();
        self.sides[1 - side].inbound.push_back(Message { explicit: false, grant, last });
        true
    }

    fn receive(&mut self, side: usize, widens: bool) -> bool {
        let (me, whole) = (&mut self.sides[side], self.whole);
        let Some(message) = me.inbound.pop_front() else { return false };
        me.posted = me.posted.checked_sub(1).expect("a posted receive for every message");
        me.credits.accept(&me.window, message.grant).expect("an honest grant");
        if message.explicit {
            assert!(message.grant.data >= 1);
            me.posted += 1;
            me.credits.credit_message_reposted(&me.window).expect("an honest credit message");
        } else {
            me.held += 1;
        }
        if message.last && widens {
            let more = me.window.wanted();
            me.window = whole.part(me.window.rd_num() + more);
            me.posted += u32::from(more);
            me.credits.widened(more);
        }
        true
    }

    fn process(&mut self, side: usize) -> bool {
        let me = &mut self.sides[side];
        let Some(held) = me.held.checked_sub(1) else { return false };
        me.held = held;
        me.credits.consumed(&me.window).expect("an honest data message");
        true
    }

    fn repost(&mut self, side: usize) -> bool {
        let me = &mut self.sides[side];
        let count = me.credits.repost_due(&me.window);
        me.posted += u32::from(count);
        me.credits.reposted(count);
        count > 0
    }

    fn explicit(&mut self, side: usize) -> bool {
        let me = &mut self.sides[side];
        if !me.credits.explicit_due(&me.window) {
            return false;
        }
        me.posted += u32::from(me.credits.unposted());
        me.credits.reposted(me.credits.unposted());
        let grant = me.credits.acquire_explicit(&me.window).expect("it is due");
        self.sides[1 - side].inbound.push_back(Message { explicit: true, grant, last: false });
        true
    }

    fn check(&self) {
        for side in 0..2 {
            let (me, peer) = (&self.sides[side], &self.sides[1 - side]);
            let explicit = me.inbound.iter().filter(|message| message.explicit).count() as u16;
            let in_flight = me.inbound.len() as u16 - explicit;
            let owed = me.credits.owed();
            let back: Grant = peer.inbound.iter().fold(owed, |sum, message| Grant {
                data: sum.data + message.grant.data,
                ctl: sum.ctl + message.grant.ctl,
            });
            let data = peer.credits.data() + in_flight + me.held + me.credits.unposted() + back.data;
            assert_eq!(data, me.window.rd_num(), "data credits are conserved");
            assert_eq!(
                u16::from(peer.credits.ctl()) + explicit + u16::from(back.ctl),
                self.whole.rd_rsv().into()
            );
            assert!(me.inbound.len() as u32 <= me.posted, "no message without a posted receive");
        }
    }

    /// Everything that is due, without new data.
    fn settle(&mut self) {
        let due = [Step::Receive(u16::MAX), Step::Process(u16::MAX), Step::Repost, Step::Explicit];
        let mut rounds = 0;
        while (0..2).any(|side| due.iter().any(|&step| self.step(side, step))) {
            rounds += 1;
            assert!(rounds < 1000, "credit messages without end");
        }
    }
}

proptest! {
    #[test]
    fn any_schedule_conserves_credits_and_leaves_both_sides_able_to_send(
        window in window(),
        init in prop_oneof![Just(u16::MAX), any::<u16>(), 1..40_u16],
        steps in proptest::collection::vec(step(), 0..400),
    ) {
        let mut pair = Pair::new(window, init);
        for (side, step) in steps {
            pair.step(side, step);
            pair.check();
        }
        pair.settle();
        pair.check();
        for side in &pair.sides {
            prop_assert!(side.credits.data() > 0, "starved");
        }
    }

    #[test]
    fn a_silent_receiver_returns_all_but_a_window_without_being_asked(window in window(), rounds in 1..5_u32) {
        let mut pair = Pair::new(window, u16::MAX);
        for _ in 0..rounds {
            while pair.send(0) {}
            pair.settle();
        }
        prop_assert!(pair.sides[0].credits.data() > window.rd_num() - window.rd_win());
    }

    /// A sender that always uses up what it has gets the whole window.
    #[test]
    fn a_window_that_is_used_up_doubles(window in window(), init in 1..40_u16) {
        let mut pair = Pair::new(window, init);
        while pair.sides[1].window.wanted() != 0 {
            let was = pair.sides[1].window.rd_num();
            while pair.send(0) {}
            pair.settle();
            let now = pair.sides[1].window.rd_num();
            prop_assert!(now >= window.rd_num().min(2 * was));
        }
        prop_assert_eq!(pair.sides[1].window, window);
        prop_assert_eq!(pair.sides[0].window, window.part(init), "the other way nothing has been sent");
    }

    #[test]
    fn grants_of_a_rogue_peer_are_refused_whole_and_never_wrap(
        window in window(),
        calls in proptest::collection::vec((0..5_u8, any::<u16>(), any::<u8>()), 0..200),
    ) {
        let mut credits = Credits::new(&window);
        for (call, data, ctl) in calls {
            let before = credits;
            let outcome = match call {
                0 => credits.accept(&window, Grant { data, ctl }),
                1 => credits.consumed(&window),
                2 => credits.credit_message_reposted(&window),
                3 => { credits.acquire(); Ok(()) }
                _ => { credits.reposted(credits.unposted().min(data)); Ok(()) }
            };
            if outcome.is_err() {
                prop_assert_eq!(credits, before, "a refusal changes nothing");
            }
            prop_assert!(credits.data() <= window.rd_num() && credits.ctl() <= window.rd_rsv());
            prop_assert!(credits.unposted() + credits.owed().data <= window.rd_num());
            prop_assert!(credits.owed().ctl <= window.rd_rsv());
        }
    }

    #[test]
    fn only_windows_of_the_grammar_exist(num: u16, low: u16, win: u16, rsv: u8) {
        let sound = (1..=MAX_RD_NUM).contains(&num) && low < num && (1..=num).contains(&win) && rsv >= 2;
        prop_assert_eq!(Window::new(num, low, win, rsv).is_some(), sound);
    }
}

#[test]
fn no_credit_message_is_due_for_control_credits_alone() {
    let window = Window::new(4, 3, 1, 2).expect("a window");
    let mut credits = Credits::new(&window);
    credits.credit_message_reposted(&window).expect("within the reserve");
    credits.credit_message_reposted(&window).expect("within the reserve");
    assert!(!credits.explicit_due(&window));
    assert_eq!(credits.acquire_explicit(&window), None);
    assert_eq!(credits.acquire(), Some(Grant { data: 0, ctl: 2 }), "they ride on the next message");
}

#[test]
fn no_credit_message_goes_out_when_nothing_could_be_reposted() {
    let window = Window::new(4, 3, 1, 2).expect("a window");
    let mut credits = Credits::new(&window);
    credits.consumed(&window).expect("within the window");
    assert!(credits.explicit_due(&window));
    assert_eq!(credits.acquire_explicit(&window), None, "it would carry no data credit");
    credits.reposted(1);
    assert_eq!(credits.acquire_explicit(&window), Some(Grant { data: 1, ctl: 0 }));
}

#[test]
fn a_batch_is_reposted_at_rd_num_minus_rd_low_or_rd_win_whichever_is_smaller() {
    for (low, win, batch) in [(192, 128, 64), (192, 32, 32), (0, 256, 256), (255, 256, 1)] {
        let window = Window::new(256, low, win, 2).expect("a window");
        let mut credits = Credits::new(&window);
        for _ in 1..batch {
            credits.consumed(&window).expect("within the window");
            assert_eq!(credits.repost_due(&window), 0);
        }
        credits.consumed(&window).expect("within the window");
        assert_eq!(credits.repost_due(&window), batch, "rd_low {low}, rd_win {win}");
    }
}

#[test]
fn a_peer_that_sends_without_credit_is_named() {
    let window = Window::new(1, 0, 1, 2).expect("a window");
    let mut credits = Credits::new(&window);
    credits.consumed(&window).expect("the one there is");
    assert_eq!(credits.consumed(&window), Err(CreditError::DataOverrun { window: 1 }));
    let grant = Grant { data: 1, ctl: 0 };
    let refused = CreditError::DataGrant { granted: 1, have: 1, window: 1 };
    assert_eq!(credits.accept(&window, grant), Err(refused));
    let refused = CreditError::CtlGrant { granted: 1, have: 2, window: 2 };
    assert_eq!(credits.accept(&window, Grant { data: 0, ctl: 1 }), Err(refused));
}

proptest! {
    /// A message is consumed quietly if, and only if, what it brings makes nothing due; and then it counts as any other.
    #[test]
    fn a_message_is_consumed_quietly_until_a_batch_or_a_credit_message_is_due(
        window in window(),
        steps in prop::collection::vec(any::<bool>(), 1..400),
    ) {
        let mut credits = Credits::new(&window);
        for reposts in steps {
            let (mut quiet, mut usual) = (credits, credits);
            if usual.consumed(&window).is_err() {
                break;
            }
            let due = usual.repost_due(&window) != 0 || usual.explicit_due(&window);
            prop_assert_eq!(quiet.consumed_quietly(&window), !due);
            prop_assert_eq!(quiet, if due { credits } else { usual });
            credits = usual;
            if reposts {
                credits.reposted(credits.repost_due(&window));
            }
        }
    }
}

#[test]
fn a_grant_of_either_kind_of_credits_is_not_none() {
    let grant = |data, ctl| Grant { data, ctl }.is_none();
    assert_eq!((grant(0, 0), grant(1, 0), grant(0, 1)), (true, false, false));
}

#[test]
fn a_part_of_a_window_reposts_and_answers_at_its_share_of_the_whole_ones_marks() {
    let whole = Window::new(64, 32, 48, 4).expect("a window of the grammar");
    let marks = |window: Window| (window.rd_num(), window.repost_at(), window.rd_win(), window.rd_rsv());
    assert_eq!(marks(whole), (64, 32, 48, 4));
    assert_eq!(marks(whole.part(16)), (16, 8, 12, 4));
    assert_eq!(marks(whole.part(1)), (1, 1, 1, 4), "none is 0");
    assert_eq!(marks(whole.part(0)), marks(whole.part(1)), "a window has a receive");
    assert_eq!(marks(whole.part(100)), marks(whole));
    assert_eq!((whole.receives(), whole.part(16).receives()), (68, 20), "for data and credit messages");
}

#[test]
fn the_last_data_credit_is_known_when_it_is_taken() {
    let window = Window::new(2, 0, 2, 2).expect("a window");
    let mut credits = Credits::new(&window);
    let grant = credits.acquire();
    assert!(grant.is_some() && credits.has_data(), "one is left");
    assert!(credits.acquire().is_some() && !credits.has_data());
    assert_eq!(credits.acquire(), None);
    credits.release(Grant::NONE);
    assert!(credits.has_data(), "the message was not posted");
}

#[test]
fn a_message_that_opens_a_queue_pair_takes_a_control_credit_while_there_is_one() {
    let window = Window::new(4, 3, 1, 2).expect("a window");
    let mut credits = Credits::new(&window);
    assert!(credits.acquire_opener() && credits.acquire_opener());
    assert_eq!((credits.ctl(), credits.data()), (0, 4));
    assert!(!credits.acquire_opener(), "none is left");
    assert_eq!(credits.ctl(), 0);
}
