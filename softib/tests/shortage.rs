//! What cannot be had is refused at once, with the cause in words: limits of the process, a folder that is too small or cannot be used.

// Tests call the C functions with what they have just made; a failure may panic.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
use common::*;
use rdma_sys::*;
use softib::shm::cell::{Head, op};
use softib::shm::layout::{CELLS, CELLS_FIRST};
use softib::shm::ring::{RecvRing, SendRing};
use softib::shm::segment::Segment;
use std::process::{Output, Stdio};

/// The limited process; does nothing when the test runner calls it.
#[test]
fn child_main() {
    match role().as_deref() {
        Some("opens") => opens(),
        Some("meets") => meets(),
        Some("exchanges") => exchanges(),
        Some("shares") => shares(),
        other => assert_eq!(other, None, "no such role"),
    }
}

/// Lowers a limit of this process. Only the soft limit, but the tests' children end soon.
fn limit(resource: &str, value: u64) {
    let resource = match resource {
        "fsize" => libc::RLIMIT_FSIZE,
        "as" => libc::RLIMIT_AS,
        "nofile" => libc::RLIMIT_NOFILE,
        "nproc" => libc::RLIMIT_NPROC,
        other => panic!("unknown limit {other}"),
    };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    assert_eq!(unsafe { libc::getrlimit(resource, &mut limit) }, 0);
    limit.rlim_cur = value;
    assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0);
}

/// Sets the limit in TEST_LIMIT, as `nofile=8`.
fn limit_from_environment() {
    if let Ok(text) = std::env::var("TEST_LIMIT") {
        let (resource, value) = text.split_once('=').unwrap();
        limit(resource, value.parse().unwrap());
    }
}

/// Opens the device twice; says the errno values, and whether there was a reason for each.
fn opens() {
    limit_from_environment();
    for _ in 0..2 {
        let ctx = unsafe {
            let list = (table().get_device_list)(std::ptr::null_mut());
            (table().open_device)(*list)
        };
        let errno = if ctx.is_null() { last_errno() } else { 0 };
        say(&[errno as u64, softib::take_reason(errno).is_some().into()]);
    }
}

/// Runs a role to its end, with its standard error.
fn run(role: &str, env: &[(&str, &str)]) -> Output {
    let mut command = Child::command(program(), role);
    command.envs(env.iter().copied()).stderr(Stdio::piped()).output().unwrap()
}

/// What softib has said on standard error, line by line.
fn sentences(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().filter(|line| line.starts_with("softib: ")).map(str::to_owned).collect()
}

/// A process that cannot open the device goes on, with an error value, a reason for it, and one sentence that has these `words` in it.
fn is_refused(env: &[(&str, &str)], errno: i32, words: &[&str]) {
    let output = run("opens", env);
    assert!(output.status.success(), "{env:?}: {output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.matches(&format!("> {errno} 1\n")).count(), 2, "{env:?}: {text}");
    let said = sentences(&output);
    assert_eq!(said.len(), 1, "{env:?}: {said:?}");
    words.iter().for_each(|word| assert!(said[0].contains(word), "{word:?} is missing in {said:?}"));
}

/// SIGXFSZ used to kill it.
#[test]
fn a_file_size_limit_refuses_the_device_and_does_not_kill_the_program() {
    let words = ["ulimit -f", "RLIMIT_FSIZE", "1000 KiB", "MiB"];
    is_refused(&[("TEST_LIMIT", "fsize=1024000")], libc::EFBIG, &words);
}

/// Whichever of the descriptors of an open is the one too many. How many are open before depends on what the test runner hands down.
#[test]
fn an_open_without_a_free_descriptor_names_the_limit_of_open_files() {
    let open_here = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let refused = (3..open_here + 16).take_while(|limit| {
        let output = run("opens", &[("TEST_LIMIT", &format!("nofile={limit}"))]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        !text.contains("> 0 0\n")
    });
    let refused = refused.collect::<Vec<_>>();
    assert!(refused.len() > 1, "{refused:?}");
    for limit in refused {
        let env = format!("nofile={limit}");
        is_refused(
            &[("TEST_LIMIT", &env)],
            libc::EMFILE,
            &["ulimit -n", "RLIMIT_NOFILE", &format!("is {limit}")],
        );
    }
}

#[test]
fn an_open_without_address_space_names_its_limit() {
    is_refused(&[("TEST_LIMIT", "as=1048576")], libc::ENOMEM, &["ulimit -v", "RLIMIT_AS", "1024 KiB"]);
}

/// The example programs say no more than "Failed to open device".
#[test]
fn every_failed_open_says_its_reason_once() {
    let missing = [("SOFTIB_DIR", "/nonexistent/softib")];
    is_refused(&missing, libc::ENOENT, &["/nonexistent/softib", "SOFTIB_DIR", "No such file"]);
    let file = std::env::current_exe().unwrap();
    let file = file.to_str().unwrap();
    is_refused(&[("SOFTIB_DIR", file)], libc::ENOTDIR, &[file, "Not a directory"]);
    is_refused(&[("SOFTIB_NODE", "a\nb")], libc::EINVAL, &["SOFTIB_NODE", "expected"]);
    is_refused(&[("SOFTIB_FAULTS", "nonsense")], libc::EINVAL, &["SOFTIB_FAULTS"]);
    let injected = [("SOFTIB_FAULTS", "fail=open_device:1:EIO,fail=open_device:2:EIO")];
    is_refused(&injected, libc::EIO, &["softib0 cannot be opened", "Input/output error"]);
}

/// Meets the process that the parent names, after a limit was set, and says how that went: the errno values of the step to RTR and
/// of a datagram, and whether each had a reason; then those of the same without the limit.
fn meets() {
    let dev = Dev::open();
    let (qp, ud) = (dev.qp(IBV_QPT_RC, dev.cq(16)), dev.qp(IBV_QPT_UD, dev.cq(16)));
    let (buf, ah) = (dev.buf(64), dev.ah());
    qp.init(ALL_ACCESS);
    ud.ready_ud(1);
    say(&[qp.num().into(), ud.num().into()]);
    let theirs = listen().unwrap();
    let meet = || {
        let rtr = qp.try_rtr(theirs[0] as u32, &Path::default());
        let rtr_reason = softib::take_reason(rtr).is_some();
        let sent = ud.datagram(1, &[buf.sge(0, 8)], ah, (theirs[1] as u32, 1));
        let sent_reason = softib::take_reason(sent).is_some();
        say(&[rtr as u64, rtr_reason.into(), sent as u64, sent_reason.into()]);
        if sent == 0 {
            assert_eq!(ud.wait().status, IBV_WC_SUCCESS);
        }
    };
    limit_late();
    meet();
    listen();
    if std::env::var_os("TEST_LATE").is_some() {
        lift_limits();
        meet();
    }
    listen();
}

/// Sets the limit in TEST_LATE to what this process uses by now.
fn limit_late() {
    match std::env::var("TEST_LATE").as_deref() {
        Ok("nofile") => {
            let file = std::fs::File::open("/dev/null").unwrap();
            limit("nofile", std::os::fd::AsRawFd::as_raw_fd(&file) as u64);
        }
        Ok("as") => {
            while !device_thread_sleeps() {
                std::thread::yield_now();
            }
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
            limit("as", pages * 4096 + (1 << 20));
        }
        _ => {}
    }
}

/// It has what the standard library maps for a thread: within a limit that would end the process. And it is not just making a heap of its
/// own, for which malloc(3) maps 128 MiB and gives the better half back.
fn device_thread_sleeps() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let stat = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("stat"));
    threads.flatten().any(|thread| stat(thread).is_ok_and(|stat| stat.contains(" (softib) S ")))
}

fn lift_limits() {
    for resource in [libc::RLIMIT_NOFILE, libc::RLIMIT_AS] {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        assert_eq!(unsafe { libc::getrlimit(resource, &mut limit) }, 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0);
    }
}

fn start(env: &[(&str, &str)]) -> Child {
    let program = program();
    Child::spawn(Child::command(program, "meets").envs(env.iter().copied()).stderr(Stdio::piped()))
}

/// Lets two processes meet; what each says of it.
fn meeting(a: &mut Child, b: &mut Child) -> [Vec<u64>; 2] {
    let (of_a, of_b) = (a.hear(), b.hear());
    a.tell(&of_b);
    b.tell(&of_a);
    [a.hear(), b.hear()]
}

/// It used to look as if the peer were dead: RTR succeeded, and sends ended with RETRY_EXC_ERR.
#[test]
fn a_peer_that_cannot_be_reached_for_a_limit_of_ours_is_not_taken_for_dead() {
    for (late, errno, name) in [("nofile", libc::EMFILE, "ulimit -n"), ("as", libc::ENOMEM, "ulimit -v")] {
        let (mut limited, mut free) = (start(&[("TEST_LATE", late)]), start(&[]));
        let [of_limited, of_free] = meeting(&mut limited, &mut free);
        assert_eq!(of_limited, [errno as u64, 1, errno as u64, 1], "{late}");
        assert_eq!(of_free, [0, 0, 0, 0], "{late}");
        limited.tell(&[]);
        assert_eq!(
            limited.hear(),
            [0, 0, 0, 0],
            "{late}: nothing is left of the refusal once the limit is gone"
        );
        let said = limited.finish_and_read();
        assert_eq!(said.matches("softib: ").count(), 1, "{said}");
        assert!(said.contains(name), "{said}");
        assert_eq!(free.finish_and_read(), "");
    }
}

/// The address space that softib's segments take in this process.
fn mapped_of_segments() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let lengths =
        maps.lines().filter(|line| line.contains("/softib-") || line.contains("(deleted)")).map(|line| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            u64::from_str_radix(end, 16).unwrap() - u64::from_str_radix(start, 16).unwrap()
        });
    lengths.sum()
}

/// Connects two queue pairs to those of the process that the parent names, exchanges messages of 8 bytes to a megabyte with it, and
/// says what its segments take of the address space.
fn exchanges() {
    const SIZES: [usize; 4] = [8, 4096, 65536, 1 << 20];
    limit_from_environment();
    let dev = Dev::open();
    let qps = [dev.qp(IBV_QPT_RC, dev.cq(64)), dev.qp(IBV_QPT_RC, dev.cq(64))];
    say(&qps.each_ref().map(|qp| qp.num().into()));
    let (mut buf, theirs) = (dev.buf(2 << 20), listen().unwrap());
    for (qp, dest) in qps.iter().zip(theirs) {
        qp.connect(dest as u32, &Path::default());
    }
    say(&[0]);
    listen();
    for (round, size) in SIZES.into_iter().enumerate() {
        buf.data[..size].fill(round as u8 + 1);
        qps.iter().for_each(|qp| assert_eq!(qp.recv(1, &[buf.sge(1 << 20, size)]), 0));
        qps.iter().for_each(|qp| assert_eq!(qp.send(2, &[buf.sge(0, size)]), 0));
        for qp in qps.iter().flat_map(|qp| [qp, qp]) {
            assert_eq!(qp.wait().status, IBV_WC_SUCCESS);
        }
        assert!(buf.data[1 << 20..][..size].iter().all(|byte| *byte == round as u8 + 1));
    }
    say(&[mapped_of_segments()]);
    listen();
}

/// Each used to map 616 MiB of its own segment and as much of each peer's, so that limits of address space below that refused the
/// device.
#[test]
fn a_process_maps_of_a_segment_what_it_uses() {
    let limit = [("TEST_LIMIT", "as=700000000")];
    let program = program();
    let start = || Child::spawn(Child::command(program, "exchanges").envs(limit));
    let (mut a, mut b) = (start(), start());
    meeting(&mut a, &mut b);
    for child in [&mut a, &mut b] {
        child.tell(&[]);
    }
    for child in [&mut a, &mut b] {
        let mapped = child.hear()[0];
        assert!((4 << 20..32 << 20).contains(&mapped), "{} KiB are mapped", mapped >> 10);
        child.tell(&[]);
    }
    [a, b].into_iter().for_each(Child::finish);
}

/// A mounted folder.
struct Small(Folder);

impl Drop for Small {
    fn drop(&mut self) {
        let path = std::ffi::CString::new(self.0.path()).unwrap();
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

/// A tmpfs of this size in a mount namespace of the calling thread, which its children share. None: this user may not have one, or the
/// root folder is no mount point (a chroot), so that mounts cannot be kept from others.
fn small_folder(name: &str, bytes: usize) -> Option<Small> {
    program();
    let folder = Folder::new(name);
    let (kind, private) = (c"tmpfs".as_ptr(), libc::MS_REC | libc::MS_PRIVATE);
    let apart = unsafe {
        libc::geteuid() == 0
            && libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(kind, c"/".as_ptr(), std::ptr::null(), private, std::ptr::null()) == 0
    };
    if !apart {
        eprintln!("skipped: a tmpfs of its own needs root and a mount namespace");
        return None;
    }
    let path = std::ffi::CString::new(folder.path()).unwrap();
    let size = std::ffi::CString::new(format!("size={bytes}")).unwrap();
    unsafe { assert_eq!(libc::mount(kind, path.as_ptr(), kind, 0, size.as_ptr().cast()), 0) };
    Some(Small(folder))
}

/// Room for two segments, and for no ring between them. It used to look as if the peers were dead.
#[test]
fn a_full_folder_refuses_the_connection_on_both_sides_and_says_what_is_free_and_needed() {
    let Some(small) = small_folder("full", 384 << 10) else { return };
    let folder = &small.0;
    let env = [("SOFTIB_DIR", folder.path())];
    let (mut a, mut b) = (start(&env), start(&env));
    for of_one in meeting(&mut a, &mut b) {
        assert_eq!(of_one, [libc::ENOMEM as u64, 1, libc::ENOMEM as u64, 1]);
    }
    for child in [a, b] {
        let said = child.finish_and_read();
        for word in [folder.path(), "are free", "268 KiB are needed", "SOFTIB_DIR"] {
            assert!(said.contains(word), "{word:?} is missing in {said}");
        }
        assert_eq!(said.matches("softib: ").count(), 1, "{said}");
    }
}

/// Room for a segment, a ring and a few more of its cells.
#[test]
fn a_ring_goes_on_with_the_cells_that_it_has_where_there_is_no_space_for_more() {
    let Some(small) = small_folder("cells", 384 << 10) else { return };
    let segment = Segment::claim(std::path::Path::new(small.0.path()), false, |_| ()).unwrap();
    let mut to = SendRing::claim(&segment.map, &segment.file, (7, 99), true, false).unwrap();
    let mut from = RecvRing::adopt(&segment.inlets, to.index()).unwrap();
    let mut most = 0;
    for round in 0..100 {
        let mut sent = 0;
        while to.has_room(0) {
            let _ = to.push(Head { op: op::SEND, pos: round << 16 | sent, ..Head::default() }, |_| ());
            sent += 1;
        }
        most = most.max(sent);
        for number in 0..sent {
            let found = from.peek().unwrap();
            assert_eq!(found.head.pos, round << 16 | number);
            from.consume(&found);
        }
        assert!(from.peek().is_none());
    }
    assert!((CELLS_FIRST as u32..CELLS as u32 / 2).contains(&most), "{most} at a time");
    segment.unlink();
}

/// Asks for pieces of memory for its peers to write to, and says the errno values.
fn shares() {
    let _dev = Dev::open();
    let share = table().share_memory.unwrap();
    let errno = |len| if unsafe { share(len) }.is_null() { last_errno() as u64 } else { 0 };
    say(&[256 << 10, 512 << 10].map(errno));
}

/// A container's /dev/shm is for others, too.
#[test]
fn large_pieces_are_shared_where_a_folder_has_plenty_of_room_only() {
    let asks = |env: &[(&str, &str)]| {
        let output = run("shares", env);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let (both, one) = ("> 0 0\n".to_owned(), format!("> 0 {}\n", libc::ENOMEM));
    assert!(asks(&[]).contains(&both));
    let Some(small) = small_folder("shares", 32 << 20) else { return };
    let said = asks(&[("SOFTIB_DIR", small.0.path())]);
    assert!(said.contains(&one), "{said}");
}

#[test]
fn a_folder_without_space_for_a_segment_refuses_to_open_the_device() {
    let Some(small) = small_folder("tiny", 32 << 10) else { return };
    let folder = &small.0;
    let words = [folder.path(), "32 KiB are free", "48 KiB are needed"];
    is_refused(&[("SOFTIB_DIR", folder.path())], libc::ENOMEM, &words);
}
