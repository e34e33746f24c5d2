//! todo
use crate::args::{Args, Options};
pub const OPTIONS: Options = Options { flags: &[], values: &[], words: false };
pub fn command(_: Args) -> e2e::Result<()> {
    Err(e2e::Failure::new("not yet"))
}
