//! Open MPI 5.0 with the very plugin file that 4.1 loads: every case that is about MPI, or a selection that takes a minute.
//!
//! The verbs programs are left out: they have nothing to do with an Open MPI. So are the programs of `solvers`: those of the distribution want the libraries of its own one.

use crate::suite::{
    Case, Setting, devices, lifecycle, manners, mpi4py, netpipe, onesided, own, ports, refusals,
    registrations, roce,
};

const TITLE: &str = "Open MPI 5.0";

/// Programs of the short form, and with how many ranks.
const SHORT: [(&[&str], usize); 2] = [
    (&["sendrecv", "datatypes", "lastwords", "entrusted", "threads", "onesided"], 2),
    (&["collectives", "random", "onesided"], 4),
];

/// All of them.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let parts = [
        manners::cases(setting),
        refusals::of_mpi(),
        lifecycle::cases(setting),
        lifecycle::newer(),
        own::cases(setting),
        onesided::cases(setting),
        registrations::cases(setting),
        ports::of_mpi(),
        roce::cases(),
        devices::cases(setting),
        netpipe::cases(setting),
        mpi4py::cases(setting),
    ];
    titled(parts.into_iter().flatten())
}

/// A few of each kind, with the default layout; without sessions, for PMIx's fences (docs/openmpi.md).
pub fn short(setting: &Setting) -> Vec<Case> {
    let manners = manners::cases(setting).into_iter().filter(|case| !case.name.contains(".conf"));
    let programs = SHORT.iter().flat_map(|(names, ranks)| own::some(setting, names, *ranks));
    titled(
        manners
            .chain(lifecycle::cases(setting))
            .chain(newer(false))
            .chain(programs)
            .chain(onesided::some(setting))
            .chain(registrations::cases(setting))
            .chain(ports::some_of_mpi()),
    )
}

/// What only 5.0 has; sessions, for PMIx's fences, with `all` alone.
pub fn newer(all: bool) -> Vec<Case> {
    lifecycle::newer().into_iter().filter(|case| all || !case.name.starts_with("sessions")).collect()
}

fn titled(cases: impl Iterator<Item = Case>) -> Vec<Case> {
    cases.map(|case| case.below(TITLE)).collect()
}
