//! The two rings of eager RDMA between this process and one peer: where the peer's messages land, and where ours go
//! (`protocol::eager`).
#![forbid(unsafe_code)]

use super::EpId;
use super::outlet::{Outlet, Way};
use crate::protocol::eager::{
    ALONE, CHECKSUM, Cursor, Expected, LOOKS, Lap, Refused, SLOT, TRAILER, checksum, ends_within, slots_of,
    taken_of,
};
use crate::protocol::wire::Offer;
use crate::transport::LINE;
use std::mem::offset_of;
use std::ops::RangeInclusive;
use std::sync::Arc;
use verbs::{Error, Landing, Lent, Pd, Place, Remote, ShortWriter, Watch};

/// So many messages before it is due the memory of a message is asked for.
const AHEAD: usize = 2;

/// Each look asks for all lines of a message as long as the last one, up to so many bytes of payload. A longer one would be taken from its sender
/// line by line while that writes it.
const AWAITED: usize = 2 * SLOT - TRAILER;

/// Bytes of payloads whose lines are asked for one by one: those of shorter ones are in the two lines that each look asks for.
const ONE_BY_ONE: RangeInclusive<usize> = ALONE + 1..=AWAITED;

/// As the length of the last payload: what comes next may be long, and nothing is asked for.
const UNKNOWN: usize = usize::MAX;

/// Of a longer one so many bytes are asked for when it is taken: its receiver reads the first line, decides, and then the rest.
const ASKED: usize = 2048;

/// The rings of one connection.
#[derive(Debug)]
#[repr(C, align(64))] // in this order: what each look reads, and each message to the peer, is in the first cache line
pub struct Ring {
    /// The memory of the next message has been [got ready](Self::make_ready).
    is_made_ready: bool,
    /// Our offer has been taken back; the peer has still to take back its own.
    pub is_closing: bool,
    /// What is written here has checksums.
    is_checked: bool,
    /// The device has its own way for short messages.
    writes_short: bool,
    /// When so many slots have been taken, the peer is to be told.
    due: u32,
    /// The peer's memory, once it has offered it.
    outlet: Option<Box<Outlet>>,
    next: Cursor,
    /// The next message; [`Expected::NONE`] when it is closed. What comes in its lane otherwise [changes](Self::expect_next) it.
    expected: Expected,
    landing: Landing,
    /// Messages that have not been [counted](Self::take_uncounted) yet, and bytes of their payloads.
    uncounted: u32,
    uncounted_len: u32,
    /// Whose they are.
    pub endpoint: EpId,
    /// Bytes of the payload that was taken last: the next one may be as long.
    last_len: usize,
    /// A message of several slots that has come back, and that [is to be cleared](Self::clear): where it begins, and bytes of its payload.
    /// 0: there is none.
    stale: (u32, u32),
    /// Messages of both directions at the last call of [`Self::is_used`].
    seen: u32,
    /// So many looks in a row have found the next message, and a checksum that is not right.
    unfinished: u32,
}

const _: () = assert!(offset_of!(Ring, landing) + 2 * size_of::<usize>() <= LINE, "what is looked at");
const _: () = assert!(size_of::<Ring>() == 2 * LINE, "what is taken");

/// What is behind a short message, with which the upper layer is done.
#[derive(Debug)]
pub enum Next<T, B> {
    /// Another one, which is as short. The first has come back.
    Short(T),
    /// Nothing has landed. It has come back.
    Nothing,
    /// It has not come back: something is due with it, or what is next is no such message, or not known.
    Unknown(B),
}

/// A message that has landed in a ring. Give it back with [`Transport::next_landed`], or as a [`Delivery`].
///
/// [`Transport::next_landed`]: crate::transport::Transport::next_landed
/// [`Delivery`]: crate::transport::Delivery
#[derive(Debug)]
pub struct Landed {
    /// [`EpId::word`].
    pub(in crate::transport) endpoint: u64,
    pub(in crate::transport) payload: Lent,
    /// The number of its ring.
    pub(in crate::transport) ring: u32,
    /// The upper layer's tag.
    pub tag: u8,
}

impl Landed {
    /// Who sent it.
    #[inline(always)] // with every message
    pub fn endpoint(&self) -> EpId {
        EpId::of_word(self.endpoint)
    }

    /// The payload.
    #[inline(always)] // with every message
    pub fn payload(&mut self) -> &mut [u8] {
        self.payload.as_mut_slice()
    }
}

impl Ring {
    /// Memory for so many messages of a peer, with checksums or without.
    ///
    /// # Errors
    /// There is none.
    pub fn new(pd: &Arc<Pd>, endpoint: EpId, (slots, is_checked): (u16, bool)) -> Result<Ring, Error> {
        let next = Cursor::new(slots);
        Ok(Ring {
            landing: Landing::new(pd, next.memory())?,
            next,
            expected: Expected::new(next.lap(), 0),
            uncounted: 0,
            uncounted_len: 0,
            due: next.slots() / 2,
            endpoint,
            outlet: None,
            is_made_ready: false,
            is_closing: false,
            is_checked,
            writes_short: pd.context().writes_short(),
            seen: 0,
            unfinished: 0,
            last_len: UNKNOWN,
            stale: (0, 0),
        })
    }

    /// Where the trailer of the next message is, counted in words.
    #[inline(always)] // with every look
    fn at(&self) -> usize {
        self.next.end() / TRAILER - 1
    }

    /// What the peer is told of it.
    pub fn offer(&self) -> Offer {
        let (addr, rkey) = self.landing.remote();
        Offer { addr, rkey: rkey.0, slots: self.next.slots() as u16, checks: self.is_checked }
    }

    /// The peer offers its memory: our messages go there from now on. False: they do already, or it cannot be.
    pub fn accept(&mut self, offer: Offer) -> bool {
        if self.outlet.is_some() || self.is_closing {
            return false;
        }
        self.outlet = Outlet::new(offer, self.writes_short).map(Box::new);
        self.outlet.is_some()
    }

    /// Nothing of ours goes to the peer's memory any more.
    pub fn forgo(&mut self) {
        self.outlet = None;
    }

    /// Nothing is looked at any more. Whether a message is still read.
    pub fn close(&mut self) -> bool {
        (self.expected, self.outlet) = (Expected::NONE, None);
        self.landing.is_lent()
    }

    /// It has been closed.
    #[inline(always)] // with every message
    pub fn is_closed(&self) -> bool {
        self.expected.is_none()
    }

    /// Messages have passed, in either direction, since this was asked last.
    pub fn is_used(&mut self) -> bool {
        let now = self.outlet.as_ref().map_or(0, |outlet| outlet.next.count).wrapping_add(self.next.count);
        std::mem::replace(&mut self.seen, now) != now
    }

    /// A message has landed; one before it may not have come.
    #[inline(always)] // with every look
    pub fn is_ready(&self) -> bool {
        // A longer message is in the line before, too, which is to come at the same time.
        self.landing.prefetch((self.at() * TRAILER).wrapping_sub(LINE));
        if ONE_BY_ONE.contains(&self.last_len) {
            self.prefetch_payload(self.last_len);
        }
        self.expected.has_landed(self.landing.word(self.at()))
    }

    /// Has `watch` look at where the next message lands: what is expected there, and whether it may be long. `None`: more has to be looked at.
    #[inline]
    pub fn watch(&self, watch: &mut Watch) -> Option<(Lap, bool)> {
        let watches = !ONE_BY_ONE.contains(&self.last_len) && self.landing.watch(self.at(), watch);
        watches.then_some((self.expected.lap(), self.last_len > AWAITED))
    }

    /// Asks for the lines of a payload of this length in front of the next trailer, but for those that each look asks for. Its receiver reads the
    /// first of them first, and would wait for it.
    #[inline]
    fn prefetch_payload(&self, len: usize) {
        let (at, mut before) = (self.at() * TRAILER, len);
        while before > LINE {
            self.landing.prefetch(at.wrapping_sub(before));
            before -= LINE;
        }
    }

    /// No long message is expected next.
    pub fn expect_short(&mut self) {
        self.last_len = UNKNOWN;
    }

    /// The next message that is taken has this number of its lane.
    pub fn expect_next(&mut self, number: u16) {
        if !self.is_closed() {
            self.expected = Expected::new(self.next.lap(), number);
        }
    }

    /// A message has landed, and those before it have come.
    pub fn is_next(&self) -> bool {
        let word = self.landing.word(self.at());
        if self.is_checked {
            return self.expected.has_landed(word) && !self.expected.is_later(word);
        }
        // What is no message is found when it is taken.
        self.expected.of(word).is_some() || self.expected.check(word).is_err()
    }

    /// What seems to be the next message has a checksum, which is not right.
    pub fn is_unfinished(&self) -> bool {
        self.is_checked && self.unfinished != 0 && self.is_next()
    }

    /// Nothing has landed, and the next message is waited for: its lines are got ready for who writes it, once.
    #[inline]
    pub fn make_ready(&mut self) {
        if !std::mem::replace(&mut self.is_made_ready, true) {
            self.clear();
            self.landing.own(self.at());
        }
    }

    /// Takes the next message, if it has landed and is [expected](Self::expect_next): its tag and payload.
    #[inline(always)] // with every message
    pub fn take(&mut self) -> Option<(u8, Lent)> {
        let landed = self.landing.read_before(self.next.end())?;
        let trailer = self.expected.of(landed.word)?;
        let len = trailer.payload_len();
        if len > AWAITED {
            ask_for(landed.place, len);
        }
        landed.place.prefetch((AHEAD + 1) * SLOT);
        let payload = landed.lend(len)?;
        self.pass(slots_of(len), len);
        Some((trailer.tag(), payload))
    }

    /// The same of a message with a checksum. `None`: it has not landed, not all of it has, or it has none.
    pub fn take_checked(&mut self) -> Option<(u8, Lent)> {
        if !self.is_checked {
            return None;
        }
        let landed = self.landing.read_before(self.next.end())?;
        let trailer = self.expected.of_checked(landed.word)?;
        let len = trailer.payload_len();
        let mut words = landed.words(len + CHECKSUM)?;
        let sum = words.next()?;
        if checksum(trailer, words) != sum {
            return None;
        }
        let payload = landed.lend(len + CHECKSUM)?.shorten(len);
        self.unfinished = 0;
        self.pass(1, len);
        Some((trailer.tag(), payload))
    }

    /// The upper layer is done with a message: takes the next one in its place, if both have one slot and nothing is due.
    #[inline(always)] // with every message
    pub fn exchange(&mut self, done: Lent) -> Next<(u8, Lent), Lent> {
        if done.capacity() > ALONE || self.is_due() {
            return Next::Unknown(done);
        }
        let Some(landed) = self.landing.read_before(self.next.end()) else { return Next::Unknown(done) };
        let Some(trailer) = self.expected.of_one_slot(landed.word) else {
            return if self.expected.has_landed(landed.word) { Next::Unknown(done) } else { self.end(done) };
        };
        let len = trailer.payload_len();
        landed.place.prefetch((AHEAD + 1) * SLOT);
        match landed.lend_instead(done, len) {
            Ok(payload) => {
                self.pass(1, len);
                Next::Short((trailer.tag(), payload))
            }
            Err(done) => Next::Unknown(done),
        }
    }

    /// A message comes back, and none is behind it.
    #[inline(always)] // with every message that comes alone
    fn end<T>(&mut self, done: Lent) -> Next<T, Lent> {
        if self.is_closed() {
            return Next::Unknown(done);
        }
        match self.landing.back(done) {
            Ok(_) => Next::Nothing,
            Err(done) => Next::Unknown(done),
        }
    }

    /// The next message, of so many slots and bytes of payload, has been taken.
    #[inline(always)] // with every message
    fn pass(&mut self, slots: u32, len: usize) {
        self.expected.advance();
        if self.next.advance(slots) {
            self.expect_next(self.expected.number);
        }
        self.uncounted += 1;
        self.last_len = len;
        self.uncounted_len += len as u32;
        self.is_made_ready = false;
    }

    /// What has landed next, and has not been taken, may be a message. Whether it is the next one, of which not all has landed.
    ///
    /// # Errors
    /// It is none.
    pub fn check(&mut self) -> Result<bool, Refused> {
        let word = self.landing.word(self.at());
        if !self.is_checked {
            return self.expected.check(word).map(|()| false);
        }
        if !self.expected.has_landed(word) || self.expected.is_later(word) {
            return Ok(false);
        }
        self.unfinished += 1;
        if self.unfinished < LOOKS { Ok(true) } else { Err(Refused::Checksum(word)) }
    }

    /// A message has landed that is not expected, or it is closed.
    #[inline(always)] // with every message that comes alone
    pub fn has_something(&self) -> bool {
        self.is_closed() || self.expected.has_landed(self.landing.word(self.at()))
    }

    /// What is expected is what is next, if so many messages of its lane have been counted.
    pub fn is_in_step(&self, counted: u16) -> bool {
        self.is_closed() || self.expected.number == counted.wrapping_add(self.uncounted as u16)
    }

    /// Messages that have been taken since this was asked last, and bytes of their payloads.
    #[inline]
    pub fn take_uncounted(&mut self) -> (u32, u32) {
        let uncounted = (self.uncounted, self.uncounted_len);
        (self.uncounted, self.uncounted_len) = (0, 0);
        uncounted
    }

    /// The upper layer is done with a message. Whether the peer is to be told how many have been taken.
    #[inline(always)] // with every message
    pub fn back(&mut self, payload: Lent) -> bool {
        if payload.capacity() > ALONE {
            self.clear_later(&payload);
        }
        self.landing.back(payload).is_ok_and(|all| all) && self.is_due()
    }

    /// A message of several slots is cleared when there is time for that, and before its peer is told: an answer to it does not wait until its
    /// lines have come back from the peer.
    #[inline(never)]
    fn clear_later(&mut self, payload: &Lent) {
        self.clear();
        let Some(begin) = self.landing.place_of(payload) else { return };
        self.stale = (begin as u32, payload.capacity() as u32);
    }

    /// The slots of a message of several get its trailer: no bytes of it are a trailer of the next lap.
    #[inline(never)]
    fn clear(&mut self) {
        let (begin, len) = std::mem::take(&mut self.stale);
        if len == 0 {
            return;
        }
        let (len, end) = (len as usize, (begin + len) as usize + TRAILER);
        let trailer = self.landing.word(end / TRAILER - 1);
        ends_within(end, len).for_each(|end| self.landing.put_word(end / TRAILER - 1, trailer));
    }

    /// So many have been taken that the peer is to be told, and none of them is read, for it may write there then.
    pub fn owes_word(&self) -> bool {
        !self.is_closed() && !self.landing.is_lent() && self.is_due()
    }

    #[inline(always)] // with every message
    fn is_due(&self) -> bool {
        self.next.count.wrapping_sub(self.due) as i32 >= 0
    }

    /// What the peer is told, and where: how many have been taken. `None`: it has not said where.
    pub fn news(&mut self) -> Option<([u8; TRAILER], Remote)> {
        self.clear();
        let outlet = self.outlet.as_ref()?;
        let taken = self.next.count;
        self.due = taken.wrapping_add(self.next.slots() / 2);
        Some(outlet.news(taken))
    }

    /// So many slots of the peer's ring are known to be free.
    #[inline(always)] // with every message
    pub fn has_free(&self, slots: u32) -> bool {
        self.outlet.as_ref().is_some_and(|outlet| outlet.has_free(slots))
    }

    /// A message of so many slots may be written into the peer's ring ([`Outlet::has_room`]). Reads how many the peer has taken.
    #[inline(never)] // where it is known that there is room, it is not asked
    pub fn has_room(&mut self, needed: u32) -> bool {
        let word = self.landing.word(0);
        let taken = if self.is_checked { taken_of(word) } else { Some(word as u32) };
        let (Some(outlet), Some(taken)) = (&mut self.outlet, taken) else { return false };
        outlet.has_room(needed, taken)
    }

    /// The way of the next message, of so many slots, if those are known to be free.
    #[inline(always)] // with every message
    pub fn way_of<'a>(&'a mut self, writer: ShortWriter<'a>, slots: u32) -> Option<Way<'a>> {
        self.outlet.as_deref_mut()?.way_of(writer, slots)
    }

    /// Messages to the peer [are posted](Outlet::are_posted).
    pub fn are_posted(&self) -> bool {
        self.outlet.as_ref().is_some_and(|outlet| outlet.are_posted())
    }

    /// Where the next message is posted to, of so many bytes, for which there is room, if it goes inline, as `most` bytes do.
    #[inline]
    pub fn outlet_for(&mut self, len: usize, most: usize) -> Option<&mut Outlet> {
        let slots = slots_of(len);
        let outlet = self.outlet.as_ref().filter(|outlet| outlet.fits(len, most))?;
        let has_room = outlet.has_room_posted(slots) || self.has_room(slots);
        self.outlet.as_deref_mut().filter(|_| has_room)
    }
}

/// Asks for the lines of a payload of `len` bytes in front of its trailer, the first one first.
#[inline(never)] // the way of short ones stays short
fn ask_for(trailer: Place, len: usize) {
    let last = len.saturating_sub(ASKED);
    (last + 1..=len).rev().step_by(LINE).for_each(|before| trailer.prefetch(before));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::eager::{LONGEST_CHECKED, taken_word};
    use crate::transport::device::{self, Choice, Filter, PortConfig};
    use verbs::Driver;

    /// A ring for messages with checksums, and one from which they come.
    fn pair() -> [Ring; 2] {
        let config = PortConfig { gid_index: None, pkey: 0, mtu: 0 };
        let soft = || Ok(Driver::from_table(softib::driver_table()));
        let port = device::find(&Choice::Soft, &Filter::default(), config, soft).expect("softib").remove(0);
        let pd = Pd::alloc(&port.context).expect("a domain");
        let ring = || Ring::new(&pd, EpId { index: 0, generation: 0 }, (4, true)).expect("a ring");
        let (to, mut from) = (ring(), ring());
        assert!(from.accept(to.offer()));
        [to, from]
    }

    /// A message as its sender posts it: the words of the memory that it is in, each with its place, as they are when all of them are written.
    fn message(from: &mut Ring, to: &Ring, number: u16, payload: &[u8]) -> Vec<(usize, u64)> {
        let (mut slot, (head, body)) = (None, payload.split_at(payload.len() / 2));
        let outlet = from.outlet_for(payload.len(), SLOT).expect("there is room");
        let (bytes, remote) = outlet.compose((7, number), [head, body], &mut slot).expect("it fits");
        let at = (remote.addr - to.offer().addr) as usize;
        let (first, end) = (at / TRAILER, at + bytes.len());
        let mut words = vec![0u8; end - first * TRAILER];
        words[at - first * TRAILER..].copy_from_slice(bytes);
        let words = words.chunks(TRAILER).map(|word| u64::from_le_bytes(word.try_into().expect("a word")));
        let words = (first..).zip(words).collect();
        outlet.posted(1);
        words
    }

    #[test]
    fn a_message_with_a_checksum_is_taken_when_all_of_it_is_there_in_whatever_order() {
        let [mut to, mut from] = pair();
        for (number, len) in [0, 1, 7, 8, 9, 63, LONGEST_CHECKED].into_iter().cycle().take(40).enumerate() {
            assert!(to.take_checked().is_none() && !to.is_ready());
            // No word is what the slot had in the lap before.
            let payload: Vec<u8> = (0..len).map(|at| (at + number + 1) as u8).collect();
            let words = message(&mut from, &to, number as u16, &payload);
            assert!(words.len() <= SLOT / TRAILER);
            // The trailer is written first, what it belongs to behind it.
            for (at, word) in words.into_iter().rev() {
                assert!(to.take_checked().is_none(), "message {number} of {len} bytes");
                assert_eq!(to.check(), Ok(to.is_ready()));
                assert_eq!(to.is_unfinished(), to.is_ready());
                to.landing.put_word(at, word);
                assert!(to.is_ready() && to.take().is_none());
            }
            let (tag, mut taken) = to.take_checked().expect("all of it");
            assert_eq!((tag, taken.as_mut_slice() as &[u8]), (7, &payload[..]));
            assert_eq!(to.take_uncounted(), (1, len as u32));
            if to.back(taken) {
                from.landing.put_word(0, taken_word(number as u32 + 1));
                to.due += 2;
            }
            assert!(from.has_room(1), "behind message {number}");
        }
    }

    #[test]
    fn a_checksum_that_is_wrong_for_long_is_refused() {
        let [mut to, mut from] = pair();
        for (at, word) in message(&mut from, &to, 0, &[1, 2, 3]) {
            to.landing.put_word(at, word ^ 1 << 16);
        }
        to.unfinished = LOOKS - 2;
        assert_eq!((to.check(), to.take_checked().is_none()), (Ok(true), true));
        assert!(matches!(to.check(), Err(Refused::Checksum(_))));
        assert!(to.is_unfinished());
    }

    #[test]
    fn of_a_word_that_is_not_all_there_no_room_is_read() {
        let [to, mut from] = pair();
        for number in 0..4 {
            message(&mut from, &to, number, &[]);
        }
        assert!(!from.has_room(1));
        from.landing.put_word(0, 4);
        assert!(!from.has_room(1), "without its checksum");
        from.landing.put_word(0, taken_word(4));
        assert!(from.has_room(4));
    }
}
