//! What is wrong with a file of device parameters, told to its author.

#![forbid(unsafe_code)]

/// Something in a file that is not understood. Displays as `FILE:LINE:COLUMN: found ..., expected
/// ...`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: found {found}, expected {expected}")]
pub struct IniError {
    /// Name of the file, as messages show it.
    pub file: Box<str>,
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// What stands there: in quotation marks, or in words.
    pub found: Box<str>,
    /// What may stand there.
    pub expected: Box<str>,
}

/// Most characters of the file that a message repeats.
const SHOWN: usize = 40;

/// A piece of the file, as messages show it.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("\"{}...\"", text.get(..end).unwrap_or_default().escape_debug()),
        None => format!("\"{}\"", text.escape_debug()),
    }
}
