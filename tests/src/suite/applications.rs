//! Applications of other projects, from Debian's packages, unmodified, over the drop-in libraries: qperf, libfabric, fio, DAPL, MPICH on
//! UCX, QEMU's live migration.
//!
//! Their packages are [unpacked](super::unpacked), not installed. What listens on TCP, or takes no address of loopback, runs in a network
//! namespace of its own (`applications/network`); where none can be made, these cases are skipped.

use std::path::Path;
use std::process::Command;

use crate::process::{End, Limits, run};
use crate::suite::case::Verdict;
use crate::suite::unpacked::{NOT_HERE, below, last_line, libraries, unpack};
use crate::suite::{Case, Setting, verbs};
use crate::{Failure, Result};

const LIMITS: u64 = 120;
const ADDRESS: &str = "10.77.0.1";

/// A program, or a part of one.
#[derive(Clone)]
struct Application {
    /// The first names the folder.
    packages: &'static [&'static str],
    /// In a network namespace of its own.
    apart: bool,
    /// A word of `applications/pair` that says when the server is ready; `None`: one command, `client`.
    ready: Option<&'static str>,
    /// `@` is the folder of the packages' programs.
    server: String,
    client: String,
    /// The output has each so many times.
    says: &'static [(&'static str, usize)],
    /// It ends without closing the device, as fio's processes do. A kernel would clean up after it; the software device leaves that to the
    /// next process of the user.
    unclosed: bool,
}

const BLANK: Application = Application {
    packages: &[],
    apart: true,
    ready: None,
    server: String::new(),
    client: String::new(),
    says: &[],
    unclosed: false,
};

/// qperf's tests but for those of IP, TCP, RDS and so on, and of XRC, which Debian's qperf is built without: quick ones, and the others.
const QPERF: [&[&str]; 2] = [
    &["conf", "rc_lat", "ud_bw", "rc_rdma_read_bw"],
    &[
        "rc_bi_bw",
        "rc_bw",
        "uc_bi_bw",
        "uc_bw",
        "uc_lat",
        "ud_bi_bw",
        "ud_lat",
        "rc_rdma_read_lat",
        "rc_rdma_write_bw",
        "rc_rdma_write_lat",
        "rc_rdma_write_poll_lat",
        "uc_rdma_write_bw",
        "uc_rdma_write_lat",
        "uc_rdma_write_poll_lat",
        "rc_compare_swap_mr",
        "rc_fetch_add_mr",
        "ver_rc_compare_swap",
        "ver_rc_fetch_add",
    ],
];
/// Its ways to wait and to connect: by events, by polling, by RDMA-CM.
const QPERF_MODES: [(&str, &[&str]); 3] =
    [("", &[]), (" -cp1", &["rc_lat", "uc_bw", "ud_lat"]), (" -cm1", &["rc_lat", "rc_bw"])];

/// Providers of libfabric and types of endpoint.
const FABRIC: [(&str, &str); 4] =
    [("verbs", "msg"), ("verbs", "dgram"), ("verbs;ofi_rxm", "rdm"), ("verbs;ofi_rxd", "rdm")];

/// fio's server: as many receives as the client's SENDs, all of which it posts in the half second that the client waits before its first.
/// It asks for an rnr_retry_count of 0, so a SEND that finds none ends its connection, as on any device.
const FIO: &str = "@/fio --name=all --ioengine=rdma --port=7890 --bs=64k --size=1m --iodepth=16";

/// DAPL's tests: quick ones, and the others.
const DAPL: [&[(&str, &str)]; 2] = [
    &[("dtest", "-P softib-cma -B 4 -b 4096"), ("dtest", "-P softib-scm -B 4 -b 4096")],
    &[
        ("dtest", "-P softib-cma -p -B 4"),
        ("dtest", "-P softib-cma -D -W -b 4096"),
        ("dtest", "-P softib-scm -D -W -b 65536"),
    ],
];

/// Programs of tests/mpi that MPICH runs over UCX, and UCX's transports.
const MPICH: [(&[&str], &[&str]); 2] = [
    (&["sendrecv"], &["ud_verbs,self"]),
    (&["sendrecv", "collectives", "datatypes", "random"], &["ud_verbs,self", "ib,self"]),
];

/// Every case.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let mut cases = qperf(setting.all);
    cases.extend(libfabric());
    cases.extend(["write", "read", "send"].map(fio));
    cases.extend(
        DAPL.iter().take(parts(setting.all)).copied().flatten().map(|(test, words)| dapl(test, words)),
    );
    cases.extend(mpich(setting.all));
    cases.extend([("", "registered as it goes"), (" pinned", "registered as a whole")].map(qemu));
    cases
}

fn parts(all: bool) -> usize {
    if all { 2 } else { 1 }
}

fn case(name: String, application: Application) -> Case {
    Case::skippable(format!("unmodified application: {name}"), move |setting| application.hold(setting))
}

fn qperf(all: bool) -> Vec<Case> {
    let one = |mode: &str, test: &str| {
        let application = Application {
            packages: &["qperf"],
            ready: Some("19765"),
            server: "@/qperf".to_owned(),
            client: format!("@/qperf{mode} -t 1 127.0.0.1 {test} && @/qperf 127.0.0.1 quit"),
            ..BLANK
        };
        case(format!("qperf{mode} {test}"), application)
    };
    let plain = QPERF.iter().take(parts(all)).copied().flatten().map(|test| one("", test));
    let others = QPERF_MODES.iter().take(if all { 3 } else { 1 });
    plain.chain(others.flat_map(|(mode, tests)| tests.iter().map(move |test| one(mode, test)))).collect()
}

fn libfabric() -> Vec<Case> {
    let base = Application { packages: &["libfabric-bin"], ..BLANK };
    let info = Application {
        client: "@/fi_info -p verbs".to_owned(),
        says: &[("domain: softib0", 1), ("FI_EP_MSG", 1), ("FI_EP_DGRAM", 1), ("FI_EP_RDM", 1)],
        ..base.clone()
    };
    let pair = |(provider, endpoint): (&str, &str)| {
        let command = format!("@/fi_pingpong -p '{provider}' -e {endpoint} -I 100 -c");
        let application = Application {
            ready: Some("47592"),
            client: format!("{command} {ADDRESS}"),
            server: command,
            ..base.clone()
        };
        case(format!("fi_pingpong -p {provider} -e {endpoint}"), application)
    };
    let list = case("fi_info -p verbs, for every type of endpoint".to_owned(), info);
    std::iter::once(list).chain(FABRIC.map(pair)).collect()
}

fn fio(verb: &str) -> Case {
    let application = Application {
        packages: &["fio"],
        apart: false,
        ready: Some("rdmacm"),
        server: format!("{FIO} --rw=read"),
        client: format!("{FIO} --rw=write --hostname=127.0.0.1 --verb={verb}"),
        says: &[("err= 0", 2)],
        unclosed: true,
    };
    case(format!("fio, ioengine=rdma, verb={verb}"), application)
}

fn dapl(test: &str, words: &str) -> Case {
    let application = Application {
        packages: &["dapl2-utils"],
        ready: Some("15828"),
        server: format!("@/{test} {words}"),
        client: format!("@/{test} {words} -h 127.0.0.1"),
        says: &[("DAPL Test Complete. PASSED", 2)],
        ..BLANK
    };
    case(format!("DAPL's {test} {words}"), application)
}

fn mpich(all: bool) -> Vec<Case> {
    let (programs, transports) = MPICH[parts(all) - 1];
    let one = |program: &'static str, transports: &'static str| {
        let name = format!("unmodified application: MPICH over UCX runs {program}, UCX_TLS={transports}");
        Case::skippable(name, move |setting| run_mpich(setting, program, transports))
    };
    programs.iter().flat_map(|program| transports.iter().map(move |tls| one(program, tls))).collect()
}

fn run_mpich(setting: &Setting, program: &str, transports: &str) -> Result<Verdict> {
    let application = Application {
        packages: &["mpich", "libmpich-dev"],
        client: format!(
            "@/mpichversion | grep -q ch4:ucx || {{ echo this MPICH is not over UCX; exit 3; }}; \
             UCX_TLS={transports} @/mpiexec.hydra -n 2 @/{program}"
        ),
        says: &[("PASS ", 1)],
        ..BLANK
    };
    let folder = match unpack(setting, application.packages)? {
        Ok(folder) => folder,
        Err(reason) => return Ok(Verdict::Skipped(reason)),
    };
    let source = setting.sources.join("mpi").join(format!("{program}.c"));
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-o"]).arg(folder.join("usr/bin").join(program)).arg(source);
    for libraries in libraries(&folder) {
        compiler.arg("-L").arg(&libraries).arg(format!("-Wl,-rpath-link,{}", libraries.display()));
    }
    for place in below(&folder.join("usr/include")) {
        compiler.arg("-I").arg(place.join("mpich"));
    }
    let compiled = run(compiler.args(["-lmpich", "-lm"]), Limits::deadline(LIMITS), &mut |_| {})?;
    if !compiled.ok() {
        return Err(Failure(format!("{program}.c {} with MPICH:\n{}", compiled.describe(), compiled.output)));
    }
    application.hold(setting)
}

fn qemu((word, how): (&str, &str)) -> Case {
    let application = Application {
        packages: &["qemu-system-x86"],
        apart: false,
        client: format!("/usr/bin/python3 $APPLICATIONS/migrate @/../..{word}"),
        says: &[("source and destination are postmigrate running", 1)],
        ..BLANK
    };
    case(format!("QEMU migrates a guest by rdma: with its memory {how}"), application)
}

impl Application {
    fn hold(&self, setting: &Setting) -> Result<Verdict> {
        let folder = match unpack(setting, self.packages)? {
            Ok(folder) => folder,
            Err(reason) => return Ok(Verdict::Skipped(reason)),
        };
        let finished = run(&mut self.command(setting, &folder), Limits::deadline(LIMITS), &mut |_| {})?;
        if self.unclosed {
            setting.segments.clear();
        }
        if finished.end == End::Exit(NOT_HERE) {
            return Ok(Verdict::skipped(last_line(&finished)));
        }
        let found = |(text, times): &(&str, usize)| finished.output.matches(text).count() >= *times;
        match self.says.iter().find(|wanted| !found(wanted)) {
            None if finished.ok() => Ok(Verdict::Held),
            missing => {
                let without = missing.map(|(text, _)| format!(", without `{text}`")).unwrap_or_default();
                let what = format!("`{}` and `{}`", self.server, self.client);
                Err(Failure(format!("{what} {}{without}:\n{}", finished.describe(), finished.output)))
            }
        }
    }

    fn command(&self, setting: &Setting, folder: &Path) -> Command {
        let scripts = setting.sources.join("applications");
        let programs = folder.join("usr/bin").display().to_string();
        let place = |command: &str| command.replace('@', &programs);
        let mut words = Vec::new();
        if self.apart {
            words.push(scripts.join("network").display().to_string());
        }
        match self.ready {
            Some(ready) => words.extend([
                scripts.join("pair").display().to_string(),
                ready.to_owned(),
                place(&self.server),
                place(&self.client),
            ]),
            None => words.extend(["sh".to_owned(), "-c".to_owned(), place(&self.client)]),
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(verbs::environment(setting));
        let ours = setting.target.join("oxib/verbs");
        let path = std::iter::once(ours).chain(libraries(folder));
        if let Ok(path) = std::env::join_paths(path) {
            command.env("LD_LIBRARY_PATH", path);
        }
        command.env("APPLICATIONS", &scripts).env("DAT_OVERRIDE", scripts.join("dat.conf"));
        command
    }
}
