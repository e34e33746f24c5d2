//! What must hold of two processes of the simulated world.

use super::World;
use super::node::End;
use super::protocol::Protocol;

impl<P: Protocol> World<P> {
    pub fn end(&self, node: usize, peer: usize) -> Option<&End<P::Address>> {
        let me = &self.nodes[node];
        me.current.get(&peer).and_then(|key| me.ends.get(key))
    }

    pub fn state(&self, node: usize, peer: usize) -> Option<P::State> {
        let me = &self.nodes[node];
        me.current.get(&peer).and_then(|&key| me.manager.state(key))
    }

    /// Both ends are up, to each other, with the same numbers at both ends.
    pub fn is_connected(&self, a: usize, b: usize) -> bool {
        let (Some(x), Some(y)) = (self.end(a, b), self.end(b, a)) else { return false };
        let up = x.connected_at.is_some() && y.connected_at.is_some();
        let states = [self.state(a, b), self.state(b, a)];
        up && states == [Some(P::UP); 2] && agrees(x, y) && agrees(y, x)
    }

    /// One of the two was told that the pair is not connected: by the connection manager, or by the
    /// device, whose packets were not acknowledged.
    pub fn is_reported(&self, a: usize, b: usize) -> bool {
        [(a, b), (b, a)].iter().any(|&(x, y)| {
            let peer = self.nodes[y].name;
            let failed = self.nodes[x].failures.iter().any(|f| f.peer == peer);
            failed || self.end(x, y).is_some_and(|end| end.broken)
        })
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
            !self.nodes[x].wants.contains(&y) && self.end(x, y).is_none_or(|end| end.connected_at.is_none())
        })
    }

    /// No failure was reported, and no connection was taken down.
    pub fn is_unharmed(&self) -> bool {
        self.nodes.iter().all(|n| n.failures.is_empty() && n.disconnects == 0)
    }
}

/// `y` is what `x` thinks it is connected to.
fn agrees<A>(x: &End<A>, y: &End<A>) -> bool {
    x.remote.as_ref().is_some_and(|r| r.qpns == y.qpns && Some(r.psn) == y.psn)
}
