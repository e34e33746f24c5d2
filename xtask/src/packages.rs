//! Debian packages that a command needs: named with the reason, installed when missing, not mentioned when present.
//!
//! `dpkg-query` says what is installed. Missing ones go to `apt-get install --no-install-recommends`, through `sudo` when we are not
//! root; the package lists are fetched first when apt does not know the package (a bare container has none). Where there
//! is no apt-get but the programs exist anyway (another distribution), that will do; else the error lists what to install.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::report::phase;
use e2e::failure::Context;
use e2e::process::ask;
use e2e::{Failure, Result, machine, tell};

/// A package, why it is needed, and the file or program that shows it is there under whatever name.
#[derive(Debug, Clone, Copy)]
pub struct Package {
    /// Debian's name.
    pub name: &'static str,
    /// What we need it for.
    pub why: &'static str,
    /// A program in the PATH, or an absolute path.
    pub proof: &'static str,
}

const fn package(name: &'static str, why: &'static str, proof: &'static str) -> Package {
    Package { name, why, proof }
}

/// To run MPI jobs of our own.
pub const MPI: [Package; 3] = [
    package("openmpi-bin", "mpirun, which starts the ranks", "mpirun"),
    package("libopenmpi-dev", "mpicc and mpi.h, to compile the MPI programs in tests/mpi", "mpicc"),
    package("gcc", "the C compiler behind mpicc", "cc"),
];

/// What there has to be of [`MPI`], from wherever it comes.
pub fn has_mpi() -> bool {
    MPI.iter().all(|package| proven(package.proof))
}

/// To compile programs with an Open MPI that is there already.
pub const COMPILER: [Package; 2] = [
    package("gcc", "the C compiler behind mpicc", "cc"),
    package("libc6-dev", "C headers", "/usr/include/stdio.h"),
];

/// What the tests need beyond that.
pub const TESTS: [Package; 14] = [
    package("libc6-dev", "C headers, for the tests that compare struct layouts", "/usr/include/stdio.h"),
    package(
        "libibverbs-dev",
        "verbs headers, for the tests that compare struct layouts",
        "/usr/include/infiniband/verbs.h",
    ),
    package(
        "librdmacm-dev",
        "rdma_cm headers, for the tests that compare struct layouts",
        "/usr/include/rdma/rdma_cma.h",
    ),
    package("rdmacm-utils", "rdma_cm examples that run on the drop-in librdmacm", "rping"),
    package("ibverbs-utils", "verbs examples that run on the drop-in libibverbs", "ibv_rc_pingpong"),
    package("perftest", "verbs benchmarks that run on the drop-in libibverbs", "ib_send_lat"),
    package(
        "python3-pyverbs",
        "rdma-core's own tests, which run on the drop-in libibverbs",
        "/usr/lib/python3/dist-packages/pyverbs",
    ),
    package("iproute2", "the command ip, with which those of them that connect ask for their address", "ip"),
    package("ucx-utils", "UCX, which runs on the drop-in libibverbs", "ucx_perftest"),
    package(
        "netpipe-openmpi",
        "NetPIPE, a benchmark of another project, with an integrity check",
        "NPopenmpi",
    ),
    package("python3", "runs mpi4py's tests", "/usr/bin/python3"),
    package("python3-venv", "keeps mpi4py below target/", "/usr/lib/python3/dist-packages/ensurepip"),
    package(
        "python3-dev",
        "Python.h, to build mpi4py against this Open MPI",
        "/usr/include/python3/Python.h",
    ),
    package(
        "ca-certificates",
        "fetches mpi4py's source distribution from the Python index",
        "/etc/ssl/certs/ca-certificates.crt",
    ),
];

/// What the full matrix needs beyond that.
pub const ALL: [Package; 1] =
    [package("valgrind", "memcheck, which watches a ping-pong in the full matrix", "valgrind")];

/// What guests with a real kernel's verbs need beyond `MPI`. The kernel and, where there is none, QEMU are fetched and unpacked by
/// tests/kernel/vmrun: installed, they would change the machine.
pub const KERNEL: [Package; 10] = [
    package(
        "ibverbs-providers",
        "drivers of the kernel's software RDMA devices (rxe, siw)",
        "/etc/libibverbs.d/rxe.driver",
    ),
    package(
        "librdmacm1",
        "the kernel's connection manager, for rdmacm",
        "/usr/lib/x86_64-linux-gnu/librdmacm.so.1",
    ),
    package("iproute2", "makes RDMA devices (rdma) and loses packets (tc) in guests", "rdma"),
    package("ucx-utils", "UCX, the reference beside oxib in the same guest", "ucx_perftest"),
    package("busybox-static", "the first program of a guest, before it sees this machine's files", "busybox"),
    package("cpio", "packs a guest's initramfs", "cpio"),
    package("kmod", "finds the kernel modules that go into it", "/usr/sbin/modprobe"),
    package("xz-utils", "unpacks the kernel", "xz"),
    package("perl-base", "the remote shell between guests, for mpirun", "perl"),
    package("apt", "fetches kernel and QEMU", "apt-get"),
];

/// Installs what is missing; with `may_install` false, says what is missing and stops.
pub fn ensure(wanted: &[Package], may_install: bool) -> Result<()> {
    let missing: Vec<Package> = wanted.iter().copied().filter(|package| !installed(package)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    tell!("{} Debian package{} missing:", missing.len(), if missing.len() == 1 { " is" } else { "s are" });
    for package in &missing {
        tell!("  {:<18} {}", package.name, package.why);
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    if !may_install {
        return Err(Failure(format!("--no-install was given; install them by:\n  {}", by_hand(&names))));
    }
    if !in_path("apt-get") {
        let text = "there is no apt-get here; install what the list above names, in your distribution's way";
        return Err(Failure::new(text));
    }
    install(&names)
}

/// Debian's word where Debian is; elsewhere the proof.
fn installed(package: &Package) -> bool {
    let status = ask("dpkg-query", &["-W", "-f", "${db:Status-Status}", package.name]);
    match status {
        Some(status) => status.trim() == "installed",
        None if in_path("dpkg-query") => false,
        None => proven(package.proof),
    }
}

fn proven(proof: &str) -> bool {
    if proof.starts_with('/') { Path::new(proof).exists() } else { in_path(proof) }
}

/// Is there a program of this name in the PATH?
pub fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The command for a person who may install packages; where there is no sudo, it is given as root.
fn by_hand(names: &[&str]) -> String {
    let root = if !machine::is_root() && in_path("sudo") { "sudo " } else { "" };
    format!("{root}apt-get update && {root}apt-get install --no-install-recommends {}", names.join(" "))
}

fn install(names: &[&str]) -> Result<()> {
    as_root().and_then(|_| fetch_and_install(names)).map_err(|Failure(text)| {
        Failure(format!("{text}\ninstall them as root, then start this again:\n  {}", by_hand(names)))
    })
}

fn fetch_and_install(names: &[&str]) -> Result<()> {
    if names.iter().any(|name| !known_to_apt(name)) {
        apt(&["update"])?;
    }
    let mut words = vec!["install", "--yes", "--no-install-recommends"];
    words.extend(names);
    apt(&words)
}

fn known_to_apt(name: &str) -> bool {
    ask("apt-cache", &["policy", name])
        .is_some_and(|text| text.contains("Candidate:") && !text.contains("Candidate: (none)"))
}

/// Output goes to the terminal: downloads take minutes, and errors of apt speak for themselves.
fn apt(words: &[&str]) -> Result<()> {
    let mut command = as_root()?;
    command.args(["apt-get", "-q", "-o", "Dpkg::Use-Pty=0"]).args(words).stdin(Stdio::null());
    let line = format!("apt-get {}", words.join(" "));
    let status = phase(&line, |_| command.status().context("cannot run apt-get"))?;
    if status.success() { Ok(()) } else { Err(Failure(format!("{line} failed ({status})"))) }
}

/// `env VAR=... COMMAND`, or `sudo env ...`: sudo drops variables of its caller.
fn as_root() -> Result<Command> {
    let mut command = if machine::is_root() {
        Command::new("env")
    } else if in_path("sudo") {
        let mut sudo = Command::new("sudo");
        sudo.arg("env");
        sudo
    } else {
        return Err(Failure::new("packages are missing, and this is not root and has no sudo"));
    };
    command.arg("DEBIAN_FRONTEND=noninteractive");
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_in_the_path_only_as_a_file() {
        assert!(in_path("sh"));
        assert!(!in_path("no-such-program-here"));
    }

    #[test]
    fn nothing_missing_is_success_without_a_word() {
        assert_eq!(ensure(&[], false), Ok(()));
    }

    #[test]
    fn what_is_missing_is_named_when_installing_is_not_allowed() {
        let absent = package("no-such-package-0", "this test", "no-such-program-here");
        let error = ensure(&[absent], false).unwrap_err();
        assert!(error.0.contains("apt-get install --no-install-recommends no-such-package-0"), "{error}");
    }
}
