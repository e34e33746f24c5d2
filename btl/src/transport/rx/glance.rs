//! Glances: looks behind one that has found nothing, for most of what that has looked at cannot have changed.
//!
//! ```text
//!   look ── nothing, and nothing is due ──> glance ── nothing ──> glance ── nothing ──> ... until something is due again ──> look
//!   anything is called, and nothing is due ───^                   ├─ the next message of a hot ring has landed: it goes up
//!                                                                 └─ anything else: look
//! ```
//! A glance asks for the word where the next message of each hot ring lands, for connection events, and for completions. Any call of the
//! transport ends the glances, for it may have brought something about. Where messages come through rings, that is asked in place of a look,
//! which takes three times as long, while the peer works: a message would be found that much later, and a peer on the same core would be held up.
#![forbid(unsafe_code)]

use super::Rx;
use super::recv::RARE_LOOKS;
use crate::transport::Transport;

/// The first glance behind a call looks so often for a message in rings before it asks for anything else: the peer's answer to what has just been sent
/// comes there, and what else is asked is cold where the program has computed before.
const FIRST_TIMES: u32 = 8;

/// What a glance has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glance {
    /// Nothing.
    Nothing,
    /// The next message of a hot ring: [`Transport::look_landed`] is to be asked.
    Landed,
    /// [`Transport::look`] is to be asked.
    Unclear,
}

impl Rx {
    /// A look begins.
    #[inline(always)] // with every look
    pub(super) fn count_look(&mut self) {
        self.looks = self.looks.wrapping_add(1);
        self.glances = 0;
    }

    /// Glances may follow, up to the next look whose number has none of these low bits.
    #[inline(always)] // with every message
    fn allow_glances(&mut self, rarely: u32) {
        self.glances = rarely & !self.looks;
    }
}

impl<C> Transport<C> {
    /// How many glances may follow the last look, if nothing has been called since.
    #[inline]
    pub fn glances(&self) -> u32 {
        self.rx.glances
    }

    /// So many have been made: they count as looks.
    pub fn count_glances(&mut self) {
        self.rx.looks = self.rx.looks.wrapping_add(self.rx.glances);
    }

    /// Looks where something may have changed since [`Transport::look`] has found nothing. So many glances may follow this one.
    #[inline(always)] // all that most calls of Open MPI's progress function do
    pub fn glance(&mut self, left: u32) -> Glance {
        debug_assert!(!self.has_begun(), "something has been called since the last look");
        if self.rings.has_stirred(left) {
            return Glance::Landed;
        }
        if self.port.service.pending() {
            return Glance::Unclear;
        }
        match self.rx.cq.poll_times(&mut self.rx.batch, 1) {
            Ok(0) => Glance::Nothing,
            _ => Glance::Unclear,
        }
    }

    /// Calls of ours have brought something about that a look is to see to: no glance may follow.
    #[inline(always)] // with every look
    pub fn has_begun(&self) -> bool {
        self.rx.chores || self.tx.awaited != 0 || !self.up.is_empty()
    }

    /// As [`Self::glance`], where something has been called since the last look, and in place of the next one: if messages come through rings, and there
    /// is nothing to do or to hand up. If it finds nothing, it counts as a look, and glances may follow.
    #[inline(always)] // with every message
    pub fn glance_anew(&mut self) -> Glance {
        let (next, rarely) = (self.rx.looks.wrapping_add(1), self.rarely());
        let is_due =
            || next & rarely == 0 || self.rx.done.is_some() || self.has_begun() || self.has_upcalls();
        if !self.rings.come_first() || is_due() {
            return Glance::Unclear;
        }
        self.count_uncounted();
        if !self.rings.watch() {
            return Glance::Unclear;
        }
        // What has landed is not made ready: that waits for both of its lines.
        if self.rings.has_stirred(0) {
            return Glance::Landed;
        }
        self.rings.make_ready();
        if (0..FIRST_TIMES).any(|_| self.rings.has_stirred(0)) {
            return Glance::Landed;
        }
        let found = self.glance(0);
        if found == Glance::Nothing {
            self.rx.count_look();
            self.rx.allow_glances(rarely);
        }
        found
    }

    /// The look behind [`Glance::Landed`]. True if there is something for [`Transport::take_upcall`].
    #[inline(always)] // with every message that comes alone
    pub fn look_landed(&mut self) -> bool {
        self.rx.count_look();
        let Some(number) = self.rings.stirred() else { return self.look_with_rings(1) };
        self.rings.allow();
        self.found_in_rings(number)
    }

    /// A look whose number has none of these low bits has more to do than others.
    #[inline(always)] // with every message
    fn rarely(&self) -> u32 {
        self.rings.span().min(RARE_LOOKS) - 1
    }

    /// A look has found nothing: glances may follow, if there is nothing to do. True if there is something for the upper layer.
    #[inline(always)] // with every look
    pub(super) fn may_glance(&mut self) -> bool {
        if !self.has_begun() && self.rings.watch() {
            self.rx.allow_glances(self.rarely());
        }
        !self.up.is_empty()
    }
}
