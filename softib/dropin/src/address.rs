//! The way back to the sender of a datagram: a completion and the GRH in front of the payload become an address.

use crate::{guarded, query};
use rdma_sys::*;
use softib::errno::Errno;
use std::ffi::c_int;

/// IP version field of a GRH.
const GRH_VERSION: u32 = 6;

/// `ibv_init_ah_from_wc`: 0, or -1 with errno when the GRH is none, or names a GID that is not ours.
///
/// # Safety
/// `context`, `wc` and `to` are valid; `grh` is when the completion's flags say so.
pub unsafe extern "C" fn init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    to: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: by contract.
    let wc = unsafe { &*wc };
    // SAFETY: by contract.
    let grh = (wc.wc_flags & IBV_WC_GRH != 0).then(|| unsafe { grh.read_unaligned() });
    match guarded(Err(Errno(libc::EIO)), || sender(context, port, wc, grh.as_ref())) {
        Ok(attr) => {
            // SAFETY: by contract.
            unsafe { to.write(attr) };
            0
        }
        Err(error) => {
            error.set();
            -1
        }
    }
}

fn sender(
    context: *mut ibv_context,
    port: u8,
    wc: &ibv_wc,
    grh: Option<&ibv_grh>,
) -> Result<ibv_ah_attr, Errno> {
    let mut attr = ibv_ah_attr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..Default::default()
    };
    if let Some(grh) = grh {
        attr.is_global = 1;
        attr.grh = route_back(context, port, grh)?;
    }
    Ok(attr)
}

fn route_back(context: *mut ibv_context, port: u8, grh: &ibv_grh) -> Result<ibv_global_route, Errno> {
    let words = u32::from_be(grh.version_tclass_flow);
    if words >> 28 != GRH_VERSION {
        return Err(Errno(libc::EPROTONOSUPPORT));
    }
    let index = query::find_gid(context, port, &grh.dgid)?;
    Ok(ibv_global_route {
        dgid: grh.sgid,
        flow_label: words & 0xf_ffff,
        sgid_index: index as u8,
        hop_limit: grh.hop_limit,
        traffic_class: (words >> 20) as u8,
    })
}

/// `ibv_create_ah_from_wc`
///
/// # Safety
/// As for [`init_ah_from_wc`]; `pd` is valid.
pub unsafe extern "C" fn create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    let mut attr = ibv_ah_attr::default();
    // SAFETY: passed on from our caller; both functions guard themselves.
    unsafe {
        if init_ah_from_wc((*pd).context, port, wc, grh, &mut attr) != 0 {
            return std::ptr::null_mut();
        }
        (softib::driver_table().create_ah)(pd, &mut attr)
    }
}
