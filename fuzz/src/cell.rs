//! Cells that a process writes into the ring of another one: the software device must survive any.
//!
//! The sender that lies is this process: it claims a second ring in its own segment and writes cells there, tag by tag, without the
//! library's sending half. The device takes them in as a peer's. An input is a row of records, each one cell:
//!
//! ```text
//!   0  operation | 1 flags | 2 destination | 3 sender | 4 length, as the cell says (16) | 6 bytes that follow here | 7 what to insert
//!   8  immediate data (32) | 12 position of the receive (32) | 16 up to 96 bytes of payload
//! ```
//!
//! Destination and sender choose among the queue pairs that there are, with their right generation; 0xf0 and above: a raw number from
//! the immediate data. To insert: the address and the key of registered memory, which an input cannot know; a receive queue pair of
//! the XRC domain.
//!
//! What must hold: no crash; memory beside what is registered and posted unchanged; each posted receive completed at most once.

use crate::common::{Dev, Path, Qp, poll, srq_recv, table};
use crate::xrc::{Name, Srq, XRC_ACCESS, close_xrcd, domain, expect, receiver, sender};
use rdma_sys::*;
use softib::shm::cell::{Head, INLINE_MAX, Via, destination, flag, op};
use softib::shm::cells::Cells;
use softib::shm::layout::*;
use softib::shm::map::Map;
use softib::shm::qptable;
use softib::shm::ring::{BULK_FIRST, FRAGMENT_MAX, SendRing, wider};
use softib::shm::segment;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a record before its payload.
const RECORD: usize = 16;
/// Cells of one input; a ring holds more.
const MOST: usize = 64;
/// Receives of each queue.
const RECEIVES: usize = 4;
const QUEUES: usize = 4;
/// Bytes of a receive, and of what follows it and is not posted.
const ROOM: usize = 128;
/// Bytes that peers may write to, and of each margin around what is registered.
const REGION: usize = 1024;
const LANDING: usize = 3 * REGION;
const MEMORY: usize = LANDING + QUEUES * RECEIVES * 2 * ROOM + REGION;
const UNTOUCHED: u8 = 0xa5;
const QKEY: u32 = 77;
/// Polls after which every cell has been looked at.
const POLLS: usize = 4 * MOST;

pub(crate) fn run(data: &[u8]) {
    let mut world = World::new();
    let mut rest = data;
    for _ in 0..MOST {
        let Some((record, behind)) = rest.split_first_chunk::<RECORD>() else { break };
        let (payload, next) = behind.split_at((usize::from(record[6]) % (INLINE_MAX + 1)).min(behind.len()));
        world.inject(record, payload);
        rest = next;
    }
    world.poll();
    let memory = world.close();
    check_margins(&memory);
}

/// The device, with a queue pair of each kind, and the sender that lies.
struct World {
    dev: Dev,
    cq: *mut ibv_cq,
    /// Two of RC, connected; one of UD; the sending one of XRC.
    qps: [Qp; 4],
    srq: Srq,
    receiver: Qp,
    xrcd: *mut ibv_xrcd,
    _name: Name,
    /// A margin, the region that peers may write to, a margin, the receives and what lies between them, a margin.
    memory: Box<[u8]>,
    region: *mut ibv_mr,
    landing: *mut ibv_mr,
    liar: Liar,
}

impl World {
    fn new() -> World {
        let dev = Dev::open();
        let mut memory = vec![UNTOUCHED; MEMORY].into_boxed_slice();
        let region = register(&dev, &mut memory[REGION..2 * REGION], XRC_ACCESS);
        let landing = register(&dev, &mut memory[LANDING..], IBV_ACCESS_LOCAL_WRITE);
        let (cq, name) = (dev.cq(256), Name::new());
        let xrcd = domain(&dev, &name.file);
        let (a, b) = (dev.qp(IBV_QPT_RC, cq), dev.qp(IBV_QPT_RC, cq));
        let path = Path { access: XRC_ACCESS, ..Path::default() };
        a.connect(b.num(), &path);
        b.connect(a.num(), &path);
        let (ud, from, to) = (dev.qp(IBV_QPT_UD, cq), sender(&dev), receiver(&dev, xrcd));
        ud.ready_ud(QKEY);
        expect(to, from.num(), &path);
        from.connect(to.num(), &path);
        let (qps, srq, liar) = ([a, b, ud, from], Srq::new(&dev, xrcd, 16), Liar::new(a.num()));
        let world =
            World { dev, cq, qps, srq, receiver: to, xrcd, _name: name, memory, region, landing, liar };
        (0..QUEUES * RECEIVES).for_each(|number| world.post(number));
        world
    }

    /// Posts receive `number`, of queue `number % QUEUES`.
    fn post(&self, number: usize) {
        let addr = self.memory[LANDING + number * 2 * ROOM..].as_ptr() as u64;
        // SAFETY: registered by new() and not yet deregistered.
        let sge = ibv_sge { addr, length: ROOM as u32, lkey: unsafe { (*self.landing).lkey } };
        let queue = number % QUEUES;
        let code = match self.qps.get(queue).filter(|_| queue + 1 < QUEUES) {
            Some(qp) => qp.recv(number as u64, &[sge]),
            None => srq_recv(self.srq.srq, number as u64, sge),
        };
        assert_eq!(code, 0, "a receive is posted");
    }

    /// Writes one cell as the record says.
    fn inject(&mut self, record: &[u8; RECORD], payload: &[u8]) {
        let word =
            |at: usize| u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        let (imm, pos) = (word(8), word(12));
        let mut bytes = [0; INLINE_MAX];
        bytes[..payload.len()].copy_from_slice(payload);
        self.insert(record[7], &mut bytes);
        let head = Head {
            op: record[0],
            flags: record[1],
            dst: self.destination(record[2], imm),
            src_qpn: self.number(record[3], imm),
            len: u32::from(u16::from_le_bytes([record[4], record[5]])),
            imm,
            pos,
        };
        let via = self.via(record[7], Via { qpn: imm, generation: pos });
        self.liar.write(head, via, &bytes);
    }

    /// What an input cannot know: addresses, keys, numbers.
    fn insert(&self, what: u8, bytes: &mut [u8; INLINE_MAX]) {
        if what & 1 != 0 {
            let within = u64::from(bytes[0]) | u64::from(bytes[1]) << 8;
            let addr = (self.memory[REGION..].as_ptr() as u64).wrapping_add(within);
            bytes[..8].copy_from_slice(&addr.to_ne_bytes());
        }
        if what & 2 != 0 {
            // SAFETY: registered by new() and not yet deregistered.
            bytes[8..12].copy_from_slice(&unsafe { (*self.region).rkey }.to_ne_bytes());
        }
    }

    /// What a cell says that it goes through: our receive queue pair, or `other`.
    fn via(&self, what: u8, other: Via) -> Via {
        if what & 4 != 0 { Via { qpn: self.receiver.num(), generation: u32::from(what >> 3) } } else { other }
    }

    /// The destination field of a cell.
    fn destination(&self, choice: u8, raw: u32) -> u16 {
        if choice >= 0xf0 {
            return raw as u16;
        }
        let index = match usize::from(choice) % (self.qps.len() + 1) {
            srq if srq == self.qps.len() => self.srq.num as usize % QPS,
            qp => self.qps[qp].num() as usize % QPS,
        };
        let generation = qptable::look_up(&self.liar.tables, index).map_or(0, |(_, qp)| qp.generation);
        destination(index, generation)
    }

    /// The number of the queue pair that sends.
    fn number(&self, choice: u8, raw: u32) -> u32 {
        if choice >= 0xf0 { raw } else { self.qps[usize::from(choice) % self.qps.len()].num() }
    }

    /// Lets the device take everything in, and sees that no receive completes twice.
    fn poll(&self) {
        let mut completed = HashSet::new();
        for _ in 0..POLLS {
            for cq in [self.cq, self.srq.cq, self.qps[3].cq] {
                let Some(wc) = poll(cq) else { continue };
                assert!((wc.wr_id as usize) < QUEUES * RECEIVES, "completion of a request that was not made");
                assert!(completed.insert(wc.wr_id), "receive {} is completed twice", wc.wr_id);
                assert!(
                    wc.status != IBV_WC_SUCCESS || wc.byte_len as usize <= ROOM,
                    "longer than its receive"
                );
            }
        }
    }

    /// Takes the device down; the memory that it was given.
    fn close(self) -> Box<[u8]> {
        let World { dev, cq, qps, srq, receiver, xrcd, memory, region, landing, liar, .. } = self;
        drop(liar);
        qps.into_iter().for_each(Qp::destroy);
        receiver.destroy();
        let xrc_cqs = [srq.cq, qps[3].cq];
        srq.destroy();
        // SAFETY: made by new(), and what was made of them has been destroyed.
        unsafe {
            [cq].into_iter().chain(xrc_cqs).for_each(|cq| assert_eq!((table().destroy_cq)(cq), 0));
            assert_eq!(close_xrcd(xrcd), 0);
            [region, landing].into_iter().for_each(|mr| assert_eq!((table().dereg_mr)(mr), 0));
            assert_eq!((table().dealloc_pd)(dev.pd), 0);
            assert_eq!((table().close_device)(dev.ctx), 0);
        }
        memory
    }
}

fn register(dev: &Dev, memory: &mut [u8], access: u32) -> *mut ibv_mr {
    // SAFETY: World keeps the memory until close() has deregistered it.
    let mr = unsafe { (table().reg_mr)(dev.pd, memory.as_mut_ptr().cast(), memory.len(), access as i32) };
    assert!(!mr.is_null(), "reg_mr: {}", std::io::Error::last_os_error());
    mr
}

/// Memory that neither a key for peers covers nor a receive is as it was.
fn check_margins(memory: &[u8]) {
    let (start, end) = (&memory[..REGION], &memory[MEMORY - REGION..]);
    let gaps = memory[LANDING..MEMORY - REGION].chunks_exact(2 * ROOM).map(|receive| &receive[ROOM..]);
    let margins = [start, &memory[2 * REGION..LANDING], end];
    let untouched = margins.into_iter().chain(gaps).all(|part| part.iter().all(|byte| *byte == UNTOUCHED));
    assert!(untouched, "memory was written to that no request covers");
}

/// A sender that writes what it likes into its ring, which is in our own segment.
struct Liar {
    tables: Arc<Map>,
    ring: SendRing,
    data: Arc<Map>,
    cells: Cells,
    sent: u32,
    bulk: u32,
    /// Bytes of the bulk that are in use.
    used: u32,
}

impl Liar {
    /// `qpn` is of this process: it tells which segment is ours.
    fn new(qpn: u32) -> Liar {
        let slot = (qpn >> QP_BITS) as usize;
        let file = Arc::new(segment::open_slot(&segment::directory(), slot).expect("our segment"));
        let tables = Arc::new(Map::new(&file, TABLES_LEN).expect("its tables"));
        let incarnation = tables.u64(H_NONCE).load(Ordering::Relaxed);
        let ring = SendRing::claim(&tables, &file, (slot, incarnation), true, false).expect("a ring");
        let data = Arc::new(tables.part(&file, ring_data(ring.index()), RING_MIN).expect("its memory"));
        Liar { tables, ring, cells: Cells::new(&data), data, sent: 0, bulk: 0, used: BULK_FIRST }
    }

    /// Writes the next cell, tag last, and tells the receiver. Where the next one is it knows as the receiver does.
    fn write(&mut self, head: Head, via: Via, payload: &[u8; INLINE_MAX]) {
        let cell = self.cells.at(self.sent);
        // SAFETY: a cell has room for INLINE_MAX bytes, and the receiver does not look at them before it is marked.
        unsafe { payload.as_ptr().copy_to_nonoverlapping(cell.payload(), INLINE_MAX) };
        cell.emit_via(via);
        let is_bulk = head.flags & flag::BULK != 0;
        if is_bulk {
            if head.flags & flag::WIDER != 0
                && wider(self.used, head.len.min(FRAGMENT_MAX as u32)) <= BULK_MIN as u32
            {
                self.used = wider(self.used, head.len.min(FRAGMENT_MAX as u32));
                self.bulk = self.used / 2;
            }
            let at = self.bulk % (self.used - INLINE_MAX as u32);
            self.data.write(BULK + at as usize, payload);
            self.bulk = self.bulk.wrapping_add(head.len.saturating_add(63) & !63);
        }
        cell.emit(head);
        cell.mark(self.sent);
        self.sent += 1;
        if head.op == op::MORE_CELLS && (is_bulk || head.len as usize > INLINE_MAX) {
            self.cells.double(self.sent);
        }
        // Its sender wakes the device thread of its own accord, or is killed before: the program polls anyway.
        let _ = self.ring.announce(true);
    }
}
