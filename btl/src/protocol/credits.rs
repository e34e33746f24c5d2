//! Credits of one per-peer queue: a message is sent only when the peer has a receive posted for it.
//!
//! On a P queue RNR never happens. Each side posts `rd_init` receives for data and `rd_rsv` for
//! credit messages, all on the same receive queue, and starts with as many credits to send. A data
//! message takes one data credit, an explicit credit message takes one control credit (`ctl`) and
//! no data credit. The CTS is outside of both: it arrives in the connection's extra receive.
//!
//! The window is what a side has posted in all. It grows up to `rd_num`: a data message that takes
//! its sender's last credit says so (a flag of its header), and the receiver then posts as many
//! receives again and returns their credits. A peer that never has a window's worth of messages
//! under way costs no more memory than that.
//!
//! ```text
//!     sender                                receiver
//!     data ──take──> message in flight ──> unposted ──repost──> owed
//!      ^                                                          │
//!      └───────── grant in the header of any message back ────────┘
//!
//!     ctl ──take──> credit message in flight ──reposted at once──> ctl_owed ──(the same way)──> ctl
//! ```
//!
//! Both rings conserve: peer's `data` + in flight + held + `unposted` + `owed` (+ grants in flight)
//! is the window, and likewise `rd_rsv`. Rules of the receiver, whose `rd_win` and `rd_low` are of
//! the whole window and shrink with it:
//!
//! * Repost in batches, when `unposted` reaches `min(rd_num - rd_low, rd_win)`; the lane of the last
//!   message also before that, when nothing has arrived.
//! * Every message to the peer on this queue carries all that is owed, of both kinds.
//! * An explicit credit message is due when `unposted + owed >= rd_win` and a control credit is
//!   left; it reposts everything first and carries at least one data credit. It is never sent for
//!   `ctl_owed` alone, or two idle sides would answer each other for ever.
//!
//! Why that cannot deadlock: a sender with no data credit and nothing in flight has sent something
//! after the last credit message it consumed (each brings at least one data credit), so it has told
//! its `ctl_owed`: the peer has all `rd_rsv` control credits, and `unposted + owed` is all of the
//! window, which is no less than `rd_win`, there. (The message that opens an iWARP queue pair takes a control credit and
//! brings nothing. Its receiver cannot have sent anything before it: the same holds.) The tests
//! search the whole state space of small windows for a counterexample.
//!
//! Nothing here allocates; the state is eight bytes, the constants ([`Window`]) are shared by all
//! endpoints.

#![forbid(unsafe_code)]

/// Largest `rd_num`, and so the largest number of data credits in a header.
pub const MAX_RD_NUM: u16 = 32767;

/// Largest `rd_rsv`: the header's control credit field has eight bits, so a grant never has to be
/// split.
pub const MAX_RD_RSV: u8 = u8::MAX;

/// Smallest `rd_rsv`: one credit message under way while another is prepared.
pub const MIN_RD_RSV: u8 = 2;

/// What one side has posted on a P queue. The whole window and the first one come from the layout,
/// which the peers compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// It grows to this.
    most: u16,
    rd_num: u16,
    rd_win: u16,
    repost_at: u16,
    rd_rsv: u8,
}

impl Window {
    /// The whole window of a queue, or `None` when the numbers break a rule of the layout grammar:
    /// `1 <= rd_win <= rd_num <= 32767`, `rd_low < rd_num`, `rd_rsv >= 2`.
    pub fn new(rd_num: u16, rd_low: u16, rd_win: u16, rd_rsv: u8) -> Option<Self> {
        let sound = (1..=MAX_RD_NUM).contains(&rd_num)
            && rd_low < rd_num
            && (1..=rd_num).contains(&rd_win)
            && rd_rsv >= MIN_RD_RSV;
        let repost_at = (rd_num.saturating_sub(rd_low)).min(rd_win);
        sound.then_some(Self { most: rd_num, rd_num, rd_win, repost_at, rd_rsv })
    }

    /// Of this whole window the part with `rd_num` receives for data messages, at least one.
    pub fn part(&self, rd_num: u16) -> Self {
        let rd_num = rd_num.clamp(1, self.most);
        let share = |whole: u16| {
            let share = u32::from(whole) * u32::from(rd_num) / u32::from(self.most);
            u16::try_from(share).unwrap_or(whole).max(1)
        };
        Self { rd_num, rd_win: share(self.rd_win), repost_at: share(self.repost_at), ..*self }
    }

    /// How many more receives to post when the peer has used up its credits: as many again, at most
    /// up to the whole window.
    pub fn wanted(&self) -> u16 {
        self.rd_num.min(self.most - self.rd_num)
    }

    /// Receives posted for data messages.
    pub const fn rd_num(&self) -> u16 {
        self.rd_num
    }

    /// Credits that are owed or could be before an explicit credit message is due.
    pub const fn rd_win(&self) -> u16 {
        self.rd_win
    }

    /// Consumed receives that make a batch worth reposting.
    pub const fn repost_at(&self) -> u16 {
        self.repost_at
    }

    /// Receives posted for explicit credit messages.
    pub const fn rd_rsv(&self) -> u8 {
        self.rd_rsv
    }

    /// Receives that are posted in all: those for data and those for credit messages.
    pub const fn receives(&self) -> u32 {
        self.rd_num as u32 + self.rd_rsv as u32
    }
}

/// Credits on their way back to the peer, in the header of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Data credits.
    pub data: u16,
    /// Control credits.
    pub ctl: u8,
}

impl Grant {
    /// Returns nothing.
    pub const NONE: Self = Self { data: 0, ctl: 0 };

    /// Whether it returns nothing: the only valid grant on a queue without credits (S, X).
    #[inline]
    pub const fn is_none(self) -> bool {
        self.data == 0 && self.ctl == 0
    }
}

/// A peer that breaks the rules: a protocol error, the endpoint fails. The state is as before the
/// call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreditError {
    /// More data credits than the window has.
    #[error("peer returned {granted} data credits on top of {have}, the window is {window}")]
    DataGrant { granted: u16, have: u16, window: u16 },
    /// More control credits than there are.
    #[error("peer returned {granted} control credits on top of {have}, the window is {window}")]
    CtlGrant { granted: u8, have: u8, window: u8 },
    /// A data message that the peer had no credit for.
    #[error("peer sent a data message without a credit: all {window} are consumed")]
    DataOverrun { window: u16 },
    /// A credit message that the peer had no control credit for.
    #[error("peer sent a credit message without a control credit: all {window} are consumed")]
    CtlOverrun { window: u8 },
}

/// State of one (endpoint, P queue), both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credits {
    data: u16,
    unposted: u16,
    owed: u16,
    ctl: u8,
    ctl_owed: u8,
}

const _: () = assert!(size_of::<Credits>() == 8);

impl Credits {
    /// The state when both sides have posted the first window.
    pub const fn new(window: &Window) -> Self {
        Self { data: window.rd_num, unposted: 0, owed: 0, ctl: window.rd_rsv, ctl_owed: 0 }
    }

    /// Takes a data credit for one data message and what its header returns. `None`: no credit,
    /// queue the fragment.
    #[inline]
    pub fn acquire(&mut self) -> Option<Grant> {
        self.acquire_of_more_than(0)
    }

    /// The same, if there are more than `kept`.
    #[inline]
    pub fn acquire_of_more_than(&mut self, kept: u16) -> Option<Grant> {
        if self.data <= kept {
            return None;
        }
        self.data -= 1;
        Some(self.piggyback())
    }

    /// There is a data credit.
    pub const fn has_data(&self) -> bool {
        self.data != 0
    }

    /// Undoes [`acquire`](Self::acquire): the message was not posted.
    #[inline]
    pub fn release(&mut self, grant: Grant) {
        self.data = self.data.saturating_add(1);
        self.put_back(grant);
    }

    /// Applies what a received header returns. Call it as soon as the header is parsed, even if the
    /// message itself is held back.
    ///
    /// # Errors
    /// [`CreditError`] when the grant exceeds the window; nothing is applied then.
    #[inline]
    pub fn accept(&mut self, window: &Window, grant: Grant) -> Result<(), CreditError> {
        let data = u32::from(self.data) + u32::from(grant.data);
        let ctl = u32::from(self.ctl) + u32::from(grant.ctl);
        if (data > window.most.into()) | (ctl > window.rd_rsv.into()) {
            return Err(self.refused(window, grant));
        }
        self.data += grant.data;
        self.ctl += grant.ctl;
        Ok(())
    }

    /// A data message has been processed; its buffer is not posted yet.
    ///
    /// # Errors
    /// [`CreditError::DataOverrun`] when the peer cannot have had a credit for it.
    #[inline]
    pub fn consumed(&mut self, window: &Window) -> Result<(), CreditError> {
        if self.returnable() >= u32::from(window.rd_num) {
            return Err(CreditError::DataOverrun { window: window.rd_num });
        }
        self.unposted += 1;
        Ok(())
    }

    /// The same, if nothing is due after it, nor can be wrong: no batch to post again, no credit message. `false`, and nothing
    /// has happened, if something may be.
    #[inline]
    pub fn consumed_quietly(&mut self, window: &Window) -> bool {
        let quiet = self.consumes_quietly(window);
        self.unposted += u16::from(quiet);
        quiet
    }

    /// Nothing is due, nor can be wrong, after one more data message.
    #[inline]
    pub const fn consumes_quietly(&self, window: &Window) -> bool {
        // The window is no smaller than `rd_win`, so its end is not reached either.
        self.unposted + 1 < window.repost_at && self.returnable() + 1 < window.rd_win as u32
    }

    /// How many receives to post now: 0 until a batch is worth it. Tell
    /// [`reposted`](Self::reposted).
    #[inline]
    pub const fn repost_due(&self, window: &Window) -> u16 {
        if self.unposted >= window.repost_at { self.unposted } else { 0 }
    }

    /// The window has become larger by `count` receives, which are posted: the peer may be told.
    pub fn widened(&mut self, count: u16) {
        self.owed = self.owed.saturating_add(count);
    }

    /// `count` of the [`unposted`](Self::unposted) receives are posted again: the peer may be told.
    #[inline]
    pub fn reposted(&mut self, count: u16) {
        debug_assert!(count <= self.unposted, "reposted more than was consumed");
        let count = count.min(self.unposted);
        self.unposted -= count;
        self.owed = self.owed.saturating_add(count);
    }

    /// Receives consumed and not posted again.
    #[inline]
    pub const fn unposted(&self) -> u16 {
        self.unposted
    }

    /// A credit message has been consumed and its receive is posted again (at once, with the same
    /// buffer).
    ///
    /// # Errors
    /// [`CreditError::CtlOverrun`] when the peer cannot have had a control credit for it.
    pub fn credit_message_reposted(&mut self, window: &Window) -> Result<(), CreditError> {
        if self.ctl_owed >= window.rd_rsv {
            return Err(CreditError::CtlOverrun { window: window.rd_rsv });
        }
        self.ctl_owed += 1;
        Ok(())
    }

    /// An explicit credit message should go out: repost everything, then
    /// [`acquire_explicit`](Self::acquire_explicit).
    #[inline]
    pub const fn explicit_due(&self, window: &Window) -> bool {
        self.returnable() >= window.rd_win as u32 && self.ctl != 0
    }

    /// Takes a control credit for one explicit credit message and what its header returns. `None`
    /// when it is not due, or when nothing could be reposted and it would carry no data credit.
    pub fn acquire_explicit(&mut self, window: &Window) -> Option<Grant> {
        if !self.explicit_due(window) || self.owed == 0 {
            return None;
        }
        self.ctl -= 1;
        Some(self.piggyback())
    }

    /// Takes a control credit for the message that opens a queue pair (iWARP), the first of all.
    /// False: there is none.
    pub fn acquire_opener(&mut self) -> bool {
        let fewer = self.ctl.checked_sub(1);
        self.ctl = fewer.unwrap_or(0);
        fewer.is_some()
    }

    /// Undoes [`acquire_explicit`](Self::acquire_explicit): the message was not posted.
    pub fn release_explicit(&mut self, grant: Grant) {
        self.ctl = self.ctl.saturating_add(1);
        self.put_back(grant);
    }

    /// Data messages that may be sent now.
    #[inline]
    pub const fn data(&self) -> u16 {
        self.data
    }

    /// Explicit credit messages that may be sent now.
    pub const fn ctl(&self) -> u8 {
        self.ctl
    }

    /// What the next message will return.
    pub const fn owed(&self) -> Grant {
        Grant { data: self.owed, ctl: self.ctl_owed }
    }

    /// Data credits that an explicit message could return after a repost.
    #[inline]
    const fn returnable(&self) -> u32 {
        self.unposted as u32 + self.owed as u32
    }

    #[inline]
    fn piggyback(&mut self) -> Grant {
        let grant = self.owed();
        self.owed = 0;
        self.ctl_owed = 0;
        grant
    }

    /// Saturating, as all sums that a rogue peer could drive: what is too much is refused, never
    /// wrapped.
    #[inline]
    fn put_back(&mut self, grant: Grant) {
        self.owed = self.owed.saturating_add(grant.data);
        self.ctl_owed = self.ctl_owed.saturating_add(grant.ctl);
    }

    #[cold]
    fn refused(&self, window: &Window, grant: Grant) -> CreditError {
        if u32::from(self.data) + u32::from(grant.data) > window.most.into() {
            CreditError::DataGrant { granted: grant.data, have: self.data, window: window.most }
        } else {
            CreditError::CtlGrant { granted: grant.ctl, have: self.ctl, window: window.rd_rsv }
        }
    }
}
