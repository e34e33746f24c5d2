//! What must hold.
//!
//! Of a process that has something to send to another: it has a send queue pair that leads to a
//! receive queue pair of the other's domain, with one PSN at both ends; the other has a handle of
//! that, so that it stays as long as the other does; it knows the other's SRQs and what the other
//! calls it; and what it sends is not taken for something else. Or it has been told of a failure.

use std::collections::HashSet;

use cpc::{ConnectError, EndpointKey};

use super::{Heard, World, Xrc};
use crate::sim::Odds;
use crate::sim::process::End;

impl World {
    /// The send queue pair is up, and so is what it leads to; the SRQs are there.
    pub(super) fn leads_on(&self, me: usize, end: &End<Xrc>) -> bool {
        let (process, peer) = (&self.processes[me], &self.processes[end.peer]);
        let Some(route) = end.route else { return false };
        let Some(sender) = process.own.senders.get(&route.path).filter(|sender| !sender.broken) else {
            return false;
        };
        let Some((receiver, psn)) = sender.to else { return false };
        let Some(known) = self.shared.get(&receiver) else { return false };
        known.sender == sender.qpn
            && known.psn == psn
            && known.domain == peer.address.domain
            && route.srqs == peer.own.srqs
    }

    pub fn is_usable(&self, me: usize, peer: usize) -> bool {
        let Some(end) = self.end(me, peer).filter(|end| self.leads_on(me, end)) else {
            return false;
        };
        let Some(route) = end.route else { return false };
        let there = self.processes[peer].current.get(&me);
        there.is_some_and(|key| key.index == route.label) && self.holds(peer, me, end)
    }

    /// The peer has a handle of what the end leads to.
    fn holds(&self, peer: usize, me: usize, end: &End<Xrc>) -> bool {
        let receiver = end.route.and_then(|route| self.processes[me].own.senders[&route.path].to);
        let known = receiver.and_then(|(receiver, _)| self.shared.get(&receiver));
        known.is_some_and(|known| known.handles.iter().any(|(holder, _)| *holder == peer))
    }

    /// At the moment that an endpoint is said to be connected: what was said is true, if no process
    /// has begun anew since.
    pub(super) fn check_connected(&self, me: usize, key: EndpointKey) {
        let end = &self.processes[me].ends[&key];
        let peer = end.peer;
        if self.spawned as usize == self.processes.len() && self.processes[peer].is_alive() {
            assert!(self.leads_on(me, end), "{me} was told that it can send to {peer}, and cannot");
            assert!(self.holds(peer, me, end), "{peer} holds no handle of what {me} sends to");
        }
    }

    /// Every message of a process that can send is taken for what it is.
    pub fn say_all(&mut self) {
        for me in 0..self.processes.len() {
            for peer in self.processes[me].wants.clone() {
                if self.is_usable(me, peer) {
                    assert_eq!(self.say(me, peer), Heard::Next, "a message of {me} to {peer}");
                }
            }
        }
    }

    /// A process can send to each peer that it wants to send to, or has been told that it cannot.
    pub fn check_told(&mut self) {
        self.check_wants(|world, me, peer| world.has_report_of(me, peer));
    }

    /// Where processes are away for longer than requests to them are repeated, only one of the two,
    /// the requester, may have been told.
    pub fn check_told_somewhere(&mut self) {
        self.check_wants(|world, me, peer| world.has_report_of(me, peer) || world.has_report_of(peer, me));
    }

    fn check_wants(&mut self, is_known: impl Fn(&World, usize, usize) -> bool) {
        for me in 0..self.processes.len() {
            for &peer in &self.processes[me].wants {
                let fine = self.is_usable(me, peer) || is_known(self, me, peer);
                assert!(fine, "{me} cannot send to {peer}, and was not told");
            }
        }
        self.say_all();
    }

    /// Every living process can send to the living ones that it wants to send to, over one send
    /// queue pair for each node; and no connection to a living process was reported as failed.
    pub fn check(&mut self) {
        for (me, process) in self.processes.iter().enumerate().filter(|(_, process)| process.is_alive()) {
            let living = process.wants.iter().filter(|peer| self.processes[**peer].is_alive());
            let mut nodes = HashSet::new();
            for &peer in living {
                assert!(self.is_usable(me, peer), "{me} cannot send to {peer}: {:?}", process.failures);
                nodes.insert(self.processes[peer].own.node);
            }
            assert_eq!(process.own.senders.len(), nodes.len(), "{me}: send queue pairs and nodes");
            assert_eq!(process.machine.paths(), nodes.len());
            let is_dead = |failure: &ConnectError| !self.processes[self.by_name[&failure.peer]].is_alive();
            assert!(process.failures.iter().all(is_dead), "{me} has failed: {:?}", process.failures);
        }
        self.say_all();
    }

    /// All processes leave: no queue pair and no handle is left.
    pub fn close(mut self) {
        self.net.odds = Odds::default();
        for me in 0..self.processes.len() {
            self.processes[me].wants.clear();
            self.processes[me].current.clear();
            self.processes[me].machine.close(self.net.now);
            self.drain(me);
        }
        self.run_until_quiet();
        for process in self.processes.iter().filter(|process| process.is_alive()) {
            assert!(process.own.senders.is_empty() && process.machine.leaving() == 0);
        }
        assert_eq!(
            self.shared.values().flat_map(|receiver| &receiver.handles).count(),
            0,
            "handles are left"
        );
    }
}
