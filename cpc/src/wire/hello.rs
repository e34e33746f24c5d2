//! The 56 bytes of private data that REQ and REP carry: all that one exchange per endpoint needs beyond one QP.
//!
//! ```text
//!   byte  0      version (4 bits), number of the stream (4 bits): in a REQ the one that its sender goes on with, in a REP the one that both
//!                have agreed upon
//!         1..3   layout: the highest bit that is set is that of the number of queues; below it, bit i set = queue i receives through a shared
//!                receive queue
//!         3..11  name of the sending process (job id, rank)
//!        11..56  15 QP numbers of 3 bytes; those behind the last queue are 0
//! ```
//! 56 bytes is the least private data that any connection manager offers (RDMA-CM in the TCP port space), so the same
//! bytes serve every component. The layout makes two peers with unlike `receive_queues` refuse each other here, before
//! a message could land in a queue of the wrong size.

use std::fmt;

use verbs::Qpn;

use super::WireError;
use crate::{ProcessName, StreamNum};

/// Length of the private data in use.
pub const HELLO_LEN: usize = 56;
/// The most queues an endpoint can have.
pub const MAX_QUEUES: usize = 15;
const HELLO_VERSION: u8 = 2;
const QPN_LEN: usize = 3;
const QPNS_AT: usize = 11;

/// How many queues an endpoint has and which of them are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    count: u8,
    shared: u16,
}

impl Layout {
    /// The layout of queues whose `shared` flags are given in order; `None` for none or more than 15.
    pub fn new(shared: impl IntoIterator<Item = bool>) -> Option<Layout> {
        let mut layout = Layout { count: 0, shared: 0 };
        for flag in shared {
            if usize::from(layout.count) == MAX_QUEUES {
                return None;
            }
            layout.shared |= u16::from(flag) << layout.count;
            layout.count += 1;
        }
        (layout.count > 0).then_some(layout)
    }

    /// Number of queues, 1 to 15.
    pub fn count(self) -> usize {
        usize::from(self.count)
    }

    pub(crate) fn to_bytes(self) -> [u8; 3] {
        let [hi, lo] = (self.shared | 1 << self.count).to_be_bytes();
        [HELLO_VERSION << 4, hi, lo]
    }

    pub(crate) fn from_bytes(bytes: [u8; 3]) -> Result<Layout, WireError> {
        let (version, layout) = (bytes[0] >> 4, u16::from_be_bytes([bytes[1], bytes[2]]));
        if version != HELLO_VERSION {
            return Err(WireError::Version(version));
        }
        match layout.checked_ilog2() {
            None | Some(0) => Err(WireError::Field("queue layout")),
            Some(count) => Ok(Layout { count: count as u8, shared: layout & !(1 << count) }),
        }
    }
}

/// Shown as one letter per queue, `P` for per-peer and `S` for shared.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0..self.count).try_for_each(|i| f.write_str(if self.shared >> i & 1 == 1 { "S" } else { "P" }))
    }
}

/// A number for each queue, in queue order; 1 to 15.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PerQueue<T> {
    len: u8,
    nums: [T; MAX_QUEUES],
}

/// The numbers of a connection's queue pairs, in the order of the layout.
pub type Qpns = PerQueue<Qpn>;

impl<T: Copy + Default> PerQueue<T> {
    /// Takes numbers in queue order; `None` for none or more than 15.
    pub fn new(from: &[T]) -> Option<Self> {
        let mut nums = [T::default(); MAX_QUEUES];
        nums.get_mut(..from.len())?.copy_from_slice(from);
        let len = u8::try_from(from.len()).ok().filter(|&n| n > 0)?;
        Some(PerQueue { len, nums })
    }

    /// Those there are, from 1 to 15, in the order of the layout.
    pub fn as_slice(&self) -> &[T] {
        &self.nums[..usize::from(self.len)]
    }

    /// The number of the first queue; a QP's stands also in the CM messages' own QPN field.
    pub fn first(&self) -> T {
        self.nums[0]
    }
}

impl<T: Copy + Default + fmt::Debug> fmt::Debug for PerQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// What a side tells of itself in REQ and REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Number and kinds of its queues.
    pub layout: Layout,
    /// Its name.
    pub name: ProcessName,
    /// Its QPs, as many as the layout has queues.
    pub qpns: Qpns,
    /// What its endpoint goes on with, or what both sides have agreed upon.
    pub stream: StreamNum,
}

impl Hello {
    /// Writes the private data; bytes beyond its own are set to 0. `out` has at least 56 bytes.
    pub fn emit(&self, out: &mut [u8]) {
        out.fill(0);
        out[..3].copy_from_slice(&self.layout.to_bytes());
        out[0] |= self.stream.0 & StreamNum::LAST.0;
        out[3..QPNS_AT].copy_from_slice(&self.name.0.to_be_bytes());
        for (slot, qpn) in out[QPNS_AT..HELLO_LEN].chunks_exact_mut(QPN_LEN).zip(self.qpns.as_slice()) {
            slot.copy_from_slice(&qpn.0.to_be_bytes()[1..]);
        }
    }

    /// Takes the private data apart; what a transport has padded them with is not looked at.
    ///
    /// # Errors
    /// Too short, of another version, or with a field that can't be.
    pub fn parse(data: &[u8]) -> Result<Hello, WireError> {
        let hello = Hello::parse_any(data)?;
        // QPs 0 and 1 are the management QPs: no connection ends there (IBTA 3.5.10).
        if hello.qpns.as_slice().iter().any(|q| q.0 < 2) {
            return Err(WireError::Field("queue pair number"));
        }
        Ok(hello)
    }

    /// The same for devices that have no management QPs, and number theirs from 0 or 1: iWARP ones.
    ///
    /// # Errors
    /// As [`Hello::parse`].
    pub fn parse_any(data: &[u8]) -> Result<Hello, WireError> {
        let data: &[u8; HELLO_LEN] = data.first_chunk().ok_or(WireError::Length(data.len(), HELLO_LEN))?;
        let layout = Layout::from_bytes([data[0], data[1], data[2]])?;
        let mut name = [0_u8; 8];
        name.copy_from_slice(&data[3..QPNS_AT]);
        let qpns = parse_qpns(&data[QPNS_AT..], layout.count())?;
        let stream = StreamNum(data[0] & StreamNum::LAST.0);
        Ok(Hello { layout, name: ProcessName(u64::from_be_bytes(name)), qpns, stream })
    }
}

fn parse_qpns(bytes: &[u8], count: usize) -> Result<Qpns, WireError> {
    let mut qpns = [Qpn(0); MAX_QUEUES];
    for (qpn, three) in qpns.iter_mut().zip(bytes.chunks_exact(QPN_LEN)).take(count) {
        *qpn = Qpn(u32::from_be_bytes([0, three[0], three[1], three[2]]));
    }
    Qpns::new(&qpns[..count]).ok_or(WireError::Field("queue count"))
}
