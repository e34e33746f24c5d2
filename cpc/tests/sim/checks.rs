//! What must hold of two processes of the simulated world whose endpoints have queue pairs.

use cpc::StreamNum;

use super::World;
use super::machine::QpMachine;
use super::pairs::Pair;
use super::process::End;
use super::protocol::Protocol;

impl<P: Protocol> World<P> {
    /// The process was told that it has no connection to the peer.
    pub fn has_report_of(&self, me: usize, peer: usize) -> bool {
        let peer = self.processes[peer].name;
        self.processes[me].failures.iter().any(|failure| failure.peer == peer)
    }

    pub fn has_failures(&self) -> bool {
        self.processes.iter().any(|process| !process.failures.is_empty())
    }

    /// No failure was reported, and no connection that was up was taken down.
    pub fn is_unharmed(&self) -> bool {
        !self.has_failures() && self.processes.iter().all(|process| process.lost == 0)
    }
}

impl<P: Protocol<Machine: QpMachine, End = Pair>> World<P> {
    pub fn state(&self, me: usize, peer: usize) -> Option<<P::Machine as QpMachine>::State> {
        let process = &self.processes[me];
        process.current.get(&peer).and_then(|&key| process.machine.state(key))
    }

    /// Both ends are up, to each other, with the same numbers at both ends.
    pub fn is_connected(&self, a: usize, b: usize) -> bool {
        let (Some(x), Some(y)) = (self.end(a, b), self.end(b, a)) else { return false };
        let up = x.connected_at.is_some() && y.connected_at.is_some();
        let states = [self.state(a, b), self.state(b, a)];
        let connected = up && states == [Some(P::Machine::UP); 2] && agrees(x, y) && agrees(y, x);
        let streams = [self.stream(a, b), self.stream(b, a)];
        assert!(!connected || streams[0].is_some() && streams[0] == streams[1], "{a}-{b}: {streams:?}");
        connected
    }

    fn stream(&self, me: usize, peer: usize) -> Option<StreamNum> {
        let process = &self.processes[me];
        process.streams.get(process.current.get(&peer)?).copied()
    }

    /// One of the two was told that the pair is not connected: by the connection manager, or by the
    /// device, whose packets were not acknowledged.
    pub fn is_reported(&self, a: usize, b: usize) -> bool {
        [(a, b), (b, a)]
            .iter()
            .any(|&(x, y)| self.has_report_of(x, y) || self.end(x, y).is_some_and(|end| end.broken))
    }

    /// One usable connection, or a failure that one of the two was told of.
    pub fn check_pair(&self, a: usize, b: usize) {
        assert!(
            self.is_connected(a, b) || self.is_reported(a, b),
            "{}: pair {a}-{b}: {:?} {:?}, nobody was told",
            P::NAME,
            self.state(a, b),
            self.state(b, a),
        );
    }

    /// Neither has anything to send to the other, or a connection.
    pub fn is_idle(&self, a: usize, b: usize) -> bool {
        [(a, b), (b, a)].iter().all(|&(x, y)| {
            !self.processes[x].wants.contains(&y)
                && self.end(x, y).is_none_or(|end| end.connected_at.is_none())
        })
    }
}

/// `y` is what `x` thinks it is connected to.
fn agrees<P: Protocol<End = Pair>>(x: &End<P>, y: &End<P>) -> bool {
    x.remote.is_some() && x.remote == y.qpns.zip(y.psn)
}
