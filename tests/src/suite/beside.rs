//! softib beside a real libibverbs: `libsoftib-preload.so` in LD_PRELOAD.
//!
//! No machine of ours has RDMA hardware, so a stand-in plays the real library:
//! `tests/verbs/fake.c`, with the real one's symbol versions, a device fake0 and a record of its
//! calls. `tests/verbs/beside.c` uses fake0 and softib0 in turns and looks at each step at what
//! fake0's library saw. Then the same with the distribution's library, which finds no device, and
//! with programs of other projects.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Context;
use crate::mpirun::indent;
use crate::pair::Pair;
use crate::process::{Limits, run};
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

const LIMITS: u64 = 60;
/// All of them are quick.
pub fn cases(_: &Setting) -> Vec<Case> {
    let foreign = |command: &'static str| {
        let name = format!("preloaded beside the distribution's libibverbs: {command}");
        Case::new(name, move |setting| alone(setting, &command.split(' ').collect::<Vec<_>>()).map(drop))
    };
    vec![
        Case::new("preloaded, softib serves its own objects and leaves a real library's to it", stand_in),
        Case::new("preloaded onto softib itself, it lists the device once", |setting| {
            let library_path = format!("LD_LIBRARY_PATH={}", verbs_folder(setting).display());
            let output = alone(setting, &["env", &library_path, "ibv_devices"])?;
            let count = output.matches("softib0").count();
            if count == 1 { Ok(()) } else { Err(Failure(format!("{count} times:\n{output}"))) }
        }),
        foreign("ibv_devices"),
        foreign("ibv_devinfo -v -d softib0"),
        // Its modules are opened by dlopen: the real library is not in the global scope.
        Case::new("preloaded beside the distribution's libibverbs: pyverbs", |setting| {
            let script = "import pyverbs.device as d; print([x.name for x in d.get_device_list()])";
            alone(setting, &["/usr/bin/python3", "-c", script]).map(drop)
        }),
        Case::new("preloaded beside the distribution's libibverbs: ibv_rc_pingpong -c -e", |setting| {
            let pair = Pair::new("ibv_rc_pingpong -d softib0 -c -e -n 100", &environment(setting));
            pair.expect_success(Limits::deadline(LIMITS)).map(drop)
        }),
    ]
}

fn verbs_folder(setting: &Setting) -> PathBuf {
    setting.target.join("oxib/verbs")
}

fn environment(setting: &Setting) -> Vec<(String, String)> {
    let preload = verbs_folder(setting).join("libsoftib-preload.so");
    let variable = |name: &str, value: &Path| (name.to_owned(), value.display().to_string());
    vec![variable("LD_PRELOAD", &preload), variable("SOFTIB_DIR", setting.segments.path())]
}

/// The output of a command that ends well, says softib0 and brings no warning of the loader's.
fn alone(setting: &Setting, words: &[&str]) -> Result<String> {
    let mut command = Command::new(words[0]);
    let output = succeeds(command.args(&words[1..]).envs(environment(setting)))?;
    let complains = output.contains("no version information available");
    if complains || !output.contains("softib0") {
        return Err(Failure(format!("`softib0` and no warning should be in\n{output}")));
    }
    Ok(output)
}

fn succeeds(command: &mut Command) -> Result<String> {
    let finished = run(command, Limits::deadline(LIMITS), &mut |_| {})?;
    if finished.ok() {
        return Ok(finished.output);
    }
    Err(Failure(format!("{command:?} {}:\n{}", finished.describe(), indent(&finished.output))))
}

/// Builds the stand-in and the program; the program alone, and with softib preloaded.
fn stand_in(setting: &Setting) -> Result<()> {
    let (sources, folder) = (setting.sources.join("verbs"), setting.target.join("oxib/beside"));
    std::fs::create_dir_all(&folder).context(format_args!("cannot create {}", folder.display()))?;
    let (library, program) = (folder.join("libibverbs.so.1"), folder.join("beside"));
    let script = format!("-Wl,--version-script={}", sources.join("fake.map").display());
    let mut cc = compiler(&library);
    cc.args(["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", &script]).arg(sources.join("fake.c"));
    succeeds(&mut cc)?;
    succeeds(compiler(&program).arg(sources.join("beside.c")).arg(&library))?;
    let mut first = Command::new(&program);
    says(first.arg("alone").env("LD_LIBRARY_PATH", &folder), "PASS alone")?;
    let mut both = Command::new(&program);
    says(both.env("LD_LIBRARY_PATH", &folder).envs(environment(setting)), "PASS beside")
}

fn compiler(output: &Path) -> Command {
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-Wall", "-Wextra", "-o"]).arg(output);
    cc
}

fn says(command: &mut Command, line: &str) -> Result<()> {
    let output = succeeds(command)?;
    let found = output.lines().any(|said| said == line);
    if found { Ok(()) } else { Err(Failure(format!("`{line}` is missing:\n{output}"))) }
}
