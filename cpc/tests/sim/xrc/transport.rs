//! What the transport does, and what befalls processes.

use cpc::xrc::DomainId;
use cpc::xrc::machine::PathId;
use cpc::{EndpointCommand, EndpointKey};

use super::{End, Heard, News, Presence, World};

impl World {
    pub fn add(&mut self, me: usize, peer: usize) {
        let (name, address, now) = (self.processes[peer].name, self.processes[peer].published, self.net.now);
        let label = self.number();
        let key = EndpointKey { index: label, generation: 1 };
        let process = &mut self.processes[me];
        process.ends.insert(key, End { peer, route: None, next: 0, expected: 0 });
        process.current.insert(peer, key);
        process.machine.add_endpoint(key, name, address, label, now);
        self.drain(me);
        if self.processes[me].wants.contains(&peer) {
            self.connect(me, peer);
        }
    }

    pub fn meet_all(&mut self) {
        for me in 0..self.processes.len() {
            (0..self.processes.len()).filter(|&peer| peer != me).for_each(|peer| self.add(me, peer));
        }
    }

    pub fn connect(&mut self, me: usize, peer: usize) {
        let process = &mut self.processes[me];
        process.wants.insert(peer);
        if let Some(&key) = process.current.get(&peer) {
            process.machine.command(key, EndpointCommand::Connect, self.net.now);
        }
        self.drain(me);
    }

    pub fn connect_all(&mut self) {
        for me in 0..self.processes.len() {
            (0..self.processes.len()).filter(|&peer| peer != me).for_each(|peer| self.connect(me, peer));
        }
    }

    pub fn remove(&mut self, me: usize, peer: usize) {
        let process = &mut self.processes[me];
        if let Some(key) = process.current.remove(&peer) {
            process.ends.remove(&key);
            process.machine.command(key, EndpointCommand::Remove, self.net.now);
        }
        self.drain(me);
    }

    pub fn replace(&mut self, me: usize, peer: usize) {
        self.remove(me, peer);
        self.add(me, peer);
    }

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

    /// Every connected endpoint sends something. Where the device says that it cannot, the
    /// connection is renewed.
    pub fn use_all(&mut self) {
        for me in 0..self.processes.len() {
            let mut keys: Vec<EndpointKey> = self.processes[me].ends.keys().copied().collect();
            keys.sort_unstable();
            for key in keys {
                let end = &self.processes[me].ends[&key];
                if end.route.is_some() && !self.leads_on(me, end) {
                    self.processes[me].ends.get_mut(&key).unwrap().route = None;
                    self.processes[me].machine.command(key, EndpointCommand::Renew, self.net.now);
                    self.drain(me);
                }
            }
        }
    }

    /// A work request of the endpoint `culprit` has failed: the endpoint is lost, the others of its path are to go on.
    pub fn breaks(&mut self, me: usize, path: PathId, culprit: EndpointKey) {
        let process = &mut self.processes[me];
        if let Some(sender) = process.senders.get_mut(&path) {
            sender.broken = true;
        }
        let on_path = |end: &End| end.route.is_some_and(|route| route.path == path);
        let mut keys: Vec<EndpointKey> =
            process.ends.iter().filter(|(_, end)| on_path(end)).map(|(key, _)| *key).collect();
        keys.sort_unstable();
        for key in keys.into_iter().filter(|key| *key != culprit) {
            process.ends.get_mut(&key).unwrap().route = None;
            process.machine.command(key, EndpointCommand::Renew, self.net.now);
        }
        let peer = process.ends[&culprit].peer;
        self.drain(me);
        self.remove(me, peer);
    }

    /// The process is gone, and its handles. A process that sends to it notices, and goes on with
    /// the others of its node.
    pub fn kill(&mut self, victim: usize) {
        self.processes[victim].presence = Presence::Dead;
        self.release_all(victim);
        for me in (0..self.processes.len()).filter(|&me| me != victim) {
            if !self.processes[me].is_alive() {
                continue;
            }
            if let Some(path) =
                self.processes[me].end(victim).and_then(|end| end.route).map(|route| route.path)
            {
                let key = self.processes[me].current[&victim];
                self.no_answer(me, path, key);
            }
        }
    }

    /// The peer of a connected endpoint is dead; a message has shown that.
    pub(super) fn no_answer(&mut self, me: usize, path: PathId, key: EndpointKey) {
        let peer = self.processes[me].ends[&key].peer;
        self.processes[me].failures.push((peer, "no answer".to_owned()));
        self.breaks(me, path, key);
    }

    /// The process dies, and all that is its own with it; another one takes its name.
    pub fn restart(&mut self, me: usize) {
        let domain = self.processes[me].address.domain;
        self.restart_in(me, domain);
    }

    /// As `restart`, into another domain; and what its peers get to know when they ask is the address of the former life.
    pub fn restart_unheard(&mut self, me: usize) {
        let (published, domain) = (self.processes[me].published, DomainId::new(2, u64::from(self.number())));
        self.restart_in(me, domain);
        self.processes[me].published = published;
    }

    fn restart_in(&mut self, me: usize, domain: DomainId) {
        self.reborn += 1;
        self.release_all(me);
        let wants = std::mem::take(&mut self.processes[me].wants);
        let peers: Vec<usize> = self.processes[me].current.keys().copied().collect();
        self.processes[me] = self.birth(me, self.processes[me].node, domain);
        self.processes[me].wants = wants;
        peers.into_iter().for_each(|peer| self.add(me, peer));
    }

    pub fn stop(&mut self, me: usize) {
        self.processes[me].presence = Presence::Stopped;
    }

    pub fn go_away(&mut self, me: usize) {
        self.processes[me].presence = Presence::Away;
    }

    /// A process goes on: like the driver, it takes in all that has come before it does anything.
    pub fn wake(&mut self, me: usize) {
        self.processes[me].presence = Presence::Here;
        for (from, bytes) in std::mem::take(&mut self.processes[me].inbox) {
            self.processes[me].machine.datagram(from, &bytes[..], self.net.now);
        }
        self.drain(me);
    }

    /// Takes what the machines have said.
    pub(super) fn hear(&mut self) {
        while let Some(news) = self.news.pop_front() {
            match news {
                News::Failed(me, key) => {
                    if let Some(peer) = self.whose(me, key) {
                        self.remove(me, peer);
                    }
                }
                News::Disconnected(me, key) => {
                    if let Some(peer) = self.whose(me, key) {
                        self.replace(me, peer);
                    }
                }
                News::Unknown(me, name) => {
                    let peer = self.processes.iter().position(|process| process.name == name).unwrap();
                    let process = &self.processes[me];
                    if !process.deaf_to_strangers && !process.current.contains_key(&peer) {
                        self.add(me, peer);
                    }
                }
            }
        }
    }

    /// The peer, if the endpoint is the current one.
    fn whose(&self, me: usize, key: EndpointKey) -> Option<usize> {
        let process = &self.processes[me];
        let peer = process.ends.get(&key)?.peer;
        (process.current.get(&peer) == Some(&key)).then_some(peer)
    }
}
