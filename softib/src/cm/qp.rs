//! Queue pairs of ids: the attributes that a connection gives them, and their way to RTS.
//!
//! The values are those of rdma_cm on InfiniBand (rdma_init_qp_attr(3)): one starting PSN a side, drawn by the connection
//! manager; RNR timer code 0, which stands for the longest wait there is (655 ms, IBTA table 45); the peer says how many
//! RNR retries it wants.

use super::device;
use super::message::Side;
use super::world::Id;
use crate::datapath::initiator::multicast;
use crate::driver_table;
use crate::errno::Errno;
use rdma_cm_sys::{RDMA_UDP_QKEY, rdma_ud_param};
use rdma_sys::*;

/// Acknowledgement timeout code of connections: 4.096 us * 2^14 = 67 ms.
const TIMEOUT: u8 = 14;
/// RDMA reads at a time, where the program asks for "as many as there are".
pub const MOST_READS: u8 = 16;
const ACCESS: u32 =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// What an id tells before its program has said anything: the port, and a PSN.
///
/// # Errors
/// The device does not tell.
pub fn fresh_side(id: &Id) -> Result<Side, Errno> {
    // SAFETY: our own struct.
    let (context, qp_type) = unsafe { ((*id.c()).verbs, (*id.c()).qp_type) };
    let (port, gid) = device::port(context, device::row_of(context, id.local))?;
    let psn = timing::random() as u32 & 0xff_ffff;
    Ok(Side {
        qp_type: qp_type as u8,
        mtu: port.active_mtu.clamp(IBV_MTU_256, IBV_MTU_4096) as u8,
        psn,
        lid: port.lid,
        gid,
        qkey: if id.datagram { RDMA_UDP_QKEY } else { 0 },
        qpn: id.qp_num().unwrap_or(0),
        ..Side::default()
    })
}

fn is_ethernet(id: &Id) -> Result<bool, Errno> {
    // SAFETY: our own struct.
    let context = unsafe { (*id.c()).verbs };
    Ok(device::port(context, 0)?.0.link_layer == IBV_LINK_LAYER_ETHERNET)
}

/// The way to the peer.
pub fn path(side: &Side, global: bool) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr { dlid: side.lid, port_num: device::PORT, ..Default::default() };
    if global {
        attr.is_global = 1;
        attr.grh.dgid = ibv_gid { raw: side.gid };
        attr.grh.hop_limit = 64;
    }
    attr
}

/// What an event of a datagram id says of the peer.
pub fn ud_param(side: &Side) -> rdma_ud_param {
    // A port without a LID is reached by its GID, and a multicast group by both.
    let ah_attr = path(side, side.lid == 0 || side.qpn == multicast::QPN);
    rdma_ud_param { ah_attr, qp_num: side.qpn, qkey: side.qkey, ..Default::default() }
}

/// `rdma_init_qp_attr`: attributes for the transition to `state`, and their mask. On iWARP there is nothing to do beyond INIT, and the
/// kernel answers with these.
pub fn attributes(id: &Id, state: u32) -> Result<(ibv_qp_attr, u32), Errno> {
    if !device::is_iwarp() {
        return wire_attributes(id, state);
    }
    let attr = ibv_qp_attr {
        qp_state: state,
        qp_access_flags: ACCESS & !IBV_ACCESS_REMOTE_ATOMIC,
        ..Default::default()
    };
    match state {
        IBV_QPS_INIT | IBV_QPS_RTR => Ok((attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS)),
        IBV_QPS_RTS => Ok((attr, 0)),
        _ => Err(Errno::INVAL),
    }
}

/// The attributes that make the connection.
pub fn wire_attributes(id: &Id, state: u32) -> Result<(ibv_qp_attr, u32), Errno> {
    let mut attr = ibv_qp_attr { qp_state: state, ..Default::default() };
    // SAFETY: our own struct.
    let qp_type = unsafe { (*id.c()).qp_type };
    let mask = match state {
        IBV_QPS_INIT => init(&mut attr, qp_type),
        IBV_QPS_RTR if qp_type == IBV_QPT_UD => 0,
        IBV_QPS_RTR => ready_to_receive(&mut attr, id, qp_type)?,
        IBV_QPS_RTS if qp_type == IBV_QPT_UD => {
            attr.sq_psn = id.ours.psn;
            IBV_QP_SQ_PSN
        }
        IBV_QPS_RTS => ready_to_send(&mut attr, id, qp_type)?,
        _ => return Err(Errno::INVAL),
    };
    Ok((attr, mask | IBV_QP_STATE))
}

fn init(attr: &mut ibv_qp_attr, qp_type: u32) -> u32 {
    (attr.port_num, attr.pkey_index) = (device::PORT, 0);
    let mask = IBV_QP_PORT | IBV_QP_PKEY_INDEX;
    if qp_type == IBV_QPT_UD {
        attr.qkey = RDMA_UDP_QKEY;
        mask | IBV_QP_QKEY
    } else {
        attr.qp_access_flags = ACCESS;
        mask | IBV_QP_ACCESS_FLAGS
    }
}

fn ready_to_receive(attr: &mut ibv_qp_attr, id: &Id, qp_type: u32) -> Result<u32, Errno> {
    let theirs = id.theirs.as_ref().ok_or(Errno::INVAL)?;
    attr.ah_attr = path(theirs, is_ethernet(id)?);
    // SAFETY: our own struct.
    attr.ah_attr.grh.sgid_index = device::row_of(unsafe { (*id.c()).verbs }, id.local);
    attr.path_mtu = u32::from(theirs.mtu.min(id.ours.mtu.max(1)));
    (attr.dest_qp_num, attr.rq_psn) = (theirs.qpn, theirs.psn);
    let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if !matches!(qp_type, IBV_QPT_RC | IBV_QPT_XRC_RECV) {
        return Ok(path);
    }
    attr.max_dest_rd_atomic = id.ours.responder_resources.min(theirs.initiator_depth).min(MOST_READS);
    attr.min_rnr_timer = 0;
    Ok(path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
}

fn ready_to_send(attr: &mut ibv_qp_attr, id: &Id, qp_type: u32) -> Result<u32, Errno> {
    let theirs = id.theirs.as_ref().ok_or(Errno::INVAL)?;
    attr.sq_psn = id.ours.psn;
    attr.timeout = id.ack_timeout.unwrap_or(TIMEOUT);
    // Who asked for the connection says how often both repeat.
    attr.retry_cnt = id.ours.retry_count.max(theirs.retry_count);
    attr.rnr_retry = if device::is_iwarp() { 0 } else { theirs.rnr_retry_count };
    attr.max_rd_atomic = id.ours.initiator_depth.min(theirs.responder_resources).min(MOST_READS);
    let retries = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    Ok(match qp_type {
        IBV_QPT_UC => IBV_QP_SQ_PSN,
        IBV_QPT_XRC_RECV => IBV_QP_SQ_PSN | IBV_QP_TIMEOUT,
        _ => IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | retries,
    })
}

/// Takes the id's own QP to `states`, one after the other.
pub fn walk(id: &Id, states: &[u32]) -> Result<(), Errno> {
    // SAFETY: our own struct; the QP is the program's and lives as long as it is the id's.
    let qp = unsafe { (*id.c()).qp };
    if qp.is_null() {
        return Err(Errno::INVAL);
    }
    for &state in states {
        let (mut attr, mask) = attributes(id, state)?;
        // SAFETY: a live QP, and attributes of ours.
        match unsafe { (driver_table().modify_qp)(qp, &mut attr, mask.cast_signed()) } {
            0 => {}
            code => return Err(Errno(code)),
        }
    }
    Ok(())
}

/// The id's own QP, both sides being known.
pub fn bring_up(id: &Id) -> Result<(), Errno> {
    walk(id, &[IBV_QPS_RTR, IBV_QPS_RTS])
}

/// Nothing goes over the id's own QP any more; what is posted is flushed.
pub fn fail(id: &Id) {
    // SAFETY: our own struct; the QP is the program's and lives as long as it is the id's.
    let qp = unsafe { (*id.c()).qp };
    if !qp.is_null() && !id.datagram {
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
        // SAFETY: `qp` is not null (checked above) and lives as long as it is the id's; `attr`
        // outlives the call. A refusal is no loss: a QP that cannot go to ERR is there already.
        unsafe { (driver_table().modify_qp)(qp, &mut attr, IBV_QP_STATE.cast_signed()) };
    }
}
