//! Glances: looks behind one that has found nothing, for most of what that has looked at cannot have changed.
//!
//! ```text
//!   look ── nothing, and nothing is due ──> glance ── nothing ──> glance ── nothing ──> ... until something is due again ──> look
//!                                              ├─ the next message of the only hot ring has landed: it goes up
//!                                              └─ anything else: look
//! ```
//! A glance asks for connection events, for what our own calls have brought about, for the word where the next message of the only hot ring
//! lands, and for completions. Where there are several such rings, there are only looks.
#![forbid(unsafe_code)]

use super::Rx;
use super::recv::RARE_LOOKS;
use crate::transport::Transport;

/// What a glance has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glance {
    /// Nothing.
    Nothing,
    /// The next message of the only hot ring: [`Transport::look_landed`] is to be asked.
    Landed,
    /// [`Transport::look`] is to be asked.
    Unclear,
}

impl Rx {
    /// A look begins. Glances that have not been made are not counted.
    #[inline(always)] // with every look
    pub(super) fn count_look(&mut self) {
        self.looks = self.looks.wrapping_sub(self.glances).wrapping_add(1);
        self.glances = 0;
    }

    /// Glances may follow, up to the next look whose number is a multiple of `span`.
    #[inline]
    fn allow_glances(&mut self, span: u32) {
        self.glances = span - 1 - self.looks % span;
        self.looks = self.looks.wrapping_add(self.glances);
    }
}

impl<C> Transport<C> {
    /// Looks where something may have changed since [`Transport::look`] has found nothing.
    #[inline(always)] // all that most calls of Open MPI's progress function do
    pub fn glance(&mut self) -> Glance {
        let Some(left) = self.rx.glances.checked_sub(1) else { return Glance::Unclear };
        if self.port.service.pending() || self.has_begun() {
            return Glance::Unclear;
        }
        if self.rings.has_stirred(left) {
            return Glance::Landed;
        }
        self.rx.glances = left;
        match self.rx.cq.poll_times(&mut self.rx.batch, 1) {
            Ok(0) => Glance::Nothing,
            _ => Glance::Unclear,
        }
    }

    /// Calls of ours have brought something about that a look is to see to.
    #[inline(always)] // with every look
    fn has_begun(&self) -> bool {
        self.chores || self.tx.awaited != 0 || !self.up.is_empty()
    }

    /// The look behind [`Glance::Landed`]. True if there is something for [`Transport::take_upcall`].
    #[inline(always)] // with every message that comes alone
    pub fn look_landed(&mut self) -> bool {
        self.rx.count_look();
        let Some(number) = self.rings.stirred() else { return self.look_with_rings(1) };
        self.rings.allow();
        self.found_in_rings(number)
    }

    /// A look has found nothing: glances may follow, if there is nothing to do. True if there is something for the upper layer.
    #[inline(always)] // with every look
    pub(super) fn may_glance(&mut self) -> bool {
        if !self.has_begun() && self.rings.watch() {
            self.rx.allow_glances(self.rings.span().min(RARE_LOOKS));
        }
        !self.up.is_empty()
    }
}
