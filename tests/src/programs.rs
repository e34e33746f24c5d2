//! Compiles the C programs of `tests/mpi` with `mpicc`, each once: again only when its source or a header is newer.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use crate::failure::Context;
use crate::mpirun::indent;
use crate::process::{Limits, run};
use crate::{Failure, OpenMpi, Result};

/// Compiled programs and where they lie.
#[derive(Debug, Clone)]
pub struct Programs {
    mpicc: PathBuf,
    sources: PathBuf,
    binaries: PathBuf,
}

impl Programs {
    /// Sources in `repository/tests/mpi`, binaries below `target`, in a folder for each Open MPI.
    ///
    /// # Errors
    /// When the folder for the binaries cannot be made.
    pub fn new(mpi: &OpenMpi, repository: &Path, target: &Path) -> Result<Self> {
        let binaries = target.join("oxib").join(format!("mpi-{}", mpi.version()));
        std::fs::create_dir_all(&binaries).context(format_args!("cannot create {}", binaries.display()))?;
        Ok(Programs { mpicc: mpi.tool("mpicc"), sources: repository.join("tests/mpi"), binaries })
    }

    /// Path of the program of this name, compiled if need be.
    ///
    /// # Errors
    /// The compiler's complaint, or its absence.
    pub fn compiled(&self, name: &str) -> Result<PathBuf> {
        let source = self.sources.join(format!("{name}.c"));
        let binary = self.binaries.join(name);
        let newest = self.headers().chain([source.clone()]).map(|path| modified(&path)).max().flatten();
        if modified(&binary).is_none() || modified(&binary) < newest {
            compile(&self.mpicc, &source, &binary)?;
        }
        Ok(binary)
    }

    /// What programs may include.
    fn headers(&self) -> impl Iterator<Item = PathBuf> + use<> {
        let all = self.sources.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
        all.filter(|path| path.extension().is_some_and(|extension| extension == "h"))
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|data| data.modified()).ok()
}

/// Into a temporary name first: a compiler that was interrupted leaves no half program under the real one.
fn compile(mpicc: &Path, source: &Path, binary: &Path) -> Result<()> {
    let draft = binary.with_extension("new");
    let mut command = Command::new(mpicc);
    command
        .args(["-O2", "-g", "-Wall", "-Wextra", "-Wno-unused-function", "-pthread", "-o"])
        .arg(&draft)
        .arg(source);
    let finished = run(&mut command, Limits::deadline(120), &mut |_| {})?;
    if !finished.ok() {
        let text =
            format!("mpicc {} {}\n{}", source.display(), finished.describe(), indent(&finished.output));
        return Err(Failure(text));
    }
    std::fs::rename(&draft, binary).context(format_args!("cannot create {}", binary.display()))
}
