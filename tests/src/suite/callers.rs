//! A module's functions called as upper layers call them, by a program in ob1's place (`tests/mpi/plugin.c`): from several threads, from within receive
//! callbacks, for peers that stand. ob1 hides what happens there: it sorts messages, and comes again when it is refused.

use crate::suite::case::passes;
use crate::suite::{Case, Setting};
use crate::{Result, mpirun::Job};

const SECONDS: u64 = 60;

/// What holds, ranks, argument of the program, parameters, ports of the device.
type Scene = (&'static str, usize, &'static str, &'static [(&'static str, &'static str)], &'static str);

const SCENES: [Scene; 9] = [
    ("with four threads a message goes up when the one before it has", 2, "hold", &[], "1"),
    (
        "a callback that makes progress gets the next message, whichever thread hands it up",
        2,
        "nest",
        &[],
        "1",
    ),
    (
        "a callback that waits for another thread to hand up the next message is not waited for",
        2,
        "wait",
        &[],
        "1",
    ),
    (
        "sends from outside are bounded while another thread is in a receive callback",
        2,
        "outside",
        &[("btl_oxib_free_list_max", "64")],
        "1",
    ),
    (
        "a receive callback's sends are taken over every port",
        2,
        "ports",
        &[("btl_oxib_free_list_max", "64")],
        "2",
    ),
    ("a look around on two ports allocates nothing", 2, "allocates", &[], "2"),
    (
        "five stopped peers that are taken away one by one share one deadline, and are told of what they lost",
        6,
        "stopped",
        &[("btl_oxib_finalize_timeout", "4s")],
        "1",
    ),
    (
        "a put to a peer that is taken away is called back before it is",
        2,
        "put",
        &[("btl_oxib_finalize_timeout", "1s")],
        "1",
    ),
    ("nothing goes up once MPI has taken its communicators down", 2, "ending", &[], "1"),
];

/// With the Open MPI of the machine, 4.1, for which the program knows the structures.
pub fn cases(setting: &Setting) -> Vec<Case> {
    if !setting.transport.needs_plugin() {
        return Vec::new();
    }
    let case = |scene: Scene| {
        let (shows, ranks, ..) = scene;
        Case::new(format!("{shows} (plugin, {ranks} ranks)"), move |setting| run(setting, &scene))
    };
    SCENES.into_iter().map(case).collect()
}

fn run(setting: &Setting, (_, ranks, what, parameters, ports): &Scene) -> Result<()> {
    let job: Job = setting.job(*ranks, "plugin")?.arguments([what, "4"]).variable("SOFTIB_PORTS", ports);
    let with = |job: Job, (name, value): &(&str, &str)| job.parameter(name, value);
    passes(&parameters.iter().fold(job, with), "plugin", SECONDS).map(drop)
}
