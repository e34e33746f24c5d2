//! Changes of a domain's segment, under its mutex.

use super::*;
use crate::shm::shortage::take_space;
use rdma_sys::IBV_QPS_RESET;

/// The right to change a domain; given back on drop.
#[derive(Debug)]
pub struct Locked<'a>(&'a DomainFile);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        filelock::release(&self.0.file, MUTEX);
    }
}

impl<'a> Locked<'a> {
    pub(super) fn new(domain: &'a DomainFile) -> Locked<'a> {
        Locked(domain)
    }

    fn word(&self, offset: usize) -> &std::sync::atomic::AtomicU32 {
        self.0.map.u32(offset)
    }

    /// Takes a place among the holders for process `me`. ENOSPC: there is none.
    pub fn join(&self, me: Process) -> Result<usize, Errno> {
        let free = (0..HOLDERS).find(|&holder| self.0.holder(holder).is_none());
        let holder = free.ok_or(Errno(libc::ENOSPC))?;
        let at = HOLDER_TABLE + holder * HOLDER;
        self.word(at + 8).store(me.0 as u32, Ordering::Relaxed);
        self.0.map.u64(at).store(me.1, Ordering::Release);
        Ok(holder)
    }

    /// Gives a place back, with all handles that its process has.
    pub fn leave(&self, holder: usize) {
        (0..QPS).take_while(|&index| self.0.exists(index)).for_each(|index| self.close(index, holder));
        self.0.map.u64(HOLDER_TABLE + holder * HOLDER).store(0, Ordering::Release);
    }

    /// Drops what processes that are gone still hold.
    pub fn purge(&self, mut is_gone: impl FnMut(Process) -> bool) {
        for holder in 0..HOLDERS {
            if self.0.holder(holder).is_some_and(&mut is_gone) {
                self.leave(holder);
            }
        }
        // One whose last holder died while it closed its handle.
        for index in (0..QPS).take_while(|&index| self.0.exists(index)) {
            self.free_if_unheld(index);
        }
    }

    /// Makes a queue pair in RESET with one handle, of `holder`; returns its index. ENOMEM: there are too many.
    pub fn create(&self, holder: usize) -> Result<usize, Errno> {
        // Numbers go round, so that one is not reused at once.
        let next = self.word(D_NEXT).load(Ordering::Relaxed) as usize;
        let mut indices = (0..QPS).map(|i| (next + i) % QPS);
        let used = |&index: &usize| {
            self.0.exists(index) && self.word(entry(index) + Q_USED).load(Ordering::Relaxed) != 0
        };
        let index = indices.find(|index| !used(index)).ok_or(Errno::NOMEM)?;
        self.open_entry(index)?;
        self.word(D_NEXT).store((index as u32 + 1) % QPS as u32, Ordering::Relaxed);
        let at = entry(index);
        (0..HOLDERS / 64).for_each(|i| self.0.map.u64(at + Q_HOLDERS + 8 * i).store(0, Ordering::Relaxed));
        let generation = self.word(at + Q_GENERATION).load(Ordering::Relaxed).wrapping_add(1);
        self.open(index, holder);
        self.write(
            index,
            &SharedQp {
                generation,
                dest_incarnation: 0,
                dest_port: 0,
                pkey: 0,
                attr: ibv_qp_attr::default(),
            },
        );
        self.change(index, || self.word(at + Q_USED).store(1, Ordering::Relaxed));
        Ok(index)
    }

    /// Makes an entry safe to touch for every process.
    fn open_entry(&self, index: usize) -> Result<(), Errno> {
        let have = self.word(D_QP_LIMIT).load(Ordering::Relaxed) as usize;
        if index >= have {
            let want = (index + 1).next_multiple_of(4096 / QP);
            take_space(&self.0.file, entry(have), (want - have) * QP, "a queue pair of an XRC domain")?;
            self.word(D_QP_LIMIT).store(want as u32, Ordering::Release);
        }
        Ok(())
    }

    /// Gives `holder` a handle of a queue pair that exists.
    pub fn open(&self, index: usize, holder: usize) {
        let bits = self.0.map.u64(entry(index) + Q_HOLDERS + holder / 64 * 8);
        self.change(index, || {
            bits.fetch_or(1 << (holder % 64), Ordering::AcqRel);
        });
    }

    /// Takes `holder`'s handle away; the queue pair goes with the last one.
    pub fn close(&self, index: usize, holder: usize) {
        let bits = self.0.map.u64(entry(index) + Q_HOLDERS + holder / 64 * 8);
        if bits.load(Ordering::Relaxed) >> (holder % 64) & 1 != 0 {
            // A sender that relies on this holder's life looks for another.
            self.change(index, || {
                bits.fetch_and(!(1 << (holder % 64)), Ordering::AcqRel);
            });
            self.free_if_unheld(index);
        }
    }

    fn free_if_unheld(&self, index: usize) {
        let at = entry(index);
        let held =
            (0..HOLDERS / 64).any(|i| self.0.map.u64(at + Q_HOLDERS + 8 * i).load(Ordering::Relaxed) != 0);
        if !held && self.word(at + Q_USED).load(Ordering::Relaxed) != 0 {
            self.change(index, || {
                self.word(at + Q_USED).store(0, Ordering::Relaxed);
                self.word(at + Q_ATTR).store(IBV_QPS_RESET, Ordering::Relaxed);
            });
        }
    }

    /// Publishes a queue pair as it is now.
    pub fn write(&self, index: usize, qp: &SharedQp) {
        let at = entry(index);
        self.change(index, || {
            self.word(at + Q_GENERATION).store(qp.generation, Ordering::Relaxed);
            self.0.map.u64(at + Q_DEST_INCARNATION).store(qp.dest_incarnation, Ordering::Relaxed);
            self.word(at + Q_PKEY).store(qp.pkey.into(), Ordering::Relaxed);
            self.word(at + Q_DEST_PORT).store(qp.dest_port.into(), Ordering::Relaxed);
            for (i, word) in attr::emit(&qp.attr).into_iter().enumerate() {
                self.word(at + Q_ATTR + 4 * i).store(word, Ordering::Relaxed);
            }
            if qp.attr.qp_state == IBV_QPS_RESET {
                self.word(at + Q_ESTABLISHED).store(0, Ordering::Relaxed);
            }
        });
    }

    /// Changes an entry's words between an odd and an even sequence number. One that was left odd, by a process that died
    /// here, becomes even again.
    fn change(&self, index: usize, body: impl FnOnce()) {
        seqlock::change(self.word(entry(index) + Q_SEQ), body);
    }

    /// Makes a sequence number even that a process left odd when it died. EINVAL: there is no such entry.
    pub fn mend(&self, index: usize) -> Result<(), Errno> {
        if !self.0.exists(index) {
            return Err(Errno::INVAL);
        }
        if self.0.sequence(index) & 1 != 0 {
            self.change(index, || ());
        }
        Ok(())
    }
}
