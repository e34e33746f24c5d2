//! Messages that are late (the fault `cm-late`), as on a fabric that has lost them, where the sender's connection manager repeats them.
//!
//! ```text
//!   a message is read ── not late ──────────────────────────────────────> what it does to its id
//!                     └─ late: its socket is watched no longer ── due ──> the same; the socket is watched again
//! ```
//! So what comes behind it on the same connection, the end of the peer included, is no earlier. A request that its sender has let go of meanwhile
//! does not arrive.

use super::carrier::{self, Received};
use super::world::{Late, Source, World};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

impl World {
    /// The next message of a socket, unless it is late.
    pub fn receive(&mut self, from: Source, socket: RawFd) -> Received {
        if self.is_late(from) {
            return Received::Nothing;
        }
        let packet = match carrier::receive(socket) {
            Received::Packet(packet) => packet,
            other => return other,
        };
        let Some(by) = lateness() else { return Received::Packet(packet) };
        self.hold(Late { from, until: timing::now() + by, packet });
        Received::Nothing
    }

    /// Whether a message of this source waits for its time.
    pub fn is_late(&self, from: Source) -> bool {
        self.late.iter().any(|late| late.from == from)
    }

    /// The source is gone, and what has not arrived with it.
    pub fn forget_late(&mut self, from: Source) {
        self.late.retain(|late| late.from != from);
    }

    fn hold(&mut self, late: Late) {
        let channel = self.channel_of(late.from);
        self.unwatch(late.from);
        self.late.push(late);
        channel.into_iter().for_each(|channel| self.arm(channel));
    }

    fn channel_of(&self, from: Source) -> Option<usize> {
        let id = match from {
            Source::Id(key) => key,
            Source::Embryo(embryo) => self.embryos.get(embryo)?.listener,
        };
        self.ids.get(id).map(|id| id.channel)
    }

    /// When the next one of a channel arrives.
    pub fn next_late(&self, channel: usize) -> Option<Instant> {
        let mine = self.late.iter().filter(|late| self.channel_of(late.from) == Some(channel));
        mine.map(|late| late.until).min()
    }

    /// Those of a channel whose time has come arrive.
    pub fn late_ones_arrive(&mut self, channel: usize, now: Instant) {
        let is_due =
            |world: &World, late: &Late| late.until <= now && world.channel_of(late.from) == Some(channel);
        while let Some(at) = self.late.iter().position(|late| is_due(self, late)) {
            let Late { from, packet, .. } = self.late.remove(at);
            let watched = match from {
                Source::Id(key) => {
                    self.packet(key, &packet);
                    self.watch_id(key)
                }
                Source::Embryo(embryo) => {
                    self.late_request(embryo, &packet);
                    Ok(())
                }
            };
            if let Err(error) = watched {
                log::warn!("connection manager: a connection is watched no longer: {error}");
            }
        }
    }

    /// A request is repeated as long as its sender wants it: if more has come from there, or its end, it never arrives.
    fn late_request(&mut self, embryo: usize, packet: &[u8]) {
        let Some(socket) = self.embryos.get(embryo).map(|embryo| embryo.socket.as_raw_fd()) else { return };
        let wanted = carrier::receive(socket) == Received::Nothing;
        self.first_packet(embryo, wanted.then_some(packet));
    }
}

/// By how much the plan of faults has the next message come late.
fn lateness() -> Option<Duration> {
    crate::engine::current()?.enter().w.faults.as_mut()?.lateness()
}
