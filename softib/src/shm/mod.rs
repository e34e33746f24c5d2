//! Shared memory: everything that two processes look at, and nothing else.
//!
//! ```text
//! layout    where each thing sits in a segment
//! map       a mapped part of a segment: bounds-checked atomics and copies, no references to plain data
//! folder    where a user's files are, out of reach of others
//! fault     a segment whose file has been cut short
//! segment   our own segment: claim a slot, grow it, close it; sweep what the dead left
//! word      what protocols ask of a word; which of them are modelled, and where
//! handover  who looks at a ring: the protocol of store, fence, load, apart from any memory
//! claims    how many senders claim receives, seqlock and keyed, entries that others copy: the same of them
//! liveness  is the owner of a segment alive? (its lock; a robust futex makes it one load)
//! cell      the format of a cell
//! cells     the cells of a ring: two cache lines each
//! ring      one ring per ordered pair of processes, in the receiver's segment
//! placed    the message that the program reads where it lies in a ring
//! rq        receive queues that the initiator consumes with its own hand
//! qptable   what a peer may know of a queue pair
//! groups    which queue pairs listen to which multicast groups
//! mrtable   what a peer may know of a memory region
//! domain    what all processes of an XRC domain share: its receive queue pairs and who holds them
//! registry  which XRC domains there are: found by file, made, left, swept
//! filelock  locks on files that no dead process keeps
//! parts     what of a segment is mapped when
//! card      what peers may know of a port
//! ports     ports of the connection manager: which process has which
//! files     files of this user: made, named, opened, removed
//! space     space of the file system
//! futex     sleeping on words that processes share
//! heap      where receive queues are placed in the segment
//! shortage  what cannot be had, in words
//! ```
//!
//! Rules: what is read from a peer's segment is copied once and checked before it is used; a peer's
//! segment is only touched through [`map::Map`].

pub mod card;
pub mod cell;
pub mod cells;
pub mod claims;
pub mod copy;
pub mod domain;
pub mod fault;
pub mod filelock;
pub mod files;
pub mod folder;
pub mod futex;
pub mod groups;
pub mod handover;
pub mod heap;
pub mod keyed;
pub mod layout;
pub mod liveness;
pub mod map;
pub mod mrtable;
pub mod parts;
pub mod placed;
pub mod ports;
pub mod qptable;
pub mod registry;
pub mod ring;
pub mod rq;
pub mod segment;
pub mod seqlock;
pub mod shortage;
pub mod space;
pub mod word;
