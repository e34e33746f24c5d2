//! What the transport does besides, where endpoints share send queue pairs, and processes that die.

use cpc::xrc::machine::PathId;
use cpc::{ConnectCause, ConnectError, EndpointCommand, EndpointKey};

use super::World;
use crate::sim::process::Presence;

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Next,
    /// Taken for one that has come before, and dropped.
    Again,
    Gap,
}

impl World {
    pub fn abandon(&mut self, me: usize, peer: usize) {
        let key = self.processes[me].current[&peer];
        self.processes[me].machine.command(key, EndpointCommand::Abandon, self.net.now);
        self.drain(me);
    }

    /// Sends a message to a peer to which there is a usable connection; what its end makes of it.
    pub fn say(&mut self, me: usize, peer: usize) -> Heard {
        let (key, there) = (self.processes[me].current[&peer], self.processes[peer].current[&me]);
        let from = self.processes[me].ends.get_mut(&key).unwrap();
        let number = from.next;
        from.next += 1;
        let to = self.processes[peer].ends.get_mut(&there).unwrap();
        match number.cmp(&to.expected) {
            std::cmp::Ordering::Less => Heard::Again,
            std::cmp::Ordering::Equal => {
                to.expected += 1;
                Heard::Next
            }
            std::cmp::Ordering::Greater => Heard::Gap,
        }
    }

    /// Its way is broken: the endpoint needs another.
    fn renew(&mut self, me: usize, key: EndpointKey) {
        let process = &mut self.processes[me];
        process.ends.get_mut(&key).unwrap().route = None;
        process.machine.command(key, EndpointCommand::Renew, self.net.now);
    }

    /// Every connected endpoint sends something. Where the device says that it cannot, the
    /// connection is renewed.
    pub fn use_all(&mut self) {
        for me in 0..self.processes.len() {
            let keys: Vec<EndpointKey> = self.processes[me].ends.keys().copied().collect();
            for key in keys {
                let end = &self.processes[me].ends[&key];
                if end.route.is_some() && !self.leads_on(me, end) {
                    self.renew(me, key);
                    self.drain(me);
                }
            }
        }
    }

    /// A work request of the endpoint `culprit` has failed: the endpoint is lost, the others of its
    /// path are to go on.
    pub fn breaks(&mut self, me: usize, path: PathId, culprit: EndpointKey) {
        let process = &mut self.processes[me];
        if let Some(sender) = process.own.senders.get_mut(&path) {
            sender.broken = true;
        }
        let peer = process.ends[&culprit].peer;
        let on_path =
            process.ends.iter().filter(|(_, end)| end.route.is_some_and(|route| route.path == path));
        let others: Vec<EndpointKey> = on_path.map(|(&key, _)| key).filter(|&key| key != culprit).collect();
        others.into_iter().for_each(|key| self.renew(me, key));
        self.drain(me);
        self.remove(me, peer);
    }

    /// The process is gone, and its handles. A process that sends to it notices, and goes on with
    /// the others of its node.
    pub fn kill(&mut self, victim: usize) {
        self.set_presence(victim, Presence::Dead);
        self.release(|(holder, _)| holder == victim);
        for me in (0..self.processes.len()).filter(|&me| me != victim) {
            let path = self.end(me, victim).and_then(|end| end.route).map(|route| route.path);
            if let Some(path) = path.filter(|_| self.processes[me].is_alive()) {
                self.no_answer(me, path, self.processes[me].current[&victim]);
            }
        }
    }

    /// The peer of a connected endpoint is dead; a message has shown that.
    pub(super) fn no_answer(&mut self, me: usize, path: PathId, key: EndpointKey) {
        let peer = self.processes[self.processes[me].ends[&key].peer].name;
        let cause = ConnectCause::Verbs("no answer".to_owned());
        self.processes[me].failures.push(ConnectError { peer, cause });
        self.breaks(me, path, key);
    }
}
