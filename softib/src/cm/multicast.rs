//! Multicast groups of ids: `rdma_join_multicast(3)` and `rdma_leave_multicast(3)`.
//!
//! An IP address stands for a group. Its GID is made from it as every rdma_cm does it, and there is no subnet manager to ask for a LID:
//! that comes from the GID, so that all who join agree.
//!
//! ```text
//!   InfiniBand  224.1.2.3   ff12:4001:P_KEY::0001:0203 (RFC 4391, with the connection manager's signature)
//!               ff0e::1     ff10:6001:P_KEY: and the last ten bytes; a GID that is one already stays
//!   RoCE v1     224.1.2.3   ff0e::ffff:e001:0203
//!               ff0e::1     the same
//! ```

use super::message::Side;
use super::world::{Id, Joined, Pending, World, id_key, world};
use super::{address, sync};
use crate::abi::extras::multicast::{attach_mcast, detach_mcast};
use crate::abi::guard::guard_minus;
use crate::datapath::initiator::multicast::QPN;
use crate::errno::Errno;
use crate::fabric::{LinkLayer, link_layer};
use libc::sockaddr;
use rdma_cm_sys::*;
use rdma_sys::{ibv_gid, ibv_qp};
use std::ffi::{c_int, c_void};
use std::hash::{DefaultHasher, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The default partition's key, which all ids use.
const PKEY: [u8; 2] = [0xff, 0xff];
/// LIDs that a subnet manager gives to groups (IBTA 4.1.1).
const FIRST_LID: u16 = 0xc000;
const LID_COUNT: u64 = 0x3fff;

/// `rdma_join_multicast(3)`.
pub unsafe extern "C" fn join(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int {
    guard_minus(|| {
        // SAFETY: an id of ours and an address by the rules of the API.
        let (key, to) = unsafe { (id_key(id)?, address::parse(addr)?) };
        world().join(key, to.ip(), RDMA_MC_JOIN_FLAG_FULLMEMBER, context as usize)?;
        sync::complete(key)
    })
}

/// `rdma_join_multicast_ex(3)`.
pub unsafe extern "C" fn join_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    guard_minus(|| {
        // SAFETY: an id of ours, attributes and an address by the rules of the API.
        let (key, attr) = unsafe { (id_key(id)?, attr.as_ref().ok_or(Errno::INVAL)?) };
        let needed = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attr.comp_mask != needed || attr.join_flags > RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER {
            return Err(Errno::INVAL);
        }
        // SAFETY: the attributes say that they have an address (comp_mask, checked), which the caller has filled in.
        let to = unsafe { address::parse(attr.addr)? };
        world().join(key, to.ip(), attr.join_flags, context as usize)?;
        sync::complete(key)
    })
}

/// `rdma_leave_multicast(3)`.
pub unsafe extern "C" fn leave(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    guard_minus(|| {
        // SAFETY: an id of ours and an address by the rules of the API.
        let (key, to) = unsafe { (id_key(id)?, address::parse(addr)?) };
        world().leave(key, to.ip())
    })
}

impl World {
    /// Joins a group, and lets the id's QP listen, if it has one and is to; the outcome is an event.
    fn join(&mut self, key: usize, ip: IpAddr, flags: u32, context: usize) -> Result<(), Errno> {
        let id = self.id(key)?;
        if !id.datagram || !id.uses_device || !ip.is_multicast() {
            return Err(Errno::INVAL);
        }
        let gid = gid_of(ip, link_layer());
        let mut joined = Joined { ip, gid, lid: lid_of(&gid, link_layer()), attached: false };
        // SAFETY: our own struct.
        let qp = unsafe { (*id.c()).qp };
        let mut status = 0;
        if flags == RDMA_MC_JOIN_FLAG_FULLMEMBER && !qp.is_null() {
            status = joined.change(qp, attach_mcast);
            joined.attached = status == 0;
        }
        let kind = if status == 0 { RDMA_CM_EVENT_MULTICAST_JOIN } else { RDMA_CM_EVENT_MULTICAST_ERROR };
        if status == 0 {
            id.groups.push(joined);
        }
        let side = Side { qpn: QPN, qkey: RDMA_UDP_QKEY, lid: joined.lid, gid, ..Side::default() };
        self.push(Pending { kind, id: key, status: -status, side, context, ..Pending::default() });
        Ok(())
    }

    /// Leaves a group. EADDRNOTAVAIL: the id has not joined it.
    fn leave(&mut self, key: usize, ip: IpAddr) -> Result<(), Errno> {
        let id = self.id(key)?;
        let at = id.groups.iter().position(|joined| joined.ip == ip).ok_or(Errno(libc::EADDRNOTAVAIL))?;
        let joined = id.groups.swap_remove(at);
        joined.detach(id);
        Ok(())
    }
}

/// Lets the QP of an id listen to nothing more, as it must before it goes.
pub fn detach_all(id: &mut Id) {
    for joined in std::mem::take(&mut id.groups) {
        joined.detach(id);
    }
}

impl Joined {
    fn detach(mut self, id: &Id) {
        // SAFETY: our own struct.
        let qp = unsafe { (*id.c()).qp };
        if self.attached && !qp.is_null() {
            // A QP that its program has destroyed listens to nothing any more.
            self.change(qp, detach_mcast);
        }
        self.attached = false;
    }

    fn change(
        &self,
        qp: *mut ibv_qp,
        how: unsafe extern "C" fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int,
    ) -> c_int {
        // SAFETY: the id's QP, which its program keeps while it is the id's.
        unsafe { how(qp, &ibv_gid { raw: self.gid }, self.lid) }
    }
}

fn gid_of(ip: IpAddr, link: LinkLayer) -> [u8; 16] {
    match (ip, link) {
        (IpAddr::V4(ip), LinkLayer::InfiniBand) => infiniband_v4(ip),
        (IpAddr::V6(ip), LinkLayer::InfiniBand) => infiniband_v6(ip),
        (IpAddr::V4(ip), _) => {
            let mut gid = ip.to_ipv6_mapped().octets();
            (gid[0], gid[1]) = (0xff, 0x0e);
            gid
        }
        (IpAddr::V6(ip), _) => ip.octets(),
    }
}

fn infiniband_v4(ip: Ipv4Addr) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..4].copy_from_slice(&[0xff, 0x12, 0x40, 0x01]);
    gid[4..6].copy_from_slice(&PKEY);
    gid[12..].copy_from_slice(&ip.octets());
    // 28 bits of the address are the group (RFC 4391, section 4).
    gid[12] &= 0x0f;
    gid
}

fn infiniband_v6(ip: Ipv6Addr) -> [u8; 16] {
    let mut gid = ip.octets();
    // A transient group with a signature of its own: that is a GID.
    if gid[1] & 0xf0 == 0x10 && gid[2..4] == [0xa0, 0x1b] {
        return gid;
    }
    (gid[1], gid[2], gid[3]) = (0x10 | gid[1] & 0x0f, 0x60, 0x01);
    gid[4..6].copy_from_slice(&PKEY);
    gid
}

fn lid_of(gid: &[u8; 16], link: LinkLayer) -> u16 {
    if link != LinkLayer::InfiniBand {
        return 0;
    }
    // With its fixed keys this hasher gives the same number in each process.
    let mut hasher = DefaultHasher::new();
    hasher.write(gid);
    FIRST_LID + (hasher.finish() % LID_COUNT) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ip_address_becomes_a_group_that_the_device_takes() {
        for (ip, link, gid) in [
            ("224.1.2.3", LinkLayer::InfiniBand, "ff12:4001:ffff::1:203"),
            ("239.255.0.9", LinkLayer::InfiniBand, "ff12:4001:ffff::fff:9"),
            ("ff0e::77", LinkLayer::InfiniBand, "ff1e:6001:ffff::77"),
            ("ff10:a01b::5", LinkLayer::InfiniBand, "ff10:a01b::5"),
            ("224.1.2.3", LinkLayer::Ethernet, "ff0e::ffff:e001:203"),
            ("ff0e::77", LinkLayer::Ethernet, "ff0e::77"),
        ] {
            let made = gid_of(ip.parse().unwrap(), link);
            assert_eq!(Ipv6Addr::from(made), gid.parse::<Ipv6Addr>().unwrap());
            let group = crate::objects::groups::group_of(link, made, lid_of(&made, link));
            assert!(group.is_ok(), "{ip}");
        }
    }
}
