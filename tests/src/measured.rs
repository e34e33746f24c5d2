//! What `tests/mpi/pingpong` measures, on this machine and in guests alike: which sizes, in which words, and the lines of its results.

use std::fmt;

/// Bytes of a payload, ascending: round ones, and those on both sides of where transports change their way.
pub const SIZES: [u64; 19] = [
    0,
    1,
    8,
    64,
    120,
    200,
    512,
    1024,
    2000,
    4000,
    4096,
    8192,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
];

/// How payloads are exchanged (`tests/mpi/exchanges.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One at a time, there and back.
    HalfRoundTrip,
    /// In windows of up to 64, one way.
    OneWay,
    /// In windows of up to 64 each way at the same time.
    BothWays,
    /// One each way at the same time.
    Swap,
    /// One each way at the same time, behind 10 ms without MPI.
    Turns,
    /// One each way at the same time, behind a walk of each rank through more memory than a second level cache holds.
    Walks,
    /// One each way at the same time, with MPI_Testall between pieces of computation of 10 us.
    Tests,
    /// MPI_Allreduce.
    Sum,
    /// MPI_Alltoall.
    Everyone,
    /// MPI_Bcast.
    Broadcast,
    /// MPI_Put and MPI_Win_flush.
    Put,
    /// MPI_Get and MPI_Win_flush.
    Get,
    /// MPI_Put of many payloads each way, and one MPI_Win_flush.
    Puts,
    /// MPI_Get of many payloads each way, and one MPI_Win_flush.
    Gets,
    /// MPI_Fetch_and_op and MPI_Win_flush.
    Fetch,
    /// No messages: a cache line goes to and fro between the processors of two ranks.
    Line,
    /// No messages: all ranks count at the same time.
    Core,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 17] = [
        Kind::HalfRoundTrip,
        Kind::OneWay,
        Kind::BothWays,
        Kind::Swap,
        Kind::Turns,
        Kind::Walks,
        Kind::Tests,
        Kind::Sum,
        Kind::Everyone,
        Kind::Broadcast,
        Kind::Put,
        Kind::Get,
        Kind::Puts,
        Kind::Gets,
        Kind::Fetch,
        Kind::Line,
        Kind::Core,
    ];

    /// What programs do beside ping-pong and windows.
    pub fn is_pattern(self) -> bool {
        !matches!(self, Kind::HalfRoundTrip | Kind::OneWay | Kind::BothWays | Kind::Line | Kind::Core)
    }

    /// In words, for tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::HalfRoundTrip => "half round trip",
            Kind::OneWay => "one way",
            Kind::BothWays => "both ways",
            Kind::Swap => "one each way",
            Kind::Turns => "by turns",
            Kind::Walks => "behind a walk",
            Kind::Tests => "by tests",
            Kind::Sum => "MPI_Allreduce",
            Kind::Everyone => "MPI_Alltoall",
            Kind::Broadcast => "MPI_Bcast",
            Kind::Put => "MPI_Put",
            Kind::Get => "MPI_Get",
            Kind::Puts => "MPI_Puts each way",
            Kind::Gets => "MPI_Gets each way",
            Kind::Fetch => "MPI_Fetch_and_op",
            Kind::Line => "cache line",
            Kind::Core => "core",
        }
    }

    /// The program's word for it.
    fn word(self) -> &'static str {
        match self {
            Kind::HalfRoundTrip => "size",
            Kind::OneWay => "rate",
            Kind::BothWays => "both",
            Kind::Swap => "swap",
            Kind::Turns => "turns",
            Kind::Walks => "walks",
            Kind::Tests => "tests",
            Kind::Sum => "sum",
            Kind::Everyone => "everyone",
            Kind::Broadcast => "bcast",
            Kind::Put => "put",
            Kind::Get => "get",
            Kind::Puts => "puts",
            Kind::Gets => "gets",
            Kind::Fetch => "fetch",
            Kind::Line => "line",
            Kind::Core => "core",
        }
    }
}

/// What is measured at a time; as text, the program's word for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measurement {
    /// How payloads are exchanged.
    pub kind: Kind,
    /// Of a payload.
    pub bytes: u64,
}

impl Measurement {
    /// Of one message at a time.
    pub fn half_round_trip(bytes: u64) -> Self {
        Measurement { kind: Kind::HalfRoundTrip, bytes }
    }

    /// The program's word for it, read; `None` for any other word.
    pub fn parse(word: &str) -> Option<Self> {
        let (kind, bytes) = word.split_once(':')?;
        Measurement::of(kind, bytes)
    }

    fn of(kind: &str, bytes: &str) -> Option<Self> {
        let kind = Kind::ALL.into_iter().find(|known| known.word() == kind)?;
        Some(Measurement { kind, bytes: bytes.parse().ok()? })
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.word(), self.bytes)
    }
}

/// A result; as text, the program's line for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// What was measured.
    pub what: Measurement,
    /// Batches of messages, each with a time of its own.
    pub batches: u32,
    /// Time of a message in us: the median of the batches.
    pub median_us: f64,
    /// The least of the batches.
    pub least_us: f64,
}

impl Measured {
    /// `KIND BYTES batches N median_us X min_us Y`; `None` for any other line.
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [kind, bytes, "batches", batches, "median_us", median, "min_us", least] = words[..] else {
            return None;
        };
        Some(Measured {
            what: Measurement::of(kind, bytes)?,
            batches: batches.parse().ok()?,
            median_us: median.parse().ok()?,
            least_us: least.parse().ok()?,
        })
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured { what: Measurement { kind, bytes }, batches, median_us, least_us } = self;
        write!(f, "{} {bytes} batches {batches} median_us {median_us} min_us {least_us}", kind.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_and_any_other_line_is_not() {
        for kind in Kind::ALL {
            let line = format!("{} 1000 batches 7 median_us 2.0 min_us 1.5", kind.word());
            let what = Measurement { kind, bytes: 1000 };
            assert_eq!(Measurement::parse(&what.to_string()), Some(what));
            let measured = Measured { what, batches: 7, median_us: 2.0, least_us: 1.5 };
            assert_eq!(Measured::parse(&line), Some(measured));
            assert_eq!(Measured::parse(&measured.to_string()), Some(measured));
        }
        for line in ["PASS pingpong", "x 1 batches 7 median_us 2 min_us 1", "size 1 batches 7 median_us"] {
            assert_eq!(Measured::parse(line), None, "{line}");
            assert_eq!(Measurement::parse(line), None, "{line}");
        }
    }

    #[test]
    fn sizes_ascend() {
        assert!(SIZES.is_sorted());
    }
}
