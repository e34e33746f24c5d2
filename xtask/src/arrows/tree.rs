//! The source files of a crate, and which of them imports which.

use std::collections::BTreeMap;
use std::path::Path as FilePath;

use super::graph::Graph;
use super::paths;
use e2e::Result;
use e2e::failure::Context;

/// One file that imports another.
#[derive(Debug, Clone)]
pub struct Arrow {
    /// The file that imports.
    pub from: String,
    /// The file that is imported.
    pub to: String,
    /// Line of `from`, the first that says so.
    pub line: usize,
}

/// The modules of one crate.
#[derive(Debug, Default)]
pub struct Tree {
    /// Folder of its sources, such as `cpc/src`.
    pub folder: String,
    /// A module's file, by its path from the crate's root.
    files: BTreeMap<Vec<String>, String>,
    /// All imports between files of the crate.
    pub arrows: Vec<Arrow>,
}

impl Tree {
    /// Reads the sources below `root/folder`.
    ///
    /// # Errors
    /// A folder or file cannot be read.
    pub fn read(root: &FilePath, folder: &str) -> Result<Tree> {
        let mut sources = Vec::new();
        collect(root, folder, &mut sources)?;
        Ok(Tree::new(folder, &sources))
    }

    /// The modules of these files (name, text).
    pub fn new(folder: &str, sources: &[(String, String)]) -> Tree {
        let module = |name: &str| module_of(name.strip_prefix(folder).unwrap_or(name));
        let files = sources.iter().map(|(name, _)| (module(name), name.clone())).collect();
        let mut tree = Tree { folder: folder.to_owned(), files, arrows: Vec::new() };
        for (name, text) in sources {
            tree.add_arrows(name, &module(name), text);
        }
        tree
    }

    fn add_arrows(&mut self, name: &str, module: &[String], text: &str) {
        let mut found = BTreeMap::new();
        for path in paths::of(text, module) {
            if let Some(to) = self.file_of(&path.segments).filter(|to| *to != name) {
                found.entry(to.to_owned()).or_insert(path.line);
            }
        }
        let arrow = |(to, line)| Arrow { from: name.to_owned(), to, line };
        self.arrows.extend(found.into_iter().map(arrow));
    }

    /// The file of the longest beginning of a path that is a module; none for what the crate's root itself offers.
    fn file_of(&self, path: &[String]) -> Option<&str> {
        (1..=path.len()).rev().find_map(|len| self.files.get(&path[..len])).map(String::as_str)
    }

    /// Names of the modules right below a folder, such as `btl/src/transport`.
    pub fn children<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = &'a str> {
        self.files.values().filter_map(move |file| child(folder, file))
    }

    /// Which file imports which.
    pub fn graph(&self) -> Graph {
        let mut graph = Graph::new();
        for arrow in &self.arrows {
            graph.entry(arrow.from.clone()).or_default().insert(arrow.to.clone());
        }
        graph
    }
}

/// The module right below `folder` that a file belongs to; none for the folder's own `mod.rs`, `lib.rs` or `main.rs`.
pub fn child<'a>(folder: &str, file: &'a str) -> Option<&'a str> {
    let inner = file.strip_prefix(folder)?.strip_prefix('/')?;
    let name = inner.split('/').next()?.trim_end_matches(".rs");
    (!matches!(name, "mod" | "lib" | "main")).then_some(name)
}

/// `/wire/mod.rs` to `["wire"]`.
fn module_of(inner: &str) -> Vec<String> {
    let names = inner.trim_end_matches(".rs").split('/');
    names.filter(|name| !matches!(*name, "" | "mod" | "lib" | "main")).map(str::to_owned).collect()
}

/// Every source of the library or program, tests and further programs (`bin`) left out, in order of name.
fn collect(root: &FilePath, folder: &str, sources: &mut Vec<(String, String)>) -> Result<()> {
    let entries = std::fs::read_dir(root.join(folder)).context(folder)?;
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    for name in names {
        let path = format!("{folder}/{name}");
        if root.join(&path).is_dir() {
            if name != "tests" && name != "bin" {
                collect(root, &path, sources)?;
            }
        } else if name.ends_with(".rs") && name != "tests.rs" {
            let text = std::fs::read_to_string(root.join(&path)).context(&path)?;
            sources.push((path, text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let sources: Vec<_> =
            files.iter().map(|(name, text)| (format!("a/src/{name}"), (*text).to_owned())).collect();
        Tree::new("a/src", &sources)
    }

    #[test]
    fn a_path_leads_to_the_file_of_its_longest_module() {
        let tree = tree(&[
            ("lib.rs", "mod b; mod c;"),
            ("b/mod.rs", "\nuse crate::c::D;"),
            ("b/e.rs", "use super::F; use crate::G;"),
            ("c.rs", "use crate::b::e::H;"),
        ]);
        let arrows: Vec<_> =
            tree.arrows.iter().map(|arrow| (arrow.from.as_str(), arrow.to.as_str(), arrow.line)).collect();
        assert_eq!(
            arrows,
            [
                ("a/src/b/mod.rs", "a/src/c.rs", 2),
                ("a/src/b/e.rs", "a/src/b/mod.rs", 1),
                ("a/src/c.rs", "a/src/b/e.rs", 1)
            ]
        );
    }

    #[test]
    fn a_module_belongs_to_the_folder_or_file_right_below() {
        assert_eq!(child("a/src", "a/src/b/c.rs"), Some("b"));
        assert_eq!(child("a/src", "a/src/b.rs"), Some("b"));
        assert_eq!(child("a/src/b", "a/src/b/mod.rs"), None);
        assert_eq!(child("a/src/b", "a/src/bc.rs"), None);
    }
}
