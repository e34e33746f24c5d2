//! XRC by ids of librdmacm: what `rdma_xserver -c x` and `rdma_xclient -c x` do, and what they do not try.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "a C program in Rust: live objects of the device throughout"
)]

mod common;

use common::{PATIENCE, last_errno, table};
use rdma_cm_sys::*;
use rdma_sys::*;
use std::ffi::{CString, c_char, c_int};
use std::ptr::null_mut;
use std::time::Instant;

type Id = *mut rdma_cm_id;
type OnId = unsafe extern "C" fn(Id) -> c_int;
type Found = *mut rdma_addrinfo;
type LookUp = unsafe extern "C" fn(*const c_char, *const c_char, *const rdma_addrinfo, *mut Found) -> c_int;
type CreateEp = unsafe extern "C" fn(*mut Id, Found, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
type CreateSrq = unsafe extern "C" fn(Id, *mut ibv_pd, *mut ibv_srq_init_attr) -> c_int;
type CreateSrqEx = unsafe extern "C" fn(Id, *mut ibv_srq_init_attr_ex) -> c_int;
type Transact = unsafe extern "C" fn(Id, *mut rdma_conn_param) -> c_int;

/// A function of librdmacm by its name.
unsafe fn call<F: Copy>(name: &str) -> F {
    let found = softib::CM_CALLS.iter().find(|call| call.name == name).expect(name);
    assert_eq!(size_of::<F>(), size_of::<*const ()>());
    unsafe { std::mem::transmute_copy(&found.target) }
}

fn on_id(name: &str, id: Id) -> c_int {
    unsafe { call::<OnId>(name)(id) }
}

/// An endpoint of the port space for all types; without a port it listens on a free one.
fn endpoint(qp_type: u32, to: Option<u16>) -> Id {
    let flags = if to.is_some() { 0 } else { RAI_PASSIVE };
    let hints = rdma_addrinfo {
        ai_flags: flags as c_int,
        ai_family: libc::AF_INET,
        ai_port_space: RDMA_PS_IB as c_int,
        ai_qp_type: qp_type as c_int,
        ..Default::default()
    };
    let (host, port) = (c"127.0.0.1", CString::new(to.unwrap_or(0).to_string()).unwrap());
    let (mut found, mut id) = (null_mut(), null_mut());
    let mut init = ibv_qp_init_attr { sq_sig_all: 1, ..Default::default() };
    init.cap =
        ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, ..Default::default() };
    unsafe {
        assert_eq!(call::<LookUp>("rdma_getaddrinfo")(host.as_ptr(), port.as_ptr(), &hints, &mut found), 0);
        assert_eq!(((*found).ai_port_space as u32, (*found).ai_qp_type as u32), (RDMA_PS_IB, qp_type));
        let made = call::<CreateEp>("rdma_create_ep")(&mut id, found, null_mut(), &mut init);
        assert_eq!(made, 0, "errno {}", last_errno());
        call::<unsafe extern "C" fn(Found)>("rdma_freeaddrinfo")(found);
        assert_eq!((*id).qp_type, qp_type);
    }
    id
}

fn listener(qp_type: u32) -> (Id, u16) {
    let id = endpoint(qp_type, None);
    assert_eq!(unsafe { call::<unsafe extern "C" fn(Id, c_int) -> c_int>("rdma_listen")(id, 4) }, 0);
    let port = unsafe { call::<unsafe extern "C" fn(Id) -> u16>("rdma_get_src_port")(id) };
    (id, u16::from_be(port))
}

/// Waits for a request, gives it an XRC SRQ with one receive, tells its number, and waits for a message. The receive's completion,
/// the message, and the number of the receive queue pair.
fn serve(listener: Id) -> (ibv_wc, [u8; 4], u32) {
    let mut id = null_mut();
    let mut into = [0_u8; 4];
    unsafe {
        let got = call::<unsafe extern "C" fn(Id, *mut Id) -> c_int>("rdma_get_request")(listener, &mut id);
        assert_eq!((got, (*id).qp_type), (0, IBV_QPT_XRC_RECV));
        assert!((*id).recv_cq.is_null(), "its completions come with the SRQ");
        let mut attr = ibv_srq_init_attr::default();
        (attr.attr.max_wr, attr.attr.max_sge) = (1, 1);
        let made = call::<CreateSrq>("rdma_create_srq")(id, null_mut(), &mut attr);
        assert_eq!(made, 0, "errno {}", last_errno());
        assert!(!(*id).srq.is_null() && !(*id).recv_cq.is_null());
        let mut number = 0;
        assert_eq!(ibv_get_srq_num((*id).srq, &mut number), 0);
        let access = IBV_ACCESS_LOCAL_WRITE.cast_signed();
        let mr = (table().reg_mr)((*id).pd, into.as_mut_ptr().cast(), 4, access);
        let mut sge = ibv_sge { addr: into.as_mut_ptr() as u64, length: 4, lkey: (*mr).lkey };
        let mut wr = ibv_recv_wr { wr_id: 7, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
        assert_eq!(ibv_post_srq_recv((*id).srq, &mut wr, &mut null_mut()), 0);
        let word = number.to_be_bytes();
        let private_data = word.as_ptr().cast();
        let mut param = rdma_conn_param { private_data, private_data_len: 4, ..Default::default() };
        assert_eq!(call::<Transact>("rdma_accept")(id, &mut param), 0, "errno {}", last_errno());
        let wc = wait((*id).recv_cq);
        let qpn = (*(*id).qp).qp_num;
        on_id("rdma_disconnect", id);
        (table().dereg_mr)(mr);
        call::<unsafe extern "C" fn(Id)>("rdma_destroy_ep")(id);
        (wc, into, qpn)
    }
}

fn wait(cq: *mut ibv_cq) -> ibv_wc {
    let (began, mut wc) = (Instant::now(), ibv_wc::default());
    while unsafe { ibv_poll_cq(cq, 1, &mut wc) } == 0 {
        assert!(began.elapsed() < PATIENCE, "no completion");
        std::thread::yield_now();
    }
    wc
}

fn destroy_ep(id: Id) {
    unsafe { call::<unsafe extern "C" fn(Id)>("rdma_destroy_ep")(id) };
}

/// Connects an XRC send endpoint to `port` and sends a message to the SRQ whose number comes back.
fn send(port: u16) {
    let id = endpoint(IBV_QPT_XRC_SEND, Some(port));
    unsafe {
        assert!((*id).recv_cq.is_null(), "a send queue pair receives nothing");
        assert_eq!(call::<Transact>("rdma_connect")(id, null_mut()), 0, "errno {}", last_errno());
        let private = (*(*id).event).param.conn.private_data.cast::<[u8; 4]>();
        let remote_srqn = u32::from_be_bytes(private.read_unaligned());
        let bytes = *b"xrc!";
        let mut sge = ibv_sge { addr: bytes.as_ptr() as u64, length: 4, lkey: 0 };
        let mut wr = ibv_send_wr { sg_list: &mut sge, num_sge: 1, opcode: IBV_WR_SEND, ..Default::default() };
        wr.send_flags = IBV_SEND_INLINE;
        wr.qp_type.xrc.remote_srqn = remote_srqn;
        assert_eq!(ibv_post_send((*id).qp, &mut wr, &mut null_mut()), 0);
        assert_eq!(wait((*id).send_cq).status, IBV_WC_SUCCESS);
    }
    destroy_ep(id);
}

#[test]
fn a_message_goes_to_the_srq_whose_number_came_with_the_reply() {
    let (listener, port) = listener(IBV_QPT_XRC_RECV);
    let listener_at = listener as usize;
    let server = std::thread::spawn(move || serve(listener_at as Id));
    send(port);
    let (wc, into, qpn) = server.join().unwrap();
    assert_eq!((wc.status, wc.wr_id, wc.byte_len, wc.qp_num), (IBV_WC_SUCCESS, 7, 4, qpn));
    assert_eq!(&into, b"xrc!");
    destroy_ep(listener);
}

#[test]
fn a_request_of_another_type_is_refused_and_the_listener_goes_on_waiting() {
    let (listener, port) = listener(IBV_QPT_XRC_RECV);
    let listener_at = listener as usize;
    let server = std::thread::spawn(move || serve(listener_at as Id));
    let id = endpoint(IBV_QPT_RC, Some(port));
    let refused = unsafe { call::<Transact>("rdma_connect")(id, null_mut()) };
    assert_eq!((refused, last_errno()), (-1, libc::ECONNREFUSED));
    destroy_ep(id);
    send(port);
    assert_eq!(server.join().unwrap().0.status, IBV_WC_SUCCESS);
    destroy_ep(listener);
}

#[test]
fn an_xrc_srq_without_domain_and_queue_gets_both_and_says_so() {
    let id = endpoint(IBV_QPT_XRC_SEND, Some(9));
    let mut attr = ibv_srq_init_attr_ex { srq_type: IBV_SRQT_XRC, ..Default::default() };
    (attr.attr.max_wr, attr.attr.max_sge) = (1, 1);
    let create =
        |attr: &mut ibv_srq_init_attr_ex| unsafe { call::<CreateSrqEx>("rdma_create_srq_ex")(id, attr) };
    assert_eq!((create(&mut attr), last_errno()), (-1, libc::EINVAL), "the type is not named");
    attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
    assert_eq!(create(&mut attr), 0, "errno {}", last_errno());
    let given = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    assert_eq!(attr.comp_mask & given, given);
    unsafe { assert_eq!(attr.cq, (*id).recv_cq) };
    unsafe { call::<unsafe extern "C" fn(Id)>("rdma_destroy_srq")(id) };
    unsafe { assert!((*id).srq.is_null() && (*id).recv_cq.is_null()) };
    destroy_ep(id);
}

#[test]
fn the_space_of_all_types_has_ports_of_its_own() {
    let (listener, port) = listener(IBV_QPT_RC);
    let create: unsafe extern "C" fn(*mut rdma_event_channel, *mut Id, *mut std::ffi::c_void, u32) -> c_int =
        unsafe { call("rdma_create_id") };
    let mut id = null_mut();
    let mut address = address::emit(format!("127.0.0.1:{port}").parse().unwrap());
    for (space, code) in [(RDMA_PS_TCP, 0), (RDMA_PS_UDP, 0), (RDMA_PS_IB, -1)] {
        assert_eq!(unsafe { create(null_mut(), &mut id, null_mut(), space) }, 0);
        let bind =
            unsafe { call::<unsafe extern "C" fn(Id, *mut libc::sockaddr) -> c_int>("rdma_bind_addr") };
        assert_eq!(unsafe { bind(id, (&raw mut address).cast()) }, code, "space {space:#x}");
        on_id("rdma_destroy_id", id);
    }
    destroy_ep(listener);
}
