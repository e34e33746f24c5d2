//! Circles of a graph: its strongly connected groups of two and more (Tarjan's algorithm).

use std::collections::{BTreeMap, BTreeSet};

/// What points where.
pub type Graph = BTreeMap<String, BTreeSet<String>>;

/// The circles, each in order of name; the longest first.
pub fn circles(graph: &Graph) -> Vec<BTreeSet<String>> {
    let mut search =
        Search { graph, index: BTreeMap::new(), low: BTreeMap::new(), open: Vec::new(), found: Vec::new() };
    for node in graph.keys() {
        if !search.index.contains_key(node.as_str()) {
            search.visit(node);
        }
    }
    search.found.sort_by_key(|group| std::cmp::Reverse(group.len()));
    search.found
}

struct Search<'a> {
    graph: &'a Graph,
    /// When a node was met, and the earliest node that it leads back to.
    index: BTreeMap<&'a str, usize>,
    low: BTreeMap<&'a str, usize>,
    /// Nodes whose group is not known yet.
    open: Vec<&'a str>,
    found: Vec<BTreeSet<String>>,
}

impl<'a> Search<'a> {
    fn visit(&mut self, node: &'a str) -> usize {
        let met = self.index.len();
        self.index.insert(node, met);
        self.low.insert(node, met);
        self.open.push(node);
        for next in self.graph.get(node).into_iter().flatten() {
            let reached = match self.index.get(next.as_str()) {
                None => self.visit(next),
                Some(met) if self.open.contains(&next.as_str()) => *met,
                Some(_) => continue,
            };
            self.low.entry(node).and_modify(|low| *low = (*low).min(reached));
        }
        let low = self.low.get(node).copied().unwrap_or(met);
        if low == met {
            self.close(node);
        }
        low
    }

    /// `node` and what was met since it form a group.
    fn close(&mut self, node: &str) {
        let from = self.open.iter().rposition(|open| *open == node).unwrap_or(0);
        let group: BTreeSet<String> = self.open.drain(from..).map(str::to_owned).collect();
        if group.len() > 1 {
            self.found.push(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(arrows: &[(&str, &str)]) -> Vec<String> {
        let mut graph = Graph::new();
        for (from, to) in arrows {
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        circles(&graph).iter().map(|group| group.iter().cloned().collect()).collect()
    }

    #[test]
    fn a_graph_whose_arrows_run_one_way_has_no_circle() {
        assert_eq!(found(&[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]), [""; 0]);
    }

    #[test]
    fn every_circle_is_found_once_with_all_that_is_on_it() {
        assert_eq!(
            found(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "d")]),
            ["abc", "de"]
        );
        assert_eq!(found(&[("a", "b"), ("b", "a"), ("b", "c"), ("c", "b"), ("x", "a")]), ["abc"]);
    }
}
