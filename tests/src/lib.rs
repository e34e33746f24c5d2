//! End-to-end tests: real `mpirun`, real MPI programs, the plugin as users load it.
//!
//! A library and not a set of `#[test]`s, because the cases are a product (program x layout x ranks) that is only known
//! once the layouts of `configs/` are read, and because they need packages and a built plugin: `cargo xtask test`
//! prepares both and calls [`suite`]. What is in the folder:
//!
//!     mpi/*.c      our own MPI programs, each checking every byte it receives
//!     mpi4py/      what runs mpi4py's own tests, and which version of them
//!     output       lines for standard output and error, which may be closed pipes; a sign of life while something takes long
//!     process      one child process group: captured output, deadline, no process left behind
//!     interrupt    Ctrl-C and its like: what runs is ended
//!     machine      what this computer is: cores, root, segments in /dev/shm
//!     pair         two runs of one program, the second of which connects to the first
//!     open_mpi     an installed Open MPI: its tools, its release, what differs between releases
//!     mpirun       a job: ranks, transport, parameters, binding
//!     programs     compiles mpi/*.c with mpicc
//!     measured     what mpi/pingpong.c measures: sizes, words, results
//!     session      a job of mpi/pingpong.c that measures what it is told to, and sleeps in between
//!     layouts      reads configs/*.conf
//!     kernel       the same over a real kernel's verbs, in guests (kernel/ has their scripts)
//!     suite        the cases, and the runner that counts them

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod failure;
pub mod interrupt;
pub mod kernel;
pub mod layouts;
pub mod machine;
pub mod measured;
pub mod mpirun;
pub mod open_mpi;
pub mod output;
pub mod pair;
pub mod process;
pub mod programs;
pub mod session;
pub mod suite;
pub mod trace;

pub use failure::{Failure, Result};
pub use open_mpi::OpenMpi;
