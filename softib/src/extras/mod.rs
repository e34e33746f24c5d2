//! Memory that only some programs ask for.
//!
//! ```text
//! dm        device memory                         paging   regions that are registered on demand, null regions
//! mappings  whether memory is still the one that was registered
//! ```

/// The device memory.
pub mod dm;
/// The check of registrations that have gone stale.
pub mod mappings;
/// On-demand paging, and null regions.
pub mod paging;
