//! The path of a request: to the queue pair that ours is connected to (RC, UC), or through a receive queue pair of a domain to a shared
//! receive queue (XRC). Messages and requests are the same on both; cells on the second say which receive queue pair they go through.

use super::transit::{self, Claimed};
use crate::datapath::pieces::rung;
use crate::objects::peer::{Link, Peer};
use crate::objects::peers::Peers;
use crate::objects::qp::Qp;
use crate::objects::work::{Step, Work};
use crate::objects::world::Stats;
use crate::shm::cell::{Head, Via, op};
use crate::shm::ring::{Pushed, SendRing};
use rdma_sys::*;

/// What sets the cells of a path apart.
pub trait Path: Copy {
    /// Receives are those of a queue that others consume from, too, whatever its entry says.
    const SHARED: bool;
    /// The operation as cells of this path have it.
    fn op(self, op: u8) -> u8;
    /// Writes into the next cell of a ring what it goes through.
    fn mark(self, ring: &SendRing);
}

/// To the connected queue pair.
#[derive(Debug, Clone, Copy)]
pub struct Rc;

/// Through a receive queue pair of a domain.
#[derive(Debug, Clone, Copy)]
pub struct Xrc(pub Via);

impl Path for Rc {
    const SHARED: bool = false;

    #[inline(always)]
    fn op(self, op: u8) -> u8 {
        op
    }

    #[inline(always)]
    fn mark(self, _: &SendRing) {}
}

impl Path for Xrc {
    const SHARED: bool = true;

    #[inline(always)]
    fn op(self, op: u8) -> u8 {
        op | op::XRC
    }

    #[inline(always)]
    fn mark(self, ring: &SendRing) {
        ring.set_via(self.0);
    }
}

/// A path with both of its ends: the peer process and the queue pair, or SRQ, there as we see it; and who sends.
#[derive(Debug)]
pub struct Way<'a, P> {
    /// RC or XRC.
    pub path: P,
    /// The process.
    pub peer: &'a mut Peer,
    /// The queue pair or SRQ there.
    pub link: &'a mut Link,
    /// The counters of this process.
    pub stats: &'a mut Stats,
    /// What the other end has to be connected to ([`Link::is_open`]): our queue pair and incarnation, or the domain's slot and incarnation.
    pub me: (u32, u64),
    /// Our queue pair, and its type.
    pub src_qpn: u32,
    pub kind: u32,
    /// Our program looks at its rings itself.
    pub polls: bool,
    /// More processes look at theirs than there are processors.
    pub is_crowded: bool,
}

impl<'a> Way<'a, Rc> {
    /// The way to the queue pair that `qp`, of the process `incarnation`, is connected to, if that takes messages; else what becomes of
    /// the request.
    #[inline]
    pub fn to_peer(
        qp: &'a mut Qp,
        peers: &'a mut Peers,
        stats: &'a mut Stats,
        incarnation: u64,
        work: &Work,
    ) -> Result<Way<'a, Rc>, Step> {
        let (me, src_qpn, kind) = ((qp.num, incarnation), qp.num, qp.kind);
        let Some(link) = qp.link.as_mut() else { return Err(Step::Silent) };
        if work.unconfirmed {
            return Err(transit::outcome(peers, link, me, work));
        }
        let (polls, is_crowded) = (peers.polls, peers.is_crowded());
        let peer = transit::reach(peers, link, me)?;
        Ok(Way { path: Rc, peer, link, stats, me, src_qpn, kind, polls, is_crowded })
    }
}

impl<P: Path> Way<'_, P> {
    /// The head of a cell to the other end.
    #[inline(always)]
    pub fn head(&self, op: u8) -> Head {
        Head { op: self.path.op(op), dst: self.link.dst, src_qpn: self.src_qpn, ..Head::default() }
    }

    /// Whether there is room for a cell with `len` bytes of payload.
    #[inline(always)]
    pub fn has_room(&mut self, len: u32) -> bool {
        let has_room = self.peer.ring.has_room(len as usize);
        if !has_room {
            self.call_deputy();
        }
        has_room
    }

    /// A device thread that looks at the ring now and then, in place of its program, is told to do so now.
    #[cold]
    fn call_deputy(&mut self) {
        if self.peer.ring.is_watched() && !self.peer.polls() {
            rung(self.peer.ring.announce(true), self.peer, &mut self.stats.doorbells);
        }
    }

    /// Puts a cell into the ring, where there is room for it.
    #[inline(always)]
    pub fn push(&mut self, head: Head, fill: impl FnOnce(*mut u8)) {
        self.path.mark(&self.peer.ring);
        let pushed = self.peer.ring.push(head, fill);
        rung(pushed, self.peer, &mut self.stats.doorbells);
    }

    /// The same for a cell that carries a request for memory.
    pub fn push_request(&mut self, head: Head, request: &[u8], fill: impl FnOnce(*mut u8)) {
        self.path.mark(&self.peer.ring);
        match self.peer.ring.push_with(head, request, fill) {
            Pushed::Watched if !head.is_patient() => self.call_deputy(),
            pushed => rung(pushed, self.peer, &mut self.stats.doorbells),
        }
    }

    /// Consumes a receive at the other end that has room for `len` bytes.
    #[inline(always)]
    pub fn claim(&mut self, len: u32) -> Claimed {
        if P::SHARED || self.link.view.rq_shared {
            return Claimed::shared(self.link.place.as_ref(), self.peer.ring.index(), len);
        }
        match self.link.consume() {
            Some((pos, room)) => Claimed::judge(pos, room, len),
            None => Claimed::Empty,
        }
    }

    /// What becomes of a request all of which is in the ring.
    #[inline(always)]
    pub fn confirm(&mut self, work: &mut Work) -> Step {
        transit::confirm(self.link, self.peer, self.me, work)
    }

    /// The target refuses a request, as its tables say: it hears of that, for its queue pair ends as well (IBTA 9.9.3, class C). An
    /// unreliable one drops the request and goes on.
    #[cold]
    pub fn refused(&mut self, status: u32) -> Step {
        if self.kind != IBV_QPT_UC {
            if !self.has_room(0) {
                return Step::Room;
            }
            self.push(Head { imm: status, ..self.head(op::REFUSED) }, |_| ());
        }
        Step::Done(status)
    }
}
