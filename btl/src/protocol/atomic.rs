//! Atomic changes of a word in a peer's memory, built of what devices have: fetch-and-add and
//! compare-and-swap of 64 bits (IBTA 9.4.5).
//!
//! ```text
//!   Add, CompareSwap        one request
//!   And, Or, Xor, Swap      compare-and-swap from a guess ──> the word was another ──> again, from what it was
//!                                      └──> it was the guess: done
//! ```
//! A change that takes effect does so in one compare-and-swap, so it is as atomic as the device's
//! own. While others change the word, one of them gets on with each round; the guess costs nothing,
//! for a read would take as long.

/// What becomes of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The sum, modulo 2^64.
    Add,
    /// The bits that both have.
    And,
    /// The bits that either has.
    Or,
    /// The bits that one of them has.
    Xor,
    /// The operand.
    Swap,
    /// The operand, if the word is this.
    CompareSwap(u64),
}

/// What goes to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Adds.
    FetchAdd(u64),
    /// Puts `swap` in the place of `compare`; a word with another value stays.
    CompareSwap { compare: u64, swap: u64 },
}

/// One change on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    change: Change,
    operand: u64,
    /// What the word is taken to be.
    guess: u64,
}

impl Atomic {
    /// A change by `operand`.
    pub fn new(change: Change, operand: u64) -> Atomic {
        Atomic { change, operand, guess: 0 }
    }

    /// The next request.
    pub fn request(&self) -> Request {
        match self.change {
            Change::Add => Request::FetchAdd(self.operand),
            Change::CompareSwap(compare) => Request::CompareSwap { compare, swap: self.operand },
            _ => Request::CompareSwap { compare: self.guess, swap: self.changed(self.guess) },
        }
    }

    /// The device says what the word was before the last request; whether the change is done. If
    /// not, another request has to go.
    pub fn is_done(&mut self, was: u64) -> bool {
        match self.change {
            Change::Add | Change::CompareSwap(_) => true,
            // A change that leaves the word as it was has taken effect without being written.
            _ if was == self.guess || self.changed(was) == was => true,
            _ => {
                self.guess = was;
                false
            }
        }
    }

    /// What the word becomes that is `word`.
    pub fn changed(&self, word: u64) -> u64 {
        match self.change {
            Change::Add => word.wrapping_add(self.operand),
            Change::And => word & self.operand,
            Change::Or => word | self.operand,
            Change::Xor => word ^ self.operand,
            Change::Swap => self.operand,
            Change::CompareSwap(compare) if word != compare => word,
            Change::CompareSwap(_) => self.operand,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a device does with a request; the value before.
    fn carry_out(word: &mut u64, request: Request) -> u64 {
        let was = *word;
        match request {
            Request::FetchAdd(add) => *word = was.wrapping_add(add),
            Request::CompareSwap { compare, swap } if compare == was => *word = swap,
            Request::CompareSwap { .. } => {}
        }
        was
    }

    fn changes() -> impl Strategy<Value = Change> {
        use Change::*;
        prop_oneof![Just(Add), Just(And), Just(Or), Just(Xor), Just(Swap), (0u64..4).prop_map(CompareSwap)]
    }

    proptest! {
        /// Several initiators change one word; their requests reach it in any order.
        #[test]
        fn changes_of_one_word_have_the_outcome_of_some_order_one_after_the_other(
            begin in 0u64..4,
            wanted in prop::collection::vec((changes(), 0u64..4), 1..6),
            picks in prop::collection::vec(any::<prop::sample::Index>(), 60),
        ) {
            let mut word = begin;
            let mut open: Vec<(usize, Atomic)> =
                wanted.iter().map(|(change, operand)| Atomic::new(*change, *operand)).enumerate().collect();
            let mut order = Vec::new();
            for pick in picks {
                if open.is_empty() {
                    break;
                }
                let at = pick.index(open.len());
                let was = carry_out(&mut word, open[at].1.request());
                if open[at].1.is_done(was) {
                    let (index, _) = open.swap_remove(at);
                    order.push((index, was));
                }
            }
            prop_assert!(open.is_empty(), "each round lets one get on");
            let mut expected = begin;
            for (index, was) in order {
                let (change, operand) = wanted[index];
                prop_assert_eq!(was, expected, "the value before is that of the moment of the change");
                expected = Atomic::new(change, operand).changed(expected);
            }
            prop_assert_eq!(word, expected);
        }
    }

    #[test]
    fn each_change_makes_of_a_word_what_its_name_says() {
        let changed = |change| Atomic::new(change, 0b0110).changed(0b0101);
        let bits = [Change::And, Change::Or, Change::Xor, Change::Swap].map(changed);
        assert_eq!(bits, [0b0100, 0b0111, 0b0011, 0b0110]);
        assert_eq!(changed(Change::Add), 0b1011);
        assert_eq!(Atomic::new(Change::Add, 2).changed(u64::MAX), 1, "modulo 2^64");
        assert_eq!(changed(Change::CompareSwap(0b0101)), 0b0110);
        assert_eq!(changed(Change::CompareSwap(0b0111)), 0b0101);
    }

    #[test]
    fn a_word_that_stays_as_it_is_takes_one_request() {
        let mut or = Atomic::new(Change::Or, 4);
        assert_eq!(or.request(), Request::CompareSwap { compare: 0, swap: 4 });
        assert!(or.is_done(7) && !Atomic::new(Change::Or, 4).is_done(3));
    }
}
