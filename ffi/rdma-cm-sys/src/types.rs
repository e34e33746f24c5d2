//! Ids, channels, events and their parameters (`rdma/rdma_cma.h`).

use core::ffi::{c_char, c_int, c_void};

use libc::{sockaddr_storage, socklen_t};
use rdma_sys::{
    c_enums, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_srq, opaque,
    zeroed_default,
};

c_enums! {
    /// What an event tells (`rdma_get_cm_event(3)`).
    rdma_cm_event_type: u32 {
        RDMA_CM_EVENT_ADDR_RESOLVED = 0,
        RDMA_CM_EVENT_ADDR_ERROR = 1,
        RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
        RDMA_CM_EVENT_ROUTE_ERROR = 3,
        RDMA_CM_EVENT_CONNECT_REQUEST = 4,
        RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
        RDMA_CM_EVENT_CONNECT_ERROR = 6,
        RDMA_CM_EVENT_UNREACHABLE = 7,
        RDMA_CM_EVENT_REJECTED = 8,
        RDMA_CM_EVENT_ESTABLISHED = 9,
        RDMA_CM_EVENT_DISCONNECTED = 10,
        RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
        RDMA_CM_EVENT_MULTICAST_JOIN = 12,
        RDMA_CM_EVENT_MULTICAST_ERROR = 13,
        RDMA_CM_EVENT_ADDR_CHANGE = 14,
        RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
    }
    /// Port space: which service ids an id uses, and whether it connects or sends datagrams.
    rdma_port_space: u32 {
        RDMA_PS_IPOIB = 0x0002,
        RDMA_PS_TCP = 0x0106,
        RDMA_PS_UDP = 0x0111,
        RDMA_PS_IB = 0x013f,
    }
    /// Limits and defaults of `rdma_conn_param` and of the UDP port space.
    rdma_limit: u32 {
        RDMA_MAX_RESP_RES = 0xff,
        RDMA_MAX_INIT_DEPTH = 0xff,
        RDMA_UDP_QKEY = 0x0123_4567,
    }
    /// Levels of `rdma_set_option`.
    rdma_option_level: u32 {
        RDMA_OPTION_ID = 0,
        RDMA_OPTION_IB = 1,
    }
    /// Options of level `RDMA_OPTION_ID`: type of service (u8), address reuse (int), one family only (int), QP
    /// acknowledgement timeout (u8).
    rdma_option: u32 {
        RDMA_OPTION_ID_TOS = 0,
        RDMA_OPTION_ID_REUSEADDR = 1,
        RDMA_OPTION_ID_AFONLY = 2,
        RDMA_OPTION_ID_ACK_TIMEOUT = 3,
    }
    /// Members of `rdma_cm_join_mc_attr_ex` that are set.
    rdma_cm_join_mc_attr_mask: u32 {
        RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1,
        RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 2,
    }
    /// How to join a multicast group: to send and receive, or only to send.
    rdma_cm_mc_join_flags: u32 {
        RDMA_MC_JOIN_FLAG_FULLMEMBER = 0,
        RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 1,
    }
    /// Flags of `rdma_addrinfo.ai_flags`.
    rdma_addrinfo_flags: u32 {
        RAI_PASSIVE = 1,
        RAI_NUMERICHOST = 2,
        RAI_NOROUTE = 4,
        RAI_FAMILY = 8,
    }
}

opaque! {
    /// A path record of the subnet administrator; the library's.
    ibv_sa_path_rec,
}

/// Addresses in InfiniBand's own terms.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_ib_addr {
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
    /// Big endian.
    pub pkey: u16,
}

/// Both ends of an id (`rdma_resolve_addr(3)`); each may be a `sockaddr_in` or `sockaddr_in6`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_addr {
    pub src_storage: sockaddr_storage,
    pub dst_storage: sockaddr_storage,
    pub ibaddr: rdma_ib_addr,
}

/// Addresses and path of an id (`rdma_resolve_route(3)`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: c_int,
}

/// Where events of ids arrive (`rdma_create_event_channel(3)`); the descriptor can be polled and
/// made non-blocking.
#[repr(C)]
pub struct rdma_event_channel {
    pub fd: c_int,
}

/// A communication identifier (`rdma_create_id(3)`): what a socket is to TCP.
#[repr(C)]
pub struct rdma_cm_id {
    /// The device, once an address is bound or resolved; opened by the library.
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    /// The program's own.
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: rdma_port_space,
    pub port_num: u8,
    /// The last event of an id without a channel of its own.
    pub event: *mut rdma_cm_event,
    pub send_cq_channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq_channel: *mut ibv_comp_channel,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
    /// An `ibv_qp_type`.
    pub qp_type: u32,
}

/// Parameters of a connection (`rdma_connect(3)`, `rdma_accept(3)`), and what the peer's were.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    /// RDMA reads and atomics of the peer that this side serves at a time.
    pub responder_resources: u8,
    /// RDMA reads and atomics that this side has outstanding.
    pub initiator_depth: u8,
    pub flow_control: u8,
    /// Transport retries; ignored when accepting.
    pub retry_count: u8,
    /// RNR retries that the peer shall make; 7 without end.
    pub rnr_retry_count: u8,
    /// Ignored, like `qp_num`, if the id has a QP.
    pub srq: u8,
    pub qp_num: u32,
}

/// What a datagram peer tells (`rdma_get_cm_event(3)`): where its queue pair is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_ud_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: ibv_ah_attr,
    pub qp_num: u32,
    pub qkey: u32,
}

/// The parameters of an event; which, the id's port space says.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_cm_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
}

/// An event (`rdma_get_cm_event(3)`), owned by the library until it is acknowledged.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    /// Of a connection request: the id that listens.
    pub listen_id: *mut rdma_cm_id,
    pub event: rdma_cm_event_type,
    /// 0, a negative errno value, or, of a rejection, the reason (IBTA 12.6.7.2).
    pub status: c_int,
    pub param: rdma_cm_event_param,
}

/// Which multicast group to join, and how (`rdma_join_multicast_ex(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_cm_join_mc_attr_ex {
    /// Which of the others are set.
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut libc::sockaddr,
}

/// What `rdma_getaddrinfo(3)` finds; a list.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_addrinfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: socklen_t,
    pub ai_dst_len: socklen_t,
    pub ai_src_addr: *mut libc::sockaddr,
    pub ai_dst_addr: *mut libc::sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut rdma_addrinfo,
}

zeroed_default!(rdma_conn_param, rdma_ud_param, rdma_cm_event, rdma_cm_id, rdma_addrinfo);
