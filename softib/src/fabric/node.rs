//! The registry of nodes: which name has which number.
//!
//! One file `softib-<uid>-nodes` beside the segments, one record a name: its number and itself. What a process
//! holds is a lock, and the kernel drops locks however a process ends:
//!
//! ```text
//! byte BASE + number   shared: a live process of that node
//! byte BASE            exclusive: the table is being read and changed
//! ```
//!
//! A number whose byte no process holds is free. A name looks for its number at a place derived
//! from it, so it keeps it from job to job unless two names meet there. The last process takes the
//! file away; after a kill the next sweep of the segments does, which removes any `softib-<uid>-*`
//! that no process holds a lock on.

use crate::errno::{Errno, check};
use crate::shm::files;
use crate::shm::folder;
use crate::shm::folder::uid;
use crate::shm::layout::PORTS;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The node of processes that name none.
pub const DEFAULT: u16 = 1;
/// A node's number is the LID of its first port; each further port's is so much higher. Unicast LIDs end below 0xc000 (IBTA 4.1.3).
pub const STRIDE: u16 = 0xc000 / PORTS as u16;
const FIRST: u16 = 2;
const LAST: u16 = STRIDE - 1;
const RECORD: usize = 64;
const BASE: libc::off_t = 1 << 40;
const JOINING: Duration = Duration::from_secs(10);
const LEAVING: Duration = Duration::from_millis(100);

/// The claim of a process to its node's number.
#[derive(Debug)]
pub struct Membership {
    file: File,
    path: PathBuf,
    number: u16,
}

/// Joins the node `name`: the number it has, or a free one.
pub fn join(dir: &Path, name: &str) -> Result<Membership, Errno> {
    let path = dir.join(format!("softib-{}-nodes", uid()));
    loop {
        let file = files::open_shared(&path)?;
        begin(&file, JOINING)?;
        if is_same(&path, &file) {
            let number = settle(&file, name)?;
            unlock(&file, 0)?;
            return Ok(Membership { file, path, number });
        }
        // The last member has taken the file away between our opening and our lock.
    }
}

impl Membership {
    /// The node's number, which is its first port's LID on InfiniBand.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The descriptor that carries the lock, for the fork child to close.
    pub fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Gives the claim back, and takes the file away if there is no other claim in it. What fails
    /// here is left to the next sweep.
    pub fn leave(&self) {
        if begin(&self.file, LEAVING).is_err() {
            return;
        }
        let alone =
            unlock(&self.file, self.number).is_ok() && try_lock(&self.file, 0, 0, libc::F_WRLCK) == Ok(true);
        if alone && is_same(&self.path, &self.file) {
            let _ = std::fs::remove_file(&self.path);
            self.path.parent().iter().for_each(|dir| folder::leave(dir));
        }
        let _ = unlock(&self.file, 0);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.leave();
    }
}

fn is_same(path: &Path, file: &File) -> bool {
    let (Ok(ours), Ok(there)) = (file.metadata(), std::fs::symlink_metadata(path)) else { return false };
    (ours.dev(), ours.ino()) == (there.dev(), there.ino())
}

/// A row of the table: a number, and the name that has it or had it last.
type Record = [u8; RECORD];

/// Finds or makes the record of `name` and takes its lock.
fn settle(file: &File, name: &str) -> Result<u16, Errno> {
    let records = records(file)?;
    if let Some(known) = records.iter().find(|record| name_of(record) == name.as_bytes()) {
        return take(file, number_of(known));
    }
    let span = LAST - FIRST + 1;
    let start = (super::hash(name.bytes()) % u64::from(span)) as u16;
    for number in (0..span).map(|i| FIRST + (start + i) % span) {
        let row = records.iter().position(|record| number_of(record) == number);
        if row.is_none() || !is_held(file, number)? {
            file.write_all_at(&new_record(number, name), (row.unwrap_or(records.len()) * RECORD) as u64)?;
            return take(file, number);
        }
    }
    Err(Errno(libc::EUSERS))
}

/// Only [`Membership::leave`] locks numbers exclusively, with the table's lock, which the caller has.
fn take(file: &File, number: u16) -> Result<u16, Errno> {
    if try_lock(file, number, 1, libc::F_RDLCK)? { Ok(number) } else { Err(Errno::BUSY) }
}

fn records(file: &File) -> Result<Vec<Record>, Errno> {
    let rows = (file.metadata()?.len() as usize / RECORD).min(usize::from(LAST));
    let mut records = vec![[0; RECORD]; rows];
    file.read_exact_at(records.as_flattened_mut(), 0)?;
    Ok(records)
}

fn number_of(record: &Record) -> u16 {
    u16::from_ne_bytes([record[0], record[1]])
}

fn name_of(record: &Record) -> &[u8] {
    record.get(3..3 + usize::from(record[2])).unwrap_or_default()
}

fn new_record(number: u16, name: &str) -> Record {
    let mut record = [0; RECORD];
    record[..2].copy_from_slice(&number.to_ne_bytes());
    record[2] = name.len() as u8;
    record[3..3 + name.len()].copy_from_slice(name.as_bytes());
    record
}

const _: () = assert!(3 + super::settings::NAME_MAX <= RECORD);

fn range(kind: libc::c_int, number: u16, len: libc::off_t) -> libc::flock {
    // SAFETY: flock is plain old data; zero is a valid value of every field (and l_pid must be 0).
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (BASE + libc::off_t::from(number), len);
    lock
}

/// Begins to read and change the table. Others take microseconds for it, unless one is stopped in the middle: ETIMEDOUT.
fn begin(file: &File, patience: Duration) -> Result<(), Errno> {
    let end = Instant::now() + patience;
    while !try_lock(file, 0, 1, libc::F_WRLCK)? {
        if Instant::now() >= end {
            return Err(Errno(libc::ETIMEDOUT));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn unlock(file: &File, number: u16) -> Result<(), Errno> {
    try_lock(file, number, 1, libc::F_UNLCK).map(drop)
}

/// Takes a lock (`len` 0: on all bytes) if no lock of another descriptor is in the way.
fn try_lock(file: &File, number: u16, len: libc::off_t, kind: libc::c_int) -> Result<bool, Errno> {
    let lock = range(kind, number, len);
    // SAFETY: the descriptor is open and the struct outlives the call.
    match check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) }) {
        Ok(_) => Ok(true),
        Err(Errno(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a live process holds a number.
fn is_held(file: &File, number: u16) -> Result<bool, Errno> {
    let mut lock = range(libc::F_WRLCK, number, 1);
    // SAFETY: the descriptor is open and the struct outlives the call.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) })?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("softib-node-{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        dir
    }

    #[test]
    fn a_name_has_one_number_and_names_have_different_ones() {
        let dir = folder("numbers");
        let members: Vec<_> = (0..200).map(|i| join(&dir, &format!("n{i}")).unwrap()).collect();
        let again: Vec<_> = (0..200).map(|i| join(&dir, &format!("n{i}")).unwrap().number()).collect();
        let mut numbers: Vec<_> = members.iter().map(Membership::number).collect();
        assert_eq!(numbers, again);
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 200);
        assert!(numbers[0] >= FIRST);
        drop(members);
        std::fs::remove_dir(&dir).expect("the last member took the registry away");
    }

    /// Two names that want the same place: the second moves on, and stays where it is when the first has left.
    #[test]
    fn a_name_stays_where_a_collision_has_put_it() {
        let dir = folder("collision");
        let keeper = join(&dir, "keeper").unwrap();
        let (first, second) = colliding();
        let one = join(&dir, &first).unwrap();
        let two = join(&dir, &second).unwrap();
        assert_ne!(one.number(), two.number());
        drop(one);
        let namesake = join(&dir, &second).unwrap();
        assert_eq!(namesake.number(), two.number());
        drop((namesake, two, keeper));
        std::fs::remove_dir(&dir).unwrap();
    }

    fn colliding() -> (String, String) {
        let place = |name: &str| super::super::hash(name.bytes()) % u64::from(LAST - FIRST + 1);
        let wanted = place("x");
        let other = (0..).map(|i| format!("y{i}")).find(|name| place(name) == wanted).unwrap();
        ("x".into(), other)
    }
}
