//! Asynchronous events of a device.
//!
//! An event is acknowledged as soon as it is read, by the thread that reads it: destroying the
//! object that it is about waits for that (`ibv_ack_async_event(3)`), so no destroy waits for
//! longer than a read takes. An event that has not been read goes with its object. What is left of
//! one that has been read is a name (a queue pair's number, a queue's identity), which stays
//! harmless when the object is gone.

use crate::context::Context;
use crate::cq::CqId;
use crate::error::Error;
use crate::srq::SrqId;
use crate::types::Qpn;
use rdma_sys as sys;

/// Declares each event once: its kind, its constant, and what its element names.
macro_rules! kinds {
    ($($(#[doc = $help:literal])+ $kind:ident = $code:ident, $about:ident;)+) => {
        /// What happened (`ibv_get_async_event(3)`), in the order of `ibv_event_type`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum EventKind {
            $($(#[doc = $help])+ $kind,)+
            /// A value of `ibv_event_type` that is none of these.
            Unknown(u32),
        }

        impl EventKind {
            /// Every kind that has a name.
            pub const ALL: &'static [EventKind] = &[$(EventKind::$kind,)+];

            /// The kind that libibverbs calls so.
            pub const fn from_code(code: u32) -> EventKind {
                match code {
                    $(sys::$code => EventKind::$kind,)+
                    other => EventKind::Unknown(other),
                }
            }

            /// The value of `ibv_event_type`.
            pub const fn code(self) -> u32 {
                match self {
                    $(EventKind::$kind => sys::$code,)+
                    EventKind::Unknown(code) => code,
                }
            }

            /// The constant of libibverbs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(EventKind::$kind => stringify!($code),)+
                    EventKind::Unknown(_) => "unknown event",
                }
            }

            fn element(self) -> Element {
                match self {
                    $(EventKind::$kind => Element::$about,)+
                    EventKind::Unknown(_) => Element::None,
                }
            }
        }
    };
}

kinds! {
    /// A completion queue overran.
    CqError = IBV_EVENT_CQ_ERR, Cq;
    /// A queue pair cannot go on.
    QpFatal = IBV_EVENT_QP_FATAL, Qp;
    /// A request of the peer was invalid.
    QpRequestError = IBV_EVENT_QP_REQ_ERR, Qp;
    /// A peer did what it may not.
    QpAccessError = IBV_EVENT_QP_ACCESS_ERR, Qp;
    /// First packet of a connection that we have not been told to be up.
    CommEst = IBV_EVENT_COMM_EST, Qp;
    /// The send queue is drained.
    SqDrained = IBV_EVENT_SQ_DRAINED, Qp;
    /// A connection uses its alternate path.
    PathMigrated = IBV_EVENT_PATH_MIG, Qp;
    /// A connection could not change to its alternate path.
    PathMigrationError = IBV_EVENT_PATH_MIG_ERR, Qp;
    /// The device is broken.
    DeviceFatal = IBV_EVENT_DEVICE_FATAL, None;
    /// A port works.
    PortActive = IBV_EVENT_PORT_ACTIVE, Port;
    /// A port does not.
    PortError = IBV_EVENT_PORT_ERR, Port;
    /// A port has another LID.
    LidChange = IBV_EVENT_LID_CHANGE, Port;
    /// A port's table of partitions has changed.
    PkeyChange = IBV_EVENT_PKEY_CHANGE, Port;
    /// A port has another subnet manager.
    SmChange = IBV_EVENT_SM_CHANGE, Port;
    /// A shared receive queue cannot go on.
    SrqError = IBV_EVENT_SRQ_ERR, Srq;
    /// A shared receive queue fell below its limit.
    SrqLimitReached = IBV_EVENT_SRQ_LIMIT_REACHED, Srq;
    /// A queue pair in error will draw no more from its shared receive queue.
    LastWqeReached = IBV_EVENT_QP_LAST_WQE_REACHED, Qp;
    /// The subnet manager asks for everything to be registered again.
    ClientReregister = IBV_EVENT_CLIENT_REREGISTER, Port;
    /// A port's table of GIDs has changed.
    GidChange = IBV_EVENT_GID_CHANGE, Port;
    /// A work queue, of which we make none, cannot go on.
    WqFatal = IBV_EVENT_WQ_FATAL, None;
}

/// Which member of an event's union is valid.
enum Element {
    Cq,
    Qp,
    Srq,
    Port,
    None,
}

/// The object that an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A queue pair; also one of an XRC domain, of which a process has handles.
    Qp(Qpn),
    /// Compare with [`crate::Srq::id`].
    Srq(SrqId),
    /// Compare with [`crate::Cq::id`].
    Cq(CqId),
    /// A port of the device, from 1.
    Port(u8),
    /// The device, or something that oxib has none of.
    Device,
}

/// Something has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What.
    pub kind: EventKind,
    /// To what.
    pub subject: Subject,
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
    let kind = EventKind::from_code(event.event_type);
    let subject = match kind.element() {
        // SAFETY: for events of queue pairs the element is a live queue pair until it is
        // acknowledged.
        Element::Qp => Subject::Qp(Qpn(unsafe { (*event.element.qp).qp_num })),
        // SAFETY: for events of shared receive queues the element is a pointer, which is only
        // compared.
        Element::Srq => Subject::Srq(SrqId::of(unsafe { event.element.srq })),
        // SAFETY: for events of completion queues the element is a pointer, which is only compared.
        Element::Cq => Subject::Cq(CqId::of(unsafe { event.element.cq })),
        // SAFETY: for events of ports the element is a number.
        Element::Port => Subject::Port(u8::try_from(unsafe { event.element.port_num }).unwrap_or(0)),
        Element::None => Subject::Device,
    };
    AsyncEvent { kind, subject }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_in_the_order_of_their_codes_and_none_is_left_out() {
        for (code, kind) in EventKind::ALL.iter().enumerate() {
            assert_eq!((EventKind::from_code(code as u32), kind.code()), (*kind, code as u32));
            assert!(kind.name().starts_with("IBV_EVENT_"), "{kind:?}");
        }
        assert_eq!(EventKind::from_code(20), EventKind::Unknown(20), "IBV_EVENT_WQ_FATAL (19) is the last");
        assert_eq!(EventKind::ALL.len(), 20);
    }

    #[test]
    fn an_event_names_what_it_is_about() {
        let of = |event_type, element| parse(&sys::ibv_async_event { event_type, element });
        // SAFETY: numbers, pointers and what pthread makes of zeroes.
        let mut qp: sys::ibv_qp = unsafe { std::mem::zeroed() };
        qp.qp_num = 77;
        let element = sys::ibv_async_event_element { qp: &raw mut qp };
        let fatal = AsyncEvent { kind: EventKind::QpFatal, subject: Subject::Qp(Qpn(77)) };
        assert_eq!(of(sys::IBV_EVENT_QP_FATAL, element), fatal);
        let port = sys::ibv_async_event_element { port_num: 2 };
        assert_eq!(of(sys::IBV_EVENT_LID_CHANGE, port).subject, Subject::Port(2));
        assert_eq!(of(sys::IBV_EVENT_DEVICE_FATAL, port).subject, Subject::Device);
        let strange = AsyncEvent { kind: EventKind::Unknown(99), subject: Subject::Device };
        assert_eq!(of(99, port), strange, "an element that is not known is not touched");
    }
}
