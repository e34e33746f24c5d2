//! See Cargo.toml.

pub mod protocol;
