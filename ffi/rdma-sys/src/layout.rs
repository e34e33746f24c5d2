//! Sizes and offsets of every struct that C shares with us, in one list with two uses.
//!
//! The numbers are what a C compiler makes of rdma-core's `verbs.h` on x86-64 Linux with glibc; there they are asserted
//! at compile time. Elsewhere the pthread members have other sizes, so `tests/layout.rs` compares [`TYPES`], which holds
//! what this crate's compiler really made, with the installed header, on whichever machine it runs.
//!
//! A struct that gains a field fails to compile until the field is in the list. Members of C's anonymous unions are
//! written `imm as "imm_data"`: our field, and a C member at the same place and of the same size.

use core::mem::{offset_of, size_of};

use crate::*;

/// A type as our compiler laid it out, and how C spells it.
#[derive(Clone, Copy, Debug)]
pub struct Type {
    /// Its name in Rust.
    pub rust: &'static str,
    /// Its name in C, such as `struct ibv_wc`.
    pub c: &'static str,
    /// Bytes.
    pub size: usize,
    /// Its fields; of a union, its members.
    pub fields: &'static [Field],
}

/// A field of a [`Type`]. The C name may begin with Rust's `r#`.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in C.
    pub c: &'static str,
    /// Bytes in front of it.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// Every C constant of the crate with its value.
pub const CONSTANTS: &[&[(&str, i64)]] = &[
    ah::CONSTS,
    attr::CONSTS,
    cq::CONSTS,
    device::CONSTS,
    event::CONSTS,
    memory::CONSTS,
    qp::CONSTS,
    srq::CONSTS,
    wr::CONSTS,
];

/// Size of the field that `_project` points to; the function is never called. For [`layouts!`](crate::layouts).
pub const fn field_size<T, F>(_project: fn(*const T) -> *const F) -> usize {
    size_of::<F>()
}

/// Declares `TYPES`, the list of a crate's foreign structs with the C compiler's numbers, and asserts them at compile time.
/// Shared with the other raw binding crates.
#[macro_export]
macro_rules! layouts {
    ($( $kind:ident $ty:ident $(as $c:literal)? = $size:literal {
        $( $field:ident $(as $cf:literal)? $offset:literal ),* $(,)?
    } )*) => {
        $(
            #[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
            const _: () = {
                assert!(core::mem::size_of::<$ty>() == $size, concat!("size of ", stringify!($ty)));
                $( assert!(
                    core::mem::offset_of!($ty, $field) == $offset,
                    concat!("offset of ", stringify!($ty), ".", stringify!($field)),
                ); )*
            };
            $crate::layouts!(@complete $kind $ty { $($field)* });
        )*

        /// Every type of the list.
        pub const TYPES: &[$crate::layout::Type] = &[ $( $crate::layout::Type {
            rust: stringify!($ty),
            c: $crate::layouts!(@name concat!(stringify!($kind), " ", stringify!($ty)) $(, $c)?),
            size: core::mem::size_of::<$ty>(),
            fields: &[ $( $crate::layout::Field {
                c: $crate::layouts!(@name stringify!($field) $(, $cf)?),
                offset: core::mem::offset_of!($ty, $field),
                // SAFETY: never run, only its type matters.
                size: $crate::layout::field_size(|value: *const $ty| unsafe { &raw const (*value).$field }),
            } ),* ],
        } ),* ];
    };
    (@complete struct $ty:ident { $($field:ident)* }) => {
        const _: fn(&$ty) = |value| { let $ty { $($field: _),* } = value; };
    };
    (@complete union $ty:ident { $($field:ident)* }) => {};
    (@name $default:expr) => { $default };
    (@name $default:expr, $c:literal) => { $c };
}

/// A device with slack is a device first; that is what programs get a pointer to.
const _: () = assert!(offset_of!(device_with_slack, device) == 0);

/// The extended arguments begin like the plain ones: inline verbs pass the one as the other.
const _: () = {
    assert!(offset_of!(ibv_srq_init_attr_ex, attr) == offset_of!(ibv_srq_init_attr, attr));
    assert!(
        offset_of!(ibv_srq_init_attr_ex, comp_mask)
            >= offset_of!(ibv_srq_init_attr, attr) + size_of::<ibv_srq_attr>()
    );
    assert!(offset_of!(ibv_qp_init_attr_ex, cap) == offset_of!(ibv_qp_init_attr, cap));
    assert!(offset_of!(ibv_qp_init_attr_ex, sq_sig_all) == offset_of!(ibv_qp_init_attr, sq_sig_all));
    assert!(offset_of!(ibv_cq_ex, async_events_completed) == offset_of!(ibv_cq, async_events_completed));
    assert!(offset_of!(ibv_qp_ex, qp_base) == 0);
};

layouts! {
    // device.rs
    struct _ibv_device_ops = 16 { _dummy1 0, _dummy2 8 }
    struct ibv_device = 664 {
        _ops 0, node_type 16, transport_type 20, name 24, dev_name 88, dev_path 152, ibdev_path 408,
    }
    struct ibv_context_ops = 256 {
        _compat_query_device 0, _compat_query_port 8, _compat_alloc_pd 16, _compat_dealloc_pd 24,
        _compat_reg_mr 32, _compat_rereg_mr 40, _compat_dereg_mr 48, alloc_mw 56, bind_mw 64, dealloc_mw 72,
        _compat_create_cq 80, poll_cq 88, req_notify_cq 96, _compat_cq_event 104, _compat_resize_cq 112,
        _compat_destroy_cq 120, _compat_create_srq 128, _compat_modify_srq 136, _compat_query_srq 144,
        _compat_destroy_srq 152, post_srq_recv 160, _compat_create_qp 168, _compat_query_qp 176,
        _compat_modify_qp 184, _compat_destroy_qp 192, post_send 200, post_recv 208, _compat_create_ah 216,
        _compat_destroy_ah 224, _compat_attach_mcast 232, _compat_detach_mcast 240, _compat_async_event 248,
    }
    struct ibv_context = 328 {
        device 0, ops 8, cmd_fd 264, async_fd 268, num_comp_vectors 272, mutex 280, abi_compat 320,
    }
    struct ibv_values_ex = 24 { comp_mask 0, raw_clock 8 }
    struct verbs_context = 648 {
        query_port 0, advise_mr 8, alloc_null_mr 16, read_counters 24, attach_counters_point_flow 32,
        create_counters 40, destroy_counters 48, reg_dm_mr 56, alloc_dm 64, free_dm 72,
        modify_flow_action_esp 80, destroy_flow_action 88, create_flow_action_esp 96,
        modify_qp_rate_limit 104, alloc_parent_domain 112, dealloc_td 120, alloc_td 128, modify_cq 136,
        post_srq_ops 144, destroy_rwq_ind_table 152, create_rwq_ind_table 160, destroy_wq 168,
        modify_wq 176, create_wq 184, query_rt_values 192, create_cq_ex 200, r#priv 208,
        query_device_ex 216, ibv_destroy_flow 224, ABI_placeholder2 232, ibv_create_flow 240,
        ABI_placeholder1 248, open_qp 256, create_qp_ex 264, get_srq_num 272, create_srq_ex 280,
        open_xrcd 288, close_xrcd 296, _ABI_placeholder3 304, sz 312, context 320,
    }

    // attr.rs
    union ibv_gid = 16 { raw 0, global 0 }
    struct ibv_gid_global as "__typeof__(((union ibv_gid *)0)->global)" = 16 {
        subnet_prefix 0, interface_id 8,
    }
    struct ibv_gid_entry = 32 { gid 0, gid_index 16, port_num 20, gid_type 24, ndev_ifindex 28 }
    struct ibv_device_attr = 232 {
        fw_ver 0, node_guid 64, sys_image_guid 72, max_mr_size 80, page_size_cap 88, vendor_id 96,
        vendor_part_id 100, hw_ver 104, max_qp 108, max_qp_wr 112, device_cap_flags 116, max_sge 120,
        max_sge_rd 124, max_cq 128, max_cqe 132, max_mr 136, max_pd 140, max_qp_rd_atom 144,
        max_ee_rd_atom 148, max_res_rd_atom 152, max_qp_init_rd_atom 156, max_ee_init_rd_atom 160,
        atomic_cap 164, max_ee 168, max_rdd 172, max_mw 176, max_raw_ipv6_qp 180, max_raw_ethy_qp 184,
        max_mcast_grp 188, max_mcast_qp_attach 192, max_total_mcast_qp_attach 196, max_ah 200, max_fmr 204,
        max_map_per_fmr 208, max_srq 212, max_srq_wr 216, max_srq_sge 220, max_pkeys 224,
        local_ca_ack_delay 226, phys_port_cnt 227,
    }
    struct ibv_port_attr = 52 {
        state 0, max_mtu 4, active_mtu 8, gid_tbl_len 12, port_cap_flags 16, max_msg_sz 20,
        bad_pkey_cntr 24, qkey_viol_cntr 28, pkey_tbl_len 32, lid 34, sm_lid 36, lmc 38, max_vl_num 39,
        sm_sl 40, subnet_timeout 41, init_type_reply 42, active_width 43, active_speed 44, phys_state 45,
        link_layer 46, flags 47, port_cap_flags2 48,
    }
    struct ibv_query_device_ex_input = 4 { comp_mask 0 }
    struct ibv_odp_caps = 24 { general_caps 0, per_transport_caps 8 }
    struct ibv_odp_per_transport_caps as "__typeof__(((struct ibv_odp_caps *)0)->per_transport_caps)" = 12 {
        rc_odp_caps 0, uc_odp_caps 4, ud_odp_caps 8,
    }
    struct ibv_tso_caps = 8 { max_tso 0, supported_qpts 4 }
    struct ibv_rss_caps = 32 {
        supported_qpts 0, max_rwq_indirection_tables 4, max_rwq_indirection_table_size 8,
        rx_hash_fields_mask 16, rx_hash_function 24,
    }
    struct ibv_packet_pacing_caps = 12 { qp_rate_limit_min 0, qp_rate_limit_max 4, supported_qpts 8 }
    struct ibv_tm_caps = 20 { max_rndv_hdr_size 0, max_num_tags 4, flags 8, max_ops 12, max_sge 16 }
    struct ibv_cq_moderation_caps = 4 { max_cq_count 0, max_cq_period 2 }
    struct ibv_pci_atomic_caps = 6 { fetch_add 0, swap 2, compare_swap 4 }
    struct ibv_device_attr_ex = 400 {
        orig_attr 0, comp_mask 232, odp_caps 240, completion_timestamp_mask 264, hca_core_clock 272,
        device_cap_flags_ex 280, tso_caps 288, rss_caps 296, max_wq_type_rq 328, packet_pacing_caps 332,
        raw_packet_caps 344, tm_caps 348, cq_mod_caps 368, max_dm_size 376, pci_atomic_caps 384,
        xrc_odp_caps 392, phys_port_cnt_ex 396,
    }

    // memory.rs
    struct ibv_pd = 16 { context 0, handle 8 }
    struct ibv_mr = 48 { context 0, pd 8, addr 16, length 24, handle 32, lkey 36, rkey 40 }
    struct ibv_mw = 32 { context 0, pd 8, rkey 16, handle 20, r#type 24 }
    struct ibv_mw_bind_info = 32 { mr 0, addr 8, length 16, mw_access_flags 24 }
    struct ibv_mw_bind = 48 { wr_id 0, send_flags 8, bind_info 16 }
    struct ibv_alloc_dm_attr = 16 { length 0, log_align_req 8, comp_mask 12 }
    struct ibv_dm = 32 { context 0, memcpy_to_dm 8, memcpy_from_dm 16, comp_mask 24, handle 28 }
    struct ibv_td = 8 { context 0 }
    struct ibv_td_init_attr = 4 { comp_mask 0 }
    struct ibv_parent_domain_init_attr = 48 { pd 0, td 8, comp_mask 16, alloc 24, free 32, pd_context 40 }

    // cq.rs
    struct ibv_wc = 48 {
        wr_id 0, status 8, opcode 12, vendor_err 16, byte_len 20, imm as "imm_data" 24, qp_num 28,
        src_qp 32, wc_flags 36, pkey_index 40, slid 42, sl 44, dlid_path_bits 45,
    }
    struct ibv_comp_channel = 16 { context 0, fd 8, refcnt 12 }
    struct ibv_cq = 128 {
        context 0, channel 8, cq_context 16, handle 24, cqe 28, mutex 32, cond 72,
        comp_events_completed 120, async_events_completed 124,
    }
    struct ibv_poll_cq_attr = 4 { comp_mask 0 }
    struct ibv_wc_tm_info = 16 { tag 0, r#priv 8 }
    struct ibv_moderate_cq = 4 { cq_count 0, cq_period 2 }
    struct ibv_modify_cq_attr = 8 { attr_mask 0, moderate 4 }
    struct ibv_cq_init_attr_ex = 56 {
        cqe 0, cq_context 8, channel 16, comp_vector 24, wc_flags 32, comp_mask 40, flags 44,
        parent_domain 48,
    }
    struct ibv_cq_ex = 288 {
        context 0, channel 8, cq_context 16, handle 24, cqe 28, mutex 32, cond 72,
        comp_events_completed 120, async_events_completed 124, comp_mask 128, status 132, wr_id 136,
        start_poll 144, next_poll 152, end_poll 160, read_opcode 168, read_vendor_err 176,
        read_byte_len 184, read_imm_data 192, read_qp_num 200, read_src_qp 208, read_wc_flags 216,
        read_slid 224, read_sl 232, read_dlid_path_bits 240, read_completion_ts 248, read_cvlan 256,
        read_flow_tag 264, read_tm_info 272, read_completion_wallclock_ns 280,
    }

    // srq.rs
    struct ibv_srq = 128 {
        context 0, srq_context 8, pd 16, handle 24, mutex 32, cond 72, events_completed 120,
    }
    struct ibv_srq_attr = 12 { max_wr 0, max_sge 4, srq_limit 8 }
    struct ibv_srq_init_attr = 24 { srq_context 0, attr 8 }
    struct ibv_tm_cap = 8 { max_num_tags 0, max_ops 4 }
    struct ibv_srq_init_attr_ex = 64 {
        srq_context 0, attr 8, comp_mask 20, srq_type 24, pd 32, xrcd 40, cq 48, tm_cap 56,
    }
    struct ibv_xrcd = 8 { context 0 }
    struct ibv_xrcd_init_attr = 12 { comp_mask 0, fd 4, oflags 8 }

    // qp.rs
    struct ibv_qp = 160 {
        context 0, qp_context 8, pd 16, send_cq 24, recv_cq 32, srq 40, handle 48, qp_num 52, state 56,
        qp_type 60, mutex 64, cond 104, events_completed 152,
    }
    struct ibv_qp_cap = 20 {
        max_send_wr 0, max_recv_wr 4, max_send_sge 8, max_recv_sge 12, max_inline_data 16,
    }
    struct ibv_qp_init_attr = 64 {
        qp_context 0, send_cq 8, recv_cq 16, srq 24, cap 32, qp_type 52, sq_sig_all 56,
    }
    struct ibv_rx_hash_conf = 24 {
        rx_hash_function 0, rx_hash_key_len 1, rx_hash_key 8, rx_hash_fields_mask 16,
    }
    struct ibv_qp_init_attr_ex = 136 {
        qp_context 0, send_cq 8, recv_cq 16, srq 24, cap 32, qp_type 52, sq_sig_all 56, comp_mask 60, pd 64,
        xrcd 72, create_flags 80, max_tso_header 84, rwq_ind_tbl 88, rx_hash_conf 96, source_qpn 120,
        send_ops_flags 128,
    }
    struct ibv_qp_open_attr = 32 { comp_mask 0, qp_num 4, xrcd 8, qp_context 16, qp_type 24 }
    struct ibv_qp_attr = 144 {
        qp_state 0, cur_qp_state 4, path_mtu 8, path_mig_state 12, qkey 16, rq_psn 20, sq_psn 24,
        dest_qp_num 28, qp_access_flags 32, cap 36, ah_attr 56, alt_ah_attr 88, pkey_index 120,
        alt_pkey_index 122, en_sqd_async_notify 124, sq_draining 125, max_rd_atomic 126,
        max_dest_rd_atomic 127, min_rnr_timer 128, port_num 129, timeout 130, retry_cnt 131, rnr_retry 132,
        alt_port_num 133, alt_timeout 134, rate_limit 136,
    }
    struct ibv_qp_rate_limit_attr = 16 { rate_limit 0, max_burst_sz 4, typical_pkt_sz 8, comp_mask 12 }
    struct ibv_ece = 12 { vendor_id 0, options 4, comp_mask 8 }
    struct ibv_qp_ex = 352 {
        qp_base 0, comp_mask 160, wr_id 168, wr_flags 176, wr_atomic_cmp_swp 184, wr_atomic_fetch_add 192,
        wr_bind_mw 200, wr_local_inv 208, wr_rdma_read 216, wr_rdma_write 224, wr_rdma_write_imm 232,
        wr_send 240, wr_send_imm 248, wr_send_inv 256, wr_send_tso 264, wr_set_ud_addr 272,
        wr_set_xrc_srqn 280, wr_set_inline_data 288, wr_set_inline_data_list 296, wr_set_sge 304,
        wr_set_sge_list 312, wr_start 320, wr_complete 328, wr_abort 336, wr_atomic_write 344,
    }

    // wr.rs
    struct ibv_sge = 16 { addr 0, length 8, lkey 12 }
    struct ibv_data_buf = 16 { addr 0, length 8 }
    struct ibv_send_wr_rdma as "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)" = 16 {
        remote_addr 0, rkey 8,
    }
    struct ibv_send_wr_atomic as "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)" = 32 {
        remote_addr 0, compare_add 8, swap 16, rkey 24,
    }
    struct ibv_send_wr_ud as "__typeof__(((struct ibv_send_wr *)0)->wr.ud)" = 16 {
        ah 0, remote_qpn 8, remote_qkey 12,
    }
    union ibv_send_wr_op as "__typeof__(((struct ibv_send_wr *)0)->wr)" = 32 { rdma 0, atomic 0, ud 0 }
    struct ibv_send_wr_xrc as "__typeof__(((struct ibv_send_wr *)0)->qp_type.xrc)" = 4 { remote_srqn 0 }
    union ibv_send_wr_qp_type as "__typeof__(((struct ibv_send_wr *)0)->qp_type)" = 4 { xrc 0 }
    struct ibv_send_wr_bind_mw as "__typeof__(((struct ibv_send_wr *)0)->bind_mw)" = 48 {
        mw 0, rkey 8, bind_info 16,
    }
    struct ibv_send_wr_tso as "__typeof__(((struct ibv_send_wr *)0)->tso)" = 16 { hdr 0, hdr_sz 8, mss 10 }
    struct ibv_send_wr = 128 {
        wr_id 0, next 8, sg_list 16, num_sge 24, opcode 28, send_flags 32, imm as "imm_data" 36, wr 40,
        qp_type 72, rare as "bind_mw" 80,
    }
    struct ibv_recv_wr = 32 { wr_id 0, next 8, sg_list 16, num_sge 24 }
    struct ibv_ops_wr_tm_add as "__typeof__(((struct ibv_ops_wr *)0)->tm.add)" = 40 {
        recv_wr_id 0, sg_list 8, num_sge 16, tag 24, mask 32,
    }
    struct ibv_ops_wr_tm as "__typeof__(((struct ibv_ops_wr *)0)->tm)" = 48 {
        unexpected_cnt 0, handle 4, add 8,
    }
    struct ibv_ops_wr = 72 { wr_id 0, next 8, opcode 16, flags 20, tm 24 }

    // ah.rs
    struct ibv_global_route = 24 { dgid 0, flow_label 16, sgid_index 20, hop_limit 21, traffic_class 22 }
    struct ibv_grh = 40 { version_tclass_flow 0, paylen 4, next_hdr 6, hop_limit 7, sgid 8, dgid 24 }
    struct ibv_ah_attr = 32 {
        grh 0, dlid 24, sl 26, src_path_bits 27, static_rate 28, is_global 29, port_num 30,
    }
    struct ibv_ah = 24 { context 0, pd 8, handle 16 }

    // event.rs
    union ibv_async_event_element as "__typeof__(((struct ibv_async_event *)0)->element)" = 8 {
        cq 0, qp 0, srq 0, wq 0, port_num 0,
    }
    struct ibv_async_event = 16 { element 0, event_type 8 }
}
