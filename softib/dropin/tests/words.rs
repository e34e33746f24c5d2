//! Compares words and rates with the installed libibverbs, which programs' output was written against.

use softib_dropin::{names, rate};
use std::ffi::{CStr, c_char, c_int, c_void};

type Word = unsafe extern "C" fn(c_int) -> *const c_char;
type Rate = unsafe extern "C" fn(u32) -> c_int;
type Code = unsafe extern "C" fn(c_int) -> u32;

fn theirs(name: &CStr) -> *mut c_void {
    // SAFETY: the library's constructors do nothing that matters here.
    let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "libibverbs1 is not installed");
    // SAFETY: a library that was just opened.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

#[test]
fn words_are_those_of_the_distributions_library() {
    let pairs: [(&CStr, Word); 4] = [
        (c"ibv_node_type_str", names::node_type_str),
        (c"ibv_port_state_str", names::port_state_str),
        (c"ibv_event_type_str", names::event_type_str),
        (c"ibv_wc_status_str", names::wc_status_str),
    ];
    for (name, ours) in pairs {
        // SAFETY: a libibverbs function of this name has this signature.
        let theirs = unsafe { std::mem::transmute::<*mut c_void, Word>(theirs(name)) };
        for number in -2..40 {
            // SAFETY: both take any number and return a string that is never freed.
            let (ours, theirs) = unsafe { (CStr::from_ptr(ours(number)), CStr::from_ptr(theirs(number))) };
            assert_eq!(ours, theirs, "{name:?}({number})");
        }
    }
}

#[test]
fn rates_are_those_of_the_distributions_library() {
    let to: [(&CStr, Rate); 2] =
        [(c"ibv_rate_to_mult", rate::rate_to_mult), (c"ibv_rate_to_mbps", rate::rate_to_mbps)];
    for (name, ours) in to {
        // SAFETY: a libibverbs function of this name has this signature.
        let theirs = unsafe { std::mem::transmute::<*mut c_void, Rate>(theirs(name)) };
        for code in 0..40 {
            // SAFETY: both take any number.
            unsafe { assert_eq!(ours(code), theirs(code), "{name:?}({code})") };
        }
    }
    let from: [(&CStr, Code, Rate); 2] = [
        (c"mult_to_ibv_rate", rate::mult_to_rate, rate::rate_to_mult),
        (c"mbps_to_ibv_rate", rate::mbps_to_rate, rate::rate_to_mbps),
    ];
    for (name, ours, values) in from {
        // SAFETY: a libibverbs function of this name has this signature.
        let theirs = unsafe { std::mem::transmute::<*mut c_void, Code>(theirs(name)) };
        // SAFETY: takes any number.
        let known = (0..40).map(|code| unsafe { values(code) });
        for value in known.chain([-1, 0, 3, 7, 1_000_000]) {
            // SAFETY: both take any number.
            unsafe { assert_eq!(ours(value), theirs(value), "{name:?}({value})") };
        }
    }
}
