//! The one error of this crate and of xtask: text for a person, ending in what to try where we know it.
//!
//! No caller decides anything by error kind, so there is no enum to match on.

use std::fmt;

/// What went wrong, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(pub String);

/// Result with [`Failure`].
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Failure(text.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// Says what was being done when another error came up.
pub trait Context<T> {
    /// `doing` reads like "cannot read /etc/passwd".
    fn context(self, doing: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, doing: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Failure(format!("{doing}: {error}")))
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, doing: impl fmt::Display) -> Result<T> {
        self.ok_or_else(|| Failure(doing.to_string()))
    }
}
