//! What the transport of every process does, and what befalls processes.

use std::time::Duration;

use cpc::{EndpointCommand, EndpointKey};

use super::machine::Machine;
use super::process::{End, Event, Presence};
use super::protocol::Protocol;
use super::{HOP, World, layout};

impl<P: Protocol> World<P> {
    /// The end that stands for the peer now.
    pub fn end(&self, me: usize, peer: usize) -> Option<&End<P>> {
        let process = &self.processes[me];
        process.current.get(&peer).and_then(|key| process.ends.get(key))
    }

    /// The peer, if the endpoint is the present one.
    pub(super) fn peer_of(&self, me: usize, key: EndpointKey) -> Option<usize> {
        let process = &self.processes[me];
        let peer = process.ends.get(&key)?.peer;
        (process.current.get(&peer) == Some(&key)).then_some(peer)
    }

    /// Adds an endpoint, and connects it if it is wanted.
    pub fn add(&mut self, me: usize, peer: usize) {
        let (name, address, now) = (self.processes[peer].name, self.processes[peer].published, self.net.now);
        let key = EndpointKey { index: self.number(), generation: 1 };
        let process = &mut self.processes[me];
        process.ends.insert(key, End::new(peer, address));
        process.current.insert(peer, key);
        P::add(&mut process.machine, key, name, address, now);
        self.drain(me);
        if self.processes[me].wants.contains(&peer) {
            self.connect(me, peer);
        }
    }

    /// Two processes get to know each other.
    pub fn meet(&mut self, a: usize, b: usize) {
        self.add(a, b);
        self.add(b, a);
    }

    pub fn connect(&mut self, me: usize, peer: usize) {
        let (now, elapsed) = (self.net.now, self.elapsed());
        let process = &mut self.processes[me];
        process.wants.insert(peer);
        if let Some(&key) = process.current.get(&peer) {
            process.ends.get_mut(&key).unwrap().asked_at.get_or_insert(elapsed);
            process.machine.command(key, EndpointCommand::Connect, now);
        }
        self.drain(me);
    }

    pub fn remove(&mut self, me: usize, peer: usize) {
        let process = &mut self.processes[me];
        if let Some(key) = process.current.remove(&peer) {
            process.ends.remove(&key);
            process.machine.command(key, EndpointCommand::Remove, self.net.now);
        }
        self.drain(me);
    }

    /// Removes the endpoint and puts a new one in its place.
    pub fn replace(&mut self, me: usize, peer: usize) {
        self.remove(me, peer);
        self.add(me, peer);
    }

    /// Does something for each process and each other one.
    fn each_pair(&mut self, act: fn(&mut World<P>, usize, usize)) {
        for me in 0..self.processes.len() {
            (0..self.processes.len()).filter(|&peer| peer != me).for_each(|peer| act(self, me, peer));
        }
    }

    pub fn meet_all(&mut self) {
        self.each_pair(World::add);
    }

    pub fn connect_all(&mut self) {
        self.each_pair(World::connect);
    }

    /// Two processes begin after so many hops each, each of them before `hops`.
    pub fn begin(&mut self, start: [Option<u32>; 2], hops: u32) {
        for hop in 0..hops {
            (0..2).filter(|&me| start[me] == Some(hop)).for_each(|me| self.connect(me, 1 - me));
            self.run_until(HOP * (hop + 1));
        }
    }

    /// Each begins with its peer, so long after the start.
    pub fn begin_all(&mut self, mut begins: Vec<(Duration, usize, usize)>) {
        begins.sort_unstable();
        for (after, me, peer) in begins {
            self.run_until(after);
            self.connect(me, peer);
        }
    }

    /// The process dies, and all that is its own with it; another one takes its name. Its peers are
    /// told when they ask.
    pub fn restart(&mut self, me: usize) {
        P::killed(self, me);
        let old = self.respawn(me, layout());
        self.processes[me].wants = old.wants;
        old.current.into_keys().for_each(|peer| self.add(me, peer));
    }

    /// As `restart`, but what its peers get to know when they ask is still the address of the
    /// former life.
    pub fn restart_unheard(&mut self, me: usize) {
        let published = self.processes[me].published;
        P::before_move(self, me);
        self.restart(me);
        self.processes[me].published = published;
    }

    pub fn stop(&mut self, me: usize) {
        self.set_presence(me, Presence::Stopped);
    }

    pub fn go_away(&mut self, me: usize) {
        self.set_presence(me, Presence::Away);
    }

    /// A process goes on: like the driver, it takes in all that has come before it does anything.
    pub fn wake(&mut self, me: usize) {
        for (from, datagram) in std::mem::take(&mut self.processes[me].inbox) {
            P::datagram(self, me, from, &datagram);
        }
        self.set_presence(me, Presence::Here);
    }

    pub(super) fn set_presence(&mut self, me: usize, presence: Presence) {
        self.processes[me].presence = presence;
        self.drain(me);
    }

    /// The transport hears of events later than the machine acts, as through the helper thread's
    /// queue.
    pub(super) fn handle_events(&mut self) {
        while let Some((me, event)) = self.events.pop_front() {
            match event {
                Event::Failed(key) => P::failed(self, me, key),
                Event::Disconnected(key) => {
                    let process = &mut self.processes[me];
                    process.disconnects += 1;
                    process.lost += u32::from(process.up.contains(&key));
                    let peer = self.peer_of(me, key).filter(|_| self.processes[me].persistent);
                    peer.into_iter().for_each(|peer| self.replace(me, peer));
                }
                Event::Unknown(name) => {
                    self.processes[me].unknown.push(name);
                    let Some(&peer) = self.by_name.get(&name) else { continue };
                    if self.processes[me].welcoming && !P::has_endpoint_for(self, me, peer) {
                        self.replace(me, peer);
                    }
                }
            }
        }
    }
}
