//! MPI programs of other projects that compute, from Debian's packages, unmodified: HPCC, LAMMPS, ScaLAPACK's testers.
//!
//!     HPCC         dense equations, transposition, random updates, Fourier transforms, and the network's figures; it checks all of its results
//!     LAMMPS       molecular dynamics: what it prints of forces and energies is what it prints over tcp, figure by figure
//!     ScaLAPACK    linear algebra over all ranks; each tester checks residuals

use std::path::Path;

use crate::failure::Context;
use crate::layouts::{DEFAULT, Layout};
use crate::mpirun::{Job, Transport};
use crate::process::{Finished, Limits};
use crate::suite::case::Verdict;
use crate::suite::unpacked::{libraries, unpack};
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

const SECONDS: u64 = 300;

/// Ranks of HPCC, and how they stand in rows and columns.
const GRIDS: [(usize, [&str; 2]); 2] = [(2, ["1", "2"]), (4, ["2", "2"])];
/// Rows of its matrix.
const ROWS: &str = "800";
/// What stands in its results.
const HPCC_SAYS: [&str; 3] = ["Success=1", "MPIRandomAccess_LCG_Errors=0", "MPIRandomAccess_Errors=0"];

/// ScaLAPACK's testers: quick ones, and the others. Those of Cholesky factorisations are left out: of seven jobs of `xsllt` over tcp one has ended. So is
/// `xdsep`: sums are added up as they arrive, and one of its residuals is over the threshold in 4 of 10 jobs over shared memory on some machines.
const TESTERS: [&[&str]; 2] = [
    &["xdlu", "xdqr", "xdtrd"],
    &[
        "xdbrd", "xddblu", "xddtlu", "xdgblu", "xdgsep", "xdhrd", "xdinv", "xdls", "xdnep", "xzbrd",
        "xzgblu", "xzgsep", "xzhrd", "xzinv", "xzls", "xzlu", "xznep", "xzqr", "xzsep", "xztrd",
    ],
];

/// Quick: HPCC with 2 ranks over the default layout and X queues, the others with the default layout. All: every layout, 2 and 4 ranks.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let layouts = |quick: &'static [&'static str]| {
        let chosen = move |layout: &&Layout| setting.all || quick.contains(&layout.name.as_str());
        setting.layouts.iter().filter(chosen)
    };
    let grids = GRIDS.iter().take(if setting.all { 2 } else { 1 });
    let hpcc_cases =
        layouts(&[DEFAULT, "x-only"]).flat_map(|layout| grids.clone().map(|grid| hpcc(layout, *grid)));
    let lammps_cases = layouts(&[DEFAULT]).flat_map(|layout| [2, 4].map(|ranks| lammps(layout, ranks)));
    let testers = TESTERS.iter().take(if setting.all { 2 } else { 1 }).copied().flatten();
    hpcc_cases.chain(lammps_cases).chain(testers.map(|tester| scalapack(tester))).collect()
}

fn hpcc(layout: &Layout, (ranks, grid): (usize, [&'static str; 2])) -> Case {
    let parameters = layout.parameters();
    case("hpcc", format!("HPCC finds its results right ({ranks} ranks, layout {})", layout.name), move |at| {
        let folder = at.folder.join("job");
        let job = at.job(&at.setting.transport, ranks, "usr/bin/hpcc").parameters(&parameters);
        let job = job.flag("--wdir").flag(&folder.to_string_lossy());
        prepare(&folder, &at.read("usr/share/doc/hpcc/examples/_hpccinf.txt")?, grid)?;
        let finished = job.expect_success(Limits::deadline(SECONDS))?;
        let results = std::fs::read_to_string(folder.join("hpccoutf.txt")).unwrap_or_default();
        let wanted = HPCC_SAYS.iter().find(|line| !results.lines().any(|found| found == **line));
        match (wanted, results.contains("FAILED")) {
            (None, false) => Ok(()),
            (missing, _) => {
                Err(told(&job, &finished, &format!("its results, without {missing:?}:\n{results}")))
            }
        }
    })
}

/// A folder in which HPCC finds its input: the package's example, of one size and with these ranks.
fn prepare(folder: &Path, example: &str, [rows, columns]: [&str; 2]) -> Result<()> {
    let _there_may_be_none = std::fs::remove_dir_all(folder);
    let line = |line: &str| match line.split_whitespace().last() {
        Some("Ns") => format!("{ROWS} Ns\n"),
        Some("Ps") => format!("{rows} Ps\n"),
        Some("Qs") => format!("{columns} Qs\n"),
        _ => format!("{line}\n"),
    };
    let text: String = example.lines().map(line).collect();
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(folder.join("hpccinf.txt"), text))
        .context(format_args!("cannot write HPCC's input to {}", folder.display()))
}

fn lammps(layout: &Layout, ranks: usize) -> Case {
    let parameters = layout.parameters();
    let name = format!("LAMMPS melts a salt as over tcp ({ranks} ranks, layout {})", layout.name);
    case("lammps", name, move |at| {
        let input = at.setting.sources.join("applications/salt.lmp");
        let arguments = ["-in", &*input.to_string_lossy(), "-log", "none"];
        let figures = |transport: &Transport, parameters: &[(String, String)]| {
            let job = at.job(transport, ranks, "usr/bin/lmp").parameters(parameters).arguments(arguments);
            let finished = job.expect_success(Limits::deadline(SECONDS))?;
            match figures(&finished.output) {
                lines if lines.len() > 10 => Ok(lines),
                lines => Err(told(&job, &finished, &format!("only {} lines of figures", lines.len()))),
            }
        };
        let (over_tcp, ours) =
            (figures(&Transport::new("tcp"), &[])?, figures(&at.setting.transport, &parameters)?);
        match ours == over_tcp {
            true => Ok(()),
            false => Err(Failure(format!("over tcp:\n{}\nhere:\n{}", over_tcp.join("\n"), ours.join("\n")))),
        }
    })
}

/// The lines of what LAMMPS has computed, without those that tell of time.
fn figures(output: &str) -> Vec<String> {
    let lines = output.lines().skip_while(|line| !line.trim_start().starts_with("Step "));
    lines.take_while(|line| !line.starts_with("Loop time")).map(str::to_owned).collect()
}

fn scalapack(tester: &'static str) -> Case {
    case("scalapack-mpi-test", format!("ScaLAPACK's tester {tester} passes (4 ranks)"), move |at| {
        let libraries = libraries(at.folder);
        let folder =
            libraries.iter().map(|place| place.join("scalapack/openmpi-tests")).find(|place| place.is_dir());
        let folder = folder.ok_or_else(|| Failure("the package has no folder of testers".to_owned()))?;
        let job = at.job(&at.setting.transport, 4, &folder.join(tester).to_string_lossy());
        let job = job.flag("--wdir").flag(&folder.to_string_lossy());
        let finished = job.expect_success(Limits::deadline(SECONDS))?;
        match failed_of(&finished.output) {
            Some(0) => Ok(()),
            failed => Err(told(&job, &finished, &format!("failed checks: {failed:?}"))),
        }
    })
}

/// How many checks a tester says have failed; `None` if it does not say so.
fn failed_of(output: &str) -> Option<usize> {
    let summary = output.lines().find(|line| line.contains("tests completed and failed"))?;
    summary.split_whitespace().next()?.parse().ok()
}

/// What a case has at hand.
struct At<'a> {
    setting: &'a Setting,
    /// Of the package.
    folder: &'a Path,
}

impl At<'_> {
    fn job(&self, transport: &Transport, ranks: usize, program: &str) -> Job {
        let path = std::env::join_paths(libraries(self.folder)).unwrap_or_default();
        let job = self.setting.foreign_job(ranks, transport, self.folder.join(program)).foreign();
        job.variable("LD_LIBRARY_PATH", &path.to_string_lossy()).variable("OMP_NUM_THREADS", "1")
    }

    fn read(&self, file: &str) -> Result<String> {
        let file = self.folder.join(file);
        std::fs::read_to_string(&file).context(format_args!("cannot read {}", file.display()))
    }
}

/// A case with a package.
fn case(package: &'static str, name: String, body: impl Fn(&At<'_>) -> Result<()> + 'static) -> Case {
    Case::skippable(name, move |setting| match unpack(setting, &[package])? {
        Ok(folder) => body(&At { setting, folder: &folder }).map(|()| Verdict::Held),
        Err(reason) => Ok(Verdict::Skipped(reason)),
    })
}

fn told(job: &Job, finished: &Finished, what: &str) -> Failure {
    let Failure(text) = job.explain(finished);
    Failure(format!("{what}\n{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_between_the_head_and_the_time() {
        let output = "LAMMPS\nPer MPI rank memory\n   Step   Temp\n 0  2\n 10 1.9\nLoop time of 3.2 on 2 procs\n 20 7\n";
        assert_eq!(figures(output), ["   Step   Temp", " 0  2", " 10 1.9"]);
        assert!(figures("ERROR\n").is_empty());
    }

    #[test]
    fn a_tester_says_how_many_checks_have_failed() {
        assert_eq!(
            failed_of(
                "  240 tests completed and passed\n    0 tests completed and failed residual checks.\n"
            ),
            Some(0)
        );
        assert_eq!(failed_of("   12 tests completed and failed.\n"), Some(12));
        assert_eq!(failed_of("END OF TESTS.\n"), None);
    }
}
