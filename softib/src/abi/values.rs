//! The attributes of queue pairs (ibv_modify_qp(3)): which values they can have, and which of them a call changes.

use crate::errno::Errno;
use crate::fabric::Ports;
use crate::fabric::address::Address;
use crate::shm::layout::QP_BITS;
use rdma_sys::*;

/// Whether the attributes that `mask` names have values that can be (ibv_modify_qp(3)); EINVAL if not.
pub fn check_values(attr: &ibv_qp_attr, mask: u32, ports: &Ports, port: u8) -> Result<(), Errno> {
    let has = |bit: u32| mask & bit != 0;
    let wrong = has(IBV_QP_PKEY_INDEX) && usize::from(attr.pkey_index) >= ports.pkeys.len()
        || has(IBV_QP_PATH_MTU) && !(IBV_MTU_256..=IBV_MTU_4096).contains(&attr.path_mtu)
        || has(IBV_QP_RETRY_CNT) && attr.retry_cnt > 7
        || has(IBV_QP_RNR_RETRY) && attr.rnr_retry > 7
        || has(IBV_QP_TIMEOUT) && attr.timeout > 31
        || has(IBV_QP_MIN_RNR_TIMER) && attr.min_rnr_timer > 31
        || has(IBV_QP_MAX_QP_RD_ATOMIC) && attr.max_rd_atomic > 16
        || has(IBV_QP_MAX_DEST_RD_ATOMIC) && attr.max_dest_rd_atomic > 16
        || has(IBV_QP_DEST_QPN) && attr.dest_qp_num >= 1 << (2 * QP_BITS)
        || has(IBV_QP_AV) && !is_possible(&attr.ah_attr, ports, port)
        || has(IBV_QP_ALT_PATH) && !is_alternate(&attr.alt_ah_attr, ports, port);
    if wrong { Err(Errno::INVAL) } else { Ok(()) }
}

/// The primary path starts at the queue pair's own port; programs may leave its number out.
fn is_possible(path: &ibv_ah_attr, ports: &Ports, port: u8) -> bool {
    let own = matches!(path.port_num, 0) || path.port_num == ports.number(port);
    own && Address::from(path).check(ports.card(port)).is_ok()
}

/// An alternate path may start at another port of the device.
fn is_alternate(path: &ibv_ah_attr, ports: &Ports, port: u8) -> bool {
    let from = match path.port_num {
        0 => Ok(port),
        num => ports.place(ports.device(port), num),
    };
    from.is_ok_and(|from| Address::from(path).check(ports.card(from)).is_ok())
}

/// The port of a queue pair with attributes `old` once `new` are in force, and its place among all. EINVAL: its device has none of that number.
pub fn port_of(
    ports: &Ports,
    device: usize,
    old: &ibv_qp_attr,
    new: &ibv_qp_attr,
    mask: u32,
) -> Result<u8, Errno> {
    if mask & IBV_QP_PORT != 0 {
        return ports.place(device, new.port_num);
    }
    // Before INIT there is none.
    ports.place(device, old.port_num.max(1))
}

/// Copies the attributes that `mask` names.
pub fn store(to: &mut ibv_qp_attr, from: &ibv_qp_attr, mask: u32) {
    macro_rules! take {
        ($($bit:ident => $field:ident),* $(,)?) => {
            $( if mask & $bit != 0 { to.$field = from.$field; } )*
        };
    }
    take! {
        IBV_QP_ACCESS_FLAGS => qp_access_flags, IBV_QP_PKEY_INDEX => pkey_index, IBV_QP_PORT => port_num,
        IBV_QP_QKEY => qkey, IBV_QP_AV => ah_attr, IBV_QP_PATH_MTU => path_mtu, IBV_QP_TIMEOUT => timeout,
        IBV_QP_RETRY_CNT => retry_cnt, IBV_QP_RNR_RETRY => rnr_retry, IBV_QP_RQ_PSN => rq_psn,
        IBV_QP_MAX_QP_RD_ATOMIC => max_rd_atomic, IBV_QP_ALT_PATH => alt_ah_attr,
        IBV_QP_MIN_RNR_TIMER => min_rnr_timer, IBV_QP_SQ_PSN => sq_psn, IBV_QP_DEST_QPN => dest_qp_num,
        IBV_QP_MAX_DEST_RD_ATOMIC => max_dest_rd_atomic, IBV_QP_PATH_MIG_STATE => path_mig_state,
        IBV_QP_EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify,
    }
}
