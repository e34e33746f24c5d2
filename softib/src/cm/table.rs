//! The call table: the connection manager for `verbs::Driver::with_connections`.

use super::{api, names};
use rdma_cm_sys::Table;

static TABLE: Table = Table {
    name: "softib",
    create_event_channel: api::create_event_channel,
    destroy_event_channel: api::destroy_event_channel,
    create_id: api::create_id,
    destroy_id: api::destroy_id,
    bind_addr: api::bind_addr,
    resolve_addr: api::resolve_addr,
    resolve_route: api::resolve_route,
    connect: api::connect,
    establish: api::establish,
    listen: api::listen,
    accept: api::accept,
    reject: api::reject,
    notify: api::notify,
    disconnect: api::disconnect,
    get_cm_event: api::get_cm_event,
    ack_cm_event: api::ack_cm_event,
    get_src_port: api::get_src_port,
    set_option: api::set_option,
    event_str: names::event_str,
    init_qp_attr: api::init_qp_attr,
};

/// The connection manager of the software device, beside [`crate::driver_table`].
pub const fn cm_table() -> &'static Table {
    &TABLE
}
