//! From parameters to modules: devices are found, a transport is opened on each port, addresses are
//! published.

use super::callbacks;
use super::device_files;
use super::guard;
use super::handle::HANDLE_LEN;
use super::hooks;
use super::module::{AtEnd, Module, Place, background};
use super::params::{self, DeviceChoice, Params, Template};
use super::peers;
use super::show::{Refusal, Report, see_parameters};
use super::timelines;
use super::tuned;
use crate::protocol::device_ini::Devices;
use crate::protocol::modex::{Advert, DeviceKind, LinkLayer, Modex, Port as ModexPort};
use crate::protocol::regcache::Limits;
use crate::transport::Transport;
use crate::transport::config::{Bound, Config, Signalling};
use crate::transport::device::{self, Choice, DeviceError, Filter, Port, PortConfig};
use crate::transport::near::{Topology, Verdict};
use crate::transport::stats::Stats;
use opal_sys::{
    Abi, LeavePinned, MCA_BTL_ATOMIC_SUPPORTS_GLOB, MCA_BTL_FLAGS_ATOMIC_FOPS, MCA_BTL_FLAGS_ATOMIC_OPS,
    MCA_BTL_FLAGS_PUT, mca_btl_base_module_t,
};
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use verbs::{Atomics, Driver};

/// The modules of this process.
static MODULES: Mutex<Vec<&'static Module>> = Mutex::new(Vec::new());

/// Puts the transport's functions into the template of all modules.
pub fn functions(base: &mut mca_btl_base_module_t) {
    callbacks::fill(base);
}

/// Opens the devices that the parameters name, one module per port.
///
/// # Errors
/// Why there is none: said aloud only to a user who asked for oxib.
pub fn init(
    params: &Params,
    abi: &'static Abi,
    _threads: bool,
) -> Result<Vec<*mut mca_btl_base_module_t>, Refusal> {
    let _reports_have_them = softib::carry_reasons();
    // Before the threads of softib and of the connection managers run.
    watch_memory(params, abi);
    let known = device_files::read(&params.device_param_files).map_err(|report| Refusal::Tell(*report))?;
    let mut ports = find_ports(params, &known, abi).map_err(|error| no_port(params, &error))?;
    tuned::limit_mtu(&mut ports, params);
    let mut ports = seated(ports, params);
    if params.max_btls > 0 {
        ports.truncate(params.max_btls as usize);
    }
    let me = abi.my_name().word();
    let mut modules: Vec<&'static Module> = Vec::new();
    let mut published = Vec::new();
    let mut unfit = None;
    for (port, is_far) in &ports {
        tuned::tell(port, &known, params);
        let mut base = module_base(port, *is_far, params, abi).map_err(|report| Refusal::Tell(*report))?;
        let transport = match open_port(port, params, abi, me) {
            Ok(transport) => transport,
            Err(error) if params.device == DeviceChoice::Auto => {
                log::warn!("{} port {} is left out: {}", port.context.name(), port.num, error.why);
                unfit.get_or_insert(error);
                continue;
            }
            Err(error) => return Err(refuse_port(params, &error)),
        };
        if transport.key_of_all().is_some() {
            base.btl_get_local_registration_threshold = UNREGISTERED;
        }
        published.push(describe(port, &transport));
        let timelines = timelines::file(&params.timeline, me, port.context.name(), port.num);
        let name = format!("{} port {}", port.context.name(), port.num);
        let place = Place { index: modules.len(), name, soft: port.soft };
        let at_end = AtEnd { timelines, tells: params.stats != 0 };
        let limits = cache_limits(params, port.soft);
        modules.push(Module::new(base, abi, transport, place, at_end, limits));
    }
    if let (Some(error), true) = (unfit, modules.is_empty()) {
        return Err(refuse_port(params, &error));
    }
    let soft = ports.iter().all(|(port, _)| port.soft);
    let ours = Modex {
        boot_id: boot_id(),
        // SAFETY: takes nothing, cannot fail.
        uid: unsafe { libc::geteuid() },
        device: if soft { DeviceKind::Soft } else { DeviceKind::Hard },
        segment_dir: if soft { segment_folder() } else { String::new() },
        ports: published,
    };
    let job = peers::Job { alone: params.alone, has_self: params.has_self };
    peers::publish(abi, ours, job).map_err(|why| refuse(params, &why, &see_why()))?;
    let raw = modules.iter().map(|m| m.as_raw()).collect();
    Module::chain(&modules);
    guard::after_panic(Module::tell_broken);
    *MODULES.lock().unwrap_or_else(PoisonError::into_inner) = modules;
    Ok(raw)
}

/// The ports to use, and which of them are far from the process' processors: one that is dispensable is left out if the user has named
/// none.
fn seated(ports: Vec<Port>, params: &Params) -> Vec<(Port, bool)> {
    if params.ignore_locality != 0 || ports.len() < 2 {
        return ports.into_iter().map(|port| (port, false)).collect();
    }
    let verdicts = Topology::of_process().judge(&ports);
    let are_named = matches!(params.device, DeviceChoice::Named(_)) || !params.if_include.is_empty();
    let mut kept = Vec::new();
    for (port, verdict) in ports.into_iter().zip(verdicts) {
        if verdict != Verdict::Near {
            let what = if verdict == Verdict::Dispensable && !are_named { "left out" } else { "used" };
            let name = port.context.name();
            log::debug!("{name} port {} is far from this process' processors, and {what}", port.num);
        }
        if verdict != Verdict::Dispensable || are_named {
            kept.push((port, verdict != Verdict::Near));
        }
    }
    kept
}

/// Registrations are kept if what is released of memory is seen, and the user lets them be.
fn watch_memory(params: &Params, abi: &'static Abi) {
    if params.reg_cache_max == 0 {
        return log::debug!("no registrations are kept: btl_oxib_reg_cache_max is 0");
    }
    match hooks::start(abi) {
        Ok(()) if hooks::sees_heap() => log::debug!("registrations are kept for the next transfer"),
        Ok(()) => log::debug!("registrations are kept, but not of the heap: its end is not seen to move"),
        Err((LeavePinned::Always, why)) => {
            log::warn!("no registrations are kept, although mpi_leave_pinned is set: {why}");
        }
        Err((_, why)) => log::debug!("no registrations are kept: {why}"),
    }
}

/// What a cache may hold; of memory that the process may lock, hardware's at most half.
fn cache_limits(params: &Params, soft: bool) -> Limits {
    let bytes = usize::try_from(params.reg_cache_bytes).unwrap_or(usize::MAX);
    let bytes = if bytes == 0 { usize::MAX } else { bytes };
    let lockable = if soft { None } else { verbs::locked_memory() };
    let half = lockable.and_then(|most| usize::try_from(most / 2).ok());
    Limits { count: params.reg_cache_max as usize, bytes: half.map_or(bytes, |half| bytes.min(half)) }
}

/// Why a port is not used.
struct Unfit {
    why: String,
    /// This process has met with something that others of the node may not: a shortage.
    here: bool,
}

fn refuse_port(params: &Params, error: &Unfit) -> Refusal {
    refuse_unfit(params, error, &see_why())
}

fn refuse_unfit(params: &Params, error: &Unfit, remedy: &str) -> Refusal {
    match refuse(params, &error.why, remedy) {
        Refusal::Tell(report) => Refusal::Tell(Report { common: !error.here, ..report }),
        quiet @ Refusal::Quiet(_) => quiet,
    }
}

/// A transport on one port; the connection managers' thread runs if there are peers to listen to: a
/// process alone has none before it adds one.
fn open_port(
    port: &Port,
    params: &Params,
    abi: &'static Abi,
    me: u64,
) -> Result<Transport<super::module::Cookie>, Unfit> {
    let transport = Transport::open(port, config(params, abi, port), me)
        .map_err(|error| Unfit { here: error.is_shortage(), why: error.to_string() })?;
    if let Some(peers) =
        abi.job_size().ok().and_then(|size| (size as usize).checked_sub(1)).filter(|n| *n > 0)
    {
        transport.listen().map_err(|error| Unfit { why: error.to_string(), here: false })?;
        if port.soft && params.asked && !params.alone {
            reserve(peers).map_err(|why| Unfit { why, here: true })?;
        }
    }
    Ok(transport)
}

/// Takes the space that the job's processes on this node need in the folder of the software
/// device's segments. Where it is missing, the other transports of the job get these peers now;
/// once Open MPI has chosen, a connection that fails ends the job.
fn reserve(peers: usize) -> Result<(), String> {
    match softib::reserve(local(peers)) {
        // The device is not the copy that is linked in, but the drop-in library's.
        Err(error) if error.0 == libc::ENODEV => Ok(()),
        done => done.map_err(reason),
    }
}

/// How many of `peers` can be on this node.
fn local(peers: usize) -> usize {
    let here = std::env::var(LOCAL_SIZE).ok().and_then(|size| size.parse::<usize>().ok());
    here.map_or(peers, |size| peers.min(size.saturating_sub(1)))
}

fn reason(error: softib::errno::Errno) -> String {
    softib::take_reason(error.0).unwrap_or_else(|| error.to_string())
}

/// Where mpirun of 4.1 and 5.0 tells a process how many of the job are on its node.
const LOCAL_SIZE: &str = "OMPI_COMM_WORLD_LOCAL_SIZE";

/// Looks around on every port.
#[inline(always)] // all that most calls of Open MPI's progress function do
pub fn progress() -> c_int {
    Module::progress_all()
}

/// What all ports have counted.
pub fn counters() -> Stats {
    Module::counters()
}

/// The component closes; the modules have been finalized, but for those that Open MPI never took.
pub fn close() {
    Module::chain(&[]);
    let modules = std::mem::take(&mut *MODULES.lock().unwrap_or_else(PoisonError::into_inner));
    modules.into_iter().for_each(Module::finalize);
    background::end();
    hooks::stop();
}

fn find_ports(params: &Params, known: &Devices, abi: &Abi) -> Result<Vec<Port>, DeviceError> {
    let choice = match &params.device {
        DeviceChoice::Auto => Choice::Auto { named: params.asked },
        DeviceChoice::Soft => Choice::Soft,
        DeviceChoice::Named(ports) => Choice::Names(names(ports)),
    };
    let config = PortConfig { gid_index: params.gid_index, pkey: params.pkey, mtu: params.mtu.unwrap_or(0) };
    let filter = Filter {
        include: names(&params.if_include),
        exclude: names(&params.if_exclude),
        known: known.clone(),
    };
    let mut ports = device::find(&choice, &filter, config, || software(abi))?;
    if params.reconnects != 0 {
        device::pair_up(&mut ports, config);
    }
    Ok(ports)
}

fn names(ports: &[params::Port]) -> Vec<device::Name> {
    ports.iter().map(|port| (port.device.clone(), port.number)).collect()
}

/// The software device: the copy that is linked in, unless the machine's libibverbs is our drop-in
/// already.
fn software(abi: &Abi) -> Result<Driver, DeviceError> {
    if let Some(driver) = Driver::drop_in() {
        return Ok(driver);
    }
    verbs::explain_errors(softib::take_reason);
    let peers = abi.job_size().map_or(0, |size| local((size as usize).saturating_sub(1)));
    softib::check_address_space(peers, ADDRESS_SPACE)
        .map_err(|error| DeviceError::Shortage(reason(error)))?;
    Ok(Driver::with_connections(softib::driver_table(), softib::cm_table()))
}

/// Address space of a job's least buffers, and of the heaps that the C library may reserve for two
/// threads, 64 MiB each. Where it is missing, buffers would be in the middle of the job, and Open MPI
/// asks for them again for ever.
const ADDRESS_SPACE: usize = 160 << 20;

/// Receives for datagrams of connection managers: four for each process of the job, which may all ask and repeat at once; some more for
/// processes that the job starts. What finds none is repeated.
fn datagram_receives(abi: &Abi) -> u32 {
    let most = cpc::ibcm::Params::default().recv_count;
    abi.job_size().map_or(most, |size| size.saturating_mul(4)).clamp(64, most)
}

fn config(params: &Params, abi: &Abi, port: &Port) -> Config {
    let recv_count = datagram_receives(abi);
    Config {
        layout: tuned::layout(port, params),
        max_inline: tuned::max_inline(port, params),
        gathers: tuned::gathers(port, params),
        send_rings: (params.send_ring_size, params.max_send_rings),
        eager: tuned::eager(port, params),
        pool_limit: params.free_list_max,
        pool_grow: params.free_list_inc,
        hold: Bound::of_peer(params.max_answers),
        cq_size: params.cq_size,
        signalling: Signalling { most: params.max_unsig_wrs, most_bytes: params.max_unsig_bytes },
        min_rnr_timer: params.min_rnr_timer,
        timeout: params.ib_timeout,
        retry_count: params.ib_retry_count,
        rnr_retry: params.rnr_retry,
        rd_atomic: params.rd_atomic,
        rdma_depth: params.rdma_depth,
        service_level: params.service_level,
        drain: params.finalize_timeout,
        keepalive: params.keepalive,
        reconnects: params.reconnects,
        keep_timelines: !params.timeline.is_empty(),
        xrc_domain: xrc_domain(abi, port),
        cpc: cpc::Config {
            include: params.cpc_include.clone(),
            exclude: params.cpc_exclude.clone(),
            ibcm: cpc::ibcm::Params {
                priority: params.ibcm_priority,
                timeout: params.ibcm_timeout,
                max_retries: params.ibcm_max_retries,
                recv_count,
                ..Default::default()
            },
            rdmacm: cpc::rdmacm::Params {
                priority: params.rdmacm_priority,
                address: params.rdmacm_address,
                port: params.rdmacm_port,
                resolve_timeout: params.rdmacm_resolve_timeout,
                connect_timeout: params.rdmacm_timeout,
                max_retries: params.rdmacm_max_retries,
                ..Default::default()
            },
            xrc: cpc::ibcm::Params {
                timeout: params.ibcm_timeout,
                max_retries: params.ibcm_max_retries,
                recv_count,
                ..Default::default()
            },
        },
    }
}

/// The file that stands for the XRC domain of our job on this node: in the job's session directory,
/// or in the folder for temporary files, under a name that no other job has.
fn xrc_domain(abi: &Abi, port: &Port) -> PathBuf {
    let device = port.context.name();
    match abi.session_dir() {
        Some(dir) => dir.join(format!("oxib-xrc-{device}")),
        None => {
            // SAFETY: takes nothing, cannot fail.
            let (uid, job) = (unsafe { libc::geteuid() }, abi.my_name().jobid);
            std::env::temp_dir().join(format!("oxib-xrc-{uid}-{job:08x}-{device}"))
        }
    }
}

/// Bytes up to which a get needs no registration where one of all memory does: what osc/rdma would get into a buffer of its own at most (half of
/// `osc_rdma_buffer_size`), and copy from there.
const UNREGISTERED: usize = 16 << 10;

/// The module's own fields, with limits that the port's layout can hold.
fn module_base(
    port: &Port,
    is_far: bool,
    params: &Params,
    abi: &Abi,
) -> Result<mca_btl_base_module_t, Box<Report>> {
    let mut base = Template::copy();
    let is_set = |name: &str| params::is_set(abi.base(), name);
    if !is_set("eager_limit") {
        base.btl_eager_limit = tuned::eager_limit(port, params, base.btl_eager_limit);
    }
    params::fit(&tuned::layout(port, params), &mut base, is_set)?;
    base.btl_registration_handle_size = HANDLE_LEN;
    base.btl_get_limit = port.attr.max_msg_size as usize;
    base.btl_put_limit = port.attr.max_msg_size as usize;
    if base.btl_bandwidth == 0 {
        base.btl_bandwidth = port.attr.rate;
    }
    // Open MPI sends short messages over the modules of least latency.
    if is_far && !is_set("latency") {
        base.btl_latency += 1;
    }
    let device = port.context.query_device().map_or(Atomics::None, |device| device.atomics);
    fit_atomics(&mut base, device);
    // An iWARP write that is complete is on its way, no more; what tells the peer goes over another
    // stream and may be there first.
    if port.context.is_iwarp() {
        base.btl_flags &= !MCA_BTL_FLAGS_PUT;
    } else {
        base.btl_flags |= abi.family().remote_completion();
    }
    Ok(base)
}

/// Takes away what the device's atomics cannot do.
fn fit_atomics(base: &mut mca_btl_base_module_t, device: Atomics) {
    match device {
        Atomics::Global => {}
        Atomics::Device => base.btl_atomic_flags &= !MCA_BTL_ATOMIC_SUPPORTS_GLOB,
        Atomics::None => {
            base.btl_flags &= !(MCA_BTL_FLAGS_ATOMIC_OPS | MCA_BTL_FLAGS_ATOMIC_FOPS);
            base.btl_atomic_flags = 0;
        }
    }
}

fn describe(port: &Port, transport: &Transport<super::module::Cookie>) -> ModexPort {
    let iwarp = port.context.is_iwarp();
    let link_layer = match device::is_ethernet(&port.attr) {
        _ if iwarp => LinkLayer::Iwarp,
        true => LinkLayer::Ethernet,
        false => LinkLayer::InfiniBand,
    };
    let advert =
        |a: &cpc::Advert| Advert { name: a.name.clone(), priority: a.priority, blob: a.blob.clone() };
    ModexPort {
        // An iWARP port's GID is its Ethernet address: its first half is no subnet.
        gid: if iwarp { [0; 16] } else { port.gid.0 },
        lid: port.attr.lid.0,
        mtu: port.mtu as u8,
        link_layer,
        layout: transport.layout().clone(),
        adverts: transport.adverts().iter().map(advert).collect(),
        rows: port.published_rows(),
    }
}

/// Where the segments are, by the one name that all ways to write it lead to: peers compare it with
/// theirs.
fn segment_folder() -> String {
    let folder = softib::segment_dir();
    std::fs::canonicalize(&folder).map_or(folder, |path| path.to_string_lossy().into_owned())
}

/// Tells hosts apart (random(4): a fresh one at each boot).
fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text.bytes().filter_map(|b| (b as char).to_digit(16)).map(|d| d as u8).collect();
    std::array::from_fn(|i| {
        let digit = |at: usize| digits.get(at).copied().unwrap_or(0);
        digit(2 * i) << 4 | digit(2 * i + 1)
    })
}

/// Remedy where no port was found.
const TRY_SOFT: &str = "To run without RDMA hardware, use the software device: --mca btl_oxib_device soft.";

/// Remedy where the reason names what to change.
fn see_why() -> String {
    format!("Please correct what the reason names; {}", see_parameters())
}

/// No port can be used. The software device helps where there is no hardware, not where something
/// that was asked for is wrong.
fn no_port(params: &Params, error: &DeviceError) -> Refusal {
    let remedy = if error.is_absence() { TRY_SOFT.to_owned() } else { see_why() };
    let here = matches!(error, DeviceError::Shortage(_));
    refuse_unfit(params, &Unfit { why: error.to_string(), here }, &remedy)
}

fn refuse(params: &Params, why: &str, remedy: &str) -> Refusal {
    if !params.asked && params.device == DeviceChoice::Auto {
        return Refusal::Quiet(why.to_owned());
    }
    let what = "The oxib BTL cannot be used in this job; Open MPI goes on with its other transports, if there are any.";
    Refusal::Tell(Report::common(what, remedy).with("Why", why))
}
