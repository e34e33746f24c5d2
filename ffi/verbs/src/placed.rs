//! Messages that the software device leaves where they are: in place of a copy into the posted buffer, the program is given the place.
//!
//! There is one such message in a process at a time, as there is one verbs library: the word that says where it lies is kept once.
//! The completion says that its message is one; what is done with it ends with [`release`].

use rdma_sys::Placed;
use std::ptr::NonNull;
use std::sync::OnceLock;

static WORD: OnceLock<&'static Placed> = OnceLock::new();

/// The device's word.
pub(crate) fn announce(word: &'static Placed) {
    let _known = WORD.set(word);
}

/// Where the message lies that a completion says is placed, if it says that it went `well`.
#[inline(never)]
pub(crate) fn place_if(well: bool) -> Option<NonNull<u8>> {
    if well { place() } else { None }
}

/// Where the message lies that is placed.
#[inline]
fn place() -> Option<NonNull<u8>> {
    NonNull::new(WORD.get()?.at())
}

/// A message lies there.
pub(crate) fn is(at: NonNull<u8>) -> bool {
    place() == Some(at)
}

/// The message that lies there is needed no more. False: none does.
#[inline(never)]
pub(crate) fn release(at: NonNull<u8>) -> bool {
    WORD.get().is_some_and(|word| word.release(at.as_ptr()))
}

/// The completion of a message that is placed is dropped, and no receive has taken the message.
#[cold]
#[inline(never)]
pub(crate) fn give_up() {
    let _was_there = place().is_some_and(release);
}
