//! `docs/arrows.txt`: the order of the modules of each folder, arrows against it that are still there, and circles that are still there.

use std::collections::BTreeSet;

use e2e::{Failure, Result};

/// The list.
#[derive(Debug, Default)]
pub struct List {
    /// One for each folder that has an order.
    pub sections: Vec<Section>,
    /// The files of each known circle.
    pub circles: Vec<BTreeSet<String>>,
}

/// The modules of one folder.
#[derive(Debug, Default)]
pub struct Section {
    /// The folder, such as `cpc/src`.
    pub folder: String,
    /// From the ground up: a layer imports only layers before it, and the modules of one layer do not import each other.
    pub layers: Vec<Vec<String>>,
    /// Arrows against the order that are still there.
    pub known: BTreeSet<(String, String)>,
}

impl Section {
    /// The layer that a module is in.
    pub fn layer(&self, module: &str) -> Option<usize> {
        self.layers.iter().position(|layer| layer.iter().any(|name| name == module))
    }
}

impl List {
    /// Reads the list's text.
    ///
    /// # Errors
    /// A line that is none of its kinds.
    pub fn parse(text: &str) -> Result<List> {
        let mut list = List::default();
        let mut in_circles = false;
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                in_circles = header == "circle";
                list.open(header);
            } else if !line.is_empty()
                && (if in_circles { list.circle(line) } else { list.module(line) }).is_none()
            {
                return Err(Failure(format!("line {}: `{line}` stands in no section", at + 1)));
            }
        }
        Ok(list)
    }

    fn open(&mut self, header: &str) {
        if header == "circle" {
            self.circles.push(BTreeSet::new());
        } else {
            self.sections.push(Section { folder: header.to_owned(), ..Section::default() });
        }
    }

    fn circle(&mut self, line: &str) -> Option<()> {
        self.circles.last_mut()?.extend(line.split_whitespace().map(str::to_owned));
        Some(())
    }

    fn module(&mut self, line: &str) -> Option<()> {
        let section = self.sections.last_mut()?;
        match line.split_once("->") {
            Some((from, to)) => {
                section.known.insert((from.trim().to_owned(), to.trim().to_owned()));
            }
            None => section.layers.push(line.split_whitespace().map(str::to_owned).collect()),
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_known_arrows_and_circles_are_read() {
        let list =
            List::parse("# order\n[a/src]\nb c # both\nd\nb -> d\n\n[circle]\na/src/x.rs\na/src/y.rs\n")
                .unwrap();
        let section = &list.sections[0];
        assert_eq!(
            (section.folder.as_str(), section.layer("c"), section.layer("d")),
            ("a/src", Some(0), Some(1))
        );
        assert!(section.known.contains(&("b".to_owned(), "d".to_owned())));
        assert_eq!(list.circles[0].len(), 2);
    }

    #[test]
    fn a_line_before_the_first_section_is_an_error() {
        assert!(List::parse("wire\n").is_err());
    }
}
