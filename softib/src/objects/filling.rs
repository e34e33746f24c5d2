//! What an initiator knows of the buffers of its peer's posted receives, which it may fill by its own hand (`datapath::initiator::filling`).

use crate::shm::buffers::{Buffer, Buffers};
use crate::shm::mapped::Mapped;
use crate::shm::rq::Place;

/// Long messages before a peer is asked where the buffers are.
const OFTEN: u32 = 16;

/// What is known of one queue.
#[derive(Debug)]
pub struct Filling {
    state: State,
    /// The region that was filled last.
    pub window: Option<Box<Mapped>>,
}

#[derive(Debug)]
enum State {
    /// So many long messages have gone through the ring.
    Seldom(u32),
    /// The peer has been asked.
    Asked,
    /// It has answered.
    Told(Buffers),
    /// They are not to be filled.
    Never,
}

impl Default for Filling {
    fn default() -> Filling {
        Filling { state: State::Seldom(0), window: None }
    }
}

impl Filling {
    /// The buffer of the receive at this position of a queue, which has been consumed for a long message, if that is known. The peer is asked if `may_ask`;
    /// `open` has the entries that lie at an offset of its segment.
    #[inline]
    pub fn buffer(
        &mut self,
        (queue, pos): (&Place, u32),
        may_ask: impl FnOnce() -> bool,
        open: impl FnOnce(usize) -> Option<Buffers>,
    ) -> Option<Buffer> {
        match &mut self.state {
            State::Told(buffers) => return buffers.get(pos),
            State::Never => {}
            State::Seldom(count) if *count < OFTEN => *count += 1,
            State::Seldom(_) if may_ask() => {
                queue.ask();
                self.state = State::Asked;
            }
            State::Seldom(_) => self.state = State::Never,
            State::Asked => {
                if let Some(offset) = queue.answer() {
                    self.state = open(offset).map_or(State::Never, State::Told);
                }
            }
        }
        None
    }

    /// They are filled, as far as is known.
    #[inline(always)]
    pub fn goes_on(&self) -> bool {
        matches!(self.state, State::Told(_))
    }

    /// They are in memory that is not mapped here: nothing more is to be said of them.
    #[cold]
    pub fn give_up(&mut self, queue: &Place) {
        queue.decline();
        *self = Filling { state: State::Never, window: None };
    }
}
