//! Memory that only some programs ask for.
//!
//! ```text
//! dm        device memory                         paging   regions that are registered on demand, null regions
//! mappings  whether memory is still the one that was registered
//! ```

pub mod dm;
pub mod mappings;
pub mod paging;
