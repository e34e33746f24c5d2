//! Memory that only some programs ask for.
//!
//! ```text
//! dm        device memory                         paging   regions that are registered on demand, null regions
//! ```

pub mod dm;
pub mod paging;
