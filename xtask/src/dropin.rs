//! The drop-in libraries: `target/oxib/verbs/libibverbs.so.1` and `librdmacm.so.1`, and `cargo xtask verbs -- COMMAND` to run a
//! program on them.
//!
//! Cargo makes a static library of the crate softib-dropin; the C compiler links it with the trampolines and the version
//! script that the library writes itself (softib/dropin/src/link.rs): xtask does not depend on that crate, and is built
//! in seconds. Beside it: the development link, and the few sysfs files of a device that no kernel knows.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::report::phase;
use crate::workspace::{Workspace, cargo, place};
use e2e::failure::Context;
use e2e::{Failure, Result};

/// File name of the library, which is its soname.
const LIBRARY: &str = "libibverbs.so.1";
const DEVELOPMENT_LINK: &str = "libibverbs.so";
/// Answers for a path that UCX looks for; see softib/dropin/src/paths.rs.
const PATHS: &str = "libsoftib-paths.so";
/// The device beside those of a real libibverbs; see softib/dropin/src/preload.rs.
pub const PRELOAD: &str = "libsoftib-preload.so";
/// The connection manager, which is in the first library: this one leads to it.
const CONNECTIONS: &str = "librdmacm.so.1";
const CONNECTIONS_LINK: &str = "librdmacm.so";
const STATIC_LIBRARY: &str = "libsoftib_dropin.a";
/// The first library's array that the second jumps through (`TARGETS` in softib/dropin/src/cm.rs).
const CONNECTION_TARGETS: &str = "oxib_cm_targets";
const SYSTEM_LIBRARIES: [&str; 5] = ["-lgcc_s", "-lpthread", "-lm", "-ldl", "-lc"];
/// Runs `write_link_files` of softib/dropin/src/link.rs.
const DESCRIBE: &str = r#"#include <stdio.h>
#include <string.h>
int oxib_write_link_files(const char *folder);
int main(int count, char **words) {
    int error = oxib_write_link_files(count > 1 ? words[1] : ".");
    if (error) fprintf(stderr, "%s: %s\n", words[1], strerror(error));
    return error != 0;
}
"#;

/// `cargo xtask verbs [--beside] -- COMMAND...`: becomes the command.
pub fn command(words: &[String]) -> Result<()> {
    let beside = words.first().is_some_and(|word| word == "--beside");
    let words = &words[usize::from(beside)..];
    let words = words.strip_prefix(&["--".to_owned()]).unwrap_or(words);
    let Some((program, arguments)) = words.split_first() else {
        return Err(Failure::new("which command? For example: cargo xtask verbs -- ibv_devinfo -v"));
    };
    let workspace = Workspace::find()?;
    build(&workspace)?;
    let folder = workspace.verbs_folder();
    let mut command = Command::new(program);
    command.args(arguments);
    let mut preload = folder.join(PATHS).into_os_string();
    if beside {
        preload.push(":");
        preload.push(folder.join(PRELOAD));
    } else {
        command.env("LD_LIBRARY_PATH", joined("LD_LIBRARY_PATH", &folder));
    }
    command.env("LD_PRELOAD", joined("LD_PRELOAD", Path::new(&preload)));
    let error = command.exec();
    Err(Failure(format!("cannot run {program}: {error}")))
}

/// A list like LD_LIBRARY_PATH with `first` in front of what it has already.
fn joined(variable: &str, first: &Path) -> OsString {
    let mut list = OsString::from(first);
    if let Some(rest) = std::env::var_os(variable).filter(|rest| !rest.is_empty()) {
        list.push(":");
        list.push(rest);
    }
    list
}

/// Builds the drop-in library in release mode into [`Workspace::verbs_folder`]; returns the library.
pub fn build(workspace: &Workspace) -> Result<PathBuf> {
    let archive = phase("building the drop-in libibverbs in release mode", |_| compile(workspace))?;
    let folder = workspace.verbs_folder();
    create(&folder)?;
    let scratch = workspace.target.join("oxib").join("link");
    describe(&archive, &scratch)?;
    replace_folder(&scratch.join("sys"), &folder.join("sys"))?;
    let library = folder.join(LIBRARY);
    link(&archive, &scratch, &library)?;
    link(&archive, &scratch, &folder.join(PRELOAD))?;
    link(&archive, &scratch, &folder.join(PATHS))?;
    link(&library, &scratch, &folder.join(CONNECTIONS))?;
    for (to, name) in [(LIBRARY, DEVELOPMENT_LINK), (CONNECTIONS, CONNECTIONS_LINK)] {
        let development = folder.join(name);
        if !development.is_symlink() {
            std::os::unix::fs::symlink(to, &development)
                .context(format_args!("cannot create {}", development.display()))?;
        }
    }
    Ok(library)
}

fn create(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).context(format_args!("cannot create {}", folder.display()))
}

fn write(path: &Path, content: &str) -> Result<()> {
    std::fs::write(path, content).context(format_args!("cannot write {}", path.display()))
}

/// The static library. Cargo shows its progress itself.
fn compile(workspace: &Workspace) -> Result<PathBuf> {
    let mut cargo = cargo();
    cargo.current_dir(&workspace.root).stdin(Stdio::null()).stdout(Stdio::null());
    cargo.args(["rustc", "--release", "-p", "softib-dropin", "--lib", "--crate-type", "staticlib"]);
    let status = cargo.status().context("cannot run cargo")?;
    if !status.success() {
        return Err(Failure::new("the drop-in libibverbs does not build; cargo's messages are above"));
    }
    Ok(workspace.target.join("release").join(STATIC_LIBRARY))
}

/// Has the static library write what it is to be linked with, and the files below `sys`, into `scratch`: a C program with
/// nothing but a main is linked with it and run.
fn describe(archive: &Path, scratch: &Path) -> Result<()> {
    create(scratch)?;
    let (source, program) = (scratch.join("describe.c"), scratch.join("describe"));
    write(&source, DESCRIBE)?;
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&program).arg(&source).arg(archive).arg("-Wl,--gc-sections").args(SYSTEM_LIBRARIES);
    succeeds(cc.stdin(Stdio::null()), "cc, which links a program with the drop-in,")?;
    succeeds(Command::new(&program).arg(scratch), "the drop-in's description of itself")
}

fn succeeds(command: &mut Command, what: &str) -> Result<()> {
    let status = command.status().context(format_args!("cannot run {what}"))?;
    if status.success() { Ok(()) } else { Err(Failure(format!("{what} failed ({status})"))) }
}

/// Files of `from` in the place of those in `to`, which a device may be reading.
fn replace_folder(from: &Path, to: &Path) -> Result<()> {
    create(to)?;
    let entries = std::fs::read_dir(from).context(format_args!("cannot read {}", from.display()))?;
    for entry in entries.flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() { replace_folder(&from, &to)? } else { place(&from, &to)? }
    }
    Ok(())
}

/// Links the assembly of this name with `archive`, a static library or one of ours, under a temporary name, then renames, so
/// that running programs keep the old library. The soname is the file's name.
fn link(archive: &Path, scratch: &Path, library: &Path) -> Result<()> {
    let name = library.file_name().context("a library has a name")?.to_string_lossy().into_owned();
    let (assembly_file, script_file) =
        (scratch.join(format!("{name}.s")), scratch.join(format!("{name}.map")));
    let draft = library.with_file_name(format!(".{name}.{}", std::process::id()));
    let mut linker = Command::new("cc");
    linker.args(["-shared", "-o"]).arg(&draft).arg(&assembly_file).arg(archive);
    if name == LIBRARY {
        // Nothing in it refers to this array; the other library does.
        linker.arg(format!("-Wl,--undefined={CONNECTION_TARGETS}"));
    }
    linker.arg(format!("-Wl,-soname,{name}"));
    linker.arg(format!("-Wl,--version-script={}", script_file.display()));
    linker.args([
        "-Wl,--gc-sections",
        "-Wl,--strip-debug",
        "-Wl,-z,relro,-z,now,-z,noexecstack",
        "-Wl,-z,defs",
    ]);
    linker.arg("-Wl,--as-needed").args(SYSTEM_LIBRARIES);
    let status = linker.stdin(Stdio::null()).status().context("cannot run cc, the C compiler that links")?;
    if !status.success() {
        return Err(Failure(format!("cc cannot link {name}; its messages are above")));
    }
    std::fs::rename(&draft, library).context(format_args!("cannot create {}", library.display()))
}
