//! A process that exchanges every kind of request with a partner, and checks every byte it gets.
//!
//! It obeys the referee's lines: PREPARE (queue pairs and receives; answers with its card), CONNECT (the partner's card), PLAY (requests
//! until a number of them is done, or until a completion says that the partner is dead).
//!
//! ```text
//!   link 0   RC, receives of its own      SEND, WRITE with immediate
//!   link 1   RC, shared receive queue     SEND, WRITE and READ of what was written, READ, FETCH_ADD
//!   link 2   UD                           datagrams
//! ```
//!
//! The shared receive queue and the memory outlive partners.

use super::common::*;
use rdma_sys::*;
use std::collections::VecDeque;
use std::ptr::null_mut;

pub const PREPARE: u64 = 1;
pub const CONNECT: u64 = 2;
pub const PLAY: u64 = 3;

pub const PARTNER_IS_ALIVE: u64 = 1;
pub const PARTNER_IS_DEAD: u64 = 2;

/// Seconds after which a player that has not come to an end is ended, and with it the test.
const WATCHDOG: u32 = 60;

const WINDOW: usize = 16;
const RECEIVES: usize = 32;
const LONGEST: usize = 24_000;
const DATAGRAM: usize = 2048;
const SLOT: usize = LONGEST + 40;
const LENGTHS: [usize; 4] = [16, 100, 3000, LONGEST];
const QKEY: u32 = 77;
const ATOMIC: u32 = ALL_ACCESS | IBV_ACCESS_REMOTE_ATOMIC;

/// Offsets in a player's memory: what partners read, where they write, the word they count in; space around each stays as it is.
const MARGIN: usize = 4096;
const READABLE: usize = MARGIN;
const WRITABLE: usize = READABLE + LONGEST + MARGIN;
const COUNTER: usize = WRITABLE + WINDOW * SLOT + MARGIN;
const MEMORY: usize = COUNTER + 8 + MARGIN;
const UNTOUCHED: u8 = 0xa5;

/// What kind of thing a completion is about, in the upper bits of its wr_id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    ReadBack,
    Read,
    Add,
    Receive,
}

const KINDS: [Kind; 6] = [Kind::Send, Kind::Write, Kind::ReadBack, Kind::Read, Kind::Add, Kind::Receive];

/// A request on its way, or a receive: 8 bits kind, 24 bits slot, 32 bits number.
fn wr_id(kind: Kind, slot: usize, number: u32) -> u64 {
    (kind as u64) << 56 | (slot as u64) << 32 | u64::from(number)
}

fn parse(wr_id: u64) -> (Kind, usize, u32) {
    (KINDS[(wr_id >> 56) as usize], (wr_id >> 32) as usize & 0xff_ffff, wr_id as u32)
}

/// Says what it is given until its standard input ends.
pub fn run() {
    let mut player = Player::open();
    while let Some(words) = listen() {
        unsafe { libc::alarm(WATCHDOG) };
        match words[0] {
            PREPARE => player.prepare(words[1] == 1, words[2]),
            CONNECT => player.connect(&words[1..]),
            PLAY => player.play(words[1]),
            other => panic!("{other} is not a line of the referee"),
        }
        unsafe { libc::alarm(0) };
    }
}

/// A connection to the partner.
struct Wire {
    qp: Qp,
    /// The signalled requests that are to complete, in order.
    sent: VecDeque<u64>,
    /// The next message's number: sent, expected.
    next: (u32, u32),
    receives: usize,
}

struct Player {
    dev: Dev,
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    ah: *mut ibv_ah,
    memory: Buf,
    /// Payloads of requests, a slot each; receives of link 0, of the shared queue, of link 2.
    out: Buf,
    inbox: [Buf; 3],
    bytes: Vec<u8>,
    wires: Vec<Wire>,
    partner: Vec<u64>,
    sleeps: bool,
    random: Random,
    free: Vec<usize>,
    added: u64,
    /// Said, and heard.
    goodbye: (bool, bool),
}

impl Player {
    fn open() -> Player {
        let dev = Dev::open();
        let channel = unsafe { (table().create_comp_channel)(dev.ctx) };
        let cq = dev.cq_on(1024, channel);
        let (srq, ah) = (dev.srq(RECEIVES as u32), dev.ah());
        let mut memory = Buf::new(&dev, MEMORY, ATOMIC);
        let bytes = pattern(1, 2 * LONGEST);
        memory.data.fill(UNTOUCHED);
        memory.data[READABLE..][..LONGEST].copy_from_slice(&bytes[..LONGEST]);
        let out = Buf::new(&dev, WINDOW * SLOT, ATOMIC);
        let inbox = std::array::from_fn(|_| dev.buf(RECEIVES * SLOT));
        let player = Player {
            dev,
            channel,
            cq,
            srq,
            ah,
            memory,
            out,
            inbox,
            bytes,
            wires: Vec::new(),
            partner: Vec::new(),
            sleeps: false,
            random: Random(0),
            free: Vec::new(),
            added: 0,
            goodbye: (false, false),
        };
        (0..RECEIVES).for_each(|slot| player.receive(1, slot));
        player
    }

    /// New queue pairs with receives, and what the partner must know of them.
    fn prepare(&mut self, sleeps: bool, seed: u64) {
        self.wires.drain(..).for_each(|wire| wire.qp.destroy());
        while poll(self.cq).is_some() {}
        (self.sleeps, self.random, self.added) = (sleeps, Random(seed), 0);
        self.goodbye = (false, false);
        self.free = (0..WINDOW).collect();
        self.memory.data[COUNTER..][..8].fill(0);
        for link in 0..3 {
            let kind = if link == 2 { IBV_QPT_UD } else { IBV_QPT_RC };
            let srq = if link == 1 { self.srq } else { null_mut() };
            let qp = self.dev.qp_with(kind, self.cq, srq, |_| ());
            if link == 2 {
                qp.ready_ud(QKEY)
            } else {
                qp.init(ATOMIC)
            }
            self.wires.push(Wire { qp, sent: VecDeque::new(), next: (0, 0), receives: RECEIVES });
            if link != 1 {
                (0..RECEIVES).for_each(|slot| self.receive(link, slot));
            }
        }
        let numbers: Vec<u64> = self.wires.iter().map(|wire| wire.qp.num().into()).collect();
        say(&[numbers[0], numbers[1], numbers[2], self.memory.addr(), self.memory.key().into()]);
    }

    fn connect(&mut self, card: &[u64]) {
        self.partner = card.to_vec();
        // 17 ms, 4 times: a peer that died before it was connected to is recognised by nothing else.
        let path = Path { timeout: 12, access: ATOMIC, rd_atomic: (4, 4), ..Path::default() };
        for (wire, number) in self.wires.iter().zip(card).take(2) {
            wire.qp.rtr(*number as u32, &path);
            wire.qp.rts(&path);
        }
        say(&[1]);
    }

    fn receive(&self, link: usize, slot: usize) {
        let sge = self.inbox[link].sge(slot * SLOT, SLOT);
        let id = wr_id(Kind::Receive, slot, 0);
        let posted = match link {
            1 => srq_recv(self.srq, id, sge),
            _ => self.wires[link].qp.recv(id, &[sge]),
        };
        assert_eq!(posted, 0, "receive on link {link}");
    }

    /// Requests until `limit` of them are done, or the partner is dead.
    fn play(&mut self, limit: u64) {
        let mut asked = 0;
        // A player that is done says goodbye, and goes on listening until its partner does.
        while !(self.goodbye == (true, true) && self.free.len() == WINDOW) {
            while asked < limit && !self.free.is_empty() {
                self.request();
                asked += 1;
            }
            if asked == limit && self.free.len() == WINDOW && !self.goodbye.0 {
                self.say_goodbye();
            }
            let Some(wc) = self.completion() else { continue };
            if wc.status != IBV_WC_SUCCESS {
                self.lose(wc);
                return say(&[PARTNER_IS_DEAD, asked]);
            }
            self.digest(&wc);
        }
        self.part();
        say(&[PARTNER_IS_ALIVE, asked]);
    }

    /// The next completion; None: there was none, and the player has looked up.
    fn completion(&mut self) -> Option<ibv_wc> {
        let found = poll(self.cq);
        if found.is_some() || !self.sleeps {
            return found;
        }
        assert_eq!(unsafe { ibv_req_notify_cq(self.cq, 0) }, 0);
        let found = poll(self.cq);
        if found.is_none() {
            let (mut cq, mut context) = (null_mut(), null_mut());
            assert_eq!(unsafe { (table().get_cq_event)(self.channel, &mut cq, &mut context) }, 0);
            unsafe { (table().ack_cq_events)(cq, 1) };
        }
        found
    }
}

/// Asking.
impl Player {
    /// Posts one request of a random kind.
    fn request(&mut self) {
        let slot = self.free.pop().unwrap();
        let len = LENGTHS[self.random.below(4) as usize];
        match self.random.below(7) {
            0 => self.message(0, IBV_WR_SEND, slot, len),
            1 => self.message(0, IBV_WR_RDMA_WRITE_WITH_IMM, slot, len),
            2 => self.message(1, IBV_WR_SEND, slot, len),
            3 => self.message(2, IBV_WR_SEND, slot, len.min(DATAGRAM)),
            4 => self.write_and_read(slot, len),
            5 => self.one_sided(Kind::Read, slot, len, (READABLE, 0)),
            _ => self.add(slot),
        }
    }

    /// A message with its number in front, on a link where both sides count.
    fn message(&mut self, link: usize, opcode: u32, slot: usize, len: usize) {
        let number = self.wires[link].next.0;
        self.wires[link].next.0 += 1;
        self.fill(slot, number, len);
        let (sge, id) = (self.out.sge(slot * SLOT, len), wr_id(Kind::Send, slot, number));
        let (addr, rkey) = self.remote(WRITABLE + slot * SLOT);
        let wire = &mut self.wires[link];
        let posted = match (link, opcode) {
            (2, _) => wire.qp.datagram(id, &[sge], self.ah, (self.partner[2] as u32, QKEY)),
            (_, IBV_WR_SEND) => wire.qp.send(id, &[sge]),
            _ => wire.qp.post(id, opcode, &[sge], |wr| {
                wr.wr.rdma = ibv_send_wr_rdma { remote_addr: addr, rkey };
                wr.imm.imm_data = number;
            }),
        };
        assert_eq!(posted, 0);
        wire.sent.push_back(id);
    }

    /// Writes to the slot's place in the partner's memory and reads it back: the slot is free when the READ is done.
    fn write_and_read(&mut self, slot: usize, len: usize) {
        let number = self.wires[1].next.0;
        self.fill(slot, number, len);
        self.one_sided(Kind::Write, slot, len, (WRITABLE + slot * SLOT, number));
        self.one_sided(Kind::ReadBack, slot, len, (WRITABLE + slot * SLOT, number));
    }

    fn one_sided(&mut self, kind: Kind, slot: usize, len: usize, (place, number): (usize, u32)) {
        let opcode = if kind == Kind::Write { IBV_WR_RDMA_WRITE } else { IBV_WR_RDMA_READ };
        let (addr, rkey) = self.remote(place);
        let id = wr_id(kind, slot, number);
        assert_eq!(self.wires[1].qp.rdma(id, opcode, self.out.sge(slot * SLOT, len), addr, rkey), 0);
        self.wires[1].sent.push_back(id);
    }

    fn add(&mut self, slot: usize) {
        let (remote_addr, rkey) = self.remote(COUNTER);
        let id = wr_id(Kind::Add, slot, 0);
        let sges = [self.out.sge(slot * SLOT, 8)];
        let atomic = ibv_send_wr_atomic { remote_addr, compare_add: 1, swap: 0, rkey };
        let add = |wr: &mut ibv_send_wr| wr.wr.atomic = atomic;
        assert_eq!(self.wires[1].qp.post(id, IBV_WR_ATOMIC_FETCH_AND_ADD, &sges, add), 0);
        self.wires[1].sent.push_back(id);
    }

    fn say_goodbye(&mut self) {
        self.goodbye.0 = true;
        let id = wr_id(Kind::Send, self.free.pop().unwrap(), 0);
        assert_eq!(self.wires[0].qp.post(id, IBV_WR_SEND_WITH_IMM, &[], |_| ()), 0);
        self.wires[0].sent.push_back(id);
    }

    fn remote(&self, place: usize) -> (u64, u32) {
        (self.partner[3] + place as u64, self.partner[4] as u32)
    }

    /// The payload of message `number`: number, length, and bytes that follow from both.
    fn fill(&mut self, slot: usize, number: u32, len: usize) {
        let to = &mut self.out.data[slot * SLOT..][..len];
        to[..4].copy_from_slice(&number.to_ne_bytes());
        to[4..8].copy_from_slice(&(len as u32).to_ne_bytes());
        to[8..].copy_from_slice(&self.bytes[number as usize % LONGEST..][..len - 8]);
    }
}

/// Checking.
impl Player {
    /// Takes note of a completion.
    fn digest(&mut self, wc: &ibv_wc) {
        let (kind, slot, number) = parse(wc.wr_id);
        let link = self.wires.iter().position(|wire| wire.qp.num() == wc.qp_num).unwrap();
        if kind == Kind::Receive {
            return self.received(link, slot, wc);
        }
        assert_eq!(self.wires[link].sent.pop_front(), Some(wc.wr_id), "out of order on link {link}");
        let place = slot * SLOT;
        match kind {
            Kind::Read => {
                let len = wc.byte_len as usize;
                assert!(self.out.data[place..][..len] == self.bytes[..len], "READ brought wrong bytes");
            }
            Kind::ReadBack => self.check(&self.out.data[place..][..wc.byte_len as usize], number),
            Kind::Add => {
                let before = u64::from_ne_bytes(self.out.data[place..][..8].try_into().unwrap());
                assert_eq!(before, self.added, "FETCH_ADD was not done exactly once");
                self.added += 1;
            }
            _ => {}
        }
        if kind != Kind::Write {
            self.free.push(slot);
        }
    }

    fn received(&mut self, link: usize, slot: usize, wc: &ibv_wc) {
        if wc.opcode == IBV_WC_RECV && wc.wc_flags & IBV_WC_WITH_IMM != 0 {
            self.goodbye.1 = true;
            return;
        }
        let expected = self.wires[link].next.1;
        let number = if wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM {
            unsafe { wc.imm.imm_data }
        } else {
            let skip = if link == 2 { 40 } else { 0 };
            let payload = &self.inbox[link].data[slot * SLOT + skip..][..wc.byte_len as usize - skip];
            let number = u32::from_ne_bytes(payload[..4].try_into().unwrap());
            self.check(payload, number);
            number
        };
        // Datagrams may be lost, never doubled or overtaken.
        assert!(number == expected || link == 2 && number > expected, "link {link}: {number} for {expected}");
        self.wires[link].next.1 = number + 1;
        self.receive(link, slot);
    }

    fn check(&self, payload: &[u8], number: u32) {
        let len = payload.len();
        assert!(payload[..4] == number.to_ne_bytes() && payload[4..8] == (len as u32).to_ne_bytes());
        assert!(payload[8..] == self.bytes[number as usize % LONGEST..][..len - 8], "wrong bytes arrived");
    }

    /// The partner is dead: every request and every receive of ours ends, once.
    fn lose(&mut self, first: ibv_wc) {
        self.wires.iter().for_each(|wire| assert_eq!(wire.qp.to_state(IBV_QPS_ERR), 0));
        self.lost(&first);
        while self
            .wires
            .iter()
            .enumerate()
            .any(|(link, wire)| !wire.sent.is_empty() || link != 1 && wire.receives > 0)
        {
            let Some(wc) = self.completion() else { continue };
            self.lost(&wc);
        }
        // What is left are messages that had arrived on link 1: receives that fail there go back to the shared queue.
        while let Some(wc) = poll(self.cq) {
            self.lost(&wc);
        }
        self.part();
    }

    fn lost(&mut self, wc: &ibv_wc) {
        let link = self.wires.iter().position(|wire| wire.qp.num() == wc.qp_num).unwrap();
        let allowed = [IBV_WC_SUCCESS, IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR];
        assert!(allowed.contains(&wc.status), "status {} on link {link}, {:x}", wc.status, wc.wr_id);
        let (kind, slot, _) = parse(wc.wr_id);
        if kind != Kind::Receive {
            assert_eq!(self.wires[link].sent.pop_front(), Some(wc.wr_id), "out of order on link {link}");
        } else if link == 1 {
            self.receive(1, slot);
        } else {
            self.wires[link].receives -= 1;
        }
    }

    /// Nothing but what was granted has been written.
    fn part(&self) {
        let untouched =
            |from: usize| self.memory.data[from..][..MARGIN].iter().all(|byte| *byte == UNTOUCHED);
        let margins = [0, READABLE + LONGEST, COUNTER - MARGIN, COUNTER + 8];
        assert!(margins.into_iter().all(untouched), "something was written beside its place");
        assert!(self.memory.data[READABLE..][..LONGEST] == self.bytes[..LONGEST]);
    }
}
