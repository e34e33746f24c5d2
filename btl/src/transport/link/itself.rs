//! The endpoint to this process itself: one queue pair, connected to itself.
//!
//! ```text
//!   put, get, atomic --> lane of the largest queue --> queue pair --> port --> the same queue pair --> memory of this process
//! ```
//! A device's atomics may be atomic among each other only (`IBV_ATOMIC_HCA`), so a one-sided component of
//! MPI reaches its own process' words through the device, too, as its peers do. Messages to oneself
//! are another transport's (`self`): none goes over this endpoint, no receive is posted for it, and
//! no connection manager knows it.
#![forbid(unsafe_code)]

use super::AddError;
use crate::transport::Transport;
use crate::transport::channel::LineId;
use crate::transport::endpoint::state::Event;
use crate::transport::endpoint::{Endpoint, EpId};
use crate::transport::port::depth::depth_to_itself;
use cpc::Step;

impl<C> Transport<C> {
    /// The endpoint to this process, whose name is `me`; made if it is new. Its queue pair comes with
    /// the first operation.
    ///
    /// # Errors
    /// The device or what all peers share is broken, or completions would have no place.
    pub fn add_itself(&mut self, me: u64) -> Result<EpId, AddError> {
        if let Some(reason) = &self.port.heard.broken {
            return Err(AddError::Broken(reason.clone()));
        }
        if let Some(index) = self.endpoints.of_peer(me) {
            return self.add_again(index, &[], None);
        }
        let entries = self.port.admit(true)?;
        Ok(self.endpoints.insert(|id| Endpoint::new(id, me, None, entries)))
    }

    /// The endpoint to this process, whose name is `me`, if there is one.
    pub fn itself(&self, me: u64) -> Option<EpId> {
        let index = self.endpoints.of_peer(me)?;
        self.endpoints.get(index).map(|ep| EpId { index, generation: ep.generation })
    }

    /// Makes its queue pair, for put, get and atomics.
    pub(crate) fn connect_to_itself(&mut self, index: u32) {
        if let Err(error) = self.reserve_connection(index) {
            return self.fail(index, &error);
        }
        let queue = self.port.layout().largest();
        let sends = depth_to_itself(&self.port.config);
        let qp = match cpc::to_itself(&self.port.to_itself, sends) {
            Ok(qp) => qp,
            Err(reason) => return self.fail(index, &format_args!("no queue pair to itself: {reason}")),
        };
        if let Some(ep) = self.endpoints.get_mut(index) {
            let name = LineId::of_lane(index, ep.epoch, queue);
            ep.lanes[queue].attach(qp, name, sends, &self.port.config);
        }
        self.endpoints.mark(index, Step::QpsUp);
        self.on_event(index, Event::QpsCreated);
        self.on_event(index, Event::CpcConnected);
    }
}
