//! `docs/transitions.md`, made from the machines' tables and, where a golden file says what follows, from that: a diagram of the
//! states, and the handler of every cell.
#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::path::Path;

const HEAD: &str = "\
# Transitions of the connection managers

Made from the tables in `cpc/src/*/machine/table.rs` and the golden files in `cpc/tests/`; please change those, then
`OXIB_WRITE_DOCS=1 cargo test -p cpc --test transitions`. An input that a state does not name is ignored and counted. Arrows to
`[*]` end an endpoint, or a link. What is said on each way stands in the golden files.
";

/// From, to: the inputs that lead there.
type Edges = BTreeMap<(String, String), Vec<String>>;

/// The lines `STATE  INPUT  -> STATE  what is said` of a golden file; `width` is that of the first column.
fn lines(golden: &str, width: usize) -> impl Iterator<Item = (&str, &str, &str)> {
    golden.lines().filter(|line| !line.starts_with('#') && line.contains(" -> ")).map(move |line| {
        let (left, right) = line.split_once(" -> ").unwrap();
        let (state, input) = left.split_at(width);
        (state.trim(), input.trim(), right.split_whitespace().next().unwrap())
    })
}

fn add(edges: &mut Edges, from: &str, to: &str, input: &str) {
    let inputs = edges.entry((from.to_owned(), to.to_owned())).or_default();
    if from != to && !inputs.iter().any(|known| known == input) {
        inputs.push(input.to_owned());
    }
}

/// An endpoint's states: `ToRts (passive)` is ToRts.
fn of_endpoints(golden: &str) -> Edges {
    let mut edges = Edges::new();
    for (from, input, to) in lines(golden, 20) {
        let to = if to == "gone" { "[*]" } else { to };
        add(&mut edges, from.split(" (").next().unwrap(), to, input);
    }
    edges
}

/// A link's states: one side of `ReqSent/RepSent`. `-`: there is none.
fn of_links(golden: &str, side: usize) -> Edges {
    let mut edges = Edges::new();
    for (from, input, to) in lines(golden, 21).filter(|(from, _, to)| from.contains('/') && to.contains('/'))
    {
        let part = |pair: &str| match pair.split(" (").next().unwrap().split('/').nth(side).unwrap() {
            "-" => "[*]".to_owned(),
            state => state.to_owned(),
        };
        add(&mut edges, &part(from), &part(to), input);
    }
    edges
}

fn diagram(edges: &Edges) -> String {
    let mut text = "```mermaid\nstateDiagram-v2\n".to_owned();
    for ((from, to), inputs) in edges.iter().filter(|(_, inputs)| !inputs.is_empty()) {
        writeln!(text, "    {from} --> {to}: {}", inputs.join(", ")).unwrap();
    }
    text + "```\n"
}

fn handlers<S: Debug, I: Debug>(cells: impl Iterator<Item = (S, I, &'static str)>) -> String {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    for (state, input, handler) in cells {
        let (state, cell) = (format!("{state:?}"), format!("{input:?}: `{handler}`"));
        match rows.last_mut().filter(|(last, _)| *last == state) {
            Some((_, row)) => row.push(cell),
            None => rows.push((state, vec![cell])),
        }
    }
    let rows = rows.iter().map(|(state, cells)| format!("| {state} | {} |\n", cells.join(", ")));
    "| state | input: handler |\n|-------|----------------|\n".to_owned() + &rows.collect::<String>()
}

fn page() -> String {
    let (ibcm, xrc) = (include_str!("matrix.txt"), include_str!("xrc_matrix.txt"));
    let rdmacm = include_str!("rdmacm_matrix.txt");
    let parts = [
        HEAD.to_owned(),
        "\n## ibcm\n\nOf an endpoint.\n\n".to_owned(),
        diagram(&of_endpoints(ibcm)) + "\n",
        handlers(cpc::ibcm::machine::Machine::transitions()),
        "\n## rdmacm\n\nOf an endpoint.\n\n".to_owned(),
        diagram(&of_endpoints(rdmacm)) + "\n",
        handlers(cpc::rdmacm::machine::Machine::transitions()),
        "\n## xrc\n\nOf a link that sends, and of one that receives.\n\n".to_owned(),
        diagram(&of_links(xrc, 0)) + "\n" + &diagram(&of_links(xrc, 1)) + "\n",
        handlers(cpc::xrc::machine::Machine::transitions()),
    ];
    parts.concat()
}

#[test]
fn the_page_in_docs_is_the_one_of_the_tables() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/transitions.md");
    if std::env::var_os("OXIB_WRITE_DOCS").is_some() {
        std::fs::write(&file, page()).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(written == page(), "out of date: OXIB_WRITE_DOCS=1 cargo test -p cpc --test transitions");
}

#[test]
fn what_the_golden_files_lead_to_is_read_from_them() {
    let edges = of_endpoints(include_str!("matrix.txt"));
    let leads =
        |from: &str, to: &str| edges.get(&(from.to_owned(), to.to_owned())).cloned().unwrap_or_default();
    assert_eq!(leads("ReqSent", "ToRts"), ["new REQ", "same REQ", "old REQ", "REP", "REP of P+1"]);
    assert_eq!(leads("Disconnected", "[*]"), ["Remove"]);
    let links = of_links(include_str!("xrc_matrix.txt"), 0);
    assert!(links.contains_key(&("ReqSent".to_owned(), "ToRts".to_owned())), "{links:?}");
}
