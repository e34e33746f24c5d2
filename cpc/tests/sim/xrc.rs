//! What a process of the simulated xrc world (`xrc_simulator`) has, and what its node's domain keeps.

use std::collections::{BTreeMap, HashMap};

use cpc::ibcm::machine::Source;
use cpc::ibcm::wire::{CommId, MAD_LEN};
use cpc::xrc::address::Address;
use cpc::xrc::machine::{Machine, PathId};
use cpc::xrc::wire::SrqNums;
use cpc::{ConnectError, EndpointKey, ProcessName};
use verbs::{Psn, Qpn};

/// A receive queue pair of a domain.
pub struct Receiver {
    pub node: usize,
    pub sender: Qpn,
    pub psn: Psn,
    pub handles: u32,
}

/// What a process was told when it was connected.
#[derive(Clone)]
pub struct Route {
    pub path: PathId,
    pub srqs: SrqNums,
    pub label: u32,
}

pub struct End {
    pub peer: usize,
    pub address: Address,
    pub route: Option<Route>,
    pub spent: bool,
}

pub struct Process {
    pub machine: Machine,
    pub name: ProcessName,
    pub node: usize,
    pub address: Address,
    pub srqs: SrqNums,
    pub ends: HashMap<EndpointKey, End>,
    pub current: BTreeMap<usize, EndpointKey>,
    pub wants: Vec<usize>,
    /// What arrives waits.
    pub stopped: bool,
    pub inbox: Vec<(Source, Box<[u8; MAD_LEN]>)>,
    pub failures: Vec<ConnectError>,
    pub senders: HashMap<PathId, Qpn>,
    pub handles: HashMap<CommId, Qpn>,
}
