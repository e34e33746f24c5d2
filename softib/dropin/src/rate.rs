//! Static rates: as a code, as a multiple of 2.5 Gbit/s, in Mbit/s.

use crate::guarded;
use rdma_sys::*;
use std::ffi::c_int;

/// Code, multiple of 2.5 Gbit/s (0 where libibverbs has none), Mbit/s.
const RATES: &[(ibv_rate, c_int, c_int)] = &[
    (IBV_RATE_2_5_GBPS, 1, 2_500),
    (IBV_RATE_5_GBPS, 2, 5_000),
    (IBV_RATE_10_GBPS, 4, 10_000),
    (IBV_RATE_20_GBPS, 8, 20_000),
    (IBV_RATE_30_GBPS, 12, 30_000),
    (IBV_RATE_40_GBPS, 16, 40_000),
    (IBV_RATE_60_GBPS, 24, 60_000),
    (IBV_RATE_80_GBPS, 32, 80_000),
    (IBV_RATE_120_GBPS, 48, 120_000),
    (IBV_RATE_14_GBPS, 0, 14_062),
    (IBV_RATE_56_GBPS, 0, 56_250),
    (IBV_RATE_112_GBPS, 0, 112_500),
    (IBV_RATE_168_GBPS, 0, 168_750),
    (IBV_RATE_25_GBPS, 0, 25_781),
    (IBV_RATE_100_GBPS, 0, 103_125),
    (IBV_RATE_200_GBPS, 0, 206_250),
    (IBV_RATE_300_GBPS, 0, 309_375),
    (IBV_RATE_28_GBPS, 11, 28_125),
    (IBV_RATE_50_GBPS, 20, 53_125),
    (IBV_RATE_400_GBPS, 160, 425_000),
    (IBV_RATE_600_GBPS, 240, 637_500),
    (IBV_RATE_800_GBPS, 320, 850_000),
    (IBV_RATE_1200_GBPS, 480, 1_275_000),
];

fn find(wanted: impl Fn(&&(ibv_rate, c_int, c_int)) -> bool) -> Option<(ibv_rate, c_int, c_int)> {
    RATES.iter().find(wanted).copied()
}

/// `ibv_rate_to_mult`: -1 when the rate is no multiple.
///
/// # Safety
/// None needed; the C ABI asks for the keyword.
pub unsafe extern "C" fn rate_to_mult(rate: ibv_rate) -> c_int {
    guarded(-1, || find(|row| row.0 == rate && row.1 != 0).map_or(-1, |row| row.1))
}

/// `mult_to_ibv_rate`: IBV_RATE_MAX when there is no such rate.
///
/// # Safety
/// None needed; the C ABI asks for the keyword.
pub unsafe extern "C" fn mult_to_rate(mult: c_int) -> ibv_rate {
    guarded(IBV_RATE_MAX, || find(|row| row.1 == mult && mult != 0).map_or(IBV_RATE_MAX, |row| row.0))
}

/// `ibv_rate_to_mbps`: -1 for an unknown rate.
///
/// # Safety
/// None needed; the C ABI asks for the keyword.
pub unsafe extern "C" fn rate_to_mbps(rate: ibv_rate) -> c_int {
    guarded(-1, || find(|row| row.0 == rate).map_or(-1, |row| row.2))
}

/// `mbps_to_ibv_rate`: IBV_RATE_MAX when there is no such rate.
///
/// # Safety
/// None needed; the C ABI asks for the keyword.
pub unsafe extern "C" fn mbps_to_rate(mbps: c_int) -> ibv_rate {
    guarded(IBV_RATE_MAX, || find(|row| row.2 == mbps).map_or(IBV_RATE_MAX, |row| row.0))
}
