//! XRC: receive queue pairs that belong to a domain ([`Xrcd`]), and sends that name an SRQ.
//!
//! ```text
//!   Xrcd ──> XrcRecvQp (a handle; the queue pair goes with the last one of all processes)
//!     └────> Srq::create_xrc (its process, its Cq, its Pd; known by its number)
//!   Qp of QpKind::XrcSend ──towards(number)──> XrcSend: post_send, post_send_inline, post_rdma
//! ```

use crate::error::{Error, check, leaked};
use crate::pool::Buf;
use crate::posted::Posted;
use crate::qp::{Qp, atomic_piece, empty_write};
use crate::qp_attr::{self, Change, InitAttr, QpKind, QpState, RtrAttr};
use crate::request::{
    AtomicOp, RdmaOp, Remote, SendFlags, Sge, address, atomic_request, rdma_request, request,
};
use crate::types::{Qpn, SrqNum};
use crate::xrcd::Xrcd;
use rdma_sys as sys;
use std::ptr::NonNull;
use std::sync::Arc;

/// A handle of a domain's receive queue pair: what one handle does, all see.
#[derive(Debug)]
pub struct XrcRecvQp {
    xrcd: Arc<Xrcd>,
    raw: NonNull<sys::ibv_qp>,
    num: Qpn,
}

// SAFETY: verbs objects may be used from every thread.
unsafe impl Send for XrcRecvQp {}
// SAFETY: the fields never change, and threads may call verbs of one queue pair at the same time.
unsafe impl Sync for XrcRecvQp {}

impl XrcRecvQp {
    /// Makes a queue pair, in RESET, with its first handle.
    ///
    /// # Errors
    /// Beyond the device's limits.
    pub fn create(xrcd: &Arc<Xrcd>) -> Result<Arc<XrcRecvQp>, Error> {
        let mut attr = sys::ibv_qp_init_attr_ex {
            qp_type: sys::IBV_QPT_XRC_RECV,
            comp_mask: sys::IBV_QP_INIT_ATTR_XRCD,
            xrcd: xrcd.raw(),
            ..Default::default()
        };
        let context = xrcd.context();
        // SAFETY: an open context, its library, and attributes.
        let raw = unsafe { sys::ibv_create_qp_ex(context.table(), context.raw(), &mut attr) };
        XrcRecvQp::new(xrcd, raw, "ibv_create_qp_ex")
    }

    /// One more handle of queue pair `num` of the domain.
    ///
    /// # Errors
    /// There is none of this number.
    pub fn open(xrcd: &Arc<Xrcd>, num: Qpn) -> Result<Arc<XrcRecvQp>, Error> {
        let mut attr = sys::ibv_qp_open_attr {
            comp_mask: sys::IBV_QP_OPEN_ATTR_NUM | sys::IBV_QP_OPEN_ATTR_XRCD | sys::IBV_QP_OPEN_ATTR_TYPE,
            qp_num: num.0,
            xrcd: xrcd.raw(),
            qp_type: sys::IBV_QPT_XRC_RECV,
            ..Default::default()
        };
        // SAFETY: an open context and attributes.
        let raw = unsafe { sys::ibv_open_qp(xrcd.context().raw(), &mut attr) };
        XrcRecvQp::new(xrcd, raw, "ibv_open_qp")
    }

    fn new(xrcd: &Arc<Xrcd>, raw: *mut sys::ibv_qp, call: &'static str) -> Result<Arc<XrcRecvQp>, Error> {
        let object = || format!("XRC receive queue pair on {}", xrcd.context().name());
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(call, object()))?;
        // SAFETY: a live handle; its number never changes.
        let num = Qpn(unsafe { (*raw.as_ptr()).qp_num });
        Ok(Arc::new(XrcRecvQp { xrcd: xrcd.clone(), raw, num }))
    }

    /// Its number, which is the queue pair's in every process.
    pub fn num(&self) -> Qpn {
        self.num
    }

    /// RESET to INIT.
    ///
    /// # Errors
    /// Wrong state or attributes.
    pub fn to_init(&self, attr: &InitAttr) -> Result<(), Error> {
        self.modify("INIT", qp_attr::init(QpKind::Rc, attr))
    }

    /// INIT to RTR: it takes the messages of one send queue pair.
    ///
    /// # Errors
    /// Wrong state or attributes.
    pub fn to_rtr(&self, attr: &RtrAttr) -> Result<(), Error> {
        self.modify("RTR", qp_attr::rtr(QpKind::Rc, attr))
    }

    /// To ERR.
    ///
    /// # Errors
    /// The last handle that could have kept it is gone.
    pub fn to_error(&self) -> Result<(), Error> {
        self.modify("ERR", qp_attr::error())
    }

    /// Its state.
    ///
    /// # Errors
    /// The device is gone.
    pub fn state(&self) -> Result<QpState, Error> {
        let (mut attr, mut init) = (sys::ibv_qp_attr::default(), sys::ibv_qp_init_attr::default());
        let (query, mask) = (self.xrcd.context().table().query_qp, sys::IBV_QP_STATE.cast_signed());
        // SAFETY: a live handle and room for the answers.
        let code = unsafe { query(self.raw.as_ptr(), &mut attr, mask, &mut init) };
        check("ibv_query_qp", code, || self.describe())?;
        Ok(QpState::from_sys(attr.qp_state))
    }

    fn modify(&self, state: &str, (mut attr, mask): Change) -> Result<(), Error> {
        let modify = self.xrcd.context().table().modify_qp;
        // SAFETY: a live handle and attributes.
        let code = unsafe { modify(self.raw.as_ptr(), &mut attr, mask.cast_signed()) };
        check("ibv_modify_qp", code, || format!("{} to {state}", self.describe()))
    }

    fn describe(&self) -> String {
        format!("XRC receive {} on {}", self.num, self.xrcd.context().name())
    }
}

impl Drop for XrcRecvQp {
    fn drop(&mut self) {
        // SAFETY: the last holder gives the handle back.
        let code = unsafe { (self.xrcd.context().table().destroy_qp)(self.raw.as_ptr()) };
        leaked("ibv_destroy_qp", code, &self.num);
    }
}

/// A send queue pair and the SRQ that its next requests are for.
#[derive(Clone, Copy, Debug)]
pub struct XrcSend<'a> {
    qp: &'a Qp,
    srq: SrqNum,
}

impl Qp {
    /// What is posted through this goes to SRQ `srq` of any process of the domain that the queue pair (of
    /// [`QpKind::XrcSend`]) is connected to.
    #[inline]
    pub fn towards(&self, srq: SrqNum) -> XrcSend<'_> {
        XrcSend { qp: self, srq }
    }
}

impl XrcSend<'_> {
    /// As [`Qp::post_send`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn post_send(self, wr_id: u64, buf: Buf, len: u32, flags: SendFlags) -> Result<Posted, (Buf, Error)> {
        let mut sge = sys::ibv_sge { addr: buf.addr(), length: len.min(buf.capacity()), lkey: buf.lkey().0 };
        let mut wr = self.address(request(wr_id, &mut sge, sys::IBV_WR_SEND, flags.bits()));
        self.qp.post_buf(&mut wr, buf)
    }

    /// As [`Qp::post_send_inline`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn post_send_inline(&self, wr_id: u64, bytes: &[u8], flags: SendFlags) -> Result<(), Error> {
        self.qp.post_inline(wr_id, bytes, flags, |wr| *wr = self.address(*wr))
    }

    /// As [`Qp::post_rdma`]; the remote memory is that of the process that has the SRQ.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn post_rdma(
        self,
        op: RdmaOp,
        wr_id: u64,
        local: Sge,
        remote: Remote,
        flags: SendFlags,
    ) -> Result<(), Error> {
        let mut sge = sys::ibv_sge { addr: local.addr, length: local.len, lkey: local.lkey.0 };
        let mut wr = self.address(rdma_request(op, wr_id, &mut sge, remote, flags));
        self.qp.post_checked(&mut wr)
    }

    /// As [`Qp::post_empty_write`]; it fails if the SRQ is gone.
    ///
    /// # Errors
    /// As there.
    pub fn post_empty_write(self, wr_id: u64, flags: SendFlags) -> Result<(), Error> {
        let mut wr = self.address(empty_write(wr_id, flags));
        self.qp.post_checked(&mut wr)
    }

    /// As [`Qp::post_atomic`]; the remote memory is that of the process that has the SRQ.
    ///
    /// # Errors
    /// As there.
    pub fn post_atomic(
        self,
        op: AtomicOp,
        wr_id: u64,
        buf: Buf,
        remote: Remote,
        flags: SendFlags,
    ) -> Result<Posted, (Buf, Error)> {
        let mut sge = atomic_piece(&buf);
        let mut wr = self.address(atomic_request(op, wr_id, &mut sge, remote, flags));
        self.qp.post_buf(&mut wr, buf)
    }

    #[inline]
    fn address(self, wr: sys::ibv_send_wr) -> sys::ibv_send_wr {
        address(wr, self.srq)
    }
}
