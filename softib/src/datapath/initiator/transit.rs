//! What every request of a connected queue pair needs: the process behind it, a receive of its, and the word that it has arrived.

use crate::objects::peer::{Link, Peer};
use crate::objects::peers::{Absent, Peers};
use crate::objects::work::{Step, Work};
use crate::shm::cell::{flag, op};
use crate::shm::rq::{self, Claim, Place};
use rdma_sys::*;

/// What becomes of a request all of which is in the ring: it has been acknowledged if the receiver
/// is still open, for the process that closes it looks into the ring after that (`engine::ending`).
#[inline]
pub fn confirm(link: &mut Link, peer: &Peer, me: (u32, u64), work: &mut Work) -> Step {
    if link.is_open(peer, me) {
        return Step::Done(IBV_WC_SUCCESS);
    }
    (work.unconfirmed, work.in_ring) = (true, peer.ring.sent());
    if was_taken_in(link, peer, work) { Step::Done(IBV_WC_SUCCESS) } else { Step::Silent }
}

/// What has become of a request that was in the ring when the receiver was not open any more.
#[cold]
pub fn outcome(peers: &mut Peers, link: &mut Link, me: (u32, u64), work: &Work) -> Step {
    if peers.attached(link.slot).is_some_and(|peer| was_taken_in(link, peer, work)) {
        return Step::Done(IBV_WC_SUCCESS);
    }
    match reach(peers, link, me) {
        Ok(_) => Step::Done(IBV_WC_SUCCESS),
        Err(step) => step,
    }
}

/// Whether the receiver had found all of a request when it ended. Its word for that outlives its process.
#[cold]
fn was_taken_in(link: &Link, peer: &Peer, work: &Work) -> bool {
    let taken = link.taken_at_end(peer);
    taken.is_some_and(|taken| taken.wrapping_sub(work.in_ring) <= i32::MAX as u32)
}

/// The process behind a connected queue pair, if it lives and its queue pair takes messages; else what becomes of the request.
#[inline]
pub fn reach<'a>(peers: &'a mut Peers, link: &mut Link, me: (u32, u64)) -> Result<&'a mut Peer, Step> {
    match peers.connected(link) {
        Ok(peer) if link.is_open(peer, me) => Ok(peer),
        Ok(_) if link.is_short => Err(Step::Done(IBV_WC_LOC_QP_OP_ERR)),
        Ok(_) | Err(Absent::Never) => Err(Step::Silent),
        Err(Absent::Gone) => Err(Step::Done(IBV_WC_RETRY_EXC_ERR)),
    }
}

/// What came of consuming a receive.
pub enum Claimed {
    Ok(u32),
    Empty,
    /// The receive is consumed, and both sides hear about it.
    Wrong {
        pos: u32,
        op: u8,
        status: u32,
    },
}

impl Claimed {
    /// The receive at `pos` has been consumed for a message of `len` bytes; `room` is its length word.
    #[inline]
    pub fn judge(pos: u32, room: u32, len: u32) -> Claimed {
        if room & rq::BAD != 0 {
            return Claimed::Wrong { pos, op: op::BAD_RECEIVE, status: IBV_WC_REM_OP_ERR };
        }
        if room < len {
            return Claimed::Wrong { pos, op: op::TOO_LONG, status: IBV_WC_REM_INV_REQ_ERR };
        }
        Claimed::Ok(pos)
    }

    /// Consumes a receive of a shared queue, through the ring of this number.
    #[inline]
    pub fn shared(place: Option<&Place>, ring: usize, len: u32) -> Claimed {
        match place.map(|place| place.claim(ring)) {
            Some(Claim::Got { pos, len: room }) => Claimed::judge(pos, room, len),
            _ => Claimed::Empty,
        }
    }
}

/// The cell's flag for a request that asks for a solicited event.
pub fn solicited(work: &Work) -> u8 {
    if work.flags & IBV_SEND_SOLICITED != 0 { flag::SOLICITED } else { 0 }
}
