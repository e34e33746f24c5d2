//! The two rings of eager RDMA between this process and one peer: where the peer's messages land, and where ours go
//! (`protocol::eager`).
#![forbid(unsafe_code)]

use super::EpId;
use crate::protocol::eager::{Cursor, LONGEST, Refused, SLOT, TRAILER, Trailer};
use crate::protocol::wire::Offer;
use crate::transport::channel::copy_short;
use std::sync::Arc;
use verbs::{Error, Landing, Lent, Pd, RKey, Remote};

/// So many messages before it is due the memory of a message is asked for.
const AHEAD: usize = 2;

/// A cache line.
const LINE: usize = 64;

/// No word has this lap.
const NO_LAP: u64 = 1 << 8;

/// The rings of one connection.
#[derive(Debug)]
pub struct Ring {
    /// The trailer of the next message from the peer, counted in words, and its lap; [`NO_LAP`] when it is closed.
    at: usize,
    lap: u64,
    landing: Landing,
    next: Cursor,
    /// Messages that the peer knows to have been taken.
    told: u32,
    /// Whose they are.
    pub endpoint: EpId,
    /// The peer's memory, once it has offered it.
    outlet: Option<Box<Outlet>>,
    /// The memory of the next message has been [got ready](Self::make_ready).
    is_made_ready: bool,
    /// Our offer has been taken back; the peer has still to take back its own.
    pub is_closing: bool,
    /// Messages of both directions at the last call of [`Self::is_used`].
    seen: u32,
}

/// Where our messages go.
#[derive(Debug)]
struct Outlet {
    next: Cursor,
    /// Slots that are known to be free.
    free: u32,
    addr: u64,
    rkey: RKey,
    /// The message that is posted next.
    bytes: [u8; SLOT],
}

impl Ring {
    /// Memory for so many messages of a peer.
    ///
    /// # Errors
    /// There is none.
    pub fn new(pd: &Arc<Pd>, endpoint: EpId, slots: u16) -> Result<Ring, Error> {
        let next = Cursor::new(slots);
        let mut ring = Ring {
            at: 0,
            lap: 0,
            landing: Landing::new(pd, next.memory())?,
            next,
            told: 0,
            endpoint,
            outlet: None,
            is_made_ready: false,
            is_closing: false,
            seen: 0,
        };
        ring.look_at_next();
        Ok(ring)
    }

    #[inline(always)] // with every message
    fn look_at_next(&mut self) {
        (self.at, self.lap) = (self.next.end() / TRAILER - 1, self.next.lap().into());
        self.is_made_ready = false;
    }

    /// The memory of a message that comes soon, where they come one after the other; a hint.
    #[inline(always)] // with every message
    pub fn prefetch(&self) {
        self.landing.prefetch(self.next.end() + AHEAD * SLOT - 1);
    }

    /// What the peer is told of it.
    pub fn offer(&self) -> Offer {
        let (addr, rkey) = self.landing.remote();
        Offer { addr, rkey: rkey.0, slots: self.next.slots() as u16 }
    }

    /// The peer offers its memory: our messages go there from now on. False: they do already, or it cannot be.
    pub fn accept(&mut self, offer: Offer) -> bool {
        let next = Cursor::new(offer.slots);
        let fits = offer.addr.checked_add(next.memory() as u64).is_some();
        if self.outlet.is_some() || self.is_closing || !fits {
            return false;
        }
        let (addr, rkey) = (offer.addr, RKey(offer.rkey));
        self.outlet = Some(Box::new(Outlet { next, free: next.slots(), addr, rkey, bytes: [0; SLOT] }));
        true
    }

    /// Nothing of ours goes to the peer's memory any more.
    pub fn forgo(&mut self) {
        self.outlet = None;
    }

    /// Nothing is looked at any more. Whether a message is still read.
    pub fn close(&mut self) -> bool {
        (self.lap, self.outlet) = (NO_LAP, None);
        self.landing.is_lent()
    }

    /// It has been closed.
    #[inline(always)] // with every message
    pub fn is_closed(&self) -> bool {
        self.lap == NO_LAP
    }

    /// Messages have passed, in either direction, since this was asked last.
    pub fn is_used(&mut self) -> bool {
        let now = self.outlet.as_ref().map_or(0, |outlet| outlet.next.count).wrapping_add(self.next.count);
        std::mem::replace(&mut self.seen, now) != now
    }

    /// A message has landed, unless one before it has not come.
    #[inline(always)] // with every look
    pub fn is_ready(&self) -> bool {
        // A longer message is in the line before, too, which is to come at the same time.
        self.landing.prefetch((self.at * TRAILER).wrapping_sub(LINE));
        self.landing.word(self.at) >> 56 == self.lap
    }

    /// The same, and those before it have come: it is of this number of its lane.
    #[inline(always)] // with every message
    pub fn is_next(&self, number: u16) -> bool {
        !self.is_closed() && Trailer::is_next(self.landing.word(self.at), self.lap as u8, number)
    }

    /// Nothing has landed, and the next message is waited for: its lines are got ready for who writes it, once.
    #[inline]
    pub fn make_ready(&mut self) {
        if !std::mem::replace(&mut self.is_made_ready, true) {
            self.landing.own(self.at);
        }
    }

    /// Takes the next message, if it has landed and is of this number of its lane: its tag and payload.
    ///
    /// # Errors
    /// It is none.
    #[inline(always)] // with every message
    pub fn take(&mut self, number: u16) -> Result<Option<(u8, Lent)>, Refused> {
        if self.is_closed() {
            return Ok(None);
        }
        let Some(trailer) = Trailer::next(self.landing.word(self.at), self.lap as u8, number)? else {
            return Ok(None);
        };
        let len = trailer.payload_len();
        let payload = self.landing.lend((self.at * TRAILER).wrapping_sub(len), len);
        self.next.advance();
        self.look_at_next();
        Ok(payload.map(|payload| (trailer.tag(), payload)))
    }

    /// The upper layer is done with a message. Whether the peer is to be told how many have been taken.
    #[inline(always)] // with every message
    pub fn back(&mut self, payload: Lent) -> bool {
        self.landing.back(payload).is_ok_and(|all| all) && self.is_due()
    }

    /// So many have been taken that the peer is to be told, and none of them is read, for it may write there then.
    pub fn owes_word(&self) -> bool {
        !self.is_closed() && !self.landing.is_lent() && self.is_due()
    }

    #[inline(always)] // with every message
    fn is_due(&self) -> bool {
        self.next.count.wrapping_sub(self.told) >= self.next.slots() / 2
    }

    /// What the peer is told, and where: how many have been taken. `None`: it has not said where.
    pub fn news(&mut self) -> Option<([u8; TRAILER], Remote)> {
        let outlet = self.outlet.as_ref()?;
        self.told = self.next.count;
        Some((u64::from(self.told).to_le_bytes(), Remote { addr: outlet.addr, rkey: outlet.rkey }))
    }

    /// A slot of the peer's ring is known to be free.
    #[inline(always)] // with every message
    pub fn has_free_slot(&self) -> bool {
        self.outlet.as_ref().is_some_and(|outlet| outlet.free != 0)
    }

    /// A message may be written into the peer's ring. Reads how many the peer has taken, if that is not known. When the ring has filled up, half
    /// of it has to be free before it is used again: until then messages take the other way.
    pub fn has_room(&mut self) -> bool {
        let taken = self.landing.word(0) as u32;
        let Some(outlet) = &mut self.outlet else { return false };
        if outlet.free == 0 {
            let slots = outlet.next.slots();
            let free = slots.saturating_sub(outlet.next.count.wrapping_sub(taken));
            outlet.free = if free >= slots / 2 { free } else { 0 };
        }
        outlet.free != 0
    }

    /// The next message, of at most [`LONGEST`] bytes, and where it goes; there [is room](Self::has_room). It is gone when it is
    /// [posted](Self::posted).
    #[inline(always)] // with every message
    pub fn compose(&mut self, tag: u8, number: u16, [head, body]: [&[u8]; 2]) -> Option<(&[u8], Remote)> {
        let Outlet { next, addr, rkey, bytes, .. } = &mut **self.outlet.as_mut()?;
        let len = head.len() + body.len();
        if len > LONGEST {
            return None;
        }
        let whole = &mut bytes[..len + TRAILER];
        let (first, rest) = whole.split_at_mut(head.len());
        let (second, trailer) = rest.split_at_mut(body.len());
        copy_short(first, head);
        copy_short(second, body);
        trailer.copy_from_slice(&Trailer::new(tag, next.lap(), number, len).emit());
        let addr = *addr + (next.end() - len - TRAILER) as u64;
        Some((whole, Remote { addr, rkey: *rkey }))
    }

    /// It has been posted.
    #[inline(always)] // with every message
    pub fn posted(&mut self) {
        if let Some(outlet) = &mut self.outlet {
            outlet.next.advance();
            outlet.free -= 1;
        }
    }
}
