//! The table: every name that libibverbs.so.1 exports, the versions it exists under, and what it leads to here.
//!
//! Names and versions are those of rdma-core's public ABI (IBVERBS_1.0 to 1.17) and of the private nodes that its provider
//! libraries import (libmlx5 and libefa, which perftest and UCX load): the number in IBVERBS_PRIVATE_NN changes with releases, the
//! stubs do not. A program that is bound at its start needs every one of its names, used or not, so what the device does
//! not offer is there, too, and refuses.
//!
//! `(old KIND)`: the name also exists under IBVERBS_1.0, with structs that no program of the last 15 years uses; that
//! version refuses instead of being handed today's structs.

use crate::refuse;
use crate::{address, device, memory, names, query, rate, sysfs};

/// The control path of the device.
static DEVICE: &rdma_sys::Table = softib::driver_table();

/// Where a trampoline jumps to. Only ever called by C, with the signature that goes with the name.
#[repr(transparent)]
#[derive(Debug)]
pub struct Target(*const ());

impl Target {
    /// The function's address.
    pub fn address(&self) -> *const std::ffi::c_void {
        self.0.cast()
    }
}

// SAFETY: the address of a function, which is the same for every thread.
unsafe impl Sync for Target {}

/// A name, and the version nodes it exists under with one and the same target.
#[derive(Debug)]
pub struct Symbol {
    /// As programs know it.
    pub name: &'static str,
    /// Version nodes.
    pub nodes: &'static [&'static str],
}

/// Version nodes of the private interface between libibverbs and its providers, one a generation.
const PRIVATE: &[&str] =
    &["IBVERBS_PRIVATE_34", "IBVERBS_PRIVATE_57", "IBVERBS_PRIVATE_59", "IBVERBS_PRIVATE_64"];

/// Declares [`SYMBOLS`] and [`TARGETS`], in the same order. Of several versions of a name the last is the default.
macro_rules! symbols {
    ($( $nodes:expr => { $( $name:ident $( (old $old:ident) )? = $target:expr; )* } )*) => {
        const COUNT: usize = SYMBOLS.len();

        /// Every name.
        pub const SYMBOLS: &[Symbol] = &[$( $(
            $( Symbol { name: stringify!($name), nodes: old_node!($old) }, )?
            Symbol { name: stringify!($name), nodes: $nodes },
        )* )*];

        /// Where they lead; the trampolines know this array by its symbol.
        #[unsafe(export_name = "oxib_verbs_targets")]
        pub static TARGETS: [Target; COUNT] = [$( $(
            $( Target(refuse::$old as *const ()), )?
            Target($target as *const ()),
        )* )*];
    };
}

macro_rules! old_node {
    ($kind:ident) => {
        &["IBVERBS_1.0"]
    };
}

symbols! {
    &["IBVERBS_1.0"] => {
        ibv_create_comp_channel = DEVICE.create_comp_channel;
        ibv_destroy_comp_channel = DEVICE.destroy_comp_channel;
        ibv_get_sysfs_path = sysfs::get_sysfs_path;
        ibv_read_sysfs_file = sysfs::read_sysfs_file;
        ibv_rate_to_mult = rate::rate_to_mult;
        mult_to_ibv_rate = rate::mult_to_rate;
        ibv_copy_path_rec_from_kern = refuse::zero;
        ibv_copy_path_rec_to_kern = refuse::zero;
        ibv_copy_qp_attr_from_kern = refuse::zero;
    }
    &["IBVERBS_1.1"] => {
        ibv_get_device_list (old null) = DEVICE.get_device_list;
        ibv_free_device_list (old zero) = DEVICE.free_device_list;
        ibv_get_device_name (old null) = DEVICE.get_device_name;
        ibv_get_device_guid (old zero) = DEVICE.get_device_guid;
        ibv_open_device (old null) = DEVICE.open_device;
        ibv_close_device (old minus) = device::close_device;
        ibv_get_async_event (old minus) = DEVICE.get_async_event;
        ibv_ack_async_event (old zero) = DEVICE.ack_async_event;
        ibv_query_device (old int) = DEVICE.query_device;
        ibv_query_port (old int) = query::query_port;
        ibv_query_gid (old minus) = DEVICE.query_gid;
        ibv_query_pkey (old minus) = DEVICE.query_pkey;
        ibv_alloc_pd (old null) = DEVICE.alloc_pd;
        ibv_dealloc_pd (old int) = DEVICE.dealloc_pd;
        ibv_reg_mr (old null) = DEVICE.reg_mr;
        ibv_dereg_mr (old int) = DEVICE.dereg_mr;
        ibv_create_cq (old null) = DEVICE.create_cq;
        ibv_resize_cq (old int) = DEVICE.resize_cq;
        ibv_destroy_cq (old int) = DEVICE.destroy_cq;
        ibv_get_cq_event (old minus) = DEVICE.get_cq_event;
        ibv_ack_cq_events (old zero) = DEVICE.ack_cq_events;
        ibv_create_srq (old null) = DEVICE.create_srq;
        ibv_modify_srq (old int) = DEVICE.modify_srq;
        ibv_query_srq (old int) = DEVICE.query_srq;
        ibv_destroy_srq (old int) = DEVICE.destroy_srq;
        ibv_create_qp (old null) = DEVICE.create_qp;
        ibv_modify_qp (old int) = DEVICE.modify_qp;
        ibv_query_qp (old int) = DEVICE.query_qp;
        ibv_destroy_qp (old int) = DEVICE.destroy_qp;
        ibv_create_ah (old null) = DEVICE.create_ah;
        ibv_destroy_ah (old int) = DEVICE.destroy_ah;
        ibv_attach_mcast (old int) = softib::attach_mcast;
        ibv_detach_mcast (old int) = softib::detach_mcast;
        ibv_create_ah_from_wc = address::create_ah_from_wc;
        ibv_init_ah_from_wc = address::init_ah_from_wc;
        ibv_resolve_eth_l2_from_gid = refuse::minus;
        ibv_rereg_mr = softib::rereg_mr;
        ibv_fork_init = DEVICE.fork_init;
        ibv_dofork_range = refuse::zero;
        ibv_dontfork_range = refuse::zero;
        ibv_event_type_str = names::event_type_str;
        ibv_node_type_str = names::node_type_str;
        ibv_port_state_str = names::port_state_str;
        ibv_wc_status_str = names::wc_status_str;
        ibv_rate_to_mbps = rate::rate_to_mbps;
        mbps_to_ibv_rate = rate::mbps_to_rate;
        ibv_copy_ah_attr_from_kern = refuse::zero;
        ibv_register_driver = refuse::zero;
    }
    &["IBVERBS_1.5"] => { ibv_get_pkey_index = query::get_pkey_index; }
    &["IBVERBS_1.6"] => { ibv_qp_to_qp_ex = softib::qp_to_qp_ex; }
    &["IBVERBS_1.7"] => { ibv_reg_mr_iova = softib::reg_mr_iova; }
    &["IBVERBS_1.8"] => { ibv_reg_mr_iova2 = softib::reg_mr_iova; }
    &["IBVERBS_1.9"] => { ibv_get_device_index = query::get_device_index; }
    &["IBVERBS_1.10"] => {
        ibv_import_device = softib::import_device;
        ibv_import_mr = softib::import_mr;
        ibv_import_pd = softib::import_pd;
        ibv_query_ece = refuse::int;
        ibv_set_ece = refuse::int;
        ibv_unimport_mr = softib::unimport_mr;
        ibv_unimport_pd = softib::unimport_pd;
    }
    &["IBVERBS_1.11"] => {
        _ibv_query_gid_ex = query::query_gid_ex;
        _ibv_query_gid_table = query::query_gid_table;
    }
    &["IBVERBS_1.12"] => { ibv_reg_dmabuf_mr = refuse::null; }
    &["IBVERBS_1.13"] => {
        ibv_import_dm = softib::import_dm;
        ibv_is_fork_initialized = memory::is_fork_initialized;
        ibv_unimport_dm = softib::unimport_dm;
    }
    &["IBVERBS_1.14"] => { ibv_query_qp_data_in_order = refuse::zero; }
    &["IBVERBS_1.15"] => {
        ibv_alloc_dmah = refuse::null;
        ibv_dealloc_dmah = refuse::int;
        ibv_reg_mr_ex = refuse::null;
    }
    &["IBVERBS_1.16"] => {
        ibv_dm_export_dmabuf_fd = refuse::minus;
        ibv_query_port_speed = refuse::int;
    }
    &["IBVERBS_1.17"] => {
        ibv_alloc_buf = refuse::null;
        ibv_free_buf = refuse::int;
        ibv_reg_buf_mr = refuse::null;
    }
    PRIVATE => {
        __ioctl_final_num_attrs = refuse::zero;
        __verbs_log = refuse::zero;
        _verbs_init_and_alloc_context = refuse::null;
        execute_ioctl = refuse::int;
        ibv_cmd_advise_mr = refuse::int;
        ibv_cmd_alloc_dm = refuse::int;
        ibv_cmd_alloc_dmah = refuse::int;
        ibv_cmd_alloc_mw = refuse::int;
        ibv_cmd_alloc_pd = refuse::int;
        ibv_cmd_attach_mcast = refuse::int;
        ibv_cmd_close_xrcd = refuse::int;
        ibv_cmd_create_ah = refuse::int;
        ibv_cmd_create_counters = refuse::int;
        ibv_cmd_create_cq = refuse::int;
        ibv_cmd_create_cq_ex = refuse::int;
        ibv_cmd_create_cq_ex2 = refuse::int;
        ibv_cmd_create_flow = refuse::int;
        ibv_cmd_create_flow_action_esp = refuse::int;
        ibv_cmd_create_qp = refuse::int;
        ibv_cmd_create_qp_ex = refuse::int;
        ibv_cmd_create_qp_ex2 = refuse::int;
        ibv_cmd_create_rwq_ind_table = refuse::int;
        ibv_cmd_create_srq = refuse::int;
        ibv_cmd_create_srq_ex = refuse::int;
        ibv_cmd_create_wq = refuse::int;
        ibv_cmd_dealloc_mw = refuse::int;
        ibv_cmd_dealloc_pd = refuse::int;
        ibv_cmd_dereg_mr = refuse::int;
        ibv_cmd_destroy_ah = refuse::int;
        ibv_cmd_destroy_counters = refuse::int;
        ibv_cmd_destroy_cq = refuse::int;
        ibv_cmd_destroy_flow = refuse::int;
        ibv_cmd_destroy_flow_action = refuse::int;
        ibv_cmd_destroy_qp = refuse::int;
        ibv_cmd_destroy_rwq_ind_table = refuse::int;
        ibv_cmd_destroy_srq = refuse::int;
        ibv_cmd_destroy_wq = refuse::int;
        ibv_cmd_detach_mcast = refuse::int;
        ibv_cmd_export_dmabuf_fd = refuse::minus;
        ibv_cmd_free_dm = refuse::int;
        ibv_cmd_free_dmah = refuse::int;
        ibv_cmd_get_context = refuse::int;
        ibv_cmd_modify_cq = refuse::int;
        ibv_cmd_modify_flow_action_esp = refuse::int;
        ibv_cmd_modify_qp = refuse::int;
        ibv_cmd_modify_qp_ex = refuse::int;
        ibv_cmd_modify_srq = refuse::int;
        ibv_cmd_modify_wq = refuse::int;
        ibv_cmd_open_qp = refuse::int;
        ibv_cmd_open_xrcd = refuse::int;
        ibv_cmd_poll_cq = refuse::int;
        ibv_cmd_post_recv = refuse::int;
        ibv_cmd_post_send = refuse::int;
        ibv_cmd_post_srq_recv = refuse::int;
        ibv_cmd_query_context = refuse::int;
        ibv_cmd_query_device = refuse::int;
        ibv_cmd_query_device_any = refuse::int;
        ibv_cmd_query_mr = refuse::int;
        ibv_cmd_query_port = refuse::int;
        ibv_cmd_query_port_speed = refuse::int;
        ibv_cmd_query_qp = refuse::int;
        ibv_cmd_query_srq = refuse::int;
        ibv_cmd_read_counters = refuse::int;
        ibv_cmd_reg_dm_mr = refuse::int;
        ibv_cmd_reg_dmabuf_mr = refuse::int;
        ibv_cmd_reg_mr = refuse::int;
        ibv_cmd_reg_mr_ex = refuse::int;
        ibv_cmd_req_notify_cq = refuse::int;
        ibv_cmd_rereg_mr = refuse::int;
        ibv_cmd_resize_cq = refuse::int;
        ibv_dmabuf_heap_alloc = refuse::null;
        ibv_dmabuf_heap_cc_shared_init = refuse::null;
        ibv_dmabuf_heap_destroy = refuse::zero;
        ibv_dmabuf_heap_free = refuse::zero;
        ibv_query_gid_type = query::query_gid_type;
        ibv_read_ibdev_sysfs_file = refuse::minus;
        verbs_allow_disassociate_destroy = refuse::int;
        verbs_init_cq = refuse::zero;
        verbs_open_device = refuse::null;
        verbs_set_ops = refuse::zero;
        verbs_uninit_context = refuse::zero;
        ibv_wr_opcode_str = names::wr_opcode_str;
    }
    &["IBVERBS_PRIVATE_34"] => { verbs_register_driver_34 = refuse::zero; }
    &["IBVERBS_PRIVATE_57"] => { verbs_register_driver_57 = refuse::zero; }
    &["IBVERBS_PRIVATE_59"] => { verbs_register_driver_59 = refuse::zero; }
    &["IBVERBS_PRIVATE_64"] => { verbs_register_driver_64 = refuse::zero; }
}
