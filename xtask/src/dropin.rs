//! The drop-in libraries: `target/oxib/verbs/libibverbs.so.1` and `librdmacm.so.1`, and `cargo xtask verbs -- COMMAND` to run a
//! program on them.
//!
//! Cargo makes a static library of the crate softib-dropin; the C compiler links it with the trampolines and the version
//! script that the crate describes itself ([`softib_dropin::link`]). Beside it: the development link, and the few sysfs files
//! of a device that no kernel knows.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::workspace::{Workspace, cargo};
use e2e::failure::Context;
use e2e::{Failure, Result};
use softib_dropin::{cm, link, sysfs};

/// File name of the library, which is its soname.
const LIBRARY: &str = "libibverbs.so.1";
const DEVELOPMENT_LINK: &str = "libibverbs.so";
/// Answers for a path that UCX looks for; see [`softib_dropin::paths`].
const PATHS: &str = "libsoftib-paths.so";
/// The device beside those of a real libibverbs; see [`softib_dropin::preload`].
pub const PRELOAD: &str = "libsoftib-preload.so";
/// The connection manager, which is in the first library: this one leads to it.
const CONNECTIONS: &str = "librdmacm.so.1";
const CONNECTIONS_LINK: &str = "librdmacm.so";
const STATIC_LIBRARY: &str = "libsoftib_dropin.a";

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
    let archive = compile(workspace)?;
    let folder = workspace.verbs_folder();
    for (path, content) in sysfs::FILES {
        write(&folder.join("sys").join(path), content)?;
    }
    let library = folder.join(LIBRARY);
    let scratch = workspace.target.join("oxib").join("link");
    link(&archive, &scratch, &library, &link::assembly(), &link::version_script())?;
    link(&archive, &scratch, &folder.join(PRELOAD), &link::preload_assembly(), &link::preload_script())?;
    link(&archive, &scratch, &folder.join(PATHS), &link::paths_assembly(), &link::paths_script())?;
    let connections = folder.join(CONNECTIONS);
    link(&library, &scratch, &connections, &cm::assembly(), &cm::version_script())?;
    for (to, name) in [(LIBRARY, DEVELOPMENT_LINK), (CONNECTIONS, CONNECTIONS_LINK)] {
        let development = folder.join(name);
        if !development.is_symlink() {
            std::os::unix::fs::symlink(to, &development)
                .context(format_args!("cannot create {}", development.display()))?;
        }
    }
    Ok(library)
}

fn write(path: &Path, content: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).context(format_args!("cannot create {}", folder.display()))?;
    }
    std::fs::write(path, content).context(format_args!("cannot write {}", path.display()))
}

/// The static library; cargo's messages are shown when it has something to do.
fn compile(workspace: &Workspace) -> Result<PathBuf> {
    let mut cargo = cargo();
    cargo.current_dir(&workspace.root).stdin(Stdio::null()).stdout(Stdio::null());
    cargo.args([
        "rustc",
        "--quiet",
        "--release",
        "-p",
        "softib-dropin",
        "--lib",
        "--crate-type",
        "staticlib",
    ]);
    let status = cargo.status().context("cannot run cargo")?;
    if !status.success() {
        return Err(Failure::new("the drop-in libibverbs does not build; cargo's messages are above"));
    }
    Ok(workspace.target.join("release").join(STATIC_LIBRARY))
}

/// Links the assembly with `archive`, a static library or one of ours, under a temporary name, then renames, so that running programs keep the old library. The soname is the file's name.
fn link(archive: &Path, scratch: &Path, library: &Path, assembly: &str, script: &str) -> Result<()> {
    let name = library.file_name().context("a library has a name")?.to_string_lossy().into_owned();
    let (assembly_file, script_file) =
        (scratch.join(format!("{name}.s")), scratch.join(format!("{name}.map")));
    write(&assembly_file, assembly)?;
    write(&script_file, script)?;
    let draft = library.with_file_name(format!(".{name}.{}", std::process::id()));
    let mut linker = Command::new("cc");
    linker.args(["-shared", "-o"]).arg(&draft).arg(&assembly_file).arg(archive);
    if name == LIBRARY {
        // Nothing in it refers to this array; the other library does.
        linker.arg(format!("-Wl,--undefined={}", cm::TARGETS_SYMBOL));
    }
    linker.arg(format!("-Wl,-soname,{name}"));
    linker.arg(format!("-Wl,--version-script={}", script_file.display()));
    linker.args([
        "-Wl,--gc-sections",
        "-Wl,--strip-debug",
        "-Wl,-z,relro,-z,now,-z,noexecstack",
        "-Wl,-z,defs",
    ]);
    linker.args(["-Wl,--as-needed", "-lgcc_s", "-lpthread", "-lm", "-ldl", "-lc"]);
    let status = linker.stdin(Stdio::null()).status().context("cannot run cc, the C compiler that links")?;
    if !status.success() {
        return Err(Failure(format!("cc cannot link {name}; its messages are above")));
    }
    std::fs::rename(&draft, library).context(format_args!("cannot create {}", library.display()))
}
