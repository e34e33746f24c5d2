//! A send request: what it asks for, how far it is, what it waits for; and its payload.

use super::moves::Kind;
use super::mw::Binding;
use super::sges::gather;
use crate::errno::Errno;
use crate::fabric::address::{Address, GRH};
use rdma_sys::*;
use std::ops::Deref;
use std::time::{Duration, Instant};

/// Longest gather or scatter list.
pub const MAX_SGE: u32 = 16;
/// Room in front of every received datagram for a global route header.
pub const GRH_LEN: u32 = GRH as u32;
/// Bytes of an atomic operation.
pub const WORD: u32 = 8;
/// A READ of fewer bytes is fetched in a microsecond or two.
pub const SHORT: u32 = 4 << 10;
/// Longest datagram, in bytes.
pub const UD_MTU: u32 = 4096;

/// One send request on its way.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    /// As it was posted.
    pub wr_id: u64,
    /// `ibv_wr_opcode`.
    pub opcode: u32,
    /// `ibv_send_flags`.
    pub flags: u32,
    /// Immediate data, in network order, or the key to invalidate.
    pub imm: u32,
    /// What it names on the other side.
    pub remote: Remote,
    /// Payload bytes in all, and those that are in the ring.
    pub len: u32,
    pub sent: u32,
    /// The receive that was consumed, once it was.
    pub receive: Option<u32>,
    /// It completes with success, too.
    pub signalled: bool,
    /// Number of requests posted to this SQ up to this one.
    pub number: u32,
    /// RDMA: the request is in the ring; the data is where it belongs.
    pub asked: bool,
    pub moved: bool,
    /// READ: the peer writes the data past its caches.
    pub streamed: bool,
    /// READ: the peer was asked for the data and has not sent it in time, or does not send it; so it is fetched.
    pub late: bool,
    pub unsent: bool,
    /// READ, or WRITE: it went out behind one that the peer has not carried out, or that has failed; so will it, and its answer is dropped.
    pub recalled: bool,
    /// What had been [heard](super::qp::Qp::heard) of the peer when it was asked, or found late.
    pub heard: u32,
    /// A long READ that was seen under way together with one of the peer's.
    pub crosses: bool,
    /// How often it has been waited for again, as it had a reason to be late.
    pub waited: u8,
    /// RDMA: it was posted behind another request, without a poll between them.
    pub in_burst: bool,
    /// READ, or WRITE that is given: its kind, if it is timed, and when it was asked for, or came to the head of the queue. What it took to give it
    /// before, in nanoseconds.
    pub timed: Option<Kind>,
    pub since: Option<Instant>,
    pub spent: u32,
    /// All of it is in the ring, in cells before number `in_ring`, and the receiver's queue pair was no more open then: it is over if that is
    /// open after all, or has taken it in.
    pub unconfirmed: bool,
    pub in_ring: u32,
    /// WRITE: the peer may be given the data, as the program polls until the request is over; under this number it has been.
    pub may_give: bool,
    pub give: u32,
    /// XRC: the number of the shared receive queue that it is for.
    pub srqn: u32,
}

/// READs from here on of which both sides have one under way are each fetched by who has posted it: that is one copy of each. The way through the
/// rings is two, and the peer's processor is no help with the second one then.
const LEAST_CROSSING: u32 = 768 << 10;

/// The same where the processors share no cache: each copy takes longer there, by what is written to the ring.
const LEAST_CROSSING_FAR: u32 = 128 << 10;

/// A READ of so many bytes may be better fetched if it crosses one of the peer's.
pub fn may_cross(len: u32) -> bool {
    len >= LEAST_CROSSING_FAR
}

/// What a request names on the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Remote {
    /// The connected queue pair.
    #[default]
    Peer,
    Memory {
        addr: u64,
        rkey: u32,
    },
    /// A memory window of our own.
    Bind(Binding),
    /// A 64-bit word. `first` is added (FETCH_ADD) or compared with (CMP_SWAP), `swap` takes its place then.
    Word {
        addr: u64,
        rkey: u32,
        first: u64,
        swap: u64,
    },
    Datagram {
        qpn: u32,
        qkey: u32,
        to: Address,
    },
}

impl Remote {
    /// The address and key of a one-sided operation.
    pub fn memory(&self) -> (u64, u32) {
        match *self {
            Remote::Memory { addr, rkey } | Remote::Word { addr, rkey, .. } => (addr, rkey),
            Remote::Peer | Remote::Bind(_) | Remote::Datagram { .. } => (0, 0),
        }
    }
}

/// The gather or scatter list of a request; most are of one piece.
pub enum Sges {
    One(ibv_sge),
    Any(Box<[ibv_sge]>),
}

impl From<&[ibv_sge]> for Sges {
    fn from(sges: &[ibv_sge]) -> Sges {
        match sges {
            [one] => Sges::One(*one),
            sges => Sges::Any(sges.into()),
        }
    }
}

impl Deref for Sges {
    type Target = [ibv_sge];

    fn deref(&self) -> &[ibv_sge] {
        match self {
            Sges::One(one) => std::slice::from_ref(one),
            Sges::Any(sges) => sges,
        }
    }
}

/// A request that waits in the SQ, with its own copy of what it needs.
pub struct Queued {
    /// The request.
    pub work: Work,
    /// Its SGEs.
    pub sges: Sges,
    /// Inline payload; `sges` points to it.
    _inline: Box<[u8]>,
    /// What keeps it.
    pub wait: Wait,
    /// RNR retries left; 7: without end.
    pub rnr_left: u8,
    /// What a plan of faults has for it.
    pub fate: Option<Box<Fate>>,
}

/// What a request at the head of an SQ waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Its turn.
    Turn,
    Room,
    Rnr {
        until: Instant,
    },
    /// A latency that was asked for.
    Held {
        until: Instant,
    },
    Silent {
        /// When to give up; None: never.
        deadline: Option<Instant>,
    },
    /// An answer of the peer to an RDMA request; it comes through `datapath::responder`.
    Answer,
    /// The same, of a peer that looks at its rings: data that could be fetched, and is if nothing more than `sent` bytes has come by then.
    Data {
        sent: u32,
        until: Instant,
        /// Looks before which the program was elsewhere.
        elsewhere: u8,
    },
    /// The same, behind another request: its time begins when it comes to the head.
    Asked,
    /// The same, of a queue pair that has closed since: the answer may be on its way, or will never come.
    LastAnswer {
        deadline: Option<Instant>,
    },
}

/// What an attempt came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Done(u32),
    Room,
    Rnr,
    Silent,
    Answer,
    /// Data that the peer has been asked for, and that could be fetched.
    Data,
    /// Own keys that others still use; looked at again.
    Turn,
    Held(Instant),
    /// A datagram's way cannot be made for want of a resource; it has not been posted.
    Refused(Errno),
}

impl Work {
    /// Whether it is a READ so long that it may be better fetched if it crosses one of the peer's.
    pub fn may_cross(&self) -> bool {
        self.opcode == IBV_WR_RDMA_READ && may_cross(self.len)
    }

    /// Whether it is better fetched if it crosses one of the peer's, whose processor is far or not.
    pub fn is_long_crossing(&self, is_far: bool) -> bool {
        self.may_cross() && (is_far || self.len >= LEAST_CROSSING)
    }

    /// Whether the local buffers are written to: READ, and the atomics that fetch, which are the next two codes.
    #[inline]
    pub fn fetches(&self) -> bool {
        self.opcode.wrapping_sub(IBV_WR_RDMA_READ) <= IBV_WR_ATOMIC_FETCH_AND_ADD - IBV_WR_RDMA_READ
    }

    /// The time of one that is timed begins, if it has not.
    #[inline]
    pub fn begin(&mut self, now: Instant) {
        if self.timed.is_some() {
            self.since.get_or_insert(now);
        }
    }

    /// Data is still to be handed to the peer, which is given it.
    pub fn gives_on(&self) -> bool {
        self.may_give && self.asked && self.sent < self.len
    }

    /// Data has been handed to the peer, which has not said yet what has become of it.
    pub fn is_given(&self) -> bool {
        self.may_give && self.asked && !self.moved
    }

    /// Something of it has reached the peer: it is finished even when the QP drains.
    pub fn begun(&self) -> bool {
        self.receive.is_some() || self.asked || self.moved || self.unconfirmed
    }
}

impl Wait {
    /// Whether the peer owes an answer.
    pub fn is_for_answer(&self) -> bool {
        matches!(self, Wait::Answer | Wait::LastAnswer { .. } | Wait::Data { .. } | Wait::Asked)
    }

    /// Until when data is waited for that could be fetched.
    pub fn until(&self) -> Option<Instant> {
        if let Wait::Data { until, .. } = self { Some(*until) } else { None }
    }

    /// Whether the program looks around now and then only, while it waits for data: it was elsewhere before two looks. `was_elsewhere`: before
    /// one that has not been counted yet.
    pub fn is_now_and_then(&self, was_elsewhere: bool) -> bool {
        matches!(self, Wait::Data { elsewhere, .. } if elsewhere.saturating_add(was_elsewhere.into()) >= 2)
    }
}

impl std::fmt::Debug for Queued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queued(wr_id {:#x})", self.work.wr_id)
    }
}

impl Queued {
    /// Whether it waits for the answer to the request of this number.
    pub fn awaits(&self, number: u32) -> bool {
        self.wait.is_for_answer() && self.work.number == number && !self.work.recalled
    }

    /// A request as it waits: inline payload is copied, for the program may reuse its buffer.
    pub fn new(work: Work, sges: &[ibv_sge], wait: Wait, rnr_left: u8) -> Queued {
        if work.flags & IBV_SEND_INLINE == 0 {
            return Queued { work, sges: sges.into(), _inline: Box::default(), wait, rnr_left, fate: None };
        }
        Queued::with_copy(work, sges, wait, rnr_left)
    }

    /// The same request with a copy of its payload.
    pub fn with_payload(&self) -> Queued {
        let work = Work { flags: self.work.flags | IBV_SEND_INLINE, ..self.work };
        Queued::with_copy(work, &self.sges, self.wait, self.rnr_left)
    }

    fn with_copy(work: Work, sges: &[ibv_sge], wait: Wait, rnr_left: u8) -> Queued {
        let mut inline = vec![0u8; work.len as usize].into_boxed_slice();
        gather(sges, 0, work.len as usize, inline.as_mut_ptr());
        let sges = Sges::One(ibv_sge { addr: inline.as_ptr() as u64, length: work.len, lkey: 0 });
        Queued { work, sges, _inline: inline, wait, rnr_left, fate: None }
    }
}

/// What will happen to a request; decided when it is posted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fate {
    /// When it may go out.
    pub not_before: Option<Instant>,
    /// No receive is found for so long, from the first try on.
    pub storm: Option<Duration>,
    /// When that ends; set by the first try.
    pub storm_ends: Option<Instant>,
    /// Completion status without any try.
    pub ends_with: Option<u32>,
    /// UD: it completes and is not sent.
    pub lost: bool,
    /// UD: it is sent twice.
    pub twice: bool,
    /// UD: it is held back, to be overtaken.
    pub late: bool,
}

/// A datagram that is completed and has not been sent: it waits to be overtaken.
#[derive(Debug)]
pub struct Held {
    /// The request.
    pub queued: Queued,
    /// When it is sent at the latest.
    pub due: Instant,
}

const _: () = {
    assert!(IBV_WR_ATOMIC_CMP_AND_SWP == IBV_WR_RDMA_READ + 1);
    assert!(IBV_WR_ATOMIC_FETCH_AND_ADD == IBV_WR_RDMA_READ + 2);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reads_cross_and_shorter_ones_between_far_processors() {
        let of = |opcode, len| Work { opcode, len, ..Work::default() };
        let read = |len| of(IBV_WR_RDMA_READ, len);
        let crosses =
            |work: Work| [work.may_cross(), work.is_long_crossing(false), work.is_long_crossing(true)];
        assert_eq!(crosses(read(LEAST_CROSSING)), [true; 3]);
        assert_eq!(crosses(read(LEAST_CROSSING - 1)), [true, false, true]);
        assert_eq!(crosses(read(LEAST_CROSSING_FAR)), [true, false, true]);
        assert_eq!(crosses(read(LEAST_CROSSING_FAR - 1)), [false; 3]);
        assert_eq!(crosses(of(IBV_WR_RDMA_WRITE, LEAST_CROSSING)), [false; 3]);
    }
}
