//! Where a packet goes: the path in an address handle or a connected queue pair, and the route header of a datagram.
//!
//! The queue pair number says which process is meant; the address must be one of its port. InfiniBand: the LID, and the GID if there is a
//! global route. Ethernet: the GID, in a row of the version and the network that the sender's own row has.

use super::{LinkLayer, gid};
use crate::errno::Errno;
use crate::shm::card::Card;
use rdma_sys::{IBV_GID_TYPE_ROCE_V2, ibv_ah_attr};

/// Bytes of a global route header.
pub const GRH: usize = 40;
/// Next header: IBA transport (IBTA 8.3.4), and UDP for RoCE v2.
const NEXT_IBA: u8 = 0x1b;
const NEXT_UDP: u8 = 17;
/// BTH, DETH and ICRC around a datagram's payload.
const TRANSPORT: usize = 12 + 8 + 4;
const UDP: usize = 8;
const IPV4: usize = 20;

/// A destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// GID; used with `global`, and on Ethernet.
    pub dgid: [u8; 16],
    pub flow_label: u32,
    /// LID; 0 on Ethernet.
    pub dlid: u16,
    /// Row of our port's GID table that it starts from.
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// With a global route header.
    pub global: bool,
    /// Of an address handle: the port of ours that it is for.
    pub port: u8,
}

impl From<&ibv_ah_attr> for Address {
    fn from(attr: &ibv_ah_attr) -> Address {
        Address {
            // SAFETY: all bit patterns are valid for the raw bytes of a GID.
            dgid: unsafe { attr.grh.dgid.raw },
            flow_label: attr.grh.flow_label,
            dlid: attr.dlid,
            sgid_index: attr.grh.sgid_index,
            hop_limit: attr.grh.hop_limit,
            traffic_class: attr.grh.traffic_class,
            sl: attr.sl,
            global: attr.is_global != 0,
            port: 0,
        }
    }
}

impl Address {
    /// Whether our port can send to such an address at all: EINVAL for a row that the GID table has not, an SL that does not exist, and on
    /// Ethernet without a global route.
    pub fn check(&self, from: &Card) -> Result<(), Errno> {
        let row = !self.global || usize::from(self.sgid_index) < from.gids.len();
        let route = self.global || from.link_layer == LinkLayer::InfiniBand;
        if row && route && self.sl < 16 { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Which of these ports a packet from our port with this address comes to.
    pub fn find(&self, from: &Card, cards: &[Card]) -> Option<u8> {
        cards.iter().position(|card| self.names(from, card)).map(|at| at as u8)
    }

    /// Whether it comes to the port of `card`.
    fn names(&self, from: &Card, card: &Card) -> bool {
        if from.link_layer != card.link_layer {
            return false;
        }
        match card.link_layer {
            LinkLayer::InfiniBand => {
                self.dlid == card.lid && (!self.global || card.gids.contains(&self.dgid))
            }
            LinkLayer::Ethernet => self.global && self.names_row(from, card),
            LinkLayer::Iwarp => self.global && card.gids.contains(&self.dgid),
        }
    }

    fn names_row(&self, from: &Card, card: &Card) -> bool {
        let ours = usize::from(self.sgid_index);
        let kind = gid::kind(LinkLayer::Ethernet, ours);
        let is_meant = |row, gid: &[u8; 16]| *gid == self.dgid && gid::kind(LinkLayer::Ethernet, row) == kind;
        let mut rows = card.gids.iter().enumerate();
        rows.any(|(row, gid)| is_meant(row, gid) && from.reaches(ours, card, row))
    }

    /// The 40 bytes in front of a datagram whose payload, immediate data included, has `len` bytes.
    pub fn header(&self, from: &Card, len: usize) -> [u8; GRH] {
        let index = usize::from(self.sgid_index);
        let sgid = from.gids.get(index).copied().unwrap_or_default();
        let v2 = gid::kind(from.link_layer, index) == IBV_GID_TYPE_ROCE_V2;
        let packet = TRANSPORT + len.next_multiple_of(4);
        match (v2, gid::ipv4(&sgid), gid::ipv4(&self.dgid)) {
            (true, Some(source), Some(dest)) => {
                self.ipv4_header(source.octets(), dest.octets(), packet + UDP)
            }
            (true, ..) => self.ipv6_header(&sgid, packet + UDP, NEXT_UDP),
            (false, ..) => self.ipv6_header(&sgid, packet, NEXT_IBA),
        }
    }

    /// A GRH has the form of an IPv6 header.
    fn ipv6_header(&self, sgid: &[u8; 16], len: usize, next: u8) -> [u8; GRH] {
        let mut header = [0; GRH];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        header[..4].copy_from_slice(&first.to_be_bytes());
        header[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        (header[6], header[7]) = (next, self.hop_limit);
        header[8..24].copy_from_slice(sgid);
        header[24..].copy_from_slice(&self.dgid);
        header
    }

    /// RoCE v2 over IPv4: the header fills the last 20 bytes.
    fn ipv4_header(&self, source: [u8; 4], dest: [u8; 4], len: usize) -> [u8; GRH] {
        let mut header = [0; GRH];
        let ip = &mut header[GRH - IPV4..];
        (ip[0], ip[1]) = (0x45, self.traffic_class);
        ip[2..4].copy_from_slice(&((IPV4 + len) as u16).to_be_bytes());
        // Don't fragment.
        ip[6] = 0x40;
        (ip[8], ip[9]) = (self.hop_limit, NEXT_UDP);
        ip[12..16].copy_from_slice(&source);
        ip[16..20].copy_from_slice(&dest);
        let sum = !ones_complement_sum(ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }
}

/// The sum that an IPv4 header's checksum is made of (RFC 791): 0xffff for a header that carries a right one.
pub fn ones_complement_sum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_header_carries_its_checksum() {
        let to = Address {
            dgid: [0; 16],
            flow_label: 0,
            dlid: 0,
            sgid_index: 3,
            hop_limit: 64,
            traffic_class: 0,
            sl: 0,
            global: true,
            port: 0,
        };
        let header = to.ipv4_header([127, 0, 0, 1], [127, 0, 0, 2], 44);
        assert!(header[..20].iter().all(|&byte| byte == 0));
        assert_eq!(ones_complement_sum(&header[20..]), 0xffff);
        assert_eq!(header[22..24], [0, 64]);
    }
}
