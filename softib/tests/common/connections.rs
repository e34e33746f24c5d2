//! The connection manager by its C calls, for tests: channels, events, ids.
#![allow(dead_code, reason = "each test uses a part")]

use crate::common::{PATIENCE, last_errno};
use rdma_cm_sys::*;
use std::net::SocketAddr;
use std::ptr::null_mut;

pub fn cm() -> &'static Table {
    softib::cm_table()
}

pub struct Channel(pub *mut rdma_event_channel);

/// What a test looks at of an event.
pub struct Event {
    pub kind: u32,
    pub status: i32,
    pub id: *mut rdma_cm_id,
    pub private: Vec<u8>,
}

impl Channel {
    pub fn open() -> Channel {
        let channel = unsafe { (cm().create_event_channel)() };
        assert!(!channel.is_null(), "errno {}", last_errno());
        Channel(channel)
    }

    pub fn id(&self, space: u32) -> *mut rdma_cm_id {
        let mut id = null_mut();
        assert_eq!(unsafe { (cm().create_id)(self.0, &mut id, null_mut(), space) }, 0);
        id
    }

    /// An id that listens on a free port of loopback, and the port.
    pub fn listener(&self, space: u32) -> (*mut rdma_cm_id, u16) {
        let id = self.id(space);
        assert_eq!(bind(id, "127.0.0.1:0"), 0);
        assert_eq!(unsafe { (cm().listen)(id, 8) }, 0);
        (id, u16::from_be(unsafe { (cm().get_src_port)(id) }))
    }

    /// An id that has resolved its way to a port of loopback.
    pub fn resolved(&self, space: u32, port: u16) -> *mut rdma_cm_id {
        let id = self.id(space);
        assert_eq!(resolve(id, &format!("127.0.0.1:{port}")), 0);
        assert_eq!(self.next().kind, RDMA_CM_EVENT_ADDR_RESOLVED);
        assert_eq!(unsafe { (cm().resolve_route)(id, 1000) }, 0);
        assert_eq!(self.next().kind, RDMA_CM_EVENT_ROUTE_RESOLVED);
        id
    }

    /// The next event, which must come.
    pub fn next(&self) -> Event {
        let mut poll = libc::pollfd { fd: unsafe { (*self.0).fd }, events: libc::POLLIN, revents: 0 };
        assert_eq!(unsafe { libc::poll(&mut poll, 1, PATIENCE.as_millis() as i32) }, 1, "no event");
        self.take().unwrap_or_else(|errno| panic!("errno {errno}"))
    }

    /// What a non-blocking call gets: the next event, or an errno.
    pub fn at_once(&self) -> Result<Event, i32> {
        unsafe {
            let fd = (*self.0).fd;
            let flags = libc::fcntl(fd, libc::F_GETFL);
            assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
            let taken = self.take();
            assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags), 0);
            taken
        }
    }

    fn take(&self) -> Result<Event, i32> {
        unsafe {
            let mut event = null_mut();
            if (cm().get_cm_event)(self.0, &mut event) != 0 {
                return Err(last_errno());
            }
            let (id, conn) = ((*event).id, (*event).param.conn);
            let len = usize::from(conn.private_data_len);
            let private = match conn.private_data.is_null() {
                true => Vec::new(),
                false => std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len).to_vec(),
            };
            let copy = Event { kind: (*event).event, status: (*event).status, id, private };
            assert_eq!((cm().ack_cm_event)(event), 0);
            Ok(copy)
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        unsafe { (cm().destroy_event_channel)(self.0) };
    }
}

pub fn bind(id: *mut rdma_cm_id, to: &str) -> i32 {
    let mut to = address::emit(to.parse::<SocketAddr>().unwrap());
    unsafe { (cm().bind_addr)(id, (&raw mut to).cast()) }
}

pub fn resolve(id: *mut rdma_cm_id, to: &str) -> i32 {
    let mut to = address::emit(to.parse::<SocketAddr>().unwrap());
    unsafe { (cm().resolve_addr)(id, null_mut(), (&raw mut to).cast(), 1000) }
}

pub fn destroy(id: *mut rdma_cm_id) {
    assert_eq!(unsafe { (cm().destroy_id)(id) }, 0);
}
