//! System calls that fail once: this binary's own functions of these names stand before the C library's, for everything that is linked into
//! it. `OXIB_SWEEP_SYSTEM=mmap:3` has the third call of mmap(2) fail; the C library's own calls are not touched, nor those of the test's
//! own preparations.

use libc::{
    c_char, c_int, c_void, epoll_event, mode_t, off_t, pthread_attr_t, pthread_t, size_t, sockaddr, socklen_t,
};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static ARMED: AtomicBool = AtomicBool::new(false);
/// The function, and which call of it.
static PLAN: OnceLock<Option<(String, u64)>> = OnceLock::new();

/// Counts, and has what was asked for fail, until it is called with `false`.
pub fn arm(on: bool) {
    PLAN.get_or_init(|| {
        let text = std::env::var("OXIB_SWEEP_SYSTEM").ok()?;
        let (name, number) = text.split_once(':')?;
        Some((name.to_owned(), number.parse().ok()?))
    });
    ARMED.store(on, Ordering::SeqCst);
}

/// Counts a call; whether it is to fail.
fn strikes(name: &str, calls: &AtomicU64) -> bool {
    if !ARMED.load(Ordering::Relaxed) {
        return false;
    }
    let number = calls.fetch_add(1, Ordering::Relaxed) + 1;
    let plan = PLAN.get().and_then(Option::as_ref);
    plan.is_some_and(|(of, which)| of == name && *which == number)
}

fn refuse(errno: c_int) {
    // SAFETY: the calling thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Declares the functions: each refuses with its errno value and result, or calls the next function of its name.
macro_rules! system_calls {
    ($($name:ident, $errno:ident => $failed:expr, fn($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        /// What each says when it fails.
        pub const ERRNOS: &[(&str, c_int)] = &[$((stringify!($name), libc::$errno)),*];

        /// How often each has been called.
        pub fn counts() -> Vec<(&'static str, u64)> {
            vec![$((stringify!($name), calls::$name.load(Ordering::Relaxed))),*]
        }

        #[allow(non_upper_case_globals)]
        mod calls {
            use std::sync::atomic::AtomicU64;
            $(pub static $name: AtomicU64 = AtomicU64::new(0);)*
        }

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
                if strikes(stringify!($name), &calls::$name) {
                    refuse(libc::$errno);
                    return $failed;
                }
                static NEXT: OnceLock<usize> = OnceLock::new();
                // SAFETY: a name of the C library's.
                let next = NEXT.get_or_init(|| unsafe {
                    libc::dlsym(libc::RTLD_NEXT, concat!(stringify!($name), "\0").as_ptr().cast()) as usize
                });
                // SAFETY: the C library's function of this name has this signature, and gets what its caller passed.
                unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($ty),*) -> $ret>(*next)($($arg),*) }
            }
        )*
    };
}

system_calls! {
    mmap, ENOMEM => libc::MAP_FAILED,
        fn(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, at: off_t) -> *mut c_void;
    fallocate, ENOSPC => -1, fn(fd: c_int, mode: c_int, at: off_t, len: off_t) -> c_int;
    ftruncate64, ENOSPC => -1, fn(fd: c_int, len: off_t) -> c_int;
    open64, EMFILE => -1, fn(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    open, EMFILE => -1, fn(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    openat, EMFILE => -1, fn(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    linkat, ENOSPC => -1,
        fn(from: c_int, old: *const c_char, to: c_int, new: *const c_char, flags: c_int) -> c_int;
    mkdir, ENOSPC => -1, fn(path: *const c_char, mode: mode_t) -> c_int;
    eventfd, EMFILE => -1, fn(count: u32, flags: c_int) -> c_int;
    epoll_create1, EMFILE => -1, fn(flags: c_int) -> c_int;
    epoll_ctl, ENOSPC => -1, fn(epoll: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    pthread_create, EAGAIN => libc::EAGAIN, fn(
        thread: *mut pthread_t,
        attr: *const pthread_attr_t,
        body: extern "C" fn(*mut c_void) -> *mut c_void,
        argument: *mut c_void
    ) -> c_int;
    socket, EMFILE => -1, fn(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind, EACCES => -1, fn(socket: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    listen, EADDRINUSE => -1, fn(socket: c_int, backlog: c_int) -> c_int;
    connect, ECONNREFUSED => -1, fn(socket: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
}
