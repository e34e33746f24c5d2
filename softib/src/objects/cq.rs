//! Completion queues and completion channels.
//!
//! A CQ is a ring of completions of fixed depth, which begins anew whenever it runs empty: a program that keeps up uses the first few
//! places again and again, and memory is written only as far as completions have ever waited. When it overflows, the completion is lost, the CQ is in error
//! for good, an asynchronous CQ_ERR follows, and queue pairs that try to complete to it go to the error state.
//! Queues of programs that want to know when a completion happened keep the time of each beside it.
//! A channel is an eventfd in semaphore mode and a queue of CQs that fired: one count per queued event.
//!
//! Beside what has been taken, a queue remembers up to which completion its events have told the program:
//!
//! ```text
//!     taken        told            waiting, no event has told of them
//!   ─────────┬──────────────────┬─────────────────────────────────────┐
//!          taken()             told                              taken() + len
//! ```

use super::CBox;
use super::extended::CqEx;
use crate::clock::Stamp;
use crate::errno::{Errno, check};
use crate::shm::shortage;
use rdma_sys::{ibv_comp_channel, ibv_cq, ibv_pd, ibv_wc};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;

/// A completion as it waits to be polled.
#[derive(Clone, Copy)]
pub struct Cqe {
    /// As `ibv_poll_cq` hands it out.
    pub wc: ibv_wc,
    /// For sends: frees the send queue up to here (QP index and generation, number of WQEs posted so far).
    pub retire: Option<(u16, u32, u32)>,
}

impl std::fmt::Debug for Cqe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cqe(wr_id {:#x}, status {})", self.wc.wr_id, self.wc.status)
    }
}

/// Which completions fire the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    No,
    Solicited,
    Any,
}

/// A completion queue.
#[derive(Debug)]
#[repr(C)] // in this order: what each poll looks at comes first
pub struct Cq {
    /// Completions that wait to be polled.
    len: usize,
    /// Armed, or with stamps: a new completion needs attention.
    pub watchful: bool,
    /// A completion has found it full: it takes no more.
    pub overrun: bool,
    c: CBox<CqEx>,
    /// Index of its context.
    pub context: usize,
    /// Index of its completion channel.
    pub channel: Option<usize>,
    armed: Armed,
    /// Messages of so many bytes may stay where they lie (`shm::placed`).
    pub placed_from: u32,
    /// Queue pairs that complete here.
    pub users: u32,
    /// Events of this CQ that the program has been given; it must acknowledge as many.
    pub events: u32,
    /// Asynchronous events of it that the program has been given.
    pub async_events: u32,
    /// The places that have been used so far, with room for `depth`.
    ring: Vec<Cqe>,
    depth: usize,
    /// As long as the queue is deep; empty if the program has not asked for times.
    stamps: Box<[Stamp]>,
    /// Where the oldest lies.
    head: usize,
    /// Completions that had been taken when `head` was at the start of the ring last.
    lap: usize,
    /// Completions since the queue was made that need raise no event any more; what has been taken needs none either.
    told: usize,
}

impl Cq {
    /// An empty queue for `depth` completions, not armed.
    pub fn new(c: CBox<CqEx>, context: usize, channel: Option<usize>, depth: usize) -> Cq {
        Cq {
            c,
            context,
            channel,
            armed: Armed::No,
            watchful: false,
            overrun: false,
            placed_from: u32::MAX,
            users: 0,
            events: 0,
            async_events: 0,
            ring: Vec::with_capacity(depth),
            depth,
            stamps: Box::default(),
            head: 0,
            len: 0,
            lap: 0,
            told: 0,
        }
    }

    /// From now on keeps the time of each completion.
    pub fn keep_stamps(&mut self) {
        self.stamps = vec![Stamp::default(); self.depth].into_boxed_slice();
        self.watchful = true;
    }

    /// Arms it. Arming for everything includes arming for solicited ones, never the other way round. True: a completion waits that no
    /// event has told of, so that the program may not know of it; the queue fires for it now, and is not armed any more.
    ///
    /// The specification leaves open whether what waits already raises the event (IBTA 11.4.2.2). The request to a ConnectX says how far
    /// the program has read (rdma-core's `mlx5_arm_cq`), and the adapter keeps the index of its last event (`last_notified_index`), which
    /// is what this takes.
    pub fn arm(&mut self, armed: Armed) -> bool {
        if self.armed != Armed::Any {
            self.armed = armed;
        }
        self.watchful = true;
        let next = self.told.max(self.taken());
        let fires = self.armed == Armed::Any && next < self.taken() + self.len;
        if fires {
            self.disarm(next + 1);
        }
        fires
    }

    /// An event tells of the completions up to `told`.
    fn disarm(&mut self, told: usize) {
        self.told = told;
        self.armed = Armed::No;
        self.watchful = !self.stamps.is_empty();
    }

    /// Looks after the completion that was added last; whether it fires the channel, which is not armed any more then.
    pub fn attend(&mut self, solicited: bool) -> bool {
        let last = self.wrap(self.head + self.len - 1);
        if let Some(stamp) = self.stamps.get_mut(last) {
            *stamp = Stamp::now();
        }
        let fires = match self.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => solicited,
        };
        if fires {
            self.disarm(self.taken() + self.len);
        }
        fires
    }

    /// What programs know it by.
    pub fn pointer(&self) -> *mut ibv_cq {
        self.c.as_ptr().cast()
    }

    /// The parent domain it was made with, or null.
    pub fn parent(&self) -> *mut ibv_pd {
        // SAFETY: our own C struct, alive as long as self; the field is written before the queue is handed out.
        unsafe { (*self.c.as_ptr()).parent }
    }

    /// Whether nothing waits to be polled.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Empty, and a completion that comes now needs nothing but to be handed over.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.len == 0 && self.is_plain()
    }

    /// A completion that comes when it is empty needs nothing but to be handed over.
    #[inline]
    pub fn is_plain(&self) -> bool {
        !(self.watchful | self.overrun)
    }

    /// Completions that wait to be polled.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds a completion that `fill` writes where it will lie; false when there is no room.
    #[inline]
    pub fn push_with(&mut self, fill: impl FnOnce(&mut Cqe)) -> bool {
        if self.len == self.depth || self.overrun {
            return false;
        }
        let at = self.wrap(self.head + self.len);
        match self.ring.get_mut(at) {
            Some(place) => fill(place),
            None => fill(self.new_place()),
        }
        self.len += 1;
        true
    }

    /// The place behind those that have been used. There is one: places are used in order, and the ring has not begun anew
    /// before the last.
    #[cold]
    fn new_place(&mut self) -> &mut Cqe {
        let at = self.ring.len();
        self.ring.push(Cqe { wc: ibv_wc::default(), retire: None });
        &mut self.ring[at]
    }

    /// Hands the oldest completion to `out` where it lies, with its time if that is kept.
    #[inline]
    pub fn pop_with(&mut self, out: impl FnOnce(&Cqe, Option<&Stamp>)) -> bool {
        if self.len == 0 {
            return false;
        }
        out(&self.ring[self.head], self.stamps.get(self.head));
        self.head += 1;
        self.len -= 1;
        if self.len == 0 || self.head == self.depth {
            self.lap += self.head;
            self.head = 0;
        }
        true
    }

    /// Completions taken since the queue was made.
    fn taken(&self) -> usize {
        self.lap + self.head
    }

    #[inline]
    fn wrap(&self, at: usize) -> usize {
        if at >= self.depth { at - self.depth } else { at }
    }

    /// Changes the depth; EINVAL if what waits would not fit.
    pub fn resize(&mut self, depth: usize) -> Result<(), Errno> {
        if depth < self.len {
            return Err(Errno::INVAL);
        }
        let mut ring = Vec::with_capacity(depth);
        let kept = if self.stamps.is_empty() { 0 } else { depth };
        let mut stamps = vec![Stamp::default(); kept].into_boxed_slice();
        for to in 0..self.len {
            let from = self.wrap(self.head + to);
            ring.push(self.ring[from]);
            if let Some(stamp) = stamps.get_mut(to) {
                *stamp = self.stamps[from];
            }
        }
        self.told = self.told.saturating_sub(self.taken());
        (self.ring, self.depth, self.stamps, self.head, self.lap) = (ring, depth, stamps, 0, 0);
        Ok(())
    }

    /// Whether a completion of a queue pair waits to be polled.
    pub fn holds(&self, qpn: u32) -> bool {
        (0..self.len).any(|at| self.ring[self.wrap(self.head + at)].wc.qp_num == qpn)
    }

    /// Drops the completions of a queue pair that goes away (reset, destroy).
    pub fn forget(&mut self, qpn: u32) {
        let (mut kept, mut told) = (0, 0);
        for at in 0..self.len {
            let (from, to) = (self.wrap(self.head + at), self.wrap(self.head + kept));
            if self.ring[from].wc.qp_num == qpn {
                continue;
            }
            self.ring[to] = self.ring[from];
            if !self.stamps.is_empty() {
                self.stamps[to] = self.stamps[from];
            }
            kept += 1;
            told += usize::from(self.taken() + at < self.told);
        }
        (self.len, self.told) = (kept, self.taken() + told);
    }
}

/// A completion channel.
#[derive(Debug)]
pub struct Channel {
    /// Kept alive for the program.
    _c: CBox<ibv_comp_channel>,
    /// Index of its context.
    pub context: usize,
    /// Completion queues that use it.
    pub users: u32,
    /// Completion queues whose events wait to be taken, by index.
    pub queue: VecDeque<usize>,
    file: File,
}

/// A new eventfd that counts like a semaphore.
pub fn event_file() -> Result<File, Errno> {
    // SAFETY: a system call without pointers.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) })
        .map_err(shortage::descriptors)?;
    // SAFETY: eventfd made the descriptor just now, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Adds one to an eventfd. It can't overflow here, and a closed one has no reader.
pub fn raise(mut file: &File) {
    let _ = file.write(&1u64.to_ne_bytes());
}

impl Channel {
    /// A channel whose descriptor is that of `file`.
    pub fn new(c: CBox<ibv_comp_channel>, context: usize, file: File) -> Channel {
        Channel { _c: c, context, users: 0, queue: VecDeque::new(), file }
    }

    /// Queues an event of completion queue `cq`, and wakes the threads that wait for one.
    pub fn fire(&mut self, cq: usize) {
        self.queue.push_back(cq);
        raise(&self.file);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{extended::extended, zeroed};
    use super::*;

    fn queue(depth: usize) -> Cq {
        // SAFETY: ibv_cq is plain C data; zeroes are valid.
        Cq::new(CBox::new(extended(unsafe { zeroed() })), 0, None, depth)
    }

    fn push(cq: &mut Cq, id: u64) -> bool {
        cq.push_with(|cqe| cqe.wc.wr_id = id)
    }

    fn pop(cq: &mut Cq) -> Option<u64> {
        let mut id = None;
        cq.pop_with(|cqe, _| id = Some(cqe.wc.wr_id));
        id
    }

    #[test]
    fn a_queue_that_runs_empty_uses_its_first_places_again() {
        let mut cq = queue(1000);
        for id in 0..5000 {
            assert!(push(&mut cq, 2 * id) && push(&mut cq, 2 * id + 1));
            assert_eq!((pop(&mut cq), pop(&mut cq), pop(&mut cq)), (Some(2 * id), Some(2 * id + 1), None));
        }
        assert_eq!((cq.ring.len(), cq.taken()), (2, 10_000));
    }

    /// Against a queue of numbers: order, depth and the count of what was taken, with runs of every length, and depths that change.
    #[test]
    fn completions_come_in_order_up_to_the_depth_wherever_the_ring_stands() {
        let (mut cq, mut model) = (queue(7), VecDeque::new());
        let (mut depth, mut taken, mut random) = (7, 0, 1_u64);
        for id in 0..20_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            match random >> 60 {
                0..8 => {
                    let fits = model.len() < depth;
                    assert_eq!(push(&mut cq, id), fits);
                    model.extend(fits.then_some(id));
                }
                8..15 => {
                    let oldest = model.pop_front();
                    taken += usize::from(oldest.is_some());
                    assert_eq!(pop(&mut cq), oldest);
                }
                _ => {
                    let next = 1 + (random >> 32) as usize % 9;
                    let fits = next >= model.len();
                    assert_eq!(cq.resize(next).is_ok(), fits);
                    (depth, taken) = if fits { (next, 0) } else { (depth, taken) };
                }
            }
            assert_eq!((cq.len(), cq.taken()), (model.len(), taken));
            assert!(cq.ring.len() <= depth, "{} places of {depth}", cq.ring.len());
        }
    }
}
