//! `cargo xtask build`: the plugin under the name Open MPI wants, in a folder of its own.
//!
//! Cargo says `libmca_btl_oxib.so`; Open MPI opens `mca_btl_oxib.so` (mca_<type>_<name>.so). The copy is renamed into
//! place, so that a job that has the old one mapped keeps it.

use std::path::PathBuf;
use std::process::Stdio;

use crate::args::{Args, Options};
use crate::dropin;
use crate::report::phase;
use crate::workspace::{Workspace, cargo, place};
use e2e::failure::Context;
use e2e::{Failure, OpenMpi, Result, say};

/// File name of the plugin.
pub const PLUGIN: &str = "mca_btl_oxib.so";

/// File name of the settings for devices, which the plugin reads where it lies beside it.
pub const DEVICES: &str = "oxib-device-params.ini";

/// What `build` understands.
pub const OPTIONS: Options = Options { flags: &["debug", "no-install"], values: &[], words: false };

/// `cargo xtask build`.
pub fn command(args: Args) -> Result<()> {
    let workspace = Workspace::find()?;
    let plugin = build(&workspace, args.flag("debug"))?;
    let folder = workspace.plugin_folder();
    say!("built {}", plugin.display());
    say!("use:   {}", job(Some(&OpenMpi::in_path().component_path(&folder))));
    say!("or:    cargo xtask install --user, then: {}", job(None));
    let library = dropin::build(&workspace)?;
    say!("built {}", library.display());
    say!("use:   LD_LIBRARY_PATH={} ibv_devinfo", workspace.verbs_folder().display());
    say!("or:    cargo xtask verbs -- ibv_devinfo");
    say!("or:    LD_PRELOAD={} ibv_devinfo", workspace.verbs_folder().join(dropin::PRELOAD).display());
    Ok(())
}

/// How a job is started over oxib, with the component path if it needs one. ob1 is named because Open MPI prefers UCX where it finds a
/// device that UCX can use, and other engines use no BTL.
pub fn job(component_path: Option<&str>) -> String {
    let path =
        component_path.map_or_else(String::new, |path| format!("--mca mca_base_component_path {path} "));
    format!("mpirun -n 2 {path}--mca pml ob1 --mca btl self,oxib PROGRAM")
}

/// Builds the plugin and copies it to [`Workspace::plugin_folder`], with the settings for devices; returns the plugin's copy.
pub fn build(workspace: &Workspace, debug: bool) -> Result<PathBuf> {
    let mode = if debug { "debug" } else { "release" };
    let library = phase(&format!("building the plugin in {mode} mode"), |_| compile(workspace, debug))?;
    let folder = workspace.plugin_folder();
    std::fs::create_dir_all(&folder).context(format_args!("cannot create {}", folder.display()))?;
    let plugin = folder.join(PLUGIN);
    place(&library, &plugin)?;
    place(&workspace.root.join("configs").join(DEVICES), &folder.join(DEVICES))?;
    Ok(plugin)
}

fn compile(workspace: &Workspace, debug: bool) -> Result<PathBuf> {
    let mut cargo = cargo();
    cargo.current_dir(&workspace.root);
    if debug {
        cargo.arg("build");
    } else {
        // The package is a Rust library, too, for its tests, and cargo optimises across crates (`lto`) only where all that it makes can be.
        cargo.args(["rustc", "--release", "--crate-type", "cdylib"]);
    }
    cargo.args(["-p", "btl", "--lib", "--message-format=json-render-diagnostics"]);
    let output = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    if !output.status.success() {
        return Err(Failure::new("the plugin does not build; cargo's messages are above"));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    messages.lines().find_map(shared_library).context("cargo built no shared library for the package btl")
}

/// The .so that a line of cargo's JSON announces, if it is the plugin's.
fn shared_library(message: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let kinds = message["target"]["kind"].as_array()?;
    if message["reason"] != "compiler-artifact" || !kinds.iter().any(|kind| kind == "cdylib") {
        return None;
    }
    let files = message["filenames"].as_array()?.iter().filter_map(|name| name.as_str());
    files.map(PathBuf::from).find(|path| path.extension().is_some_and(|extension| extension == "so"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_use_lines_name_ob1_or_a_job_may_run_over_ucx() {
        assert_eq!(job(None), "mpirun -n 2 --mca pml ob1 --mca btl self,oxib PROGRAM");
        let named = job(Some("dir:SYS_DEFAULT"));
        assert!(named.contains("mca_base_component_path dir:SYS_DEFAULT --mca pml ob1"), "{named}");
    }

    #[test]
    fn only_the_shared_library_of_a_cdylib_is_the_plugin() {
        let message = |kind: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","target":{{"kind":["{kind}"]}},"filenames":["/t/a.rlib","/t/a.so"]}}"#
            )
        };
        assert_eq!(shared_library(&message("cdylib")), Some(PathBuf::from("/t/a.so")));
        assert_eq!(shared_library(&message("lib")), None);
        assert_eq!(shared_library("not json"), None);
    }
}
