//! A port that has been opened: what does not depend on how many peers there are.
#![forbid(unsafe_code)]

use super::config::Config;
use super::depth::CqRoom;
use super::entries::Count;
use super::events::Heard;
use crate::protocol::layout::Layout;
use crate::protocol::wire::Cts;
use cpc::QpPlan;
use std::sync::Arc;
use verbs::{Atomics, Mr, Pd};

/// The device's objects, the connection managers, and what both are told.
#[derive(Debug)]
#[repr(C)] // in this order: whether a connection manager has something to say is asked with every look
pub struct OpenPort {
    /// The connection managers.
    pub service: cpc::Service,
    /// The configuration as this device can have it.
    pub config: Config,
    /// How the queue pair to oneself is to be.
    pub to_itself: QpPlan,
    /// The protection domain.
    pub pd: Arc<Pd>,
    /// A registration of all memory for requests of our own, on a device that needs none to be pinned.
    pub all_memory: Option<Mr>,
    /// Its number, from 1.
    pub num: u8,
    /// The number of the alternate port, which connections can go over as well, if there is one.
    pub alternate: Option<u8>,
    /// Our process' name.
    pub me: u64,
    /// What the device has told that stays so.
    pub heard: Heard,
    /// The completion queue of receives.
    pub recv_room: CqRoom,
    /// The completion queue of sends.
    pub send_room: CqRoom,
    /// What is reserved in them for connections that the device did not give back in time.
    pub stranded: Count,
    /// Registrations that the device has.
    pub most_mrs: u32,
    /// Reads and atomics that a queue pair may have outstanding.
    pub most_reads: u16,
    /// What the device's atomics are.
    pub atomics: Atomics,
    /// Messages of so many bytes are handed over where they lie in the device's ring, which is to have its place back soon.
    pub placed_from: u32,
    /// The smallest per-peer queue; its one extra receive per endpoint takes the peer's CTS.
    pub cts_queue: Option<usize>,
}

impl OpenPort {
    /// The layout.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.config.layout
    }

    /// The name of the device.
    pub fn device(&self) -> &str {
        self.pd.context().name()
    }

    /// The layout has a queue for the clear-to-send.
    pub fn uses_cts(&self) -> bool {
        self.cts_queue.is_some()
    }

    /// What our clear-to-send says.
    pub fn cts(&self) -> Cts {
        Cts { queues: self.layout().queues().len() as u8, layout: self.layout().fingerprint() }
    }

    /// Registrations that the upper layers of the process may have: a sixteenth of the device's is
    /// kept for buffers of our own.
    pub fn lendable(&self) -> u32 {
        match self.most_mrs {
            0 => u32::MAX,
            most => most - most / 16,
        }
    }
}
