//! Every name that librdmacm.so.1 exports, with its symbol version: what the drop-in library is made of. A program that is
//! bound at its start needs every one of its names, used or not: rsockets, too, are there, and refuse.

use super::{addrinfo, api, endpoint, id, multicast, names, srq};

/// A name, its version, and the function.
#[derive(Clone, Copy, Debug)]
pub struct CmCall {
    /// As programs know it.
    pub name: &'static str,
    /// Version node.
    pub node: &'static str,
    /// Only ever called by C, with the signature that goes with the name.
    pub target: *const (),
}

macro_rules! calls {
    ($( $node:literal => { $( $name:ident = $target:expr; )* } )*) => {
        /// All of them; versions in ascending order.
        pub const CM_CALLS: &[CmCall] = &[$( $(
            CmCall { name: stringify!($name), node: $node, target: $target as *const () },
        )* )*];
    };
}

calls! {
    "RDMACM_1.0" => {
        rdma_create_event_channel = api::create_event_channel;
        rdma_destroy_event_channel = api::destroy_event_channel;
        rdma_create_id = api::create_lasting_id;
        rdma_destroy_id = api::destroy_id;
        rdma_bind_addr = api::bind_addr;
        rdma_resolve_addr = api::resolve_addr;
        rdma_resolve_route = api::resolve_route;
        rdma_create_qp = api::create_qp;
        rdma_create_qp_ex = id::create_qp_ex;
        rdma_destroy_qp = api::destroy_qp;
        rdma_connect = api::connect;
        rdma_listen = api::listen;
        rdma_accept = api::accept;
        rdma_reject = api::reject;
        rdma_notify = api::notify;
        rdma_disconnect = api::disconnect;
        rdma_get_cm_event = api::get_cm_event;
        rdma_ack_cm_event = api::ack_cm_event;
        rdma_get_src_port = api::get_src_port;
        rdma_get_dst_port = api::get_dst_port;
        rdma_get_devices = api::get_devices;
        rdma_free_devices = api::free_devices;
        rdma_event_str = names::event_str;
        rdma_set_option = api::set_option;
        rdma_migrate_id = api::migrate_id;
        rdma_create_ep = endpoint::create_ep;
        rdma_destroy_ep = endpoint::destroy_ep;
        rdma_get_request = endpoint::get_request;
        rdma_create_srq = srq::create_srq;
        rdma_create_srq_ex = srq::create_srq_ex;
        rdma_destroy_srq = srq::destroy_srq;
        rdma_getaddrinfo = addrinfo::getaddrinfo;
        rdma_freeaddrinfo = addrinfo::freeaddrinfo;
        rdma_join_multicast = multicast::join;
        rdma_leave_multicast = multicast::leave;
        raccept = api::refuse;
        rbind = api::refuse;
        rclose = api::refuse;
        rconnect = api::refuse;
        rfcntl = api::refuse;
        rgetpeername = api::refuse;
        rgetsockname = api::refuse;
        rgetsockopt = api::refuse;
        riomap = api::refuse;
        riounmap = api::refuse;
        riowrite = api::refuse;
        rlisten = api::refuse;
        rpoll = api::refuse;
        rread = api::refuse;
        rreadv = api::refuse;
        rrecv = api::refuse;
        rrecvfrom = api::refuse;
        rrecvmsg = api::refuse;
        rselect = api::refuse;
        rsend = api::refuse;
        rsendmsg = api::refuse;
        rsendto = api::refuse;
        rsetsockopt = api::refuse;
        rshutdown = api::refuse;
        rsocket = api::refuse;
        rwrite = api::refuse;
        rwritev = api::refuse;
    }
    "RDMACM_1.1" => {
        rdma_join_multicast_ex = multicast::join_ex;
    }
    "RDMACM_1.2" => {
        rdma_establish = api::establish;
        rdma_init_qp_attr = api::init_qp_attr;
    }
    "RDMACM_1.3" => {
        rdma_reject_ece = api::reject;
        rdma_set_local_ece = api::refuse;
        rdma_get_remote_ece = api::refuse;
    }
}
