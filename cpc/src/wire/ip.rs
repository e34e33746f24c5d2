//! The modex blob of rdmacm: where a process listens. 28 bytes, big-endian.
//!
//! ```text
//!    0  version    1  family (4, 6)    2  port (16)
//!    4  incarnation of this incarnation (32)
//!    8  address (128; IPv4 in its first four bytes)
//!   24  0 (32)
//! ```
//! The bytes are the same at both ends of a pair, so they also decide which of two crossing requests stands.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Length of the blob.
pub const ADDRESS_LEN: usize = 28;
/// Version of blob and private data.
pub const VERSION: u8 = 1;

/// Why a modex blob is no rdmacm address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Wrong length.
    #[error("{0} bytes where an rdmacm address has {ADDRESS_LEN}")]
    Length(usize),
    /// Another version.
    #[error("rdmacm version {0}, ours is {VERSION}: all processes of a job need the same release")]
    Version(u8),
    /// A field can't be.
    #[error("its {0} can't be")]
    Field(&'static str),
}

/// Where a process listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// IP address and port.
    pub socket: SocketAddr,
    /// This incarnation.
    pub incarnation: u32,
}

impl Address {
    /// The blob.
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
        let blob: &[u8; ADDRESS_LEN] = blob.try_into().map_err(|_| AddressError::Length(blob.len()))?;
        if blob[0] != VERSION {
            return Err(AddressError::Version(blob[0]));
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
        let port = u16::from_be_bytes([blob[2], blob[3]]);
        if port == 0 || ip.is_unspecified() || ip.is_multicast() {
            return Err(AddressError::Field("address or port"));
        }
        let incarnation = u32::from_be_bytes([blob[4], blob[5], blob[6], blob[7]]);
        Ok(Address { socket: SocketAddr::new(ip, port), incarnation })
    }

    /// True if this side's request stands against one of `peer` that crosses it. Both sides hold both addresses as published,
    /// so they agree without a word; exactly one of the two is true for different addresses.
    pub fn outranks(&self, peer: &Address) -> bool {
        self.emit() < peer.emit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addresses() -> impl Strategy<Value = Address> {
        let v4 = (1..0xe000_0000_u32).prop_map(|ip| IpAddr::V4(Ipv4Addr::from(ip)));
        let v6 = (1..1_u128 << 120).prop_map(|ip| IpAddr::V6(Ipv6Addr::from(ip)));
        (prop_oneof![v4, v6], 1..=u16::MAX, any::<u32>())
            .prop_map(|(ip, port, incarnation)| Address { socket: SocketAddr::new(ip, port), incarnation })
    }

    proptest! {
        #[test]
        fn an_address_survives_the_modex(address in addresses()) {
            prop_assert_eq!(Address::parse(&address.emit()), Ok(address));
        }

        #[test]
        fn arbitrary_blobs_never_panic(blob in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = Address::parse(&blob);
        }

        #[test]
        fn exactly_one_of_two_addresses_outranks_the_other(a in addresses(), b in addresses()) {
            prop_assume!(a != b);
            prop_assert_ne!(a.outranks(&b), b.outranks(&a));
        }
    }

    #[test]
    fn a_truncated_or_foreign_blob_is_refused_by_name() {
        assert_eq!(Address::parse(&[1; 27]), Err(AddressError::Length(27)));
        assert_eq!(Address::parse(&[9; 28]), Err(AddressError::Version(9)));
        let mut blob = [0_u8; ADDRESS_LEN];
        (blob[0], blob[1]) = (VERSION, 5);
        assert_eq!(Address::parse(&blob), Err(AddressError::Field("address family")));
        blob[1] = 4;
        assert_eq!(Address::parse(&blob), Err(AddressError::Field("address or port")));
    }
}
