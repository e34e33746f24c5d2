//! Contexts, and what they say about the device.

use super::extras::{command, dm, domain, window};
use super::guard::{guard, guard_minus, guard_ptr};
use super::handle::{context_key, engine};
use super::limits::{MAX_CQE, MAX_WR};
use super::listing::{device_of, is_iwarp, number_of, put_name};
use super::port::query_port_sized;
use super::{cq_ex, faulty, memory, ops, poll, qp_ex, receive, shared_qp, xrc};
use crate::datapath::iwarp;
use crate::engine::{current, life};
use crate::errno::Errno;
use crate::extras::{dm as arena, paging};
use crate::objects::cq::event_file;
use crate::objects::events::Context;
use crate::objects::work::MAX_SGE;
use crate::objects::{CBox, zeroed};
use crate::reason::{self, Cause};
use crate::shm::layout::{GROUPS, MRS, QPS};
use crate::shm::shortage;
use crate::{clock, fabric, faults};
use rdma_sys::*;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::fs::File;
use std::os::fd::AsRawFd;

const CQS: c_int = 1 << 16;

/// `ibv_open_device(3)`.
pub unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    guard_ptr(|| open(device))
}

/// Opens a device. Every refusal leaves a reason.
fn open(device: *mut ibv_device) -> Result<*mut ibv_context, Errno> {
    reason::forget();
    command::command_file().and_then(|command| open_as(device, command)).map_err(|error| {
        if reason::is_known(error) || reason::is_known(shortage::descriptors(error)) {
            return error;
        }
        let name = format_args!("{}{}", fabric::NAME, number_of(device).unwrap_or(0));
        reason::because(error, Cause::Open, format_args!("{name} cannot be opened: {error}"))
    })
}

/// Opens a device; its `cmd_fd` is the descriptor of `command`. ENODEV: it is none of ours, or no longer there.
pub fn open_as(device: *mut ibv_device, command: File) -> Result<*mut ibv_context, Errno> {
    let number = number_of(device).ok_or(Errno::NODEV)?;
    let plan = faults::load()?;
    faults::calls::arm_from_environment();
    faults::calls::fate(faults::Call::OpenDevice)?;
    let engine = life::open(plan)?;
    arena::prepare();
    let made = event_file().and_then(|file| {
        let c = CBox::new(new_context(device, file.as_raw_fd(), command.as_raw_fd()));
        let mut state = engine.enter();
        if state.w.ports.of_device(number).is_empty() {
            return Err(Errno::NODEV);
        }
        state.w.asks_at_requests |= faults::calls::touch_data_path();
        command::sign(&command, state.w.segment.incarnation, state.w.contexts.vacant_key())?;
        let context =
            Context { c, device: number, users: 0, queue: VecDeque::new(), file, _command: command };
        let c = context.c.as_ptr();
        let key = state.w.contexts.insert(context);
        // SAFETY: our own struct, just made; priv, which only libraries use, carries the context's index.
        unsafe {
            (*c).r#priv = std::ptr::without_provenance_mut(key);
            Ok(&raw mut (*c).context)
        }
    });
    made.inspect_err(|_| life::close())
}

fn new_context(device: *mut ibv_device, async_fd: c_int, cmd_fd: c_int) -> verbs_context {
    // SAFETY: verbs_context is plain C data; zeroes are valid (null functions).
    let mut c: verbs_context = unsafe { zeroed() };
    c.sz = size_of::<verbs_context>();
    c.query_port = Some(query_port_sized);
    c.query_device_ex = Some(query_device_ex);
    c.advise_mr = Some(memory::advise_mr);
    c.alloc_null_mr = Some(memory::alloc_null_mr);
    c.alloc_dm = Some(dm::alloc_dm);
    c.free_dm = Some(dm::free_dm);
    c.reg_dm_mr = Some(dm::reg_dm_mr);
    c.alloc_td = Some(domain::alloc_td);
    c.dealloc_td = Some(domain::dealloc_td);
    c.alloc_parent_domain = Some(domain::alloc_parent_domain);
    c.query_rt_values = Some(query_rt_values);
    c.create_cq_ex = Some(cq_ex::create_cq_ex);
    c.create_qp_ex = Some(qp_ex::create_qp_ex);
    c.open_xrcd = Some(xrc::open_xrcd);
    c.close_xrcd = Some(xrc::close_xrcd);
    c.create_srq_ex = Some(xrc::create_srq_ex);
    c.get_srq_num = Some(xrc::get_srq_num);
    c.open_qp = Some(shared_qp::open_qp);
    c.context.device = device;
    c.context.abi_compat = VERBS_ABI_IS_EXTENDED;
    (c.context.async_fd, c.context.cmd_fd) = (async_fd, cmd_fd);
    c.context.num_comp_vectors = 1;
    c.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    c.context.ops.alloc_mw = Some(window::alloc_mw);
    c.context.ops.bind_mw = Some(window::bind_mw);
    c.context.ops.dealloc_mw = Some(window::dealloc_mw);
    c.context.ops.poll_cq = Some(poll::poll_cq);
    c.context.ops.req_notify_cq = Some(poll::req_notify_cq);
    c.context.ops.post_send = Some(ops::post_send);
    c.context.ops.post_recv = Some(receive::post_recv);
    c.context.ops.post_srq_recv = Some(receive::post_srq_recv);
    if faults::calls::touch_data_path() {
        faulty::interpose(&mut c.context.ops);
    }
    c
}

/// Chooses the node, the devices and the ports of this process, in the place of the environment variables. Settings hold from the next time
/// a device is opened after all its contexts have been closed; `EBUSY` while it is open.
pub fn configure(settings: fabric::Settings) -> Result<(), Errno> {
    settings.check().map_err(|_| Errno::INVAL)?;
    if current().is_some() {
        return Err(Errno::BUSY);
    }
    fabric::choose(settings);
    Ok(())
}

/// `ibv_close_device(3)`.
pub unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    guard_minus(|| {
        faults::calls::fate(faults::Call::CloseDevice)?;
        let key = context_key(context);
        {
            let mut state = engine()?.enter();
            let known = state.w.contexts.get(key).ok_or(Errno::INVAL)?;
            // A fork child has its parent's contexts, too, and they are not its to close.
            // SAFETY: of this address, nothing is read.
            if !std::ptr::eq(context, unsafe { &raw const (*known.c.as_ptr()).context }) {
                return Err(Errno::INVAL);
            }
            if known.users > 0 {
                return Err(Errno::BUSY);
            }
            state.w.contexts.remove(key);
        }
        life::close();
        Ok(())
    })
}

/// `ibv_query_device(3)`.
pub unsafe extern "C" fn query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the program passes a valid pointer.
    guard(|| unsafe {
        attr.write(device_attr(device_of(context)?)?);
        Ok(())
    })
}

fn device_attr(device: usize) -> Result<ibv_device_attr, Errno> {
    faults::calls::fate(faults::Call::QueryDevice)?;
    // Not from the engine: a fork child, which has none, may ask as well.
    let settings = fabric::settings().map_err(|_| Errno::INVAL)?;
    let (pkeys, ports) = (settings.pkeys.len(), settings.ports);
    let guid = u64::from_ne_bytes(fabric::guid(device));
    let mut attr = ibv_device_attr {
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        // No vendor: the value that Linux' own software device uses.
        vendor_id: 0xff_ffff,
        max_qp: QPS as c_int - 2,
        max_qp_wr: MAX_WR as c_int,
        device_cap_flags: IBV_DEVICE_RC_RNR_NAK_GEN
            | IBV_DEVICE_SYS_IMAGE_GUID
            | IBV_DEVICE_XRC
            | IBV_DEVICE_CURR_QP_STATE_MOD
            | IBV_DEVICE_MEM_WINDOW
            | IBV_DEVICE_MEM_WINDOW_TYPE_2B,
        max_sge: MAX_SGE as c_int,
        max_sge_rd: MAX_SGE as c_int,
        max_cq: CQS,
        max_cqe: MAX_CQE as c_int,
        max_mr: MRS as c_int - 1,
        max_mw: MRS as c_int - 1,
        max_pd: CQS,
        max_qp_rd_atom: 16,
        max_res_rd_atom: 16 * QPS as c_int,
        max_qp_init_rd_atom: 16,
        atomic_cap: IBV_ATOMIC_GLOB,
        max_ah: CQS,
        max_mcast_grp: GROUPS as c_int,
        max_mcast_qp_attach: GROUPS as c_int,
        max_total_mcast_qp_attach: GROUPS as c_int,
        max_srq: CQS,
        max_srq_wr: MAX_WR as c_int,
        max_srq_sge: MAX_SGE as c_int,
        max_pkeys: pkeys as u16,
        phys_port_cnt: ports as u8,
        ..Default::default()
    };
    put_name(&mut attr.fw_ver, env!("CARGO_PKG_VERSION"));
    if is_iwarp() {
        iwarp::limit(&mut attr);
    }
    Ok(attr)
}

/// `verbs_context.query_device_ex`: an older program has a shorter struct.
unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    len: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the program passes null or a valid pointer.
        let asked = unsafe { input.as_ref() }.map_or(0, |input| input.comp_mask);
        if asked != 0 || len < size_of::<ibv_device_attr>() {
            return Err(Errno::INVAL);
        }
        let full = device_attr_ex(device_of(context)?)?;
        let len = len.min(size_of::<ibv_device_attr_ex>());
        // SAFETY: the program's struct has `len` bytes, ours at least as many.
        unsafe { std::ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), attr.cast::<u8>(), len) };
        Ok(())
    })
}

/// The kernel's IB_UVERBS_DEVICE_ATOMIC_WRITE.
const ATOMIC_WRITE: u64 = 1 << 40;

/// No offload, pacing or tag matching: those fields are zero.
fn device_attr_ex(device: usize) -> Result<ibv_device_attr_ex, Errno> {
    let orig_attr = device_attr(device)?;
    Ok(ibv_device_attr_ex {
        orig_attr,
        device_cap_flags_ex: u64::from(orig_attr.device_cap_flags)
            | if is_iwarp() { 0 } else { ATOMIC_WRITE },
        max_dm_size: arena::SIZE as u64,
        completion_timestamp_mask: clock::MASK,
        hca_core_clock: clock::KILOHERTZ,
        phys_port_cnt_ex: orig_attr.phys_port_cnt.into(),
        odp_caps: odp_caps(),
        xrc_odp_caps: xrc_odp_caps(),
        ..Default::default()
    })
}

/// The rights to what on-demand regions offer, if there are such regions.
fn offered(bits: u32) -> u32 {
    if paging::is_available() { bits } else { 0 }
}

fn xrc_odp_caps() -> u32 {
    let one_sided = IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    offered(IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_SRQ_RECV | one_sided)
}

/// `verbs_context.query_rt_values`. The clock's ticks are all in `tv_nsec`, whatever its name says: that is where drivers of adapters
/// put theirs, and where programs look.
unsafe extern "C" fn query_rt_values(_context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    guard(|| {
        // SAFETY: the program passes a valid pointer.
        let values = unsafe { &mut *values };
        if values.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
            return Err(Errno::INVAL);
        }
        if values.comp_mask != 0 {
            (values.raw_clock.tv_sec, values.raw_clock.tv_nsec) = (0, clock::ticks() as libc::c_long);
        }
        Ok(())
    })
}

fn odp_caps() -> ibv_odp_caps {
    let (send, recv) = (IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV);
    let (write, fetch) = (IBV_ODP_SUPPORT_WRITE, IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC);
    ibv_odp_caps {
        general_caps: offered(IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT).into(),
        per_transport_caps: ibv_odp_per_transport_caps {
            rc_odp_caps: offered(send | recv | write | fetch),
            uc_odp_caps: offered(send | recv | write),
            ud_odp_caps: offered(send | recv),
        },
    }
}
