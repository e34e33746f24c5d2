//! Our own MPI programs (tests/mpi), each with every layout and number of ranks that it is made for.
//!
//! Quick: the default layout with 2, 3 and 4 ranks, every other one with 2 and 4; some once more with other values of parameters that
//! they are sensitive to. All: everything three times over with different values, since what depends on timing shows itself at times only.
//! A soak draws ranks from 2 to 8, a thread level, `max_unsig_wrs`, and how many messages rings hold, for each run ([`Drawn`]).

use std::time::Duration;

use crate::Result;
use crate::layouts::{DEFAULT, Layout};
use crate::process::Limits;
use crate::suite::case::passes_within;
use crate::suite::drawn::{Drawn, Level};
use crate::suite::{Case, Setting};

/// A program, what it shows, and how it is run.
struct Program {
    name: &'static str,
    shows: &'static str,
    most_ranks: usize,
    one_sided: bool,
}

const fn program(name: &'static str, shows: &'static str) -> Program {
    Program { name, shows, most_ranks: 4, one_sided: false }
}

impl Program {
    /// As many as were drawn, if it is for any number.
    fn ranks(&self, drawn: Drawn, otherwise: usize) -> usize {
        if self.most_ranks > 2 { drawn.ranks } else { otherwise }
    }

    /// The level that was drawn; osc/pt2pt has no MPI_THREAD_MULTIPLE.
    fn level(&self, drawn: Drawn, setting: &Setting) -> Level {
        let is_limited = self.one_sided && setting.mpi.one_sided() == "pt2pt";
        if is_limited { drawn.level.min(Level::Serialized) } else { drawn.level }
    }
}

const PROGRAMS: [Program; 21] = [
    program("idle", "a job that sends nothing starts and ends"),
    program("sendrecv", "every pair of ranks exchanges messages of every edge size"),
    program("modes", "synchronous sends wait for their receive, buffered and ready ones do not"),
    program("probe", "what a probe announces is what is received"),
    program("wildcard", "wildcard receives get each sender's messages once and in order"),
    program("persistent", "persistent requests carry fresh data every time they are started"),
    program("datatypes", "derived datatypes arrive as described and touch nothing between"),
    program("collectives", "collectives compute what a single process computes"),
    program("communicators", "messages of different communicators never mix"),
    program("flood", "a flood of unexpected messages arrives complete and in order"),
    program("crossing", "floods that cross do not starve each other of credits"),
    program("random", "a random storm of messages arrives intact"),
    program("large", "messages of up to 64 MiB arrive intact, several at a time"),
    program("forks", "a program that forks between its messages goes on"),
    program("lastwords", "messages sent just before MPI_Finalize arrive, however late they are received"),
    program("leaves", "an answer leaves although its sender then waits outside of MPI"),
    program("entrusted", "what a sender has handed over leaves although it then waits outside of MPI"),
    program("threads", "four threads a rank exchange at once under MPI_THREAD_MULTIPLE"),
    Program {
        name: "onesided",
        shows: "one-sided operations and their synchronisation do what MPI says",
        most_ranks: 4,
        one_sided: true,
    },
    Program {
        name: "churn",
        shows: "memory that comes and goes between transfers carries what was put into it",
        most_ranks: 4,
        one_sided: true,
    },
    Program {
        name: "linkedlist",
        shows: "ranks append to one list by compare-and-swap while they answer each other",
        most_ranks: 4,
        one_sided: true,
    },
];

const PAIRS: [Program; 2] = [
    Program {
        name: "paused",
        shows: "a rank that is stopped for a while is waited for and gets everything",
        most_ranks: 2,
        one_sided: false,
    },
    Program {
        name: "million",
        shows: "a million small messages are each the right one",
        most_ranks: 2,
        one_sided: false,
    },
];

/// A program that says how far it is may take its time on a busy machine; one that is silent hangs.
const LIMITS: Limits = Limits { deadline: Duration::from_secs(900), silence: Some(Duration::from_secs(90)) };

/// Parameters of ours and values that are not their defaults.
type Values = &'static [(&'static str, &'static str)];

/// How many sends go unsignalled; what everything runs with in turn, if all is to be run.
const UNSIGNALLED: [Values; 2] = [&[("max_unsig_wrs", "1")], &[("max_unsig_wrs", "64")]];

/// Each send signalled; messages held back as soon as two answers wait; no rings of eager RDMA, short ones, one place for them, messages with checksums;
/// messages that are copied, into short send rings.
const EXTREMES: [Values; 7] = [
    &[("max_unsig_wrs", "0")],
    &[("max_answers", "1")],
    &[("use_eager_rdma", "0")],
    &[("use_eager_rdma", "1"), ("eager_rdma_num", "4"), ("eager_rdma_threshold", "1")],
    &[("use_eager_rdma", "1"), ("max_eager_rdma", "1")],
    &[("use_eager_rdma", "1"), ("eager_rdma_checksum", "1")],
    &[("use_eager_rdma", "0"), ("max_inline", "32"), ("send_ring_size", "8192")],
];

/// Programs x layouts x ranks, and those that are sensitive to them with other values of some parameters.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let once: Vec<_> = setting.layouts.iter().flat_map(|layout| of_layout(layout, setting.all)).collect();
    let usual = once.iter().map(|(layout, ranks, program)| case(layout, *ranks, program, &[]));
    let with = |values: Values, whole: bool| {
        let layouts = |layout: &Layout| setting.all || layout.name == DEFAULT;
        let fit = once.iter().filter(move |(layout, ranks, program)| {
            whole || layouts(layout) && is_sensitive(program, *ranks)
        });
        fit.map(move |(layout, ranks, program)| case(layout, *ranks, program, values)).collect::<Vec<_>>()
    };
    let unsignalled = UNSIGNALLED.iter().flat_map(|value| with(value, setting.all));
    usual.chain(unsignalled).chain(EXTREMES.iter().flat_map(|value| with(value, false))).collect()
}

/// Entries, buffers and send slots run short in it.
fn is_sensitive(program: &Program, ranks: usize) -> bool {
    match program.name {
        "crossing" | "random" | "onesided" => ranks == 4,
        "million" => true,
        _ => false,
    }
}

/// The programs of these names with the default layout.
pub fn some(setting: &Setting, names: &[&str], ranks: usize) -> Vec<Case> {
    let default = setting.layouts.iter().filter(|layout| layout.name == DEFAULT);
    let chosen = move |program: &&Program| names.contains(&program.name);
    default.flat_map(|layout| PROGRAMS.iter().filter(chosen).map(|p| case(layout, ranks, p, &[]))).collect()
}

/// Every program with the default layout and 2 to 4 ranks, over connections by this manager.
pub fn by_manager(setting: &Setting, manager: &'static str) -> Vec<Case> {
    let default = setting.layouts.iter().filter(|layout| layout.name == DEFAULT);
    let fitting = default.flat_map(|layout| of_layout(layout, true));
    let cases = fitting.map(|(layout, ranks, program)| {
        let name = format!("by {manager}: {} ({}, {ranks} ranks)", program.shows, program.name);
        Case::new(name, move |setting| {
            let parameters = [("btl_oxib_cpc_include".to_owned(), manager.to_owned())];
            run(setting, program, ranks, &[&layout.parameters()[..], &parameters].concat(), None)
        })
    });
    cases.collect()
}

fn of_layout(layout: &Layout, all: bool) -> Vec<(Layout, usize, &'static Program)> {
    let ranks: &[usize] = if all || layout.name == DEFAULT { &[2, 3, 4] } else { &[2, 4] };
    let programs = || PROGRAMS.iter().chain(&PAIRS);
    let pairs = ranks.iter().flat_map(|ranks| programs().map(move |program| (*ranks, program)));
    let fitting = pairs.filter(|(ranks, program)| *ranks <= program.most_ranks);
    fitting.map(|(ranks, program)| (layout.clone(), ranks, program)).collect()
}

fn case(layout: &Layout, ranks: usize, program: &'static Program, values: Values) -> Case {
    let with: String = values.iter().map(|(parameter, value)| format!(", {parameter} {value}")).collect();
    let name = format!("{} ({}, {ranks} ranks, layout {}{with})", program.shows, program.name, layout.name);
    let mut parameters = layout.parameters();
    let of_ours = |&(parameter, value): &(&str, &str)| (format!("btl_oxib_{parameter}"), value.to_owned());
    parameters.extend(values.iter().map(of_ours));
    let is_free = values.is_empty();
    let case = Case::new(name, move |setting| {
        let drawn = setting.drawn().filter(|_| is_free);
        run(setting, program, drawn.map_or(ranks, |drawn| program.ranks(drawn, ranks)), &parameters, drawn)
    });
    if is_free { case.drawing() } else { case }
}

fn run(
    setting: &Setting,
    program: &Program,
    ranks: usize,
    parameters: &[(String, String)],
    drawn: Option<Drawn>,
) -> Result<()> {
    let mut job = setting.job(ranks, program.name)?.parameters(parameters);
    if program.one_sided {
        job = job.parameter("osc", setting.mpi.one_sided());
    }
    if let Some(drawn) = drawn {
        job = job.parameter("btl_oxib_max_unsig_wrs", &drawn.unsignalled.to_string());
        if drawn.slots == 0 {
            job = job.parameter("btl_oxib_use_eager_rdma", "0");
        } else {
            job = job.parameter("btl_oxib_eager_rdma_num", &drawn.slots.to_string());
        }
        job = job.variable("TEST_THREAD_LEVEL", program.level(drawn, setting).name());
    }
    passes_within(&job, program.name, LIMITS).map(drop)
}
