//! The control path: one function pointer for each exported libibverbs symbol that we call.
//!
//! Filled by the loader in `verbs` from `libibverbs.so.1`, or by the software device with its own functions. The
//! signatures are C's, with one exception noted at `query_port`. A verb returns 0 or an errno value, or a pointer that is
//! null with `errno` set; some old verbs return -1 and set `errno`.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::*;

/// Symbol by which a drop-in `libibverbs.so.1` says that it is our software device. A driver that carries it is used as
/// it is, and the linked-in copy of the software device stays off.
pub const SOFTIB_MARKER: &CStr = c"oxib_softib_marker";

symbol_table! {
    /// Null-terminated array of devices, and their number. Null with `ENOSYS` when the kernel has no RDMA.
    get_device_list, "ibv_get_device_list", "IBVERBS_1.1": unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device;
    /// Frees the array; devices that were not opened are gone with it.
    free_device_list, "ibv_free_device_list", "IBVERBS_1.1": unsafe extern "C" fn(*mut *mut ibv_device);
    /// Name of a device, owned by it.
    get_device_name, "ibv_get_device_name", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_device) -> *const c_char;
    /// Node GUID, big endian.
    get_device_guid, "ibv_get_device_guid", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_device) -> u64;
    /// Opens a device.
    open_device, "ibv_open_device", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context;
    /// Closes it.
    close_device, "ibv_close_device", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_context) -> c_int;
    /// Properties of a device.
    query_device, "ibv_query_device", "IBVERBS_1.1":
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    /// Properties of a port. In a table that the loader or a software device made, it fills the whole struct. As
    /// libibverbs exports it, it fills the compat part only, which ends before `port_cap_flags2`: pass a zeroed struct,
    /// or call [`ibv_query_port`], which does all that.
    query_port, "ibv_query_port", "IBVERBS_1.1":
        unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    /// One entry of a port's GID table.
    query_gid, "ibv_query_gid", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    /// One entry of a port's P_Key table, big endian.
    query_pkey, "ibv_query_pkey", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
    /// Allocates a protection domain.
    alloc_pd, "ibv_alloc_pd", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd;
    /// Frees it; `EBUSY` while something belongs to it.
    dealloc_pd, "ibv_dealloc_pd", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_pd) -> c_int;
    /// Registers memory.
    reg_mr, "ibv_reg_mr", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    /// Undoes it.
    dereg_mr, "ibv_dereg_mr", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_mr) -> c_int;
    /// Creates a completion channel. One of the two symbols that exist under IBVERBS_1.0 only.
    create_comp_channel, "ibv_create_comp_channel", "IBVERBS_1.0":
        unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel;
    /// Destroys it. The other one.
    destroy_comp_channel, "ibv_destroy_comp_channel", "IBVERBS_1.0":
        unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int;
    /// Creates a completion queue: least depth, user pointer, channel or null, completion vector.
    create_cq, "ibv_create_cq", "IBVERBS_1.1":
        unsafe extern "C" fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    /// Changes its depth; `cq.cqe` says what was granted.
    resize_cq, "ibv_resize_cq", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
    /// Destroys it; `EBUSY` while a queue pair uses it, waits for unacknowledged events.
    destroy_cq, "ibv_destroy_cq", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_cq) -> c_int;
    /// Takes the next completion event of a channel; blocks unless its fd is non-blocking.
    get_cq_event, "ibv_get_cq_event", "IBVERBS_1.1":
        unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    /// Acknowledges completion events of a CQ.
    ack_cq_events, "ibv_ack_cq_events", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_cq, c_uint);
    /// Creates a shared receive queue; the attributes return what was granted.
    create_srq, "ibv_create_srq", "IBVERBS_1.1":
        unsafe extern "C" fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    /// Resizes it or arms its limit event.
    modify_srq, "ibv_modify_srq", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    /// Reads its attributes.
    query_srq, "ibv_query_srq", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_srq, *mut ibv_srq_attr) -> c_int;
    /// Destroys it; `EBUSY` while a queue pair uses it.
    destroy_srq, "ibv_destroy_srq", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_srq) -> c_int;
    /// Creates a queue pair; the attributes return what was granted.
    create_qp, "ibv_create_qp", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    /// Changes its state and attributes.
    modify_qp, "ibv_modify_qp", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    /// Reads them.
    query_qp, "ibv_query_qp", "IBVERBS_1.1":
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    /// Destroys it.
    destroy_qp, "ibv_destroy_qp", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_qp) -> c_int;
    /// Creates an address handle.
    create_ah, "ibv_create_ah", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    /// Destroys it.
    destroy_ah, "ibv_destroy_ah", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_ah) -> c_int;
    /// Takes the next asynchronous event; blocks unless `async_fd` is non-blocking.
    get_async_event, "ibv_get_async_event", "IBVERBS_1.1":
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    /// Acknowledges it.
    ack_async_event, "ibv_ack_async_event", "IBVERBS_1.1": unsafe extern "C" fn(*mut ibv_async_event);
    /// Makes registered memory survive fork(2).
    fork_init, "ibv_fork_init", "IBVERBS_1.1": unsafe extern "C" fn() -> c_int;
    @optional {
        /// One filled row of a port's GID table with its type: port, index, room for the answer, flags (0), size of the
        /// struct. `ENODATA` for an empty row. rdma-core has it since version 32.
        query_gid_ex, "_ibv_query_gid_ex", "IBVERBS_1.11":
            unsafe extern "C" fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
        /// From now on the program polls until what it writes to peers is over, so that a peer's program may be given the data to place it. No
        /// library exports it: the linked-in software device has it.
        await_writes, "oxib_await_writes", "OXIB_1.0": unsafe extern "C" fn();
        /// From now on the last completion of a poll of this queue may be of a message of at least so many bytes that the device has
        /// left where it was ([`IBV_WC_PLACED`]); where that is. No library exports it: the linked-in software device has it.
        place_messages, "oxib_place_messages", "OXIB_1.0": unsafe extern "C" fn(*mut ibv_cq, u32) -> *const Placed;
        /// So many bytes of memory, zero at first, that peers on this host map, too: what they write to a region in it is in their hands.
        /// Null: there are none. No library exports it: the linked-in software device has it.
        share_memory, "oxib_share_memory", "OXIB_1.0": unsafe extern "C" fn(usize) -> *mut c_void;
        /// Gives them back when no region is in them any more; `EBUSY` before that. As above.
        unshare_memory, "oxib_unshare_memory", "OXIB_1.0": unsafe extern "C" fn(*mut c_void) -> c_int;
        /// Carries out an RDMA WRITE of pieces and a word behind them, which is written last, to such memory: with the word, its address at the peer,
        /// a multiple of 8, and the key of that memory. It takes no entry of the send queue, and has no completion. Not 0: nothing has happened, and
        /// it is to be posted with `ibv_post_send`. As above.
        write_short, "oxib_write_short", "OXIB_1.0":
            unsafe extern "C" fn(*mut ibv_qp, *const ShortWrite, u64, u64, u32) -> c_int;
        /// Whether a send of so many bytes that is posted now would be carried out at once, and not wait in the send queue: not 0, if so. As above.
        sends_at_once, "oxib_sends_at_once", "OXIB_1.0": unsafe extern "C" fn(*mut ibv_qp, u32) -> c_int;
        /// Carries out an RDMA READ or WRITE, by its opcode, of one buffer, if all that was posted to the queue pair is over and the device would move
        /// the data within the call: with its address at the peer, the key there, and whether the program begins others before it waits for it. It
        /// takes no entry of the send queue, and has no completion. Not 0: it is to be posted with `ibv_post_send`; what it fetches may have come
        /// in part. As above.
        rdma_at_once, "oxib_rdma_at_once", "OXIB_1.0":
            unsafe extern "C" fn(*mut ibv_qp, u32, *const ibv_sge, u64, u32, c_int) -> c_int;
    }
}

/// The pieces of what `write_short` of [`Table`] writes, which are read before it returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ShortWrite {
    /// The buffers, and their bytes: up to 128 and 16384 of them.
    pub head: *const u8,
    pub head_len: usize,
    pub body: *const u8,
    pub body_len: usize,
}
