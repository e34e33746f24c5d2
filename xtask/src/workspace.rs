//! Folders of this repository, files put into them, and cargo.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use e2e::Result;
use e2e::failure::Context;

/// Where things are.
#[derive(Debug, Clone)]
pub struct Workspace {
    /// The repository.
    pub root: PathBuf,
    /// Cargo's target folder, whatever CARGO_TARGET_DIR or configuration say.
    pub target: PathBuf,
}

impl Workspace {
    /// Asks cargo.
    pub fn find() -> Result<Workspace> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let mut cargo = cargo();
        cargo.args(["metadata", "--format-version=1", "--no-deps", "--manifest-path"]).arg(manifest);
        let output = cargo.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
        let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
        let folder = |key: &str| {
            metadata[key].as_str().map(PathBuf::from).context(format_args!("no {key} in cargo metadata"))
        };
        Ok(Workspace { root: folder("workspace_root")?, target: folder("target_directory")? })
    }

    /// The folder for `mca_base_component_path`.
    pub fn plugin_folder(&self) -> PathBuf {
        self.target.join("oxib").join("openmpi")
    }

    /// The folder for LD_LIBRARY_PATH: the drop-in libibverbs.so.1.
    pub fn verbs_folder(&self) -> PathBuf {
        self.target.join("oxib").join("verbs")
    }
}

/// The cargo that started us.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Copies a file: under a temporary name, then renamed, so that who has the old one open keeps it.
pub fn place(from: &Path, to: &Path) -> Result<()> {
    let draft = to.with_extension(format!("so.{}", std::process::id()));
    std::fs::copy(from, &draft).context(format_args!(
        "cannot copy {} to {}",
        from.display(),
        draft.display()
    ))?;
    std::fs::rename(&draft, to).context(format_args!("cannot create {}", to.display()))
}
