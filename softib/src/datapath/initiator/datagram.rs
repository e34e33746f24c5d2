//! Datagrams (UD): they find a port, a queue pair and a receive, or they are lost.
//!
//! Room in the ring is another matter: a wire would hold more than a ring does, so a datagram waits for it at the head of its SQ
//! while the target lives ([`super::unconnected`]). It is lost only if the target has not read for [`PATIENCE`], so that a stopped
//! process does not keep a queue pair from all others. Half of a ring is for connected queue pairs only: they have a
//! receive for each message in it, while datagrams that have not been read yet hold receives back.
//!
//! ```text
//!   cell payload   | envelope 4 | route header 40, if there is one | data |
//! ```
//!
//! The headers that a wire would carry travel in front of the data, so the receiver reports what the sender really is.

use super::transit::solicited;
use crate::datapath::pieces::rung;
use crate::fabric::address::Address;
use crate::fabric::{Ports, pkeys_match};
use crate::objects::peer::Peer;
use crate::objects::qp::Qp;
use crate::objects::qp_state::is_receiving;
use crate::objects::sges::gather;
use crate::objects::work::{GRH_LEN, Step, UD_MTU, Work};
use crate::shm::card::{self, Card};
use crate::shm::cell::{Envelope, Head, destination, flag, op};
use crate::shm::qptable::{self, Public};
use crate::shm::ring::FRAGMENT_MAX;
use crate::shm::rq::{self, Claim};
use rdma_sys::*;
use std::time::Duration;

/// How long a datagram waits for a target that lives and does not read.
const PATIENCE: Duration = Duration::from_secs(2);

/// A datagram on its way.
pub struct Datagram<'a> {
    pub(super) from: &'a Qp,
    pub(super) qkey: u32,
    /// Where it goes.
    pub to: Address,
    pub(super) work: &'a Work,
    pub(super) sges: &'a [ibv_sge],
}

impl Datagram<'_> {
    /// The port that it goes out at.
    pub fn port(&self) -> u8 {
        self.from.port
    }

    /// Puts it into the ring of a peer, for its queue pair `index` at `port`; at any port on our wire for a group. None: that one
    /// does not get it.
    pub fn offer(
        &self,
        ports: &Ports,
        peer: &mut Peer,
        index: usize,
        port: Option<u8>,
        bells: &mut u64,
    ) -> Option<Step> {
        let (work, to, own) = (self.work, &self.to, ports.card(self.from.port));
        if !qptable::exists(&peer.map, index) {
            return None;
        }
        let (_, view) = qptable::look_up(&peer.map, index)?;
        let there = match port {
            Some(port) => view.port == port,
            None => peer.cards.get(usize::from(view.port)).is_some_and(|c| c.link_layer == own.link_layer),
        };
        if !there || !self.is_admitted(ports, peer, &view) {
            return None;
        }
        if !peer.ring.has_room_to_spare(headers(to) + work.len as usize) {
            return (peer.ring.stalled() < PATIENCE).then_some(Step::Room);
        }
        let place = match peer.place_of(&view) {
            Ok(place) => place?,
            Err(error) => return Some(Step::Refused(error)),
        };
        let Claim::Got { pos, len } = place.claim(peer.ring.index()) else { return None };
        let (dst, src_qpn) = (destination(index, view.generation), self.from.num);
        let fits = len & rq::BAD == 0 && len >= work.len.saturating_add(GRH_LEN);
        let pushed = if fits {
            let head = Head { op: op::DATAGRAM, dst, src_qpn, pos, ..head_of(work, to) };
            peer.ring.push(head, |at| fill(at, own, to, work, self.sges))
        } else {
            peer.ring.push(Head { op: op::TOO_LONG, dst, src_qpn, pos, ..Head::default() }, |_| ())
        };
        rung(pushed, peer, bells);
        Some(Step::Done(IBV_WC_SUCCESS))
    }

    /// Whether the queue pair that was named takes it; the port counts the ones with a wrong key.
    fn is_admitted(&self, ports: &Ports, peer: &Peer, view: &Public) -> bool {
        if !is_receiving(view.state) || view.kind != IBV_QPT_UD {
            return false;
        }
        if !pkeys_match(ports.pkey(self.from.attr.pkey_index), view.pkey as u16) {
            card::count_bad_pkey(&peer.map, view.port);
            return false;
        }
        // A Q_Key with the upper bit set stands for the sending QP's own (IBTA 10.2.5).
        let qkey = if self.qkey >> 31 != 0 { self.from.attr.qkey } else { self.qkey };
        if view.qkey != qkey {
            card::count_bad_qkey(&peer.map, view.port);
            return false;
        }
        true
    }
}

/// Bytes in front of the data.
fn headers(to: &Address) -> usize {
    Envelope::LEN + if to.global { GRH_LEN as usize } else { 0 }
}

fn head_of(work: &Work, to: &Address) -> Head {
    let imm = if work.opcode == IBV_WR_SEND_WITH_IMM { flag::IMM } else { 0 };
    let grh = if to.global { flag::GRH } else { 0 };
    let flags = flag::FIRST | flag::LAST | solicited(work) | imm | grh;
    Head { flags, len: headers(to) as u32 + work.len, imm: work.imm, ..Head::default() }
}

/// Writes headers and data to the place in the ring.
fn fill(at: *mut u8, port: &Card, to: &Address, work: &Work, sges: &[ibv_sge]) {
    let envelope = Envelope { slid: port.lid, sl: to.sl }.emit();
    let immediate = if work.opcode == IBV_WR_SEND_WITH_IMM { 4 } else { 0 };
    // SAFETY: push hands out room for the length in the head: the headers and work.len bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(envelope.as_ptr(), at, envelope.len());
        if to.global {
            let grh = to.header(port, work.len as usize + immediate);
            std::ptr::copy_nonoverlapping(grh.as_ptr(), at.add(Envelope::LEN), grh.len());
        }
        gather(sges, 0, work.len as usize, at.add(headers(to)));
    }
}

const _: () = assert!(UD_MTU as usize + GRH_LEN as usize + Envelope::LEN <= FRAGMENT_MAX);
