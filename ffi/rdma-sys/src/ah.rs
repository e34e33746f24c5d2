//! Addresses: routes, address handles, the GRH that precedes a UD payload.

use crate::{ibv_context, ibv_gid, ibv_pd};

/// Where a packet goes beyond the subnet (`ibv_create_ah(3)`). In a RoCE network every packet has
/// one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// The 40 bytes in front of every received UD payload (IBTA 8.3); meaningful when `IBV_WC_GRH` is
/// set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_grh {
    /// `__be32`
    pub version_tclass_flow: u32,
    /// `__be16`
    pub paylen: u16,
    pub next_hdr: u8,
    pub hop_limit: u8,
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
}

/// Attributes of an address handle (`ibv_create_ah(3)`), and of a connected queue pair's path.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// Address handle (`ibv_create_ah(3)`).
#[repr(C)]
pub struct ibv_ah {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: u32,
}

c_enums! {
    /// `static_rate`: an upper bound for the packets sent to an address.
    ibv_rate: u32 {
        IBV_RATE_MAX = 0, IBV_RATE_2_5_GBPS = 2, IBV_RATE_5_GBPS = 5, IBV_RATE_10_GBPS = 3, IBV_RATE_20_GBPS = 6,
        IBV_RATE_30_GBPS = 4, IBV_RATE_40_GBPS = 7, IBV_RATE_60_GBPS = 8, IBV_RATE_80_GBPS = 9,
        IBV_RATE_120_GBPS = 10, IBV_RATE_14_GBPS = 11, IBV_RATE_56_GBPS = 12, IBV_RATE_112_GBPS = 13,
        IBV_RATE_168_GBPS = 14, IBV_RATE_25_GBPS = 15, IBV_RATE_100_GBPS = 16, IBV_RATE_200_GBPS = 17,
        IBV_RATE_300_GBPS = 18, IBV_RATE_28_GBPS = 19, IBV_RATE_50_GBPS = 20, IBV_RATE_400_GBPS = 21,
        IBV_RATE_600_GBPS = 22, IBV_RATE_800_GBPS = 23, IBV_RATE_1200_GBPS = 24,
    }
}

zeroed_default!(ibv_global_route, ibv_grh, ibv_ah_attr);
