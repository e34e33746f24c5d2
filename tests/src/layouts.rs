//! The layouts of `configs/*.conf`: MCA parameter files, given to Open MPI as their own comments tell a user to.

use std::path::{Path, PathBuf};

use crate::failure::Context;
use crate::{Failure, Result};

/// The layout that the plugin uses when nothing is set.
pub const DEFAULT: &str = "default";

/// A parameter file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// File name without `.conf`.
    pub name: String,
    /// The file.
    pub file: PathBuf,
}

impl Layout {
    /// The `--mca` parameters that choose it: none for the default, which is what nearly every user runs.
    pub fn parameters(&self) -> Vec<(String, String)> {
        if self.name == DEFAULT { Vec::new() } else { self.from_file() }
    }

    /// The `--mca` parameters that read the file, whichever it is.
    pub fn from_file(&self) -> Vec<(String, String)> {
        vec![("mca_base_param_files".to_owned(), self.file.to_string_lossy().into_owned())]
    }
}

/// All layouts in `folder`, the default first, then by name.
///
/// # Errors
/// When the folder cannot be read or has no default.
pub fn read(folder: &Path) -> Result<Vec<Layout>> {
    let entries = std::fs::read_dir(folder).context(format_args!("cannot read {}", folder.display()))?;
    let mut layouts: Vec<Layout> = entries.flatten().filter_map(|entry| layout(entry.path())).collect();
    layouts.sort_by_key(|layout| (layout.name != DEFAULT, layout.name.clone()));
    match layouts.first() {
        Some(first) if first.name == DEFAULT => Ok(layouts),
        _ => Err(Failure(format!("{} has no {DEFAULT}.conf", folder.display()))),
    }
}

fn layout(file: PathBuf) -> Option<Layout> {
    let is_conf = file.extension().is_some_and(|extension| extension == "conf");
    let name = file.file_stem()?.to_string_lossy().into_owned();
    is_conf.then_some(Layout { name, file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_comes_first_and_needs_no_parameter() {
        let layouts = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs")).unwrap();
        assert_eq!(layouts[0].name, DEFAULT);
        assert!(layouts[0].parameters().is_empty());
        assert!(layouts[1..].iter().all(|layout| layout.parameters().len() == 1));
    }
}
