//! The few files that programs read below /sys/class/infiniband, for a device that no kernel knows.
//!
//! `cargo xtask build` puts the files ([`FILES`], written by [`crate::link`]) into a folder `sys` beside the library. The library finds itself by dladdr and
//! answers with that folder, unless the machine has RDMA devices of its own, whose files are in the real place.

use crate::guarded;
use softib::errno::Errno;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Path below the folder `sys`, and content.
pub const FILES: &[(&str, &str)] = &[
    ("class/infiniband/softib0/node_type", "1: CA\n"),
    ("class/infiniband/softib0/node_desc", "softib0\n"),
    ("class/infiniband/softib0/hca_type", "softib\n"),
    ("class/infiniband/softib0/board_id", "softib\n"),
    ("class/infiniband/softib0/fw_ver", concat!(env!("CARGO_PKG_VERSION"), "\n")),
    ("class/infiniband/softib0/ports/1/link_layer", "InfiniBand\n"),
    ("class/infiniband/softib0/ports/1/state", "4: ACTIVE\n"),
    ("class/infiniband/softib0/ports/1/phys_state", "5: LinkUp\n"),
    ("class/infiniband/softib0/ports/1/gid_attrs/types/0", "IB/RoCE v1\n"),
];

const REAL: &str = "/sys";
const CLASS: &str = "class/infiniband";

/// Where class/infiniband is: SYSFS_PATH as in libibverbs, the real one, ours.
fn root() -> &'static CStr {
    static ROOT: OnceLock<CString> = OnceLock::new();
    ROOT.get_or_init(|| {
        let found = from_environment().or_else(beside_us).unwrap_or_else(|| REAL.into());
        CString::new(found.into_os_string().into_vec()).unwrap_or_else(|_| c"/sys".to_owned())
    })
}

fn from_environment() -> Option<PathBuf> {
    // SAFETY: no arguments, cannot fail.
    let own = unsafe { libc::getuid() == libc::geteuid() };
    std::env::var_os("SYSFS_PATH").filter(|_| own).map(PathBuf::from)
}

fn beside_us() -> Option<PathBuf> {
    if Path::new(REAL).join(CLASS).exists() {
        return None;
    }
    let folder = our_file()?.parent()?.join("sys");
    folder.join(CLASS).exists().then_some(folder)
}

/// The file that this code was loaded from.
fn our_file() -> Option<PathBuf> {
    // SAFETY: plain C data, zeroes are valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here = get_sysfs_path as *const c_void;
    // SAFETY: any address may be asked for; info is ours.
    let found = unsafe { libc::dladdr(here, &mut info) } != 0 && !info.dli_fname.is_null();
    // SAFETY: dladdr has filled in a C string of the loader's, which lives as long as this code is loaded.
    let name = found.then(|| unsafe { CStr::from_ptr(info.dli_fname) })?;
    std::fs::canonicalize(OsStr::from_bytes(name.to_bytes())).ok()
}

/// `ibv_get_sysfs_path`
///
/// # Safety
/// None needed; the C ABI asks for the keyword.
pub unsafe extern "C" fn get_sysfs_path() -> *const c_char {
    guarded(c"/sys".as_ptr(), || root().as_ptr())
}

/// `ibv_read_sysfs_file`: the length of the content without its newline, which is terminated by NUL; -1 with errno.
///
/// # Safety
/// `folder` and `file` are C strings, `to` has room for `room` bytes.
pub unsafe extern "C" fn read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    to: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: the program promises that `folder` and `file` are C strings.
    let (folder, file) = unsafe { (CStr::from_ptr(folder), CStr::from_ptr(file)) };
    match guarded(Err(Errno(libc::EIO)), || content(folder, file, room)) {
        Ok(text) => {
            // SAFETY: the program promises room for `room` bytes at `to`; `content` returns no more
            // than that, NUL included.
            unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len()) };
            text.len() as c_int - 1
        }
        Err(error) => {
            error.set();
            -1
        }
    }
}

/// A file's bytes with a NUL in place of the last newline, or after them.
fn content(folder: &CStr, file: &CStr, room: usize) -> Result<Vec<u8>, Errno> {
    let path = Path::new(OsStr::from_bytes(folder.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
    let mut text = match of_this_port(&path) {
        Some(text) => text.as_bytes().to_vec(),
        None => std::fs::read(relocated(&path).unwrap_or(path))?,
    };
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    text.push(0);
    if text.len() <= room { Ok(text) } else { Err(Errno::INVAL) }
}

/// What differs from process to process: the files in the folder are those of an InfiniBand port.
fn of_this_port(path: &Path) -> Option<&'static str> {
    let (device, below) = of_a_device(path)?;
    let (num, below) = below.strip_prefix("/ports/")?.split_once('/')?;
    let num = num.parse().ok()?;
    if below == "link_layer" {
        return Some(match softib::port::link_layer_of(device, num)? {
            softib::port::LinkLayer::InfiniBand => "InfiniBand\n",
            softib::port::LinkLayer::Ethernet | softib::port::LinkLayer::Iwarp => "Ethernet\n",
        });
    }
    let row = below.strip_prefix("gid_attrs/types/")?.parse().ok()?;
    match softib::port::gid_type(device, num, row)? {
        rdma_sys::IBV_GID_TYPE_ROCE_V2 => Some("RoCE v2\n"),
        _ => Some("IB/RoCE v1\n"),
    }
}

/// The number of the device of ours that a path is about, and what follows its name.
fn of_a_device(path: &Path) -> Option<(usize, &str)> {
    let (_, rest) = path.to_str()?.split_once("class/infiniband/softib")?;
    let end = rest.find('/')?;
    Some((rest[..end].parse().ok()?, &rest[end..]))
}

/// Our devices call themselves /sys/class/infiniband/softib0 and so on; those folders are below our own root. What is the same for
/// all devices and ports lies there once, with the first.
fn relocated(path: &Path) -> Option<PathBuf> {
    path.strip_prefix(REAL).ok().filter(|_| !path.exists())?;
    let below = match of_a_device(path) {
        Some((_, rest)) => format!("{CLASS}/softib0{}", first_port(rest)),
        None => path.strip_prefix(REAL).ok()?.to_str()?.to_owned(),
    };
    Some(Path::new(OsStr::from_bytes(root().to_bytes())).join(below))
}

/// A path below a device, of the first port if it is of any.
fn first_port(rest: &str) -> String {
    match rest.strip_prefix("/ports/").and_then(|port| port.split_once('/')) {
        Some((_, file)) => format!("/ports/1/{file}"),
        None => rest.to_owned(),
    }
}
