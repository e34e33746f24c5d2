//! The modex blob of rdmacm: where a process listens. 28 bytes and what further addresses take, big-endian.
//!
//! ```text
//!    0  version    1  family (4, 6)    2  port (16)
//!    4  incarnation of the connection manager (32)
//!    8  address (128; IPv4 in its first four bytes)
//!   24  0 (32)
//!   28  RoCE: further addresses of the port where it listens, at most 7: address (128; IPv4 mapped into IPv6), port (16)
//! ```
//! The first 28 bytes are the same at both ends of a pair, so they also decide which of two crossing requests stands.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{AddressError, check_len};

/// Bytes of the address in the modex, without further ones (protocol.md 7.1).
pub const ADDRESS_LEN: usize = 28;
/// Version of blob and private data.
pub const VERSION: u8 = 1;

/// Further addresses at most.
pub const MAX_FURTHER: usize = 7;
const FURTHER_LEN: usize = 18;

/// Where a process listens, and where besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    /// The address that decides about crossing requests.
    pub address: Address,
    /// At most [`MAX_FURTHER`].
    pub further: Vec<SocketAddr>,
}

impl Listening {
    /// The bytes for the modex; of further addresses the first [`MAX_FURTHER`].
    pub fn emit(&self) -> Vec<u8> {
        let mut out = self.address.emit().to_vec();
        for socket in self.further.iter().take(MAX_FURTHER) {
            let ip = match socket.ip() {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            out.extend(ip.octets());
            out.extend(socket.port().to_be_bytes());
        }
        out
    }

    /// Reads a blob.
    ///
    /// # Errors
    /// [`AddressError`] if the bytes are not addresses of this version.
    pub fn parse(blob: &[u8]) -> Result<Listening, AddressError> {
        let (address, further) = blob.split_at_checked(ADDRESS_LEN).unwrap_or((blob, &[]));
        let address = Address::parse(address)?;
        let (further, rest) = further.as_chunks::<FURTHER_LEN>();
        if !rest.is_empty() || further.len() > MAX_FURTHER {
            return Err(AddressError::Field("list of addresses"));
        }
        let further = further.iter().map(parse_further).collect::<Result<_, _>>()?;
        Ok(Listening { address, further })
    }

    /// Where it listens under this address of its.
    pub fn at(&self, ip: IpAddr) -> Option<SocketAddr> {
        let mut all = std::iter::once(&self.address.socket).chain(&self.further);
        all.find(|socket| socket.ip() == ip).copied()
    }
}

fn parse_further(bytes: &[u8; FURTHER_LEN]) -> Result<SocketAddr, AddressError> {
    let octets: [u8; 16] = std::array::from_fn(|i| bytes[i]);
    let ip = IpAddr::from(octets).to_canonical();
    checked(SocketAddr::new(ip, u16::from_be_bytes([bytes[16], bytes[17]])))
}

/// An address that a process can listen under.
fn checked(socket: SocketAddr) -> Result<SocketAddr, AddressError> {
    let ip = socket.ip();
    if socket.port() == 0 || ip.is_unspecified() || ip.is_multicast() {
        return Err(AddressError::Field("address or port"));
    }
    Ok(socket)
}

/// Where a process listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// IP address and port.
    pub socket: SocketAddr,
    /// The incarnation of the process's connection manager.
    pub incarnation: u32,
}

impl Address {
    /// The bytes for the modex; an IPv4 address takes the first four of its sixteen.
    pub fn emit(&self) -> [u8; ADDRESS_LEN] {
        let mut out = [0_u8; ADDRESS_LEN];
        out[0] = VERSION;
        out[2..4].copy_from_slice(&self.socket.port().to_be_bytes());
        out[4..8].copy_from_slice(&self.incarnation.to_be_bytes());
        match self.socket.ip() {
            IpAddr::V4(v4) => {
                out[1] = 4;
                out[8..12].copy_from_slice(&v4.octets());
            }
            IpAddr::V6(v6) => {
                out[1] = 6;
                out[8..24].copy_from_slice(&v6.octets());
            }
        }
        out
    }

    /// Reads a blob.
    ///
    /// # Errors
    /// [`AddressError`] if the bytes are not an address of this version.
    pub fn parse(blob: &[u8]) -> Result<Address, AddressError> {
        let blob: &[u8; ADDRESS_LEN] = check_len("rdmacm", blob)?;
        if blob[0] != VERSION {
            return Err(AddressError::Version("rdmacm", blob[0], VERSION));
        }
        let ip = match blob[1] {
            4 => IpAddr::V4(Ipv4Addr::new(blob[8], blob[9], blob[10], blob[11])),
            6 => {
                let mut octets = [0_u8; 16];
                octets.copy_from_slice(&blob[8..24]);
                IpAddr::V6(Ipv6Addr::from(octets))
            }
            _ => return Err(AddressError::Field("address family")),
        };
        let socket = checked(SocketAddr::new(ip, u16::from_be_bytes([blob[2], blob[3]])))?;
        let incarnation = u32::from_be_bytes([blob[4], blob[5], blob[6], blob[7]]);
        Ok(Address { socket, incarnation })
    }

    /// True if this side's request stands against one of `peer` that crosses it. Both sides hold both addresses as published,
    /// so they agree without a word; exactly one of the two is true for different addresses.
    pub fn outranks(&self, peer: &Address) -> bool {
        self.emit() < peer.emit()
    }
}
