//! What is wrong with a layout, told to its author.

#![forbid(unsafe_code)]

use std::fmt;

/// A field of the `receive_queues` grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// The list of queues as a whole.
    List,
    /// The letter `P`, `S` or `X`.
    Type,
    /// Payload bytes of a buffer.
    Size,
    /// Receives: of each peer (P), or at most of the shared queue (S, X).
    RdNum,
    /// Receives are posted again when no more than this many are left.
    RdLow,
    /// P: owed credits that call for an explicit credit message.
    RdWin,
    /// P: receives posted for explicit credit messages.
    RdRsv,
    /// S, X: sends in flight on the queue, all peers together.
    SdMax,
    /// Receives posted at first.
    RdInit,
    /// S, X: low-water mark of the SRQ limit event.
    SrqLimit,
    /// A field after the last one that this kind of queue has.
    Extra,
}

impl Field {
    /// The name as documentation spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::List => "list of queues",
            Self::Type => "type",
            Self::Size => "size",
            Self::RdNum => "rd_num",
            Self::RdLow => "rd_low",
            Self::RdWin => "rd_win",
            Self::RdRsv => "rd_rsv",
            Self::SdMax => "sd_max",
            Self::RdInit => "rd_init",
            Self::SrqLimit => "srq_limit",
            Self::Extra => "extra field",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A `receive_queues` string that breaks the grammar. Displays as three lines: the sentence, the
/// string, a caret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutError {
    pub(super) text: Box<str>,
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) queue: usize,
    pub(super) field: Field,
    pub(super) expected: Box<str>,
}

impl LayoutError {
    /// Byte position in the string, from 0, where the offending field begins (the string's length
    /// at its end).
    pub const fn at(&self) -> usize {
        self.at
    }

    /// Number of the queue in the list, from 1.
    pub const fn queue(&self) -> usize {
        self.queue
    }

    /// The field that is wrong or missing.
    pub const fn field(&self) -> Field {
        self.field
    }

    /// The offending text; empty when something is missing.
    pub fn found(&self) -> &str {
        self.text.get(self.at..self.at + self.len).unwrap_or_default()
    }

    /// What should stand there.
    pub fn expected(&self) -> &str {
        &self.expected
    }

    /// The string, cut around the offending field and with unprintable characters escaped, and a
    /// line with carets.
    fn picture(&self) -> [String; 2] {
        const BEFORE: usize = 60;
        const AFTER: usize = 30;
        let head = &self.text.get(..self.at).unwrap_or_default();
        let tail = self.text.get(self.at + self.len..).unwrap_or_default();
        let cut_head = head.char_indices().rev().nth(BEFORE).is_some();
        let head_from = head.char_indices().rev().take(BEFORE).last().map_or(0, |(index, _)| index);
        let head = head.get(head_from..).unwrap_or_default().escape_debug().to_string();
        let found = shorten(self.found(), AFTER);
        let line = format!("{}{head}{found}{}", if cut_head { "..." } else { "" }, shorten(tail, AFTER));
        let indent = head.chars().count() + if cut_head { 3 } else { 0 };
        let carets = "^".repeat(found.chars().count().max(1));
        [line, format!("{:indent$}{carets}", "")]
    }
}

fn shorten(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default().escape_debug()),
        None => text.escape_debug().to_string(),
    }
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, field, at, expected, .. } = self;
        let found = match self.found() {
            "" if *at >= self.text.len() => "the end".to_owned(),
            "" => "nothing".to_owned(),
            text => format!("\"{}\"", shorten(text, 30)),
        };
        let [line, carets] = self.picture();
        writeln!(
            f,
            "receive_queues: queue {queue}, {field}, at byte {at}: found {found}, expected {expected}"
        )?;
        write!(f, "    {line}\n    {carets}")
    }
}

impl std::error::Error for LayoutError {}

/// A limit of the upper layer that no queue of the layout can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{parameter} is {value} bytes, but the last queue of receive_queues holds {largest}: \
     lower {parameter} or enlarge the queue"
)]
pub struct LimitError {
    /// `eager_limit` or `max_send_size`.
    pub parameter: &'static str,
    /// Its value in bytes.
    pub value: usize,
    /// Payload bytes of the largest buffer.
    pub largest: usize,
}
