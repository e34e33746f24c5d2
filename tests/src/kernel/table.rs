//! The cases: which worlds there are, and what runs in each. Short lists: emulated code is 10 to 30 times slower than real code, and what
//! softib shows faster is shown there. Chosen is what the wire, the device's limits and its deviations can break.

use std::fmt;

use crate::measured::{Measurement, SIZES};

/// Soft RDMA devices of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// rdma_rxe: RoCE v2 in software.
    Rxe,
    /// siw: iWARP in software.
    Siw,
}

impl Device {
    /// Its driver.
    pub fn driver(self) -> &'static str {
        match self {
            Device::Rxe => "rxe",
            Device::Siw => "siw",
        }
    }
}

/// What happens to packets between guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Nothing.
    Good,
    /// One in a hundred is lost.
    Lossy,
    /// One in twenty is lost; of the others one in a hundred comes twice.
    Bad,
    /// As `Bad`, and one in a hundred comes with a bit turned over. Not for rxe: that of Linux 6.1 trusts the length in a packet before it has
    /// compared the checksum, and panics.
    Corrupting,
}

impl Wire {
    /// In the words of tc-netem(8).
    pub fn netem(self) -> &'static str {
        match self {
            Wire::Good => "",
            Wire::Lossy => "loss 1%",
            Wire::Bad => "loss 5% duplicate 1%",
            Wire::Corrupting => "loss 5% duplicate 1% corrupt 1%",
        }
    }
}

/// A combination under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct World {
    /// The device of every guest.
    pub device: Device,
    /// The connection manager that the plugin is told to use.
    pub cpc: &'static str,
    /// Guests, each with a kernel of its own; ranks take turns on them.
    pub guests: usize,
    /// What happens to packets between them.
    pub wire: Wire,
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.guests == 1 { "" } else { "s" };
        write!(f, "{}0, {}, {} guest{plural}", self.device.driver(), self.cpc, self.guests)?;
        f.write_str(match self.wire {
            Wire::Good => "",
            Wire::Lossy => ", 1 % loss",
            Wire::Bad => ", bad wire",
            Wire::Corrupting => ", bad wire with bits turned over",
        })
    }
}

/// What carries a job's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The plugin, over the world's device.
    Oxib,
    /// UCX's rc_v over the same device: the reference.
    Ucx,
    /// TCP over the guest's network: is the guest itself all right?
    Tcp,
}

impl Over {
    /// For titles and tables.
    pub fn name(self) -> &'static str {
        match self {
            Over::Oxib => "oxib",
            Over::Ucx => "ucx rc_v",
            Over::Tcp => "tcp",
        }
    }
}

/// What is measured in guests.
#[derive(Debug, Clone)]
pub struct Contender {
    /// For titles and tables.
    pub name: &'static str,
    /// The transport.
    pub over: Over,
    /// MCA parameters that a user tries: names and values.
    pub tried: Vec<(String, String)>,
}

impl Contender {
    fn plain(over: Over) -> Contender {
        Contender { name: over.name(), over, tried: Vec::new() }
    }
}

/// What is measured beside each other; the first is ours. With parameters, ours with them, too.
pub fn measured(tried: Option<Vec<(String, String)>>) -> Vec<Contender> {
    let with = tried.map(|tried| Contender { name: "tried", over: Over::Oxib, tried });
    let others = [Over::Ucx, Over::Tcp].map(Contender::plain);
    [Contender::plain(Over::Oxib)].into_iter().chain(with).chain(others).collect()
}

/// One mpirun of one of our programs.
#[derive(Debug, Clone)]
pub struct Job {
    /// "flood", "flood (layout s-only)".
    pub title: String,
    /// A program of tests/mpi.
    pub program: &'static str,
    /// The transport.
    pub over: Over,
    /// Processes of the job.
    pub ranks: usize,
    /// File name in configs/ without `.conf`; `None`: the plugin's default.
    pub layout: Option<&'static str>,
    /// More MCA parameters.
    pub parameters: &'static [(&'static str, &'static str)],
    /// And what a user tries.
    pub tried: Vec<(String, String)>,
    /// Arguments of the program.
    pub arguments: Vec<String>,
    /// How long it may take.
    pub seconds: u64,
}

/// In a quiet emulator none of them takes 30 s; the machine may be busy.
const SECONDS: u64 = 240;

/// A job of many sizes, of which the largest take an emulated second a batch.
pub const MEASURING_SECONDS: u64 = 900;

/// Every program that checks two ranks' messages; `million` takes too long.
const ALL: &[&str] = &[
    "idle",
    "sendrecv",
    "modes",
    "probe",
    "wildcard",
    "persistent",
    "datatypes",
    "collectives",
    "communicators",
    "flood",
    "crossing",
    "random",
    "large",
    "forks",
    "lastwords",
    "leaves",
    "entrusted",
    "threads",
    "paused",
];

/// Those that a slow or lossy wire may break.
const WIRE: &[&str] = &["sendrecv", "collectives", "flood", "crossing", "random", "lastwords"];

/// Those that lean on a layout's limits: receives that run out, credits, the events of shared queues.
const LIMITS: &[&str] = &["flood", "crossing"];

/// Timed milliseconds of each size in a ping-pong; at least five batches.
const MILLISECONDS: u64 = 20;

/// Worlds and their jobs, in the order in which they run.
pub fn worlds() -> Vec<(World, Vec<Job>)> {
    let [rxe, two] = measured_worlds();
    let siw = World { device: Device::Siw, cpc: "rdmacm", ..rxe };
    vec![
        (
            rxe,
            [
                tcp(),
                own(ALL, 2),
                one_sided(),
                layouts(),
                settings(),
                own(&["sendrecv", "collectives"], 4),
                pingpongs(),
            ]
            .concat(),
        ),
        (two, [own(WIRE, 2), one_sided(), pingpongs()].concat()),
        (World { wire: Wire::Lossy, ..two }, own(WIRE, 2)),
        (World { wire: Wire::Bad, ..two }, over_a_bad_wire()),
        (
            World { cpc: "rdmacm", ..rxe },
            [own(WIRE, 2), own(&["threads"], 2), own(&["sendrecv", "collectives"], 4)].concat(),
        ),
        (World { cpc: "rdmacm", ..two }, [own(WIRE, 2), one_sided()].concat()),
        (World { cpc: "rdmacm", wire: Wire::Lossy, ..two }, own(WIRE, 2)),
        (World { cpc: "rdmacm", wire: Wire::Bad, ..two }, over_a_bad_wire()),
        (siw, on_iwarp([own(WIRE, 2), own(&["paused"], 2), own(&["sendrecv", "collectives"], 4)].concat())),
        (
            World { guests: 2, ..siw },
            on_iwarp([own(WIRE, 2), own(MORE_ON_IWARP, 2), iwarp_pingpongs()].concat()),
        ),
        (World { guests: 2, wire: Wire::Lossy, ..siw }, on_iwarp(own(WIRE, 2))),
        (World { guests: 2, wire: Wire::Corrupting, ..siw }, on_iwarp(over_a_bad_wire())),
    ]
}

fn job(program: &'static str, ranks: usize) -> Job {
    let title = if ranks == 2 { program.to_owned() } else { format!("{program} ({ranks} ranks)") };
    let (layout, parameters, tried, arguments): (_, &[_], _, _) = (None, &[], Vec::new(), Vec::new());
    Job { title, program, over: Over::Oxib, ranks, layout, parameters, tried, arguments, seconds: SECONDS }
}

fn own(programs: &[&'static str], ranks: usize) -> Vec<Job> {
    programs.iter().map(|program| job(program, ranks)).collect()
}

/// One of twenty packets is sent again after `ib_timeout`: 1 s, its default, is too long for that.
fn over_a_bad_wire() -> Vec<Job> {
    let impatient = |job: Job| Job { parameters: &[("btl_oxib_ib_timeout", "67ms")], ..job };
    own(WIRE, 2).into_iter().map(impatient).collect()
}

/// Without the plugin: a failure here is not ours.
fn tcp() -> Vec<Job> {
    vec![Job { title: "sendrecv over tcp".to_owned(), over: Over::Tcp, ..job("sendrecv", 2) }]
}

/// By put, get and atomics, whose atomicity is rxe's own: a process reaches its own words through the device, too. Between guests that
/// goes for the locks of windows as well.
fn one_sided() -> Vec<Job> {
    let over_rdma = |job: Job| Job {
        title: format!("{} over osc/rdma", job.title),
        parameters: &[("osc", "rdma")],
        ..job
    };
    let counted =
        |job: Job| Job { arguments: ["btl_oxib_atomics", "intrinsic"].map(str::to_owned).to_vec(), ..job };
    [job("onesided", 2), counted(job("atomics", 2)), counted(job("atomics", 4))].map(over_rdma).to_vec()
}

fn layouts() -> Vec<Job> {
    let with = |layout: &'static str| {
        LIMITS.iter().map(move |program| Job {
            title: format!("{program} (layout {layout})"),
            layout: Some(layout),
            ..job(program, 2)
        })
    };
    ["s-only", "tiny-windows", "p-only"].into_iter().flat_map(with).collect()
}

/// MCA parameters, names and values.
type Parameters = &'static [(&'static str, &'static str)];

/// GIDs of RoCE v2 (0 is link-local IPv6, 1 the IPv4 address mapped into IPv6, which the search finds, 2 the IPv6 address), the search for devices, and what
/// touches the device's limits: inline data (rxe takes 512 bytes), reads in flight (128), entries of a completion queue (32767).
const SETTINGS: &[(&str, &str, Parameters)] = &[
    ("link-local GID", "sendrecv", &[("btl_oxib_gid_index", "0")]),
    ("IPv4 GID", "sendrecv", &[("btl_oxib_gid_index", "1")]),
    ("IPv6 GID", "sendrecv", &[("btl_oxib_gid_index", "2")]),
    ("device auto", "sendrecv", &[("btl_oxib_device", "auto")]),
    ("nothing inline", "crossing", &[("btl_oxib_max_inline", "0")]),
    ("1 KiB inline", "crossing", &[("btl_oxib_max_inline", "1k")]),
    ("128 reads in flight", "sendrecv", &[("btl_oxib_rd_atomic", "128")]),
    ("no eager RDMA", "crossing", &[("btl_oxib_use_eager_rdma", "0")]),
    ("eager RDMA from the first message on", "random", &[("btl_oxib_eager_rdma_threshold", "1")]),
    ("eager RDMA of four slots", "flood", &[("btl_oxib_eager_rdma_num", "4")]),
    ("completion queues that grow", "crossing", &[("btl_oxib_cq_size", "64")]),
    ("completion queues at the limit", "sendrecv", &[("btl_oxib_cq_size", "100000")]),
];

fn settings() -> Vec<Job> {
    let with = |(what, program, parameters): &(&str, &'static str, Parameters)| Job {
        title: format!("{program} ({what})"),
        parameters,
        ..job(program, 2)
    };
    SETTINGS.iter().map(with).collect()
}

/// Program whose figures are collected.
pub const FIGURES: &str = "pingpong";

fn pingpongs() -> Vec<Job> {
    [Over::Oxib, Over::Ucx, Over::Tcp].map(half_round_trips).to_vec()
}

/// UCX knows no iWARP.
fn iwarp_pingpongs() -> Vec<Job> {
    [Over::Oxib, Over::Tcp].map(half_round_trips).to_vec()
}

/// The sizes that are measured between processes of a host, too.
fn half_round_trips(over: Over) -> Job {
    measuring(&Contender::plain(over), MILLISECONDS, &SIZES.map(Measurement::half_round_trip))
}

/// A job that measures all of this, for so many milliseconds each.
pub fn measuring(contender: &Contender, milliseconds: u64, what: &[Measurement]) -> Job {
    let title = format!("{FIGURES} over {}", contender.name);
    let (over, tried) = (contender.over, contender.tried.clone());
    let words = what.iter().map(Measurement::to_string);
    let arguments = std::iter::once(milliseconds.to_string()).chain(words).collect();
    Job { title, over, tried, arguments, seconds: MEASURING_SECONDS, ..job(FIGURES, 2) }
}

/// Where oxib is measured beside UCX and tcp: soft RoCE, in one guest and between two.
pub fn measured_worlds() -> [World; 2] {
    let one = World { device: Device::Rxe, cpc: "ibcm", guests: 1, wire: Wire::Good };
    [one, World { guests: 2, ..one }]
}

/// What needs long messages (by RDMA READ, into one buffer) or several threads.
const MORE_ON_IWARP: &[&str] = &["large", "threads", "datatypes"];

/// The layout that is iWARP's default, and completion queues as small as siw's library needs them.
fn on_iwarp(jobs: Vec<Job>) -> Vec<Job> {
    let with = |job: Job| match job.over {
        Over::Oxib => Job { layout: Some("iwarp"), ..job },
        _ => job,
    };
    jobs.into_iter().map(with).collect()
}
