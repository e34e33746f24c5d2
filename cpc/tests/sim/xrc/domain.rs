//! What the driver does for the machines, and what a domain keeps.

use std::collections::HashSet;

use cpc::wire::CommId;
use cpc::xrc::DomainId;
use cpc::xrc::machine::{Call, JoinError};
use cpc::{EndpointCommand, EndpointKey};
use verbs::{Psn, Qpn};

use super::{Mad, Route, World};

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

impl World {
    pub(super) fn perform(&mut self, me: usize, call: Call) {
        let now = self.net.now;
        match call {
            Call::MakeSender { path } => {
                let sender = Sender { qpn: Qpn(self.number()), to: None, broken: false };
                self.processes[me].machine.sender_made(path, Ok(sender.qpn), now);
                self.processes[me].own.senders.insert(path, sender);
            }
            Call::RaiseSender { path, receiver, psn, .. } => {
                let process = &mut self.processes[me];
                let sender = process.own.senders.get_mut(&path).expect("it was made");
                assert!(sender.to.replace((receiver, psn)).is_none(), "a send queue pair goes up once");
                process.machine.sender_raised(path, Ok(()), now);
            }
            Call::DropSender { path } => {
                let gone = self.processes[me].own.senders.remove(&path);
                assert!(gone.is_some(), "it is given back once");
            }
            Call::Join { link, epoch, receiver, sender, psn, .. } => {
                let outcome = self.join(me, link, receiver, sender, psn);
                self.processes[me].machine.joined(link, epoch, outcome, now);
            }
            Call::Release { link } => self.release(|handle| handle == (me, link)),
            Call::Send { to, datagram } => {
                let lid = self.processes[me].address.listener.lid;
                self.transmit(me, to.qpn, Mad::new(lid, |bytes| datagram.emit(bytes)));
            }
            Call::Route { key, path, srqs, label } => self.routed(me, key, Route { path, srqs, label }),
        }
    }

    fn routed(&mut self, me: usize, key: EndpointKey, route: Route) {
        let process = &mut self.processes[me];
        let Some(end) = process.ends.get_mut(&key) else { return };
        if process.own.senders[&route.path].broken {
            // It broke before this endpoint heard of it.
            return process.machine.command(key, EndpointCommand::Renew, self.net.now);
        }
        end.route = Some(route);
        let peer = end.peer;
        self.check_connected(me, key);
        if !self.processes[peer].is_alive() {
            self.no_answer(me, route.path, key);
        }
    }

    fn join(
        &mut self,
        me: usize,
        link: CommId,
        receiver: Option<Qpn>,
        sender: Qpn,
        psn: Psn,
    ) -> Result<Qpn, JoinError> {
        let domain = self.processes[me].address.domain;
        let number = receiver.unwrap_or_else(|| {
            let number = Qpn(self.number());
            self.shared.insert(number, Receiver { domain, sender, psn, handles: HashSet::new() });
            number
        });
        let there = self.shared.get_mut(&number).filter(|known| known.domain == domain);
        let there = there.ok_or(JoinError::Gone)?;
        assert_eq!((there.sender, there.psn), (sender, psn), "a handle of somebody else's queue pair");
        // A handle that this one takes the place of goes.
        there.handles.insert((me, link));
        for (_, other) in self.shared.iter_mut().filter(|(other, _)| **other != number) {
            other.handles.remove(&(me, link));
        }
        self.shared.retain(|_, receiver| !receiver.handles.is_empty());
        Ok(number)
    }

    pub(super) fn release(&mut self, which: impl Fn((usize, CommId)) -> bool) {
        for receiver in self.shared.values_mut() {
            receiver.handles.retain(|handle| !which(*handle));
        }
        self.shared.retain(|_, receiver| !receiver.handles.is_empty());
    }
}
