//! Which queues a side has, in private data: a fingerprint that decides, and as much of the text as fits, for the user.
//!
//! ```text
//!   byte 0      version, 1
//!        1      length of the text; longer than what follows if it was cut
//!        2..4   0
//!        4..8   fingerprint of the whole text (32)
//!        8..    the text, printable ASCII
//! ```
//! REQ has 36 bytes for it behind its 56 of [`super::Hello`], REP 140, REJ 148 (IBTA 12.6.5, 12.6.8, 12.6.7).

use std::fmt;

use super::WireError;
use super::field::{Mad, Place, Run};

/// The most of a text that is kept: what a REJ has room for.
const MAX_TEXT: usize = 140;
const VERSION: u8 = 1;
const TEXT_AT: usize = 8;

/// The queues of one side: equal for two sides if and only if their fingerprints are.
#[derive(Clone, Copy)]
pub struct Queues {
    fingerprint: u32,
    /// Length of the whole text; more than `kept` if it was cut.
    len: u8,
    kept: u8,
    text: [u8; MAX_TEXT],
}

impl Queues {
    /// The queues that `text` spells out; `fingerprint` is of all of it. What is no printable ASCII is not kept.
    pub fn new(fingerprint: u32, text: &str) -> Queues {
        let bytes = if text.bytes().all(|b| b.is_ascii_graphic()) { text.as_bytes() } else { &[] };
        let len = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
        Queues::cut(fingerprint, len, bytes)
    }

    /// Keeps what fits of a text of `len` bytes that begins with `bytes`.
    fn cut(fingerprint: u32, len: u8, bytes: &[u8]) -> Queues {
        let mut text = [0; MAX_TEXT];
        let kept = bytes.len().min(MAX_TEXT).min(len.into());
        text[..kept].copy_from_slice(&bytes[..kept]);
        Queues { fingerprint, len, kept: u8::try_from(kept).unwrap_or(0), text }
    }

    /// What decides whether two sides have the same queues.
    pub fn fingerprint(&self) -> u32 {
        self.fingerprint
    }

    /// As much of the text as has come.
    fn text(&self) -> &str {
        std::str::from_utf8(&self.text[..usize::from(self.kept)]).unwrap_or("")
    }

    /// Writes them into private data; bytes beyond their own are set to 0. `out` has room for at least 8 bytes.
    pub(crate) fn emit(&self, out: &mut [u8]) {
        out.fill(0);
        let Some((head, room)) = out.split_first_chunk_mut::<TEXT_AT>() else { return };
        let [a, b, c, d] = self.fingerprint.to_be_bytes();
        *head = [VERSION, self.len, 0, 0, a, b, c, d];
        room.iter_mut().zip(self.text().bytes()).for_each(|(to, from)| *to = from);
    }

    /// Reads them from private data.
    ///
    /// # Errors
    /// Too short, of another version, or with a field that can't be.
    pub(crate) fn parse(data: &[u8]) -> Result<Queues, WireError> {
        let short = WireError::Length(data.len(), TEXT_AT);
        let (&[version, len, zero, zeroes, a, b, c, d], room) = data.split_first_chunk().ok_or(short)?;
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        let text = &room[..room.len().min(len.into())];
        if (zero, zeroes) != (0, 0) || !text.iter().all(u8::is_ascii_graphic) {
            return Err(WireError::Field("receive queues"));
        }
        Ok(Queues::cut(u32::from_be_bytes([a, b, c, d]), len, text))
    }
}

impl Place<Queues> for Run {
    fn put(&self, queues: &Queues, mad: &mut Mad) {
        queues.emit(self.of_mut(mad));
    }

    fn take(&self, mad: &Mad) -> Result<Queues, WireError> {
        Queues::parse(self.of(mad))
    }
}

/// The fingerprint decides; how much of the text came along does not.
impl PartialEq for Queues {
    fn eq(&self, other: &Queues) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for Queues {}

/// The text, or what has come of it, or the fingerprint where nothing has.
impl fmt::Display for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kept {
            0 => write!(f, "of fingerprint {:#010x}", self.fingerprint),
            kept if kept < self.len => write!(f, "{}...", self.text()),
            _ => f.write_str(self.text()),
        }
    }
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queues({self}, {:#010x})", self.fingerprint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LONG: &str = "P,128,256,192,128,4:S,2048,1024,1008,64,256,48:S,12288,512,496,64,128,24";

    fn carried(queues: &Queues, room: usize) -> Queues {
        let mut data = vec![0xa5; room];
        queues.emit(&mut data);
        Queues::parse(&data).unwrap()
    }

    #[test]
    fn a_text_that_fits_arrives_whole_and_another_is_cut_and_says_so() {
        let queues = Queues::new(7, LONG);
        assert_eq!(carried(&queues, 148).to_string(), LONG);
        assert_eq!(carried(&queues, 36).to_string(), format!("{}...", &LONG[..28]));
        assert_eq!(carried(&Queues::new(7, "S,65536,16,12,3,4,1"), 36).to_string(), "S,65536,16,12,3,4,1");
        assert_eq!(carried(&Queues::new(0xabc, ""), 36).to_string(), "of fingerprint 0x00000abc");
        assert_eq!(Queues::new(1, &LONG.repeat(9)).to_string().len(), MAX_TEXT + 3);
    }

    #[test]
    fn the_fingerprint_decides_whatever_the_text() {
        assert_eq!(Queues::new(7, LONG), Queues::new(7, ""));
        assert_ne!(Queues::new(7, LONG), Queues::new(8, LONG));
    }

    #[test]
    fn another_version_and_impossible_fields_are_named() {
        let mut data = [0; 36];
        assert_eq!(Queues::parse(&data), Err(WireError::Version(0)));
        assert_eq!(Queues::parse(&data[..7]), Err(WireError::Length(7, 8)));
        Queues::new(7, LONG).emit(&mut data);
        data[9] = b'\n';
        assert_eq!(Queues::parse(&data), Err(WireError::Field("receive queues")));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(data in proptest::collection::vec(any::<u8>(), 0..200), version in 0..2_u8) {
            let mut data = data;
            data.first_mut().into_iter().for_each(|first| *first = version);
            if let Ok(queues) = Queues::parse(&data) {
                prop_assert_eq!(carried(&queues, 148).to_string(), queues.to_string());
            }
        }
    }
}
