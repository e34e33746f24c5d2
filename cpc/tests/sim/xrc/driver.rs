//! What the driver does for the machines, and the domains.

use std::collections::HashSet;

use cpc::EndpointCommand;
use cpc::wire::{CommId, MAD_LEN};
use cpc::xrc::machine::{Action, Call, JoinError};
use verbs::{Psn, Qpn};

use super::process::{Receiver, Route, Sender};
use super::{EndpointKey, News, World};

impl World {
    pub(super) fn drain(&mut self, me: usize) {
        while let Some(action) = self.processes[me].machine.poll_action() {
            self.perform(me, action);
        }
    }

    fn perform(&mut self, me: usize, action: Action) {
        let now = self.net.now;
        match action {
            Action::Call(Call::MakeSender { path }) => {
                let qpn = Qpn(self.number());
                self.processes[me].senders.insert(path, Sender { qpn, to: None, broken: false });
                self.processes[me].machine.sender_made(path, Ok(qpn), now);
            }
            Action::Call(Call::RaiseSender { path, receiver, psn, .. }) => {
                let sender = self.processes[me].senders.get_mut(&path).expect("it was made");
                assert!(sender.to.replace((receiver, psn)).is_none(), "a send queue pair goes up once");
                self.processes[me].machine.sender_raised(path, Ok(()), now);
            }
            Action::Call(Call::DropSender { path }) => {
                assert!(self.processes[me].senders.remove(&path).is_some(), "it is given back once");
            }
            Action::Call(Call::Join { link, epoch, receiver, sender, psn, .. }) => {
                let outcome = self.join(me, link, receiver, sender, psn);
                self.processes[me].machine.joined(link, epoch, outcome, now);
            }
            Action::Call(Call::Release { link }) => self.release(|handle| handle == (me, link)),
            Action::Call(Call::Send { to, datagram }) => {
                let mut bytes = Box::new([0; MAD_LEN]);
                datagram.emit(&mut bytes);
                self.transmit(me, to.qpn, bytes);
            }
            Action::Call(Call::Route { key, path, srqs, label }) => {
                self.connected(me, key, Route { path, srqs, label });
            }
            Action::Connected { .. } => unreachable!("xrc says Route"),
            Action::Failed { key, error } => {
                let process = &mut self.processes[me];
                if let Some(end) = process.ends.get(&key) {
                    process.failures.push((end.peer, error.to_string()));
                }
                self.news.push_back(News::Failed(me, key));
            }
            Action::Disconnected { key } => self.news.push_back(News::Disconnected(me, key)),
            Action::UnknownPeer { peer } => self.news.push_back(News::Unknown(me, peer)),
        }
    }

    fn connected(&mut self, me: usize, key: EndpointKey, route: Route) {
        let process = &mut self.processes[me];
        let Some(end) = process.ends.get_mut(&key) else { return };
        if process.senders[&route.path].broken {
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
            self.receivers.insert(number, Receiver { domain, sender, psn, handles: HashSet::new() });
            number
        });
        let there = self.receivers.get_mut(&number).filter(|known| known.domain == domain);
        let there = there.ok_or(JoinError::Gone)?;
        assert_eq!((there.sender, there.psn), (sender, psn), "a handle of somebody else's queue pair");
        there.handles.insert((me, link));
        // A handle that this one takes the place of goes afterwards.
        for other in self.receivers.iter_mut().filter(|(other, _)| **other != number) {
            other.1.handles.remove(&(me, link));
        }
        self.receivers.retain(|_, receiver| !receiver.handles.is_empty());
        Ok(number)
    }

    /// All handles of a process that is gone.
    pub(super) fn release_all(&mut self, me: usize) {
        self.release(|(holder, _)| holder == me);
    }

    fn release(&mut self, which: impl Fn((usize, CommId)) -> bool) {
        for receiver in self.receivers.values_mut() {
            receiver.handles.retain(|handle| !which(*handle));
        }
        self.receivers.retain(|_, receiver| !receiver.handles.is_empty());
    }
}
