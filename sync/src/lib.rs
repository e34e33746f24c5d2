//! What threads exclude each other with where the standard library's way costs too much.
//!
//! ```text
//! word      an atomic, or one of loom's: protocols that are generic over their words run in all interleavings
//! barrier   a fence on all threads of this process, by membarrier(2)
//! bias      how the owner of a biased lock and its visitors keep out of each other's way
//! lock      that lock: a few plain loads and stores for the thread that uses it most
//! ```
//! The software device has its state behind such a lock, and the plugin each module's, which it takes where more than one thread enters.

mod barrier;
/// The protocol of the lock.
pub mod bias;
mod lock;
/// Atomics, or those of loom.
pub mod word;

pub use lock::{Guard, Lock, Owned, thread_id};
