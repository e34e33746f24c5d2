//! The receive of the peer's CTS.
#![forbid(unsafe_code)]

use crate::protocol::wire::{Cts, Header, Kind as MessageKind};
use crate::transport::channel::Connection;
use crate::transport::endpoint::state::Event;
use crate::transport::wrid::{Kind, WrId};
use crate::transport::{Delivery, Transport};
use cpc::Step;
use std::collections::HashMap;
use std::sync::Arc;
use verbs::{Access, Buf, Completion, Pd, Pool, PoolConfig, PoolError, Posted, Qp};

/// The buffers of these receives: one for each connection that is coming up, in a layout with
/// per-peer queues.
#[derive(Debug)]
pub struct CtsRecvs {
    pool: Pool,
    /// By connection: a receive of a former epoch may complete late.
    posted: HashMap<Connection, Posted>,
    /// The queue pairs of those whose endpoint was gone before it knew of them: kept until the receive is flushed,
    /// for the end of a queue pair takes its completions along.
    orphans: HashMap<Connection, Arc<Qp>>,
}

impl CtsRecvs {
    /// "Very small, and preallocated on endpoint creation" (seed 004).
    pub fn new(pd: &Arc<Pd>) -> CtsRecvs {
        let buf_len = Cts::MESSAGE_LEN as u32;
        let config = PoolConfig { buf_len, align: 16, grow_by: 64, max: 0, access: Access::LOCAL_WRITE };
        CtsRecvs { pool: Pool::new(pd, config), posted: HashMap::new(), orphans: HashMap::new() }
    }

    /// A buffer for the receive of a new connection on `queue`, where the layout has one for that.
    ///
    /// # Errors
    /// There is none to be had.
    pub fn take(&mut self, queue: Option<usize>) -> Result<Option<(usize, Buf)>, PoolError> {
        queue.map(|queue| Ok((queue, self.pool.take()?))).transpose()
    }

    /// Takes a buffer back.
    pub fn put(&mut self, buf: Buf) {
        self.pool.put(buf);
    }

    /// The connection manager has posted the receive of this connection.
    pub fn insert(&mut self, connection: Connection, posted: Posted) {
        self.posted.insert(connection, posted);
    }

    /// The endpoint of this connection is gone: its receive, which is over this queue pair, is flushed.
    pub fn flush(&mut self, connection: Connection, qp: &Arc<Qp>) {
        if let Err(error) = qp.to_error() {
            log::debug!(
                "cannot move {:?}, of an endpoint that is gone, to the error state: {error}",
                qp.num()
            );
        }
        self.orphans.insert(connection, qp.clone());
    }

    /// Some are still to be flushed.
    pub fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    /// The device holds the buffer of this connection.
    pub fn is_posted(&self, connection: Connection) -> bool {
        self.posted.contains_key(&connection)
    }

    /// The buffer of the connection's receive, which has completed.
    fn completed(&mut self, connection: Connection, done: Completion) -> Option<Buf> {
        self.orphans.remove(&connection);
        self.posted.remove(&connection)?.completed(done).ok()
    }

    /// Buffers made, and those in the pool.
    pub fn tally(&self) -> (u32, usize) {
        (self.pool.allocated(), self.pool.free_len())
    }
}

impl<C> Transport<C> {
    /// The peer has posted its buffers (seed 004).
    #[cold]
    pub(crate) fn cts_received(&mut self, done: Completion, id: WrId) -> Option<Delivery> {
        let index = id.index();
        if id.kind() != Some(Kind::Cts) {
            self.stats.stale += 1;
            return None;
        }
        let len = done.byte_len() as usize;
        let buf = self.take_cts(id, done)?;
        if self.endpoints.epoch(index) != Some(id.generation()) {
            // Its endpoint is gone, or connected anew: the receive, and with it the queue pair, is all that there is to give back.
            self.stats.stale += 1;
            self.rx.cts.put(buf);
            return None;
        }
        let len = len.min(buf.capacity() as usize);
        let told = Header::parse(&buf.as_slice()[..len]).and_then(|(header, rest)| match header.kind {
            MessageKind::Cts => Cts::parse(rest).map(Some),
            _ => Ok(None),
        });
        self.rx.cts.put(buf);
        match told {
            Ok(Some(theirs)) if theirs == self.port.cts() => {
                self.early(index, id.queue());
                self.endpoints.mark(index, Step::CtsReceived);
                self.on_event(index, Event::CtsReceived);
            }
            Ok(Some(_)) => self.refuse(index, "the peer's receive_queues differ from ours"),
            Ok(None) => self.refuse(index, "the first message of the peer was no CTS"),
            Err(error) => self.refuse(index, &error.to_string()),
        }
        None
    }

    /// The buffer of a CTS receive that has completed, of any epoch of its endpoint.
    #[cold]
    pub(crate) fn take_cts(&mut self, id: WrId, done: Completion) -> Option<Buf> {
        let connection = Connection { index: id.index(), epoch: id.generation() };
        if !self.rx.cts.is_posted(connection) {
            // The helper posted this receive; what it says about it may still be in its queue.
            self.connection_events();
        }
        self.rx.cts.completed(connection, done)
    }
}
