//! The way back to the sender of a datagram: a completion and the GRH in front of the payload become an address.
//!
//! RoCE v2 over IPv4 has no GRH: its IPv4 header fills the last 20 of the 40 bytes, and the GIDs are its addresses, mapped.

use crate::{guarded, query};
use rdma_sys::*;
use softib::errno::Errno;
use std::ffi::c_int;
use std::net::Ipv4Addr;

/// IP version field of a GRH.
const GRH_VERSION: u32 = 6;
/// Next header: UDP, which is RoCE v2 (else IBA transport: InfiniBand and RoCE v1).
const UDP: u8 = 17;
const IPV4: usize = 20;

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
    // SAFETY: the program promises that `wc` is a valid completion.
    let wc = unsafe { &*wc };
    // SAFETY: the completion's flags say that there is a GRH, so the program promises a valid
    // `grh`; the read needs no alignment.
    let grh = (wc.wc_flags & IBV_WC_GRH != 0).then(|| unsafe { grh.read_unaligned() });
    match guarded(Err(Errno(libc::EIO)), || sender(context, port, wc, grh.as_ref())) {
        Ok(attr) => {
            // SAFETY: the program promises that `to` is valid.
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
    // SAFETY: a GRH is 40 bytes without padding (asserted by its layout).
    let raw: [u8; size_of::<ibv_grh>()] = unsafe { std::mem::transmute_copy(grh) };
    if u32::from_be(grh.version_tclass_flow) >> 28 == GRH_VERSION {
        return by_grh(context, port, grh);
    }
    by_ipv4(context, port, &raw[raw.len() - IPV4..])
}

fn by_grh(context: *mut ibv_context, port: u8, grh: &ibv_grh) -> Result<ibv_global_route, Errno> {
    let words = u32::from_be(grh.version_tclass_flow);
    let kinds: &[ibv_gid_type] = match grh.next_hdr {
        UDP => &[IBV_GID_TYPE_ROCE_V2],
        _ => &[IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1],
    };
    // SAFETY: both members of the union are the same 16 bytes.
    let ours = unsafe { grh.dgid.raw };
    Ok(ibv_global_route {
        dgid: grh.sgid,
        flow_label: words & 0xf_ffff,
        sgid_index: query::find_gid(context, port, &ours, kinds)? as u8,
        hop_limit: grh.hop_limit,
        traffic_class: (words >> 20) as u8,
    })
}

/// An IPv4 header without options, whose checksum is right.
fn by_ipv4(context: *mut ibv_context, port: u8, ip: &[u8]) -> Result<ibv_global_route, Errno> {
    if ip[0] != 0x45 || ip[9] != UDP || softib::port::header_sum(ip) != 0xffff {
        return Err(Errno(libc::EPROTONOSUPPORT));
    }
    let mapped =
        |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]).to_ipv6_mapped().octets();
    let (source, dest) = (mapped(12), mapped(16));
    Ok(ibv_global_route {
        dgid: ibv_gid { raw: source },
        flow_label: 0,
        sgid_index: query::find_gid(context, port, &dest, &[IBV_GID_TYPE_ROCE_V2])? as u8,
        hop_limit: ip[8],
        traffic_class: ip[1],
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
    // SAFETY: the program promises that `pd` is valid, so its context is, and `wc` and `grh` as
    // `init_ah_from_wc` asks for them; `attr` is ours. Both functions catch panics.
    unsafe {
        if init_ah_from_wc((*pd).context, port, wc, grh, &mut attr) != 0 {
            return std::ptr::null_mut();
        }
        (softib::driver_table().create_ah)(pd, &mut attr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softib::port::{LinkLayer, Settings, configure};

    /// A RoCE port of this process, and row 3 of its GID table: RoCE v2, IPv4.
    fn roce_port() -> (*mut ibv_context, [u8; 16]) {
        configure(Settings { link_layers: vec![LinkLayer::Ethernet], ..Settings::default() }).unwrap();
        let (table, mut gid) = (softib::driver_table(), ibv_gid::default());
        // SAFETY: the calls of a C program, with what the calls before have returned.
        unsafe {
            let list = (table.get_device_list)(std::ptr::null_mut());
            let context = (table.open_device)(*list);
            assert_eq!((table.query_gid)(context, 1, 3, &mut gid), 0);
            (context, gid.raw)
        }
    }

    /// The header of a datagram from 127.0.0.9 to our port.
    fn ipv4_header(to: &[u8; 16]) -> [u8; IPV4] {
        let mut ip = [0; IPV4];
        (ip[0], ip[1], ip[8], ip[9]) = (0x45, 12, 64, UDP);
        ip[12..16].copy_from_slice(&[127, 0, 0, 9]);
        ip[16..].copy_from_slice(&to[12..]);
        let sum = !softib::port::header_sum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ip
    }

    #[test]
    fn the_way_back_from_an_ipv4_header_uses_the_row_of_its_version() {
        let (context, ours) = roce_port();
        let ip = ipv4_header(&ours);
        let route = by_ipv4(context, 1, &ip).unwrap();
        // SAFETY: both members of the union are the same 16 bytes.
        assert_eq!(unsafe { route.dgid.raw }[10..], [0xff, 0xff, 127, 0, 0, 9]);
        assert_eq!((route.sgid_index, route.hop_limit, route.traffic_class), (3, 64, 12));
        let mut damaged = ip;
        damaged[8] ^= 1;
        assert_eq!(by_ipv4(context, 1, &damaged).err(), Some(Errno(libc::EPROTONOSUPPORT)));
    }
}
