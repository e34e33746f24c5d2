//! The rings of eager RDMA of all connections that have them, and which of them are looked at.
//!
//! ```text
//!   hot    looked at with every look              a message ──────> hot
//!   cold   looked at with one look of 16          none for long ──> cold
//! ```
//! There are no more than `max_eager_rdma` of them. One that has not been used for long is closed where another peer sends much.
#![forbid(unsafe_code)]

use super::ring::{Landed, Next, Ring};
use super::{EpId, NO_RING};
use crate::protocol::eager::{LONGEST, LONGEST_CHECKED, Lap, TRAILER};
use crate::transport::LINE;
use crate::transport::port::config::Eager;
use slab::Slab;
use std::mem::offset_of;
use std::sync::Arc;
use verbs::{Error, Lent, Pd, Watch};

/// Cold rings are looked at with one look of so many.
const COLD: u32 = 16;

/// After so many looks that found messages in rings, and none that found anything else, rings are looked at before completions.
const STREAK: u8 = 4;

/// After so many looks that found something else, and none that found messages in rings, rings are looked at with one look of so many.
const RESTING: u8 = 16;
const REST: u32 = 4;

/// After so many of these looks in a row that found nothing in rings, completions come first again: a peer may wait for an answer to a READ,
/// which a look at completions gives on the software device.
const PAUSE: u8 = 64;

/// A look takes so many messages out of rings at most: they may come as fast as they are taken, and there are others to be looked for.
const MOST: u32 = 64;

/// So many messages of peers without rings are asked about before one that is not used gives its place to another.
const PATIENCE: u16 = 64;

/// Where a long message is expected, its place is looked at with every fourth glance: each may take the line from its sender, which writes there
/// for longer.
const BESIDE: u32 = 3;

/// Where there is no memory for as many slots as there should be, a ring has this part of them.
const FEWER: u16 = 4;

/// There is no place to be looked at with a glance.
const NEVER: u32 = u32::MAX;

/// All rings.
#[derive(Debug)]
#[repr(C, align(64))] // in this order: what each look reads is in the first cache lines
pub struct Rings {
    /// By the number that endpoints and messages have; those that are closed, and of which messages are still read, among them.
    rings: Slab<Ring>,
    /// The numbers of those that are looked at with every look.
    hot: Vec<u32>,
    /// Where the next message of the only hot one lands, from [`Self::watch`] on; of several, what always seems to have landed.
    first: Watched,
    /// They are looked at with every glance whose number has none of these bits.
    beside: u32,
    /// In which of them the last look has found a message, or [`NO_RING`].
    found: u32,
    /// Of which of them messages have been taken that its endpoint has not counted yet, or [`NO_RING`].
    pub uncounted: u32,
    /// So many messages may still be taken before the next look.
    left: u32,
    /// So many looks have found messages in rings, and none anything else.
    streak: u8,
    /// So many of those that come first in a row have found nothing.
    vain: u8,
    /// So many have found something else, and none messages in rings.
    others: u8,
    /// A peer is to be told of what has been taken, and could not be.
    pub owe_word: bool,
    /// So often there was no place for another one.
    missed: u16,
    /// Those that are open.
    open: u16,
    /// Where in `hot` the next look begins.
    turn: usize,
    /// Bytes of the longest payload that goes into them.
    pub longest: usize,
    /// The places of all hot ones, if there are several.
    several: Vec<Watched>,
    config: Option<Eager>,
}

const _: () = assert!(offset_of!(Rings, open) < 2 * LINE, "what is looked at");

/// A place where a message is expected, which is asked for again and again.
#[derive(Debug)]
struct Watched {
    place: Watch,
    lap: Lap,
}

impl Watched {
    /// No ring's place: a word that is always 0, and the lap of such a word, so that [`Self::has_landed`] is always true.
    fn nothing() -> Watched {
        Watched { place: Watch::nowhere(), lap: Lap::NONE }
    }

    /// Where the next message of this ring lands; whether it may be long. `None`: more has to be looked at.
    #[inline]
    fn watch(&mut self, ring: &Ring) -> Option<bool> {
        let (lap, is_long) = ring.watch(&mut self.place)?;
        self.lap = lap;
        Some(is_long)
    }

    /// A message has landed there.
    #[inline(always)] // with every look
    fn has_landed(&self) -> bool {
        let word = self.place.word();
        self.lap.has_landed(word)
    }
}

impl Rings {
    /// None yet, and none ever without a configuration. What is written into them goes inline, so many bytes; or in a way that the device has of its
    /// own.
    pub fn new(config: Option<Eager>, inline: Option<u32>) -> Rings {
        let (rings, hot) = (Slab::new(), Vec::new());
        let most = if config.is_some_and(|config| config.checks) { LONGEST_CHECKED } else { LONGEST };
        Rings {
            rings,
            hot,
            turn: 0,
            open: 0,
            config,
            longest: inline.map_or(most, |inline| (inline as usize).saturating_sub(TRAILER).min(most)),
            owe_word: false,
            streak: 0,
            vain: 0,
            others: 0,
            missed: 0,
            left: 0,
            found: NO_RING,
            uncounted: NO_RING,
            first: Watched::nothing(),
            several: Vec::new(),
            beside: NEVER,
        }
    }

    /// None is open.
    #[inline(always)] // with every look
    pub fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Peers are offered rings, this one, which has sent so many messages, too.
    #[inline]
    pub fn wants(&self, received: u32) -> bool {
        self.config.is_some_and(|config| received >= config.threshold)
    }

    /// Peers that send much are offered rings.
    #[inline]
    pub fn are_offered(&self) -> bool {
        self.config.is_some()
    }

    /// There may be one more.
    pub fn has_place(&self) -> bool {
        self.config.is_some_and(|config| self.open < config.most)
    }

    /// One that is not used, when a peer has asked in vain for a while: its number. Its place is for another one.
    #[cold]
    pub fn unused(&mut self) -> Option<u32> {
        self.missed += 1;
        if self.missed < PATIENCE {
            return None;
        }
        self.missed = 0;
        let unused = |(number, ring): (usize, &mut Ring)| {
            let is_used = ring.is_used();
            (!is_used && !ring.is_closed() && !ring.is_closing).then_some(number as u32)
        };
        // Every one is asked, so that the next time says something of the time in between.
        self.rings.iter_mut().filter_map(unused).last()
    }

    /// Opens rings to a peer: their number. `None`: there are none from now on, for want of memory.
    #[cold]
    pub fn open(&mut self, pd: &Arc<Pd>, endpoint: EpId) -> Option<u32> {
        let Eager { slots, checks, .. } = self.config?;
        let of = |slots| Ring::new(pd, endpoint, (slots, checks));
        let ring = of(slots).or_else(|_| of(slots / FEWER)).inspect_err(|error| self.forgo(error)).ok()?;
        let number = self.rings.insert(ring) as u32;
        self.open += 1;
        self.hot.push(number);
        Some(number)
    }

    fn forgo(&mut self, error: &Error) {
        log::debug!("no rings for short messages: {error}");
        self.config = None;
    }

    /// Rings by their number.
    pub fn get(&self, number: u32) -> Option<&Ring> {
        self.rings.get(number as usize)
    }

    /// The same.
    #[inline(always)] // with every message
    pub fn get_mut(&mut self, number: u32) -> Option<&mut Ring> {
        self.rings.get_mut(number as usize)
    }

    /// The number of rings in which a message has landed, and all that its sender has sent before it have come. Where there is one only, who takes
    /// the message asks for that.
    #[inline(always)] // with every look
    pub fn ready(&self) -> Option<u32> {
        match self.hot[..] {
            _ if self.left == 0 => None,
            [] => None,
            [number] => self.rings.get(number as usize)?.is_ready().then_some(number),
            _ => self.ready_of_several(),
        }
    }

    #[inline(never)]
    fn ready_of_several(&self) -> Option<u32> {
        let is_ready = |number: &&u32| {
            self.rings.get(**number as usize).is_some_and(|ring| ring.is_ready() && ring.is_next())
        };
        let (before, from) = self.hot.split_at_checked(self.turn).unwrap_or((&[], &self.hot));
        from.iter().find(is_ready).or_else(|| before.iter().find(is_ready)).copied()
    }

    /// The same of cold ones, if this is a look for them; it is hot from now on.
    #[inline(always)] // with every look
    pub fn ready_of_cold(&mut self, look: u32) -> Option<u32> {
        if look.is_multiple_of(COLD) && self.hot.len() != self.rings.len() { self.warm_up() } else { None }
    }

    /// With one look of so many there is more to look at than hot ones.
    pub fn span(&self) -> u32 {
        if self.hot.len() == self.rings.len() { u32::MAX } else { COLD }
    }

    #[inline(never)]
    fn warm_up(&mut self) -> Option<u32> {
        let is_ready = |(_, ring): &(usize, &Ring)| ring.is_ready() && ring.is_next();
        let number = self.rings.iter().find(is_ready).map(|(number, _)| number as u32)?;
        if !self.hot.contains(&number) {
            self.hot.push(number);
        }
        Some(number)
    }

    /// Nothing has landed. Whether [`Self::has_stirred`] says from now on when something has.
    #[inline]
    pub fn watch(&mut self) -> bool {
        let is_long = match self.hot[..] {
            [] => {
                self.watch_nothing();
                return true;
            }
            [number] => {
                self.several.clear();
                self.rings.get(number as usize).and_then(|ring| self.first.watch(ring))
            }
            _ => self.watch_several(),
        };
        let Some(is_long) = is_long else { return false };
        let waits_long = is_long && self.others < RESTING;
        self.beside = if waits_long { BESIDE } else { 0 };
        true
    }

    /// The same of all hot ones: whether one of them may be long. `None`: more has to be looked at.
    #[inline(never)]
    fn watch_several(&mut self) -> Option<bool> {
        self.first = Watched::nothing();
        self.several.resize_with(self.hot.len(), Watched::nothing);
        let mut is_long = false;
        for (number, watched) in self.hot.iter().zip(&mut self.several) {
            is_long |= watched.watch(self.rings.get(*number as usize)?)?;
        }
        Some(is_long)
    }

    /// No place is looked at with glances, nor kept.
    fn watch_nothing(&mut self) {
        (self.first, self.beside) = (Watched::nothing(), NEVER);
        self.several.clear();
    }

    /// A message has landed in a hot one since [`Self::watch`], if those are looked at with the glance of this number.
    #[inline(always)] // with every look
    pub fn has_stirred(&self, glance: u32) -> bool {
        glance & self.beside == 0 && self.first.has_landed() && self.one_has_stirred()
    }

    /// The same, where there seems to be one.
    #[inline(never)] // the way of the only hot one stays short
    fn one_has_stirred(&self) -> bool {
        self.several.is_empty() || self.several.iter().any(Watched::has_landed)
    }

    /// That message is next, if rings are looked at before completions, and there is no other hot one: the number of its ring.
    #[inline(always)] // with every message
    pub fn stirred(&self) -> Option<u32> {
        match self.hot[..] {
            [number] if self.come_first() => Some(number),
            _ => None,
        }
    }

    /// If it is time for that with the look of this number: rings that have not been used since the last time are cold from now on; one stays hot.
    pub fn cool_down(&mut self, look: u32) {
        if self.open > 1 && self.config.is_some_and(|config| look.is_multiple_of(config.cooling)) {
            self.cool();
        }
    }

    #[cold]
    fn cool(&mut self) {
        let rings = &mut self.rings;
        let mut left = self.hot.len();
        self.hot.retain(|number| {
            let stays = left == 1 || rings.get_mut(*number as usize).is_some_and(Ring::is_used);
            left -= usize::from(!stays);
            stays
        });
        self.turn = 0;
    }

    /// Messages may be taken once more, as many as with one look.
    #[inline(always)] // with every look
    pub fn allow(&mut self) {
        self.left = MOST;
    }

    /// One message is to be taken; whether it may be.
    #[inline(always)] // with every message
    pub fn permits(&mut self) -> bool {
        let permits = self.left != 0;
        if permits {
            self.left -= 1;
        }
        permits
    }

    /// A look has found a message in this ring. The next one begins with another ring.
    #[inline(always)] // with every look
    pub fn count_found(&mut self, number: u32) {
        (self.found, self.others, self.vain) = (number, 0, 0);
        self.streak = self.streak.saturating_add(1);
        if self.hot.len() > 1 {
            self.turn = if self.turn + 1 < self.hot.len() { self.turn + 1 } else { 0 };
        }
    }

    /// The last look has found a message, and has not been asked where.
    #[inline(always)] // with every message
    pub fn has_found(&self) -> bool {
        self.found != NO_RING
    }

    /// Where the last look has found a message, asked for the first time since.
    #[inline(always)] // with every message
    pub fn take_found(&mut self) -> Option<u32> {
        let found = std::mem::replace(&mut self.found, NO_RING);
        (found != NO_RING).then_some(found)
    }

    /// Several of them are looked at with every look.
    pub fn are_many(&self) -> bool {
        self.hot.len() > 1
    }

    /// A look has found something else, or what has to come before the message in a ring has not come.
    #[inline]
    pub fn count_others(&mut self) {
        self.streak = 0;
        self.others = self.others.saturating_add(1);
        if self.others == RESTING {
            self.rest();
        }
    }

    /// None is looked at with every look from now on.
    #[cold]
    fn rest(&mut self) {
        self.rings.iter_mut().for_each(|(_, ring)| ring.expect_short());
    }

    /// There are rings, and they are looked at with the look of this number: with some only where something else has been found for long.
    #[inline(always)] // with every look
    pub fn are_due(&self, look: u32) -> bool {
        self.open != 0 && (self.others < RESTING || look.is_multiple_of(REST))
    }

    /// Rings are looked at before completions: the last looks that found something found it there.
    #[inline(always)] // with every look
    pub fn come_first(&self) -> bool {
        self.streak >= STREAK
    }

    /// They came first in a look, and nothing has landed.
    #[inline]
    pub fn count_vain(&mut self) {
        self.vain += 1;
        if self.vain == PAUSE {
            (self.streak, self.vain) = (0, 0);
        }
    }

    /// Nothing has landed in any of those that are looked at.
    #[inline]
    pub fn make_ready(&mut self) {
        for number in &self.hot {
            if let Some(ring) = self.rings.get_mut(*number as usize) {
                ring.make_ready();
            }
        }
    }

    /// The numbers of rings whose peers are to be told of what has been taken.
    #[cold]
    pub fn due(&self) -> Vec<u32> {
        self.rings.iter().filter(|(_, ring)| ring.owes_word()).map(|(number, _)| number as u32).collect()
    }

    /// Closes rings, whose peer writes there no more. Their memory is kept as long as a message in it is read.
    #[cold]
    pub fn close(&mut self, number: u32) {
        let Some(ring) = self.get_mut(number).filter(|ring| !ring.is_closed()) else { return };
        let is_read = ring.close();
        self.open -= 1;
        self.hot.retain(|hot| *hot != number);
        (self.turn, self.streak) = (0, 0);
        self.watch_nothing();
        if !is_read {
            self.rings.remove(number as usize);
        }
    }

    /// Takes the next message of a ring, if it is expected.
    #[inline(always)] // with every message
    pub fn take(&mut self, number: u32) -> Option<Landed> {
        let ring = self.get_mut(number)?;
        let (tag, payload) = ring.take()?;
        Some(Landed { endpoint: ring.endpoint.word(), payload, ring: number, tag })
    }

    /// The same of a message with a checksum.
    #[inline(never)] // the way of those without stays short
    pub fn take_checked(&mut self, number: u32) -> Option<Landed> {
        let ring = self.get_mut(number)?;
        let (tag, payload) = ring.take_checked()?;
        Some(Landed { endpoint: ring.endpoint.word(), payload, ring: number, tag })
    }

    /// The same behind another one, which comes back.
    ///
    /// # Errors
    /// It is not. Whether something is to be done: the peer is to be told, what has landed is not expected, or they are closed.
    #[inline(always)] // with every message
    pub fn back_and_take(&mut self, number: u32, payload: Lent) -> Result<Landed, bool> {
        let Some(ring) = self.get_mut(number) else { return Err(true) };
        if ring.back(payload) {
            return Err(true);
        }
        let Some((tag, payload)) = ring.take() else { return Err(ring.has_something()) };
        Ok(Landed { endpoint: ring.endpoint.word(), payload, ring: number, tag })
    }

    /// The same where both are short, and nothing is due.
    #[inline(always)] // with every message
    pub fn exchange(&mut self, done: Landed) -> Next<Landed, Landed> {
        let Landed { endpoint, payload, ring: number, tag } = done;
        let landed = |tag, payload| Landed { endpoint, payload, ring: number, tag };
        let Some(ring) = self.get_mut(number) else { return Next::Unknown(landed(tag, payload)) };
        match ring.exchange(payload) {
            Next::Short((tag, payload)) => Next::Short(landed(tag, payload)),
            Next::Nothing => Next::Nothing,
            Next::Unknown(payload) => Next::Unknown(landed(tag, payload)),
        }
    }

    /// A message comes back.
    pub fn back(&mut self, number: u32, payload: Lent) {
        if let Some(ring) = self.get_mut(number) {
            ring.back(payload);
        }
    }

    /// A message of these rings has come back. Whether their peer is to be told how many have been taken; those that are closed go when the
    /// last message is back.
    #[inline]
    pub fn come_back(&mut self, number: u32) -> bool {
        let Some(ring) = self.rings.get(number as usize) else { return false };
        if ring.is_closed() {
            self.end(number);
            return false;
        }
        ring.owes_word()
    }

    #[cold]
    fn end(&mut self, number: u32) {
        if self.get_mut(number).is_some_and(|ring| !ring.close()) {
            self.rings.remove(number as usize);
        }
    }
}
