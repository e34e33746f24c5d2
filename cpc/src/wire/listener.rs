//! The modex blob of ibcm: where a process's connection manager listens. 32 bytes, big-endian.
//!
//! ```text
//!    0  version     1  port number   2  active MTU code   3  link layer (1 InfiniBand, 2 Ethernet)
//!    4  LID (16)    6  0 (16)
//!    8  QPN of the UD queue pair (32, 24 used)
//!   12  incarnation of the connection manager (32): higher than those of former ones, as a serial number
//!   16  GID (128)
//! ```
//! Both ends of a pair know them, so they also decide which of two crossing requests wins:
//! see [`Address::outranks`].
#![forbid(unsafe_code)]

use std::ops::{Deref, DerefMut};

use verbs::{Gid, Lid, Qpn};

use crate::GidPair;

use super::{AddressError, Incarnation, VERSION, check_len};

/// Bytes of the address in the modex and in private data (protocol.md 5.1).
pub const ADDRESS_LEN: usize = 32;

/// Where a connection manager listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Port number, from 1.
    pub port: u8,
    /// Active MTU as the code of the specification: 1 = 256 bytes to 5 = 4096.
    pub mtu: u8,
    /// True on Ethernet (RoCE): packets are routed by GID.
    pub ethernet: bool,
    /// LID of the port; 0 on Ethernet.
    pub lid: Lid,
    /// The UD queue pair.
    pub qpn: Qpn,
    /// The incarnation of the connection manager that listens.
    pub incarnation: Incarnation,
    /// GID of the port.
    pub gid: Gid,
}

impl Address {
    /// Whether a port at `other` can be on the same fabric; if not, why.
    pub(crate) fn check_link(&self, other: &Address) -> Result<(), String> {
        match self.ethernet == other.ethernet {
            true => Ok(()),
            false => Err("one of the two ports is Ethernet, the other InfiniBand".to_owned()),
        }
    }

    /// The bytes for the modex.
    pub fn emit(&self) -> [u8; ADDRESS_LEN] {
        let mut out = [0_u8; ADDRESS_LEN];
        out[..4].copy_from_slice(&[VERSION, self.port, self.mtu, if self.ethernet { 2 } else { 1 }]);
        out[4..6].copy_from_slice(&self.lid.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.qpn.0.to_be_bytes());
        out[12..16].copy_from_slice(&self.incarnation.0.to_be_bytes());
        out[16..].copy_from_slice(&self.gid.0);
        out
    }

    /// Reads a blob.
    ///
    /// # Errors
    /// [`AddressError`] if the bytes are not an address of this version.
    pub fn parse(blob: &[u8]) -> Result<Address, AddressError> {
        let blob: &[u8; ADDRESS_LEN] = check_len("ibcm", blob)?;
        let word = |at: usize| u32::from_be_bytes([blob[at], blob[at + 1], blob[at + 2], blob[at + 3]]);
        if blob[0] != VERSION {
            return Err(AddressError::Version("ibcm", blob[0], VERSION));
        }
        let mut gid = [0_u8; 16];
        gid.copy_from_slice(&blob[16..]);
        let address = Address {
            port: blob[1],
            mtu: blob[2],
            ethernet: blob[3] == 2,
            lid: Lid(u16::from_be_bytes([blob[4], blob[5]])),
            qpn: Qpn(word(8)),
            incarnation: Incarnation(word(12)),
            gid: Gid(gid),
        };
        address.plausible(blob[3]).map(|()| address)
    }

    fn plausible(&self, link: u8) -> Result<(), AddressError> {
        let checks = [
            (matches!(link, 1 | 2), "link layer"),
            (self.port != 0, "port number"),
            ((1..=5).contains(&self.mtu), "MTU"),
            (self.qpn.0 > 1 && self.qpn.0 < 1 << 24, "queue pair number"),
        ];
        checks.iter().find(|(ok, _)| !ok).map_or(Ok(()), |&(_, name)| Err(AddressError::Field(name)))
    }

    /// True if this side's request wins over one of `peer` that crosses it. Both sides hold both addresses, as published or, of a later
    /// incarnation, as told by its request, so they agree without a word; exactly one of the two is true for different addresses.
    pub fn outranks(&self, peer: &Address) -> bool {
        let rank = |a: &Address| (a.lid.0, a.qpn.0, a.incarnation.0, a.gid.0);
        rank(self) < rank(peer)
    }
}

/// A peer's address, and the GID of ours from which it is reached. On RoCE its GID is the one that suits ours, which need not be the one
/// that its blob has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facing<A> {
    /// Where the peer listens.
    pub address: A,
    /// `None`: our port's.
    pub our_gid: Option<Gid>,
}

impl<A> From<A> for Facing<A> {
    fn from(address: A) -> Facing<A> {
        Facing { address, our_gid: None }
    }
}

impl<A> Deref for Facing<A> {
    type Target = A;

    fn deref(&self) -> &A {
        &self.address
    }
}

impl<A> DerefMut for Facing<A> {
    fn deref_mut(&mut self) -> &mut A {
        &mut self.address
    }
}

impl Facing<Address> {
    /// The address over a pair of GIDs; without one, as it was published.
    pub(crate) fn over(address: Address, gids: Option<GidPair>) -> Facing<Address> {
        let gid = gids.map_or(address.gid, |gids| gids.theirs);
        Facing { address: Address { gid, ..address }, our_gid: gids.map(|gids| gids.ours) }
    }

    /// What our own address is to this peer.
    fn ours(&self, own: &Address) -> Address {
        Address { gid: self.our_gid.unwrap_or(own.gid), ..*own }
    }

    /// True if our request wins over one of this peer that crosses it: see [`Address::outranks`]. Both sides compare the GIDs that the
    /// connection goes over.
    pub(crate) fn is_outranked_by(&self, own: &Address) -> bool {
        self.ours(own).outranks(self)
    }
}

/// Where a datagram comes from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// UD queue pair.
    pub qpn: Qpn,
    /// LID; 0 on Ethernet.
    pub lid: Lid,
    /// GID, where it is known.
    pub gid: Option<Gid>,
    /// The GID of ours at the other end; `None`: our port's, or not known.
    pub our_gid: Option<Gid>,
}

impl From<&Facing<Address>> for Source {
    fn from(Facing { address, our_gid }: &Facing<Address>) -> Source {
        Source { qpn: address.qpn, lid: address.lid, gid: Some(address.gid), our_gid: *our_gid }
    }
}
