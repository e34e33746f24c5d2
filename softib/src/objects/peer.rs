//! Other processes (and our own, for loopback) as senders see them.
//!
//! A peer is attached (`peers`): its tables mapped, a ring in it claimed. A connected queue pair holds a [`Link`]: which incarnation it talks to, a copy of the remote
//! QP's public entry, and how many of its receives it has consumed.

use super::filling::Filling;
use super::mapped_files::MappedFiles;
use super::moves::{Kind, Moves};
use super::work::Work;
use crate::errno::Errno;
use crate::fabric::{Copies, pkeys_match};
use crate::shm::barrier::Barrier;
use crate::shm::card::{self, Card};
use crate::shm::cell::destination;
use crate::shm::folder;
use crate::shm::layout::*;
use crate::shm::liveness::Liveness;
use crate::shm::map::{Map, Word};
use crate::shm::mapped::Mapped;
use crate::shm::pace::Pace;
use crate::shm::parts::Heaps;
use crate::shm::qptable::{self, Public};
use crate::shm::ring::{self, SendRing};
use crate::shm::rq::{Place, Shape};
use crate::shm::segment;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Another process: its segment, mapped as far as it is used, and our ring in it.
#[derive(Debug)]
pub struct Peer {
    /// Its tables.
    pub map: Arc<Map>,
    heaps: Heaps,
    /// Its segment.
    pub file: Arc<File>,
    /// Its incarnation.
    pub incarnation: u64,
    /// Its process id as it said; a hint for process_vm_* only.
    pub pid: i32,
    /// Its ports.
    pub cards: Vec<Card>,
    /// Our ring in its segment.
    pub ring: SendRing,
    /// Whether process_vm_* reaches it; None before it has been tried.
    pub reachable: Option<bool>,
    pub live: Liveness,
    /// How it is to write what we READ, and when the first of several pieces of such data came: of which queue pair and request.
    pub pace: Pace,
    pub came: Option<(u32, u32, Instant)>,
    /// How we write what we give it.
    pub gifts: Pace,
    /// Which way data moves.
    pub moves: Moves,
    /// Files that its program has mapped.
    pub files: MappedFiles,
    is_self: bool,
}

impl Peer {
    /// Its program looks at its rings itself.
    pub fn polls(&self) -> bool {
        self.map.u32(H_POLLS).load(Ordering::Relaxed) != 0
    }

    /// Whether the process lives; one load in the usual case.
    #[inline(always)]
    pub fn alive(&mut self) -> bool {
        self.is_self || self.live.alive(&self.map, &self.file)
    }

    /// Asks again whether it lives, without trust in its segment.
    pub fn recheck(&mut self) {
        if !self.is_self {
            self.live.ask_lock(&self.file);
        }
    }

    /// It has answered a request. Its time, if it is timed, says which way others are to go.
    pub fn note_answer(&mut self, work: &Work) {
        if let Some((kind, since)) = work.timed.zip(work.since).filter(|(kind, _)| *kind != Kind::Crossing) {
            let time = timing::now() - since + Duration::from_nanos(work.spent.into());
            self.moves.note_answer(kind, work.len, time);
        }
    }

    /// Whether it is this process.
    pub fn is_self(&self) -> bool {
        self.is_self
    }

    /// Where a receive queue of its is. None: what it says is impossible.
    pub fn place_of(&self, view: &Public) -> Result<Option<Place>, Errno> {
        let shape = Shape { size: view.rq_size, shared: view.rq_shared };
        usize::try_from(view.rq_offset).map_or(Ok(None), |offset| self.heaps.queue(offset, shape))
    }

    /// Where `len` bytes of its heap, at `offset` of its segment, are mapped here. None: what it says is impossible, or they can't be.
    pub fn memory(&self, offset: usize, len: usize) -> Option<(&Arc<Map>, usize)> {
        self.heaps.memory(offset, len).ok().flatten()
    }

    /// Maps the receive queue of its queue pair `index`, if there is one by now: what is sent there later fails for no want of address
    /// space.
    pub fn open_queue(&self, index: usize) -> Result<(), Errno> {
        if !qptable::exists(&self.map, index) {
            return Ok(());
        }
        qptable::look_up(&self.map, index).map_or(Ok(()), |(_, view)| self.place_of(&view).map(drop))
    }
}

/// Attaches the process in `slot`, if it lives; `me` is our slot and incarnation.
pub(super) fn attach(dir: &Path, slot: usize, me: (usize, u64), barrier: &Barrier) -> Result<Peer, Errno> {
    let file = Arc::new(segment::open_slot(dir, slot)?);
    let metadata = file.metadata()?;
    // Any user can make a file of this name where all users' segments live.
    if metadata.len() != SEGMENT_LEN as u64 || metadata.uid() != folder::uid() {
        return Err(Errno::PROTO);
    }
    let map = Arc::new(Map::new(&file, TABLES_LEN)?);
    let mut live = Liveness::default();
    let is_self = slot == me.0;
    if !is_self && !live.alive(&map, &file) {
        return Err(Errno(libc::ECONNREFUSED));
    }
    segment::check_header(&map, MAGIC, slot)?;
    let cards = card::read(&map)?;
    let incarnation = map.u64(H_NONCE).load(Ordering::Relaxed);
    let pid = map.u32(H_PID).load(Ordering::Relaxed) as i32;
    let fenced = map.u32(H_BARRIER).load(Ordering::Relaxed) == 0 || !barrier.register();
    let ring = SendRing::claim(&map, &file, me, fenced, ring::may_be_large(&file))?;
    let heaps = Heaps::new(&map, &file);
    let (reachable, pace, came, gifts) = (None, Pace::default(), None, Pace::default());
    let (moves, files) = (Moves::new(Copies::from_environment() == Ok(Copies::Late)), MappedFiles::default());
    Ok(Peer {
        map,
        heaps,
        file,
        incarnation,
        pid,
        cards,
        ring,
        reachable,
        live,
        pace,
        came,
        gifts,
        moves,
        files,
        is_self,
    })
}

/// Where a connection goes: to which process, from which of our ports to which of its, in which partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Route {
    /// 0: the peer was not there when we connected, or the address does not lead to it.
    pub incarnation: u64,
    /// Our port.
    pub ours: u8,
    /// The peer's port.
    pub theirs: u8,
    /// The P_Key that our packets carry.
    pub pkey: u16,
}

/// READs that are fetched at most after one for which the peer was late.
const READS_UNASKED: u32 = 15;

/// Length words in a cache line.
const AHEAD: usize = 16;

/// A connected queue pair's view of the other side.
#[derive(Debug)]
#[repr(C)] // in this order: what each message touches comes first
pub struct Link {
    /// The region of the peer that we write to by our own hand, once there is one, which the peer shares, and the one of a file of its program.
    pub window: Option<Mapped>,
    pub file: Option<Box<Mapped>>,
    /// The sequence number of the remote QP's entry when `view` was copied, and where it is now.
    sequence: Option<(u32, Word)>,
    /// Slot of the peer's process.
    pub slot: usize,
    /// Index of the remote QP in its process.
    pub index: usize,
    /// 0: the peer was not there when we connected, or the address does not lead to it.
    pub incarnation: u64,
    /// The process that the QP was connected to first.
    home: u64,
    /// The P_Key that our packets carry.
    pub pkey: u16,
    /// Our port, and the peer's: each side must be connected to the other's.
    ours: u8,
    pub theirs: u8,
    /// The remote QP's entry when it was copied last.
    pub view: Public,
    /// The remote QP in cells that are for it.
    pub dst: u16,
    /// Its receive queue, once it is mapped.
    pub place: Option<Place>,
    /// Receives consumed so far, and the peer's `posted` as seen last (queue with one sender).
    pub consumed: u32,
    pub posted: u32,
    /// Length words of the next receives, read ahead: the target writes to their line with every receive it posts.
    ahead: [u32; AHEAD],
    /// Positions below this one are in `ahead`.
    known: u32,
    /// The remote generation we first spoke to; another one is another connection.
    generation: Option<u32>,
    /// The remote queue could not be mapped.
    pub is_short: bool,
    /// The key that was looked up last and names nothing that can be mapped.
    pub apart: u32,
    /// The buffers of its receives, as far as we fill them by our own hand.
    pub filling: Filling,
    /// Answers that were not waited for and are still to come, and how many READs are fetched before the peer is asked for data again.
    pub owed: u32,
    pub unasked: u32,
    /// How many those were when it was late last, and half of it with each answer in time.
    lateness: u32,
    /// What had been [counted](crate::shm::ring::moves) of it when it was late last.
    pub moves: u32,
    /// What speaks for it that the next long READs of both sides cross: up to [`CROSSINGS`].
    crossings: u8,
}

/// Long READs that are fetched behind the last one that has crossed one of the peer's: fewer than so many.
const CROSSINGS: u8 = 8;

impl Link {
    /// The link to a queue pair that has not been looked at yet.
    pub fn new(dest_qpn: u32, route: Route) -> Link {
        let Route { incarnation, ours, theirs, pkey } = route;
        Link {
            slot: (dest_qpn >> QP_BITS) as usize,
            index: dest_qpn as usize % QPS,
            incarnation,
            home: incarnation,
            pkey,
            ours,
            theirs,
            view: Public::default(),
            dst: 0,
            place: None,
            consumed: 0,
            posted: 0,
            ahead: [0; AHEAD],
            known: 0,
            sequence: None,
            generation: None,
            is_short: false,
            window: None,
            file: None,
            apart: 0,
            filling: Filling::default(),
            owed: 0,
            unasked: 0,
            lateness: 0,
            moves: 0,
            crossings: 0,
        }
    }

    /// The peer was late with an answer, which is not waited for. The more often it is, the longer it is not asked.
    pub fn was_late(&mut self) {
        self.owed += 1;
        self.was_slow();
    }

    /// It has answered, but that took longer than to fetch the data.
    pub fn was_slow(&mut self) {
        self.lateness = (2 * self.lateness + 1).min(READS_UNASKED);
        self.unasked = self.lateness + 1;
    }

    /// A long READ of ours has been under way together with one of the peer's, or not.
    pub fn note_crossing(&mut self, crossed: bool) {
        let (more, less) = ((self.crossings + 2).min(CROSSINGS), self.crossings.saturating_sub(1));
        self.crossings = if crossed { more } else { less };
    }

    /// Long READs of both sides are under way together, as it seems.
    pub fn crosses(&self) -> bool {
        self.crossings > 1
    }

    /// It has answered in time.
    pub fn was_in_time(&mut self) {
        self.lateness /= 2;
    }

    /// Takes another path or partition to the same queue pair (a change in SQD). What has been agreed on so far holds: where the path leads to
    /// another process, or nowhere (0), there is silence.
    pub fn repath(&mut self, route: Route) {
        let incarnation = route.incarnation;
        if self.home == 0 {
            self.home = incarnation;
        }
        self.incarnation = if incarnation == self.home { incarnation } else { 0 };
        (self.ours, self.theirs) = (route.ours, route.theirs);
        (self.pkey, self.sequence) = (route.pkey, None);
    }

    /// Consumes the next receive of a queue that only we send to: its position and length word.
    #[inline]
    pub fn consume(&mut self) -> Option<(u32, u32)> {
        self.read_ahead()?;
        let pos = self.consumed;
        self.consumed = pos.wrapping_add(1);
        Some((pos, self.ahead[pos as usize % AHEAD]))
    }

    /// Consumes the next receive if it is known, good, and holds `len` bytes: its position.
    #[inline(always)]
    pub fn consume_fitting(&mut self, len: u32) -> Option<u32> {
        let pos = self.consumed;
        let room = self.ahead[pos as usize % AHEAD];
        // A bad one's length is past all others; as a signed number it is below zero.
        if self.is_used_up() || (room as i32) < len as i32 {
            return None;
        }
        self.consumed = pos.wrapping_add(1);
        Some(pos)
    }

    /// Whether none is known of the receives that are left (queue with one sender).
    #[inline(always)]
    pub fn is_used_up(&self) -> bool {
        self.consumed == self.known
    }

    /// Claims the next receive of a shared queue, through the ring of this number, if it can be had at once and holds `len` bytes.
    #[inline(always)]
    pub fn claim_fitting(&self, ring: usize, len: u32) -> Option<u32> {
        self.place.as_ref()?.claim_fitting(ring, len)
    }

    /// Whether more receives are to be read ahead.
    #[inline(always)]
    pub fn wants_to_read(&self) -> bool {
        self.is_used_up() && !self.view.rq_shared
    }

    /// Takes the last [`Self::consume`] back.
    pub fn give_back(&mut self) {
        self.consumed = self.consumed.wrapping_sub(1);
    }

    /// Copies the posted length words up to the end of a line, if the last copy is used up. None: nothing is posted.
    pub fn read_ahead(&mut self) -> Option<()> {
        if !self.is_used_up() {
            return Some(());
        }
        let place = self.place.as_ref()?;
        if self.posted == self.consumed {
            self.posted = place.posted();
            if self.posted == self.consumed {
                return None;
            }
        }
        let line = AHEAD as u32 - self.consumed % AHEAD as u32;
        self.known = self.consumed.wrapping_add(line.min(self.posted.wrapping_sub(self.consumed)));
        let mut pos = self.consumed;
        while pos != self.known {
            self.ahead[pos as usize % AHEAD] = place.len(pos);
            pos = pos.wrapping_add(1);
        }
        // The next line will be wanted, and is the target's: it has until then to come.
        place.expect(pos);
        Some(())
    }

    /// Lets go of a file of the peer's program that we have written to, if the peer has it registered no more.
    pub fn sweep(&mut self) {
        self.file.take_if(|window| !window.row.holds());
        self.filling.window.take_if(|window| !window.row.holds());
    }

    /// Whether the remote QP, which must be connected to `me` (QPN, incarnation), takes messages.
    #[inline]
    pub fn is_open(&mut self, peer: &Peer, me: (u32, u64)) -> bool {
        self.is_current() || self.refresh(peer, me)
    }

    /// Whether it is as when it was looked at last, and took messages then.
    #[inline(always)]
    pub fn is_current(&self) -> bool {
        self.sequence.as_ref().is_some_and(|(sequence, now)| now.load(Ordering::Acquire) == *sequence)
    }

    /// How much of our ring the remote QP had taken in when it ended, if it has.
    #[cold]
    pub fn taken_at_end(&self, peer: &Peer) -> Option<u32> {
        let generation = self.generation.filter(|_| peer.incarnation == self.incarnation)?;
        qptable::exists(&peer.map, self.index)
            .then(|| qptable::taken_at_end(&peer.map, self.index, generation))?
    }

    /// Looks at the remote QP again: [`Self::is_open`].
    #[cold]
    pub fn refresh(&mut self, peer: &Peer, me: (u32, u64)) -> bool {
        let map = &peer.map;
        (self.sequence, self.is_short) = (None, false);
        (self.window, self.file, self.apart) = (None, None, 0);
        self.filling = Filling::default();
        if !qptable::exists(map, self.index) {
            return false;
        }
        let Some((sequence, view)) = qptable::look_up(map, self.index) else { return false };
        let ours = view.dest_qpn == me.0 && view.dest_incarnation == me.1;
        let same = self.generation.is_none_or(|generation| generation == view.generation);
        // What goes out at another port than the one that the peer answers to comes from a stranger.
        let ours = ours && (view.port, view.dest_port) == (self.theirs, self.ours);
        if !ours || !same || !super::qp_state::is_receiving(view.state) {
            return false;
        }
        if !pkeys_match(self.pkey, view.pkey as u16) {
            card::count_bad_pkey(map, view.port);
            return false;
        }
        let place = peer.place_of(&view);
        self.is_short = place.is_err();
        let Ok(place) = place else { return false };
        place.iter().for_each(Place::map_pages);
        self.place = place;
        self.dst = destination(self.index, view.generation);
        self.generation = Some(view.generation);
        self.view = view;
        self.sequence = Some((sequence, qptable::sequence(map, self.index)));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_late_again_and_again_is_asked_less_and_less_and_an_answer_in_time_makes_up_for_half_of_it()
     {
        let mut link = Link::new(1, Route { incarnation: 1, ours: 1, theirs: 1, pkey: 0xffff });
        let late = |link: &mut Link| {
            link.was_late();
            link.unasked
        };
        let first = [(); 5].map(|()| late(&mut link));
        assert_eq!((first, link.owed), ([2, 4, 8, 16, 16], 5));
        link.was_in_time();
        link.was_in_time();
        assert_eq!(late(&mut link), 8);
        link.was_slow();
        assert_eq!((link.unasked, link.owed), (16, 6), "slow is as late, but nothing is still to come");
        (0..4).for_each(|_| link.was_in_time());
        assert_eq!(late(&mut link), 2, "it is as one that has never been late");
    }
}
