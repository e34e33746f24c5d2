//! `receive_queues`: which queues a connection has, how large their buffers are and how many are
//! posted.
//!
//! ```text
//!   list  := queue { ":" queue }                                           at most 15, sizes ascending
//!   queue := P,size,rd_num[,rd_low[,rd_win[,rd_rsv[,rd_init]]]]            receives per peer, with credits
//!          | S,size,rd_num[,rd_low[,sd_max[,rd_init[,srq_limit]]]]         receives shared by all peers
//!          | X,(as S)                                                      the same over XRC; not mixed with P, S
//! ```
//!
//! The grammar and the defaults are those of the openib BTL, so its strings work (P queues had no
//! `rd_init`). What it accepted
//! silently and then stalled on is refused here: garbage in a number, sizes out of order, windows
//! that can never be returned, values that do not fit the header's fields. An empty or missing
//! optional field takes its default:
//!
//! | field       | default                    | bounds             | meaning                                       |
//! |-------------|----------------------------|--------------------|-----------------------------------------------|
//! | `size`      | none                       | 32 ..= 2^30        | payload bytes of one buffer; headers come on top |
//! | `rd_num`    | 256 (when empty)           | 1 ..= 32767        | P: receives per peer; S: most receives of the SRQ |
//! | `rd_low`    | rd_num - rd_num/4          | below rd_num       | repost when no more than this many are posted |
//! | `rd_win`    | (rd_num - rd_low) * 2      | 1 ..= rd_num       | owed credits that call for an explicit credit message |
//! | `rd_rsv`    | rd_num * 2 / rd_win        | 2 ..= 255          | receives posted for explicit credit messages  |
//! | `sd_max`    | rd_low / 4                 | 1 ..= 32767        | sends in flight on this SRQ, all peers together |
//! | `rd_init`   | P: rd_num / 8, 4 at least; S: rd_num / 4 | 1 ..= rd_num       | receives posted at first                      |
//! | `srq_limit` | (rd_init - rd_init/4) / 4  | 0 ..= rd_num       | low-water mark of the SRQ limit event, 0: none |
//!
//! A default that falls out of its bounds is moved to the nearest bound.

#![forbid(unsafe_code)]

mod error;
mod grammar;

use std::fmt;
use std::str::FromStr;

use super::credits::Window;

pub use error::{Field, LayoutError, LimitError};

/// Most queues that a layout can have: a connection request carries that many queue pair numbers.
pub const MAX_QUEUES: usize = 15;

/// Longest accepted `receive_queues` string, in bytes.
pub const MAX_TEXT: usize = 1024;

/// The layout when none is set: small messages per peer, larger ones shared (`configs/default.conf`
/// gives the reasons).
pub const DEFAULT: &str =
    "P,128,256,192,128,4,32:S,2048,1024,1008,64,256,48:S,12288,512,496,32,64,16:S,65664,512,496,16,32,8";

/// The layout on iWARP ports when none is set: per-peer queues only (`configs/iwarp.conf` gives the
/// reasons).
pub const IWARP: &str = "P,128,64,48,32,4,8:P,4096,32,24,16,4,4:P,65536,16,12,8,4,4";

/// What a queue's receives are attached to, and the numbers that only this kind has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `P`: receives per peer, flow-controlled by credits.
    PerPeer {
        /// Owed credits that call for an explicit credit message.
        rd_win: u16,
        /// Receives posted for explicit credit messages.
        rd_rsv: u8,
        /// Receives posted at first; grows to `rd_num`.
        rd_init: u16,
    },
    /// `S`: a shared receive queue.
    Shared(Srq),
    /// `X`: a shared receive queue reached over XRC.
    Xrc(Srq),
}

/// The numbers of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Srq {
    /// Sends in flight on this queue, all peers together.
    pub sd_max: u16,
    /// Receives posted at first; grows to `rd_num`.
    pub rd_init: u16,
    /// Low-water mark of the SRQ limit event; 0 for none.
    pub srq_limit: u16,
}

/// One queue of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Queue {
    /// Per peer, shared or XRC.
    pub kind: Kind,
    /// Payload bytes of one buffer, without headers.
    pub size: u32,
    /// P: receives per peer. S, X: most receives of the shared queue.
    pub rd_num: u16,
    /// Repost when no more than this many are posted.
    pub rd_low: u16,
}

impl Queue {
    /// Whether this is a per-peer (P) queue.
    pub const fn is_per_peer(&self) -> bool {
        matches!(self.kind, Kind::PerPeer { .. })
    }

    /// The credit window of a P queue, as large as it gets.
    pub fn window(&self) -> Option<Window> {
        match self.kind {
            Kind::PerPeer { rd_win, rd_rsv, .. } => Window::new(self.rd_num, self.rd_low, rd_win, rd_rsv),
            Kind::Shared(_) | Kind::Xrc(_) => None,
        }
    }

    /// The credit window of a P queue when a connection is new.
    pub fn first_window(&self) -> Option<Window> {
        match self.kind {
            Kind::PerPeer { rd_init, .. } => self.window().map(|window| window.part(rd_init)),
            Kind::Shared(_) | Kind::Xrc(_) => None,
        }
    }

    /// The numbers of an S or X queue.
    pub const fn srq(&self) -> Option<Srq> {
        match self.kind {
            Kind::Shared(srq) | Kind::Xrc(srq) => Some(srq),
            Kind::PerPeer { .. } => None,
        }
    }
}

/// A parsed `receive_queues`: at least one queue, ascending sizes, every rule of the grammar holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    queues: Box<[Queue]>,
}

impl Layout {
    /// Parses a `receive_queues` string.
    ///
    /// # Errors
    /// [`LayoutError`] says where, which field, what was found and what was expected.
    pub fn parse(text: &str) -> Result<Self, LayoutError> {
        grammar::parse(text).map(|queues| Self { queues: queues.into_boxed_slice() })
    }

    /// The queues, ascending by size; never empty.
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// Index of the smallest P queue by size, which carries the CTS. `None` in a layout of S or X
    /// only.
    pub fn smallest_p(&self) -> Option<usize> {
        self.queues.iter().position(Queue::is_per_peer)
    }

    /// Index of the smallest queue whose buffers hold `len` bytes of payload.
    #[inline(always)] // with every message
    pub fn for_payload(&self, len: usize) -> Option<usize> {
        self.queues.iter().position(|queue| len <= queue.size as usize)
    }

    /// Index of the queue with the largest buffers.
    pub fn largest(&self) -> usize {
        self.queues.len().saturating_sub(1)
    }

    /// Payload bytes of the largest buffer: no fragment can be longer.
    pub fn largest_payload(&self) -> usize {
        self.queues.last().map_or(0, |queue| queue.size as usize)
    }

    /// Whether these are X queues: all are, or none is.
    pub fn is_xrc(&self) -> bool {
        self.queues.iter().any(|queue| matches!(queue.kind, Kind::Xrc(_)))
    }

    /// Checks that the fragments which the upper layer will hand over fit in the last queue.
    ///
    /// # Errors
    /// [`LimitError`] names the parameter, its value and the largest size.
    pub fn check_limits(&self, eager_limit: usize, max_send_size: usize) -> Result<(), LimitError> {
        let largest = self.largest_payload();
        [("eager_limit", eager_limit), ("max_send_size", max_send_size)]
            .into_iter()
            .find(|&(_, value)| value > largest)
            .map_or(Ok(()), |(parameter, value)| Err(LimitError { parameter, value, largest }))
    }

    /// A short hash (FNV-1a) of the canonical string, for a cheap comparison of two sides.
    pub fn fingerprint(&self) -> u32 {
        let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        self.to_string().bytes().fold(0x811c_9dc5, step)
    }
}

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        Self::parse(text)
    }
}

/// The canonical string: every field spelled out.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, queue) in self.queues.iter().enumerate() {
            if index > 0 {
                f.write_str(":")?;
            }
            write!(f, "{queue}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, rd_num, rd_low, .. } = self;
        let (letter, Srq { sd_max, rd_init, srq_limit }) = match self.kind {
            Kind::PerPeer { rd_win, rd_rsv, rd_init } => {
                return write!(f, "P,{size},{rd_num},{rd_low},{rd_win},{rd_rsv},{rd_init}");
            }
            Kind::Shared(srq) => ('S', srq),
            Kind::Xrc(srq) => ('X', srq),
        };
        write!(f, "{letter},{size},{rd_num},{rd_low},{sd_max},{rd_init},{srq_limit}")
    }
}
