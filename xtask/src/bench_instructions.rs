//! `cargo xtask bench --instructions`: what each step of a message costs in the plugin and in softib, counted by callgrind.
//!
//! Jobs of two ranks (`tests/mpi/instructions.c`), of which rank 0 runs under it, one job for each step: only what a function of
//! the program does is counted, each call of it apart, and the median call is taken. So counts do not depend on the machine: the calls in
//! which the device's own thread has the rings, as it may under valgrind, which runs one thread at a time, are few. What comes once in hundreds of messages is not in
//! them.
//!
//! | step    | is                                                        | the plugin's part: without                    |
//! |---------|-----------------------------------------------------------|-----------------------------------------------|
//! | send    | `btl_sendi`, and `btl_send` where that is refused           | softib's functions                             |
//! | idle    | the progress function when nothing has arrived             | softib's functions                             |
//! | receive | the progress function that finds one message, and the next, less an idle one | softib's functions and the receive callback |
//! | burst   | the same of 16 messages, for each                          | the same                                       |
//!
//! Ways are the layouts of oxib on the software device, and one as over an adapter: by the drop-in `libibverbs.so.1` ([`ways::ADAPTER`]).

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::args::Args;
use crate::callgrind::{self, Calls};
use crate::packages::{self, Package};
use crate::report::{json_fields, table, write_json};
use crate::ways::{self, Way};
use crate::workspace::Workspace;
use crate::{build, dropin, ompi5};
use e2e::failure::Context;
use e2e::machine::SegmentFolder;
use e2e::process::Limits;
use e2e::programs::Programs;
use e2e::{OpenMpi, Result, say, tell};

const VALGRIND: Package =
    Package { name: "valgrind", why: "callgrind, which counts instructions", proof: "valgrind" };
const DEADLINE: Limits = Limits { deadline: Duration::from_secs(300), silence: None };

/// Messages of each step; the program's bursts.
const MESSAGES: u64 = 400;
const BURST: u64 = 16;

/// Bytes: over the first queue of a layout and inline, and over the second.
const SIZES: [u64; 2] = [8, 200];

/// softib's functions that the plugin calls for a message, which the compiler may put under another name when they are equal.
const SOFTIB: [&str; 5] = [
    "softib::abi::ops::post_send",
    "softib::abi::ops::write_short",
    "softib::abi::receive::post_recv",
    "softib::abi::receive::post_srq_recv",
    "softib::abi::poll::poll_cq",
];

/// What `--json` writes.
#[derive(Debug)]
struct Figures {
    open_mpi: String,
    rows: Vec<Row>,
}

json_fields!(Figures: open_mpi, rows);

/// Instructions for a message, or a look.
#[derive(Debug)]
struct Row {
    way: &'static str,
    bytes: u64,
    send: Count,
    idle: Count,
    receive: Count,
    burst: Count,
}

json_fields!(Row: way, bytes, send, idle, receive, burst);

/// Instructions in the plugin, and in softib.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Count {
    plugin: f64,
    softib: f64,
}

json_fields!(Count: plugin, softib);

impl Count {
    /// What is in a profile: of the plugin's functions that others call.
    fn of(calls: &[Calls]) -> Count {
        let of_plugin = |name: &str| name.starts_with("mca_btl_oxib::") || name.starts_with("softib::");
        // A drop-in's calls of itself are none.
        let is_softibs = |name: &str| name.starts_with("softib::");
        let entered = callgrind::sum(calls, |call| {
            of_plugin(&call.to.0) && !is_ours(&call.from) && !is_softibs(&call.from.0)
        });
        let softib = callgrind::sum(calls, |call| {
            SOFTIB.iter().any(|name| call.to.0.starts_with(name)) && !is_softibs(&call.from.0)
        });
        let above = callgrind::sum(calls, |call| is_ours(&call.from) && call.to.1.contains("mca_pml"));
        Count { plugin: (entered - softib - above) as f64, softib: softib as f64 }
    }

    fn each(self, count: u64) -> Count {
        Count { plugin: self.plugin / count as f64, softib: self.softib / count as f64 }
    }

    /// Of the plugin's parts and of softib's the median.
    fn median(counts: &[Count]) -> Option<Count> {
        let middle = |part: fn(&Count) -> f64| {
            let mut parts: Vec<f64> = counts.iter().map(part).collect();
            parts.sort_by(f64::total_cmp);
            parts.get(parts.len() / 2).copied()
        };
        Some(Count { plugin: middle(|count| count.plugin)?, softib: middle(|count| count.softib)? })
    }

    fn less(self, other: Count, part: f64) -> Count {
        Count { plugin: self.plugin - part * other.plugin, softib: self.softib - part * other.softib }
    }
}

fn is_ours((_, object): &(String, String)) -> bool {
    object.contains("mca_btl_oxib")
}

/// `cargo xtask bench --instructions`.
pub fn command(args: &Args) -> Result<()> {
    let workspace = Workspace::find()?;
    packages::ensure(&[&packages::MPI[..], &[VALGRIND]].concat(), !args.flag("no-install"))?;
    let mpi = ompi5::chosen(args, &workspace)?;
    build::build(&workspace, false)?;
    dropin::build(&workspace)?;
    let program = Programs::new(&mpi, &workspace.root, &workspace.target)?.compiled("instructions")?;
    let folder = workspace.target.join("instructions");
    std::fs::create_dir_all(&folder).context(format_args!("cannot create {}", folder.display()))?;
    let bench = Bench { program, segments: SegmentFolder::create()?, mpi, workspace, folder };
    // An unpacked one finds its own libibverbs before the drop-in.
    let adapter = bench.mpi.runner().is_none().then_some(&ways::ADAPTER);
    let of_oxib = ways::of(&bench.mpi).filter(|way| way.is_oxib()).chain(adapter);
    let rows =
        of_oxib.flat_map(|way| SIZES.map(|bytes| bench.row(way, bytes))).collect::<Result<Vec<_>>>()?;
    show(&rows);
    let figures = Figures { open_mpi: bench.mpi.version().to_owned(), rows };
    args.value("json").map_or(Ok(()), |path| write_json(Path::new(path), &figures))
}

struct Bench {
    mpi: OpenMpi,
    workspace: Workspace,
    program: PathBuf,
    segments: SegmentFolder,
    folder: PathBuf,
}

impl Bench {
    fn row(&self, way: &'static Way, bytes: u64) -> Result<Row> {
        tell!("{}, {bytes} bytes", way.name);
        let idle = self.count(way, bytes, "look_idle")?.each(BURST);
        let receive = self.count(way, bytes, "look_arrived")?.less(idle, 1.0);
        let burst = self.count(way, bytes, "look_burst")?.less(idle, 1.0).each(BURST);
        let send = self.count(way, bytes, "send_messages")?.each(BURST);
        Ok(Row { way: way.name, bytes, send, idle, receive, burst })
    }

    /// What rank 0 does within a call of this function of the program.
    fn count(&self, way: &Way, bytes: u64, function: &str) -> Result<Count> {
        const RANK_0: &str = "program=$1; shift; [ \"${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}\" = 0 ] || exec \"$program\" \"$@\"; \
                              exec valgrind -q --tool=callgrind --toggle-collect=\"$FUNCTION\" --dump-after=\"$FUNCTION\" \
                              --callgrind-out-file=\"$PROFILES/call\" \"$program\" \"$@\"";
        let profiles = self.folder.join("profiles");
        let _old = std::fs::remove_dir_all(&profiles);
        std::fs::create_dir(&profiles).context(format_args!("cannot create {}", profiles.display()))?;
        let (program, count, bytes) =
            (self.program.to_string_lossy(), MESSAGES.to_string(), bytes.to_string());
        let job = way.job(&self.mpi, &self.workspace, self.segments.path(), 2, Path::new("sh"));
        let job = job.variable("FUNCTION", function).variable("PROFILES", &profiles.to_string_lossy());
        job.arguments(["-c", RANK_0, "sh", &program, &count, &bytes]).expect_success(DEADLINE)?;
        Count::median(&counts(&profiles)?).context(format_args!("callgrind saw no call of {function}"))
    }
}

/// Of each call, whose profiles have numbers; the one without is of what came behind the last.
fn counts(profiles: &Path) -> Result<Vec<Count>> {
    let read =
        |path: &Path| std::fs::read_to_string(path).context(format_args!("cannot read {}", path.display()));
    let listed = std::fs::read_dir(profiles).context(format_args!("cannot list {}", profiles.display()))?;
    let paths = listed.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some());
    paths.map(|path| Ok(Count::of(&callgrind::calls(&read(&path)?)))).collect()
}

fn show(rows: &[Row]) {
    let header =
        ["instructions", "bytes", "send", "softib", "idle", "softib", "receive", "softib", "burst", "softib"];
    let mut lines: Vec<Vec<String>> = vec![header.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|row| {
        let counts = [row.send, row.idle, row.receive, row.burst];
        let figures =
            counts.iter().flat_map(|count| [count.plugin, count.softib]).map(|count| format!("{count:.0}"));
        [row.way.to_owned(), row.bytes.to_string()].into_iter().chain(figures).collect()
    }));
    say!("{}", table(&lines).trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(from: [&str; 2], to: [&str; 2], instructions: u64) -> Calls {
        let own = |[name, object]: [&str; 2]| (name.to_owned(), object.to_owned());
        Calls { from: own(from), to: own(to), instructions }
    }

    #[test]
    fn the_plugins_part_is_without_softib_and_without_what_it_calls_back() {
        let (mpi, plugin, engine) = ("libopen-pal.so", "mca_btl_oxib.so", "mca_pml_ob1.so");
        let calls = [
            call(["main", "program"], ["opal_progress", mpi], 1000),
            call(["opal_progress", mpi], ["mca_btl_oxib::mca::component::progress", plugin], 900),
            call(["mca_btl_oxib::look", plugin], ["softib::abi::poll::poll_cq", plugin], 500),
            call(["softib::abi::poll::poll_cq", plugin], ["softib::abi::poll::poll_cq::more", plugin], 100),
            call(["mca_btl_oxib::deliver", plugin], ["mca_pml_ob1_recv_frag_callback_match", engine], 300),
        ];
        assert_eq!(Count::of(&calls), Count { plugin: 100.0, softib: 500.0 });
        assert_eq!(Count::of(&calls).each(10), Count { plugin: 10.0, softib: 50.0 });
    }

    #[test]
    fn what_a_drop_in_calls_of_itself_is_in_its_part_once() {
        let (plugin, drop_in) = ("mca_btl_oxib.so", "libibverbs.so.1");
        let calls = [
            call(
                ["opal_progress", "libopen-pal.so"],
                ["mca_btl_oxib::mca::component::progress", plugin],
                900,
            ),
            call(["mca_btl_oxib::look", plugin], ["softib::abi::poll::poll_cq", drop_in], 500),
            call(["softib::abi::poll::poll_cq", drop_in], ["softib::abi::poll::poll_on", drop_in], 400),
        ];
        assert_eq!(Count::of(&calls), Count { plugin: 400.0, softib: 500.0 });
    }

    #[test]
    fn a_call_that_differs_is_not_the_median() {
        let counts = [(100.0, 7.0), (900.0, 0.0), (101.0, 500.0)];
        let counts = counts.map(|(plugin, softib)| Count { plugin, softib });
        assert_eq!(Count::median(&counts), Some(Count { plugin: 101.0, softib: 7.0 }));
        assert_eq!(Count::median(&[]), None);
    }
}
