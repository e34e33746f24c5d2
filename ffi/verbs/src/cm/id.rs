//! Ids: one end of a connection, or a listener.

use super::channel::EventChannel;
use super::prepared::Prepared;
use crate::error::Error;
use crate::qp_attr::QpState;
use crate::types::Qpn;
use rdma_cm_sys as sys;
use rdma_sys::{IBV_QPS_RTR, IBV_QPS_RTS};
use std::ffi::{CStr, c_void};
use std::net::SocketAddr;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::Arc;
use std::time::Duration;

/// The caller's name for an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub usize);

impl Token {
    /// # Safety
    /// A live id whose context is a token, or nothing.
    pub(super) unsafe fn of(id: *mut sys::rdma_cm_id) -> Token {
        // SAFETY: the caller promises a live id; of its context only the address is read, so any
        // will do.
        Token(unsafe { (*id).context }.addr())
    }
}

/// What a side asks for, or is asked for, with a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnParam {
    /// RDMA reads and atomics of the peer to serve at a time.
    pub responder_resources: u8,
    /// RDMA reads and atomics to have outstanding.
    pub initiator_depth: u8,
    /// Transport retries, 0 to 7.
    pub retry_count: u8,
    /// RNR retries that the peer shall make; 7 without end.
    pub rnr_retry_count: u8,
    /// The queue pair has a shared receive queue.
    pub srq: bool,
    /// The queue pair.
    pub qpn: Qpn,
}

impl ConnParam {
    pub(super) fn from_sys(raw: &sys::rdma_conn_param) -> ConnParam {
        ConnParam {
            responder_resources: raw.responder_resources,
            initiator_depth: raw.initiator_depth,
            retry_count: raw.retry_count,
            rnr_retry_count: raw.rnr_retry_count,
            srq: raw.srq != 0,
            qpn: Qpn(raw.qp_num),
        }
    }

    fn to_sys(self, data: &[u8]) -> sys::rdma_conn_param {
        sys::rdma_conn_param {
            private_data: if data.is_empty() { std::ptr::null() } else { data.as_ptr().cast() },
            // Longer data are refused by the library, whose limits are lower.
            private_data_len: u8::try_from(data.len()).unwrap_or(u8::MAX),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: self.srq.into(),
            qp_num: self.qpn.0,
        }
    }
}

/// An id of the TCP port space, without a queue pair of its own.
#[derive(Debug)]
pub struct CmId {
    channel: Arc<EventChannel>,
    raw: NonNull<sys::rdma_cm_id>,
}

// SAFETY: librdmacm's calls may be made from every thread.
unsafe impl Send for CmId {}
// SAFETY: threads may share an id in calls of the library; the fields that the library fills
// (`verbs`, `port_num`, `route`) change during its calls only, and cpc's driver, which owns channel
// and ids, calls it and reads them on one thread at a time.
unsafe impl Sync for CmId {}

impl CmId {
    /// Makes an id whose events carry `token`.
    ///
    /// # Errors
    /// Out of resources.
    pub fn create(channel: &Arc<EventChannel>, token: Token) -> Result<CmId, Error> {
        let mut raw = null_mut();
        let context = without_provenance_mut::<c_void>(token.0);
        // SAFETY: a live channel and room for the answer.
        let code = unsafe { (channel.table.create_id)(channel.raw(), &mut raw, context, sys::RDMA_PS_TCP) };
        match NonNull::new(raw) {
            Some(raw) if code == 0 => Ok(CmId { channel: channel.clone(), raw }),
            _ => Err(Error::last("rdma_create_id", channel.table.name)),
        }
    }

    /// # Safety
    /// An id of the channel that no other `CmId` owns.
    pub(super) unsafe fn from_raw(channel: &Arc<EventChannel>, raw: *mut sys::rdma_cm_id) -> Option<CmId> {
        Some(CmId { channel: channel.clone(), raw: NonNull::new(raw)? })
    }

    /// Events carry this token from now on.
    pub fn set_token(&mut self, token: Token) {
        // SAFETY: a live id, and the field that is its user's.
        unsafe { (*self.raw()).context = without_provenance_mut(token.0) };
    }

    /// Binds an address of this host; port 0 takes a free one.
    ///
    /// # Errors
    /// The address is taken, or no device has it.
    pub fn bind(&self, to: SocketAddr) -> Result<(), Error> {
        let mut address = sys::address::emit(to);
        // SAFETY: a live id and a whole address.
        let code = unsafe { (self.table().bind_addr)(self.raw(), (&raw mut address).cast()) };
        self.check("rdma_bind_addr", code, || to.to_string())
    }

    /// Finds the device that leads to `to`. The answer is an event.
    ///
    /// # Errors
    /// It cannot even look.
    pub fn resolve_addr(&self, from: SocketAddr, to: SocketAddr, patience: Duration) -> Result<(), Error> {
        let (mut source, mut target) = (sys::address::emit(from), sys::address::emit(to));
        let (source, target) = ((&raw mut source).cast(), (&raw mut target).cast());
        // SAFETY: a live id and whole addresses.
        let code = unsafe { (self.table().resolve_addr)(self.raw(), source, target, millis(patience)) };
        self.check("rdma_resolve_addr", code, || format!("{to} from {from}"))
    }

    /// Finds the path. The answer is an event.
    ///
    /// # Errors
    /// The address is not resolved.
    pub fn resolve_route(&self, patience: Duration) -> Result<(), Error> {
        // SAFETY: a live id.
        let code = unsafe { (self.table().resolve_route)(self.raw(), millis(patience)) };
        self.check("rdma_resolve_route", code, || self.describe())
    }

    /// Requests arrive from now on, as events.
    ///
    /// # Errors
    /// The address is taken.
    pub fn listen(&self, backlog: i32) -> Result<(), Error> {
        // SAFETY: a live id.
        let code = unsafe { (self.table().listen)(self.raw(), backlog) };
        self.check("rdma_listen", code, || self.describe())
    }

    /// Asks the peer. The answer is an event.
    ///
    /// # Errors
    /// The route is not resolved, or there are more than [`super::REQUEST_DATA`] bytes.
    pub fn connect(&self, param: ConnParam, data: &[u8]) -> Result<(), Error> {
        let mut param = param.to_sys(data);
        // SAFETY: a live id and parameters that outlive the call.
        let code = unsafe { (self.table().connect)(self.raw(), &mut param) };
        self.check("rdma_connect", code, || self.describe())
    }

    /// Agrees to a request; the queue pairs are up already.
    ///
    /// # Errors
    /// The peer has gone meanwhile.
    pub fn accept(&self, param: ConnParam, data: &[u8]) -> Result<(), Error> {
        let mut param = param.to_sys(data);
        // SAFETY: a live id and parameters that outlive the call.
        let code = unsafe { (self.table().accept)(self.raw(), &mut param) };
        self.check("rdma_accept", code, || self.describe())
    }

    /// Refuses a request, or a response.
    ///
    /// # Errors
    /// The peer has gone meanwhile.
    pub fn reject(&self, data: &[u8]) -> Result<(), Error> {
        let len = u8::try_from(data.len()).unwrap_or(u8::MAX);
        // SAFETY: a live id, and data as long as said; longer ones are refused.
        let code = unsafe { (self.table().reject)(self.raw(), data.as_ptr().cast(), len) };
        self.check("rdma_reject", code, || self.describe())
    }

    /// After a response: our queue pairs are up, the peer shall know. False: the id is in no state for that (EINVAL), for the peer has gone
    /// meanwhile, as another event says.
    ///
    /// # Errors
    /// What the connection manager says.
    pub fn establish(&self) -> Result<bool, Error> {
        // SAFETY: a live id.
        let code = unsafe { (self.table().establish)(self.raw()) };
        match self.check("rdma_establish", code, || self.describe()) {
            Err(error) if error.errno() == libc::EINVAL => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Data have come in on a queue pair of the connection: the peer is up, whether it said so or not.
    ///
    /// # Errors
    /// Nothing to be said: it is up already, or gone.
    pub fn notify_data(&self) -> Result<(), Error> {
        // SAFETY: a live id.
        let code = unsafe { (self.table().notify)(self.raw(), rdma_sys::IBV_EVENT_COMM_EST) };
        self.check("rdma_notify", code, || self.describe())
    }

    /// Takes the connection down, or agrees to that. The end is an event.
    ///
    /// # Errors
    /// There is no connection.
    pub fn disconnect(&self) -> Result<(), Error> {
        // SAFETY: a live id.
        let code = unsafe { (self.table().disconnect)(self.raw()) };
        self.check("rdma_disconnect", code, || self.describe())
    }

    /// The attributes for the way to `state`, RTR or RTS.
    ///
    /// # Errors
    /// The peer's side is not known yet.
    pub fn prepare(&self, state: QpState) -> Result<Prepared, Error> {
        let qp_state = if state == QpState::Rtr { IBV_QPS_RTR } else { IBV_QPS_RTS };
        let mut attr = rdma_sys::ibv_qp_attr { qp_state, ..Default::default() };
        let mut mask = 0;
        // SAFETY: a live id and room for the answers.
        let code = unsafe { (self.table().init_qp_attr)(self.raw(), &mut attr, &mut mask) };
        self.check("rdma_init_qp_attr", code, || self.describe())?;
        Ok(Prepared::new(attr, mask.cast_unsigned()))
    }

    /// The port that it is bound to.
    pub fn local_port(&self) -> u16 {
        // SAFETY: a live id.
        u16::from_be(unsafe { (self.table().get_src_port)(self.raw()) })
    }

    /// The device and port that the address belongs to, once that is known.
    pub fn device(&self) -> Option<(String, u8)> {
        // SAFETY: a live id; a device outlives its context, and its name is a C string.
        unsafe {
            let context = (*self.raw()).verbs;
            let device = context.as_ref()?.device.as_ref()?;
            Some((
                CStr::from_ptr(device.name.as_ptr()).to_string_lossy().into_owned(),
                (*self.raw()).port_num,
            ))
        }
    }

    fn describe(&self) -> String {
        // SAFETY: a live id; its addresses are whole or zero, which is no family that is known.
        let peer = unsafe { sys::address::parse((&raw const (*self.raw()).route.addr.dst_storage).cast()) };
        match peer.filter(|peer| peer.port() != 0) {
            Some(peer) => format!("the id for {peer}"),
            None => format!("the id at port {}", self.local_port()),
        }
    }

    fn check(&self, call: &'static str, code: i32, object: impl FnOnce() -> String) -> Result<(), Error> {
        if code == 0 { Ok(()) } else { Err(Error::last(call, object())) }
    }

    fn table(&self) -> &'static sys::Table {
        self.channel.table
    }

    fn raw(&self) -> *mut sys::rdma_cm_id {
        self.raw.as_ptr()
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: a live id with no event unacknowledged; given back once.
        if unsafe { (self.table().destroy_id)(self.raw()) } != 0 {
            log::warn!("rdma_destroy_id failed: the id is left to the connection manager");
        }
    }
}

fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}
