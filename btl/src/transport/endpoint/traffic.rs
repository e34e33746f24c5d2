//! What went to each peer and came from it, and how few credits were left: per endpoint, and of those
//! that are gone.
#![forbid(unsafe_code)]

use super::Endpoints;
use super::lane::Lane;
use std::collections::BTreeMap;

/// Bytes of messages, puts and gets of ours, without our headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To the peer.
    pub sent: u64,
    /// From the peer.
    pub received: u64,
}

impl Traffic {
    /// The same peer's over another endpoint.
    pub fn add(&mut self, other: Traffic) {
        self.sent += other.sent;
        self.received += other.received;
    }
}

impl<C> Endpoints<C> {
    /// Bytes to and from each peer, by its name; those of peers that are gone among them.
    pub fn traffic(&self) -> BTreeMap<u64, Traffic> {
        let mut all = self.gone.clone();
        self.iter().for_each(|(_, ep)| all.entry(ep.peer).or_default().add(ep.traffic));
        all
    }

    /// Fewest credits that a message has left on a per-peer queue of the connections that there are.
    pub fn fewest_credits(&self) -> Option<u16> {
        self.iter().filter_map(|(_, ep)| fewest_credits(&ep.lanes)).min()
    }
}

/// Fewest credits that a message has left on one of these lanes.
pub fn fewest_credits(lanes: &[Lane]) -> Option<u16> {
    lanes.iter().filter_map(Lane::fewest_credits).min()
}

/// Bytes to and from each peer that there were any of, in words: peers of `job` by their rank, others
/// with their job in front.
pub fn text(traffic: &BTreeMap<u64, Traffic>, job: u64) -> String {
    let name = |peer: u64| match peer >> 32 {
        of if of == job => format!("{}", peer & 0xffff_ffff),
        of => format!("{of}.{}", peer & 0xffff_ffff),
    };
    let moved = traffic.iter().filter(|(_, bytes)| **bytes != Traffic::default());
    let peers = moved.map(|(peer, bytes)| format!("{} {}/{}", name(*peer), bytes.sent, bytes.received));
    peers.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_told_by_rank_and_those_of_other_jobs_with_their_job() {
        let bytes = |sent, received| Traffic { sent, received };
        let peers = [
            (7 << 32 | 2, bytes(5, 6)),
            (7 << 32, bytes(0, 1)),
            (8 << 32 | 1, bytes(3, 0)),
            (7 << 32 | 1, bytes(0, 0)),
        ];
        assert_eq!(text(&peers.into(), 7), "0 0/1, 2 5/6, 8.1 3/0");
    }
}
