//! What this computer is: cores, root or not, and a place for softib's segments.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Result;
use crate::failure::Context;

/// Logical processors this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// True for user id 0. /proc/self belongs to the effective user.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|data| data.uid() == 0)
}

/// Why no tmpfs can be mounted for the eyes of one job: that takes root, and a mount namespace, which containers and
/// chroots may refuse.
pub fn no_mount() -> Option<String> {
    if !is_root() {
        return Some("only root may mount a tmpfs".to_owned());
    }
    let tried = Command::new("unshare").args(["-m", "true"]).stdin(Stdio::null()).output();
    match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Some(format!("no mount namespace can be made here: {said}"))
        }
        Err(error) => Some(format!("`unshare` cannot be run: {error}")),
    }
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

/// Where softib keeps its segments by default.
const SHARED_MEMORY: &str = "/dev/shm";

/// A folder for softib's segments (SOFTIB_DIR) that no other job uses, so that what is left in it
/// is known to be ours.
#[derive(Debug)]
pub struct SegmentFolder(PathBuf);

impl SegmentFolder {
    /// A new folder next to where segments usually are.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(SHARED_MEMORY).join(format!("oxib-test-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).context(format_args!("cannot create {}", path.display()))?;
        Ok(SegmentFolder(path))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What lies in it.
    pub fn contents(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    /// Removes what lies in it: the next case starts clean whatever this one left.
    pub fn clear(&self) {
        for path in self.contents() {
            let _seen_again_by_the_next_look = std::fs::remove_file(path);
        }
    }
}

impl Drop for SegmentFolder {
    fn drop(&mut self) {
        let _memory_may_stay = std::fs::remove_dir_all(&self.0);
    }
}

/// Files that programs of others leave in the temporary folder under fixed names: those that come while this lives go with it.
#[derive(Debug)]
pub struct Litter {
    folder: PathBuf,
    /// Were there before.
    known: Vec<PathBuf>,
}

impl Litter {
    /// Perftest and ibv_xsrq_pingpong leave the files of their XRC domains in /tmp, whatever TMPDIR says.
    pub fn of_programs() -> Self {
        Litter::below(Path::new("/tmp"))
    }

    fn below(folder: &Path) -> Self {
        Litter { folder: folder.to_owned(), known: Litter::found(folder) }
    }

    fn found(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let paths = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("xrc_domain"));
        paths
            .map(|entry| entry.path())
            .filter(|path| path.metadata().is_ok_and(|data| data.len() == 0))
            .collect()
    }
}

impl Drop for Litter {
    fn drop(&mut self) {
        for path in Litter::found(&self.folder).iter().filter(|path| !self.known.contains(path)) {
            let _anothers_stays = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_leave_in_the_temporary_folder_goes_and_what_was_there_before_stays() {
        let folder = SegmentFolder::create().unwrap();
        let file = |name: &str| folder.path().join(name);
        std::fs::write(file("xrc_domain"), "").unwrap();
        let litter = Litter::below(folder.path());
        for name in ["xrc_domain_client", "xrc_domain_server", "other"] {
            std::fs::write(file(name), "").unwrap();
        }
        drop(litter);
        let mut left = folder.contents();
        left.sort();
        assert_eq!(left, [file("other"), file("xrc_domain")]);
    }

    #[test]
    fn a_segment_folder_shows_what_is_left_in_it_and_goes_away_with_its_owner() {
        let folder = SegmentFolder::create().unwrap();
        let path = folder.path().to_owned();
        assert!(folder.contents().is_empty());
        std::fs::write(path.join("softib-0-1"), "").unwrap();
        assert_eq!(folder.contents(), vec![path.join("softib-0-1")]);
        folder.clear();
        assert!(folder.contents().is_empty());
        drop(folder);
        assert!(!path.exists());
    }
}
