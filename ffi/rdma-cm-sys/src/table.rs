//! The calls: one function pointer for each exported librdmacm symbol that we call.
//!
//! Filled by the loader in `verbs` from `librdmacm.so.1`, or by the software device with its own functions. A call returns 0, or
//! -1 or a null pointer with `errno` set.

use core::ffi::{c_char, c_int, c_void};

use libc::sockaddr;
use rdma_sys::ibv_qp_attr;

use crate::{rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel};

rdma_sys::symbol_table! {
    /// Opens a channel for events. `EPERM` or `ENODEV` where the kernel has no RDMA.
    create_event_channel, "rdma_create_event_channel", "RDMACM_1.0":
        unsafe extern "C" fn() -> *mut rdma_event_channel;
    /// Closes it; its ids must be gone.
    destroy_event_channel, "rdma_destroy_event_channel", "RDMACM_1.0":
        unsafe extern "C" fn(*mut rdma_event_channel);
    /// Makes an id: channel, where to, the program's pointer, port space.
    create_id, "rdma_create_id", "RDMACM_1.0":
        unsafe extern "C" fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, u32) -> c_int;
    /// Destroys it; waits until its events are acknowledged.
    destroy_id, "rdma_destroy_id", "RDMACM_1.0": unsafe extern "C" fn(*mut rdma_cm_id) -> c_int;
    /// Binds an address, and the device that has it unless it is the wildcard.
    bind_addr, "rdma_bind_addr", "RDMACM_1.0": unsafe extern "C" fn(*mut rdma_cm_id, *mut sockaddr) -> c_int;
    /// Finds the device that leads to an address: source or null, destination, milliseconds.
    resolve_addr, "rdma_resolve_addr", "RDMACM_1.0":
        unsafe extern "C" fn(*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
    /// Finds the path, in so many milliseconds.
    resolve_route, "rdma_resolve_route", "RDMACM_1.0": unsafe extern "C" fn(*mut rdma_cm_id, c_int) -> c_int;
    /// Asks the peer for a connection.
    connect, "rdma_connect", "RDMACM_1.0":
        unsafe extern "C" fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    /// Completes a connection whose QP is not the id's.
    establish, "rdma_establish", "RDMACM_1.2": unsafe extern "C" fn(*mut rdma_cm_id) -> c_int;
    /// Takes requests from now on.
    listen, "rdma_listen", "RDMACM_1.0": unsafe extern "C" fn(*mut rdma_cm_id, c_int) -> c_int;
    /// Agrees to a request.
    accept, "rdma_accept", "RDMACM_1.0":
        unsafe extern "C" fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    /// Refuses it, with private data.
    reject, "rdma_reject", "RDMACM_1.0": unsafe extern "C" fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
    /// Tells of an asynchronous event of the QP: COMM_EST stands in for a lost RTU.
    notify, "rdma_notify", "RDMACM_1.0": unsafe extern "C" fn(*mut rdma_cm_id, u32) -> c_int;
    /// Takes a connection down, or agrees to the peer's wish.
    disconnect, "rdma_disconnect", "RDMACM_1.0": unsafe extern "C" fn(*mut rdma_cm_id) -> c_int;
    /// Takes the next event of a channel; blocks unless its fd is non-blocking.
    get_cm_event, "rdma_get_cm_event", "RDMACM_1.0":
        unsafe extern "C" fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
    /// Gives it back.
    ack_cm_event, "rdma_ack_cm_event", "RDMACM_1.0": unsafe extern "C" fn(*mut rdma_cm_event) -> c_int;
    /// The local port, big endian; 0 if none.
    get_src_port, "rdma_get_src_port", "RDMACM_1.0": unsafe extern "C" fn(*mut rdma_cm_id) -> u16;
    /// Sets an option: level, name, value, length.
    set_option, "rdma_set_option", "RDMACM_1.0":
        unsafe extern "C" fn(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
    /// The name of an event, a C string of the library's.
    event_str, "rdma_event_str", "RDMACM_1.0": unsafe extern "C" fn(u32) -> *const c_char;
    /// Attributes, and their mask, for the transition to `qp_attr.qp_state`.
    init_qp_attr, "rdma_init_qp_attr", "RDMACM_1.2":
        unsafe extern "C" fn(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
}
