//! An Open MPI to run jobs with: where its tools are, which release it is, and what a user types differently there.
//!
//!     4.1   every component is a file; `vader` is shared memory; one-sided traffic of a BTL may go through osc/pt2pt
//!     5.0   stock components are inside its libraries; `sm`; osc/rdma for everything; PMIx reads the component path, too

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::process::ask;
use crate::{Failure, Result};

/// Starts a program of the machine in the Open MPI's own C library; only an unpacked Open MPI of another distribution has it.
const RUNNER: &str = "run-with-libc";

/// An installed (or unpacked) Open MPI.
#[derive(Debug, Clone)]
pub struct OpenMpi {
    /// The folder above `bin`; without one, the tools in the PATH.
    folder: Option<PathBuf>,
    version: String,
    /// The first way of pinning ranks that its mpirun accepts here; found when first asked for.
    pub(crate) pinning: Arc<OnceLock<&'static [&'static str]>>,
}

impl OpenMpi {
    /// The one whose `mpirun` is in the PATH; its version is empty when there is none.
    pub fn in_path() -> Self {
        let version = version(Path::new("mpirun")).unwrap_or_default();
        OpenMpi { folder: None, version, pinning: Arc::default() }
    }

    /// The one that is installed in `folder`.
    ///
    /// # Errors
    /// When no mpirun of Open MPI is there.
    pub fn below(folder: &Path) -> Result<Self> {
        let mpirun = folder.join("bin/mpirun");
        let version = version(&mpirun).ok_or_else(|| {
            let text = "does not say which Open MPI it is; expected the folder that Open MPI is installed in, like /opt/openmpi";
            Failure(format!("{} {text}", mpirun.display()))
        })?;
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        Ok(OpenMpi { folder: Some(folder), version, pinning: Arc::default() })
    }

    /// [`below`](Self::below) a folder, or [in the PATH](Self::in_path) without one.
    ///
    /// # Errors
    /// As `below`.
    pub fn find(folder: Option<&str>) -> Result<Self> {
        folder.map_or_else(|| Ok(Self::in_path()), |folder| Self::below(Path::new(folder)))
    }

    /// A tool of it: "mpirun", "mpicc", "ompi_info".
    pub fn tool(&self, name: &str) -> PathBuf {
        self.folder.as_ref().map_or_else(|| PathBuf::from(name), |folder| folder.join("bin").join(name))
    }

    /// "4.1.4"; empty when there is no mpirun.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The first number of the version; 4 when unknown.
    pub fn major(&self) -> u32 {
        self.version.split('.').next().and_then(|word| word.parse().ok()).unwrap_or(4)
    }

    /// Its BTL for processes of one host.
    pub fn shared_memory(&self) -> &'static str {
        if self.major() >= 5 { "sm" } else { "vader" }
    }

    /// The one-sided component that uses BTLs, for jobs whose one-sided traffic is to go through the transport under test.
    pub fn one_sided(&self) -> &'static str {
        if self.major() >= 5 { "rdma" } else { "pt2pt" }
    }

    /// The value of `mca_base_component_path` that adds a folder to where components are looked for.
    ///
    /// 5.0 hands it to PMIx, too, which does not know the keyword SYS_DEFAULT; there the folder of components is added
    /// by name, and only if it holds any.
    pub fn component_path(&self, plugin: &Path) -> String {
        if self.major() < 5 {
            return format!("{}:SYS_DEFAULT", plugin.display());
        }
        match self.component_folder().filter(|folder| holds_components(folder)) {
            Some(stock) => format!("{}:{}", plugin.display(), stock.display()),
            None => plugin.display().to_string(),
        }
    }

    /// Where it looks for components by itself.
    pub fn component_folder(&self) -> Option<PathBuf> {
        let text = ask(&self.tool("ompi_info").to_string_lossy(), &["--path", "pkglibdir", "--parsable"])?;
        parse_path(&text)
    }

    /// Parameters that a stock transport needs to run between processes of one host.
    pub fn parameters_of(&self, transport: &str) -> &'static [(&'static str, &'static str)] {
        // 5.0 pairs a host's outer addresses with each other only when the routing table says so, which it seldom does.
        if self.major() >= 5 && transport == "tcp" { &[("btl_tcp_if_include", "lo")] } else { &[] }
    }

    /// What stands before a program that was not built with this Open MPI's mpicc.
    pub fn runner(&self) -> Option<PathBuf> {
        Some(self.tool(RUNNER)).filter(|tool| tool.is_absolute() && tool.exists())
    }
}

/// Debian's 5.0 looks for its own components where its PMIx keeps those of PMIx; jobs find nothing else there by themselves.
pub fn hides_component_folder(mpi: &OpenMpi) -> bool {
    let Some(environment) = mpi.major().ge(&5).then(|| environment_of_a_rank(mpi)).flatten() else {
        return false;
    };
    environment.lines().any(|line| line.starts_with("OMPI_MCA_mca_base_component_path="))
}

fn environment_of_a_rank(mpi: &OpenMpi) -> Option<String> {
    let root: &[&str] = if crate::machine::is_root() { &["--allow-run-as-root"] } else { &[] };
    let words: Vec<&str> = root.iter().copied().chain(["-n", "1", "env"]).collect();
    ask(&mpi.tool("mpirun").to_string_lossy(), &words)
}

fn holds_components(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("mca_") && name != "mca_btl_oxib.so"
    })
}

/// `path:pkglibdir:/usr/lib/...`
fn parse_path(line: &str) -> Option<PathBuf> {
    line.lines().find_map(|line| line.strip_prefix("path:pkglibdir:")).map(|path| PathBuf::from(path.trim()))
}

fn version(mpirun: &Path) -> Option<String> {
    parse_version(&ask(&mpirun.to_string_lossy(), &["--version"])?)
}

/// `mpirun (Open MPI) 4.1.4`
fn parse_version(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("(Open MPI)")?;
    rest.split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(version: &str) -> OpenMpi {
        OpenMpi { folder: None, version: version.to_owned(), pinning: Arc::default() }
    }

    #[test]
    fn the_version_is_read_only_from_an_open_mpi() {
        assert_eq!(parse_version("mpirun (Open MPI) 5.0.7\n\nReport bugs to"), Some("5.0.7".to_owned()));
        assert_eq!(parse_version("HYDRA build details:\n    Version: 4.0.2"), None);
        assert!(OpenMpi::below(Path::new("/nowhere")).unwrap_err().0.contains("/nowhere/bin/mpirun"));
    }

    #[test]
    fn the_component_folder_is_read_from_the_parsable_form() {
        assert_eq!(parse_path("path:pkglibdir:/usr/lib/o\n"), Some(PathBuf::from("/usr/lib/o")));
        assert_eq!(parse_path("Pkglibdir: /usr/lib/o"), None);
    }

    #[test]
    fn names_follow_the_release() {
        assert_eq!((release("4.1.4").shared_memory(), release("5.0.7").shared_memory()), ("vader", "sm"));
        assert_eq!(release("4.1.4").component_path(Path::new("dir")), "dir:SYS_DEFAULT");
        assert_eq!(release("").major(), 4);
    }
}
