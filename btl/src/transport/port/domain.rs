//! The XRC domain of this job's processes on this node: a file stands for it.
#![forbid(unsafe_code)]

use cpc::xrc::DomainId;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use verbs::{Context, Xrcd, XrcdOpen};

/// Why there is no domain.
#[derive(Debug, thiserror::Error)]
pub enum DomainError {
    /// The file could not be opened or made.
    #[error("the file {path} of the XRC domain: {error}; check TMPDIR and the job's session directory")]
    File { path: PathBuf, error: io::Error },
    /// The device has no XRC, or no more domains.
    #[error("X queues in receive_queues need XRC: {0}; use S queues where the device has none")]
    Verbs(#[from] verbs::Error),
}

/// An open domain.
#[derive(Debug)]
pub struct Domain {
    xrcd: Arc<Xrcd>,
    id: DomainId,
    path: PathBuf,
    /// Keeps the inode, and so the domain's name, from being used for another file.
    _file: File,
}

impl Domain {
    /// Opens the domain of this file, and makes both if they are not there.
    ///
    /// # Errors
    /// [`DomainError`].
    pub fn open(context: &Arc<Context>, path: &Path) -> Result<Domain, DomainError> {
        let failed = |error| DomainError::File { path: path.to_owned(), error };
        // Not through a link that another user has put there.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(path).map_err(failed)?;
        let data = file.metadata().map_err(failed)?;
        let xrcd = Xrcd::open(context, file.as_fd(), XrcdOpen::OrCreate);
        let xrcd = xrcd.inspect_err(|_| take_away(path))?;
        let id = DomainId::new(data.dev(), data.ino());
        Ok(Domain { xrcd, id, path: path.to_owned(), _file: file })
    }

    /// The domain.
    pub fn xrcd(&self) -> &Arc<Xrcd> {
        &self.xrcd
    }

    /// Its name on this node.
    pub fn id(&self) -> DomainId {
        self.id
    }
}

/// The first to leave takes the file away. A process that came after that would have a domain of
/// its own, which costs its peers another queue pair and nothing else.
impl Drop for Domain {
    fn drop(&mut self) {
        take_away(&self.path);
    }
}

fn take_away(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            log::debug!("{} stays: {error}", path.display());
        }
        _ => {}
    }
}
