//! Which module may import which: the sources against `docs/arrows.txt`.
//!
//!     source   a file as words, without comments, literals and tests
//!     paths    the paths in it that begin at the root or at a parent
//!     tree     the files of a crate, and the arrows between them
//!     graph    circles
//!     list     docs/arrows.txt
//!     check    the sources against the list
//!
//! A test of [`check`] runs it over the workspace, so `cargo xtask test` does.

mod check;
mod graph;
mod list;
mod paths;
mod source;
mod tree;

use crate::workspace::Workspace;
use e2e::{Failure, Result, say};

/// `cargo xtask arrows`: says what is wrong.
pub fn command() -> Result<()> {
    let workspace = Workspace::find()?;
    let complaints = check::workspace(&workspace.root)?;
    if complaints.is_empty() {
        say!("every module imports only what docs/arrows.txt allows");
        return Ok(());
    }
    Err(Failure(complaints.join("\n")))
}
