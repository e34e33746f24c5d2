//! Sizes and offsets of every struct that C shares with us, in one list with two uses: asserted at compile time on x86-64
//! Linux with glibc, and compared with the installed header by `tests/layout.rs` on whichever machine it runs.

use crate::*;

/// Every C constant of the crate with its value.
pub const CONSTANTS: &[(&str, i64)] = types::CONSTS;

rdma_sys::layouts! {
    struct rdma_ib_addr = 40 { sgid 0, dgid 16, pkey 32 }
    struct rdma_addr = 296 { src_storage 0, dst_storage 128, ibaddr as "addr.ibaddr" 256 }
    struct rdma_route = 312 { addr 0, path_rec 296, num_paths 304 }
    struct rdma_event_channel = 4 { fd 0 }
    struct rdma_cm_id = 416 {
        verbs 0, channel 8, context 16, qp 24, route 32, ps 344, port_num 348, event 352, send_cq_channel 360,
        send_cq 368, recv_cq_channel 376, recv_cq 384, srq 392, pd 400, qp_type 408,
    }
    struct rdma_conn_param = 24 {
        private_data 0, private_data_len 8, responder_resources 9, initiator_depth 10, flow_control 11,
        retry_count 12, rnr_retry_count 13, srq 14, qp_num 16,
    }
    struct rdma_ud_param = 56 { private_data 0, private_data_len 8, ah_attr 16, qp_num 48, qkey 52 }
    struct rdma_cm_event = 80 { id 0, listen_id 8, event 16, status 20, param 24 }
    struct rdma_cm_join_mc_attr_ex = 16 { comp_mask 0, join_flags 4, addr 8 }
    struct rdma_addrinfo = 96 {
        ai_flags 0, ai_family 4, ai_qp_type 8, ai_port_space 12, ai_src_len 16, ai_dst_len 20, ai_src_addr 24,
        ai_dst_addr 32, ai_src_canonname 40, ai_dst_canonname 48, ai_route_len 56, ai_route 64, ai_connect_len 72,
        ai_connect 80, ai_next 88,
    }
}
