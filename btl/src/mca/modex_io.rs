//! The exchange of addresses: one blob of bytes per process, published at init, fetched when a peer
//! is added.
//!
//! A process of Open MPI 5.0 may end MPI and begin it again, at another address. What was published
//! under one name before that is then in many places: PMIx keeps it in the peers (as long as a
//! process there holds PMIx open) and in its daemon (until the process publishes again; a fence
//! that ends too early, openpmix issue 3931, lets peers ask before that). So each incarnation has a
//! name of its own; peers that begin MPI together, as most do, ask for the one that they are in. A
//! process that finds nothing there asks for the common name; [`cpc`] sorts out what is out of date
//! all the same.

use opal_sys::{Abi, ModexError, opal_process_name_t};
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Which incarnation of this process within MPI this is, from 1.
static INCARNATION: AtomicU32 = AtomicU32::new(0);

/// Under which key ours is published: component and version, as Open MPI's own components do.
/// Processes with another version of oxib do not find it, and Open MPI takes another transport
/// between the two.
pub fn key() -> CString {
    name(1)
}

/// The key of one incarnation; the first has the common one.
fn name(incarnation: u32) -> CString {
    const KEY: &str =
        concat!("btl.oxib.", env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    let text = if incarnation > 1 { format!("{KEY}#{incarnation}") } else { KEY.to_owned() };
    CString::new(text).unwrap_or_else(|_| CStr::to_owned(c"btl.oxib"))
}

/// The first byte of what a process publishes that has no addresses; the reason follows, if the
/// process has not said it itself. A key that is missing altogether costs the process that asks for
/// it 2 s.
const NOTHING: u8 = 0;

/// Most bytes of a reason.
const REASON: usize = 1000;

/// What a process has published.
#[derive(Debug, PartialEq, Eq)]
pub enum Published {
    /// Its addresses, which do not begin with a zero.
    Addresses(Vec<u8>),
    /// It takes no part; why, if that has not been said yet.
    Nothing(Option<String>),
}

impl Published {
    fn of(mut bytes: Vec<u8>) -> Published {
        if bytes.first() != Some(&NOTHING) {
            return Published::Addresses(bytes);
        }
        let reason = bytes.split_off(1);
        Published::Nothing((!reason.is_empty()).then(|| String::from_utf8_lossy(&reason).into_owned()))
    }
}

/// Publishes our addresses; once, during init.
///
/// # Errors
/// [`ModexError`] when the runtime refused.
pub fn publish(abi: &Abi, bytes: &[u8]) -> Result<(), ModexError> {
    let incarnation = INCARNATION.fetch_add(1, Ordering::Relaxed) + 1;
    abi.family().modex_put(&key(), bytes)?;
    if incarnation > 1 { abi.family().modex_put(&name(incarnation), bytes) } else { Ok(()) }
}

/// Publishes that this process can't be reached over oxib, and why, if others shall say it.
///
/// # Errors
/// As [`publish`].
pub fn publish_nothing(abi: &Abi, reason: Option<&str>) -> Result<(), ModexError> {
    publish(abi, &nothing(reason))
}

fn nothing(reason: Option<&str>) -> Vec<u8> {
    let reason = reason.unwrap_or_default().bytes().take(REASON);
    std::iter::once(NOTHING).chain(reason).collect()
}

/// How long a peer may take to publish, where MPI_Init does not wait for that
/// (`pmix_base_async_modex`).
const LATEST: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);
/// A runtime that has waited this long for a key has waited for its process.
const WAITED: Duration = Duration::from_secs(1);

/// Fetches what a peer has published: nothing when the peer runs without oxib. May wait for the
/// runtime. Main thread only.
///
/// Where processes publish whenever they come to it, the runtime may say at once that there is
/// nothing (4.1 does, of a process on the same node): then it is asked again for a while.
///
/// # Errors
/// [`ModexError`] when the runtime failed.
pub fn fetch(abi: &Abi, peer: opal_process_name_t) -> Result<Published, ModexError> {
    let began = Instant::now();
    loop {
        let asked = Instant::now();
        match get(abi, peer) {
            Ok(bytes) => return Ok(Published::of(bytes)),
            Err(ModexError::NotFound { .. }) => {
                let may_come = abi.addresses_come_late() && asked.elapsed() < WAITED;
                if !may_come || began.elapsed() > LATEST {
                    return Ok(Published::Nothing(None));
                }
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}

/// What the peer has published in the incarnation that we are in, or in any.
fn get(abi: &Abi, peer: opal_process_name_t) -> Result<Vec<u8>, ModexError> {
    let incarnation = INCARNATION.load(Ordering::Relaxed);
    match abi.family().modex_get(peer, &name(incarnation)) {
        Err(ModexError::NotFound { .. }) if incarnation > 1 => abi.family().modex_get(peer, &key()),
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use super::{Published, REASON, nothing};

    #[test]
    fn a_process_that_takes_no_part_can_leave_its_reason_to_others() {
        assert_eq!(Published::of(b"OXIB".to_vec()), Published::Addresses(b"OXIB".to_vec()));
        assert_eq!(Published::of(nothing(None)), Published::Nothing(None));
        assert_eq!(Published::of(nothing(Some("it broke"))), Published::Nothing(Some("it broke".into())));
        let Published::Nothing(Some(cut)) = Published::of(nothing(Some(&"x".repeat(5000)))) else {
            panic!("no reason")
        };
        assert_eq!(cut.len(), REASON);
    }

    #[test]
    fn the_key_names_component_and_version() {
        assert_eq!(super::key().to_str(), Ok("btl.oxib.0.1"));
    }

    #[test]
    fn later_lives_have_keys_of_their_own() {
        assert_eq!(super::name(1), super::key());
        assert_eq!(super::name(2).to_str(), Ok("btl.oxib.0.1#2"));
    }
}
