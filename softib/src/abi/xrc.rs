//! XRC domains and XRC SRQs (ibv_open_xrcd(3), ibv_create_srq_ex(3)).

use super::guard::{guard, guard_ptr};
use super::handle::{context_key, cq_key, engine, srq_key, use_context, xrcd_key};
use super::listing::device_of;
use super::srq::{new_srq, publish};
use crate::engine::state::State;
use crate::errno::Errno;
use crate::fabric::{self, LinkLayer};
use crate::faults::{Call, calls as faults};
use crate::objects::CBox;
use crate::objects::qp::number;
use crate::objects::world::World;
use crate::objects::xrc::{Domain, XrcSrq, Xrcd, XrcdC};
use crate::shm::card::Card;
use crate::shm::domain::Identity;
use crate::shm::registry;
use rdma_sys::*;
use std::collections::HashMap;
use std::ffi::c_int;
use std::fs::File;
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};

/// Opening and closing wait for other processes: they take turns here, not under the engine's lock.
static TURN: Mutex<()> = Mutex::new(());

/// `ibv_open_xrcd(3)`.
pub unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: the program passes a valid pointer.
    guard_ptr(|| open(context, unsafe { &*attr }))
}

fn open(context: *mut ibv_context, attr: &ibv_xrcd_init_attr) -> Result<*mut ibv_xrcd, Errno> {
    faults::fate(Call::OpenXrcd)?;
    if fabric::link_layer() == LinkLayer::Iwarp {
        return Err(Errno::OPNOTSUPP);
    }
    const WANTED: u32 = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    if attr.comp_mask & !WANTED != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if attr.comp_mask != WANTED || attr.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
        return Err(Errno::INVAL);
    }
    let (create, exclusive) = (attr.oflags & libc::O_CREAT != 0, attr.oflags & libc::O_EXCL != 0);
    let inode = duplicate(attr.fd)?;
    let ports = engine()?.enter().w.ports.of_device(device_of(context)?).to_vec();
    let identity = match &inode {
        None => Identity::Private,
        Some(file) => {
            let data = file.metadata()?;
            let node = ports.first().ok_or(Errno::NODEV)?.guid;
            Identity::Inode { dev: data.dev(), ino: data.ino(), node }
        }
    };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let domain = match known(identity)? {
        Some(_) if create && exclusive => return Err(Errno::INVAL),
        Some(domain) => domain,
        None => join(identity, inode, create.then_some(&ports), exclusive)?,
    };
    insert(&mut engine()?.enter().w, context, domain)
}

/// A descriptor of our own for the file that names a domain; None for -1.
fn duplicate(fd: c_int) -> Result<Option<File>, Errno> {
    if fd == -1 {
        return Ok(None);
    }
    // SAFETY: a system call on a number; a bad one is an error.
    let own = crate::errno::check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })?;
    // SAFETY: fcntl made the descriptor just now, and nothing else owns it.
    Ok(Some(unsafe { File::from_raw_fd(own) }))
}

/// The domain of `identity` if this process has it open.
fn known(identity: Identity) -> Result<Option<usize>, Errno> {
    let state = engine()?.enter();
    let mut open = state.w.xrc.domains.iter();
    let found = open.find(|(_, domain)| identity != Identity::Private && domain.identity() == identity);
    Ok(found.map(|(key, _)| key))
}

/// Opens a domain for this process and takes a place among its holders.
fn join(
    identity: Identity,
    inode: Option<File>,
    ports: Option<&[Card]>,
    exclusive: bool,
) -> Result<usize, Errno> {
    let dir = engine()?.enter().w.peers.dir().to_owned();
    let file = registry::open(&dir, identity, ports, exclusive)?;
    let mut state = engine()?.enter();
    let w = &mut state.w;
    let me = (w.segment.slot, w.segment.incarnation);
    let joined = file.lock().and_then(|locked| {
        locked.purge(|(slot, incarnation)| w.peers.is_gone(slot, incarnation));
        locked.join(me)
    });
    let holder = joined.inspect_err(|_| registry::leave(&dir, &file))?;
    let (file, events_seen) = (Arc::new(file), 0);
    w.xrc.note(&file);
    engine()?.shared.domains(1);
    Ok(w.xrc.domains.insert(Domain {
        file,
        holder,
        opens: 0,
        handles: HashMap::new(),
        events_seen,
        _inode: inode,
    }))
}

fn insert(w: &mut World, context: *mut ibv_context, domain: usize) -> Result<*mut ibv_xrcd, Errno> {
    let at = context_key(context);
    use_context(w, at, 1)?;
    w.xrc.domains.get_mut(domain).ok_or(Errno::INVAL)?.opens += 1;
    let entry = w.xrc.xrcds.vacant_entry();
    let c = CBox::new(XrcdC { c: ibv_xrcd { context }, key: entry.key() });
    let pointer = c.as_ptr().cast();
    entry.insert(Xrcd { _c: c, context: at, domain, users: 0 });
    Ok(pointer)
}

/// `ibv_close_xrcd(3)`.
pub unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    guard(|| {
        faults::fate(Call::CloseXrcd)?;
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let key = xrcd_key(xrcd);
        let last = {
            let mut state = engine()?.enter();
            let w = &mut state.w;
            let found = w.xrc.xrcds.get(key).ok_or(Errno::INVAL)?;
            if found.users > 0 {
                return Err(Errno::BUSY);
            }
            let (context, domain) = (found.context, found.domain);
            w.xrc.xrcds.remove(key);
            use_context(w, context, -1)?;
            let open = w.xrc.domains.get_mut(domain).ok_or(Errno::INVAL)?;
            open.opens -= 1;
            (open.opens == 0).then(|| (w.peers.dir().to_owned(), w.xrc.domains.remove(domain)))
        };
        if let Some((dir, domain)) = last {
            engine()?.shared.domains(-1);
            registry::part(&dir, &domain.file, domain.holder);
        }
        Ok(())
    })
}

/// `ibv_create_srq_ex(3)`.
pub unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the program passes a valid pointer.
    guard_ptr(|| create_srq(context, unsafe { &mut *init }))
}

fn create_srq(context: *mut ibv_context, init: &mut ibv_srq_init_attr_ex) -> Result<*mut ibv_srq, Errno> {
    faults::fate(Call::CreateSrq)?;
    const FOR_XRC: u32 = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    let has = |bits: u32| init.comp_mask & bits == bits;
    let kind = if has(IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { IBV_SRQT_BASIC };
    if init.comp_mask & !(FOR_XRC | IBV_SRQ_INIT_ATTR_TYPE) != 0 || kind > IBV_SRQT_XRC {
        return Err(Errno::OPNOTSUPP);
    }
    // SAFETY: the program passes null or a PD of ours.
    if !has(IBV_SRQ_INIT_ATTR_PD) || init.pd.is_null() || unsafe { (*init.pd).context } != context {
        return Err(Errno::INVAL);
    }
    let mut basic = ibv_srq_init_attr { srq_context: init.srq_context, attr: init.attr };
    let mut state = engine()?.enter();
    let State { qps, w, .. } = &mut *state;
    if kind == IBV_SRQT_BASIC {
        let srq = new_srq(w, init.pd, &mut basic)?;
        init.attr = basic.attr;
        return Ok(srq);
    }
    if !has(FOR_XRC) || init.xrcd.is_null() || init.cq.is_null() {
        return Err(Errno::INVAL);
    }
    let (xrcd, cq) = (xrcd_key(init.xrcd), cq_key(init.cq));
    let (found, queue) = (w.xrc.xrcds.get(xrcd).ok_or(Errno::INVAL)?, w.cqs.get(cq).ok_or(Errno::INVAL)?);
    let (domain, device) = (found.domain, w.device(context_key(context)));
    if w.device(found.context) != device || w.device(queue.context) != device {
        return Err(Errno::INVAL);
    }
    let (index, generation) = qps.reserve().ok_or(Errno::NOMEM)?;
    let made = w.segment.open_qp_entry(index).and_then(|()| new_srq(w, init.pd, &mut basic));
    let srq = made.inspect_err(|_| qps.release(index))?;
    init.attr = basic.attr;
    let key = srq_key(srq);
    w.srqs[key].xrc = Some(XrcSrq { xrcd, domain, cq, index, generation, flows: HashMap::new() });
    w.xrc.use_xrcd(xrcd, 1);
    w.cqs[cq].users += 1;
    qps.lend(index, key);
    publish(w, key);
    Ok(srq)
}

/// `ibv_get_srq_num(3)`.
pub unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number_to: *mut u32) -> c_int {
    guard(|| {
        faults::fate(Call::GetSrqNum)?;
        let state = engine()?.enter();
        let found = state.w.srqs.get(srq_key(srq)).ok_or(Errno::INVAL)?;
        let xrc = found.xrc.as_ref().ok_or(Errno::OPNOTSUPP)?;
        // SAFETY: the program passes a valid pointer.
        unsafe { number_to.write(number(state.w.segment.slot, xrc.index)) };
        Ok(())
    })
}
