//! Posting over the channel of a lane: the queue pair of its own, or the path of its route.
#![forbid(unsafe_code)]

use super::Tx;
use crate::protocol::pending::LaneId;
use crate::protocol::wire::{HEADER_LEN, XrcHeader};
use crate::transport::Transport;
use crate::transport::channel::{Refused, Request, Target, Unposted};

impl<C> Tx<C> {
    /// It carries a buffer that another sender may wait for, or that is beyond all shares.
    fn wants_back<const PIECES: usize>(&self, request: &Request<'_, C, PIECES>) -> bool {
        match request {
            Request::Message { buf, .. } => {
                buf.share.is_none() || self.queues[usize::from(buf.class)].bufs_are_scarce()
            }
            Request::Inline(_) | Request::Operation(_) => false,
        }
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
        let mut target = Target { to: ep.connection(lane.peer), queue: lane.queue, srq: None, scarce };
        let over_route =
            ep.route.as_ref().and_then(|route| Some((route.path, *route.srqs.get(queue)?, route.label)));
        let channel = match (&mut ep.lanes[queue].channel, over_route) {
            (Some(channel), _) => Some(channel),
            (None, Some((path, srq, label))) => {
                target.srq = Some(srq);
                stamp(&mut request, label);
                self.paths.get_mut(path).map(|path| path.channel_towards(srq))
            }
            _ => None,
        };
        let Some(channel) = channel else {
            self.tx.take_back(into_unposted(request), &mut self.up);
            return Ok(());
        };
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

/// Without a channel: its connection is gone.
fn into_unposted<C, const PIECES: usize>(request: Request<'_, C, PIECES>) -> Unposted<C> {
    match request {
        Request::Inline(_) => Unposted::Nothing,
        Request::Message { buf, .. } => Unposted::Message(buf),
        Request::Operation(operation) => Unposted::Operation(operation),
    }
}

/// Puts the label of the route into the header of a message, which is complete but for it.
fn stamp<C, const PIECES: usize>(request: &mut Request<'_, C, PIECES>, label: u32) {
    if let Request::Message { buf, .. } = request
        && let Some(head) = buf.buf.as_mut_slice().first_chunk_mut::<HEADER_LEN>()
        && let Some(header) = XrcHeader::parse(*head)
    {
        *head = XrcHeader::new(header.tag(), header.queue(), label, header.number()).emit();
    }
}
