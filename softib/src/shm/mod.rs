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
//! pace      how a peer is to write long data into a ring
//! choice    two ways to do the same, of which one takes less time
//! placed    the message that the program reads where it lies in a ring
//! rq        receive queues that the initiator consumes with its own hand
//! buffers   where the buffers of posted receives are, for an initiator that fills them
//! qptable   what a peer may know of a queue pair
//! groups    which queue pairs listen to which multicast groups
//! mrtable   what a peer may know of a memory region
//! mapped    a peer's memory region that is mapped here
//! barrier   fences on other processes, by membarrier(2)
//! backing   which file the memory of another process is a mapping of
//! vma       the mapping of a process that some memory lies in
//! domain    what all processes of an XRC domain share: its receive queue pairs and who holds them
//! registry  which XRC domains there are: found by file, made, left, swept
//! filelock  locks on files that no dead process keeps
//! parts     what of a segment is mapped when
//! card      what peers may know of a port
//! ports     ports of the connection manager: which process has which
//! files     files of this user: made, named, opened, removed
//! space     space of the file system
//! futex     sleeping on words that processes share
//! heap      where receive queues, and memory that peers map, are placed in the segment
//! shortage  what cannot be had, in words
//! ```
//!
//! Rules: what is read from a peer's segment is copied once and checked before it is used; a peer's
//! segment is only touched through [`map::Map`].

/// Memory of another process and its file.
pub mod backing;
/// membarrier(2) for other processes.
pub mod barrier;
/// The buffers of posted receives.
pub mod buffers;
/// A port's card.
pub mod card;
/// A cell's head and parts.
pub mod cell;
/// A ring's cells.
pub mod cells;
/// Two ways to do the same.
pub mod choice;
/// The protocol of shared receive queues.
pub mod claims;
/// Copies of payloads.
pub mod copy;
/// An XRC domain's segment.
pub mod domain;
/// SIGBUS behind a mapping.
pub mod fault;
/// Open file description locks (fcntl(2)).
pub mod filelock;
/// Files in the user's folder.
pub mod files;
/// The folder itself.
pub mod folder;
/// futex(2).
pub mod futex;
/// The group table.
pub mod groups;
/// The protocol of rings and bells.
pub mod handover;
/// The allocator of receive queues.
pub mod heap;
/// The protocol of keys and hazards.
pub mod keyed;
/// Offsets and sizes.
pub mod layout;
/// Locks and robust futexes of owners.
pub mod liveness;
/// A mapping.
pub mod map;
/// [`mapped::Mapped`].
pub mod mapped;
/// The MR table.
pub mod mrtable;
/// [`pace::Pace`].
pub mod pace;
/// Arenas and rings, as far as they are mapped.
pub mod parts;
/// The word behind `IBV_WC_PLACED`.
pub mod placed;
/// Ports of the connection manager.
pub mod ports;
/// The QP table.
pub mod qptable;
/// The XRC domains of the user.
pub mod registry;
/// A ring, from both of its ends.
pub mod ring;
/// A receive queue's shared part.
pub mod rq;
/// A process's segment.
pub mod segment;
/// The protocol of sequence numbers.
pub mod seqlock;
/// Reasons in words.
pub mod shortage;
/// fallocate(2) and statvfs(3).
pub mod space;
/// Mappings of processes.
pub mod vma;
/// Atomics, real or of a model.
pub mod word;
