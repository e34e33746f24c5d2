//! What a broken connection of a P or S queue has not carried out, and another one is to carry out (`link::resume`).
//!
//! A message that was sent inline is in the ledger, one from a buffer in its buffer. A read or write is as it was handed in. An
//! atomic may have been carried out, and the word would change twice: it is reported as failed.
#![forbid(unsafe_code)]

use super::Tx;
use crate::transport::Transport;
use crate::transport::channel::{GivesBack, Held, Operation, Span};
use crate::transport::endpoint::Endpoint;
use crate::transport::endpoint::retained::{Copied, Kept, Resume};
use crate::transport::port::buffer::SendBuf;
use crate::transport::upcall::Upcalls;
use verbs::{Completion, Wc};

impl<C> Tx<C> {
    /// The bytes of an inline message, in a buffer of its queue.
    fn inline_again(&mut self, ep: &Endpoint<C>, queue: usize, span: Span) -> Result<SendBuf, String> {
        let channel = ep.lanes[queue].channel.as_ref();
        let bytes = channel.map_or(&[][..], |channel| channel.ledger.copy(span));
        self.control_buf(queue, bytes).map_err(|error| error.to_string())
    }

    /// A message that was kept outside of a buffer.
    pub fn in_buffer(&mut self, message: &Copied) -> Result<Kept, verbs::PoolError> {
        let buf = self.control_buf(message.queue.into(), &message.bytes)?;
        Ok(Kept { queue: message.queue, buf, total: message.bytes.len() as u32 })
    }

    /// What the line of a broken queue pair held is kept, if it is a message or an operation that another one can carry out.
    fn keep_held(&mut self, ep: &mut Endpoint<C>, up: &mut Upcalls<C>, held: Held<C>, by: &Completion) {
        let Some(resume) = &mut ep.resume else { return };
        self.keeps = true;
        match held {
            Held::Message { to, queue, buf, share, total, .. } => {
                self.release_slots(to.index, queue.into(), 1);
                if let Some(buf) = buf.completed_up_to(by) {
                    let buf = SendBuf { buf, class: queue, share };
                    resume.retained.messages.push_back(Kept { queue, buf, total });
                }
            }
            Held::Rdma { rdma, .. } => resume.retained.operations.push_back(Operation::Rdma(rdma)),
            Held::Atomic { buf, fetch, .. } => {
                self.take_word(buf, by);
                up.completed(fetch.cookie, false);
            }
        }
    }

    /// The same of an inline message of the endpoint at position `index`.
    fn keep_inline(&mut self, ep: &mut Endpoint<C>, (index, queue): (u32, usize), span: Span) {
        self.release_slots(index, queue, 1);
        let buf = self.inline_again(ep, queue, span);
        let Some(resume) = &mut ep.resume else { return };
        self.keeps = true;
        match buf {
            Ok(buf) => resume.retained.messages.push_back(Kept { queue: queue as u8, buf, total: span.len }),
            Err(error) => {
                let lost = || {
                    format!(
                        "its connection is broken, and there is no buffer to send a message again: {error}"
                    )
                };
                resume.lost.get_or_insert_with(lost);
            }
        }
    }
}

impl<C> Transport<C> {
    /// What a failed request of this endpoint carried may go over another connection.
    pub(super) fn outlives(&self, index: u32, wc: &Wc) -> bool {
        self.port.replaces() && wc.may_pass() && self.endpoints.get(index).is_some_and(Endpoint::keeps)
    }

    /// A line of a broken queue pair: what it held is kept for the next connection. A message gives
    /// its send slot back, and takes another one when it is sent again; lanes that may have waited
    /// for it are awake, and to be served.
    #[cold]
    pub(super) fn keep_line(&mut self, index: u32, queue: usize, gives_back: GivesBack, by: &Completion) {
        let queues = self.tx.queues.len();
        self.tx.outstanding -= 1;
        let Some(ep) = self.endpoints.get_mut(index) else { return };
        ep.outstanding -= 1;
        ep.resume.get_or_insert_with(|| Box::new(Resume::new(queues)));
        match gives_back {
            GivesBack::Inline(span) => self.tx.keep_inline(ep, (index, queue), span),
            GivesBack::Held(key) => {
                if let Some(held) = self.tx.held.try_remove(key as usize) {
                    self.tx.keep_held(ep, &mut self.up, held, by);
                }
            }
            GivesBack::Marker | GivesBack::Probe => {}
        }
    }
}
