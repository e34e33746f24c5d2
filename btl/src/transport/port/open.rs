//! Opening a port.
#![forbid(unsafe_code)]

use super::config::{Config, PLACED_FROM};
use super::depth::{CqRoom, CqTooSmall, PATH_MARKERS, recv_depth, send_depth, shared_receives, shared_sends};
use super::device::Port;
use super::entries::Count;
use super::events::Heard;
use super::queue::{RecvQueue, SendQueue, SendSlots, Shared, pool};
use super::{Domain, DomainError, OpenPort};
use crate::protocol::eager::{LONGEST, TRAILER};
use crate::protocol::layout::Queue;
use crate::protocol::wire::HEADER_LEN;
use cpc::{PortPlan, ProcessName, QpPlan, QueuePlan, ReceiveQueues, Service, XrcPlan};
use std::sync::Arc;
use verbs::{Access, Atomics, Cq, DeviceAttr, Mr, Pd, Qp, QpCap, QpInit, QpKind, Srq};

/// Largest inline message that is worth asking for: ob1 hands no more than this to `sendi`.
const MOST_INLINE: u32 = 1024;

/// Largest message that is gathered: longer ones than ob1's eager limits go from buffers, or by RDMA.
const MOST_GATHERED: u32 = 65 << 10;

/// Pieces of a message: our header, the upper layer's, the payload.
const PIECES: u32 = 3;

/// Why a port cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A verbs object could not be had.
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    /// The completion queues cannot grow to what the shared queues hold.
    #[error(transparent)]
    Completions(#[from] CqTooSmall),
    /// The domain of X queues could not be had.
    #[error(transparent)]
    Domain(#[from] DomainError),
    /// The configuration asks for more than the device has.
    #[error("{what} needs {wanted}, {device} has no more than {limit}: {remedy}")]
    Limit { what: String, wanted: u32, device: String, limit: u32, remedy: &'static str },
    /// No connection manager fits.
    #[error(transparent)]
    Cpc(#[from] cpc::Error),
}

impl OpenError {
    /// Something has run out that other processes of the node may still have got.
    pub fn is_shortage(&self) -> bool {
        let errno = if let OpenError::Verbs(error) = self { error.errno() } else { 0 };
        [libc::ENOMEM, libc::ENOSPC, libc::EMFILE, libc::ENFILE, libc::EUSERS].contains(&errno)
    }
}

/// What has been opened on a port.
#[derive(Debug)]
pub struct Opened {
    /// The port itself.
    pub port: OpenPort,
    /// The sending sides of the layout's queues.
    pub send_queues: Vec<SendQueue>,
    /// Their receiving sides.
    pub recv_queues: Vec<RecvQueue>,
    /// The domain of X queues, if the layout has them.
    pub domain: Option<Domain>,
}

impl Opened {
    /// Opens completion queues, shared receive queues, connection managers. No thread is started
    /// and no receive is posted.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn new(port: &Port, config: Config, me: u64) -> Result<Opened, OpenError> {
        let limits = port.context.query_device()?;
        let config = within(&limits, config, port.context.name())?;
        let pd = Pd::alloc(&port.context)?;
        let recv_cq = Cq::create(&port.context, config.cq_size, None)?;
        let placed_from = if recv_cq.place_messages(PLACED_FROM) { PLACED_FROM } else { u32::MAX };
        port.context.await_writes();
        let send_cq = Cq::create(&port.context, config.cq_size, None)?;
        let domain =
            config.layout.is_xrc().then(|| Domain::open(&port.context, &config.xrc_domain)).transpose()?;
        let recv_queues = open_queues(&pd, &config, domain.as_ref().map(|domain| (domain, &recv_cq)))?;
        let config = Config { max_inline: granted_inline(&pd, &send_cq, config.max_inline)?, ..config };
        let xrc_plan =
            domain.as_ref().map(|domain| xrc_plan(domain, &config, &send_cq, &recv_queues)).transpose()?;
        let plan = qp_plan(port, &config, &limits, &pd, (&send_cq, &recv_cq), &recv_queues);
        let to_itself = without_shared(&plan);
        let plan = QpPlan { xrc: xrc_plan, ..plan };
        let alternate = alternate_of(port, &config);
        let other = alternate.map(|port| Arc::new(QpPlan { port: port_plan(port), ..plan.clone() }));
        let service = Service::open_with(Arc::new(plan), other, ProcessName(me), &config.cpc)?;
        let mut recv_room = CqRoom::new(recv_cq, limits.max_cqe);
        recv_room.reserve(shared_receives(&config.layout))?;
        let mut send_room = CqRoom::new(send_cq, limits.max_cqe);
        send_room.reserve(shared_sends(&config.layout))?;
        let send_queues = send_queues(&pd, &config);
        let port = OpenPort {
            all_memory: all_memory(&pd),
            num: port.num,
            alternate: alternate.map(|port| port.num),
            me,
            heard: Heard::default(),
            most_mrs: limits.max_mr,
            most_reads: config.rd_atomic.min(limits.max_init_rd_atomic).into(),
            atomics: limits.atomics,
            cts_queue: config.layout.smallest_p(),
            placed_from,
            config,
            service,
            to_itself,
            pd,
            recv_room,
            send_room,
            stranded: Count::default(),
        };
        Ok(Opened { port, send_queues, recv_queues, domain })
    }
}

/// A registration of all memory, which costs nothing on the software device. On others each page is faulted in by the device where it is used first.
fn all_memory(pd: &Arc<Pd>) -> Option<Mr> {
    let all = pd.context().driver().is_software().then(|| Mr::of_all_memory(pd))?;
    all.inspect_err(|error| log::debug!("memory of gets is registered piece by piece: {error}")).ok()
}

/// The configuration as this device can have it: what is only a wish is cut to its limits, what a
/// peer relies on is refused.
fn within(limits: &DeviceAttr, config: Config, device: &str) -> Result<Config, OpenError> {
    for (index, queue) in config.layout.queues().iter().enumerate() {
        let of_queue = |what: &str| format!("queue {} of btl_oxib_receive_queues ({what})", index + 1);
        let shared = queue.srq().is_some();
        let checks = [
            (
                of_queue("sends, from rd_num or sd_max, and btl_oxib_rdma_depth"),
                send_depth(&config.layout, index, &config),
                limits.max_qp_wr,
            ),
            (of_queue("receives, from rd_num and rd_rsv"), recv_depth(queue, true), limits.max_qp_wr),
            (
                of_queue("shared receives, from rd_num"),
                if shared { queue.rd_num.into() } else { 0 },
                limits.max_srq_wr,
            ),
        ];
        if let Some((what, wanted, limit)) = checks.into_iter().find(|(_, wanted, limit)| wanted > limit) {
            let remedy = "use smaller numbers in btl_oxib_receive_queues, or a smaller btl_oxib_rdma_depth";
            return Err(OpenError::Limit { what, wanted, device: device.to_owned(), limit, remedy });
        }
    }
    // Numbers of messages have 16 bits, and what is in flight has to be told from what was.
    let limit = limits.max_qp_wr.min(1 << 15);
    let wanted = shared_sends(&config.layout) + config.rdma_depth + PATH_MARKERS;
    if config.layout.is_xrc() && wanted > limit {
        let what = "the send queue pair to a node".to_owned();
        let remedy =
            "let fewer sends be in flight in btl_oxib_receive_queues, or use a smaller btl_oxib_rdma_depth";
        return Err(OpenError::Limit { what, wanted, device: device.to_owned(), limit, remedy });
    }
    Ok(Config { cq_size: config.cq_size.min(limits.max_cqe), ..config })
}

/// How much of the wanted inline data the device's queue pairs take: it says so only by refusing.
fn granted_inline(pd: &Arc<Pd>, cq: &Arc<Cq>, wanted: u32) -> Result<u32, verbs::Error> {
    let mut ask = wanted.min(MOST_INLINE);
    loop {
        let cap =
            QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: PIECES, max_recv_sge: 1, max_inline: ask };
        let init = QpInit {
            kind: QpKind::Rc,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap,
            sig_all: false,
        };
        match Qp::create(pd, &init) {
            Ok(qp) => return Ok(qp.cap().max_inline.min(wanted)),
            Err(_) if ask != 0 => ask /= 2,
            Err(error) => return Err(error),
        }
    }
}

fn send_queues(pd: &Arc<Pd>, config: &Config) -> Vec<SendQueue> {
    let of_queue = |queue: &Queue| {
        let slots = queue.srq().map(|numbers| SendSlots::new(numbers.sd_max.into()));
        SendQueue::new(pool(pd, queue.size, config.pool_grow), config.pool_limit, slots)
    };
    config.layout.queues().iter().map(of_queue).collect()
}

fn open_queues(
    pd: &Arc<Pd>,
    config: &Config,
    xrc: Option<(&Domain, &Arc<Cq>)>,
) -> Result<Vec<RecvQueue>, verbs::Error> {
    let open = |queue: &Queue| {
        let shared = queue.srq().map(|numbers| {
            let srq = match xrc {
                Some((domain, cq)) => Srq::create_xrc(pd, domain.xrcd(), cq, queue.rd_num.into(), 1)?,
                None => Srq::create(pd, queue.rd_num.into(), 1)?,
            };
            let limits = (queue.rd_num.into(), numbers.rd_init.into(), queue.rd_low.into());
            let shared = Shared::new(srq, limits, numbers.srq_limit.into());
            Ok::<_, verbs::Error>(if xrc.is_some() { shared.over_xrc() } else { shared })
        });
        Ok(RecvQueue { bufs: pool(pd, queue.size, config.pool_grow), shared: shared.transpose()? })
    };
    config.layout.queues().iter().map(open).collect()
}

/// A send queue pair to a node holds what may be in flight on all queues, to whomever, RDMA
/// operations and markers.
fn xrc_plan(
    domain: &Domain,
    config: &Config,
    send_cq: &Arc<Cq>,
    queues: &[RecvQueue],
) -> Result<XrcPlan, verbs::Error> {
    let shared = queues.iter().filter_map(|queue| queue.shared.as_ref());
    let cap = QpCap {
        max_send_wr: shared_sends(&config.layout) + config.rdma_depth + PATH_MARKERS,
        max_send_sge: 1,
        ..QpCap::default()
    };
    Ok(XrcPlan {
        domain: domain.xrcd().clone(),
        id: domain.id(),
        srqs: shared.map(|shared| shared.srq.number()).collect::<Result<_, _>>()?,
        send_cq: send_cq.clone(),
        cap,
    })
}

/// The plan of a queue pair that only sends: shared receive queues end before the port does.
fn without_shared(plan: &QpPlan) -> QpPlan {
    let queues = plan.queues.iter().map(|queue| QueuePlan { srq: None, ..queue.clone() });
    QpPlan { queues: queues.collect(), xrc: None, ..plan.clone() }
}

/// What peers may do through our queue pairs.
fn offered(atomics: Atomics) -> Access {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    if atomics == Atomics::None { access } else { access | Access::REMOTE_ATOMIC }
}

/// The port that connections go over when this one does not serve. Over X queues and on iWARP none takes the place of one that broke.
fn alternate_of<'a>(port: &'a Port, config: &Config) -> Option<&'a Port> {
    port.alternate.as_deref().filter(|_| config.replaces(&port.context))
}

fn port_plan(port: &Port) -> PortPlan {
    PortPlan {
        ctx: port.context.clone(),
        num: port.num,
        gid_index: port.gid_index,
        gid: port.gid,
        further_gids: port.rows.iter().skip(1).map(|row| (row.index, row.gid)).collect(),
        lid: port.attr.lid,
        mtu: port.mtu,
        pkey_index: port.pkey_index,
        link_layer: port.attr.link_layer,
    }
}

fn qp_plan(
    port: &Port,
    config: &Config,
    limits: &DeviceAttr,
    pd: &Arc<Pd>,
    (send_cq, recv_cq): (&Arc<Cq>, &Arc<Cq>),
    queues: &[RecvQueue],
) -> QpPlan {
    let cts = config.layout.smallest_p();
    let has_rings = pd.context().writes_short() && config.rings(pd.context()).is_some();
    let in_rings = if has_rings { (LONGEST + TRAILER) as u32 } else { 0 };
    let plan = |(index, queue): (usize, &Queue)| QueuePlan {
        send_cq: send_cq.clone(),
        recv_cq: recv_cq.clone(),
        srq: queues[index].shared.as_ref().map(|s| s.srq.clone()),
        cap: QpCap {
            max_send_wr: send_depth(&config.layout, index, config),
            max_recv_wr: recv_depth(queue, cts == Some(index)),
            max_send_sge: PIECES,
            max_recv_sge: 1,
            max_inline: if config.gathers { MOST_GATHERED } else { config.max_inline }
                .min(queue.size + HEADER_LEN as u32)
                .max(if index == 0 { in_rings } else { 0 }),
        },
        rnr_retry: if queue.is_per_peer() { 0 } else { config.rnr_retry },
    };
    QpPlan {
        pd: pd.clone(),
        queues: config.layout.queues().iter().enumerate().map(plan).collect(),
        receive_queues: ReceiveQueues {
            fingerprint: config.layout.fingerprint(),
            text: config.layout.to_string(),
        },
        port: port_plan(port),
        access: offered(limits.atomics),
        min_rnr_timer: config.min_rnr_timer,
        timeout: config.timeout,
        retry_cnt: config.retry_count,
        max_rd_atomic: config.rd_atomic.min(limits.max_init_rd_atomic),
        max_dest_rd_atomic: config.rd_atomic.min(limits.max_rd_atomic),
        sl: config.service_level,
        xrc: None,
    }
}
