//! Datagrams and time.

use std::time::{Duration, Instant};

use cpc::wire::Source;
use verbs::Qpn;

use super::super::{Fault, Net};
use super::{Bytes, Presence, Process, STEPS, World};

impl World {
    pub(super) fn transmit(&mut self, me: usize, to: Qpn, bytes: Bytes) {
        let listener = self.processes[me].address.listener;
        let from = Source { qpn: listener.qpn, lid: listener.lid, gid: None };
        self.net.send((from, to, bytes), draw_fault);
    }

    fn next_time(&self) -> Option<Instant> {
        let at_once = (!self.net.restarts.is_empty() || !self.news.is_empty()).then_some(self.net.now);
        let here = self.processes.iter().filter(|process| process.is_here());
        let due = here.filter_map(|process| process.machine.poll_timeout());
        due.chain(self.net.next_arrival()).chain(at_once).min()
    }

    /// The next thing that happens; false if nothing will.
    pub fn step(&mut self) -> bool {
        while let Some(process) = self.net.restarts.pop_front() {
            self.restart(process);
        }
        self.hear();
        let Some(at) = self.next_time() else { return false };
        self.net.steps += 1;
        self.net.now = self.net.now.max(at);
        if let Some((from, to, bytes)) = self.net.arrived() {
            self.arrives(from, to, bytes);
        }
        for me in 0..self.processes.len() {
            let process = &mut self.processes[me];
            if process.is_here() && process.machine.poll_timeout().is_some_and(|at| at <= self.net.now) {
                process.machine.handle_timeout(self.net.now);
                self.drain(me);
            }
        }
        self.hear();
        true
    }

    fn arrives(&mut self, from: Source, to: Qpn, bytes: Bytes) {
        let hears = |process: &Process| process.address.listener.qpn == to;
        let Some(me) = self.processes.iter().position(hears) else { return };
        let process = &mut self.processes[me];
        match process.presence {
            Presence::Here => {
                process.machine.datagram(from, &bytes[..], self.net.now);
                self.drain(me);
            }
            Presence::Stopped => process.inbox.push((from, bytes)),
            Presence::Away | Presence::Dead => {}
        }
    }

    /// Until nothing happens any more.
    pub fn run(&mut self) {
        let limit = self.net.steps + STEPS * (self.processes.len() * self.processes.len()) as u64;
        while self.step() {
            assert!(self.net.steps < limit, "livelock");
        }
    }

    /// Until so long after the start.
    pub fn run_until(&mut self, time: Duration) {
        while self.next_time().is_some_and(|at| at <= self.net.start + time) {
            self.step();
        }
        self.net.now = self.net.now.max(self.net.start + time);
    }

    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.elapsed() + time);
    }
}

fn draw_fault<T>(net: &mut Net<T>) -> Option<Fault> {
    let (odds, draw) = (net.odds, (net.random() >> 16) % 100);
    match draw {
        _ if draw < odds.drop => Some(Fault::Drop),
        _ if draw < odds.drop + odds.duplicate => Some(Fault::Duplicate),
        _ if draw < odds.drop + odds.duplicate + odds.delay => {
            Some(Fault::Delay(1 + ((net.random() >> 16) % 30_000) as u32))
        }
        _ => None,
    }
}
