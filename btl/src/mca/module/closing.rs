//! The end of endpoints and of the module. No lock is held while peers or the device are waited
//! for.

use super::parting::Parting;
use super::{Cookie, Module, Owed, Place, State};
use crate::mca::frag::Frag;
use crate::mca::timelines;
use crate::protocol::regcache::Counters;
use crate::transport::stats::Stats;
use crate::transport::{EpId, Transport, Upcall, traffic};
use opal_sys::MCA_BTL_DES_FLAGS_BTL_OWNERSHIP;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The removals of all ports: Open MPI takes a peer away from each of them in turn.
static PARTING: Mutex<Parting> = Mutex::new(Parting::new());

/// What ports have counted that are closed.
static CLOSED: Mutex<Stats> = Mutex::new(Stats::NONE);

fn parting<R>(f: impl FnOnce(&mut Parting) -> R) -> R {
    f(&mut PARTING.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Every endpoint goes on draining; whether one has something to wait for.
fn drain_all(transport: &mut Transport<Cookie>, ids: &[EpId]) -> bool {
    ids.iter().filter(|id| transport.drain(**id)).count() != 0
}

impl Module {
    /// What all ports have counted.
    pub fn counters() -> Stats {
        let mut sum = *CLOSED.lock().unwrap_or_else(PoisonError::into_inner);
        Module::all().for_each(|this| sum.add(&this.transport(Stats::NONE, |t| this.stats(t))));
        sum
    }

    /// What this port has counted, its registrations included.
    fn stats(&self, transport: &Transport<Cookie>) -> Stats {
        let Counters { hits, misses, evicted, invalidated } = self.registrations.counters();
        Stats {
            reg_hits: hits,
            reg_misses: misses,
            reg_evicted: evicted,
            reg_invalidated: invalidated,
            // The device counts over the whole process.
            rnr: if self.place.soft && self.place.index == 0 { softib::stats().rnr } else { 0 },
            ..transport.counted()
        }
    }

    /// `btl_del_procs`: what is queued goes out first. What was begun and can't end any more is
    /// told so before this returns: Open MPI makes no progress afterwards.
    pub fn remove(&'static self, ids: &[EpId]) {
        let ends = self.abi.is_ending();
        self.drain(ids, if ends { Module::wind_up_all } else { Module::progress_all });
        self.take_down(ids);
        if ends {
            self.wind_up()
        } else {
            self.progress()
        };
    }

    fn take_down(&self, ids: &[EpId]) {
        let removal = self.with(|state| {
            state.procs.retain(|id, _| !ids.contains(id));
            state.transport.as_mut().map(|t| t.begin_removal(ids))
        });
        let Some(removal) = removal else { return };
        while !self.transport(true, |t| t.is_flushed(&removal)) {
            std::thread::yield_now();
        }
        self.transport((), |t| t.end_removal(&removal));
    }

    /// Lets out what is queued, up to a deadline, and looks around meanwhile.
    fn drain(&self, ids: &[EpId], look: impl Fn() -> c_int) {
        let given = || self.transport(0, |t| t.stats.handed_over());
        let holds_up = || self.transport(false, |t| drain_all(t, ids));
        let (drain, port) = (self.transport(Duration::ZERO, |t| t.drain_time()), self.place.index);
        let deadline = parting(|p| p.deadline(Instant::now(), drain, (port, given())));
        let mut in_vain = false;
        while holds_up() && !in_vain {
            let found = look();
            in_vain = Instant::now() > deadline && holds_up();
            if found == 0 {
                std::thread::yield_now();
            }
        }
        if in_vain && self.transport(false, |t| ids.iter().any(|id| t.busy(*id))) {
            log::warn!("a peer takes nothing: what is queued to it is given up");
        } else if in_vain {
            log::warn!(
                "a peer has taken what was sent to it, but has not said so in {drain:?}: nothing is given up"
            );
        }
        parting(|p| p.over(Instant::now(), deadline, (port, given()), in_vain));
    }

    /// Says, port by port, what went over it.
    fn tell(&self, transport: &Transport<Cookie>) {
        let (stats, Place { index, name, .. }) = (self.stats(transport), &self.place);
        let sent = stats.sent_inline + stats.sent_eager + stats.sent_buffered;
        let (received, rdma) = (stats.received, stats.rdma);
        log::info!("{name} carried {sent} messages out, {received} in, and {rdma} puts and gets");
        log::info!(
            "{name} found {} of {} registrations in its cache ({} were evicted, {} invalidated)",
            stats.reg_hits,
            stats.reg_hits + stats.reg_misses,
            stats.reg_evicted,
            stats.reg_invalidated
        );
        log::debug!("module {index}: {stats:?}");
        if self.at_end.tells {
            crate::mca::log::tell(&format!("{name} has counted: {stats}"));
            let bytes = traffic::text(&transport.traffic(), self.abi.my_name().word() >> 32);
            crate::mca::log::tell(&format!("{name} has carried (rank bytes-out/bytes-in): {bytes}"));
        }
        CLOSED.lock().unwrap_or_else(PoisonError::into_inner).add(&stats);
        log::debug!("module {index}: connections {:?}", transport.connection_counters());
    }

    /// Winds up every port.
    fn wind_up_all() -> c_int {
        Module::all().map(Module::wind_up).sum()
    }

    /// Looks around for a module whose upper layer has taken its peers away, or is about to as MPI ends: messages that still
    /// arrive have no receiver, and what has registered for them may have been torn down.
    /// Operations are another matter: each has its callback, unless MPI ends.
    fn wind_up(&'static self) -> c_int {
        let ends = self.abi.is_ending();
        let mut count = 0;
        let mut next = self.with(State::look_in_turn);
        while let Some((what, ticket)) = next {
            count += 1;
            match what {
                Upcall::UnknownPeer { .. } => {}
                Upcall::Completed { cookie, .. } | Upcall::Fetched { cookie, .. } if ends => {
                    self.dispose(cookie)
                }
                what => self.hand_up(what),
            }
            next = self.with(|state| {
                ticket.into_iter().for_each(|ticket| state.turns.end(ticket));
                state.take_in_turn()
            });
        }
        count
    }

    /// The end of an operation whose callback would find nothing that it could rely on: ob1's requests keep their communicator by
    /// a reference that MPI_Finalize does not respect (docs/bugs/request-after-communicator.md).
    fn dispose(&'static self, cookie: Cookie) {
        match self.with(|state| state.owed.take(cookie)) {
            None => {}
            Some(Owed::Sent { endpoint, desc, ticket }) => self.call_back(endpoint, ticket, || {
                // SAFETY: the descriptor lives until its callback, and longer if it is the upper layer's.
                if unsafe { (*desc).des_flags } & MCA_BTL_DES_FLAGS_BTL_OWNERSHIP != 0 {
                    // SAFETY: the flag hands ownership to us, so Open MPI does not free it.
                    self.keep(unsafe { Frag::take_back(desc) });
                }
            }),
            Some(Owed::Operation(operation)) => self.call_back(operation.endpoint, operation.ticket, || {
                if !operation.own.is_null() {
                    // SAFETY: a handle that `register` returned for this operation, which is over.
                    unsafe { self.deregister(operation.own) };
                }
            }),
        }
    }

    /// `btl_finalize`: everything out, everything down, the helper thread joined.
    pub fn finalize(&'static self) {
        self.with(|state| state.closing = true);
        let ids = self.transport(Vec::new(), |t| t.ids());
        self.drain(&ids, || self.wind_up());
        self.take_down(&ids);
        self.wind_up();
        let transport = self.with(|state| {
            state.free.clear();
            state.procs.clear();
            state.transport.take()
        });
        if let Some(transport) = transport {
            self.tell(&transport);
            self.registrations.close();
            if self.place.soft {
                log::debug!("software device: {:?}", softib::stats());
            }
            if let Some(file) = &self.at_end.timelines {
                timelines::write(file, &transport.timelines());
            }
            transport.close();
        }
    }
}
