//! What a process has of XRC: domains it has open, handles of their receive queue pairs, and the receiving side of its XRC
//! SRQs. What the processes share is in the domain's segment (`shm::domain`).

use super::CBox;
use super::recvq::Partial;
use crate::errno::Errno;
use crate::shm::domain::{DomainFile, EVENTS, Identity};
use crate::shm::registry;
use rdma_sys::*;
use slab::Slab;
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Weak};

/// `kind` of an XRC SRQ in the table that peers read; no queue pair has it.
pub const KIND_SRQ: u32 = 0x100;

/// The P_Key that every SRQ is known by: it is in no partition of its own.
pub const FULL_PKEY: u16 = 0xffff;

/// Events of a receive queue pair, in the order in which the domain counts them.
pub const EVENT_KINDS: [u32; 4] =
    [IBV_EVENT_COMM_EST, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR];

const _: () = assert!(EVENT_KINDS.len() <= EVENTS);

/// All XRC objects of the process.
#[derive(Debug, Default)]
pub struct Xrc {
    /// Open domains.
    pub domains: Slab<Domain>,
    /// `ibv_xrcd`s.
    pub xrcds: Slab<Xrcd>,
    /// Handles of receive queue pairs.
    pub handles: Slab<Handle>,
    /// Domains that we send to, or have open.
    views: Vec<Weak<DomainFile>>,
}

/// A domain that this process has open, once however often.
#[derive(Debug)]
pub struct Domain {
    /// Its segment.
    pub file: Arc<DomainFile>,
    /// Our place among its holders.
    pub holder: usize,
    /// `ibv_xrcd`s of it.
    pub opens: u32,
    /// Handles of its queue pairs, by index.
    pub handles: HashMap<usize, u32>,
    /// Events that our handles have been told of.
    pub events_seen: u32,
    /// Keeps the inode that names the domain from being used for another file.
    pub _inode: Option<File>,
}

impl Domain {
    /// Which file it stands for.
    pub fn identity(&self) -> Identity {
        self.file.identity()
    }
}

/// The C struct of a domain, which has no room for an index of its own.
#[repr(C)]
pub struct XrcdC {
    /// What programs see.
    pub c: ibv_xrcd,
    /// Index of its [`Xrcd`].
    pub key: usize,
}

/// One `ibv_xrcd`.
#[derive(Debug)]
pub struct Xrcd {
    /// Kept alive for the program.
    pub _c: CBox<XrcdC>,
    /// Index of its context.
    pub context: usize,
    /// Index of its [`Domain`].
    pub domain: usize,
    /// SRQs and handles made with it.
    pub users: u32,
}

/// One handle (`ibv_qp`) of a domain's receive queue pair.
#[derive(Debug)]
pub struct Handle {
    /// What the program knows it by.
    pub c: CBox<ibv_qp>,
    /// Index of its context.
    pub context: usize,
    /// Index of its [`Xrcd`].
    pub xrcd: usize,
    /// Index of its [`Domain`].
    pub domain: usize,
    /// The queue pair's row in the domain.
    pub index: usize,
    /// Events of each kind that this handle has been told of.
    pub seen: [u32; EVENTS],
    /// Asynchronous events of it that the program has been given.
    pub async_events: u32,
}

impl Handle {
    /// What programs know it by.
    pub fn pointer(&self) -> *mut ibv_qp {
        self.c.as_ptr()
    }
}

/// What makes a shared receive queue an XRC one.
#[derive(Debug)]
pub struct XrcSrq {
    /// Index of its [`Xrcd`].
    pub xrcd: usize,
    /// Index of its [`Domain`].
    pub domain: usize,
    /// Where its receives complete.
    pub cq: usize,
    /// Its place in the table of queue pairs, which makes its number.
    pub index: usize,
    /// Generation of that place.
    pub generation: u32,
    /// Messages of several fragments on their way in, by sender: incarnation of the process and QPN.
    pub flows: HashMap<(u64, u32), Flow>,
}

/// A message on its way in.
#[derive(Debug)]
pub struct Flow {
    /// What has come of it.
    pub part: Partial,
    /// What had been received when it was looked at last.
    pub seen: u32,
    /// Index and generation of the receive queue pair it comes through.
    pub through: (usize, u32),
}

impl Xrc {
    /// The domain in `slot`, as senders see it: mapped, and mapped once.
    pub fn view(&mut self, dir: &Path, slot: usize) -> Result<Arc<DomainFile>, Errno> {
        self.views.retain(|view| view.strong_count() > 0);
        let mut known = self.views.iter().filter_map(Weak::upgrade);
        if let Some(view) = known.find(|view| view.slot == slot && registry::is_current(dir, view)) {
            return Ok(view);
        }
        let view = Arc::new(registry::attach(dir, slot)?);
        self.note(&view);
        Ok(view)
    }

    /// Makes a mapped domain known to [`Self::view`].
    pub fn note(&mut self, view: &Arc<DomainFile>) {
        self.views.push(Arc::downgrade(view));
    }

    /// The open domain in `slot`.
    pub fn domain_in(&self, slot: usize) -> Option<Arc<DomainFile>> {
        self.domains
            .iter()
            .find(|(_, domain)| domain.file.slot == slot)
            .map(|(_, domain)| domain.file.clone())
    }

    /// Counts an object in or out of its `ibv_xrcd`.
    pub fn use_xrcd(&mut self, key: usize, delta: i32) {
        if let Some(xrcd) = self.xrcds.get_mut(key) {
            xrcd.users = xrcd.users.saturating_add_signed(delta);
        }
    }
}
