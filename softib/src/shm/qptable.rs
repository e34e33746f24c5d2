//! What a peer may know of a queue pair: one 128-byte entry per QP, in the owner's segment.
//!
//! Only control calls change an entry. `seq` is odd while the owner writes and rises with every change,
//! for the whole life of the segment, so an initiator copies the entry once and later compares one word. One word is the
//! peer's to write: that an iWARP stream is open.

use super::layout::{H_QP_LIMIT, qp_entry};
use super::map::{Map, Word};
use super::seqlock;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SEQ: usize = 0;
const STATE: usize = 4;
const KIND: usize = 8;
const GENERATION: usize = 12;
const DEST_QPN: usize = 16;
const QKEY: usize = 20;
const ACCESS: usize = 24;
const PD: usize = 28;
const DEST_INCARNATION: usize = 32;
const RQ_OFFSET: usize = 40;
const RQ_SIZE: usize = 48;
const RQ_SHARED: usize = 52;
const RNR_TIMER: usize = 56;
/// The generation of the queue pair that its peer has sent to first (iWARP).
const OPENED: usize = 64;
/// What it had taken in of its peer's ring when it ended ([`mark_ended`]).
const ENDED: usize = 72;
/// Ports: its own, and its peer's.
const PORTS: usize = 120;
const PKEY: usize = 124;

/// A queue pair as peers see it. `state` and `kind` are ibv_qp_state and ibv_qp_type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Public {
    /// `ibv_qp_state`.
    pub state: u32,
    /// `ibv_qp_type`.
    pub kind: u32,
    /// Rises with every reset; its low bits travel in each message.
    pub generation: u32,
    /// The queue pair that it is connected to.
    pub dest_qpn: u32,
    /// Incarnation of the process of `dest_qpn`; 0 when not connected.
    pub dest_incarnation: u64,
    /// Q_Key of datagrams to it.
    pub qkey: u32,
    /// IBV_ACCESS_REMOTE_* flags for its peer.
    pub access: u32,
    /// Protection domain of the memory that its peer may use.
    pub pd: u32,
    /// Receive queue: offset in the segment (0: none), number of slots, claimed by many (SRQ, UD) or by one.
    pub rq_offset: u64,
    pub rq_size: u32,
    pub rq_shared: bool,
    /// RNR NAK timer code, 5 bits (IBTA table 45).
    pub min_rnr_timer: u32,
    /// 0, which matches none, before the QP has one.
    pub pkey: u32,
    /// Which of its process' ports it is bound to.
    pub port: u8,
    /// Which port of the process of `dest_qpn` its address leads to.
    pub dest_port: u8,
}

/// Publishes a changed QP. One writer: the owner, under its engine lock.
pub fn publish(map: &Map, index: usize, qp: &Public) {
    let at = qp_entry(index);
    let words = [
        (STATE, qp.state),
        (KIND, qp.kind),
        (GENERATION, qp.generation),
        (DEST_QPN, qp.dest_qpn),
        (QKEY, qp.qkey),
        (ACCESS, qp.access),
        (PD, qp.pd),
        (RQ_SIZE, qp.rq_size),
        (RQ_SHARED, qp.rq_shared.into()),
        (RNR_TIMER, qp.min_rnr_timer),
        (PKEY, qp.pkey),
        (PORTS, u32::from_le_bytes([qp.port, qp.dest_port, 0, 0])),
    ];
    seqlock::change(map.u32(at + SEQ), || {
        for (offset, value) in words {
            map.u32(at + offset).store(value, Ordering::Relaxed);
        }
        map.u64(at + DEST_INCARNATION).store(qp.dest_incarnation, Ordering::Relaxed);
        map.u64(at + RQ_OFFSET).store(qp.rq_offset, Ordering::Relaxed);
    });
}

/// The initiator of an iWARP stream has sent something to queue pair `index`, which exists.
pub fn mark_opened(map: &Map, index: usize, generation: u32) {
    map.u32(qp_entry(index) + OPENED).store(generation, Ordering::Release);
}

/// Whether it has, to our own queue pair of this generation.
pub fn is_opened(map: &Map, index: usize, generation: u32) -> bool {
    map.u32(qp_entry(index) + OPENED).load(Ordering::Acquire) == generation
}

/// Queue pair `index` of this generation takes nothing in any more; it has looked at all cells of its peer's ring before number
/// `taken`. Its peer reads it to learn whether a message that met the end was received.
pub fn mark_ended(map: &Map, index: usize, generation: u32, taken: u32) {
    map.u64(qp_entry(index) + ENDED).store(ended_word(generation, taken), Ordering::Release);
}

/// What [`mark_ended`] has said of this generation; None: it has not ended, or not by its owner's hand.
pub fn taken_at_end(map: &Map, index: usize, generation: u32) -> Option<u32> {
    let word = map.u64(qp_entry(index) + ENDED).load(Ordering::Acquire);
    (word == ended_word(generation, word as u32)).then_some(word as u32)
}

/// The uppermost bit is set, so that an entry of zeroes says nothing.
fn ended_word(generation: u32, taken: u32) -> u64 {
    1 << 63 | u64::from(generation & (u32::MAX >> 1)) << 32 | u64::from(taken)
}

/// Whether the peer has an entry `index` at all.
pub fn exists(map: &Map, index: usize) -> bool {
    index < map.u32(H_QP_LIMIT).load(Ordering::Acquire) as usize
}

/// Whether there is an entry `index` that its owner is just writing.
pub fn is_changing(map: &Map, index: usize) -> bool {
    exists(map, index) && map.u32(qp_entry(index) + SEQ).load(Ordering::Acquire) & 1 != 0
}

/// The word of an entry that exists which holds its sequence number.
pub fn sequence(map: &Arc<Map>, index: usize) -> Word {
    map.word(qp_entry(index) + SEQ)
}

/// A consistent copy of an entry that exists, with its sequence number; None while it is being written.
pub fn look_up(map: &Map, index: usize) -> Option<(u32, Public)> {
    seqlock::copy(map.u32(qp_entry(index) + SEQ), || words(map, qp_entry(index)))
}

/// The words of an entry, which belong together if it does not change meanwhile.
fn words(map: &Map, at: usize) -> Public {
    let word = |offset: usize| map.u32(at + offset).load(Ordering::Relaxed);
    let [port, dest_port, ..] = word(PORTS).to_le_bytes();
    Public {
        state: word(STATE),
        kind: word(KIND),
        generation: word(GENERATION),
        dest_qpn: word(DEST_QPN),
        dest_incarnation: map.u64(at + DEST_INCARNATION).load(Ordering::Relaxed),
        qkey: word(QKEY),
        access: word(ACCESS),
        pd: word(PD),
        rq_offset: map.u64(at + RQ_OFFSET).load(Ordering::Relaxed),
        rq_size: word(RQ_SIZE),
        rq_shared: word(RQ_SHARED) != 0,
        min_rnr_timer: word(RNR_TIMER),
        pkey: word(PKEY),
        port,
        dest_port,
    }
}
