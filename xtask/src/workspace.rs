//! Folders of this repository, files put into them, and cargo.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use e2e::failure::Context;
use e2e::{Failure, Result};

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

    /// Keeps other test runs out of this target folder for as long as the answer lives: two at a time would take each other's files away.
    ///
    /// # Errors
    /// Another one is at work. Its claim is a Unix socket's abstract name, which the kernel gives back however a process ends.
    pub fn claim(&self) -> Result<Claim> {
        let mut hasher = DefaultHasher::new();
        self.target.hash(&mut hasher);
        let name = format!("oxib-test-{:016x}", hasher.finish());
        let address = SocketAddr::from_abstract_name(&name).context("the name of a test run")?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(Claim { _listener: listener }),
            Err(error) if error.kind() == ErrorKind::AddrInUse => Err(Failure(format!(
                "another `xtask test` is at work in {} (it holds the socket @{name}): let it end, or end it (`pgrep -f 'xtask test'`), \
                 or test in another clone",
                self.target.display()
            ))),
            Err(error) => Err(error).context(format_args!("cannot bind the socket @{name}")),
        }
    }

    /// The folder for LD_LIBRARY_PATH: the drop-in libibverbs.so.1.
    pub fn verbs_folder(&self) -> PathBuf {
        self.target.join("oxib").join("verbs")
    }
}

/// The right to test in a target folder ([`Workspace::claim`]).
#[derive(Debug)]
pub struct Claim {
    _listener: UnixListener,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_test_run_at_a_time_has_a_target_folder() -> Result<()> {
        let folder = |name: &str| {
            let target = PathBuf::from(format!("/nowhere/{}/{name}", std::process::id()));
            Workspace { root: PathBuf::new(), target }
        };
        let claim = folder("a").claim()?;
        let Err(Failure(text)) = folder("a").claim() else {
            return Err(Failure::new("two test runs have the same target folder"));
        };
        assert!(text.contains("another `xtask test`") && text.contains("/a "), "{text}");
        let _other = folder("b").claim()?;
        drop(claim);
        folder("a").claim().map(drop)
    }
}
