//! What the two ends of a connection tell each other: one packet a message, fixed fields, then private data.
//!
//! ```text
//!    0 version  1 kind  2 QP type  3 SRQ  4 responder resources  5 initiator depth  6 flow control  7 retries
//!    8 RNR retries  9 MTU  10 0 (16)  12 reason (32)  16 QPN (32)  20 PSN (32)  24 Q_Key (32)  28 LID (16)  30 0 (16)
//!   32 GID (128)  48 sender's address (192)  72 destination (192)  96 length of private data  97.. private data
//! ```
//! Numbers are of the host: both ends are on it. Nothing here is trusted before [`Message::parse`] has looked at it.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

const VERSION: u8 = 1;
const FIXED: usize = 97;
/// The longest message.
pub const MAX_LEN: usize = FIXED + u8::MAX as usize;

/// The messages, named as the specification names them (IBTA 12.6, 12.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Req,
    Rep,
    Rtu,
    Rej,
    Dreq,
    Drep,
    SidrRep,
}

const KINDS: [Kind; 7] = [Kind::Req, Kind::Rep, Kind::Rtu, Kind::Rej, Kind::Dreq, Kind::Drep, Kind::SidrRep];

/// What a side tells of itself in requests and replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// `ibv_qp_type`.
    pub qp_type: u8,
    /// 1: its QP receives through an SRQ.
    pub srq: u8,
    /// RDMA READs and atomics that it serves at a time.
    pub responder_resources: u8,
    /// RDMA READs and atomics that it has under way at a time.
    pub initiator_depth: u8,
    /// As the program gave it, for the peer's event; not used.
    pub flow_control: u8,
    /// Transport retries, 0 to 7.
    pub retry_count: u8,
    /// RNR retries, 0 to 7; 7 repeats for ever.
    pub rnr_retry_count: u8,
    /// `ibv_mtu`.
    pub mtu: u8,
    /// Its queue pair.
    pub qpn: u32,
    /// The PSN that it starts with.
    pub psn: u32,
    /// Of a UD queue pair: its Q_Key.
    pub qkey: u32,
    pub lid: u16,
    pub gid: [u8; 16],
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub kind: Kind,
    pub side: Side,
    /// Of a rejection, or a SIDR reply: why; 0 = success.
    pub reason: u32,
    /// The sender's address, and the one it wants to reach.
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub private: Vec<u8>,
}

impl Message {
    /// The packet. Private data beyond 255 bytes are cut; callers have checked the limit.
    pub fn emit(&self) -> Vec<u8> {
        let s = &self.side;
        let private = &self.private[..self.private.len().min(255)];
        let mut out = vec![VERSION, self.kind as u8, s.qp_type, s.srq, s.responder_resources];
        out.extend([s.initiator_depth, s.flow_control, s.retry_count, s.rnr_retry_count, s.mtu, 0, 0]);
        for word in [self.reason, s.qpn, s.psn, s.qkey] {
            out.extend(word.to_ne_bytes());
        }
        out.extend(s.lid.to_ne_bytes());
        out.extend([0, 0]);
        out.extend(s.gid);
        out.extend(emit_address(self.from));
        out.extend(emit_address(self.to));
        out.push(private.len() as u8);
        out.extend(private);
        out
    }

    /// The message in a packet; `None` if it is none of this version.
    pub fn parse(bytes: &[u8]) -> Option<Message> {
        let (fixed, private) = bytes.split_first_chunk::<FIXED>()?;
        let word = |at: usize| u32::from_ne_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&fixed[32..48]);
        let side = Side {
            qp_type: fixed[2],
            srq: fixed[3],
            responder_resources: fixed[4],
            initiator_depth: fixed[5],
            flow_control: fixed[6],
            retry_count: fixed[7],
            rnr_retry_count: fixed[8],
            mtu: fixed[9],
            qpn: word(16),
            psn: word(20),
            qkey: word(24),
            lid: u16::from_ne_bytes([fixed[28], fixed[29]]),
            gid,
        };
        let plausible = fixed[0] == VERSION
            && usize::from(fixed[96]) == private.len()
            && side.qpn < 1 << 24
            && side.psn < 1 << 24
            && (1..=5).contains(&side.mtu)
            && side.retry_count <= 7
            && side.rnr_retry_count <= 7;
        if !plausible {
            return None;
        }
        Some(Message {
            kind: *KINDS.get(usize::from(fixed[1]))?,
            side,
            reason: word(12),
            from: parse_address(&fixed[48..72])?,
            to: parse_address(&fixed[72..96])?,
            private: private.to_vec(),
        })
    }
}

fn emit_address(address: SocketAddr) -> [u8; 24] {
    let mut out = [0; 24];
    out[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => {
            out[0] = 4;
            out[8..12].copy_from_slice(&v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            out[0] = 6;
            out[4..8].copy_from_slice(&v6.scope_id().to_be_bytes());
            out[8..].copy_from_slice(&v6.ip().octets());
        }
    }
    out
}

fn parse_address(bytes: &[u8]) -> Option<SocketAddr> {
    let bytes: &[u8; 24] = bytes.try_into().ok()?;
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    match bytes[0] {
        4 => {
            let ip = Ipv4Addr::new(bytes[8], bytes[9], bytes[10], bytes[11]);
            Some(SocketAddr::new(IpAddr::V4(ip), port))
        }
        6 => {
            let scope = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            let ip: [u8; 16] = bytes[8..].try_into().ok()?;
            Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope).into())
        }
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(kind: usize, numbers: [u32; 4], private: Vec<u8>) -> Message {
        let [qpn, psn, qkey, reason] = numbers;
        let side = Side {
            qp_type: 2,
            mtu: 5,
            retry_count: 7,
            rnr_retry_count: 7,
            initiator_depth: 255,
            qpn: qpn & 0xff_ffff,
            psn: psn & 0xff_ffff,
            qkey,
            lid: 0xabcd,
            gid: [7; 16],
            ..Side::default()
        };
        let (from, to) = ("10.0.0.1:5".parse().unwrap(), "[fe80::1%7]:65535".parse().unwrap());
        Message { kind: KINDS[kind], side, reason, from, to, private }
    }

    proptest! {
        #[test]
        fn a_message_survives_the_socket(
            kind in 0..KINDS.len(),
            numbers in any::<[u32; 4]>(),
            private in proptest::collection::vec(any::<u8>(), 0..256),
        ) {
            let message = message(kind, numbers, private);
            prop_assert_eq!(Message::parse(&message.emit()), Some(message));
        }

        #[test]
        fn arbitrary_bytes_never_panic_and_what_is_taken_is_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..400)
        ) {
            if let Some(message) = Message::parse(&bytes) {
                prop_assert_eq!(Message::parse(&message.emit()), Some(message));
            }
        }

        #[test]
        fn a_message_with_one_byte_changed_never_panics(at in 0..150_usize, to in any::<u8>()) {
            let mut bytes = message(1, [5; 4], vec![1; 53]).emit();
            bytes[at] = to;
            let _ = Message::parse(&bytes);
        }
    }

    #[test]
    fn a_truncated_message_is_none() {
        let bytes = message(0, [9; 4], vec![3; 56]).emit();
        for len in 0..bytes.len() {
            assert_eq!(Message::parse(&bytes[..len]), None, "{len}");
        }
    }
}
