//! Where other users may make files, too, theirs neither keep a user out nor are trusted, whatever their names.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use softib::shm::{files, segment};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path as File, PathBuf};

/// User ids that no process here has.
const VICTIM: u32 = 61_001;
const SQUATTER: u32 = 61_002;

/// A process of the victim; does nothing when the test runner calls it.
#[test]
fn child_main() {
    match role().as_deref() {
        Some("meets") => meets(),
        Some("binds") => binds(),
        Some("joins") => joins(),
        other => assert_eq!(other, None, "no such role"),
    }
}

fn become_victim() {
    assert_eq!(unsafe { libc::setresgid(VICTIM, VICTIM, VICTIM) }, 0);
    assert_eq!(unsafe { libc::setresuid(VICTIM, VICTIM, VICTIM) }, 0);
}

/// Sends the process that the parent names a message, and takes one of its.
fn meets() {
    become_victim();
    let dev = Dev::open();
    let (qp, buf) = (dev.qp(IBV_QPT_RC, dev.cq(16)), dev.buf(64));
    say(&[qp.num().into()]);
    qp.init(ALL_ACCESS);
    assert_eq!(qp.recv(1, &[buf.sge(0, 32)]), 0);
    let theirs = listen().unwrap()[0] as u32;
    qp.rtr(theirs, &Path::default());
    qp.rts(&Path::default());
    say(&[]);
    listen();
    assert_eq!(qp.send(2, &[buf.sge(32, 8)]), 0);
    assert_eq!([qp.wait().status, qp.wait().status], [IBV_WC_SUCCESS; 2]);
    say(&[]);
    listen();
}

/// Joins a node, and says its LID.
fn joins() {
    become_victim();
    let (dev, mut attr) = (Dev::open(), ibv_port_attr::default());
    assert_eq!(unsafe { (table().query_port)(dev.ctx, 1, &mut attr) }, 0);
    say(&[attr.lid.into()]);
    listen();
}

/// Two processes of the victim reach each other in `folder`.
fn reach_each_other(folder: &Folder) {
    let env = [("SOFTIB_DIR", folder.path())];
    let mut both = [Child::start_with("meets", &env), Child::start_with("meets", &env)];
    let numbers = [both[0].hear(), both[1].hear()];
    both[0].tell(&numbers[1]);
    both[1].tell(&numbers[0]);
    both.iter_mut().for_each(|child| assert!(child.hear().is_empty()));
    both.iter_mut().for_each(|child| child.tell(&[]));
    both.iter_mut().for_each(|child| assert!(child.hear().is_empty()));
    both.into_iter().for_each(Child::finish);
}

/// A folder like /dev/shm, for a test that can make files of another user.
fn shared(name: &str) -> Option<Folder> {
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: files of other users need root");
        return None;
    }
    let folder = Folder::new(name);
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    Some(folder)
}

/// What a squatter may put under a name.
#[derive(Clone, Copy, Debug)]
enum Kind {
    File,
    Folder,
    Fifo,
    Link,
    DeadLink,
}

const KINDS: [Kind; 5] = [Kind::File, Kind::Folder, Kind::Fifo, Kind::Link, Kind::DeadLink];

fn squat(path: &File, kind: Kind) {
    let c = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    match kind {
        Kind::File => drop(std::fs::File::create(path).unwrap()),
        Kind::Folder => std::fs::create_dir(path).unwrap(),
        Kind::Fifo => assert_eq!(unsafe { libc::mkfifo(c.as_ptr(), 0o666) }, 0),
        Kind::Link => symlink("/tmp", path).unwrap(),
        Kind::DeadLink => symlink("/nonexistent", path).unwrap(),
    }
    if matches!(kind, Kind::File | Kind::Folder | Kind::Fifo) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
        chown(path, Some(SQUATTER), Some(SQUATTER)).unwrap();
    }
    assert_eq!(unsafe { libc::lchown(c.as_ptr(), SQUATTER, SQUATTER) }, 0);
}

fn in_folder(folder: &Folder, name: &str) -> PathBuf {
    File::new(folder.path()).join(name)
}

/// It used to end with "Too many users".
#[test]
fn all_names_of_segments_taken_by_another_user_lock_nobody_out() {
    let Some(folder) = shared("slots") else { return };
    for slot in 0..4096 {
        squat(&in_folder(&folder, &format!("softib-{VICTIM}-{slot}")), Kind::File);
    }
    reach_each_other(&folder);
}

/// It used to make every open fail, without a reason.
#[test]
fn a_registry_of_nodes_of_another_user_is_not_ours() {
    for kind in KINDS {
        let Some(folder) = shared("nodes") else { return };
        squat(&in_folder(&folder, &format!("softib-{VICTIM}-nodes")), kind);
        let env = [("SOFTIB_DIR", folder.path()), ("SOFTIB_NODE", "a")];
        let mut both = [Child::start_with("joins", &env), Child::start_with("joins", &env)];
        let lids = [both[0].hear(), both[1].hear()];
        assert!(lids[0] == lids[1] && lids[0][0] > 1, "{kind:?}: {lids:?}");
        both.into_iter().for_each(Child::finish);
    }
}

/// The folder of the user's files is the only name that can be taken.
#[test]
fn a_user_whose_folder_is_taken_by_another_takes_the_next() {
    for kind in KINDS {
        let Some(folder) = shared("folder") else { return };
        squat(&in_folder(&folder, &format!("softib-{VICTIM}")), kind);
        squat(&in_folder(&folder, &format!("softib-{VICTIM}.1")), kind);
        reach_each_other(&folder);
        let left = folder.files();
        assert_eq!(left.len(), 2, "{kind:?}: the victim's own folder went with its last process: {left:?}");
    }
}

/// Reserves a port, as `rdma_bind_addr` does.
fn binds() {
    become_victim();
    use rdma_cm_sys::*;
    let cm = softib::cm_table();
    unsafe {
        let channel = (cm.create_event_channel)();
        let mut id = std::ptr::null_mut();
        assert_eq!((cm.create_id)(channel, &mut id, std::ptr::null_mut(), RDMA_PS_TCP), 0);
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        address.sin_family = libc::AF_INET as u16;
        address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        address.sin_port = 7471_u16.to_be();
        let bound = (cm.bind_addr)(id, (&raw mut address).cast());
        say(&[if bound == 0 { 0 } else { last_errno() as u64 }]);
        listen();
        assert_eq!((cm.destroy_id)(id), 0);
        (cm.destroy_event_channel)(channel);
    }
}

/// Its locks, which are another user's, used to be believed: that user could keep any port from being bound.
#[test]
fn a_file_of_ports_of_another_user_is_not_ours() {
    let Some(folder) = shared("ports") else { return };
    let path = in_folder(&folder, &format!("softib-{VICTIM}-ports"));
    squat(&path, Kind::File);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (libc::F_WRLCK as i16, 1, 0);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &lock) }, 0);
    let mut child = Child::start_with("binds", &[("SOFTIB_DIR", folder.path())]);
    assert_eq!(child.hear(), [0]);
    child.finish();
}

/// Even where a folder is ours alone: what another user has put there before is not opened, and does not keep us waiting.
#[test]
fn only_files_of_this_user_are_opened() {
    let Some(folder) = shared("own") else { return };
    for (number, kind) in KINDS.into_iter().enumerate() {
        let path = segment::slot_path(File::new(folder.path()), number);
        squat(&path, kind);
        assert!(segment::open_slot(File::new(folder.path()), number).is_err(), "{kind:?}");
        assert!(files::open_shared(&path).is_err(), "{kind:?}");
    }
}
