//! What this computer is: cores, root or not, and which segments lie in /dev/shm.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::process::ask;

/// Logical processors this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// True for user id 0. /proc/self belongs to the effective user.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|data| data.uid() == 0)
}

/// The processor's name, for reports.
pub fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split(':').nth(1));
    name.map_or_else(|| "unknown processor".to_owned(), |name| name.trim().to_owned())
}

/// One-minute load average.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// Version of the distribution's Open MPI ("4.1.4"), if it is installed.
pub fn open_mpi_version() -> Option<String> {
    let text = ask("mpirun", &["--version"])?;
    text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned)
}

/// Where softib keeps its segments (`SOFTIB_DIR`, else /dev/shm).
pub fn segment_folder() -> PathBuf {
    std::env::var_os("SOFTIB_DIR").map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from)
}

/// Files named `softib*` in `folder`.
pub fn segments(folder: &Path) -> BTreeSet<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return BTreeSet::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    paths
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("softib")))
        .collect()
}

/// Segments that are new since `before` and that no living process has open or mapped.
pub fn abandoned_segments(folder: &Path, before: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let new: Vec<PathBuf> = segments(folder).difference(before).cloned().collect();
    if new.is_empty() {
        return new;
    }
    let held = files_in_use();
    new.into_iter().filter(|path| path.exists() && !held.contains(path)).collect()
}

/// Paths that some process we may look at has open or mapped.
fn files_in_use() -> BTreeSet<PathBuf> {
    let mut held = BTreeSet::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let maps = std::fs::read_to_string(process.path().join("maps")).unwrap_or_default();
        held.extend(maps.lines().filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..]))));
        let descriptors = std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        held.extend(descriptors.filter_map(|fd| std::fs::read_link(fd.path()).ok()));
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_abandoned_only_when_it_is_new_and_nobody_holds_it() {
        let folder = std::env::temp_dir().join(format!("oxib-machine-test-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("softib-old"), "").unwrap();
        let before = segments(&folder);
        let held = std::fs::File::create(folder.join("softib-held")).unwrap();
        std::fs::write(folder.join("softib-left"), "").unwrap();
        std::fs::write(folder.join("other"), "").unwrap();
        assert_eq!(abandoned_segments(&folder, &before), vec![folder.join("softib-left")]);
        drop(held);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
