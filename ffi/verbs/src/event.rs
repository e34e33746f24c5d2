//! Asynchronous events of a device.

use crate::context::Context;
use crate::error::Error;
use crate::srq::SrqId;
use crate::types::Qpn;
use rdma_sys as sys;

/// What happened (ibv_get_async_event(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A queue pair cannot go on.
    QpFatal(Qpn),
    /// A peer did what it may not.
    QpAccess(Qpn),
    /// First packet of a connection that we have not been told to be up.
    CommEst(Qpn),
    /// A queue pair in error will draw no more from its shared receive queue.
    LastWqeReached(Qpn),
    /// A shared receive queue fell below its limit: compare with [`crate::Srq::id`].
    SrqLimitReached(SrqId),
    /// A completion queue overran.
    CqError,
    /// A port works.
    PortActive(u8),
    /// A port does not.
    PortError(u8),
    /// The device is broken.
    DeviceFatal,
    /// Any other value of `ibv_event_type`.
    Other(u32),
}

impl Context {
    /// Takes and acknowledges the next event, if there is one.
    ///
    /// # Errors
    /// The device is gone.
    pub fn next_async_event(&self) -> Result<Option<AsyncEvent>, Error> {
        let mut event = sys::ibv_async_event::default();
        // SAFETY: an open context and room for the answer.
        if unsafe { (self.table().get_async_event)(self.raw(), &mut event) } != 0 {
            return match sys::errno() {
                libc::EAGAIN => Ok(None),
                errno => Err(Error::new("ibv_get_async_event", self.name(), errno)),
            };
        }
        let parsed = parse(&event);
        // SAFETY: the event was taken just now; its object waits for this before it can be destroyed.
        unsafe { (self.table().ack_async_event)(&mut event) };
        Ok(Some(parsed))
    }
}

fn parse(event: &sys::ibv_async_event) -> AsyncEvent {
    // SAFETY: for events of queue pairs the element is a live queue pair until it is acknowledged.
    let qpn = || Qpn(unsafe { (*event.element.qp).qp_num });
    // SAFETY: for events of shared receive queues the element is a pointer, which is only compared.
    let srq = || SrqId::of(unsafe { event.element.srq });
    // SAFETY: for events of ports the element is a number.
    let port = || u8::try_from(unsafe { event.element.port_num }).unwrap_or(0);
    match event.event_type {
        sys::IBV_EVENT_QP_FATAL => AsyncEvent::QpFatal(qpn()),
        sys::IBV_EVENT_QP_ACCESS_ERR | sys::IBV_EVENT_QP_REQ_ERR => AsyncEvent::QpAccess(qpn()),
        sys::IBV_EVENT_COMM_EST => AsyncEvent::CommEst(qpn()),
        sys::IBV_EVENT_QP_LAST_WQE_REACHED => AsyncEvent::LastWqeReached(qpn()),
        sys::IBV_EVENT_SRQ_LIMIT_REACHED => AsyncEvent::SrqLimitReached(srq()),
        sys::IBV_EVENT_CQ_ERR => AsyncEvent::CqError,
        sys::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortActive(port()),
        sys::IBV_EVENT_PORT_ERR => AsyncEvent::PortError(port()),
        sys::IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
        other => AsyncEvent::Other(other),
    }
}
