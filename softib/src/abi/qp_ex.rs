//! Extended queue pairs: send requests put together call by call (ibv_wr_post(3)).
//!
//! ```text
//!   wr_start ──> wr_send / wr_rdma_write / ... ──> wr_set_sge / wr_set_ud_addr / ... ──> ... ──> wr_complete (or wr_abort)
//! ```
//!
//! Between start and the end the queue pair belongs to one thread. Requests are collected here as the list that
//! `ibv_post_send` would take; `wr_complete` posts all of them, or none and says what the first mistake was.
//! Only queue pairs of `create_qp_ex` with send operations have the extended struct.

use super::extras::binding;
use super::guard::{guard, guard_ptr};
use super::handle::{engine, qp_index};
use super::queue::{Form, check_init, create};
use super::{ops, shared_qp};
use crate::errno::Errno;
use crate::fabric::MAX_MESSAGE;
use crate::objects::extended::{List, Parts, QpEx};
use crate::objects::work::{UD_MTU, WORD};
use rdma_sys::*;
use std::ffi::{c_int, c_void};

/// `ibv_create_qp_ex(3)`.
pub unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the program passes a valid pointer.
    guard_ptr(|| create_extended(context, unsafe { &mut *init }))
}

fn create_extended(context: *mut ibv_context, init: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    if init.qp_type == IBV_QPT_XRC_RECV {
        return shared_qp::create_receive(context, init);
    }
    let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let has = |bit: u32| init.comp_mask & bit != 0;
    let operations = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(init.send_ops_flags);
    if init.comp_mask & !known != 0
        || has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && init.create_flags != 0
        || operations.unwrap_or(0) & !offered(init.qp_type) != 0
    {
        return Err(Errno::OPNOTSUPP);
    }
    // SAFETY: the program passes null or a PD of ours.
    if !has(IBV_QP_INIT_ATTR_PD) || init.pd.is_null() || unsafe { (*init.pd).context } != context {
        return Err(Errno::INVAL);
    }
    let (send_cq, recv_cq, srq, cap) = (init.send_cq, init.recv_cq, init.srq, init.cap);
    let (qp_context, qp_type, sq_sig_all) = (init.qp_context, init.qp_type, init.sq_sig_all);
    let mut basic = ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all };
    check_init(&basic)?;
    let form = if operations.is_some() { Form::Extended } else { Form::Plain };
    let qp = create(&mut engine()?.enter(), init.pd, &mut basic, form)?;
    init.cap = basic.cap;
    if let Some(operations) = operations {
        // SAFETY: create() hands out the first member of a QpEx when it is asked for the extended form, and the program has not
        // been given it yet.
        offer(unsafe { &mut *qp.cast::<QpEx>() }, operations);
    }
    Ok(qp)
}

/// The operations that a QP type has.
fn offered(kind: u32) -> u64 {
    let send = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    let write = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let fetch =
        IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    let own = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
    let reliable = IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_ATOMIC_WRITE;
    match kind {
        IBV_QPT_RC => send | write | fetch | own | reliable,
        IBV_QPT_XRC_SEND => send | write | fetch | IBV_QP_EX_WITH_ATOMIC_WRITE,
        IBV_QPT_UC => send | write | own,
        _ => send,
    }
}

/// Fills in the functions of the operations asked for, and those to build with.
fn offer(qp: &mut QpEx, operations: u64) {
    let ex = &mut qp.ex;
    macro_rules! fill {
        ($($bit:ident => $name:ident),* $(,)?) => { $( if operations & $bit != 0 { ex.$name = Some($name); } )* };
        ($($name:ident),* $(,)?) => { $( ex.$name = Some($name); )* };
    }
    fill! {
        IBV_QP_EX_WITH_SEND => wr_send, IBV_QP_EX_WITH_SEND_WITH_IMM => wr_send_imm,
        IBV_QP_EX_WITH_RDMA_WRITE => wr_rdma_write, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM => wr_rdma_write_imm,
        IBV_QP_EX_WITH_RDMA_READ => wr_rdma_read, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP => wr_atomic_cmp_swp,
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD => wr_atomic_fetch_add,
        IBV_QP_EX_WITH_ATOMIC_WRITE => wr_atomic_write, IBV_QP_EX_WITH_BIND_MW => wr_bind_mw,
        IBV_QP_EX_WITH_LOCAL_INV => wr_local_inv, IBV_QP_EX_WITH_SEND_WITH_INV => wr_send_inv,
    }
    fill! { wr_start, wr_complete, wr_abort, wr_set_sge, wr_set_sge_list, wr_set_inline_data, wr_set_inline_data_list }
    if ex.qp_base.qp_type == IBV_QPT_UD {
        ex.wr_set_ud_addr = Some(wr_set_ud_addr);
    }
    if ex.qp_base.qp_type == IBV_QPT_XRC_SEND {
        ex.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    }
}

/// `ibv_qp_to_qp_ex`: the extended form of a QP that has one, else null.
///
/// # Safety
/// A live QP of this device.
pub unsafe extern "C" fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    guard_ptr(|| {
        let mut state = engine()?.enter();
        let known = if shared_qp::handle_key(qp).is_none() { state.qps.get_mut(qp_index(qp)) } else { None };
        Ok(known.and_then(|qp| qp.c.extended()).map_or(std::ptr::null_mut(), |c| c.cast()))
    })
}

/// Runs `body` on the QP that a program passed to one of its functions.
fn on(qp: *mut ibv_qp_ex, body: impl FnOnce(&mut QpEx) -> Result<(), Errno>) {
    let mut mistake = None;
    // SAFETY: only QPs of ours have these functions, and it is the calling thread's turn (between start and the end).
    guard(|| unsafe {
        mistake = body(&mut *qp.cast::<QpEx>()).err();
        Ok(())
    });
    if mistake.is_some() {
        // SAFETY: only QPs of ours have these functions, it is the calling thread's turn, and the
        // reference that `body` had is gone.
        let list = unsafe { &mut (*qp.cast::<QpEx>()).list };
        list.mistake = list.mistake.or(mistake);
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: only QPs of ours have this function; until it is its turn a thread touches nothing else of it.
    unsafe { (*qp.cast::<QpEx>()).turn.take() };
    on(qp, |qp| {
        qp.list.forget();
        Ok(())
    });
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: only QPs of ours have this function, and it is the calling thread's turn.
    let result = guard(|| unsafe { (*qp.cast::<QpEx>()).list.post(qp.cast()) });
    // SAFETY: only QPs of ours have this function, so `qp` is a live QpEx; `turn` is atomic, and
    // the list's reference is gone.
    unsafe { (*qp.cast::<QpEx>()).turn.give() };
    result
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: only QPs of ours have this function, and it is the calling thread's turn.
    unsafe { (*qp.cast::<QpEx>()).turn.give() };
}

impl List {
    fn forget(&mut self) {
        self.requests.clear();
        self.parts.clear();
        self.mistake = None;
    }

    /// Posts what has been put together.
    fn post(&mut self, qp: *mut ibv_qp) -> Result<(), Errno> {
        if let Some(mistake) = self.mistake {
            return Err(mistake);
        }
        // SAFETY: a UD request has this member of the union or, without an address, zeroes.
        let lost = |wr: &ibv_send_wr| unsafe { wr.wr.ud.ah.is_null() };
        // SAFETY: the program passes a QP of ours.
        if unsafe { (*qp).qp_type } == IBV_QPT_UD && self.requests.iter().any(lost) {
            return Err(Errno::INVAL);
        }
        for (wr, Parts { sges, inline }) in self.requests.iter_mut().zip(&mut self.parts) {
            if wr.send_flags & IBV_SEND_INLINE != 0 {
                *sges = vec![ibv_sge { addr: inline.as_ptr() as u64, length: inline.len() as u32, lkey: 0 }];
            }
            (wr.sg_list, wr.num_sge) = (sges.as_mut_ptr(), sges.len() as c_int);
        }
        ops::post_all(qp, &self.requests)
    }
}

impl QpEx {
    /// Begins a request; wr_id and flags are those the program has put into the C struct.
    fn begin(&mut self, opcode: u32, change: impl FnOnce(&mut ibv_send_wr)) {
        let send_flags = self.ex.wr_flags & !IBV_SEND_INLINE;
        let mut wr = ibv_send_wr { wr_id: self.ex.wr_id, opcode, send_flags, ..Default::default() };
        change(&mut wr);
        self.list.requests.push(wr);
        self.list.parts.push(Parts::default());
    }

    fn begin_rdma(&mut self, opcode: u32, rkey: u32, remote_addr: u64) {
        self.begin(opcode, |wr| wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey });
    }

    /// The request that a setter is for.
    fn latest(&mut self) -> Result<(&mut ibv_send_wr, &mut Parts), Errno> {
        self.list.requests.last_mut().zip(self.list.parts.last_mut()).ok_or(Errno::INVAL)
    }

    fn set_sges(&mut self, sges: &[ibv_sge]) -> Result<(), Errno> {
        let (max_sge, limit) = (self.cap.max_send_sge as usize, self.longest());
        let (_, parts) = self.latest()?;
        let len: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        if sges.len() > max_sge || len > limit {
            return Err(Errno::INVAL);
        }
        parts.sges = sges.to_vec();
        Ok(())
    }

    fn longest(&self) -> u64 {
        (if self.ex.qp_base.qp_type == IBV_QPT_UD { UD_MTU } else { MAX_MESSAGE }).into()
    }

    fn set_inline<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) -> Result<(), Errno> {
        let limit = self.cap.max_inline_data as usize;
        let (wr, parts) = self.latest()?;
        parts.inline = pieces.flatten().copied().take(limit + 1).collect();
        let fetches = IBV_WR_RDMA_READ..=IBV_WR_ATOMIC_FETCH_AND_ADD;
        if parts.inline.len() > limit || fetches.contains(&wr.opcode) {
            return Err(Errno::INVAL);
        }
        wr.send_flags |= IBV_SEND_INLINE;
        Ok(())
    }
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    on(qp, |qp| {
        qp.begin(IBV_WR_SEND, |_| ());
        Ok(())
    });
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    on(qp, |qp| {
        qp.begin(IBV_WR_SEND_WITH_IMM, |wr| wr.imm.imm_data = imm);
        Ok(())
    });
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    on(qp, |qp| {
        qp.begin_rdma(IBV_WR_RDMA_WRITE, rkey, addr);
        Ok(())
    });
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    on(qp, |qp| {
        qp.begin_rdma(IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr);
        qp.latest()?.0.imm.imm_data = imm;
        Ok(())
    });
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    on(qp, |qp| {
        qp.begin_rdma(IBV_WR_RDMA_READ, rkey, addr);
        Ok(())
    });
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare_add: u64,
    swap: u64,
) {
    let atomic = ibv_send_wr_atomic { remote_addr, compare_add, swap, rkey };
    on(qp, |qp| {
        qp.begin(IBV_WR_ATOMIC_CMP_AND_SWP, |wr| wr.wr.atomic = atomic);
        Ok(())
    });
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare_add: u64) {
    let atomic = ibv_send_wr_atomic { remote_addr, compare_add, swap: 0, rkey };
    on(qp, |qp| {
        qp.begin(IBV_WR_ATOMIC_FETCH_AND_ADD, |wr| wr.wr.atomic = atomic);
        Ok(())
    });
}

/// 8 bytes that arrive as one, which the request copies.
unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, word: *const c_void) {
    on(qp, |qp| {
        qp.begin_rdma(IBV_WR_ATOMIC_WRITE, rkey, addr);
        // SAFETY: the program passes 8 readable bytes.
        qp.set_inline(std::iter::once(unsafe { elements(word.cast::<u8>(), WORD as usize) }))
    });
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    on(qp, |qp| {
        qp.begin(IBV_WR_SEND_WITH_INV, |wr| wr.imm.invalidate_rkey = rkey);
        Ok(())
    });
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    on(qp, |qp| {
        qp.begin(IBV_WR_LOCAL_INV, |wr| wr.imm.invalidate_rkey = rkey);
        Ok(())
    });
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    on(qp, |qp| {
        // SAFETY: the program passes a valid pointer.
        let bind_mw = ibv_send_wr_bind_mw { mw, rkey, bind_info: unsafe { *info } };
        binding::requested(&bind_mw)?;
        qp.begin(IBV_WR_BIND_MW, |wr| wr.rare.bind_mw = bind_mw);
        Ok(())
    });
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    on(qp, |qp| {
        if ah.is_null() {
            return Err(Errno::INVAL);
        }
        qp.latest()?.0.wr.ud = ibv_send_wr_ud { ah, remote_qpn, remote_qkey };
        Ok(())
    });
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    on(qp, |qp| {
        qp.latest()?.0.qp_type.xrc = ibv_send_wr_xrc { remote_srqn };
        Ok(())
    });
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    on(qp, |qp| qp.set_sges(&[ibv_sge { addr, length, lkey }]));
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, sges: *const ibv_sge) {
    // SAFETY: the program passes `count` elements.
    on(qp, |qp| qp.set_sges(unsafe { elements(sges, count) }));
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the program passes `length` readable bytes.
    on(qp, |qp| qp.set_inline(std::iter::once(unsafe { elements(addr.cast(), length) })));
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: the program passes `count` elements, each with the readable bytes it names.
    let bytes = |buf: &ibv_data_buf| unsafe { elements(buf.addr.cast::<u8>().cast_const(), buf.length) };
    // SAFETY: the program passes `count` elements at `list`.
    on(qp, |qp| qp.set_inline(unsafe { elements(list, count) }.iter().map(bytes)));
}

/// # Safety
/// `list` has `count` elements.
unsafe fn elements<'a, T>(list: *const T, count: usize) -> &'a [T] {
    // SAFETY: the caller passes `count` elements at `list`, which is not null (checked here).
    if count == 0 || list.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(list, count) } }
}
