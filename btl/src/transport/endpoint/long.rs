//! Long messages that the device copies, while the peer sends as many: those that would wait in the device's send queue are refused, and stay with
//! the upper layer.
//!
//! A send that cannot be carried out at once is copied to the device's send queue. As long as one waits there the device leaves no message of the
//! peer's where it has come, and copies each to a posted receive, too: both ways in windows that doubles the time. What is refused the upper layer
//! keeps where the program has it, and offers it again with each call of its progress engine (ob1: its list of pending sends, in turn). One way that
//! takes longer than the copy, so it is done only to a peer that sends much, too.
#![forbid(unsafe_code)]

/// Bytes to the peer, after which it is looked again whether it sends much: more than what a program sends at a time, before it receives.
const SPAN: u64 = 8 << 20;

/// The peer sends much, if it has sent at least this part of what it has been sent.
const PART: u64 = 8;

/// Others that were refused while one is awaited that does not come: it is not awaited any longer.
const PATIENCE: u32 = 1 << 20;

/// A message that has been refused so often goes all the same. In the device's send queue it finds out when the peer does not live any more.
const TRIES: u32 = 1 << 14;

/// Which long messages may go to a peer.
#[derive(Debug, Default)]
pub struct LongSends {
    /// The peer sends much.
    crosses: bool,
    /// Bytes sent and received when that was found out.
    then: (u64, u64),
    /// The message that was refused first is the next one to go, so that they keep their order: what its sender calls it; 0: none was.
    awaited: usize,
    /// So often it has been refused, and others since.
    tries: u32,
    others: u32,
}

impl LongSends {
    /// Whether this message may be posted, so many bytes having been sent and received. `who`: what its sender will call it when it comes again;
    /// `at_once`: whether the device would carry it out at once.
    pub fn may_go(&mut self, who: usize, traffic: (u64, u64), at_once: impl FnOnce() -> bool) -> bool {
        self.consider(traffic);
        if self.awaited != 0 && self.awaited != who && self.others < PATIENCE {
            self.others += 1;
            return false;
        }
        if !self.crosses || self.tries == TRIES || at_once() {
            (self.awaited, self.tries) = (0, 0);
            return true;
        }
        (self.awaited, self.tries, self.others) = (who, self.tries + 1, 0);
        false
    }

    fn consider(&mut self, now: (u64, u64)) {
        let (sent, received) = (now.0.wrapping_sub(self.then.0), now.1.wrapping_sub(self.then.1));
        if sent >= SPAN {
            (self.crosses, self.then) = (received >= sent / PART, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// To a peer that sends as much.
    fn crossing() -> LongSends {
        let mut long = LongSends::default();
        assert!(long.may_go(1, (SPAN, SPAN), || true));
        long
    }

    #[test]
    fn one_way_every_message_goes_and_nobody_asks_the_device() {
        let mut long = LongSends::default();
        for sent in 0..100 {
            assert!(long.may_go(1, (sent * SPAN, sent * SPAN / 16), || panic!("asked")));
        }
    }

    #[test]
    fn both_ways_what_would_wait_is_refused_and_others_wait_for_it() {
        let (mut long, now) = (crossing(), (SPAN, SPAN));
        assert!(!long.may_go(1, now, || false));
        assert!(!long.may_go(2, now, || panic!("asked for another one")));
        assert!(!long.may_go(1, now, || false));
        assert!(long.may_go(1, now, || true));
        assert!(long.may_go(2, now, || true));
    }

    #[test]
    fn a_peer_that_sends_no_more_is_sent_to_as_before_and_order_is_kept() {
        let (mut long, then, now) = (crossing(), (SPAN, SPAN), (3 * SPAN, SPAN));
        assert!(!long.may_go(1, then, || false));
        assert!(!long.may_go(2, now, || panic!("asked for another one")));
        assert!(long.may_go(1, now, || panic!("asked")));
        assert!(long.may_go(2, now, || panic!("asked")));
    }

    #[test]
    fn what_has_been_refused_for_long_goes_and_waits_in_the_device() {
        let (mut long, now) = (crossing(), (SPAN, SPAN));
        for _ in 0..TRIES {
            assert!(!long.may_go(1, now, || false));
            assert!(!long.may_go(2, now, || true));
        }
        assert!(long.may_go(1, now, || false));
        assert!(!long.may_go(2, now, || false), "the next one is tried as often");
    }

    #[test]
    fn one_that_never_comes_again_is_not_awaited_for_ever() {
        let (mut long, now) = (crossing(), (SPAN, SPAN));
        assert!(!long.may_go(1, now, || false));
        for _ in 0..PATIENCE {
            assert!(!long.may_go(2, now, || true));
        }
        assert!(long.may_go(2, now, || true));
    }
}
