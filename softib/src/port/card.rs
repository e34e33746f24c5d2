//! What peers may know of a port: written into the segment's header before it is published, read when a peer attaches.
//!
//! Two counters in it are the peers' to raise: packets that came with the wrong P_Key or Q_Key, which the initiator finds out here.

use super::{LinkLayer, Port, gid};
use crate::errno::Errno;
use crate::shm::layout::{H_BAD_PKEYS, H_BAD_QKEYS, H_GID_COUNT, H_GIDS, H_GUID, H_LID, H_LINK_LAYER};
use crate::shm::map::Map;
use std::sync::atomic::Ordering;

/// A peer's port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    pub link_layer: LinkLayer,
    pub lid: u16,
    pub guid: [u8; 8],
    pub gids: Vec<[u8; 16]>,
}

/// Writes our card.
pub fn publish(map: &Map, port: &Port) {
    let (link_layer, lid, guid, gids) = (port.link_layer, port.lid, port.guid, port.gids.clone());
    Card { link_layer, lid, guid, gids }.publish(map);
}

impl Card {
    /// Writes the card into a segment that is not published yet.
    pub fn publish(&self, map: &Map) {
        map.u32(H_LINK_LAYER).store(self.link_layer as u32, Ordering::Relaxed);
        map.u32(H_LID).store(self.lid.into(), Ordering::Relaxed);
        map.write(H_GUID, &self.guid);
        map.u32(H_GID_COUNT).store(self.gids.len() as u32, Ordering::Relaxed);
        map.write(H_GIDS, self.gids.as_flattened());
    }
}

/// Reads a peer's card; EPROTO when it makes no sense.
pub fn read(map: &Map) -> Result<Card, Errno> {
    let link_layer = match map.u32(H_LINK_LAYER).load(Ordering::Relaxed) {
        0 => LinkLayer::InfiniBand,
        1 => LinkLayer::Ethernet,
        2 => LinkLayer::Iwarp,
        _ => return Err(Errno::PROTO),
    };
    let lid = u16::try_from(map.u32(H_LID).load(Ordering::Relaxed)).map_err(|_| Errno::PROTO)?;
    let count = map.u32(H_GID_COUNT).load(Ordering::Relaxed) as usize;
    if count > gid::MAX {
        return Err(Errno::PROTO);
    }
    let gids = (0..count).map(|row| map.read(H_GIDS + 16 * row)).collect();
    Ok(Card { link_layer, lid, guid: map.read(H_GUID), gids })
}

/// Counts a packet that a port refused because its partition is another one.
#[cold]
pub fn count_bad_pkey(map: &Map) {
    map.u32(H_BAD_PKEYS).fetch_add(1, Ordering::Relaxed);
}

/// Counts a datagram that a port refused because of its Q_Key.
#[cold]
pub fn count_bad_qkey(map: &Map) {
    map.u32(H_BAD_QKEYS).fetch_add(1, Ordering::Relaxed);
}

/// Packets that our port has refused: for their P_Key, for their Q_Key.
pub fn refused(map: &Map) -> (u32, u32) {
    (map.u32(H_BAD_PKEYS).load(Ordering::Relaxed), map.u32(H_BAD_QKEYS).load(Ordering::Relaxed))
}
