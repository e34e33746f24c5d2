//! A channel: a queue pair that sends, and the ledger of what is posted to it.
//!
//! ```text
//!   inline data, a buffer, an operation --> post() --> the device        completion, by its line
//!                                              |                              |
//!                                              +--> line --> ledger --> what the line gives back
//! ```
//! [`Channel::post`], [`Channel::post_inline`], [`Channel::post_straight`] and [`Channel::post_gathered_straight`] for small messages, [`Channel::post_long`] for those from the ledger, [`Channel::post_buffer`] for those
//! from buffers, and [`Channel::post_chain`] for several are the only places of the transport where a send work request is posted. Each
//! has one line in the ledger of its queue pair, and its work request id names that line.
//!
//! Few are signalled ([`Signalling`]). The rest are retired by the next completion, or, when a flush
//! or the end waits for the last ones, by a request without data that is posted behind them
//! ([`Channel::post_marker`]).
#![forbid(unsafe_code)]

/// Messages that are posted together.
pub mod chain;
/// Copies of inline messages.
pub mod copies;
/// What a line gives back.
pub mod held;
/// The lines of one queue pair.
pub mod ledger;
/// Registered memory in ledgers.
pub mod send_rings;

pub use chain::{Ready, SENDS, Went};
pub use copies::{SHORT, Span, copy};
pub use held::{Connection, Fetch, Held, Operation, Rdma, Refused, Unposted};
pub use ledger::{GivesBack, Ledger, Line, LineId};
pub use send_rings::SendRings;

use super::port::buffer::SendBuf;
use crate::protocol::atomic;
use crate::protocol::wire::HEADER_LEN;
use send_rings::Place;
use slab::Slab;
use std::sync::Arc;
use verbs::{AtomicOp, Buf, Outbox, Qp, QpHandle, RdmaOp, Remote, SendFlags, SrqNum};

/// What a work request carries.
#[derive(Debug)]
pub enum Request<'a, C, const PIECES: usize = 0> {
    /// Pieces that the device copies at once, to a queue pair of the peer's own; the ledger keeps a copy.
    Inline([&'a [u8]; PIECES]),
    /// The first `total` bytes of a buffer, header included.
    Message { buf: SendBuf, total: u32 },
    /// A read, write or atomic.
    Operation(Operation<C>),
}

/// Where a work request goes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The connection that it is posted for.
    pub to: Connection,
    /// Queue of the layout.
    pub queue: u8,
    /// The peer's SRQ, over an XRC send queue pair.
    pub srq: Option<SrqNum>,
    /// What it takes is scarce, so that others may wait for it: it is signalled.
    pub scarce: bool,
}

/// How many requests of a queue pair may go without a completion of their own, one after the other
/// (seed 001: max_unsig_wrs, max_unsig_bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signalling {
    /// Requests; 0: each is signalled.
    pub most: u16,
    /// Bytes in buffers that are not inline, and come back late.
    pub most_bytes: u32,
}

impl Signalling {
    /// From this many bytes on, Linux's siw hands the pages of an unsignalled request to TCP without a copy, and
    /// reads them again for as long as the peer has not acknowledged them. Those of a signalled one it copies.
    const UNCOPIED: u32 = 4096;

    /// The policy on an iWARP device, where a completion says that TCP has the bytes, and the buffer of every request
    /// before it is used again.
    pub fn of_iwarp(self) -> Signalling {
        Signalling { most_bytes: self.most_bytes.min(Self::UNCOPIED - 1), ..self }
    }

    /// A request is signalled: it is scarce what it takes, or it comes behind `run` unsignalled ones; `bytes` are
    /// in their buffers and its own, 0 if it has none.
    #[inline(always)] // with every message
    fn is_due(self, scarce: bool, run: u16, bytes: u32) -> bool {
        scarce | (run >= self.most) | (bytes > self.most_bytes)
    }
}

/// A queue pair that sends.
#[derive(Debug)]
#[repr(C)] // in this order: what each message reads comes first
pub struct Channel {
    /// The queue pair.
    pub qp: QpHandle,
    /// What is behind a read waits for it. Linux's siw completes a send before a read that was posted
    /// before it, and a completion retires all lines before its own.
    fences: bool,
    /// Reads and atomics that have not completed.
    reads: u16,
    /// The flags of the next request, but for the signal.
    flags: SendFlags,
    /// Bytes in buffers, and of messages from the ledger, that went out behind the last signalled request.
    unsignalled: u32,
    /// Messages that have been copied into buffers.
    buffered: u16,
    /// The device has refused memory for the ledger.
    keeps_buffers: bool,
    /// What all its work request ids have in common.
    name: LineId,
    /// One line for each work request that has not completed.
    pub ledger: Ledger,
    /// Its place among those whose ledgers have [registered memory](Self::send_from_ledger).
    place: Option<Place>,
}

impl Channel {
    /// So many messages are copied into buffers before the ledger gets memory for them, or more: those to most peers are few.
    const FEW: u16 = 16;

    /// A channel whose work requests are named `name`, of which no more than `depth` are out at a
    /// time.
    pub fn new(qp: Arc<Qp>, name: LineId, depth: u32) -> Channel {
        let fences = qp.is_iwarp();
        let (ledger, flags) = (Ledger::with_depth(depth), SendFlags::empty());
        Channel {
            qp: qp.into(),
            name,
            ledger,
            unsignalled: 0,
            reads: 0,
            fences,
            flags,
            buffered: 0,
            keeps_buffers: false,
            place: None,
        }
    }

    /// One more message is copied into a buffer that may find room in a ledger. Whether it is time for [memory](Self::send_from_ledger) there, or more.
    #[inline(always)] // with every message that is copied into a buffer
    pub fn counts_buffered(&mut self) -> bool {
        self.buffered = self.buffered.wrapping_add(1);
        self.buffered.is_multiple_of(Self::FEW)
    }

    /// The ledger has registered memory from now on, or twice as much, if there is a place for that, and the device takes it: messages can be
    /// [posted](Self::post_long) from there. Whether it is the first that it has.
    #[cold]
    pub fn send_from_ledger(&mut self, rings: &SendRings) -> bool {
        let size = rings.size_after(self.ledger.memory()).filter(|_| !self.keeps_buffers);
        let Some(size) = size else { return false };
        let is_first = self.place.is_none();
        let Some(place) = self.place.take().or_else(|| rings.place()) else { return false };
        match Outbox::registered(&self.qp, size) {
            Ok(memory) => {
                self.ledger.send_from(memory);
                // What it has been given stays the queue pair's, whatever becomes of it in the ledger.
                self.place = Some(place);
                is_first
            }
            Err(error) => {
                log::debug!("{}: messages go from buffers: {error}", self.qp.num());
                self.keeps_buffers = true;
                self.place = (!is_first).then_some(place);
                false
            }
        }
    }

    /// A line of this queue pair.
    #[inline]
    pub fn has(&self, id: LineId) -> bool {
        self.name.is_of(id)
    }

    /// Posts a header and two short pieces as one inline message, for which nothing is scarce; whether it is signalled.
    ///
    /// # Errors
    /// The device refused it.
    #[inline(always)] // with every message
    pub fn post_straight(
        &mut self,
        policy: Signalling,
        header: [u8; HEADER_LEN],
        pieces: [&[u8]; 2],
    ) -> Result<bool, verbs::Error> {
        let (id, signalled) = (self.next_id(), self.is_due_inline(policy, false));
        let flags = self.flags(signalled);
        self.ledger.ensure_room(HEADER_LEN + pieces[0].len() + pieces[1].len());
        let copy = self.ledger.compose_next(header, pieces, signalled);
        self.qp.post_send_inline(id, copy, flags)?;
        self.ledger.push_next(signalled);
        Ok(signalled)
    }

    /// Posts a header and two pieces as one message from its copy in the ledger, which has [room](Ledger::has_long_room) for it; whether it is
    /// signalled.
    ///
    /// # Errors
    /// The device refused it.
    #[inline(always)] // with every message
    pub fn post_long(
        &mut self,
        (policy, scarce): (Signalling, bool),
        header: [u8; HEADER_LEN],
        pieces: [&[u8]; 2],
    ) -> Result<bool, verbs::Error> {
        let id = self.next_id();
        let len = HEADER_LEN + pieces[0].len() + pieces[1].len();
        let bytes = self.unsignalled.saturating_add(len as u32);
        let due = policy.is_due(scarce, self.ledger.unsignalled(), bytes);
        let flags = self.flags(due);
        let Some(part) = self.ledger.compose_long(header, pieces, due) else { return Ok(false) };
        self.qp.post_send_part(id, part, flags)?;
        self.unsignalled = if due { 0 } else { bytes };
        self.ledger.push_next(due);
        Ok(due)
    }

    /// The next message is signalled, if that is inline. Bytes that are out in buffers are counted anew then.
    #[inline(always)] // with every message
    fn is_due_inline(&mut self, policy: Signalling, scarce: bool) -> bool {
        let due = policy.is_due(scarce, self.ledger.unsignalled(), 0);
        if due {
            self.unsignalled = 0;
        }
        due
    }

    /// Posts pieces as one inline message, with a signal if one is due, and writes its line; whether it is signalled. Without `copy`
    /// the ledger keeps none: the device copies the pieces.
    ///
    /// # Errors
    /// The device refused it.
    pub fn post_inline<const PIECES: usize>(
        &mut self,
        policy: Signalling,
        scarce: bool,
        copy: bool,
        pieces: [&[u8]; PIECES],
    ) -> Result<bool, verbs::Error> {
        let signalled = self.is_due_inline(policy, scarce);
        if copy {
            self.post_composed(pieces, signalled)?;
        } else {
            self.post_gathered(pieces, signalled)?;
        }
        Ok(signalled)
    }

    /// Posts pieces as one inline message, of which the ledger keeps no copy, and writes its line.
    ///
    /// # Errors
    /// The device refused it.
    #[inline(always)] // a call costs as much as what it does
    pub fn post_gathered<const PIECES: usize>(
        &mut self,
        pieces: [&[u8]; PIECES],
        signalled: bool,
    ) -> Result<(), verbs::Error> {
        let id = self.next_id();
        self.qp.post_send_gathered(id, pieces, self.flags(signalled))?;
        self.ledger.push_uncopied(signalled);
        Ok(())
    }

    /// The same as [`post_straight`](Self::post_straight), of which the ledger keeps no copy.
    ///
    /// # Errors
    /// As there.
    #[inline(always)] // with every message
    pub fn post_gathered_straight<const PIECES: usize>(
        &mut self,
        policy: Signalling,
        pieces: [&[u8]; PIECES],
    ) -> Result<bool, verbs::Error> {
        let (id, signalled) = (self.next_id(), self.is_due_inline(policy, false));
        self.ledger.ensure_room(0);
        self.qp.post_send_gathered(id, pieces, self.flags(signalled))?;
        self.ledger.push_uncopied_next(signalled);
        Ok(signalled)
    }

    /// Posts a write of bytes, which may be used again at once, into memory of the peer, and writes its line. There is an entry for it.
    ///
    /// # Errors
    /// The device refused it.
    #[inline(always)] // with every message
    pub fn post_write(&mut self, bytes: &[u8], remote: Remote, signalled: bool) -> Result<(), verbs::Error> {
        let id = self.next_id();
        self.qp.post_write_inline(id, bytes, remote, self.flags(signalled))?;
        self.ledger.push_uncopied(signalled);
        if signalled {
            self.unsignalled = 0;
        }
        Ok(())
    }

    /// The same, of which it keeps a copy.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn post_composed<const PIECES: usize>(
        &mut self,
        pieces: [&[u8]; PIECES],
        signalled: bool,
    ) -> Result<(), verbs::Error> {
        let id = self.next_id();
        let flags = self.flags(signalled);
        let (span, copy) = self.ledger.compose(pieces);
        self.qp.post_send_inline(id, copy, flags)?;
        self.ledger.push_inline(span, signalled);
        Ok(())
    }

    /// Posts a message that is in its buffer, with a signal if one is due, and writes its line; whether it is signalled.
    ///
    /// # Errors
    /// The device refused it; the buffer comes back.
    #[inline(always)] // with every message
    pub fn post_buffer<C>(
        &mut self,
        held: &mut Slab<Held<C>>,
        policy: Signalling,
        target: Target,
        (buf, total): (SendBuf, u32),
    ) -> Result<bool, Box<Refused<C>>> {
        let id = self.next_id();
        let bytes = self.unsignalled.saturating_add(total);
        let due = policy.is_due(target.scarce, self.ledger.unsignalled(), bytes);
        let key = self.post_message(held, id, target, (buf, total), self.flags(due))?;
        self.unsignalled = if due { 0 } else { bytes };
        self.ledger.push_held(key, due);
        Ok(due)
    }

    /// Posts a work request and writes its line; whether it is signalled. An operation is, whose
    /// callback waits.
    ///
    /// # Errors
    /// The device refused it; what it carried comes back.
    pub fn post<C, const PIECES: usize>(
        &mut self,
        held: &mut Slab<Held<C>>,
        policy: Signalling,
        target: Target,
        request: Request<'_, C, PIECES>,
    ) -> Result<bool, Box<Refused<C>>> {
        match request {
            Request::Inline(pieces) => {
                let posted = self.post_inline(policy, target.scarce, true, pieces);
                posted.map_err(|error| Refused::new(error, Unposted::Nothing))
            }
            Request::Message { buf, total } => self.post_buffer(held, policy, target, (buf, total)),
            Request::Operation(Operation::Rdma(rdma)) => {
                self.post_rdma(held, target, rdma)?;
                Ok(true)
            }
            Request::Operation(Operation::Atomic { fetch, buf }) => {
                self.post_atomic(held, target, fetch, buf)?;
                Ok(true)
            }
        }
    }

    /// Posts a read or write, and writes its line. It is signalled: its callback waits.
    ///
    /// # Errors
    /// The device refused it; it comes back.
    #[inline]
    pub fn post_rdma<C>(
        &mut self,
        held: &mut Slab<Held<C>>,
        Target { to, queue, srq, .. }: Target,
        rdma: Rdma<C>,
    ) -> Result<(), Box<Refused<C>>> {
        let (Rdma { op, local, .. }, (addr, rkey)) = (&rdma, rdma.remote);
        let (id, remote, fetches) = (self.next_id(), Remote { addr, rkey }, *op == RdmaOp::Read);
        let flags = if fetches { SendFlags::SIGNALED } else { self.flags(true) };
        let posted = match srq {
            None => self.qp.post_rdma(*op, id, *local, remote, flags),
            Some(srq) => self.qp.towards(srq).post_rdma(*op, id, *local, remote, flags),
        };
        if let Err(error) = posted {
            return Err(Refused::new(error, Unposted::Operation(Operation::Rdma(rdma))));
        }
        self.operation_posted(held.insert(Held::Rdma { to, queue, rdma }), fetches);
        Ok(())
    }

    fn next_id(&self) -> u64 {
        self.name.of_line(self.ledger.next()).0
    }

    #[inline]
    fn operation_posted(&mut self, key: usize, fetches: bool) {
        if fetches {
            self.set_reads(self.reads + 1);
        }
        self.unsignalled = 0;
        self.ledger.push(GivesBack::Held(key as u32), true);
    }

    /// Posts a signalled write of no bytes, whose completion retires everything before it. It is
    /// carried out without a look at any memory (IBTA C9-88). Over an XRC send queue pair it needs an SRQ
    /// of a process that is there.
    ///
    /// # Errors
    /// The device refused it.
    #[cold]
    pub fn post_marker(&mut self, srq: Option<SrqNum>) -> Result<(), verbs::Error> {
        self.post_nothing(GivesBack::Marker, srq)
    }

    /// The same, to hear whether the peer is there.
    ///
    /// # Errors
    /// As there.
    #[cold]
    pub fn post_probe(&mut self) -> Result<(), verbs::Error> {
        self.post_nothing(GivesBack::Probe, None)
    }

    fn post_nothing(&mut self, what: GivesBack, srq: Option<SrqNum>) -> Result<(), verbs::Error> {
        let id = self.next_id();
        match srq {
            None => self.qp.post_empty_write(id, self.flags(true))?,
            Some(srq) => self.qp.towards(srq).post_empty_write(id, self.flags(true))?,
        }
        self.unsignalled = 0;
        self.ledger.push(what, true);
        Ok(())
    }

    /// Reads and atomics that have not completed.
    #[inline]
    pub fn reads(&self) -> u16 {
        self.reads
    }

    /// A read or atomic has completed.
    #[inline]
    pub fn read_done(&mut self) {
        self.set_reads(self.reads.saturating_sub(1));
    }

    #[inline]
    fn set_reads(&mut self, reads: u16) {
        self.reads = reads;
        self.flags.set(SendFlags::FENCE, reads != 0 && self.fences);
    }

    #[inline]
    fn flags(&self, signalled: bool) -> SendFlags {
        if signalled { self.flags | SendFlags::SIGNALED } else { self.flags }
    }

    #[inline(always)] // with every message
    fn post_message<C>(
        &self,
        held: &mut Slab<Held<C>>,
        id: u64,
        Target { to, queue, srq, .. }: Target,
        (buf, total): (SendBuf, u32),
        flags: SendFlags,
    ) -> Result<u32, Box<Refused<C>>> {
        let SendBuf { buf, class, share } = buf;
        let posted = match srq {
            None => self.qp.post_send(id, buf, total, flags),
            Some(srq) => self.qp.towards(srq).post_send(id, buf, total, flags),
        };
        match posted {
            Ok(buf) => Ok(held.insert(Held::Message { to, queue, buf, share, total }) as u32),
            Err((buf, error)) => Err(Refused::new(error, Unposted::Message(SendBuf { buf, class, share }))),
        }
    }

    /// As [`Self::post_rdma`], of an atomic.
    ///
    /// # Errors
    /// As there.
    pub fn post_atomic<C>(
        &mut self,
        held: &mut Slab<Held<C>>,
        Target { to, queue, srq, .. }: Target,
        fetch: Box<Fetch<C>>,
        buf: Buf,
    ) -> Result<(), Box<Refused<C>>> {
        let op = match fetch.atomic.request() {
            atomic::Request::FetchAdd(add) => AtomicOp::FetchAdd(add),
            atomic::Request::CompareSwap { compare, swap } => AtomicOp::CompareSwap { compare, swap },
        };
        let (id, (addr, rkey)) = (self.next_id(), fetch.remote);
        let (remote, flags) = (Remote { addr, rkey }, SendFlags::SIGNALED);
        let posted = match srq {
            None => self.qp.post_atomic(op, id, buf, remote, flags),
            Some(srq) => self.qp.towards(srq).post_atomic(op, id, buf, remote, flags),
        };
        match posted {
            Ok(buf) => {
                self.operation_posted(held.insert(Held::Atomic { to, queue, buf, fetch }), true);
                Ok(())
            }
            Err((buf, error)) => {
                Err(Refused::new(error, Unposted::Operation(Operation::Atomic { fetch, buf })))
            }
        }
    }
}
