//! The file of the parameter `timeline`: when what happened to each connection of a process.

use crate::transport::timeline::{Record, json};
use std::path::{Path, PathBuf};

/// Where the module of one port writes: `oxib-<job>-<rank>-<device>-<port>.json` in the user's
/// folder.
pub fn file(folder: &str, me: u64, device: &str, port: u8) -> Option<PathBuf> {
    let (job, rank) = (me >> 32, me & 0xffff_ffff);
    (!folder.is_empty()).then(|| Path::new(folder).join(format!("oxib-{job}-{rank}-{device}-{port}.json")))
}

/// Writes the file; a failure is a warning, the job has done its work.
pub fn write(file: &Path, records: &[Record]) {
    if let Err(error) = std::fs::write(file, json(records) + "\n") {
        log::warn!(
            "the timelines of connections cannot be written to {}: {error}; \
             btl_oxib_timeline names a folder that every process can write to",
            file.display()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_names_job_rank_and_port() {
        assert_eq!(file("", 7 << 32 | 2, "softib0", 1), None);
        let path = file("/tmp/x", 7 << 32 | 2, "softib0", 1);
        assert_eq!(path, Some(PathBuf::from("/tmp/x/oxib-7-2-softib0-1.json")));
    }

    #[test]
    fn a_folder_that_is_not_there_does_no_harm() {
        write(Path::new("/nonexistent/oxib.json"), &[]);
    }
}
