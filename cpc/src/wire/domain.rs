//! The modex blob of xrc: where the connection manager listens, as with ibcm, and the XRC domain. 48 bytes.
//!
//! ```text
//!    0  ibcm's address (32)
//!   32  the domain: device and inode of its file (64 bits each, big-endian)
//! ```
#![forbid(unsafe_code)]

use verbs::{Gid, Lid, Qpn};

use crate::wire::listener::{ADDRESS_LEN, Address as Listener, Facing};
use crate::wire::{AddressError, Incarnation, Path, check_len};

/// Bytes of xrc's address in the modex: the listener's, then the domain's name.
pub const BLOB_LEN: usize = ADDRESS_LEN + 16;

/// Names an XRC domain on its node: device and inode of the file that stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomainId(pub [u8; 16]);

impl DomainId {
    /// The domain of the file with this `st_dev` and `st_ino`.
    pub fn new(dev: u64, ino: u64) -> DomainId {
        DomainId((u128::from(dev) << 64 | u128::from(ino)).to_be_bytes())
    }
}

/// What a connection leads to: all processes of one domain behind one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    gid: Gid,
    lid: Lid,
    domain: DomainId,
    /// Where it starts from, if not from our port's GID.
    our_gid: Option<Gid>,
}

/// Where a process listens, and its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its datagram queue pair and port.
    pub listener: Listener,
    /// The XRC domain of its node's processes.
    pub domain: DomainId,
}

impl Address {
    /// The bytes for the modex (protocol.md 8.1).
    pub fn emit(&self) -> [u8; BLOB_LEN] {
        let mut out = [0; BLOB_LEN];
        out[..ADDRESS_LEN].copy_from_slice(&self.listener.emit());
        out[ADDRESS_LEN..].copy_from_slice(&self.domain.0);
        out
    }

    /// Reads a blob.
    ///
    /// # Errors
    /// [`AddressError`] if the bytes are not an address of this version.
    pub fn parse(blob: &[u8]) -> Result<Address, AddressError> {
        let blob: &[u8; BLOB_LEN] = check_len("xrc", blob)?;
        let (listener, domain) = blob.split_at(ADDRESS_LEN);
        let domain = DomainId(*check_len("xrc", domain)?);
        Ok(Address { listener: Listener::parse(listener)?, domain })
    }
}

impl Facing<Address> {
    /// Its datagram queue pair and port, from where we see it.
    pub fn listener(&self) -> Facing<Listener> {
        Facing { address: self.address.listener, our_gid: self.our_gid }
    }

    /// The same process in a later incarnation, as its request describes it: there is one link layer and MTU on a port.
    pub fn of_later_incarnation(
        &self,
        incarnation: Incarnation,
        qpn: Qpn,
        path: &Path,
        domain: DomainId,
    ) -> Facing<Address> {
        let (lid, gid) = (path.local_lid, path.local_gid);
        let address = Address { listener: Listener { incarnation, qpn, lid, gid, ..self.listener }, domain };
        Facing { address, our_gid: Some(path.remote_gid) }
    }

    /// What a connection to this process leads to.
    pub fn place(&self) -> Place {
        let Listener { gid, lid, .. } = self.listener;
        Place { gid, lid, domain: self.domain, our_gid: self.our_gid }
    }
}
