//! What the protocols between threads and processes ask of a word, which is an atomic of a mapping or, in `tests/handover.rs` and its
//! like, one of loom's.
//!
//! Every structure that two threads share without a lock, and its model:
//!
//! | structure                                               | functions                  | model (`softib/tests`)    |
//! |---------------------------------------------------------|----------------------------|---------------------------|
//! | who looks at a ring; its cells and how far it is read    | [`super::handover`]        | `handover.rs`             |
//! | receive queues that many senders claim from              | [`super::claims`]          | `claims.rs`               |
//! | queue pairs as peers see them, those of XRC domains too  | [`super::seqlock`]         | `tables.rs`               |
//! | memory regions as peers see them, and who works on them  | [`super::keyed`]           | `tables.rs`               |
//! | the engine's lock, biased to one thread                  | [`sync::bias`]             | `sync/tests/lock.rs`      |
//! | mappings that the handler of SIGBUS knows                | [`super::fault::Place`]    | `fault.rs`                |
//!
//! A word that is published once, or that stands for itself (flags, counters, a slot's owner taken by one compare-and-swap), has none.

pub use sync::word::{Bits, Word};
