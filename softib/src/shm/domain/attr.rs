//! The attributes of a shared queue pair as words.
//!
//! A receive queue pair has no send side and no alternate path; what it does not have is not kept.

use rdma_sys::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr};

/// Words that the attributes take.
pub const WORDS: usize = 25;
/// Places of those that are read alone: `qp_state`.
pub const STATE: usize = 0;
/// `dest_qp_num`.
pub const DEST_QP_NUM: usize = 5;
/// `qp_access_flags`.
pub const ACCESS: usize = 6;
/// `max_dest_rd_atomic`.
pub const RESPONDER_RESOURCES: usize = 8;
/// `port_num`.
pub const PORT_NUM: usize = 10;

/// The words of `attr`, in the order in which [`parse`] takes them.
pub fn emit(attr: &ibv_qp_attr) -> [u32; WORDS] {
    let (ah, grh) = (&attr.ah_attr, &attr.ah_attr.grh);
    // SAFETY: all bit patterns are valid for the raw bytes of a GID.
    let gid = unsafe { grh.dgid.raw };
    let part = |i: usize| u32::from_ne_bytes([gid[4 * i], gid[4 * i + 1], gid[4 * i + 2], gid[4 * i + 3]]);
    [
        attr.qp_state,
        attr.path_mtu,
        attr.path_mig_state,
        attr.rq_psn,
        attr.sq_psn,
        attr.dest_qp_num,
        attr.qp_access_flags,
        attr.pkey_index.into(),
        attr.max_dest_rd_atomic.into(),
        attr.min_rnr_timer.into(),
        attr.port_num.into(),
        attr.timeout.into(),
        part(0),
        part(1),
        part(2),
        part(3),
        grh.flow_label,
        grh.sgid_index.into(),
        grh.hop_limit.into(),
        grh.traffic_class.into(),
        ah.dlid.into(),
        u32::from(ah.sl) | u32::from(ah.src_path_bits) << 8 | u32::from(ah.static_rate) << 16,
        ah.is_global.into(),
        ah.port_num.into(),
        attr.en_sqd_async_notify.into(),
    ]
}

/// The attributes whose words `word` returns.
pub fn parse(word: impl Fn(usize) -> u32) -> ibv_qp_attr {
    let mut raw = [0u8; 16];
    for (i, four) in raw.chunks_exact_mut(4).enumerate() {
        four.copy_from_slice(&word(12 + i).to_ne_bytes());
    }
    let grh = ibv_global_route {
        dgid: ibv_gid { raw },
        flow_label: word(16),
        sgid_index: word(17) as u8,
        hop_limit: word(18) as u8,
        traffic_class: word(19) as u8,
    };
    let [sl, src_path_bits, static_rate, _] = word(21).to_le_bytes();
    let (dlid, is_global, port_num) = (word(20) as u16, word(22) as u8, word(23) as u8);
    ibv_qp_attr {
        qp_state: word(0),
        cur_qp_state: word(0),
        path_mtu: word(1),
        path_mig_state: word(2),
        rq_psn: word(3),
        sq_psn: word(4),
        dest_qp_num: word(5),
        qp_access_flags: word(6),
        pkey_index: word(7) as u16,
        max_dest_rd_atomic: word(8) as u8,
        min_rnr_timer: word(9) as u8,
        port_num: word(10) as u8,
        timeout: word(11) as u8,
        ah_attr: ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num },
        en_sqd_async_notify: word(24) as u8,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_their_words() {
        let words: [u32; WORDS] = std::array::from_fn(|i| match i {
            21 => 0x0003_0201,
            _ => i as u32 + 1,
        });
        assert_eq!(emit(&parse(|i| words[i])), words);
    }

    #[test]
    fn the_words_that_are_read_alone_are_where_their_names_say() {
        let attr = ibv_qp_attr {
            qp_state: 1,
            dest_qp_num: 2,
            qp_access_flags: 3,
            max_dest_rd_atomic: 4,
            port_num: 5,
            ..Default::default()
        };
        let words = emit(&attr);
        let alone = [STATE, DEST_QP_NUM, ACCESS, RESPONDER_RESOURCES, PORT_NUM].map(|i| words[i]);
        assert_eq!(alone, [1, 2, 3, 4, 5]);
    }
}
