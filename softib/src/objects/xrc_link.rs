//! What an XRC send queue pair knows of the other side: the receive queue pair in its domain, a process that holds it, and the SRQs
//! that have been sent to.

use super::peer::{Link, Route};
use super::peers::Peers;
use super::qp_state::is_receiving;
use super::xrc::{FULL_PKEY, KIND_SRQ};
use crate::errno::Errno;
use crate::fabric::pkeys_match;
use crate::shm::domain::{DomainFile, SharedQp};
use crate::shm::layout::{H_NONCE, QP_BITS, QPS};
use crate::shm::liveness::Liveness;
use crate::shm::map::Map;
use crate::shm::segment;
use crate::shm::shortage::is_shortage;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A send queue pair's view of the other side.
#[derive(Debug)]
pub struct SendLink {
    /// The domain that it sends to.
    pub domain: Arc<DomainFile>,
    /// Of the receive queue pair in its domain.
    pub index: usize,
    /// From our port, in our partition, to the port of the domain's device.
    route: Route,
    /// The receive queue pair's entry as copied last, and its sequence number then.
    pub seen: Option<(u32, SharedQp)>,
    /// The generation we first spoke to; another one is another connection.
    generation: Option<u32>,
    witness: Option<Witness>,
    /// The SRQs sent to, by number, in order.
    queues: Vec<(u32, Link)>,
    /// Where the last one is.
    last: usize,
}

/// A process that holds the receive queue pair, so that it is there as long as this one lives.
#[derive(Debug)]
struct Witness {
    /// Only the header is mapped.
    map: Map,
    file: File,
    live: Liveness,
}

/// What a look at the receive queue pair came to.
pub enum Sight {
    Open,
    /// It does not answer: not connected to us, not in a state to receive, or gone with its last handle.
    Silent,
    /// All who held it are dead.
    Orphaned,
    /// Whether one lives cannot be seen for want of a resource.
    Short,
}

impl SendLink {
    /// The link of a send queue pair to the receive queue pair `qpn` of a domain, not looked at yet.
    pub fn new(domain: Arc<DomainFile>, qpn: u32, route: Route) -> SendLink {
        let index = qpn as usize % QPS;
        SendLink {
            domain,
            index,
            route,
            seen: None,
            generation: None,
            witness: None,
            queues: Vec::new(),
            last: 0,
        }
    }

    /// Takes another partition or path (a change in SQD).
    pub fn repath(&mut self, route: Route) {
        (self.route, self.seen) = (route, None);
    }

    /// The port of the domain's device that it goes to.
    pub fn theirs(&self) -> u8 {
        self.route.theirs
    }

    /// The incarnation of the domain: a peer knows our connection by it.
    pub fn incarnation(&self) -> u64 {
        self.domain.incarnation
    }

    /// The receive queue pair's min_rnr_timer.
    pub fn min_rnr_timer(&self) -> u32 {
        self.seen.as_ref().map_or(0, |(_, qp)| qp.attr.min_rnr_timer.into())
    }

    /// The link to the SRQ `number`, if that has been sent to.
    pub fn known_queue(&self, number: u32) -> Option<&Link> {
        self.position(number).ok().map(|at| &self.queues[at].1)
    }

    /// Where the link to the SRQ `number` is, or would be.
    #[inline(always)]
    fn position(&self, number: u32) -> Result<usize, usize> {
        match self.queues.get(self.last) {
            Some((last, _)) if *last == number => Ok(self.last),
            _ => self.queues.binary_search_by_key(&number, |(known, _)| *known),
        }
    }

    /// The SRQ that has been sent to last; 0: none.
    pub fn last_number(&self) -> u32 {
        self.queues.get(self.last).map_or(0, |(number, _)| *number)
    }

    /// The link to the SRQ that has been sent to last.
    pub fn last(&mut self) -> Option<&mut Link> {
        self.queues.get_mut(self.last).map(|(_, link)| link)
    }

    /// The generation of the receive queue pair, and the link to the SRQ `number`, if it has been sent to before and the receive queue pair is as it
    /// was when it was looked at last.
    #[inline(always)]
    pub fn at_hand(&mut self, number: u32) -> Option<(u32, &mut Link)> {
        let (seq, seen) = self.seen.as_ref()?;
        let witness = self.witness.as_ref()?;
        if self.domain.sequence(self.index) != *seq || !witness.live.is_as_seen(&witness.map) {
            return None;
        }
        let generation = seen.generation;
        self.last = self.position(number).ok()?;
        self.queues.get_mut(self.last).map(|(_, link)| (generation, link))
    }

    /// The links to SRQs of the process with this incarnation.
    pub fn links_to(&mut self, incarnation: u64) -> impl Iterator<Item = &mut Link> {
        self.queues.iter_mut().map(|(_, link)| link).filter(move |link| link.incarnation == incarnation)
    }

    /// Looks at the receive queue pair, as the send queue pair `me` (number, incarnation).
    pub fn look(&mut self, me: (u32, u64)) -> Sight {
        let current = self.seen.as_ref().is_some_and(|(seq, _)| self.domain.sequence(self.index) == *seq);
        if !current && !self.refresh(me) {
            return Sight::Silent;
        }
        if self.witness.as_mut().is_some_and(Witness::lives) {
            return Sight::Open;
        }
        self.find_witness()
    }

    #[cold]
    fn refresh(&mut self, me: (u32, u64)) -> bool {
        self.seen = None;
        // The witness may have lost its handle since: look for one again.
        self.witness = None;
        if self.domain.exists(self.index)
            && self.domain.sequence(self.index) & 1 != 0
            && let Ok(locked) = self.domain.lock()
        {
            // Only a process that died in the middle leaves it so when we have the lock.
            let _ = locked.mend(self.index);
        }
        let Some((seq, qp)) = self.domain.look_up(self.index) else { return false };
        let ports = (qp.attr.port_num.wrapping_sub(1), qp.dest_port) == (self.route.theirs, self.route.ours);
        let ours = qp.attr.dest_qp_num == me.0 && qp.dest_incarnation == me.1 && ports;
        let same = self.generation.is_none_or(|generation| generation == qp.generation);
        if !ours || !same || !is_receiving(qp.attr.qp_state) || !pkeys_match(self.route.pkey, qp.pkey) {
            return false;
        }
        self.generation = Some(qp.generation);
        self.seen = Some((seq, qp));
        true
    }

    #[cold]
    fn find_witness(&mut self) -> Sight {
        let dir = segment::directory();
        let mut short = false;
        self.witness = self.domain.holders(self.index).find_map(|process| {
            let found = Witness::of(&dir, process);
            short |= found.as_ref().is_err_and(|error| is_shortage(*error));
            found.ok().flatten()
        });
        match self.witness {
            Some(_) => Sight::Open,
            None if short => Sight::Short,
            None => Sight::Orphaned,
        }
    }

    /// What stands for the SRQ `number` in the peer process: known to exist, and of our domain.
    pub fn queue(&mut self, peers: &mut Peers, number: u32) -> Option<&mut Link> {
        let ours = (self.domain.slot as u32, self.domain.incarnation);
        let mut place = self.position(number);
        if let Ok(at) = place
            && !is_there(&mut self.queues[at].1, peers, ours)
        {
            self.queues.remove(at);
            place = Err(at);
        }
        if let Err(at) = place {
            let incarnation = peers.reach((number >> QP_BITS) as usize).ok()?.incarnation;
            // An SRQ is at no port: the receive queue pair's counts.
            let route = Route { incarnation, pkey: FULL_PKEY, ..Route::default() };
            let mut link = Link::new(number, route);
            if !is_there(&mut link, peers, ours) {
                return None;
            }
            self.queues.insert(at, (number, link));
        }
        self.last = place.unwrap_or_else(|at| at);
        self.last()
    }
}

fn is_there(link: &mut Link, peers: &mut Peers, domain: (u32, u64)) -> bool {
    let Ok(peer) = peers.connected(link) else { return false };
    link.is_open(peer, domain) && link.view.kind == KIND_SRQ
}

impl Witness {
    /// None: the process is gone.
    fn of(dir: &std::path::Path, (slot, incarnation): (usize, u64)) -> Result<Option<Witness>, Errno> {
        let file = segment::open_slot(dir, slot)?;
        if file.metadata()?.len() == 0 {
            return Ok(None);
        }
        let map = Map::new(&file, HEADER_LEN)?;
        let mut witness = Witness { map, file, live: Liveness::default() };
        let same = witness.map.u64(H_NONCE).load(Ordering::Relaxed) == incarnation;
        Ok((same && witness.lives()).then_some(witness))
    }

    fn lives(&mut self) -> bool {
        self.live.alive(&self.map, &self.file)
    }
}

/// Bytes of a segment that say who has it and whether it lives.
const HEADER_LEN: usize = 4096;
