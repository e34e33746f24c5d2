//! Upward: looking around, and handing what is found to Open MPI.
//!
//! ```text
//!   progress_all ──> glance, and then only if there may be something: progress, of each port
//!   progress ──> look ──> hand_up_found ──> hand_up_more ──> hand_up_others      one thread: messages, one by one, then the rest
//!            │                    ├──> hand_up_landed ─────────────┤             the same: messages that have landed in a ring, then the rest
//!            │                    └──> hand_up_completed ──────────┘             the same: puts and gets that are over, then the rest
//!            ├─> progress_beside_ours ──────────────────────> hand_up_others      a thread of ours serves the transport, too
//!            └─> progress_in_turn                                                 Open MPI uses threads: each lane's messages in turn
//! ```

use super::atomics::hand_over;
use super::inside;
use super::turns::Ticket;
use super::{Cookie, FIRST, Module, Operation, Owed, State, from_raw, to_raw};
use crate::mca::guard::guard;
use crate::transport::{Delivery, EpId, Glance, Landed, Next, Transport, Upcall};
use opal_sys::*;
use std::ffi::c_int;
use std::time::Instant;

/// Looks of one call that find nothing before it returns: the way through Open MPI's progress
/// engine and back costs more than one of them, and a message that waits for it arrives that much
/// later.
const LOOKS: u32 = 2;

/// What ends a run of messages.
enum Run {
    /// There is none behind. Whether there is something else to hand up.
    Over(bool),
    /// This message has still to be given back, and more is to be asked.
    Unclear(Landed),
}

/// What a look among other threads has come to.
enum Turn {
    /// Nothing.
    Nothing,
    /// Nothing, and the processor is to be given away.
    GivesWay,
    /// The first message, and there may be more of whatever kind.
    More(Option<(Delivery, Ticket)>),
}

impl State {
    /// The next thing for the upper layer, when others may be there handing up, too: a message only
    /// on a turn of its lane.
    pub(super) fn take_in_turn(&mut self) -> Option<(Upcall<Cookie>, Option<Ticket>)> {
        loop {
            if let Some((delivery, ticket)) = self.turns.next() {
                return Some((Upcall::Deliver(delivery), Some(ticket)));
            }
            match self.transport.as_mut()?.take_upcall()? {
                Upcall::Deliver(delivery) => {
                    if let Some((delivery, ticket)) = self.turns.begin(delivery.lane(), delivery) {
                        return Some((Upcall::Deliver(delivery), Some(ticket)));
                    }
                }
                other => return Some((other, None)),
            }
        }
    }

    /// Looks where something may have changed.
    ///
    /// # Safety
    /// A look of the transport has allowed it ([`State::glances`]), and nothing has entered since.
    #[inline(always)] // all that most calls of Open MPI's progress function do
    unsafe fn glance(&mut self, left: u32) -> Glance {
        // SAFETY: there was one when glances were allowed, and who takes it away enters.
        unsafe { self.transport.as_mut().unwrap_unchecked() }.glance(left)
    }

    /// So many glances may follow the last look, which has found nothing.
    #[inline]
    fn glances(&self) -> u32 {
        self.transport.as_ref().map_or(0, Transport::glances)
    }

    /// Looks around in a program of one thread: by one glance, if nothing is due. A look is due when all glances that the last one has allowed have been
    /// made. True if there is something for the upper layer.
    #[inline(always)] // with every message
    fn look_anew(&mut self, all_made: bool) -> bool {
        let Some(transport) = &mut self.transport else { return false };
        if all_made {
            transport.count_glances();
        }
        let glance = if all_made { Glance::Unclear } else { transport.glance_anew() };
        match glance {
            Glance::Nothing => false,
            Glance::Landed => transport.look_landed(),
            Glance::Unclear => transport.look(LOOKS),
        }
    }

    /// The look behind a glance that has found a message.
    #[inline(always)] // with every message that comes alone
    fn look_landed(&mut self) -> bool {
        self.transport.as_mut().is_some_and(Transport::look_landed)
    }

    /// Looks around. True if there is something for the upper layer.
    #[inline]
    fn look(&mut self) -> bool {
        match &mut self.transport {
            Some(transport) => transport.look(LOOKS),
            None => false,
        }
    }

    /// The next message for the upper layer, if nothing that is no message has come up before it.
    #[inline(always)] // with every message
    fn message(&mut self) -> Option<Delivery> {
        self.transport.as_mut()?.take_message()
    }

    /// The upper layer is done with a message; the next one.
    #[inline(always)] // with every message
    fn next_message(&mut self, done: Delivery) -> Option<Delivery> {
        let transport = self.transport.as_mut()?;
        transport.delivered(done);
        transport.take_message()
    }

    /// The last look has found a message in a ring.
    #[inline(always)] // with every message
    fn has_found_landed(&mut self) -> bool {
        self.transport.as_ref().is_some_and(Transport::has_found_landed)
    }

    /// That message, if nothing that is no message has come up before it.
    #[inline(always)] // with every message
    fn found_landed(&mut self) -> Option<Landed> {
        self.transport.as_mut()?.take_found()
    }

    /// The upper layer is done with a message that has landed in a ring; the next one of that, or whether there is something else to hand up.
    #[inline(always)] // with every message
    fn next_landed(&mut self, done: Landed) -> Result<Landed, bool> {
        match &mut self.transport {
            Some(transport) => transport.next_landed(done),
            None => Err(false),
        }
    }

    /// The same of short ones, if nothing has entered since.
    #[inline(always)] // with every message
    fn next_short(&mut self, done: Landed) -> Result<Landed, Run> {
        let Some(transport) = &mut self.transport else { return Err(Run::Unclear(done)) };
        match transport.next_short(done) {
            Next::Short(next) => Ok(next),
            Next::Nothing => Err(Run::Over(transport.has_more_behind())),
            Next::Unknown(done) => Err(Run::Unclear(done)),
        }
    }

    /// The upper layer is done with a message. It comes back if there is more to hand up.
    #[inline(always)] // with every message that comes alone
    fn last_message(&mut self, done: Delivery) -> Option<Delivery> {
        let transport = self.transport.as_mut()?;
        transport.look_for_completions();
        if transport.has_upcalls() {
            return Some(done);
        }
        transport.delivered_last(done);
        None
    }

    /// The next put, get or atomic that is over, if nothing else has come up before it; and whether it has succeeded. What it has fetched is
    /// where the upper layer wants it.
    #[inline(always)] // with every put and get
    fn over(&mut self) -> Option<(Operation, bool)> {
        let transport = self.transport.as_mut()?;
        let (cookie, ok, fetched) = transport.first_completed()?;
        let operation = self.owed.take_operation(*cookie)?;
        transport.take_first_completed();
        if let Some(value) = fetched {
            // SAFETY: only an atomic fetches, and the upper layer keeps eight bytes there until its callback, which comes next.
            unsafe { hand_over(&operation, value) };
        }
        Some((operation, ok))
    }

    /// The callback of an operation has returned.
    #[inline]
    fn has_called_back(&mut self, operation: &Operation) {
        if let Some(transport) = &mut self.transport {
            transport.called_back(from_raw(operation.endpoint), operation.ticket);
        }
    }

    /// The upper layer is done with a message, or none has registered for its tag.
    fn delivered(&mut self, delivery: Delivery) {
        if let Some(transport) = &mut self.transport {
            transport.delivered(delivery);
        }
    }

    /// The next message, if it can go up now and nothing has to go up before it, on a turn of its lane.
    #[inline(always)] // with every message
    fn message_in_turn(&mut self) -> Option<(Delivery, Ticket)> {
        if self.turns.are_ready() {
            return None;
        }
        let delivery = self.message()?;
        self.turns.begin(delivery.lane(), delivery)
    }

    /// The upper layer is done with a message and its turn; the next one, and whether there may be more of whatever kind.
    #[inline(always)] // with every message
    fn next_in_turn(&mut self, (done, ticket): (Delivery, Ticket)) -> (Option<(Delivery, Ticket)>, bool) {
        self.turns.end(ticket);
        self.delivered(done);
        let next = self.message_in_turn();
        (next, self.has_more())
    }

    /// There may be something for the upper layer.
    #[inline]
    fn has_more(&self) -> bool {
        self.turns.are_ready() || self.transport.as_ref().is_some_and(Transport::has_upcalls)
    }

    /// As `look`, among other threads.
    #[inline(always)] // all that most calls do
    fn look_for_turn(&mut self) -> Turn {
        if !self.look() && self.turns.hold_up_nothing() {
            return if self.gives_way() { Turn::GivesWay } else { Turn::Nothing };
        }
        Turn::More(self.message_in_turn())
    }

    /// A look has found nothing: the thread that brings a connection up may wait for this processor.
    fn gives_way(&mut self) -> bool {
        self.transport.as_mut().is_some_and(Transport::gives_way)
    }

    /// As `look`, among other threads.
    pub(super) fn look_in_turn(&mut self) -> Option<(Upcall<Cookie>, Option<Ticket>)> {
        self.look();
        self.rest_in_turn()
    }

    /// What a look has found, or what an overdue turn has held up.
    fn rest_in_turn(&mut self) -> Option<(Upcall<Cookie>, Option<Ticket>)> {
        let next = self.take_in_turn();
        if next.is_none() && self.turns.end_overdue(Instant::now) {
            log::debug!("a receive callback neither returns nor goes on: messages behind its own go up");
            return self.take_in_turn();
        }
        next
    }
}

impl Module {
    /// Looks around on every port.
    #[inline(always)] // into what Open MPI calls
    pub fn progress_all() -> c_int {
        let mut module = Module::linked(&FIRST);
        while let Some(this) = module {
            match this.glance() {
                Glance::Nothing => module = Module::linked(&this.next),
                Glance::Landed => return this.progress_landed(),
                Glance::Unclear => return this.progress_unclear(),
            }
        }
        0
    }

    /// The same from this port on.
    #[inline(always)] // once in each way
    fn progress_from(&'static self, first: impl FnOnce(&'static Module) -> c_int) -> c_int {
        let mut count = first(self);
        let mut module = Module::linked(&self.next);
        while let Some(this) = module {
            count += this.progress();
            module = Module::linked(&this.next);
        }
        count
    }

    /// The same where a glance has found a message.
    #[inline(never)] // the way of most calls stays short
    extern "C" fn progress_landed(&'static self) -> c_int {
        guard("component progress", 0, || {
            // SAFETY: one thread and none of ours, as `glance` has just read; neither of the two calls out.
            let found = unsafe { self.state.enter(|state| (state.look_landed(), state.has_found_landed())) };
            self.progress_from(|this| this.hand_up_what(found))
        })
    }

    /// The same where something has been called since the last look, or more is to be looked at.
    #[inline(never)] // the way of most calls stays short
    extern "C" fn progress_unclear(&'static self) -> c_int {
        guard("component progress", 0, || self.progress_from(Module::progress))
    }

    /// Looks where something may have changed, in a job without threads.
    #[inline(always)] // all that most calls do
    fn glance(&'static self) -> Glance {
        if self.uses_threads() {
            return Glance::Unclear;
        }
        // SAFETY: one thread, as has just been read; `glance` neither calls out nor panics, and `progress` has allowed it.
        unsafe { self.state.glance(|state, left| state.glance(left)) }.unwrap_or(Glance::Unclear)
    }

    /// Looks around once and hands up what is there; how many things that was.
    #[inline]
    pub fn progress(&'static self) -> c_int {
        if self.uses_threads() {
            return self.progress_in_turn();
        }
        if self.state.is_shared() {
            return self.progress_beside_ours();
        }
        let all_made = self.state.glances_are_over();
        let look = |state: &mut State| (state.look_anew(all_made), state.has_found_landed(), state.glances());
        // SAFETY: one thread and none of ours, as has just been read; none of the three calls out.
        let (found, landed, glances) = unsafe { self.state.enter(look) };
        match (found, glances) {
            (true, _) => {}
            (false, 0) => self.give_way(),
            (false, glances) => self.state.allow_glances(glances),
        }
        self.hand_up_what((found, landed))
    }

    /// A look has found nothing, and glances may not follow.
    #[cold] // a visit of its own: asked with each look, it would cost messages 17 instructions
    fn give_way(&'static self) {
        if self.with(State::gives_way) {
            std::thread::yield_now();
        }
    }

    /// Hands up what a look has found, if anything: a message that has landed in a ring, or something else.
    #[inline(always)] // with every message
    fn hand_up_what(&'static self, found: (bool, bool)) -> c_int {
        match found {
            (false, _) => 0,
            (true, true) => self.hand_up_landed(),
            (true, false) => self.hand_up_found(),
        }
    }

    /// Hands up what the last look has found, in a job without threads; how many things that was. Most often it is one message.
    #[inline(never)]
    fn hand_up_found(&'static self) -> c_int {
        // SAFETY: one thread: the caller has just looked whether there are more; `message` does not call out.
        let Some(mut delivery) = (unsafe { self.state.enter(State::message) }) else {
            return self.hand_up_completed();
        };
        inside::alone(|| self.call_receiver(&mut delivery));
        if self.uses_threads() || self.state.is_shared() {
            return 1 + self.others_have_come(delivery);
        }
        // SAFETY: one thread and none of ours, as has just been read; `last_message` does not call out.
        match unsafe { self.state.enter(|state| state.last_message(delivery)) } {
            None => 1,
            Some(delivery) => 1 + self.hand_up_more(delivery),
        }
    }

    /// The same, where the first is no message: most often it is the end of a put or get.
    #[inline(never)]
    fn hand_up_completed(&'static self) -> c_int {
        let mut count = 0;
        // SAFETY: one thread: the caller's caller has just looked whether there are more; `over` does not call out.
        let mut next = unsafe { self.state.enter(State::over) };
        while let Some((operation, ok)) = next {
            count += 1;
            self.within(operation.endpoint, operation.ticket, || self.rdma_done(operation, ok));
            if self.uses_threads() || self.state.is_shared() {
                self.with(|state| state.has_called_back(&operation));
                break;
            }
            let next_over = |state: &mut State| {
                state.has_called_back(&operation);
                state.over()
            };
            // SAFETY: one thread and none of ours, as has just been read; neither of the two calls out.
            next = unsafe { self.state.enter(next_over) };
        }
        if self.with(|state| state.has_more()) { count + self.hand_up_others() } else { count }
    }

    /// The same of messages that have landed in a ring.
    #[inline(never)]
    fn hand_up_landed(&'static self) -> c_int {
        let mut count = 0;
        // SAFETY: one thread: the caller's caller has just looked whether there are more; `found_landed` does not call out.
        let Some(mut landed) = (unsafe { self.state.enter(State::found_landed) }) else {
            return self.hand_up_others();
        };
        loop {
            self.state.mark();
            let (taken, last) = inside::alone(|| self.hand_up_run(landed));
            count += taken;
            let done = match last {
                Run::Over(false) => return count,
                Run::Over(true) => return count + self.hand_up_others(),
                Run::Unclear(done) => done,
            };
            if self.uses_threads() || self.state.is_shared() {
                return count + self.others_have_come(done.into());
            }
            // SAFETY: one thread and none of ours, as has just been read; `next_landed` does not call out.
            match unsafe { self.state.enter(|state| state.next_landed(done)) } {
                Ok(next) => landed = next,
                Err(true) => return count + self.hand_up_others(),
                Err(false) => return count,
            }
        }
    }

    /// Hands up a message that has landed, and short ones behind it as long as nothing enters meanwhile; how many. The state is marked.
    #[inline(always)] // with every message
    fn hand_up_run(&'static self, mut landed: Landed) -> (c_int, Run) {
        let (mut count, mut tray) = (0, Tray::new());
        loop {
            count += 1;
            let (from, tag) = (landed.endpoint(), landed.tag);
            self.receive_in(&mut tray, (from, tag), landed.payload());
            if self.uses_threads() || !self.state.is_untouched() {
                return (count, Run::Unclear(landed));
            }
            // SAFETY: untouched, and one thread, as has just been read; `next_short` does not call out.
            match unsafe { self.state.enter_again(|state| state.next_short(landed)) } {
                Ok(next) => landed = next,
                Err(end) => return (count, end),
            }
        }
    }

    /// The same behind a message, with which the upper layer is done.
    #[inline(never)]
    fn hand_up_more(&'static self, done: Delivery) -> c_int {
        match inside::alone(|| self.hand_up_messages(done)) {
            (count, None) => count + self.hand_up_others(),
            (count, Some(delivery)) => count + self.others_have_come(delivery),
        }
    }

    /// Messages behind this one, as long as there are any; how many. The last one comes back where others may be there.
    #[inline(always)] // into its only caller
    fn hand_up_messages(&'static self, done: Delivery) -> (c_int, Option<Delivery>) {
        let (mut count, mut tray) = (0, Tray::new());
        // SAFETY: one thread and none of ours, as the caller has just read; `next_message` does not call out.
        let mut next = unsafe { self.state.enter(|state| state.next_message(done)) };
        while let Some(mut delivery) = next {
            count += 1;
            let (from, tag) = (delivery.endpoint(), delivery.tag);
            self.receive_in(&mut tray, (from, tag), delivery.payload());
            if self.uses_threads() || self.state.is_shared() {
                return (count, Some(delivery));
            }
            // SAFETY: one thread and none of ours, as has just been read; `next_message` does not call out.
            next = unsafe { self.state.enter(|state| state.next_message(delivery)) };
        }
        (count, None)
    }

    /// Open MPI has begun to use threads within a receive callback, or a thread of ours serves the transport: what was
    /// found goes up in another way.
    #[cold]
    fn others_have_come(&'static self, delivery: Delivery) -> c_int {
        self.with(|state| state.delivered(delivery));
        if self.uses_threads() { self.progress_in_turn() } else { self.progress_beside_ours() }
    }

    /// As `progress` of Open MPI's only thread, beside one of ours, which hands nothing up.
    #[cold]
    fn progress_beside_ours(&'static self) -> c_int {
        let look = |state: &mut State| {
            let found = state.look();
            (found, !found && state.gives_way(), state.broken)
        };
        let (found, gives_way, broken) = self.with(look);
        if broken {
            Module::tell_broken();
        }
        if gives_way {
            std::thread::yield_now();
        }
        if found { self.hand_up_others() } else { 0 }
    }

    /// The same of what is not only messages, or is found beside a thread of ours.
    #[cold]
    fn hand_up_others(&'static self) -> c_int {
        let mut count = 0;
        self.transport((), Transport::look_for_completions);
        while let Some(what) = self.transport(None, Transport::take_upcall) {
            count += 1;
            match what {
                Upcall::Deliver(mut delivery) => {
                    inside::alone(|| self.call_receiver(&mut delivery));
                    self.with(|state| state.delivered(delivery));
                }
                other => self.hand_up(other),
            }
        }
        count
    }

    /// As `progress`, among other threads: see `turns`. A thread that finds another one here leaves
    /// the looking around to it.
    #[inline(never)]
    fn progress_in_turn(&'static self) -> c_int {
        let mut count = 0;
        let (mut next, mut more) = match self.if_free(State::look_for_turn) {
            Some(Turn::More(next)) => (next, true),
            Some(Turn::GivesWay) => {
                std::thread::yield_now();
                return 0;
            }
            Some(Turn::Nothing) | None => return 0,
        };
        while let Some((mut delivery, ticket)) = next {
            count += 1;
            inside::in_turn(self, ticket, || self.call_receiver(&mut delivery));
            (next, more) = self.behind_turn(|state| state.next_in_turn((delivery, ticket)));
        }
        if more { count + self.hand_up_in_turn() } else { count }
    }

    /// The same of what is not only messages whose lanes are free.
    #[cold]
    fn hand_up_in_turn(&'static self) -> c_int {
        let mut count = 0;
        let mut next = self.with(State::rest_in_turn);
        while let Some(what) = next {
            count += 1;
            next = match what {
                (Upcall::Deliver(mut delivery), Some(ticket)) => {
                    inside::in_turn(self, ticket, || self.call_receiver(&mut delivery));
                    self.with(|state| {
                        state.turns.end(ticket);
                        state.delivered(delivery);
                        state.take_in_turn()
                    })
                }
                (other, _) => {
                    self.hand_up(other);
                    self.with(State::take_in_turn)
                }
            };
        }
        count
    }

    pub(super) fn hand_up(&'static self, what: Upcall<Cookie>) {
        match what {
            Upcall::Deliver(delivery) => self.with(|state| state.delivered(delivery)),
            Upcall::Completed { cookie, ok } => self.call_back_owed(cookie, ok, None),
            Upcall::Fetched { cookie, value } => self.call_back_owed(cookie, true, Some(value)),
            Upcall::UnknownPeer { peer } => self.unknown_peer(peer),
            Upcall::Failed { endpoint, peer, reason, told } => {
                if !told {
                    self.tell_lost(endpoint, peer, &reason);
                }
                self.endpoint_failed(endpoint);
            }
        }
    }

    /// The time of a callback has come; `fetched` is what an atomic has found.
    fn call_back_owed(&'static self, cookie: Cookie, ok: bool, fetched: Option<u64>) {
        match self.with(|state| state.owed.take(cookie)) {
            None => {}
            Some(Owed::Operation(operation)) => {
                if let Some(value) = fetched {
                    // SAFETY: only an atomic fetches, and the upper layer keeps eight bytes there until its callback, which comes next.
                    unsafe { hand_over(&operation, value) };
                }
                self.call_back(operation.endpoint, operation.ticket, || self.rdma_done(operation, ok));
            }
            Some(Owed::Sent { endpoint, desc, ticket }) => {
                self.call_back(endpoint, ticket, || self.sent(endpoint, desc, ok));
            }
        }
    }

    /// Calls the receiver that is registered for the message's tag.
    #[inline(always)] // with every message
    fn call_receiver(&'static self, delivery: &mut Delivery) {
        self.receive(delivery.endpoint(), delivery.tag, delivery.payload());
    }

    /// The same of its parts.
    #[inline(always)] // with every message that comes alone
    fn receive(&'static self, endpoint: EpId, tag: u8, payload: &mut [u8]) {
        self.receive_in(&mut Tray::new(), (endpoint, tag), payload);
    }

    /// The same in a tray.
    #[inline(always)] // with every message
    fn receive_in(&'static self, tray: &mut Tray, (endpoint, tag): (EpId, u8), payload: &mut [u8]) {
        // SAFETY: the module is ours and lives for ever; the payload lies in a buffer that the
        // message owns until the call has returned; no lock and no borrow is held.
        let taken = unsafe { self.abi.deliver(self.as_raw(), to_raw(endpoint), tag, (payload, tray)) };
        if let Err(reason) = taken {
            log::debug!("message dropped: {reason}");
        }
    }
}
