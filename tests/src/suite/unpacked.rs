//! Debian packages that are fetched once and unpacked below target/ (`applications/unpacked`), because installed they would change the machine.
//! A distribution that lacks one has its cases skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{End, Finished, Limits, run};
use crate::suite::Setting;
use crate::{Failure, Result};

/// Exit status of our scripts for what cannot be had or done on this machine.
pub const NOT_HERE: i32 = 3;

/// Downloads take minutes on a slow line.
const FETCH: u64 = 900;

/// The folder of these packages, the first of which names it, or why they cannot be had here.
///
/// # Errors
/// What went wrong when they were fetched or unpacked.
pub fn unpack(setting: &Setting, packages: &[&str]) -> Result<std::result::Result<PathBuf, String>> {
    let name = packages.first().copied().unwrap_or_default();
    let folder = setting.target.join("oxib/applications").join(name);
    let mut script = Command::new(setting.sources.join("applications/unpacked"));
    let fetched = run(script.arg(&folder).args(packages), Limits::deadline(FETCH), &mut |_| {})?;
    match fetched.end {
        End::Exit(0) => Ok(Ok(folder)),
        End::Exit(NOT_HERE) => Ok(Err(last_line(&fetched))),
        _ => Err(Failure(format!("fetching {name} {}:\n{}", fetched.describe(), fetched.output))),
    }
}

/// Where the unpacked packages have libraries: usr/lib/x86_64-linux-gnu and lib/x86_64-linux-gnu, and the folders in them, where a package
/// keeps libraries for itself (`ceph/libceph-common.so.2`), to which the loader is led by an absolute path of the installed package.
pub fn libraries(folder: &Path) -> Vec<PathBuf> {
    let is_one = |path: &PathBuf| path.to_string_lossy().ends_with("-linux-gnu");
    let common = ["usr/lib", "lib"].iter().flat_map(|place| below(&folder.join(place))).filter(is_one);
    common.flat_map(|place| std::iter::once(place.clone()).chain(private(&place))).collect()
}

/// The folders below that hold shared libraries.
fn private(place: &Path) -> Vec<PathBuf> {
    let is_library = |path: &PathBuf| path.to_string_lossy().contains(".so.");
    below(place)
        .into_iter()
        .filter(|folder| folder.is_dir() && below(folder).iter().any(is_library))
        .collect()
}

/// What is in a folder; nothing if there is none.
pub fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// The last line of the output, which says why.
pub fn last_line(finished: &Finished) -> String {
    finished.output.lines().last().unwrap_or("without a word").to_owned()
}
