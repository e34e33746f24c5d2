//! Names and numbers of the fabric, kept apart by type.

use rdma_sys as sys;
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($repr:ty), $prefix:literal, $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub $repr);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, " ", $format), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    };
}

number!(/** Queue pair number, 24 bits. */ Qpn(u32), "qp", "{:#x}");
number!(/** Number of an XRC shared receive queue, 24 bits. */ SrqNum(u32), "srq", "{:#x}");
number!(/** Packet sequence number, 24 bits. */ Psn(u32), "psn", "{:#x}");
number!(/** Key of a registration, for local use. */ LKey(u32), "lkey", "{:#x}");
number!(/** Key of a registration, for a peer's use. */ RKey(u32), "rkey", "{:#x}");
number!(/** Key of a datagram service; the top bit is privileged (IBTA 10.2.5). */ QKey(u32), "qkey", "{:#x}");
number!(/** Local identifier of a port on its subnet. */ Lid(u16), "lid", "{}");

/// Global identifier of a port: 16 bytes in network order, subnet prefix first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Nothing is set: the table's entry is empty.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }

    pub(crate) fn to_sys(self) -> sys::ibv_gid {
        sys::ibv_gid { raw: self.0 }
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gid {}", std::net::Ipv6Addr::from(self.0))
    }
}

/// What an entry of a GID table is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidType {
    /// InfiniBand, and iWARP.
    Ib,
    /// RoCE right over Ethernet: does not pass a router.
    RoceV1,
    /// RoCE over UDP and IP.
    RoceV2,
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidType::Ib => "IB",
            GidType::RoceV1 => "RoCE v1",
            GidType::RoceV2 => "RoCE v2",
        })
    }
}

/// Path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    const ALL: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

    /// Payload bytes of a packet.
    pub fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The MTU of exactly so many bytes.
    pub fn from_bytes(bytes: u32) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|m| m.bytes() == bytes)
    }

    /// As verbs and the wire number it, 1 to 5.
    pub fn from_code(code: u32) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|m| *m as u32 == code)
    }
}

/// What a port's packets travel in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// InfiniBand: ports have LIDs.
    InfiniBand,
    /// RoCE, iWARP: ports have GIDs only.
    Ethernet,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_is_known_by_bytes_and_by_code() {
        for mtu in Mtu::ALL {
            assert_eq!(Mtu::from_bytes(mtu.bytes()), Some(mtu));
            assert_eq!(Mtu::from_code(mtu as u32), Some(mtu));
        }
        assert_eq!((Mtu::B4096.bytes(), Mtu::from_bytes(1500), Mtu::from_code(0)), (4096, None, None));
    }

    #[test]
    fn numbers_print_as_log_lines_want_them() {
        assert_eq!(format!("{:?} {} {:?}", Qpn(0x1a2b), Lid(7), Gid::default()), "qp 0x1a2b lid 7 gid ::");
    }
}
