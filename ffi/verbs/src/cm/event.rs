//! Events of ids, as values.

use super::channel::EventChannel;
use super::id::{CmId, ConnParam, Token};
use crate::error::Error;
use rdma_cm_sys as sys;
use std::ptr::null_mut;
use std::sync::Arc;

/// Why a request, or a reply, was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No listener is at the address (IBTA 12.6.7.2, reason 8; ECONNREFUSED on iWARP).
    NotListening,
    /// The peer's program said no; its private data tell why (reason 28).
    Consumer,
    /// Any other reason: the number of the specification, or a negative errno value.
    Other(i32),
}

/// What happened to an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmEventKind {
    /// The device that leads to the address is known.
    AddrResolved,
    /// No device leads there; a positive errno value.
    AddrError(i32),
    /// The path is known.
    RouteResolved,
    /// No path; a positive errno value.
    RouteError(i32),
    /// A peer asks for a connection: the event carries its id.
    ConnectRequest,
    /// The peer has agreed; our queue pairs are to go up.
    ConnectResponse,
    /// The connection could not be made; a positive errno value.
    ConnectError(i32),
    /// No answer; a positive errno value, or a number of the specification.
    Unreachable(i32),
    /// Refused.
    Rejected(Refusal),
    /// Both sides are up.
    Established,
    /// The peer has taken the connection down, or has agreed to that.
    Disconnected,
    /// The device is going away: its objects must be given back.
    DeviceRemoval,
    /// The address moved to another port: the connection may not survive that.
    AddrChange,
    /// Nothing of the old connection is on its way any more.
    TimewaitExit,
    /// Any other value of `rdma_cm_event_type`.
    Other(u32),
}

/// An event, copied and acknowledged.
#[derive(Debug)]
pub struct CmEvent {
    /// The id that it is about; of a request, the one that listens.
    pub token: Token,
    /// What happened.
    pub kind: CmEventKind,
    /// The peer's parameters, where it sent some: requests, responses, connections that are up.
    pub conn: ConnParam,
    /// What the peer sent along; a transport may have filled it up with zeroes.
    pub private_data: Vec<u8>,
    /// Of a request: the id to accept or reject. It has the token of the id that listens.
    pub request: Option<CmId>,
}

impl EventChannel {
    /// Takes and acknowledges the next event, if there is one.
    ///
    /// # Errors
    /// The connection manager is gone.
    pub fn next_event(self: &Arc<Self>) -> Result<Option<CmEvent>, Error> {
        let mut raw = null_mut();
        // SAFETY: a live channel and room for the answer.
        if unsafe { (self.table.get_cm_event)(self.raw(), &mut raw) } != 0 {
            return match rdma_sys::errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                errno => Err(Error::new("rdma_get_cm_event", "the event channel", errno)),
            };
        }
        // SAFETY: taken just now; acknowledged once, after it was copied.
        unsafe {
            let event = copy(self, &*raw);
            (self.table.ack_cm_event)(raw);
            Ok(Some(event))
        }
    }
}

/// Copies an event.
///
/// # Safety
/// An event of the channel that is not acknowledged yet.
unsafe fn copy(channel: &Arc<EventChannel>, raw: &sys::rdma_cm_event) -> CmEvent {
    let kind = kind(raw.event, raw.status);
    // SAFETY: ids are of the TCP port space (`CmId::create`), whose events fill the member `conn`;
    // the caller promises that the event is not acknowledged yet, and until then the library keeps
    // its private data, `private_data_len` bytes.
    let (conn, private_data) = unsafe {
        let conn = raw.param.conn;
        let len = usize::from(conn.private_data_len);
        let data = if conn.private_data.is_null() || !carries_data(kind) {
            Vec::new()
        } else {
            std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len).to_vec()
        };
        (ConnParam::from_sys(&conn), data)
    };
    // SAFETY: the id lives at least until its event is acknowledged, and the caller promises that
    // it is not yet; its context is a token (`CmId::create`, `set_token`), in a request the token
    // of the listener.
    let token = unsafe { Token::of(raw.id) };
    // SAFETY: the library made a request's id for this event, so no other `CmId` owns it.
    let request =
        (kind == CmEventKind::ConnectRequest).then(|| unsafe { CmId::from_raw(channel, raw.id) }).flatten();
    CmEvent { token, kind, conn, private_data, request }
}

fn carries_data(kind: CmEventKind) -> bool {
    matches!(
        kind,
        CmEventKind::ConnectRequest
            | CmEventKind::ConnectResponse
            | CmEventKind::Established
            | CmEventKind::Rejected(_)
    )
}

fn kind(event: u32, status: i32) -> CmEventKind {
    let errno = status.saturating_abs();
    match event {
        sys::RDMA_CM_EVENT_ADDR_RESOLVED => CmEventKind::AddrResolved,
        sys::RDMA_CM_EVENT_ADDR_ERROR => CmEventKind::AddrError(errno),
        sys::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventKind::RouteResolved,
        sys::RDMA_CM_EVENT_ROUTE_ERROR => CmEventKind::RouteError(errno),
        sys::RDMA_CM_EVENT_CONNECT_REQUEST => CmEventKind::ConnectRequest,
        sys::RDMA_CM_EVENT_CONNECT_RESPONSE => CmEventKind::ConnectResponse,
        sys::RDMA_CM_EVENT_CONNECT_ERROR => CmEventKind::ConnectError(errno),
        sys::RDMA_CM_EVENT_UNREACHABLE => CmEventKind::Unreachable(errno),
        sys::RDMA_CM_EVENT_REJECTED => CmEventKind::Rejected(refusal(status)),
        sys::RDMA_CM_EVENT_ESTABLISHED => CmEventKind::Established,
        sys::RDMA_CM_EVENT_DISCONNECTED => CmEventKind::Disconnected,
        sys::RDMA_CM_EVENT_DEVICE_REMOVAL => CmEventKind::DeviceRemoval,
        sys::RDMA_CM_EVENT_ADDR_CHANGE => CmEventKind::AddrChange,
        sys::RDMA_CM_EVENT_TIMEWAIT_EXIT => CmEventKind::TimewaitExit,
        other => CmEventKind::Other(other),
    }
}

fn refusal(status: i32) -> Refusal {
    /// Invalid service id; consumer reject (IBTA 12.6.7.2).
    const INVALID_SERVICE: i32 = 8;
    const CONSUMER: i32 = 28;
    match status {
        INVALID_SERVICE => Refusal::NotListening,
        CONSUMER => Refusal::Consumer,
        // iWARP has one number for both; data can only come from a program.
        _ if status == -libc::ECONNREFUSED => Refusal::NotListening,
        other => Refusal::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_whether_somebody_was_there() {
        assert_eq!(kind(sys::RDMA_CM_EVENT_REJECTED, 8), CmEventKind::Rejected(Refusal::NotListening));
        assert_eq!(kind(sys::RDMA_CM_EVENT_REJECTED, 28), CmEventKind::Rejected(Refusal::Consumer));
        assert_eq!(kind(sys::RDMA_CM_EVENT_REJECTED, -111), CmEventKind::Rejected(Refusal::NotListening));
        assert_eq!(kind(sys::RDMA_CM_EVENT_REJECTED, 4), CmEventKind::Rejected(Refusal::Other(4)));
    }

    #[test]
    fn errors_come_as_errno_values_and_unknown_events_as_numbers() {
        assert_eq!(kind(sys::RDMA_CM_EVENT_ADDR_ERROR, -19), CmEventKind::AddrError(19));
        assert_eq!(kind(99, i32::MIN), CmEventKind::Other(99));
    }
}
