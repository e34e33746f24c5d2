//! What a process of the world has, and what a domain keeps.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use cpc::wire::Source;
use cpc::wire::domain::Address;
use cpc::wire::xrc::SrqNums;
use cpc::wire::{CommId, MAD_LEN};
use cpc::xrc::DomainId;
use cpc::xrc::machine::{Machine, PathId};
use cpc::{EndpointKey, ProcessName};
use verbs::{Psn, Qpn};

/// A receive queue pair of a domain.
pub struct Receiver {
    pub domain: DomainId,
    pub sender: Qpn,
    pub psn: Psn,
    /// Of which processes, and how these name them.
    pub handles: HashSet<(usize, CommId)>,
}

/// A send queue pair, and what it leads to once it is up.
pub struct Sender {
    pub qpn: Qpn,
    pub to: Option<(Qpn, Psn)>,
    /// In the error state.
    pub broken: bool,
}

/// What a process was told when it was connected.
#[derive(Clone, Copy)]
pub struct Route {
    pub path: PathId,
    pub srqs: SrqNums,
    pub label: u32,
}

pub struct End {
    pub peer: usize,
    pub route: Option<Route>,
    /// The numbers of the next message to the peer and of the next one from it.
    pub next: u64,
    pub expected: u64,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Next,
    /// Taken for one that has come before, and dropped.
    Again,
    Gap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    Here,
    /// It does nothing, and what arrives waits.
    Stopped,
    /// It does nothing, and what arrives is lost.
    Away,
    Dead,
}

pub struct Process {
    pub machine: Machine,
    pub name: ProcessName,
    pub node: usize,
    pub address: Address,
    /// What others get to know when they ask where it is.
    pub published: Address,
    pub srqs: SrqNums,
    pub ends: HashMap<EndpointKey, End>,
    pub current: BTreeMap<usize, EndpointKey>,
    pub wants: BTreeSet<usize>,
    pub presence: Presence,
    /// Busy elsewhere: it does not hear of those it has no endpoint of.
    pub deaf_to_strangers: bool,
    pub inbox: Vec<(Source, Box<[u8; MAD_LEN]>)>,
    /// The processes that it could not reach, and why.
    pub failures: Vec<(usize, String)>,
    pub senders: HashMap<PathId, Sender>,
}

impl Process {
    pub fn new(machine: Machine, name: ProcessName, node: usize, address: Address, srqs: SrqNums) -> Process {
        Process {
            machine,
            name,
            node,
            address,
            published: address,
            srqs,
            ends: HashMap::new(),
            current: BTreeMap::new(),
            wants: BTreeSet::new(),
            presence: Presence::Here,
            deaf_to_strangers: false,
            inbox: Vec::new(),
            failures: Vec::new(),
            senders: HashMap::new(),
        }
    }

    pub fn is_alive(&self) -> bool {
        self.presence != Presence::Dead
    }

    pub fn is_here(&self) -> bool {
        self.presence == Presence::Here
    }

    /// The end that stands for the peer now.
    pub fn end(&self, peer: usize) -> Option<&End> {
        self.current.get(&peer).and_then(|key| self.ends.get(key))
    }
}
