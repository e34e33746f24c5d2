//! librdmacm's calls as programs of elsewhere combine them: what libfabric's verbs provider relies on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "a C program in Rust: live objects of the device throughout"
)]

mod common;
#[path = "common/connections.rs"]
mod connections;

use common::{PATIENCE, last_errno, table};
use connections::{Channel, bind, cm, destroy, resolve};
use rdma_cm_sys::*;
use rdma_sys::*;
use std::ffi::{c_char, c_int, c_void};
use std::net::SocketAddr;
use std::ptr::{null, null_mut};
use std::sync::mpsc::channel;

type Found = *mut rdma_addrinfo;
type LookUp = unsafe extern "C" fn(*const c_char, *const c_char, *const rdma_addrinfo, *mut Found) -> c_int;
type CreateId =
    unsafe extern "C" fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, u32) -> c_int;
type Devices = *mut *mut ibv_context;

/// A function of librdmacm by its name.
unsafe fn call<F: Copy>(name: &str) -> F {
    let found = softib::CM_CALLS.iter().find(|call| call.name == name).expect(name);
    assert_eq!(size_of::<F>(), size_of::<*const ()>());
    unsafe { std::mem::transmute_copy(&found.target) }
}

/// `rdma_getaddrinfo` without node and service.
fn from_hints(hints: *const rdma_addrinfo) -> Result<Found, i32> {
    let mut found = null_mut();
    match unsafe { call::<LookUp>("rdma_getaddrinfo")(null(), null(), hints, &mut found) } {
        0 => Ok(found),
        code => Err((code == -1).then(last_errno).expect("-1 and errno")),
    }
}

fn free(found: Found) {
    unsafe { call::<unsafe extern "C" fn(Found)>("rdma_freeaddrinfo")(found) };
}

unsafe fn read(address: *const libc::sockaddr) -> Option<SocketAddr> {
    if address.is_null() { None } else { unsafe { address::parse(address) } }
}

#[test]
fn without_node_and_service_the_addresses_of_the_hints_are_the_result() {
    let (local, remote): (SocketAddr, SocketAddr) =
        ("127.0.0.1:7".parse().unwrap(), "127.0.0.2:9".parse().unwrap());
    let (mut source, mut destination) = (address::emit(local), address::emit(remote));
    for (flags, qp_type) in [(0, IBV_QPT_RC), (RAI_PASSIVE, IBV_QPT_UD)] {
        let hints = rdma_addrinfo {
            ai_flags: flags as c_int,
            ai_family: libc::AF_INET,
            ai_qp_type: qp_type as c_int,
            ai_port_space: RDMA_PS_TCP as c_int,
            ai_src_len: size_of::<libc::sockaddr_in>() as u32,
            ai_dst_len: size_of::<libc::sockaddr_in>() as u32,
            ai_src_addr: (&raw mut source).cast(),
            ai_dst_addr: (&raw mut destination).cast(),
            ..Default::default()
        };
        let found = from_hints(&hints).unwrap();
        unsafe {
            let c = &*found;
            assert_eq!((read(c.ai_src_addr), read(c.ai_dst_addr)), (Some(local), Some(remote)), "{flags}");
            assert_eq!((c.ai_src_len, c.ai_dst_len), (hints.ai_src_len, hints.ai_dst_len));
            assert_eq!((c.ai_flags, c.ai_family), (flags as c_int, libc::AF_INET));
            assert_eq!((c.ai_qp_type as u32, c.ai_port_space as u32), (qp_type, RDMA_PS_TCP));
        }
        free(found);
    }
}

#[test]
fn hints_without_addresses_find_nothing_and_no_hints_are_an_error() {
    let found = from_hints(&rdma_addrinfo::default()).unwrap();
    unsafe { assert!((*found).ai_src_addr.is_null() && (*found).ai_dst_addr.is_null()) };
    free(found);
    assert_eq!(from_hints(null()), Err(libc::EINVAL));
}

/// libfabric makes structs of its own, and gives them, and pieces of lists, to `rdma_freeaddrinfo`.
#[test]
fn what_a_program_allocated_itself_is_freed_like_a_result() {
    let mine = || unsafe {
        let c: Found = libc::calloc(1, size_of::<rdma_addrinfo>()).cast();
        (*c).ai_dst_addr = libc::calloc(1, size_of::<libc::sockaddr_in>()).cast();
        c
    };
    let list = mine();
    unsafe { (*list).ai_next = mine() };
    free(list);
    free(null_mut());
}

/// libfabric resolves a destination to learn which device leads there, and destroys the id with the event in it.
#[test]
fn a_synchronous_id_is_destroyed_with_the_event_that_it_holds() {
    let (told, hear) = channel();
    std::thread::spawn(move || {
        let mut id = null_mut();
        assert_eq!(unsafe { (cm().create_id)(null_mut(), &mut id, null_mut(), RDMA_PS_TCP) }, 0);
        assert_eq!(resolve(id, "127.0.0.1:7"), 0);
        assert!(!unsafe { (*id).event }.is_null(), "ADDR_RESOLVED");
        destroy(id);
        told.send(()).unwrap();
    });
    assert_eq!(hear.recv_timeout(PATIENCE), Ok(()), "rdma_destroy_id waits for its own acknowledgement");
}

/// A PD and a region on it, as a program's domain begins.
fn works(context: *mut ibv_context) {
    unsafe {
        let pd = (table().alloc_pd)(context);
        assert!(!pd.is_null(), "errno {}", last_errno());
        let mut byte = [0_u8; 64];
        let mr = (table().reg_mr)(pd, byte.as_mut_ptr().cast(), 64, 0);
        assert!(!mr.is_null(), "errno {}", last_errno());
        assert_eq!(((table().dereg_mr)(mr), (table().dealloc_pd)(pd)), (0, 0));
    }
}

#[test]
fn a_context_of_rdma_get_devices_outlives_the_list() {
    let list = || unsafe {
        let mut count = 0;
        let list = call::<unsafe extern "C" fn(*mut c_int) -> Devices>("rdma_get_devices")(&mut count);
        assert_eq!(count, 1);
        let context = *list;
        call::<unsafe extern "C" fn(Devices)>("rdma_free_devices")(list);
        context
    };
    let context = list();
    works(context);
    assert_eq!(list(), context, "it is the same one for the whole process");
}

#[test]
fn a_context_of_an_id_outlives_the_id() {
    let mut id = null_mut();
    let made = unsafe { call::<CreateId>("rdma_create_id")(null_mut(), &mut id, null_mut(), RDMA_PS_TCP) };
    assert_eq!(made, 0);
    assert_eq!(bind(id, "127.0.0.1:0"), 0);
    let context = unsafe { (*id).verbs };
    destroy(id);
    works(context);
}

/// As the kernel does it (seen with 6.1): the address that could not be had is forgotten.
#[test]
fn a_listen_after_a_failed_bind_takes_any_free_port_of_ipv4() {
    let channel = Channel::open();
    let (holder, taken) = channel.listener(RDMA_PS_TCP);
    for to in [format!("127.0.0.1:{taken}"), "192.0.2.1:7".to_owned()] {
        let id = channel.id(RDMA_PS_TCP);
        assert_eq!(bind(id, &to), -1, "{to}");
        assert_eq!(unsafe { (cm().listen)(id, 1) }, 0, "{to}");
        let local = unsafe { read((&raw const (*id).route.addr.src_storage).cast()) }.unwrap();
        assert!(local.ip() == std::net::Ipv4Addr::UNSPECIFIED && local.port() != 0, "{local}");
        assert_ne!(local.port(), taken);
        destroy(id);
    }
    destroy(holder);
}
