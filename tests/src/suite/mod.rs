//! The end-to-end cases and what runs them.
//!
//!     case        a sentence and a function; a setting: plugin, programs, transport, layouts
//!     runner      runs cases one after another, looks for what they leave in /dev/shm, counts
//!     drawn       what a soak draws for our MPI programs: thread level, ranks, how many sends go unsignalled
//!     own         our MPI programs x layouts x ranks
//!     manners     start-up: parameters, bad input, jobs that never asked for oxib, ranks that die
//!     points      ranks that are killed at named points of their connections' lives
//!     refusals    bad input and shortages: a table of what is wrong and which cause the message has to name
//!     shortage    a folder of segments that is too small
//!     endings     signals, memory that runs out, calls of the device that fail
//!     connect     connections: each manager by itself, storms, stopped and unknown peers, who does not fit
//!     onesided    one-sided communication by put, get and atomics
//!     functions   the BTL's functions, called as Open MPI's upper layers call them
//!     registrations    what stays registered between transfers, and what must not
//!     callers     a module's functions, called from threads, callbacks and for stopped peers as ob1 would call them
//!     ports       several devices and ports: which of them a job uses, and that all of them carry it
//!     roce        RoCE ports on several networks: over which GIDs each pair of processes meets
//!     devices     files of device parameters
//!     fabric      RoCE ports, ranks on nodes of their own, fabrics where things go wrong
//!     broken      connections that break while both processes live
//!     sessions    jobs of the ping-pong under control
//!     netpipe     NetPIPE's integrity check
//!     verbs       verbs programs of other projects, over the drop-in libibverbs
//!     commands    ... the pairs among them, line by line
//!     applications    applications of other projects, from their packages: libfabric, MPICH, QEMU, fio, qperf, DAPL
//!     solvers     MPI programs of other projects, from their packages: HPCC, LAMMPS, ScaLAPACK's testers
//!     unpacked    Debian packages that are fetched and not installed
//!     beside      softib beside a real libibverbs, by LD_PRELOAD
//!     sanitizer   a program of eight threads under ThreadSanitizer
//!     memcheck    a ping-pong under valgrind, in the full matrix
//!     pyverbs     rdma-core's own tests over the drop-in, held against a list
//!     lifecycle   how a process starts and ends MPI: thread levels, tools, sessions
//!     lives       jobs one after another that start, talk and end: every layout with every connection manager
//!     ompi5       the same with Open MPI 5.0: all that is about MPI, or a short selection
//!     iwarp       the software device as an iWARP one
//!     rdmacm      the same for librdmacm; our MPI programs with the connection manager rdmacm
//!     xrc         X layouts: nodes, two jobs at once, what does not fit
//!     mpi4py      mpi4py's tests, measured against the same tests over tcp

pub mod applications;
pub mod beside;
pub mod broken;
pub mod callers;
pub mod case;
pub mod commands;
pub mod connect;
pub mod devices;
pub mod drawn;
pub mod endings;
pub mod fabric;
pub mod functions;
pub mod iwarp;
pub mod lifecycle;
pub mod lives;
pub mod manners;
pub mod memcheck;
pub mod mpi4py;
pub mod netpipe;
pub mod ompi5;
pub mod onesided;
pub mod own;
pub mod points;
pub mod ports;
pub mod pyverbs;
pub mod rdmacm;
pub mod refusals;
pub mod registrations;
pub mod roce;
pub mod runner;
pub mod sanitizer;
pub mod sessions;
pub mod shortage;
pub mod solvers;
pub mod unpacked;
pub mod verbs;
pub mod xrc;

pub use case::{Case, Setting, Verdict};
pub use runner::{Tally, run, soak};

/// Every case, in the order in which they run: what fails fastest first.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let parts = [
        manners::cases(setting),
        refusals::cases(setting),
        verbs::cases(setting),
        applications::cases(setting),
        beside::cases(setting),
        sanitizer::cases(setting),
        memcheck::cases(setting),
        pyverbs::cases(setting),
        lifecycle::cases(setting),
        lives::cases(setting),
        if setting.mpi.major() >= 5 { ompi5::newer(setting.all) } else { Vec::new() },
        shortage::cases(setting),
        endings::cases(setting),
        points::cases(setting),
        connect::cases(setting),
        rdmacm::cases(setting),
        iwarp::cases(setting),
        own::cases(setting),
        sessions::cases(),
        onesided::cases(setting),
        functions::cases(setting),
        registrations::cases(setting),
        xrc::cases(setting),
        callers::cases(setting),
        ports::cases(setting),
        roce::cases(),
        devices::cases(setting),
        fabric::cases(setting),
        broken::cases(setting),
        netpipe::cases(setting),
        solvers::cases(setting),
        mpi4py::cases(setting),
    ];
    parts.into_iter().flatten().collect()
}
