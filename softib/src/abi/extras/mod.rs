//! What few programs ask for.
//!
//! ```text
//! window    memory windows                        binding  binds of them, checked
//! dm        device memory                         domain   thread domains, parent domains
//! import    objects once more                     command  the descriptors that name contexts for that
//! rereg     memory regions that change            multicast queue pairs that listen to groups
//! ```

pub mod binding;
pub mod command;
pub mod dm;
pub mod domain;
pub mod import;
pub mod multicast;
pub mod rereg;
pub mod window;
