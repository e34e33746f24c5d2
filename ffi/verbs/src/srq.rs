//! Shared receive queues.

use crate::cq::Cq;
use crate::error::{Error, check, leaked};
use crate::mr::Pd;
use crate::pool::Buf;
use crate::posted::{Destroyed, Posted, QueueTag};
use crate::recv::{RecvQueue, Tag, sealed};
use crate::types::SrqNum;
use crate::xrcd::Xrcd;
use rdma_sys as sys;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Tells the shared receive queues of a process apart: what events name them by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqId(usize);

impl SrqId {
    pub(crate) fn of(raw: *mut sys::ibv_srq) -> SrqId {
        SrqId(raw as usize)
    }
}

/// A receive queue that many queue pairs draw from.
#[derive(Debug)]
pub struct Srq {
    pd: Arc<Pd>,
    raw: NonNull<sys::ibv_srq>,
    tag: QueueTag,
    // Alive as long as the queue is, for one of a domain.
    _xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
}

// SAFETY: verbs objects may be used from every thread.
unsafe impl Send for Srq {}
// SAFETY: the fields never change, and threads may call verbs of one shared receive queue at the
// same time: the library locks it.
unsafe impl Sync for Srq {}

impl Srq {
    /// A queue for at least so many receives of so many pieces.
    ///
    /// # Errors
    /// Beyond the device's limits.
    pub fn create(pd: &Arc<Pd>, max_wr: u32, max_sge: u32) -> Result<Arc<Srq>, Error> {
        let mut attr = sys::ibv_srq_init_attr {
            srq_context: null_mut(),
            attr: sys::ibv_srq_attr { max_wr, max_sge, srq_limit: 0 },
        };
        // SAFETY: a live domain and attributes.
        let raw = unsafe { (pd.context().table().create_srq)(pd.raw(), &mut attr) };
        let object = || format!("{max_wr} receives on {}", pd.context().name());
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_srq", object()))?;
        Ok(Arc::new(Srq { pd: pd.clone(), raw, tag: QueueTag::new_shared(), _xrc: None }))
    }

    /// A queue of an XRC domain: senders name it by its number, and its receives complete to `cq`.
    ///
    /// # Errors
    /// Beyond the device's limits.
    pub fn create_xrc(
        pd: &Arc<Pd>,
        xrcd: &Arc<Xrcd>,
        cq: &Arc<Cq>,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Arc<Srq>, Error> {
        let mut attr = sys::ibv_srq_init_attr_ex {
            attr: sys::ibv_srq_attr { max_wr, max_sge, srq_limit: 0 },
            comp_mask: sys::IBV_SRQ_INIT_ATTR_TYPE
                | sys::IBV_SRQ_INIT_ATTR_PD
                | sys::IBV_SRQ_INIT_ATTR_XRCD
                | sys::IBV_SRQ_INIT_ATTR_CQ,
            srq_type: sys::IBV_SRQT_XRC,
            pd: pd.raw(),
            xrcd: xrcd.raw(),
            cq: cq.raw(),
            ..Default::default()
        };
        let context = pd.context();
        // SAFETY: an open context, its library, and live objects of it.
        let raw = unsafe { sys::ibv_create_srq_ex(context.table(), context.raw(), &mut attr) };
        let object = || format!("{max_wr} XRC receives on {}", context.name());
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_srq_ex", object()))?;
        let (tag, _xrc) = (QueueTag::new_shared(), Some((xrcd.clone(), cq.clone())));
        Ok(Arc::new(Srq { pd: pd.clone(), raw, tag, _xrc }))
    }

    /// What events name it by.
    pub fn id(&self) -> SrqId {
        SrqId::of(self.raw())
    }

    /// The number that senders name an XRC queue by.
    ///
    /// # Errors
    /// It is not of a domain.
    pub fn number(&self) -> Result<SrqNum, Error> {
        let mut number = 0;
        // SAFETY: a live queue and room for the answer.
        let code = unsafe { sys::ibv_get_srq_num(self.raw(), &mut number) };
        check("ibv_get_srq_num", code, || self.pd.context().name().into())?;
        Ok(SrqNum(number))
    }

    /// Hands a buffer to the device.
    ///
    /// # Errors
    /// The queue is full; the buffer comes back.
    #[inline]
    pub fn post_recv(&self, wr_id: u64, buf: Buf) -> Result<Posted, (Buf, Error)> {
        // SAFETY: the queue lives as long as `self`; the buffer is registered and becomes the device's.
        let code = unsafe { post(wr_id, &buf, |wr, bad| sys::ibv_post_srq_recv(self.raw.as_ptr(), wr, bad)) };
        if code == 0 { Ok(Posted::new(buf, wr_id, self.tag)) } else { Err((buf, self.refused(code))) }
    }

    #[cold]
    fn refused(&self, code: i32) -> Error {
        Error::new("ibv_post_srq_recv", self.pd.context().name(), code)
    }

    /// Asks for an event when fewer than so many receives are left; once.
    ///
    /// # Errors
    /// The device cannot.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        self.modify(sys::ibv_srq_attr { srq_limit: limit, ..Default::default() }, sys::IBV_SRQ_LIMIT)
    }

    /// Makes room for so many receives.
    ///
    /// # Errors
    /// The device cannot.
    pub fn resize(&self, max_wr: u32) -> Result<(), Error> {
        self.modify(sys::ibv_srq_attr { max_wr, ..Default::default() }, sys::IBV_SRQ_MAX_WR)
    }

    fn modify(&self, mut attr: sys::ibv_srq_attr, mask: u32) -> Result<(), Error> {
        // SAFETY: a live queue and attributes.
        let code = unsafe {
            (self.pd.context().table().modify_srq)(self.raw.as_ptr(), &mut attr, mask.cast_signed())
        };
        check("ibv_modify_srq", code, || self.pd.context().name().into())
    }

    /// Destroys the queue. Receives that have not completed never will: what comes back gives their
    /// buffers back.
    ///
    /// # Errors
    /// It is still used: it is left to the device, and so are the buffers.
    pub fn destroy(self) -> Result<Destroyed, Error> {
        let queue = ManuallyDrop::new(self);
        // SAFETY: a live queue, which is not dropped, so that it is destroyed once.
        let code = unsafe { (queue.pd.context().table().destroy_srq)(queue.raw.as_ptr()) };
        check("ibv_destroy_srq", code, || queue.pd.context().name().into())?;
        // SAFETY: each field is moved out once, of a value that is not dropped.
        drop(unsafe { (std::ptr::read(&queue._xrc), std::ptr::read(&queue.pd)) });
        Ok(Destroyed(queue.tag))
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_srq {
        self.raw.as_ptr()
    }
}

impl sealed::Sealed for Srq {}

impl RecvQueue for Srq {
    #[inline]
    fn tag(&self) -> Tag {
        Tag(self.tag)
    }

    #[inline]
    unsafe fn post_list(&self, wr: *mut sys::ibv_recv_wr, bad: *mut *mut sys::ibv_recv_wr) -> i32 {
        // SAFETY: the queue lives as long as `self`; the caller vouches for the list.
        unsafe { sys::ibv_post_srq_recv(self.raw.as_ptr(), wr, bad) }
    }

    #[cold]
    fn refusal(&self, code: i32) -> Error {
        self.refused(code)
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: every queue pair on it holds it, so there is none left.
        let code = unsafe { (self.pd.context().table().destroy_srq)(self.raw.as_ptr()) };
        leaked("ibv_destroy_srq", code, &self.pd.context().name());
    }
}

/// Posts one receive of a whole buffer through `verb`.
///
/// # Safety
/// `verb` posts to a live queue, and reads its work request before it returns only.
#[inline]
pub(crate) unsafe fn post(
    wr_id: u64,
    buf: &Buf,
    verb: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> i32,
) -> i32 {
    let mut sge = sys::ibv_sge { addr: buf.addr(), length: buf.capacity(), lkey: buf.lkey().0 };
    let mut wr = sys::ibv_recv_wr { wr_id, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
    let mut bad = null_mut();
    verb(&mut wr, &mut bad)
}
