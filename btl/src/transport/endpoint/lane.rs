//! A lane: one queue of the layout, to one peer. It owns the queue pair and the credits.
#![forbid(unsafe_code)]

use super::outlet::Way;
use super::ring::Ring;
use crate::protocol::budget::SendBudget;
use crate::protocol::credits::{CreditError, Credits, Grant, Window};
use crate::protocol::wire::{DataHeader, HEADER_LEN};
use crate::transport::channel::{Channel, Ledger, Line, LineId, SHORT, Signalling};
use crate::transport::port::OpenPort;
use crate::transport::port::config::Config;
use crate::transport::port::depth::CONTROL_WQES;
use std::mem::offset_of;
use std::sync::Arc;
use verbs::Qp;

/// The unit of the largest message that is gathered.
const GATHERED: u32 = 8;

/// Why a message has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The send queue is full.
    Entry,
    /// The peer has posted no receive for it.
    Credit,
    /// The shared queue that it goes to has all the sends in flight that it allows.
    Shared,
}

/// One queue of the layout to one peer.
#[derive(Debug)]
#[repr(C)] // in this order: what each message reads and writes comes first
pub struct Lane {
    /// Shorter payloads may go [straight](Self::post_straight).
    pub straight_below: u16,
    /// Messages that take a data credit and have gone since the endpoint was made, modulo 2^16.
    pub sent: u16,
    /// Those that have come, likewise.
    pub received: u16,
    /// Largest message (header included) that goes inline, and has a copy in the ledger.
    pub max_inline: u16,
    /// The queue pair; none until the connection manager has made it, and none of its own for an X
    /// queue.
    pub channel: Option<Channel>,
    /// Send work queue entries that are free.
    pub budget: SendBudget,
    /// End-to-end credits and the window that is open to the peer; shared queues have none.
    pub credits: Option<(Credits, Window)>,
    /// Fewest credits that a message has left.
    fewest: u16,
    /// Largest that the device copies from its pieces as it is posted, in units of [`GATHERED`] bytes.
    max_gathered: u16,
    /// Messages that have had to wait. The count survives the connection.
    pub queued: u32,
    /// Those of them that have been posted or given up. This count survives it, too.
    pub served: u32,
    /// Send work requests that have completed.
    pub completed: u32,
    /// Receive slots whose buffers have been consumed and are to be posted again.
    pub consumed: Vec<u32>,
}

const _: () = assert!(offset_of!(Lane, channel) == size_of::<u64>(), "a count, and the queue pair");

impl Lane {
    /// The lanes of one peer, without queue pairs.
    pub fn all(port: &OpenPort) -> Vec<Lane> {
        port.layout().queues().iter().map(|queue| Lane::new(queue.first_window())).collect()
    }

    /// A lane without queue pair; `window` for a per-peer queue: what is posted at first.
    fn new(window: Option<Window>) -> Lane {
        Lane {
            channel: None,
            budget: SendBudget::new(0),
            max_inline: 0,
            max_gathered: 0,
            straight_below: 0,
            credits: window.map(|w| (Credits::new(&w), w)),
            fewest: window.map_or(0, |w| w.rd_num()),
            consumed: Vec::new(),
            queued: 0,
            served: 0,
            completed: 0,
            sent: 0,
            received: 0,
        }
    }

    /// It is the lane of the next connection: what waits goes on waiting, and counts go on.
    pub fn go_on_from(&mut self, last: &Lane) {
        (self.queued, self.served) = (last.queued, last.served);
        (self.sent, self.received) = (last.sent, last.received);
    }

    /// The queue pair has come, with the capabilities that the device granted: often more entries
    /// than were asked for, of which only `sends` are used, whose completions have their place.
    pub fn attach(&mut self, qp: Arc<Qp>, name: LineId, sends: u32, config: &Config) {
        let cap = qp.cap();
        self.budget = SendBudget::new(cap.max_send_wr.min(sends));
        self.max_inline = cap.max_inline.min(config.max_inline).min(u16::MAX.into()) as u16;
        let gathered = if config.gathers { cap.max_inline / GATHERED } else { 0 };
        self.max_gathered = gathered.min(u16::MAX.into()) as u16;
        self.channel = Some(Channel::new(qp, name, self.budget.free().into()));
    }

    /// It is the lane of the shortest messages, of up to `size` bytes: they may go straight, if they are [`SHORT`].
    pub fn go_straight(&mut self, size: u32) {
        let longest = u32::from(self.max_inline).checked_sub(HEADER_LEN as u32);
        self.straight_below = longest.map_or(0, |longest| longest.min(size).min(SHORT as u32) as u16 + 1);
    }

    /// A message of `len` bytes, header included, needs no buffer: it goes inline, or the device copies its pieces.
    #[inline(always)] // with every message
    pub fn takes_pieces(&self, len: usize) -> bool {
        len <= (u32::from(self.max_inline).max(u32::from(self.max_gathered) * GATHERED)) as usize
    }

    /// The device copies the pieces of a message of `len` bytes, header included, of which the ledger keeps no copy.
    #[inline(always)] // with every message
    pub fn is_gathered(&self, len: usize) -> bool {
        len > self.max_inline.into() && len <= (u32::from(self.max_gathered) * GATHERED) as usize
    }

    /// The queue pair of its own.
    pub fn qp(&self) -> Option<&Arc<Qp>> {
        self.channel.as_ref().map(|channel| channel.qp.shared())
    }

    /// The route to the peer's process is there, over a send queue pair that it shares with others;
    /// nothing goes inline, for what is in flight may have to be sent again.
    pub fn attach_shared(&mut self, sends: u32) {
        self.budget = SendBudget::new(sends);
    }

    /// Takes all lines up to `id` off, if they are inline messages of this queue pair: how many, and
    /// the last.
    #[inline]
    pub fn retire_inline(&mut self, id: LineId) -> Option<(u16, Line)> {
        let channel = self.channel.as_mut().filter(|channel| channel.has(id))?;
        channel.ledger.retire_inline(id.line())
    }

    /// The ledger of this queue pair, if `id` is of it.
    #[inline]
    pub fn ledger_of(&mut self, id: LineId) -> Option<&mut Ledger> {
        self.channel.as_mut().filter(|channel| channel.has(id)).map(|channel| &mut channel.ledger)
    }

    /// Takes the oldest line off, if `id` is of this queue pair and not before it; and whether it
    /// is that one.
    #[inline]
    pub fn retire(&mut self, id: LineId) -> Option<(Line, bool)> {
        let channel = self.channel.as_mut().filter(|channel| channel.has(id))?;
        channel.ledger.retire(id.line())
    }

    /// Work requests have completed: their entries are free. True if a credit message has waited for
    /// that.
    #[inline]
    pub fn free_entries(&mut self, count: u16) -> bool {
        self.budget.release(count);
        self.completed = self.completed.wrapping_add(count.into());
        self.owes_message()
    }

    /// One more read or atomic may be posted to a queue pair of its own; `None`: it is neither.
    #[inline]
    pub fn may_fetch(&self, most: Option<u16>) -> bool {
        most.is_none_or(|most| self.channel.as_ref().is_none_or(|channel| channel.reads() < most))
    }

    /// The message that has just taken a credit has taken the last one.
    #[inline(always)] // with every message
    pub fn is_out_of_credits(&self) -> bool {
        self.credits.as_ref().is_some_and(|(credits, _)| !credits.has_data())
    }

    /// The next message may have to wait for an entry: only a completion brings one.
    #[inline]
    pub fn is_scarce(&self) -> bool {
        self.budget.free() <= CONTROL_WQES
    }

    /// What a message finds missing that [`acquire`](Self::acquire) has refused.
    #[cold]
    pub fn lacks(&self) -> Lack {
        let reserve = if self.credits.is_some() { CONTROL_WQES } else { 0 };
        match &self.credits {
            _ if self.budget.free() <= reserve => Lack::Entry,
            Some((credits, _)) if !credits.has_data() => Lack::Credit,
            _ => Lack::Shared,
        }
    }

    /// Posts a marker behind requests that are not signalled, if there are any; whether it has.
    /// Without a free entry the last request is signalled ([`Lane::is_scarce`]).
    pub fn mark(&mut self) -> bool {
        let Some(channel) = self.channel.as_mut().filter(|channel| channel.ledger.ends_unsignalled()) else {
            return false;
        };
        if !self.budget.acquire() {
            return false;
        }
        let posted = channel.post_marker(None);
        if let Err(error) = &posted {
            self.budget.release(1);
            log::debug!("no marker behind what is not signalled: {error}");
        }
        posted.is_ok()
    }

    /// Posts a request without data, whose failure says that the peer is gone; whether it has.
    pub fn probe(&mut self) -> bool {
        let Some(channel) = &mut self.channel else { return false };
        if !self.budget.acquire() {
            return false;
        }
        let posted = channel.post_probe();
        if let Err(error) = &posted {
            self.budget.release(1);
            log::debug!("no keepalive: {error}");
        }
        posted.is_ok()
    }

    /// So much is owed to the peer that an explicit credit message is due.
    #[inline]
    pub fn owes_message(&self) -> bool {
        self.credits.as_ref().is_some_and(|(credits, window)| credits.explicit_due(window))
    }

    /// Nothing is due to the peer after one more of its data messages.
    #[inline(always)] // with every message
    pub fn consumes_quietly(&self) -> bool {
        self.credits.as_ref().is_none_or(|(credits, window)| credits.consumes_quietly(window))
    }

    /// Credits that a message of the peer brought.
    ///
    /// # Errors
    /// They are more than we can have, or the queue has none.
    #[inline]
    pub fn accept(&mut self, grant: Grant) -> Result<(), CreditError> {
        match &mut self.credits {
            Some((credits, window)) => credits.accept(window, grant),
            None => Err(CreditError::DataGrant { granted: grant.data, have: 0, window: 0 }),
        }
    }

    /// Takes what one data message needs, a work queue entry and (per-peer queue) a credit, and
    /// what its header returns. One entry per credit kind stays for control messages.
    #[inline(always)] // with every message
    pub fn acquire(&mut self) -> Option<Grant> {
        let Some((credits, _)) = &mut self.credits else {
            return self.budget.acquire().then_some(Grant::NONE);
        };
        if !self.budget.acquire_leaving(CONTROL_WQES) {
            return None;
        }
        match credits.acquire_of_more_than(self.fewest) {
            None => self.acquire_of_fewest(),
            grant => grant,
        }
    }

    /// The next message over a queue pair of its own takes no entry that is scarce.
    #[inline(always)] // with every message
    pub fn is_plain(&self) -> bool {
        self.channel.is_some() && self.has_plenty()
    }

    /// One entry more is free than is scarce: the next message takes it.
    #[inline(always)] // with every message
    pub fn has_plenty(&self) -> bool {
        self.budget.free() > CONTROL_WQES + 1
    }

    /// Takes what a [plain](Self::is_plain) message needs, if there is a credit, which is not the last one, and there have been
    /// fewer before.
    #[inline(always)] // with every message
    pub fn acquire_plain(&mut self) -> Option<Grant> {
        let (credits, _) = self.credits.as_mut()?;
        let grant = credits.acquire_of_more_than(self.fewest.max(1))?;
        self.budget.acquire();
        Some(grant)
    }

    /// Posts a message over the first queue, inline, from its pieces, if it is [plain](Self::is_plain), there is a credit for it as for
    /// [`acquire_plain`](Self::acquire_plain); else `None`, and nothing has happened. Whether it is signalled.
    #[inline(always)] // with every message
    pub fn post_straight(
        &mut self,
        policy: Signalling,
        tag: u8,
        [head, body]: [&[u8]; 2],
    ) -> Option<Result<bool, verbs::Error>> {
        let channel = self.channel.as_mut()?;
        let (credits, _) = self.credits.as_mut()?;
        if self.budget.free() <= CONTROL_WQES + 1 {
            return None;
        }
        let grant = credits.acquire_of_more_than(self.fewest.max(1))?;
        self.budget.acquire();
        let header = DataHeader::new(tag, 0, grant).emit();
        Some(channel.post_straight(policy, header, [head, body]))
    }

    /// The way of a message of so many slots into the peer's ring, if those are known to be free, and the device has [its own](verbs::ShortWriter).
    #[inline(always)] // with every message
    pub fn way_into<'a>(&'a self, ring: &'a mut Ring, slots: u32) -> Option<Way<'a>> {
        let writer = self.channel.as_ref()?.qp.short_writer()?;
        ring.way_of(writer, slots)
    }

    /// Posts a short [plain](Self::is_plain) message inline, with a copy, which has taken what it needs; whether it is signalled.
    ///
    /// # Errors
    /// The device refused it.
    #[inline(always)] // with every message
    pub fn post_copied(
        &mut self,
        policy: Signalling,
        header: [u8; HEADER_LEN],
        pieces: [&[u8]; 2],
    ) -> Result<bool, verbs::Error> {
        let Some(channel) = &mut self.channel else { return Ok(false) };
        channel.post_straight(policy, header, pieces)
    }

    /// The same without a copy.
    ///
    /// # Errors
    /// The device refused it.
    #[inline(always)] // with every message
    pub fn post_gathered<const PIECES: usize>(
        &mut self,
        policy: Signalling,
        pieces: [&[u8]; PIECES],
    ) -> Result<bool, verbs::Error> {
        let Some(channel) = &mut self.channel else { return Ok(false) };
        channel.post_gathered_straight(policy, pieces)
    }

    /// There is room in the ledger of a queue pair of its own for a message of so many bytes, header included, that the device reads there.
    #[inline(always)] // with every message that is copied
    pub fn has_long_room(&mut self, len: usize) -> bool {
        self.channel.as_mut().is_some_and(|channel| channel.ledger.has_long_room(len))
    }

    /// Posts a message for which there is such [room](Self::has_long_room), and which has taken what it needs; whether it is signalled.
    ///
    /// # Errors
    /// The device refused it.
    #[inline(always)] // with every message that is copied
    pub fn post_long(
        &mut self,
        policy: (Signalling, bool),
        header: [u8; HEADER_LEN],
        pieces: [&[u8]; 2],
    ) -> Result<bool, verbs::Error> {
        let Some(channel) = &mut self.channel else { return Ok(false) };
        channel.post_long(policy, header, pieces)
    }

    /// Posts a [plain](Self::is_plain) message inline, from its pieces; whether it is signalled. Of one that is longer than `max_inline` the
    /// ledger keeps no copy: the device copies the pieces.
    ///
    /// # Errors
    /// The device refused it.
    #[inline]
    pub fn post_plain<const PIECES: usize>(
        &mut self,
        policy: Signalling,
        pieces: [&[u8]; PIECES],
    ) -> Result<bool, verbs::Error> {
        let Some(channel) = &mut self.channel else { return Ok(false) };
        let copied = pieces.iter().map(|piece| piece.len()).sum::<usize>() <= self.max_inline.into();
        channel.post_inline(policy, false, copied, pieces)
    }

    /// Takes a credit where there have never been fewer, or gives the entry back: there is none.
    #[cold]
    fn acquire_of_fewest(&mut self) -> Option<Grant> {
        let (credits, _) = self.credits.as_mut()?;
        let grant = credits.acquire();
        match grant {
            Some(_) => self.fewest = credits.data(),
            None => self.budget.release(1),
        }
        grant
    }

    /// Fewest credits that a message has left on a per-peer queue.
    pub fn fewest_credits(&self) -> Option<u16> {
        self.credits.as_ref().map(|_| self.fewest)
    }
}
