//! The driver table: the control path of this device for `verbs::Driver::from_table`.

use super::extras::sharing;
use super::{address, create, device, event, listing, memory, ops, poll, port, queue, srq};
use rdma_sys::Table;

static TABLE: Table = Table {
    name: "softib",
    get_device_list: listing::get_device_list,
    free_device_list: listing::free_device_list,
    get_device_name: listing::get_device_name,
    get_device_guid: listing::get_device_guid,
    open_device: device::open_device,
    close_device: device::close_device,
    query_device: device::query_device,
    query_port: port::query_port,
    query_gid: port::query_gid,
    query_pkey: port::query_pkey,
    alloc_pd: create::alloc_pd,
    dealloc_pd: create::dealloc_pd,
    reg_mr: memory::reg_mr,
    dereg_mr: memory::dereg_mr,
    create_comp_channel: create::create_comp_channel,
    destroy_comp_channel: create::destroy_comp_channel,
    create_cq: create::create_cq,
    resize_cq: create::resize_cq,
    destroy_cq: create::destroy_cq,
    get_cq_event: event::get_cq_event,
    ack_cq_events: event::ack_cq_events,
    create_srq: srq::create_srq,
    modify_srq: srq::modify_srq,
    query_srq: srq::query_srq,
    destroy_srq: srq::destroy_srq,
    create_qp: queue::create_qp,
    modify_qp: queue::modify_qp,
    query_qp: queue::query_qp,
    destroy_qp: queue::destroy_qp,
    create_ah: address::create_ah,
    destroy_ah: address::destroy_ah,
    get_async_event: event::get_async_event,
    ack_async_event: event::ack_async_event,
    fork_init: listing::fork_init,
    query_gid_ex: Some(port::query_gid_ex),
    await_writes: Some(poll::await_writes),
    place_messages: Some(poll::place_messages),
    share_memory: Some(sharing::share_memory),
    unshare_memory: Some(sharing::unshare_memory),
    write_short: Some(ops::write_short),
    sends_at_once: Some(ops::sends_at_once),
    rdma_at_once: Some(ops::rdma_at_once),
};

/// The control path of the software device, for `verbs::Driver::from_table`.
pub const fn driver_table() -> &'static Table {
    &TABLE
}
