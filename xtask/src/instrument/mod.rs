//! `cargo xtask bench`: oxib beside every transport that does the same, at every size, as one instrument.
//!
//!     here        between processes of this host: the command
//!     guests      over a real kernel's verbs, in emulated guests: the same command with `--kernel`; conductor: a round within a guest
//!     contenders  the transports with their settings
//!     plan        what is measured, how often
//!     rounds      the rounds: jobs of all transports, which take turns measurement by measurement
//!     doorbells   system calls that wake a sleeping peer, during a million small messages
//!     samples     medians, quartiles, ratios within a round
//!     aims        how far ahead oxib is to be, and whether it is
//!     tables      the screen        record    the file        plot    the ratios as a picture
//!
//! Half round trips of 0 bytes to 4 MiB; messages a second in windows of 64, one way and both ways; bandwidth in windows. Every
//! payload is checked, outside of the timed parts (tests/mpi/measure.h). All transports have the same placement of ranks.

mod aims;
pub(crate) mod conductor;
mod contenders;
mod doorbells;
mod guests;
mod here;
mod plan;
mod plot;
mod record;
mod rounds;
mod samples;
mod tables;

use crate::args::Args;
use e2e::Result;

/// `cargo xtask bench`.
///
/// # Errors
/// oxib has failed; something cannot be built or written.
pub fn command(args: &Args) -> Result<()> {
    if args.flag("kernel") { guests::command(args) } else { here::command(args) }
}
