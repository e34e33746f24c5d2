//! From a REQ to the endpoint that it belongs to. `exchange` has the way of all other datagrams.
//!
//! A REQ of a later incarnation than the modex said is valid: its sender has ended MPI and begun it again, and the modex has given us the
//! address of its former incarnation. The REQ says where it is now, and that is believed.

use std::time::Instant;

use super::Machine;
use super::state::{Input, RemoteQp};
use crate::core::parking::MAX_PARKED;
use crate::exchange::Received;
use crate::wire::{CommId, Datagram, Dreq, Incarnation, Message, Queues, Reason, Rej, Req, Source};

impl Machine {
    /// A REQ for this process: it finds its endpoint by the name of its sender.
    pub(super) fn route_known_req(&mut self, received: &Received<Req>, now: Instant) {
        let Received { req, from, incarnation } = received;
        let slot = self.slot_of_peer(req.hello.name);
        if let Some(slot) = slot {
            let known = self.links[slot].address.incarnation;
            if known.is_newer_than(*incarnation) {
                // Of an incarnation that has ended: no process waits for an answer.
                return self.stats.stale += 1;
            }
            if known != *incarnation {
                self.learn_address(slot, received);
            }
        }
        match slot {
            Some(slot) if self.links[slot].address.qpn != from.qpn => self.stats.foreign += 1,
            Some(slot) if self.links[slot].is_with(req.head.local) => self.input(slot, &Input::ReqDup, now),
            _ if self.is_stale(req, *incarnation) || self.displaces(slot, req, now) => {
                self.reject_stale(received);
            }
            _ if self.is_unlike(&req.hello, &req.queues) => self.route_unlike(slot, received, now),
            Some(slot) => self.input(slot, &Input::ReqNew(received), now),
            None => self.park(received, now),
        }
    }

    /// A REQ of a process whose queues are not ours; with an endpoint of it, that one can't come up.
    fn route_unlike(&mut self, slot: Option<usize>, received: &Received<Req>, now: Instant) {
        self.stats.layout_refused += 1;
        match slot {
            Some(slot) => self.input(slot, &Input::ReqUnlike(&received.req), now),
            None => {
                self.note_misfit(received);
                self.reject_req(received, self.misfit_reason());
            }
        }
    }

    /// A REQ may name a queue pair that another peer's connection still has: then that peer's is gone, and so is that connection (IBTA
    /// 12.9.8.3.1). By the book the REQ is rejected as stale; its sender asks again, and finds the place free.
    fn displaces(&mut self, slot: Option<usize>, req: &Req, now: Instant) -> bool {
        let holder = self.own.remote_qps.get(&RemoteQp::of_req(req)).copied();
        let holder = holder.filter(|&holder| Some(holder) != slot);
        if let Some(holder) = holder {
            self.input(holder, &Input::Displaced, now);
        }
        holder.is_some()
    }

    /// The peer has a later incarnation than the modex said: from now on it is where its request comes from.
    fn learn_address(&mut self, slot: usize, received: &Received<Req>) {
        self.stats.relearned += 1;
        let (path, address) = (&received.req.head.path, &mut self.links[slot].address);
        (address.incarnation, address.qpn) = (received.incarnation, received.from.qpn);
        (address.lid, address.gid, address.our_gid) = (path.local_lid, path.local_gid, Some(path.remote_gid));
    }

    /// True for a request that its sender has made before the last one that was taken up here.
    fn is_stale(&self, req: &Req, incarnation: Incarnation) -> bool {
        let seen = self.own.seen.get(&req.hello.name);
        seen.is_some_and(|seen| seen.incarnation == incarnation && !req.head.local.is_newer_than(seen.last))
    }

    /// Remembers that this incarnation of a process has other queues: its request is refused at once, and its endpoint, should there be one
    /// later, fails.
    fn note_misfit(&mut self, received: &Received<Req>) {
        let (peer, misfits) = (received.req.hello.name, &mut self.own.misfits);
        if misfits.len() < MAX_PARKED || misfits.contains_key(&peer) {
            misfits.insert(peer, (received.incarnation, received.req.queues));
        }
    }

    /// The other queues of the link's peer, if it is known to have some.
    pub(super) fn known_misfit(&self, slot: usize) -> Option<Queues> {
        let link = &self.links[slot];
        let &(incarnation, theirs) = self.own.misfits.get(&link.peer)?;
        (!link.address.incarnation.is_newer_than(incarnation)).then_some(theirs)
    }

    /// The sender of a REQ waits no longer. It has no id of ours: the exchange is found by its own. False if this is no such REJ.
    pub(super) fn take_withdrawal(&mut self, from: Source, datagram: &Datagram, now: Instant) -> bool {
        let Message::Rej(rej @ Rej { remote: CommId::NONE, reason: Reason::Timeout, .. }) = &datagram.message
        else {
            return false;
        };
        let sender = datagram.from;
        let parked =
            self.parked.find(|parked| parked.incarnation == sender && parked.req.head.local == rej.local);
        if parked.and_then(|peer| self.parked.take(peer, &mut self.timers)).is_some() {
            return true;
        }
        let found = self.links.iter().find(|(_, link)| {
            let of_sender = (link.address.incarnation, link.address.qpn) == (sender, from.qpn);
            of_sender && link.is_with(rej.local)
        });
        match found.map(|(slot, _)| slot) {
            Some(slot) => self.input(slot, &Input::Rej(rej), now),
            None => self.stats.stale += 1,
        }
        true
    }

    /// A DREQ names the queue pair of ours that it is about (IBTA 12.6.10).
    pub(super) fn is_ours(&self, slot: usize, dreq: &Dreq) -> bool {
        self.links[slot].qpns.is_none_or(|qpns| qpns.first() == dreq.remote_qpn)
    }
}
