//! Posting over the channel of a lane: the queue pair of its own, or the path of its route.
#![forbid(unsafe_code)]

use super::Tx;
use super::path::Paths;
use crate::protocol::pending::LaneId;
use crate::protocol::wire::{HEADER_LEN, XrcHeader};
use crate::transport::Transport;
use crate::transport::channel::{Channel, Ready, Refused, Request, Target, Unposted, Went};
use crate::transport::endpoint::Endpoint;
use crate::transport::port::buffer::SendBuf;
use verbs::SrqNum;

impl<C> Tx<C> {
    /// It carries a buffer that is wanted.
    fn wants_back<const PIECES: usize>(&self, request: &Request<'_, C, PIECES>) -> bool {
        match request {
            Request::Message { buf, .. } => self.is_wanted(buf),
            Request::Inline(_) | Request::Operation(_) => false,
        }
    }

    /// Another sender may wait for this buffer, or it is beyond all shares.
    pub(super) fn is_wanted(&self, buf: &SendBuf) -> bool {
        buf.share.is_none() || self.queues[usize::from(buf.class)].bufs_are_scarce()
    }
}

impl<C> Transport<C> {
    /// Posts a work request whose entry and credit have been taken. What cannot be posted is given
    /// back.
    pub(crate) fn post<const PIECES: usize>(
        &mut self,
        lane: LaneId,
        mut request: Request<'_, C, PIECES>,
    ) -> Result<(), verbs::Error> {
        let queue = usize::from(lane.queue);
        let Some(ep) = self.endpoints.get_mut(lane.peer) else {
            self.tx.take_back(into_unposted(request), &mut self.up);
            return Ok(());
        };
        let scarce = self.tx.is_scarce(&ep.lanes[queue], queue) || self.tx.wants_back(&request);
        let to = ep.connection(lane.peer);
        let Some((channel, route)) = channel(ep, queue, &mut self.paths) else {
            self.tx.take_back(into_unposted(request), &mut self.up);
            return Ok(());
        };
        if let (Some((_, label)), Request::Message { buf, .. }) = (route, &mut request) {
            stamp(buf.buf.as_mut_slice(), label);
        }
        let target = Target { to, queue: lane.queue, srq: route.map(|(srq, _)| srq), scarce };
        match channel.post(&mut self.tx.held, self.tx.signalling, target, request) {
            Ok(signalled) => {
                self.tx.count_posted(ep, signalled);
                Ok(())
            }
            Err(refused) => {
                let Refused { error, unposted } = *refused;
                self.tx.take_back(unposted, &mut self.up);
                Err(error)
            }
        }
    }
}

impl<C> Transport<C> {
    /// Posts messages of one lane with one call: the first [`SENDS`](crate::transport::channel::SENDS) of `ready`, which
    /// are taken out. What cannot be posted is given back.
    ///
    /// # Errors
    /// How many have not been posted, and why.
    pub(crate) fn post_chain(
        &mut self,
        lane: LaneId,
        ready: &mut Vec<Ready>,
    ) -> Result<(), (u16, verbs::Error)> {
        let Some(ep) = self.endpoints.get_mut(lane.peer) else {
            self.tx.drop_ready(ready);
            return Ok(());
        };
        let to = ep.connection(lane.peer);
        let Some((channel, route)) = channel(ep, usize::from(lane.queue), &mut self.paths) else {
            self.tx.drop_ready(ready);
            return Ok(());
        };
        if let Some((_, label)) = route {
            ready.iter_mut().for_each(|message| stamp(message.buf.buf.as_mut_slice(), label));
        }
        let target = (to, lane.queue, route.map(|(srq, _)| srq));
        let count = ready.len() as u16;
        let Tx { held, signalling, queues, .. } = &mut self.tx;
        let give_back = |buf: SendBuf| queues[usize::from(buf.class)].take_back(buf);
        let Went { posted, signalled, error } =
            channel.post_chain(held, *signalling, target, ready, give_back);
        self.tx.count_chain(ep, posted, signalled);
        error.map_or(Ok(()), |error| Err((count - posted as u16, error)))
    }
}

/// Without a channel: its connection is gone.
fn into_unposted<C, const PIECES: usize>(request: Request<'_, C, PIECES>) -> Unposted<C> {
    match request {
        Request::Inline(_) => Unposted::Nothing,
        Request::Message { buf, .. } => Unposted::Message(buf),
        Request::Operation(operation) => Unposted::Operation(operation),
    }
}

/// The channel of a lane; over a route also the peer's SRQ, and the label that its messages have.
#[inline]
pub(super) fn channel<'a, C>(
    ep: &'a mut Endpoint<C>,
    queue: usize,
    paths: &'a mut Paths,
) -> Option<(&'a mut Channel, Option<(SrqNum, u32)>)> {
    if let Some(channel) = &mut ep.lanes[queue].channel {
        return Some((channel, None));
    }
    let route = ep.route.as_ref()?;
    let srq = *route.srqs.get(queue)?;
    Some((paths.get_mut(route.path)?.channel_towards(srq), Some((srq, route.label))))
}

/// Puts the label of the route into the header of a message, which is complete but for it.
fn stamp(message: &mut [u8], label: u32) {
    if let Some(head) = message.first_chunk_mut::<HEADER_LEN>()
        && let Some(header) = XrcHeader::parse(*head)
    {
        *head = header.labelled(label).emit();
    }
}
