//! Datagrams and time.

use std::time::{Duration, Instant};

use cpc::wire::Source;
use verbs::Qpn;

use super::super::{Fault, HOP};
use super::{Bytes, Presence, Process, STEPS, World};

impl World {
    pub(super) fn transmit(&mut self, me: usize, to: Qpn, bytes: Bytes) {
        let listener = self.processes[me].address.listener;
        let from = Source { qpn: listener.qpn, lid: listener.lid, gid: None };
        let number = self.sent;
        self.sent += 1;
        let fault = self.plan.faults.remove(&number).or_else(|| self.draw_fault());
        let arrivals: &[u32] = match fault {
            Some(Fault::Drop) => &[],
            Some(Fault::Duplicate) => &[1, 3],
            Some(Fault::Swap) => &[3],
            Some(Fault::Delay(hops)) => &[hops + 1],
            None => &[1],
        };
        for hops in arrivals {
            self.sequence += 1;
            self.net.insert((self.now + HOP * *hops, self.sequence), (from, to, bytes.clone()));
        }
        self.due_restarts.extend(self.plan.restarts.remove(&number));
    }

    fn draw_fault(&mut self) -> Option<Fault> {
        let (odds, draw) = (self.odds, self.random() % 100);
        match draw {
            _ if draw < odds.drop => Some(Fault::Drop),
            _ if draw < odds.drop + odds.duplicate => Some(Fault::Duplicate),
            _ if draw < odds.drop + odds.duplicate + odds.delay => {
                Some(Fault::Delay(1 + self.below(30_000) as u32))
            }
            _ => None,
        }
    }

    fn next_time(&self) -> Option<Instant> {
        let at_once = (!self.due_restarts.is_empty() || !self.news.is_empty()).then_some(self.now);
        let here = self.processes.iter().filter(|process| process.is_here());
        let due = here.filter_map(|process| process.machine.poll_timeout());
        due.chain(self.net.keys().next().map(|&(at, _)| at)).chain(at_once).min()
    }

    /// The next thing that happens; false if nothing will.
    pub fn step(&mut self) -> bool {
        while let Some(process) = self.due_restarts.pop_front() {
            self.restart(process);
        }
        self.hear();
        let Some(at) = self.next_time() else { return false };
        self.steps += 1;
        self.now = self.now.max(at);
        if self.net.keys().next().is_some_and(|&(at, _)| at <= self.now) {
            let (_, (from, to, bytes)) = self.net.pop_first().unwrap();
            self.arrives(from, to, bytes);
        }
        for me in 0..self.processes.len() {
            let process = &mut self.processes[me];
            if process.is_here() && process.machine.poll_timeout().is_some_and(|at| at <= self.now) {
                process.machine.handle_timeout(self.now);
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
                process.machine.datagram(from, &bytes[..], self.now);
                self.drain(me);
            }
            Presence::Stopped => process.inbox.push((from, bytes)),
            Presence::Away | Presence::Dead => {}
        }
    }

    /// Until nothing happens any more.
    pub fn run(&mut self) {
        let limit = self.steps + STEPS * (self.processes.len() * self.processes.len()) as u64;
        while self.step() {
            assert!(self.steps < limit, "livelock");
        }
    }

    /// Until so long after the start.
    pub fn run_until(&mut self, time: Duration) {
        while self.next_time().is_some_and(|at| at <= self.start + time) {
            self.step();
        }
        self.now = self.now.max(self.start + time);
    }

    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.elapsed() + time);
    }
}
