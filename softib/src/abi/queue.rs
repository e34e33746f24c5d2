//! Queue pairs: create, modify, query, destroy.

use super::extras::window;
use super::guard::{guard, guard_ptr};
use super::handle::{context_key, cq_key, engine, pd_key, qp_index, srq_key, use_context, use_pd};
use super::limits::MAX_WR;
use super::srq::release_queue;
use super::values::{check_values, port_of, store};
use super::{event, shared_qp};
use crate::datapath::initiator::tell_drained;
use crate::datapath::iwarp;
use crate::engine::state::State;
use crate::errno::Errno;
use crate::fabric::address::Address;
use crate::faults::{Call, Step, calls as faults};
use crate::objects::events::Subject;
use crate::objects::extended::{QpC, QpEx};
use crate::objects::peer::{Link, Route};
use crate::objects::qp::{Qp, Stream, Usual, number};
use crate::objects::recvq::RecvQ;
use crate::objects::work::MAX_SGE;
use crate::objects::world::World;
use crate::objects::xrc_link::SendLink;
use crate::objects::{CBox, qp_state, zeroed};
use crate::shm::domain::DomainFile;
use crate::shm::layout::{DOMAIN_SLOTS, QP_BITS, QPS};
use crate::shm::shortage::is_shortage;
use rdma_sys::*;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;

/// Longest inline payload that is granted.
const MAX_INLINE: u32 = 128 << 10;

/// A request for less gets this all the same.
const LEAST_INLINE: u32 = 1024;

const PSN_MASK: u32 = 0xff_ffff;

/// What a queue pair without a receive side has for a receive CQ.
const NO_CQ: usize = usize::MAX;

/// `ibv_create_qp(3)`.
pub unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    guard_ptr(|| {
        // SAFETY: the program passes valid pointers.
        let init = unsafe { &mut *init };
        check_init(init)?;
        create(&mut engine()?.enter(), pd, init, Form::Plain)
    })
}

/// Whether a queue pair of these attributes can be. EINVAL: more than the device's limits, or no completion queue; EOPNOTSUPP: a type that it has not.
pub fn check_init(init: &ibv_qp_init_attr) -> Result<(), Errno> {
    let sends_only = init.qp_type == IBV_QPT_XRC_SEND;
    if !matches!(init.qp_type, IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_UD | IBV_QPT_XRC_SEND) {
        return Err(Errno::OPNOTSUPP);
    }
    let cap = &init.cap;
    let fits = cap.max_send_wr <= MAX_WR
        && cap.max_recv_wr <= MAX_WR
        && cap.max_send_sge <= MAX_SGE
        && cap.max_recv_sge <= MAX_SGE
        && cap.max_inline_data <= MAX_INLINE;
    let completes = !init.send_cq.is_null() && (sends_only || !init.recv_cq.is_null());
    if fits && completes { Ok(()) } else { Err(Errno::INVAL) }
}

/// Which C struct a queue pair has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Plain,
    Extended,
}

/// Makes a queue pair (ibv_create_qp(3)), in RESET, with what it was really given written to `init`.
pub fn create(
    state: &mut State,
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    form: Form,
) -> Result<*mut ibv_qp, Errno> {
    faults::fate(Call::CreateQp)?;
    let State { qps, w, .. } = state;
    if init.qp_type == IBV_QPT_XRC_SEND {
        // It has no receive side, whatever the program says of one.
        (init.recv_cq, init.srq) = (std::ptr::null_mut(), std::ptr::null_mut());
    }
    let srq = (!init.srq.is_null()).then(|| srq_key(init.srq));
    // SAFETY: the program passes a PD of ours.
    let device = w.device(context_key(unsafe { (*pd).context }));
    let queue = |cq| w.cqs.get(cq_key(cq)).is_some_and(|cq| w.device(cq.context) == device);
    let known = w.pds.contains(pd_key(pd))
        && queue(init.send_cq)
        && (init.recv_cq.is_null() || queue(init.recv_cq))
        // An XRC SRQ is reached through its number only.
        && srq.and_then(|srq| w.srqs.get(srq)).is_none_or(|srq| srq.xrc.is_none() && w.device(srq.context) == device)
        && srq.is_none_or(|srq| w.srqs.contains(srq));
    if !known {
        return Err(Errno::INVAL);
    }
    if w.is_iwarp() && init.qp_type != IBV_QPT_RC {
        return Err(Errno::OPNOTSUPP);
    }
    let (index, generation) = qps.reserve().ok_or(Errno::NOMEM)?;
    match build(w, pd, (init, form), index, generation) {
        Ok(qp) => {
            let pointer = qp.pointer();
            count(w, &qp, 1);
            qp.publish(w);
            qps.insert(qp);
            Ok(pointer)
        }
        Err(error) => {
            qps.release(index);
            Err(error)
        }
    }
}

fn build(
    w: &mut World,
    pd: *mut ibv_pd,
    (init, form): (&mut ibv_qp_init_attr, Form),
    index: usize,
    generation: u32,
) -> Result<Box<Qp>, Errno> {
    w.segment.open_qp_entry(index)?;
    let srq = (!init.srq.is_null()).then(|| srq_key(init.srq));
    let sends_only = init.qp_type == IBV_QPT_XRC_SEND;
    let cap = grant(&init.cap, srq.is_some() || sends_only);
    let rq = match srq {
        Some(_) => None,
        None if sends_only => None,
        None => {
            let shared = init.qp_type == IBV_QPT_UD;
            Some(RecvQ::new(&w.segment, &mut w.heap, shared, cap.max_recv_wr, cap.max_recv_sge)?)
        }
    };
    init.cap = cap;
    let num = number(w.segment.slot, index);
    let c = match (new_c(pd, init, num, index), form) {
        (c, Form::Plain) => QpC::Plain(CBox::new(c)),
        (c, Form::Extended) => QpC::Extended(CBox::new(QpEx::new(c, init.cap))),
    };
    // SAFETY: the program passes a PD of ours.
    let context = context_key(unsafe { (*pd).context });
    Ok(Box::new(Qp {
        c,
        context,
        index,
        num,
        kind: init.qp_type,
        state: IBV_QPS_RESET,
        direct: false,
        short: false,
        writes: false,
        usual: Usual::default(),
        pd: pd_key(pd),
        send_cq: cq_key(init.send_cq),
        recv_cq: if sends_only { NO_CQ } else { cq_key(init.recv_cq) },
        srq,
        cap,
        sig_all: init.sq_sig_all != 0,
        attr: ibv_qp_attr::default(),
        generation,
        link: None,
        rq,
        inbound: None,
        sq: VecDeque::new(),
        ahead: 0,
        sq_posted: 0,
        sq_retired: 0,
        busy: false,
        refused: None,
        refuses_gifts: false,
        heard: 0,
        established: false,
        async_events: 0,
        held: None,
        stream: Stream::Free,
        xrc: None,
        port: 0,
        ending: None,
    }))
}

fn grant(asked: &ibv_qp_cap, no_receives: bool) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: asked.max_send_wr,
        max_recv_wr: if no_receives { 0 } else { asked.max_recv_wr },
        max_send_sge: asked.max_send_sge.max(1),
        max_recv_sge: if no_receives { 0 } else { asked.max_recv_sge.max(1) },
        max_inline_data: asked.max_inline_data.max(LEAST_INLINE),
    }
}

fn new_c(pd: *mut ibv_pd, init: &ibv_qp_init_attr, num: u32, index: usize) -> ibv_qp {
    // SAFETY: ibv_qp is plain C data; zeroes are valid, also for its mutex and cond on Linux.
    let mut c: ibv_qp = unsafe { zeroed() };
    // SAFETY: the program passes a PD of ours.
    c.context = unsafe { (*pd).context };
    (c.qp_context, c.pd, c.send_cq, c.recv_cq) = (init.qp_context, pd, init.send_cq, init.recv_cq);
    (c.srq, c.handle, c.qp_num) = (init.srq, index as u32, num);
    (c.state, c.qp_type) = (IBV_QPS_RESET, init.qp_type);
    c
}

/// Counts a QP in or out of everything it uses.
fn count(w: &mut World, qp: &Qp, delta: i32) {
    let _ = use_context(w, qp.context, delta);
    use_pd(w, qp.pd, delta);
    for cq in [qp.send_cq, qp.recv_cq] {
        if let Some(cq) = w.cqs.get_mut(cq) {
            cq.users = cq.users.saturating_add_signed(delta);
        }
    }
    if let Some(srq) = qp.srq.and_then(|srq| w.srqs.get_mut(srq)) {
        srq.users = srq.users.saturating_add_signed(delta);
    }
}

/// `ibv_modify_qp(3)`.
pub unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    guard(|| {
        // SAFETY: the program passes a valid pointer.
        let (attr, mask) = (unsafe { &*attr }, mask as u32);
        faults::fate(Call::ModifyQp)?;
        // SAFETY: the program passes a QP of ours.
        faults::reach(Step::of_change(unsafe { (*qp).qp_type }, mask, attr.qp_state));
        let engine = engine()?;
        let mut state = engine.enter();
        let State { qps, w, .. } = &mut *state;
        if let Some(handle) = shared_qp::handle_key(qp) {
            return shared_qp::modify(w, handle, attr, mask);
        }
        let index = qp_index(qp);
        let qp = qps.get_mut(index).ok_or(Errno::INVAL)?;
        check_step(qp, w, attr, mask)?;
        let (to, port) = check_change(qp, w, attr, mask)?;
        match to {
            IBV_QPS_ERR => state.fail(index),
            IBV_QPS_RESET => reset(&mut state, index),
            _ => change(qp, w, attr, mask, (to, port))?,
        }
        let waiting = !state.w.busy.is_empty();
        drop(state);
        if waiting && engine.shared.thread_in_charge() {
            engine.shared.wake();
        }
        Ok(())
    })
}

/// Whether a program may do that.
fn check_step(qp: &Qp, w: &World, attr: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
    let to = if mask & IBV_QP_STATE != 0 { attr.qp_state } else { qp.state };
    if w.is_iwarp() {
        return iwarp::check(qp.state, to);
    }
    qp_state::check(qp.kind, qp.state, to, qp_state::applicable(qp.kind, mask))
}

/// The state and the port that a change of attributes leads to. EINVAL: a value that can't be.
fn check_change(qp: &Qp, w: &World, attr: &ibv_qp_attr, mask: u32) -> Result<(u32, u8), Errno> {
    let mask = qp_state::applicable(qp.kind, mask);
    if mask & IBV_QP_CUR_STATE != 0 && attr.cur_qp_state != qp.state {
        return Err(Errno::INVAL);
    }
    let to = if mask & IBV_QP_STATE != 0 { attr.qp_state } else { qp.state };
    let port = port_of(&w.ports, w.device(qp.context), &qp.attr, attr, mask)?;
    check_values(attr, mask, &w.ports, port)?;
    Ok((to, port))
}

/// Carries out a change that has been checked and leads neither to ERR nor to RESET. ENOMEM, EMFILE, EUSERS, ...: something has run
/// out on the way to the peer, and the queue pair is as before.
fn change(
    qp: &mut Qp,
    w: &mut World,
    attr: &ibv_qp_attr,
    mask: u32,
    (to, port): (u32, u8),
) -> Result<(), Errno> {
    let mask = qp_state::applicable(qp.kind, mask);
    let path = mask & (IBV_QP_DEST_QPN | IBV_QP_AV) != 0;
    let partition = mask & (IBV_QP_PKEY_INDEX | IBV_QP_PORT) != 0 && (qp.link.is_some() || qp.xrc.is_some());
    let before = (qp.attr, qp.port);
    store(&mut qp.attr, attr, mask);
    qp.port = port;
    // Packet sequence numbers have 24 bits (IBTA 9.2.1).
    (qp.attr.rq_psn, qp.attr.sq_psn) = (qp.attr.rq_psn & PSN_MASK, qp.attr.sq_psn & PSN_MASK);
    let connected = match qp.kind {
        IBV_QPT_UD => Ok(()),
        _ if !(path || partition) => Ok(()),
        IBV_QPT_XRC_SEND => connect_xrc(qp, w),
        _ => connect(qp, w),
    };
    if let Err(error) = connected {
        (qp.attr, qp.port) = before;
        return Err(error);
    }
    arrive(qp, w, to);
    Ok(())
}

/// Takes a queue pair back to RESET. What it has acknowledged is in its buffers then.
fn reset(state: &mut State, index: usize) {
    state.silence(index);
    let State { qps, w, .. } = state;
    qps.get_mut(index).into_iter().for_each(|qp| qp.reset(w));
}

/// Queue pair `qpn` of this process, which an iWARP connection manager may connect now: in INIT.
pub fn check_idle(qpn: u32) -> Result<(), Errno> {
    let mut state = engine()?.enter();
    let qp = state.qps.get_mut(qpn as usize % QPS).filter(|qp| qp.num == qpn);
    if qp.is_some_and(|qp| qp.state == IBV_QPS_INIT) { Ok(()) } else { Err(Errno::INVAL) }
}

/// Takes queue pair `qpn` of this process, in INIT, to RTR and RTS, for an iWARP connection manager.
pub fn connect_stream(qpn: u32, steps: &[(ibv_qp_attr, u32)], stream: Stream) -> Result<(), Errno> {
    check_idle(qpn)?;
    let mut state = engine()?.enter();
    let State { qps, w, .. } = &mut *state;
    let qp = qps.get_mut(qpn as usize % QPS).ok_or(Errno::INVAL)?;
    qp.stream = stream;
    steps.iter().try_for_each(|(attr, mask)| {
        let to = check_change(qp, w, attr, *mask)?;
        change(qp, w, attr, *mask, to)
    })
}

/// Whether a completion of queue pair `qpn` of this process waits in the queue of its receives, what its peer has sent by now included.
pub fn has_unpolled(qpn: u32) -> bool {
    let Ok(engine) = engine() else { return false };
    let mut state = engine.enter();
    let qp = state.qps.get_mut(qpn as usize % QPS).filter(|qp| qp.num == qpn);
    let Some((cq, link)) = qp.map(|qp| (qp.recv_cq, qp.link.as_ref().map(|link| link.incarnation))) else {
        return false;
    };
    state.take_in_from(|incarnation| link == Some(incarnation));
    state.settle();
    state.w.cqs.get(cq).is_some_and(|cq| cq.holds(qpn))
}

/// The connection of queue pair `qpn` of this process is over: it goes to the error state, if it is still there.
pub fn end_stream(qpn: u32) {
    let Ok(engine) = engine() else { return };
    let mut state = engine.enter();
    let index = qpn as usize % QPS;
    if state.qps.get_mut(index).is_some_and(|qp| qp.num == qpn) {
        state.fail(index);
    }
}

/// Enters a state that is not an end; queued sends go on when it is RTS.
fn arrive(qp: &mut Qp, w: &mut World, to: u32) {
    qp.set_state(to, w);
    if to == IBV_QPS_RTS && !qp.sq.is_empty() && !qp.busy {
        qp.busy = true;
        w.busy.push(qp.index);
    }
    tell_drained(qp, w);
}

/// Binds the QP to the process that has its destination QPN now, if the address leads to it; else
/// there is silence. ENOMEM, EMFILE, EUSERS, ...: something has run out on the way to it.
fn connect(qp: &mut Qp, w: &mut World) -> Result<(), Errno> {
    let (dest, pkey) = (qp.attr.dest_qp_num, w.ports.pkey(qp.attr.pkey_index));
    let found = find(w, dest, qp.port, &Address::from(&qp.attr.ah_attr));
    let (incarnation, theirs) = or_silence(qp, found)?.unwrap_or_default();
    let route = Route { incarnation, ours: qp.port, theirs, pkey };
    match qp.link.as_mut() {
        Some(link) => link.repath(route),
        None => qp.link = Some(Link::new(dest, route)),
    }
    Ok(())
}

/// What has been found at a queue pair's destination; None: it does not answer. A shortage is no silence.
fn or_silence<T>(qp: &Qp, found: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match found {
        Err(error) if is_shortage(error) => Err(error),
        Err(error) => {
            log::warn!("qp {:#x}: qp {:#x} does not answer: {error}", qp.num, qp.attr.dest_qp_num);
            Ok(None)
        }
        Ok(found) => Ok(Some(found)),
    }
}

/// The process that has queue pair `dest` and a port with this address, and which of its ports that is.
fn find(w: &mut World, dest: u32, from: u8, to: &Address) -> Result<(u64, u8), Errno> {
    let peer = w.peers.reach((dest >> QP_BITS) as usize)?;
    let port = to.find(w.ports.card(from), &peer.cards).ok_or(Errno(libc::EHOSTUNREACH))?;
    peer.open_queue(dest as usize % QPS)?;
    Ok((peer.incarnation, port))
}

/// The same for an XRC send queue pair: it is bound to a domain, where its destination is a receive queue pair.
fn connect_xrc(qp: &mut Qp, w: &mut World) -> Result<(), Errno> {
    let (dest, pkey) = (qp.attr.dest_qp_num, w.ports.pkey(qp.attr.pkey_index));
    let found = find_domain(w, dest, qp.port, &Address::from(&qp.attr.ah_attr));
    let Some((domain, theirs)) = or_silence(qp, found)? else {
        qp.xrc = None;
        return Ok(());
    };
    let route = Route { incarnation: domain.incarnation, ours: qp.port, theirs, pkey };
    match qp.xrc.as_mut() {
        Some(link) if link.incarnation() == domain.incarnation => link.repath(route),
        _ => qp.xrc = Some(Box::new(SendLink::new(domain, dest, route))),
    }
    Ok(())
}

/// The domain that has queue pair `dest`, of a device with a port of this address, and which of its ports that is.
fn find_domain(w: &mut World, dest: u32, from: u8, to: &Address) -> Result<(Arc<DomainFile>, u8), Errno> {
    let slot = (dest >> QP_BITS) as usize;
    if slot < DOMAIN_SLOTS {
        return Err(Errno::NODEV);
    }
    let dir = w.peers.dir().to_owned();
    let domain = w.xrc.view(&dir, slot)?;
    let port = to.find(w.ports.card(from), &domain.cards()?).ok_or(Errno(libc::EHOSTUNREACH))?;
    Ok((domain, port))
}

/// `ibv_query_qp(3)`.
pub unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    guard(|| {
        faults::fate(Call::QueryQp)?;
        let mut state = engine()?.enter();
        if let Some(handle) = shared_qp::handle_key(qp) {
            let (now, made) = shared_qp::query(&state.w, handle)?;
            // SAFETY: the program passes valid pointers.
            unsafe { (attr.write(now), init.write(made)) };
            return Ok(());
        }
        let found = state.qps.get_mut(qp_index(qp)).ok_or(Errno::INVAL)?;
        let mut now = found.attr;
        (now.qp_state, now.cur_qp_state, now.cap) = (found.state, found.state, found.cap);
        now.sq_draining = u8::from(found.state == IBV_QPS_SQD && !found.sq.is_empty());
        // SAFETY: the program passes valid pointers, and a QP of ours.
        unsafe {
            attr.write(now);
            let c = &*qp;
            init.write(ibv_qp_init_attr {
                qp_context: c.qp_context,
                send_cq: c.send_cq,
                recv_cq: c.recv_cq,
                srq: c.srq,
                cap: found.cap,
                qp_type: found.kind,
                sq_sig_all: found.sig_all.into(),
            });
        }
        Ok(())
    })
}

/// `ibv_destroy_qp(3)`.
pub unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    guard(|| {
        faults::fate(Call::DestroyQp)?;
        if let Some(handle) = shared_qp::handle_key(qp) {
            return shared_qp::destroy(qp, handle);
        }
        let index = qp_index(qp);
        let delivered = retire(&mut engine()?.enter(), index)?;
        event::wait_for_qp_acks(qp, delivered);
        window::forget_queue_pair(index)?;
        let mut state = engine()?.enter();
        let State { qps, w, .. } = &mut *state;
        let gone = qps.remove(index).ok_or(Errno::INVAL)?;
        if let Some(rq) = &gone.rq {
            release_queue(w, rq);
        }
        count(w, &gone, -1);
        Ok(())
    })
}

/// Makes a QP silent before it is destroyed; returns the number of events to be acknowledged. EBUSY: it listens to a multicast group
/// (ibv_destroy_qp(3)).
fn retire(state: &mut State, index: usize) -> Result<u32, Errno> {
    let State { qps, w, .. } = state;
    let qp = qps.get_mut(index).ok_or(Errno::INVAL)?;
    if w.groups.has(index) {
        return Err(Errno::BUSY);
    }
    event::forget(w, qp.context, Subject::Qp(index));
    reset(state, index);
    let State { qps, w, .. } = state;
    let qp = qps.get_mut(index).ok_or(Errno::INVAL)?;
    // What has been taken in may have raised some.
    event::forget(w, qp.context, Subject::Qp(index));
    Ok(qp.async_events)
}
