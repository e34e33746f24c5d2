//! `cargo xtask install` and `uninstall`: the plugin where Open MPI looks by itself, and the settings for devices beside it.
//!
//! Open MPI scans `<pkglibdir>:~/.openmpi/components`. `ompi_info --path pkglibdir` knows the first; the second needs no rights.
//! Debian's 5.0 does so in theory only: its PMIx sets the component path of every job, so jobs have to name the folder.

use std::path::{Path, PathBuf};

use crate::args::{Args, Options};
use crate::build::{DEVICES, PLUGIN, build, job};
use crate::workspace::{Workspace, place};
use e2e::failure::Context;
use e2e::open_mpi::hides_component_folder;
use e2e::{Failure, OpenMpi, Result, say};

/// What both commands understand.
pub const OPTIONS: Options = Options { flags: &["user"], values: &["mpi", "prefix"], words: false };

/// `cargo xtask install`.
pub fn install(args: Args) -> Result<()> {
    let folder = destination(&args)?;
    let plugin = build(&Workspace::find()?, false)?;
    std::fs::create_dir_all(&folder).map_err(|error| no_access(&folder, &error, &plugin))?;
    let installed = folder.join(PLUGIN);
    place(&plugin, &installed).map_err(|error| no_access(&folder, &error, &plugin))?;
    let settings = folder.join(DEVICES);
    place(&plugin.with_file_name(DEVICES), &settings).map_err(|error| no_access(&folder, &error, &plugin))?;
    say!("installed {}", installed.display());
    say!("installed {} (a folder oxib-device-params.d beside it is for yours)", settings.display());
    say!("use:      {}", usage(&args, &folder));
    say!("see:      ompi_info --param btl oxib --level 9");
    say!("remove:   cargo xtask uninstall, with the same options");
    Ok(())
}

/// `cargo xtask uninstall`.
pub fn uninstall(args: Args) -> Result<()> {
    let folder = destination(&args)?;
    [PLUGIN, DEVICES].into_iter().try_for_each(|name| remove(&folder.join(name)))
}

fn remove(file: &Path) -> Result<()> {
    if !file.exists() {
        say!("nothing to do: there is no {}", file.display());
        return Ok(());
    }
    std::fs::remove_file(file).context(format_args!("cannot remove {}", file.display()))?;
    say!("removed {}", file.display());
    Ok(())
}

fn destination(args: &Args) -> Result<PathBuf> {
    match (args.flag("user"), prefix(args)) {
        (true, Some(_)) => Err(Failure::new("--user and --mpi exclude each other")),
        (true, None) => {
            let home = std::env::var_os("HOME").context("HOME is not set, so ~/.openmpi/components is nowhere")?;
            Ok(PathBuf::from(home).join(".openmpi/components"))
        }
        (false, Some(prefix)) => below_prefix(Path::new(prefix)),
        (false, None) => OpenMpi::in_path().component_folder().context(
            "ompi_info is not in the PATH, so Open MPI's component folder is unknown; try: cargo xtask install --user, \
             or --mpi DIR with the folder Open MPI was installed to",
        ),
    }
}

/// `--mpi`, or its first name.
fn prefix(args: &Args) -> Option<&str> {
    args.value("mpi").or_else(|| args.value("prefix"))
}

/// The Open MPI in `prefix` knows best; without its ompi_info, the folder that its build uses by default.
fn below_prefix(prefix: &Path) -> Result<PathBuf> {
    if let Some(folder) = OpenMpi::below(prefix).ok().and_then(|mpi| mpi.component_folder()) {
        return Ok(folder);
    }
    let usual = prefix.join("lib/openmpi");
    let message = format!(
        "{} has no bin/ompi_info and no lib/openmpi: no Open MPI is installed there",
        prefix.display()
    );
    if usual.is_dir() { Ok(usual) } else { Err(Failure(message)) }
}

/// How jobs get to use what lies in `folder`.
fn usage(args: &Args, folder: &Path) -> String {
    let found =
        prefix(args).map_or_else(|| Ok(OpenMpi::in_path()), |prefix| OpenMpi::below(Path::new(prefix)));
    match found {
        Ok(mpi) if hides_component_folder(&mpi) => format!(
            "this Open MPI {} (Debian's) hides that folder from jobs, so name it:\n          {}",
            mpi.version(),
            job(Some(&folder.display().to_string()))
        ),
        _ => job(None),
    }
}

fn no_access(folder: &Path, error: &dyn std::fmt::Display, plugin: &Path) -> Failure {
    let (folder, plugin) = (folder.display(), plugin.display());
    Failure(format!(
        "{error}\n  try: sudo install -D -m 644 {plugin} {folder}/{PLUGIN}\n  or:  cargo xtask install --user"
    ))
}
