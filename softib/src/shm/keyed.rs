//! Entries that are named by a key, and who works on what they name.
//!
//! ```text
//!   owner                               user
//!   words, then the key   (show)        hazard = key; fence; key? words; key still?  (begin, copy)
//!   key = 0; fence        (hide)        works
//!   waits while hazard == key           hazard = 0                                    (end)
//! ```
//! Either the owner sees the hazard, or the user does not find the key any more. A key is not used again as long as a user
//! may still copy its entry. Generic over the words, so that `tests/tables.rs` runs these very functions in loom.

use super::word::Word;
use std::sync::atomic::Ordering;

/// Owner: the entry has this key from now on; `body` stores its words.
pub fn show<W: Word<u32>>(word: &W, key: u32, body: impl FnOnce()) {
    body();
    word.store(key, Ordering::Release);
}

/// Owner: copies that begin later do not find the entry. Users that have found it before are seen by their hazards.
pub fn hide<W: Word<u32>>(word: &W) {
    word.store(0, Ordering::SeqCst);
    W::fence(Ordering::SeqCst);
}

/// What `body` has loaded, if it belongs to this key.
pub fn copy<T, W: Word<u32>>(word: &W, key: u32, body: impl FnOnce() -> T) -> Option<T> {
    let before = word.load(Ordering::Acquire);
    let copy = body();
    W::fence(Ordering::Acquire);
    (before == key && word.load(Ordering::Relaxed) == key).then_some(copy)
}

/// User: is about to look for the key, and to work on what it names.
pub fn begin<W: Word<u32>>(hazard: &W, key: u32) {
    begin_with(hazard, key, || W::fence(Ordering::SeqCst));
}

/// The same with this fence, which may be one for the compiler only where the owner, between [`hide`] and [`is_used`], makes every user execute one.
#[inline(always)]
pub fn begin_with(hazard: &impl Word<u32>, key: u32, fence: impl FnOnce()) {
    hazard.store(key, Ordering::Relaxed);
    fence();
}

/// User: does so no more.
#[inline(always)]
pub fn end(hazard: &impl Word<u32>) {
    hazard.store(0, Ordering::Release);
}

/// What one process works on for another, which has asked for it under a number and can take that back: does it if the number has not been
/// taken back. None: what it names may be gone.
pub fn while_asked<T, W: Word<u32>>(
    withdrawn: &W,
    hazard: &W,
    number: u32,
    work: impl FnOnce() -> T,
) -> Option<T> {
    begin(hazard, number);
    let holds = withdrawn.load(Ordering::Relaxed).wrapping_sub(number) > i32::MAX as u32;
    let done = holds.then(work);
    end(hazard);
    done
}

/// The same for what must not be done twice: `done` has the number when it has been.
pub fn while_given<T, W: Word<u32>>(
    withdrawn: &W,
    (hazard, done): (&W, &W),
    number: u32,
    work: impl FnOnce() -> T,
) -> Option<T> {
    while_asked(withdrawn, hazard, number, || {
        let result = work();
        done.store(number, Ordering::Relaxed);
        result
    })
}

/// The one who has asked, and has [taken back](take_back) what was not to be done twice: whether the last such thing that had been done is of this
/// number, of a lower one (less), or of a higher one (greater).
pub fn last_done(done: &impl Word<u32>, number: u32) -> std::cmp::Ordering {
    (done.load(Ordering::Relaxed).wrapping_sub(number) as i32).cmp(&0)
}

/// The one who has asked: takes all up to `number` back. False: the other is just working on one of them.
pub fn take_back<W: Word<u32>>(withdrawn: &W, hazard: &W, number: u32) -> bool {
    withdrawn.store(number, Ordering::Relaxed);
    W::fence(Ordering::SeqCst);
    hazard.load(Ordering::Acquire) == 0
}

/// Owner: whether a user may be working on what the key named.
pub fn is_used(hazard: &impl Word<u32>, key: u32) -> bool {
    hazard.load(Ordering::Acquire) == key
}
