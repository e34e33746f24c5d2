//! What peers may know of a port: written into the segment's header before it is published, read when a peer attaches.
//!
//! Two counters in it are the peers' to raise: packets that came with the wrong P_Key or Q_Key, which the initiator finds out here.

use super::layout::*;
use crate::errno::Errno;
use crate::shm::map::Map;
use std::sync::atomic::Ordering;

/// What carries the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinkLayer {
    /// LIDs; a global route is a choice.
    #[default]
    InfiniBand,
    /// RoCE: GIDs only.
    Ethernet,
    /// iWARP: Ethernet as well, but connections are TCP's, and come by RDMA-CM only.
    Iwarp,
}

/// Rows that may be filled: two addresses that every port has, six further ones, two rows each.
pub const GID_ROWS: usize = 16;

/// Rows of a table, filled or not: those behind the last address are empty, as they are in an adapter's.
pub fn rows(link: LinkLayer) -> usize {
    if link == LinkLayer::Iwarp { 1 } else { GID_ROWS }
}

/// A port, ours or a peer's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// What carries its packets.
    pub link_layer: LinkLayer,
    /// 0 on Ethernet.
    pub lid: u16,
    pub guid: [u8; 8],
    /// The filled rows of its GID table.
    pub gids: Vec<[u8; 16]>,
    /// For each row, how many bits of the GID are its network, out of which nothing goes; 0: it is on no network of its own.
    pub nets: Vec<u8>,
}

impl Card {
    /// Whether the network that row `row` is on leads to row `theirs` of `other`: there is no router between networks.
    pub fn reaches(&self, row: usize, other: &Card, theirs: usize) -> bool {
        let place = |card: &Card, row: usize| {
            let len = card.nets.get(row).copied().unwrap_or(0);
            Some((len, network(card.gids.get(row)?, len)))
        };
        place(self, row) == place(other, theirs)
    }

    /// The GID in row `index`, all zeroes if nothing has been put there; None when there is no such row.
    pub fn gid(&self, index: usize) -> Option<[u8; 16]> {
        let empty = (index < rows(self.link_layer)).then_some([0; 16]);
        self.gids.get(index).copied().or(empty)
    }

    fn publish(&self, map: &Map, at: usize) {
        map.u32(at + P_LINK_LAYER).store(self.link_layer as u32, Ordering::Relaxed);
        map.u32(at + P_LID).store(self.lid.into(), Ordering::Relaxed);
        map.write(at + P_GUID, &self.guid);
        map.u32(at + P_GID_COUNT).store(self.gids.len() as u32, Ordering::Relaxed);
        map.write(at + P_NETS, &self.nets);
        map.write(at + P_GIDS, self.gids.as_flattened());
    }

    fn read(map: &Map, at: usize) -> Result<Card, Errno> {
        let link_layer = match map.u32(at + P_LINK_LAYER).load(Ordering::Relaxed) {
            0 => LinkLayer::InfiniBand,
            1 => LinkLayer::Ethernet,
            2 => LinkLayer::Iwarp,
            _ => return Err(Errno::PROTO),
        };
        let lid = map.u32(at + P_LID).load(Ordering::Relaxed);
        let count = map.u32(at + P_GID_COUNT).load(Ordering::Relaxed) as usize;
        if count > GID_ROWS {
            return Err(Errno::PROTO);
        }
        let gids = (0..count).map(|row| map.read(at + P_GIDS + 16 * row)).collect();
        let nets: [u8; GID_ROWS] = map.read(at + P_NETS);
        let nets = nets.into_iter().take(count).collect();
        let lid = u16::try_from(lid).map_err(|_| Errno::PROTO)?;
        Ok(Card { link_layer, lid, guid: map.read(at + P_GUID), gids, nets })
    }
}

/// The first `len` bits of a GID, which 128 or more are all of.
fn network(gid: &[u8; 16], len: u8) -> u128 {
    let host = 128_u32.saturating_sub(len.into());
    u128::from_be_bytes(*gid).checked_shr(host).unwrap_or(0)
}

/// Where the card of port `port` is; of one that cannot be, where the last one could.
fn place(port: u8) -> usize {
    port_card(usize::from(port).min(PORTS - 1))
}

/// Writes cards, at most [`PORTS`], into a segment that is not published yet.
pub fn publish(map: &Map, cards: &[Card]) {
    for (port, card) in (0..PORTS as u8).zip(cards) {
        card.publish(map, place(port));
    }
    map.u32(H_PORT_COUNT).store(cards.len().min(PORTS) as u32, Ordering::Relaxed);
}

/// Reads a segment's cards; EPROTO when they make no sense.
pub fn read(map: &Map) -> Result<Vec<Card>, Errno> {
    let count = map.u32(H_PORT_COUNT).load(Ordering::Relaxed) as usize;
    if !(1..=PORTS).contains(&count) {
        return Err(Errno::PROTO);
    }
    (0..count as u8).map(|port| Card::read(map, place(port))).collect()
}

/// Counts a packet that a port refused because its partition is another one.
#[cold]
pub fn count_bad_pkey(map: &Map, port: u8) {
    map.u32(place(port) + P_BAD_PKEYS).fetch_add(1, Ordering::Relaxed);
}

/// Counts a datagram that a port refused because of its Q_Key.
#[cold]
pub fn count_bad_qkey(map: &Map, port: u8) {
    map.u32(place(port) + P_BAD_QKEYS).fetch_add(1, Ordering::Relaxed);
}

/// Packets that a port of ours has refused: for their P_Key, for their Q_Key.
pub fn refused(map: &Map, port: u8) -> (u32, u32) {
    let count = |at: usize| map.u32(place(port) + at).load(Ordering::Relaxed);
    (count(P_BAD_PKEYS), count(P_BAD_QKEYS))
}

const _: () = assert!(P_NETS + GID_ROWS <= P_GIDS && P_GIDS + 16 * GID_ROWS <= PORT);
