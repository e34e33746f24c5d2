//! Why a call was refused, in a sentence: an errno value says too little of a shortage, or of a setting that is wrong.
//!
//! Where a cause is known it is recorded beside the errno value, and like that value it belongs to
//! the calling thread. A library that carries errors on to its user takes the sentence with
//! [`take_reason`] when a call has failed. The first sentence of each [`Cause`] also goes to
//! standard error, because most programs say no more than "failed to open device";
//! [`mute_reasons`] ends that for a library that tells its user itself, and [`carry_reasons`] for as
//! long as it does.

use crate::errno::Errno;
use std::cell::RefCell;
use std::fmt::Display;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

/// What kind of cause: one sentence of each goes to standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Cause {
    /// A setting of the environment that cannot be understood.
    Setting,
    /// The folder of the segments cannot be used.
    Folder,
    /// It has no space left.
    Space,
    /// `ulimit -f`.
    FileSize,
    /// `ulimit -v`, or the number of mappings.
    AddressSpace,
    /// `ulimit -n`.
    Descriptors,
    /// `ulimit -u`.
    Threads,
    /// Every name, ring or number of a kind is taken.
    Full,
    /// Opening the device has failed for another cause.
    Open,
}

static SAID: AtomicU32 = AtomicU32::new(0);
/// How many tell their users themselves.
static MUTE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static LAST: RefCell<Option<(Errno, String)>> = const { RefCell::new(None) };
}

/// Why the last call of this thread that failed with `errno` did so, if more is known than that
/// value. It is taken out: a later call that fails without a reason does not find this one.
pub fn take_reason(errno: i32) -> Option<String> {
    let taken = LAST.try_with(|last| last.try_borrow_mut().ok()?.take()).ok()??;
    (taken.0 == Errno(errno)).then_some(taken.1)
}

/// Keeps reasons off standard error from now on: the caller tells its user of them.
pub fn mute_reasons() {
    MUTE.fetch_add(1, Ordering::Relaxed);
}

/// As long as it lives, the caller tells its user of reasons itself.
#[derive(Debug)]
pub struct Carrier(());

/// Keeps reasons off standard error while the caller makes calls whose errors it tells its user of, with their reasons. What fails
/// later, in the middle of traffic, has no call that would return it, and is said on standard error again.
#[must_use]
pub fn carry_reasons() -> Carrier {
    mute_reasons();
    Carrier(())
}

impl Drop for Carrier {
    fn drop(&mut self) {
        MUTE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A new call begins: what an earlier one of this thread left is not its reason.
pub(crate) fn forget() {
    let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut last| last.take()));
}

/// Whether a reason for this error is recorded.
pub(crate) fn is_known(errno: Errno) -> bool {
    let known = |last: &RefCell<Option<(Errno, String)>>| {
        last.try_borrow().is_ok_and(|last| last.as_ref().is_some_and(|(of, _)| *of == errno))
    };
    LAST.try_with(known).unwrap_or(false)
}

/// Records `sentence` as the reason for `errno`, which it returns.
#[cold]
pub(crate) fn because(errno: Errno, cause: Cause, sentence: impl Display) -> Errno {
    let sentence = sentence.to_string();
    log::debug!("{sentence}");
    say_once(cause, &sentence);
    let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut last| *last = Some((errno, sentence))));
    errno
}

fn say_once(cause: Cause, sentence: &str) {
    let bit = 1 << cause as u32;
    if MUTE.load(Ordering::Relaxed) == 0 && SAID.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        // Standard error may be closed.
        let _ = writeln!(std::io::stderr(), "softib: {sentence}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_taken_once_and_only_for_its_own_error() {
        mute_reasons();
        because(Errno::NOMEM, Cause::Space, "no space");
        assert!(is_known(Errno::NOMEM) && !is_known(Errno::INVAL));
        assert_eq!(take_reason(libc::ENOMEM).as_deref(), Some("no space"));
        assert_eq!(take_reason(libc::ENOMEM), None);
        because(Errno::NOMEM, Cause::Space, "no space");
        assert_eq!(take_reason(libc::EINVAL), None);
        assert_eq!(take_reason(libc::ENOMEM), None);
    }

    #[test]
    fn a_new_call_has_no_reason_of_an_earlier_one() {
        mute_reasons();
        because(Errno::INVAL, Cause::Setting, "SOFTIB_NODE");
        forget();
        assert_eq!(take_reason(libc::EINVAL), None);
    }
}
