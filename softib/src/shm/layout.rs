//! Where each thing sits in a segment.
//!
//! ```text
//! 0        header        who owns this: magic, version, boot id, nonce, life word; the first port; the first 16 rows of the qp table
//!                        and of the ring table
//! 3840     bells         doorbell word, inbound bitmap and the word that says whether it is empty
//! 4 KiB    ring table    512 x 64 B, a row for each inbound ring
//! 36 KiB   ports         7 x 320 B, those behind the first
//! 40 KiB   group table   256 x 32 B
//! 256 KiB  qp table      4096 x 128 B
//! 1 MiB    mr table      65536 x 64 B
//! 8 MiB    heap          64 MiB of receive queues, in arenas of 1 MiB
//! 72 MiB   rings         512 x (256 KiB of cells, a control block, up to 1 MiB of bulk)
//! ```
//!
//! What a process touches for a peer with which it exchanges few messages lies on few pages: the rows of its first queue pairs (the one
//! for datagrams is among them) and rings on the header's, and a ring's first four cells, its control block and the beginning of its bulk on one.
//!
//! The file is sparse: space is taken (fallocate) when a part comes into use, so a full /dev/shm is an
//! error code and never SIGBUS. The tables are used from the bottom; the header says how far. The tables are mapped as long as
//! the segment is attached; an arena of the heap, and a ring, from its first use on (`super::parts`).

/// First word of a process's segment; stored last when the header is filled.
pub const MAGIC: u64 = u64::from_le_bytes(*b"softib\x00\x01");
/// Bumped with every change of anything in this file, in cells, or in the meaning of a word.
pub const VERSION: u32 = 28;

/// Number of segments of one user: the upper bits of a QPN.
pub const SLOTS: usize = 4096;
/// Slots from here on are XRC domains (`super::domain`), those below are processes that have the device open.
pub const DOMAIN_SLOTS: usize = 3840;
/// Queue pairs of one process; the lower bits of a QPN.
pub const QPS: usize = 4096;
/// Bits of a QPN that are the queue pair's index; the slot is above them.
pub const QP_BITS: u32 = 12;
/// Rows of the MR table: memory regions and windows of one process.
pub const MRS: usize = 1 << 16;
/// Inbound rings, which is the number of processes that can send to one process.
pub const RINGS: usize = 512;

/// Offset of the header in a segment; offsets `H_*` are in the segment, too.
pub const HEADER: usize = 0;
/// [`MAGIC`].
pub const H_MAGIC: usize = HEADER;
/// [`VERSION`].
pub const H_VERSION: usize = HEADER + 8;
/// User id of the owner.
pub const H_UID: usize = HEADER + 12;
/// Boot id of the owner's kernel, 16 bytes.
pub const H_BOOT: usize = HEADER + 16;
/// 16 random bytes; the first eight are the owner's incarnation.
pub const H_NONCE: usize = HEADER + 32;
/// Slot of the segment, as in its file name.
pub const H_SLOT: usize = HEADER + 48;
/// Process id of the owner, in its own namespace; a hint only.
pub const H_PID: usize = HEADER + 52;
/// Address, in the owner, of a copy of its nonce: proves that process_vm_readv reaches the right process.
pub const H_PROBE: usize = HEADER + 56;
/// Futex word that holds the device thread's tid; the kernel marks it when the owner dies.
pub const H_LIFE: usize = HEADER + 64;
/// Rows of the QP table below this one have space and may be read.
pub const H_QP_LIMIT: usize = HEADER + 128;
/// Rows of the MR table below this one have space and may be read.
pub const H_MR_LIMIT: usize = HEADER + 132;
/// 1: the owner closes the hand-over race with membarrier, registered senders need no fence.
pub const H_BARRIER: usize = HEADER + 136;

/// Inbound rings below this one may be in use.
pub const H_RING_LIMIT: usize = HEADER + 140;
/// Rows of the group table below this one may be in use.
pub const H_GROUP_LIMIT: usize = HEADER + 144;

/// How many ports there are, and their cards (`port::card`).
pub const H_PORT_COUNT: usize = HEADER + 148;
/// 1: the owner reads messages where they lie in its rings, so that long ones are to come in one piece.
pub const H_PLACES: usize = HEADER + 152;
/// 1: the owner's program looks at its rings itself.
pub const H_POLLS: usize = HEADER + 156;
/// Card of the first port.
pub const H_PORTS: usize = HEADER + 256;
/// A port's card: link layer, LID, GUID, rows of the GID table and the lengths of their networks' prefixes; two counters of refused packets.
pub const PORT: usize = 320;
/// Link layer, a `card::LinkLayer`. Offsets `P_*` are in a card.
pub const P_LINK_LAYER: usize = 0;
/// LID.
pub const P_LID: usize = 4;
/// GUID, 8 bytes.
pub const P_GUID: usize = 8;
/// Rows of the GID table that are in use.
pub const P_GID_COUNT: usize = 16;
/// Packets refused for their P_Key.
pub const P_BAD_PKEYS: usize = 20;
/// Datagrams refused for their Q_Key.
pub const P_BAD_QKEYS: usize = 24;
/// For each row, in a byte, how many bits of the GID are its network; 0: it is on none of its own.
pub const P_NETS: usize = 32;
/// GIDs, 16 bytes a row.
pub const P_GIDS: usize = 64;
/// Ports of all devices of one process.
pub const PORTS: usize = 8;
/// The cards of the ports behind the first.
pub const MORE_PORTS: usize = 0x9000;
/// Bytes of those cards.
pub const MORE_PORTS_LEN: usize = (PORTS - 1) * PORT;
/// Rows of the QP table that are in the header.
pub const H_QPS: usize = (H_PORTS + PORT).next_multiple_of(QP_ENTRY);
/// How many those are.
pub const FIRST_QPS: usize = 16;
/// Rows of the ring table that are in the header.
pub const H_RINGS: usize = H_QPS + FIRST_QPS * QP_ENTRY;
/// How many those are.
pub const FIRST_RINGS: usize = 16;

/// Not 0 while the device thread sleeps and wants to be woken: `handover::ASKED`, or `ASKED_IF_URGENT`.
pub const BELL: usize = 0xf00;
/// One bit per inbound ring that has something and is not watched.
pub const BITMAP: usize = 0xf40;
/// 0: no bit of the bitmap has been set since it was looked at last.
pub const MARKED: usize = 0xf80;
/// The header and the bells.
pub const HEADER_LEN: usize = 0x1000;

/// Offset of the ring table: a row for each inbound ring.
pub const RING_TABLE: usize = HEADER_LEN;
/// Bytes of such a row.
pub const RING_ENTRY: usize = 64;
/// The sender's slot above eight bits of state; 0: free. Offsets `R_*` are in a row.
pub const R_OWNER: usize = 0;
/// The sender's incarnation.
pub const R_INCARNATION: usize = 8;
/// Bytes of bulk that the sender may take: BULK_MIN or BULK_MAX.
pub const R_BULK: usize = 16;
/// Key of the region that the sender works on by its own hand, or 0 (`super::keyed`).
pub const R_HAZARD: usize = 24;
/// The last of the sender's ASKs (`cell::op`) that it has withdrawn; those before are, too.
pub const R_WITHDRAWN: usize = 28;
/// The ASK of the sender whose answer we are just copying, or 0; the same while we place what a GIVE brings.
pub const R_ANSWERING: usize = 32;
/// The last of the sender's GIVEs that we have placed, or 0.
pub const R_GIVEN: usize = 36;
/// The queue pair whose posted receives the sender fills by its own hand ([`super::ring::filled`]), or 0.
pub const R_FILLS: usize = 40;
/// How often the sender has copied from or to our memory by its own hand, with a system call.
pub const R_MOVES: usize = 44;

/// Multicast groups that queue pairs listen to (`super::groups`).
pub const GROUP_TABLE: usize = 0xa000;
/// Bytes of a row of the group table.
pub const GROUP_ROW: usize = 32;
/// Rows of the group table.
pub const GROUPS: usize = 256;

/// Offset of the QP table: what peers may know of the queue pairs (`super::qptable`).
pub const QP_TABLE: usize = 0x40000;
/// Bytes of a row of the QP table.
pub const QP_ENTRY: usize = 128;
/// Offset of the MR table: memory regions and windows (`super::mrtable`).
pub const MR_TABLE: usize = 0x10_0000;
/// Bytes of a row of the MR table.
pub const MR_ENTRY: usize = 64;
/// The header, the bells and all tables: what is mapped of a segment from the start.
pub const TABLES_LEN: usize = MR_TABLE + MRS * MR_ENTRY;

/// Offset of the heap, where the receive queues lie.
pub const HEAP: usize = 0x80_0000;
/// Bytes of the heap.
pub const HEAP_LEN: usize = 64 << 20;
/// What is mapped of the heap at a time; a receive queue lies in one of them.
pub const ARENA: usize = 1 << 20;
/// Arenas of the heap.
pub const ARENAS: usize = HEAP_LEN / ARENA;

/// Offset of the rings, in the order of their rows.
pub const RING_DATA: usize = HEAP + HEAP_LEN;
/// Cells of a ring.
pub const CELLS: usize = 512;
/// Bytes of a cell. What fits it takes the short way from end to end, which is some hundred instructions less than through the bulk.
pub const CELL: usize = 512;
/// Bytes of a ring's cells.
pub const CELLS_LEN: usize = CELLS * CELL;
/// Cells that are used at first. All are in front of the control block, the first one next to it.
pub const CELLS_FIRST: usize = 16;
/// Offset in a ring of its control block, in the middle of a page.
pub const CONTROL: usize = CELLS_LEN + 2048;
/// Tells the sender whether the receiver looks at the ring without being told. Offsets `C_*` are in
/// a ring.
pub const C_WATCHED: usize = CONTROL;
/// What the receiver has consumed, modulo 2^32: cells in the lower half, bytes of bulk in the
/// upper.
pub const C_CONSUMED: usize = CONTROL + 64;
/// The receiver's word on how its sender is to write long messages: [`ASKS_PAST`], [`ASKS_TIME`].
pub const C_MANNER: usize = CONTROL + 72;
/// Past its caches ([`super::pace`]).
pub const ASKS_PAST: u32 = 1;
/// With the time at which that begins, in the cell.
pub const ASKS_TIME: u32 = 2;
/// Offset of the bulk in a ring.
pub const BULK: usize = CONTROL + 128;
/// Bulk data of a ring: this much where the file system has plenty, else a quarter of it. A ring that fits into the caches of both
/// cores is written and read at the pace of their coherence protocol; what is larger passes through the cache that they share.
pub const BULK_MAX: usize = 1 << 20;
/// That quarter.
pub const BULK_MIN: usize = 256 << 10;
/// Where a ring's first cells begin: what is in front of them takes space of the file system when it comes into use.
pub const RING_FIRST: usize = (CONTROL - CELLS_FIRST * CELL) & !4095;
/// Up to here, from [`RING_FIRST`] on, each ring has space of the file system.
pub const RING_MIN: usize = (BULK + BULK_MIN).next_multiple_of(4096);
/// Bytes from one ring to the next.
pub const RING_LEN: usize = (BULK + BULK_MAX).next_multiple_of(4096);

/// Bytes of a segment's file, which is sparse.
pub const SEGMENT_LEN: usize = RING_DATA + RINGS * RING_LEN;
/// What is allocated before the segment is published.
pub const FIXED_LEN: usize = GROUP_TABLE + GROUPS * GROUP_ROW;

const _: () = {
    assert!(
        H_RINGS.is_multiple_of(64)
            && H_RINGS + FIRST_RINGS * RING_ENTRY <= BELL
            && BITMAP + RINGS / 8 <= MARKED
            && MARKED < HEADER_LEN
    );
    assert!(RING_TABLE + RINGS * RING_ENTRY <= MORE_PORTS);
    assert!(MORE_PORTS + MORE_PORTS_LEN <= GROUP_TABLE);
    assert!(GROUP_TABLE + GROUPS * GROUP_ROW <= QP_TABLE);
    assert!(QP_TABLE + QPS * QP_ENTRY <= MR_TABLE);
    assert!(TABLES_LEN <= HEAP && TABLES_LEN.is_multiple_of(4096));
    assert!(HEAP.is_multiple_of(ARENA) && HEAP_LEN.is_multiple_of(ARENA));
    assert!(BULK_MIN <= BULK_MAX);
    assert!(1 << QP_BITS == QPS);
    assert!(CONTROL.is_multiple_of(64) && CONTROL % 4096 + 128 < 4096);
    assert!(CELLS.is_power_of_two() && CELLS_FIRST.is_power_of_two());
    assert!(BULK_MIN.is_power_of_two() && BULK_MAX.is_power_of_two());
    assert!(RINGS.is_multiple_of(64));
};

/// Offset of the card of port `port`, which is below [`PORTS`].
pub const fn port_card(port: usize) -> usize {
    if port == 0 { H_PORTS } else { MORE_PORTS + (port - 1) * PORT }
}

/// Offset of the row of queue pair `index` in the QP table.
pub const fn qp_entry(index: usize) -> usize {
    let table = if index < FIRST_QPS { H_QPS } else { QP_TABLE };
    table + index * QP_ENTRY
}

/// Offset of the row of inbound ring `index` in the ring table.
pub const fn ring_entry(index: usize) -> usize {
    let table = if index < FIRST_RINGS { H_RINGS } else { RING_TABLE };
    table + index * RING_ENTRY
}

/// Offset of inbound ring `index`: its cells, its control block, its bulk. Offsets in the mapping of a ring count from here.
pub const fn ring_data(index: usize) -> usize {
    RING_DATA + index * RING_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_cards_lie_beside_each_other_wherever_they_are() {
        let mut parts = vec![(HEADER, H_PORTS), (BELL, HEADER_LEN - BELL), (GROUP_TABLE, GROUPS * GROUP_ROW)];
        parts.extend((0..PORTS).map(|port| (port_card(port), PORT)));
        parts.extend((0..QPS).map(|index| (qp_entry(index), QP_ENTRY)));
        parts.extend((0..RINGS).map(|index| (ring_entry(index), RING_ENTRY)));
        parts.push((MR_TABLE, MRS * MR_ENTRY));
        parts.sort_unstable();
        for pair in parts.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        assert!(qp_entry(FIRST_QPS - 1) < HEADER_LEN && qp_entry(FIRST_QPS) > QP_TABLE);
    }
}
