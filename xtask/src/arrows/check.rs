//! The sources against the list. A complaint names file, line, and what to do.

use std::collections::BTreeSet;
use std::path::Path;

use super::graph;
use super::list::{List, Section};
use super::tree::{Arrow, Tree, child};
use e2e::Result;
use e2e::failure::Context;

/// The list's file.
pub const FILE: &str = "docs/arrows.txt";
/// Arrows of a new circle that are printed.
const SHOWN: usize = 24;
static NONE: BTreeSet<String> = BTreeSet::new();

/// Complaints about the crates of the workspace at `root`.
///
/// # Errors
/// A file cannot be read, or the list makes no sense.
pub fn workspace(root: &Path) -> Result<Vec<String>> {
    let read = |name: &str| std::fs::read_to_string(root.join(name)).context(name);
    let list = List::parse(&read(FILE)?)?;
    let mut trees = Vec::new();
    for member in members(&read("Cargo.toml")?) {
        trees.push(Tree::read(root, &format!("{member}/src"))?);
    }
    Ok(complaints(&trees, &list))
}

/// What `members = [...]` of the workspace's manifest lists.
fn members(manifest: &str) -> Vec<&str> {
    let list =
        manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or_default();
    list.split('"').skip(1).step_by(2).collect()
}

fn complaints(trees: &[Tree], list: &List) -> Vec<String> {
    let mut all = Vec::new();
    for tree in trees {
        let listed = list.sections.iter().any(|section| section.folder == tree.folder);
        if !listed && tree.children(&tree.folder).next().is_some() {
            all.push(format!(
                "{FILE}: no section [{}]: add one with the crate's modules in order",
                tree.folder
            ));
        }
    }
    for section in &list.sections {
        let tree = trees.iter().find(|tree| within(&section.folder, &tree.folder));
        match tree.filter(|tree| tree.children(&section.folder).next().is_some()) {
            Some(tree) => order(tree, section, &mut all),
            None => all.push(format!("{FILE}: [{}] is no folder of a crate: take it out", section.folder)),
        }
    }
    circles(trees, list, &mut all);
    all
}

fn within(folder: &str, parent: &str) -> bool {
    folder.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The arrows among the modules of one folder.
fn order(tree: &Tree, section: &Section, all: &mut Vec<String>) {
    let folder = &section.folder;
    let there: BTreeSet<&str> = tree.children(folder).collect();
    let listed: BTreeSet<&str> = section.layers.iter().flatten().map(String::as_str).collect();
    for new in there.difference(&listed) {
        all.push(format!(
            "{FILE}: `{new}` is not in [{folder}]: add it below the modules that it imports and above those that import it"
        ));
    }
    for gone in listed.difference(&there) {
        all.push(format!("{FILE}: there is no module `{gone}` in {folder}: take it out of [{folder}]"));
    }
    let mut known = section.known.clone();
    let mut seen = BTreeSet::new();
    for arrow in &tree.arrows {
        let Some((from, to)) = against(section, arrow) else { continue };
        let pair = (from.to_owned(), to.to_owned());
        if section.known.contains(&pair) {
            known.remove(&pair);
        } else if seen.insert(pair) {
            all.push(format!(
                "{}:{}: `{from}` of {folder} imports `{to}` ({}), which {FILE} lists above or beside it: move what \
                 both need to a module before them, or pass it in",
                arrow.from, arrow.line, arrow.to
            ));
        }
    }
    for (from, to) in known {
        all.push(format!("{FILE}: [{folder}] has no arrow `{from} -> {to}` any more: take the line out"));
    }
}

/// The two modules of an arrow that does not run from a later layer to an earlier one.
fn against<'a>(section: &Section, arrow: &'a Arrow) -> Option<(&'a str, &'a str)> {
    let (from, to) = (child(&section.folder, &arrow.from)?, child(&section.folder, &arrow.to)?);
    let (above, below) = (section.layer(from)?, section.layer(to)?);
    (from != to && below >= above).then_some((from, to))
}

fn circles(trees: &[Tree], list: &List, all: &mut Vec<String>) {
    let mut gone = list.circles.clone();
    for tree in trees {
        for circle in graph::circles(&tree.graph()) {
            let known = list.circles.iter().position(|known| !circle.is_disjoint(known));
            let known = known.map_or(&NONE, |at| {
                gone[at].retain(|file| !circle.contains(file));
                &list.circles[at]
            });
            if !circle.is_subset(known) {
                all.push(new_on_circle(tree, &circle, known));
            }
        }
    }
    for file in gone.iter().flatten() {
        all.push(format!("{FILE}: {file} is on no circle any more: take it out of its [circle]"));
    }
}

/// Names the arrows by which files that the list does not know are on a circle.
fn new_on_circle(tree: &Tree, circle: &BTreeSet<String>, known: &BTreeSet<String>) -> String {
    let on_it = |arrow: &&Arrow| {
        let listed = known.contains(&arrow.from) && known.contains(&arrow.to);
        circle.contains(&arrow.from) && circle.contains(&arrow.to) && !listed
    };
    let arrows: Vec<&Arrow> = tree.arrows.iter().filter(on_it).collect();
    let line = |arrow: &&Arrow| format!("\n    {}:{} imports {}", arrow.from, arrow.line, arrow.to);
    let lines: String = arrows.iter().take(SHOWN).map(line).collect();
    let more = arrows.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!("\n    and {more} more arrows") } else { String::new() };
    let new = circle.difference(known).count();
    format!(
        "{new} files of {} are on a new circle: move what they share to a module that imports none of them:{lines}{rest}",
        tree.folder
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let sources: Vec<_> =
            files.iter().map(|(name, text)| (format!("a/src/{name}"), (*text).to_owned())).collect();
        Tree::new("a/src", &sources)
    }

    fn judge(files: &[(&str, &str)], list: &str) -> String {
        complaints(&[tree(files)], &List::parse(list).unwrap()).join("\n")
    }

    const UP: &[(&str, &str)] = &[("wire.rs", "\nuse crate::core::Key;"), ("core/mod.rs", "")];
    const CIRCLE: &[(&str, &str)] =
        &[("core/b.rs", "use super::c::C;"), ("core/c.rs", "use super::b::B;"), ("core/mod.rs", "mod b;")];

    #[test]
    fn the_modules_of_this_workspace_import_only_what_the_list_allows() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let complaints = workspace(root).unwrap();
        assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
    }

    #[test]
    fn an_arrow_against_the_order_is_named_with_file_and_line() {
        let text = judge(UP, "[a/src]\nwire\ncore\n");
        assert!(
            text.starts_with("a/src/wire.rs:2: `wire` of a/src imports `core` (a/src/core/mod.rs)"),
            "{text}"
        );
        assert_eq!(judge(UP, "[a/src]\ncore\nwire\n"), "");
    }

    #[test]
    fn modules_of_one_layer_do_not_import_each_other() {
        assert!(judge(UP, "[a/src]\ncore wire\n").contains("above or beside it"));
    }

    #[test]
    fn a_known_arrow_passes_until_it_is_gone() {
        assert_eq!(judge(UP, "[a/src]\nwire\ncore\nwire -> core\n"), "");
        let text = judge(UP, "[a/src]\ncore\nwire\nwire -> core\n");
        assert!(text.contains("no arrow `wire -> core` any more"), "{text}");
    }

    #[test]
    fn every_module_of_a_crate_is_in_the_list_and_nothing_else() {
        assert!(judge(UP, "").contains("no section [a/src]"));
        assert!(judge(UP, "[a/src]\ncore\n").contains("`wire` is not in [a/src]"));
        assert!(judge(UP, "[a/src]\ncore\nwire\nlate\n").contains("no module `late`"));
        assert!(judge(UP, "[a/src]\ncore\nwire\n[b/src]\nc\n").contains("[b/src] is no folder"));
    }

    #[test]
    fn the_modules_of_an_inner_folder_have_an_order_of_their_own() {
        let text =
            judge(CIRCLE, "[a/src]\ncore\n[a/src/core]\nb\nc\n[circle]\na/src/core/b.rs a/src/core/c.rs");
        assert!(text.starts_with("a/src/core/b.rs:1: `b` of a/src/core imports `c`"), "{text}");
    }

    #[test]
    fn a_circle_is_named_with_its_arrows_unless_it_is_known() {
        let text = judge(CIRCLE, "[a/src]\ncore\n");
        assert!(text.starts_with("2 files of a/src are on a new circle"), "{text}");
        assert!(text.contains("a/src/core/b.rs:1 imports a/src/core/c.rs"), "{text}");
        assert_eq!(judge(CIRCLE, "[a/src]\ncore\n[circle]\na/src/core/b.rs\na/src/core/c.rs\n"), "");
    }

    #[test]
    fn a_file_that_joins_a_known_circle_is_complained_about() {
        let mut files = CIRCLE.to_vec();
        files.extend([("d.rs", "use crate::core::b::B;"), ("core/b.rs", "use super::c::C; use crate::d;")]);
        files.remove(0);
        let text = judge(&files, "[a/src]\ncore\nd\ncore -> d\n[circle]\na/src/core/b.rs a/src/core/c.rs\n");
        assert!(text.starts_with("1 files of a/src are on a new circle"), "{text}");
        assert!(text.contains("a/src/d.rs:1 imports a/src/core/b.rs"), "{text}");
        assert!(!text.contains("c.rs:1"), "{text}");
    }

    #[test]
    fn a_listed_circle_that_is_gone_has_to_leave_the_list() {
        let text = judge(&CIRCLE[1..], "[a/src]\ncore\n[circle]\na/src/core/b.rs a/src/core/c.rs\n");
        assert_eq!(text.matches("is on no circle any more").count(), 2, "{text}");
    }

    #[test]
    fn the_crates_are_the_members_of_the_manifest() {
        assert_eq!(
            members("[workspace]\nmembers = [\n    \"a\",\n    \"b/c\",\n]\nx = [\"d\"]"),
            ["a", "b/c"]
        );
    }
}
