//! The exchange of addresses: one blob of bytes per process, published at init, fetched when a peer is added.

use opal_sys::{Abi, ModexError, opal_process_name_t};
use std::ffi::{CStr, CString};

/// Under which key ours is published: component and version, as Open MPI's own components do. Processes with another
/// version of oxib do not find it, and Open MPI takes another transport between the two.
pub fn key() -> CString {
    let version = concat!("btl.oxib.", env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    CString::new(version).unwrap_or_else(|_| CStr::to_owned(c"btl.oxib"))
}

/// What a process publishes that has no addresses. A key that is missing altogether costs whoever asks for it 2 s.
const NOTHING: &[u8] = &[0];

/// Publishes our addresses; once, during init. They are longer than one byte.
///
/// # Errors
/// [`ModexError`] when the runtime refused.
pub fn publish(abi: &Abi, bytes: &[u8]) -> Result<(), ModexError> {
    abi.family().modex_put(&key(), bytes)
}

/// Publishes that this process can't be reached over oxib.
///
/// # Errors
/// As [`publish`].
pub fn publish_nothing(abi: &Abi) -> Result<(), ModexError> {
    publish(abi, NOTHING)
}

/// Fetches a peer's addresses; `None` when the peer runs without oxib. May wait for the runtime. Main thread only.
///
/// # Errors
/// [`ModexError`] when the runtime failed.
pub fn fetch(abi: &Abi, peer: opal_process_name_t) -> Result<Option<Vec<u8>>, ModexError> {
    match abi.family().modex_get(peer, &key()) {
        Ok(bytes) => Ok((bytes != NOTHING).then_some(bytes)),
        Err(ModexError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_key_names_component_and_version() {
        assert_eq!(super::key().to_str(), Ok("btl.oxib.0.1"));
    }
}
