//! Messages that wait and may go at the same time: one call of the device posts them.
#![forbid(unsafe_code)]

use super::{Channel, Connection, GivesBack, Held, Signalling};
use crate::transport::port::buffer::SendBuf;
use slab::Slab;
use verbs::{SendChain, Sent, SrqNum};

/// Messages that one call posts at most.
pub const SENDS: usize = 16;

/// A message with its header, whose entry and credit have been taken.
#[derive(Debug)]
pub struct Ready {
    /// Its first `total` bytes are the message, header included.
    pub buf: SendBuf,
    /// Bytes.
    pub total: u32,
    /// The device copies it.
    pub inline: bool,
    /// As in [`Target`](super::Target).
    pub scarce: bool,
}

/// What has become of a chain.
#[derive(Debug)]
pub struct Went {
    /// Messages that have been posted.
    pub posted: u32,
    /// Those among them that are signalled.
    pub signalled: u32,
    /// Why the others have not.
    pub error: Option<verbs::Error>,
}

/// What the chain does not tell of a message.
#[derive(Clone, Copy, Debug, Default)]
struct Note {
    class: u8,
    share: Option<u32>,
    total: u32,
    signalled: bool,
}

impl Channel {
    /// Posts messages to a connection's queue, over an XRC send queue pair to `srq`, as [`Channel::post`] does one after
    /// the other; the first [`SENDS`] of `ready`, which are taken out. `back` takes the buffers that are free
    /// again: of inline messages, and of those that the device refuses.
    pub fn post_chain<C>(
        &mut self,
        held: &mut Slab<Held<C>>,
        policy: Signalling,
        (to, queue, srq): (Connection, u8, Option<SrqNum>),
        ready: &mut Vec<Ready>,
        mut back: impl FnMut(SendBuf),
    ) -> Went {
        let mut notes = [Note::default(); SENDS];
        let mut chain = self.chain(policy, srq, ready, &mut notes);
        let (ledger, mut posted, mut signalled) = (&mut self.ledger, 0, 0);
        let outcome = self.qp.post_sends(&mut chain, |_, sent| {
            let Note { class, share, total, signalled: is_signalled } = notes[posted];
            let gives_back = match sent {
                Sent::Copied(buf) => {
                    let span = ledger.compose([&buf.as_slice()[..total as usize]]).0;
                    back(SendBuf { buf, class, share });
                    GivesBack::Inline(span)
                }
                Sent::Posted(buf) => {
                    GivesBack::Held(held.insert(Held::Message { to, queue, buf, share, total }) as u32)
                }
            };
            posted += 1;
            signalled += u32::from(is_signalled);
            ledger.push(gives_back, is_signalled);
        });
        while let Some((_, buf)) = chain.pop() {
            let Note { class, share, .. } = notes[posted + chain.len()];
            back(SendBuf { buf, class, share });
        }
        Went { posted: posted as u32, signalled, error: outcome.err() }
    }

    /// The requests of messages, in the order of the lines that they are going to have.
    fn chain(
        &mut self,
        policy: Signalling,
        srq: Option<SrqNum>,
        ready: &mut Vec<Ready>,
        notes: &mut [Note; SENDS],
    ) -> SendChain<SENDS> {
        let mut chain = SendChain::new();
        let mut run = self.ledger.unsignalled();
        let count = ready.len().min(SENDS);
        for (Ready { buf: SendBuf { buf, class, share }, total, inline, scarce }, note) in
            ready.drain(..count).zip(notes)
        {
            let bytes = self.unsignalled.saturating_add(if inline { 0 } else { total });
            let signalled = policy.is_due(scarce, run, if inline { 0 } else { bytes });
            (run, self.unsignalled) = if signalled { (0, 0) } else { (run + 1, bytes) };
            *note = Note { class, share, total, signalled };
            let id = self.name.of_line(self.ledger.next().wrapping_add(chain.len() as u16)).0;
            let full = chain.push(id, (buf, total), (self.flags(signalled), inline), srq);
            debug_assert!(full.is_ok(), "a chain has room for as many as there are notes");
        }
        chain
    }
}
