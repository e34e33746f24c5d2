//! The ends of the two streams of a connection (protocol.md 4.5): how many messages have gone each way, and what
//! the sides have said of that.
#![forbid(unsafe_code)]

/// Counts are of the upper layer's messages over one connection, all queues together, modulo 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)] // in this order: each message counts
pub struct Ends {
    /// To the peer.
    pub sent: u32,
    /// From the peer.
    pub received: u32,
    /// The count in our last end of stream.
    told: Option<u32>,
    /// The count in the peer's last acknowledgement.
    heard: Option<u32>,
    /// The count in the peer's last end of stream, until it is acknowledged.
    owed: Option<u32>,
    /// The count in our last acknowledgement, if there was one.
    acknowledged: u32,
    /// The peer's stream has ended.
    ended: bool,
}

impl Ends {
    /// Of a connection over which so many have come, and nothing has gone.
    pub fn after(received: u32) -> Ends {
        Ends { received, ..Ends::default() }
    }

    /// The peer goes on with this stream, and so much has passed since.
    pub fn followed_by(self, since: Ends) -> Ends {
        let (sent, received) =
            (self.sent.wrapping_add(since.sent), self.received.wrapping_add(since.received));
        Ends { sent, received, ..self }
    }

    /// Nothing has been sent since our last end of stream.
    pub fn is_told(&self) -> bool {
        self.told == Some(self.sent)
    }

    /// Our stream ends here; the count to say.
    pub fn tell(&mut self) -> u32 {
        self.told = Some(self.sent);
        self.sent
    }

    /// The peer has acknowledged so many; `false`: we have not said that.
    /// Fewer than before say nothing new: they answer an end that was told when a connection that goes on with this stream was
    /// taken for the first of another one.
    pub fn hear(&mut self, count: u32) -> bool {
        let is_known = self.told.is_some_and(|told| has_reached(told, count));
        if is_known && self.heard.is_none_or(|heard| has_reached(count, heard)) {
            self.heard = Some(count);
        }
        is_known
    }

    /// The peer's stream ends after so many.
    pub fn peer_ends(&mut self, count: u32) {
        self.owed = Some(count);
        self.ended = true;
    }

    /// The count to acknowledge, when all of it has come.
    pub fn due(&self) -> Option<u32> {
        self.owed.filter(|count| has_reached(self.received, *count))
    }

    /// That has been said.
    pub fn acknowledged(&mut self) {
        self.acknowledged = self.owed.take().unwrap_or(self.acknowledged);
    }

    /// Its stream has ended, and we have acknowledged all that has come. If more has come, it tells another end before it leaves.
    pub fn peer_is_done(&self) -> bool {
        self.ended && self.owed.is_none() && self.acknowledged == self.received
    }

    /// Its stream has ended.
    pub fn peer_has_ended(&self) -> bool {
        self.ended
    }

    /// Our stream has ended, and the peer has acknowledged that; what it has said before it ended its own, if it has, has come.
    pub fn all_is_heard(&self) -> bool {
        let nothing_missing = self.owed.is_none_or(|count| has_reached(self.received, count));
        self.is_told() && self.heard == self.told && nothing_missing
    }

    /// The peer has still to acknowledge our end, or we its end.
    pub fn are_open(&self) -> bool {
        self.owed.is_some() || self.told.is_some() && self.heard != self.told
    }
}

fn has_reached(count: u32, end: u32) -> bool {
    count.wrapping_sub(end) < 1 << 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_that_has_sent_more_since_its_end_says_so_again() {
        let mut ends = Ends { sent: u32::MAX, ..Ends::default() };
        assert!(!ends.is_told() && !ends.are_open(), "nothing has been said");
        assert_eq!(ends.tell(), u32::MAX);
        ends.sent = ends.sent.wrapping_add(1);
        assert!(!ends.is_told());
        assert_eq!(ends.tell(), 0);
        assert!(ends.hear(u32::MAX) && ends.are_open(), "the first end only");
        assert!(ends.hear(0) && !ends.are_open() && ends.is_told());
    }

    #[test]
    fn an_acknowledgement_of_what_was_not_said_is_known() {
        assert!(!Ends::default().hear(0));
        let mut ends = Ends { sent: 7, ..Ends::default() };
        ends.tell();
        assert!(!ends.hear(8) && ends.are_open());
    }

    #[test]
    fn an_acknowledgement_of_fewer_than_before_takes_nothing_back() {
        let mut ends = Ends { sent: 7, ..Ends::default() };
        ends.tell();
        assert!(ends.hear(7) && ends.hear(0));
        assert!(!ends.are_open() && ends.all_is_heard());
    }

    #[test]
    fn an_end_is_due_when_all_before_it_has_come_whatever_has_overtaken_it() {
        let mut ends = Ends { received: 1, ..Ends::default() };
        assert_eq!(ends.due(), None);
        ends.peer_ends(2);
        assert_eq!((ends.due(), ends.are_open()), (None, true));
        ends.received = 3;
        assert_eq!(ends.due(), Some(2));
        ends.acknowledged();
        assert_eq!((ends.due(), ends.are_open()), (None, false));
        assert!(!ends.peer_is_done(), "it has sent a third one since, and says so");
        ends.peer_ends(3);
        ends.acknowledged();
        assert!(ends.peer_is_done());
    }
}
