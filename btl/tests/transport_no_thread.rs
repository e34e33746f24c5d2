//! Adding the first peer of a job starts the connection helper thread. If that fails, the add fails with its reason, and the next
//! add tries again. A binary of its own with one test, because a limit of open files is one of the whole process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use btl_testing::{Side, World, config, open_alone};

/// Sets the soft limit of open files; returns the one before. Open files stay open.
fn limit_files(to: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a valid struct, which they read or fill before they return.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        let before = std::mem::replace(&mut limit.rlim_cur, to);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        before
    }
}

#[test]
fn a_peer_that_was_refused_for_want_of_a_thread_is_added_by_the_next_call_and_reached() {
    let config = config("P,128,32,16,8:S,8192,32,16,32");
    let mut world = World::strangers("no thread", vec![config.clone(); 2]);
    let own_name = world.sides[0].name;
    world.sides[0] = Side::new(open_alone(config, own_name), own_name, 2);
    let (name, adverts) = (world.sides[1].name, world.sides[1].adverts.clone());
    let files = limit_files(3);
    let refused =
        [(); 2].map(|()| world.sides[0].transport.add(name, &adverts).map_err(|error| error.to_string()));
    limit_files(files);
    for refused in refused {
        let reason = refused.expect_err("no file can be opened");
        assert!(reason.contains("helper thread can't start: Too many open files"), "{reason}");
    }
    world.add(0, 1);
    world.add(1, 0);
    world.send(0, 1, 100);
    world.send(1, 0, 100);
    world.drain();
    world.close();
}
