//! The ring of eager RDMA in a peer's memory, into which our messages go (`protocol::eager`).
//!
//! ```text
//!   the device has its own way, and messages have no checksums      Way: the pieces as they lie, written at once
//!   else                                                            compose, post, posted: one inline WRITE
//! ```
#![forbid(unsafe_code)]

use crate::protocol::eager::{
    CHECKSUM, Cursor, LONGEST, LONGEST_CHECKED, SLOT, TRAILER, Trailer, seal, taken_word,
};
use crate::protocol::wire::Offer;
use crate::transport::LINE;
use crate::transport::channel::copy;
use verbs::{Pieces, RKey, Remote, ShortWriter};

/// When a message of more than so many slots (4 KiB of payload, and ob1's header) has found the ring full, so many of them take the other way before
/// one asks again.
const LONG: u32 = 33;
const ELSEWHERE: u16 = 1024;

/// Where our messages go.
#[derive(Debug)]
#[repr(C, align(64))] // one cache line
pub struct Outlet {
    /// The next message.
    pub next: Cursor,
    /// One trailer before the peer's memory begins: a message that ends at a place has its trailer so far behind this address.
    trailers: u64,
    rkey: RKey,
    /// Slots that are known to be free, where the device has a way of its own. None where messages [are posted](Self::are_posted).
    free: u32,
    /// The same where they are.
    free_posted: u32,
    /// So many messages of more than [`LONG`] slots do not ask for room.
    elsewhere: u16,
    /// Messages have checksums.
    is_checked: bool,
    /// Messages are posted.
    is_posted: bool,
    /// The message that is posted next; as long as the longest one so far.
    bytes: Vec<u8>,
}

const _: () = assert!(size_of::<Outlet>() == LINE, "what is sent");

/// The way of the next message, which the device carries out as it is called, for which there is room.
#[derive(Debug)]
pub struct Way<'a> {
    outlet: &'a mut Outlet,
    writer: ShortWriter<'a>,
    slots: u32,
}

impl Outlet {
    /// What a peer has offered, on a device that has its own way for short messages, or has not. `None`: it cannot be.
    pub fn new(offer: Offer, writes_short: bool) -> Option<Outlet> {
        let next = Cursor::new(offer.slots);
        offer.addr.checked_add(next.memory() as u64)?;
        let (is_checked, is_posted) = (offer.checks, offer.checks || !writes_short);
        let (free, free_posted) = if is_posted { (0, next.slots()) } else { (next.slots(), 0) };
        let (trailers, rkey) = (offer.addr.wrapping_sub(TRAILER as u64), RKey(offer.rkey));
        let (elsewhere, bytes) = (0, Vec::new());
        Some(Outlet { next, free, free_posted, elsewhere, is_checked, is_posted, trailers, rkey, bytes })
    }

    /// Where the trailer of a message that ends at this place is, in the peer's memory.
    #[inline(always)] // with every message
    fn trailer_at(&self, end: usize) -> u64 {
        self.trailers.wrapping_add(end as u64)
    }

    /// What tells the peer that so many slots of its own messages have been taken, and where that goes.
    pub fn news(&self, taken: u32) -> ([u8; TRAILER], Remote) {
        let word = if self.is_checked { taken_word(taken) } else { taken.into() };
        (word.to_le_bytes(), Remote { addr: self.trailer_at(TRAILER), rkey: self.rkey })
    }

    /// So many slots are known to be free, where the device has its own way.
    #[inline(always)] // with every message
    pub fn has_free(&self, slots: u32) -> bool {
        self.free >= slots
    }

    /// Messages are posted, as the device has no way of its own for them, or they have checksums, which that does not write.
    #[inline]
    pub fn are_posted(&self) -> bool {
        self.is_posted
    }

    /// A message of so many slots may be written, where the peer has taken so many. When the ring has filled up, half of it has to be free before it
    /// is used again: until then messages take the other way. Long ones do so for [longer](ELSEWHERE): a program that sends windows of them, for which
    /// there is no room, would have some by the one way and some by the other, and they overtake each other, which costs ob1 a copy.
    pub fn has_room(&mut self, needed: u32, taken: u32) -> bool {
        if self.free.max(self.free_posted) >= needed {
            return true;
        }
        if needed > LONG && self.elsewhere != 0 {
            self.elsewhere -= 1;
            return false;
        }
        let slots = self.next.slots();
        let free = slots.saturating_sub(self.next.count.wrapping_sub(taken));
        let free = if free >= slots / 2 { free } else { 0 };
        *self.known_free() = free;
        let has_room = free >= needed;
        if !has_room && needed > LONG {
            self.elsewhere = ELSEWHERE;
        }
        has_room
    }

    /// The way of the next message, of so many slots, if those are known to be free.
    #[inline(always)] // with every message
    pub fn way_of<'a>(&'a mut self, writer: ShortWriter<'a>, slots: u32) -> Option<Way<'a>> {
        if self.free >= slots { Some(Way { outlet: self, writer, slots }) } else { None }
    }

    /// A message of so many bytes fits, and goes inline, if `most` bytes do.
    #[inline]
    pub fn fits(&self, len: usize, most: usize) -> bool {
        let (longest, behind) =
            if self.is_checked { (LONGEST_CHECKED, CHECKSUM + TRAILER) } else { (LONGEST, TRAILER) };
        len <= longest && len + behind <= most
    }

    /// There is room for a posted message of so many slots, as far as is known.
    #[inline]
    pub fn has_room_posted(&self, slots: u32) -> bool {
        self.free_posted >= slots
    }

    /// The next message, which [fits](Self::fits), and where it goes. It is gone when it is [posted](Self::posted). One with a checksum is composed in
    /// `slot`, which nothing has been written to.
    #[inline(always)] // with every message
    pub fn compose<'a>(
        &'a mut self,
        (tag, number): (u8, u16),
        pieces: [&[u8]; 2],
        slot: &'a mut Option<[u8; SLOT]>,
    ) -> Option<(&'a [u8], Remote)> {
        let trailer = Trailer::new(tag, self.next.lap(), number, pieces[0].len() + pieces[1].len());
        let end = self.trailer_at(self.next.end()).wrapping_add(TRAILER as u64);
        let rkey = self.rkey;
        let bytes = match self.is_checked {
            true => checked(slot.insert([0; SLOT]), trailer, pieces)?,
            false => self.plain(trailer, pieces),
        };
        Some((bytes, Remote { addr: end.wrapping_sub(bytes.len() as u64), rkey }))
    }

    /// A message without a checksum.
    #[inline(always)] // with every message
    fn plain(&mut self, trailer: Trailer, [head, body]: [&[u8]; 2]) -> &[u8] {
        let len = head.len() + body.len() + TRAILER;
        if self.bytes.len() < len {
            self.lengthen(len);
        }
        let Some(whole) = self.bytes.get_mut(..len) else { return &[] };
        let (first, rest) = whole.split_at_mut(head.len());
        let (second, last) = rest.split_at_mut(body.len());
        copy(first, head);
        copy(second, body);
        last.copy_from_slice(&trailer.emit());
        whole
    }

    #[cold]
    fn lengthen(&mut self, len: usize) {
        self.bytes.resize(len, 0);
    }

    /// A composed message of so many slots has been posted.
    #[inline(always)] // with every message
    pub fn posted(&mut self, slots: u32) {
        self.next.advance(slots);
        *self.known_free() -= slots;
    }

    /// Slots that are known to be free.
    #[inline(always)] // with every message
    fn known_free(&mut self) -> &mut u32 {
        if self.is_posted { &mut self.free_posted } else { &mut self.free }
    }
}

/// A message with a checksum, in this slot. `None`: it is too long.
#[inline(always)] // with every message
fn checked<'a>(slot: &'a mut [u8; SLOT], trailer: Trailer, [head, body]: [&[u8]; 2]) -> Option<&'a [u8]> {
    let begin = LONGEST_CHECKED.checked_sub(head.len() + body.len())?;
    copy(&mut slot[begin..begin + head.len()], head);
    copy(&mut slot[begin + head.len()..LONGEST_CHECKED], body);
    seal(slot, trailer.checked());
    Some(&slot[begin..])
}

impl Way<'_> {
    /// Writes the next message, pieces of so many bytes, [`LONGEST`] at most, which has this number of its lane. False: nothing has happened.
    #[inline(always)] // with every message
    pub fn write(self, tag: u8, number: u16, (pieces, len): (&Pieces<'_>, usize)) -> bool {
        let next = self.outlet.next;
        let trailer = Trailer::new(tag, next.lap(), number, len);
        let to = Remote { addr: self.outlet.trailer_at(next.end()), rkey: self.outlet.rkey };
        let written = self.writer.write(pieces, u64::from_le_bytes(trailer.emit()), to);
        if written {
            self.outlet.next.advance(self.slots);
            self.outlet.free -= self.slots;
        }
        written
    }
}
