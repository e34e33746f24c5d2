//! See Cargo.toml.

pub mod mca;
pub mod protocol;
pub mod transport;
