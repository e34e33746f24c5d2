//! Requests and messages: what they do to queue pairs, rings and memory.
//!
//! ```text
//! initiator   from a posted request to its completion
//! responder   from a cell that arrives to the program's buffer
//! ends        completions, flushes, the ends of queue pairs
//! iwarp       what an iWARP device does otherwise
//! pieces      what both put into rings
//! ```
//!
//! All of it works on one queue pair and the rest of the objects ([`crate::objects::world::World`]) at a time, under the engine's lock.

mod ends;
/// The sending side.
pub mod initiator;
/// The checks of an iWARP device.
pub mod iwarp;
mod pieces;
/// The receiving side.
pub mod responder;
