//! Which XRC domains there are: found by the file that names them, made, left, swept.
//!
//! A domain's segment is a file `softib-<uid>-<slot>` with one of the last slots. Every process
//! that has it open holds a read lock on its first byte; so it is swept like any segment when no
//! process that has it open lives, and the last one to leave removes it.
//!
//! Looking for a domain and making it must be one step, and so must leaving it and removing it:
//! both are done under a lock of their own, a file `softib-<uid>-xrcd`, which is there only while a
//! process needs it. A process that waited for it looks whether it still has its name, and starts
//! again if not.

use super::card::Card;
use super::domain::{self, DomainFile, HELD, Identity};
use super::filelock::{self, Kind, Range};
use super::files::{self, is_same, link_name};
use super::layout::{DOMAIN_SLOTS, H_SLOT, SLOTS};
use super::map::Map;
use super::segment::{self, open_slot, slot_path};
use super::shortage::take_space;
use super::{folder, shortage};
use crate::errno::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};

/// The descriptors that hold domains open, by slot, for the fork child.
static HOLDING: [AtomicI32; SLOTS - DOMAIN_SLOTS] = [const { AtomicI32::new(-1) }; SLOTS - DOMAIN_SLOTS];

/// Opens the domain of `identity` for this process, or makes it on a device with these ports; EAGAIN: there is none and none are given; EINVAL: there is one and
/// `exclusive` is set (the errors of Linux' own verbs).
pub fn open(
    dir: &Path,
    identity: Identity,
    ports: Option<&[Card]>,
    exclusive: bool,
) -> Result<DomainFile, Errno> {
    let lock = Registry::lock(dir)?;
    let domain = match find(dir, identity) {
        Some(_) if exclusive && ports.is_some() => return Err(Errno::INVAL),
        Some(domain) => domain,
        None => make(dir, identity, ports.ok_or(Errno(libc::EAGAIN))?)?,
    };
    drop(lock);
    HOLDING[domain.slot - DOMAIN_SLOTS].store(domain.file().as_raw_fd(), Ordering::Release);
    Ok(domain)
}

/// Leaves a domain, with everything this process has in it.
pub fn part(dir: &Path, file: &DomainFile, holder: usize) {
    if let Ok(locked) = file.lock() {
        locked.leave(holder);
    }
    leave(dir, file);
}

/// Leaves a domain that [`open`] returned; it is removed if it is open nowhere else.
pub fn leave(dir: &Path, domain: &DomainFile) {
    let lock = Registry::lock(dir);
    if filelock::try_take(domain.file(), Kind::Exclusive, Range::Whole) == Ok(true) {
        files::unlink_if_same(&slot_path(dir, domain.slot), domain.file());
    }
    HOLDING[domain.slot - DOMAIN_SLOTS].store(-1, Ordering::Release);
    filelock::release(domain.file(), Range::Whole);
    drop(lock);
}

/// Maps the domain in `slot` without opening it: for those who send to it.
pub fn attach(dir: &Path, slot: usize) -> Result<DomainFile, Errno> {
    DomainFile::map(open_slot(dir, slot)?, slot)
}

/// Whether `domain` still is the one that has its slot.
pub fn is_current(dir: &Path, domain: &DomainFile) -> bool {
    is_same(&slot_path(dir, domain.slot), domain.file())
}

/// The fork child keeps no domain open: its parent's death must be seen.
pub fn forget_in_fork_child() {
    for fd in &HOLDING {
        let fd = fd.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            // SAFETY: closes the child's copy of a descriptor whose File is leaked with the parent's engine.
            unsafe { libc::close(fd) };
        }
    }
}

fn find(dir: &Path, identity: Identity) -> Option<DomainFile> {
    if identity == Identity::Private {
        return None;
    }
    let slots = segment::slots(dir).into_iter().filter(|slot| (DOMAIN_SLOTS..SLOTS).contains(slot));
    slots.filter_map(|slot| hold(dir, slot)).find(|domain| domain.identity() == identity)
}

/// The domain in `slot`, held open. None: it is being swept, or makes no sense.
fn hold(dir: &Path, slot: usize) -> Option<DomainFile> {
    let domain = attach(dir, slot).ok()?;
    // Without a lock on it, all its processes are dead or have left, and it is about to be swept.
    let lives = super::liveness::is_locked(domain.file());
    let held = lives && filelock::try_take(domain.file(), Kind::Shared, HELD) == Ok(true);
    (held && is_current(dir, &domain)).then_some(domain)
}

fn make(dir: &Path, identity: Identity, ports: &[Card]) -> Result<DomainFile, Errno> {
    let file = files::unnamed(dir)?;
    filelock::try_take(&file, Kind::Shared, HELD)?;
    shortage::set_len(&file, domain::LEN, "an XRC domain")?;
    take_space(&file, 0, domain::FIXED_LEN, "an XRC domain")?;
    let map = Map::new(&file, domain::LEN)?;
    DomainFile::fill(&map, identity, ports)?;
    for slot in DOMAIN_SLOTS..SLOTS {
        map.u32(H_SLOT).store(slot as u32, Ordering::Relaxed);
        let path = slot_path(dir, slot);
        if folder::fill(dir, || link_name(&file, &path))? {
            return DomainFile::map(file, slot);
        }
    }
    let names = SLOTS - DOMAIN_SLOTS;
    Err(shortage::full(format_args!("all {names} names of XRC domains in {}", dir.display())))
}

/// The lock that makes looking and making one step; its file goes with it.
struct Registry {
    file: File,
    path: PathBuf,
}

impl Registry {
    fn lock(dir: &Path) -> Result<Registry, Errno> {
        let path = dir.join(format!("softib-{}-xrcd", folder::uid()));
        loop {
            let file = files::open_shared(&path)?;
            filelock::take(&file, Kind::Exclusive, Range::Whole)?;
            if is_same(&path, &file) {
                return Ok(Registry { file, path });
            }
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        files::unlink_if_same(&self.path, &self.file);
    }
}
