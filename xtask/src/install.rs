//! `cargo xtask install` and `uninstall`: the plugin where Open MPI looks by itself.
//!
//! Open MPI scans `<pkglibdir>:~/.openmpi/components`. `ompi_info --path pkglibdir` knows the first; the second needs no rights.

use std::path::{Path, PathBuf};

use crate::args::{Args, Options};
use crate::build::{PLUGIN, build, place};
use crate::workspace::Workspace;
use e2e::failure::Context;
use e2e::process::ask;
use e2e::{Failure, Result};

/// What both commands understand.
pub const OPTIONS: Options = Options { flags: &["user"], values: &["prefix"], words: false };

/// `cargo xtask install`.
pub fn install(args: Args) -> Result<()> {
    let folder = destination(&args)?;
    let plugin = build(&Workspace::find()?, false)?;
    std::fs::create_dir_all(&folder).map_err(|error| no_access(&folder, &error, &plugin))?;
    let installed = folder.join(PLUGIN);
    place(&plugin, &installed).map_err(|error| no_access(&folder, &error, &plugin))?;
    println!("installed {}", installed.display());
    println!("use:      mpirun --mca btl self,oxib PROGRAM");
    println!("see:      ompi_info --param btl oxib --level 9");
    println!("remove:   cargo xtask uninstall, with the same options");
    Ok(())
}

/// `cargo xtask uninstall`.
pub fn uninstall(args: Args) -> Result<()> {
    let installed = destination(&args)?.join(PLUGIN);
    if !installed.exists() {
        println!("nothing to do: there is no {}", installed.display());
        return Ok(());
    }
    std::fs::remove_file(&installed).context(format_args!("cannot remove {}", installed.display()))?;
    println!("removed {}", installed.display());
    Ok(())
}

fn destination(args: &Args) -> Result<PathBuf> {
    match (args.flag("user"), args.value("prefix")) {
        (true, Some(_)) => Err(Failure::new("--user and --prefix exclude each other")),
        (true, None) => {
            let home = std::env::var_os("HOME").context("HOME is not set, so ~/.openmpi/components is nowhere")?;
            Ok(PathBuf::from(home).join(".openmpi/components"))
        }
        (false, Some(prefix)) => below_prefix(Path::new(prefix)),
        (false, None) => component_folder("ompi_info").context(
            "ompi_info is not in the PATH, so Open MPI's component folder is unknown; try: cargo xtask install --user, \
             or --prefix DIR with the folder Open MPI was installed to",
        ),
    }
}

/// The Open MPI in `prefix` knows best; without its ompi_info, the folder that its build uses by default.
fn below_prefix(prefix: &Path) -> Result<PathBuf> {
    let tool = prefix.join("bin/ompi_info");
    if let Some(folder) = component_folder(&tool.to_string_lossy()) {
        return Ok(folder);
    }
    let usual = prefix.join("lib/openmpi");
    let message = format!(
        "{} has no bin/ompi_info and no lib/openmpi: no Open MPI is installed there",
        prefix.display()
    );
    if usual.is_dir() { Ok(usual) } else { Err(Failure(message)) }
}

fn component_folder(ompi_info: &str) -> Option<PathBuf> {
    parse_path(&ask(ompi_info, &["--path", "pkglibdir", "--parsable"])?)
}

/// `path:pkglibdir:/usr/lib/...`
fn parse_path(line: &str) -> Option<PathBuf> {
    line.lines().find_map(|line| line.strip_prefix("path:pkglibdir:")).map(|path| PathBuf::from(path.trim()))
}

fn no_access(folder: &Path, error: &dyn std::fmt::Display, plugin: &Path) -> Failure {
    let (folder, plugin) = (folder.display(), plugin.display());
    Failure(format!(
        "{error}\n  try: sudo install -D -m 644 {plugin} {folder}/{PLUGIN}\n  or:  cargo xtask install --user"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_component_folder_is_read_from_the_parsable_form() {
        assert_eq!(parse_path("path:pkglibdir:/usr/lib/o\n"), Some(PathBuf::from("/usr/lib/o")));
        assert_eq!(parse_path("Pkglibdir: /usr/lib/o"), None);
    }
}
