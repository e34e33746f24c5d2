//! Memory that a peer writes to while we look at it, through the safe layer.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

use common::*;
use verbs::*;

/// Memory with a word, and numbers in front of it.
fn landing(pair: &Pair) -> Landing {
    let landing = Landing::new(&pair.pd, 4096).unwrap();
    (0..8).for_each(|at| landing.put_word(at, at as u64 * 0x0101_0101_0101_0101));
    landing
}

#[test]
fn bytes_are_lent_until_they_are_back_or_others_are_in_their_place() {
    let pair = Pair::connected(4);
    let (mut one, mut other) = (landing(&pair), landing(&pair));
    let read = one.read_before(64).unwrap();
    assert_eq!(read.word, 0x0707_0707_0707_0707);
    let lent = read.lend(10).unwrap();
    assert_eq!(lent.as_slice(), [5, 5, 6, 6, 6, 6, 6, 6, 6, 6]);
    let next = one.read_before(48).unwrap().lend_instead(lent, 4).unwrap();
    assert_eq!((next.as_slice(), one.is_lent()), (&[4, 4, 4, 4][..], true));

    let next = one.read_before(48).unwrap().lend_instead(next, 41).unwrap_err();
    assert_eq!(next.as_slice(), [4, 4, 4, 4], "there are no 41 bytes before the word");
    let next = other.read_before(64).unwrap().lend_instead(next, 4).unwrap_err();
    assert!(!other.is_lent() && one.is_lent(), "they are of another memory");
    let next = other.back(next).unwrap_err();
    assert_eq!((one.back(next).unwrap(), one.is_lent()), (true, false));
}

#[test]
fn of_several_the_last_one_back_says_that_none_is_lent() {
    let mut landing = landing(&Pair::connected(4));
    let [first, second] = [64, 32].map(|end| landing.read_before(end).unwrap().lend(8).unwrap());
    let third = landing.read_before(48).unwrap().lend_instead(first, 0).unwrap();
    assert!(!landing.back(second).unwrap());
    assert!(landing.back(third).unwrap());
    assert!(landing.read_before(7).is_none() && landing.read_before(8192).is_none(), "there is no such word");
}
