//! The paths of a source file that begin at the crate's root or at a parent: `crate::a::b`, `super::c`, in `use` and elsewhere.
//!
//! Left out, because no code of this file needs them: `mod a;`, `pub use ...` (a facade) and `pub(in ...)`. A path that begins at the
//! module itself (`self::a`, or a child's name) is left out, too: a module and the children that it declares are one.

use super::source::{Token, tokens};

/// A path from the crate's root: `["wire", "codec", "Field"]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// Its names, the root left out.
    pub segments: Vec<String>,
    /// Line where it stands.
    pub line: usize,
}

/// Every path of the file whose own module is `module`.
pub fn of(source: &str, module: &[String]) -> Vec<Path> {
    let tokens = tokens(source);
    let mut reader =
        Reader { tokens: &tokens, at: 0, module: module.to_vec(), inline: Vec::new(), found: Vec::new() };
    while reader.at < tokens.len() {
        reader.step();
    }
    reader.found
}

struct Reader<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    module: Vec<String>,
    /// One an open brace: the name of the module that it belongs to, if it is one's.
    inline: Vec<Option<String>>,
    found: Vec<Path>,
}

impl Reader<'_> {
    fn word(&self, offset: usize) -> &str {
        self.tokens.get(self.at + offset).map_or("", |token| token.text)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).map_or(0, |token| token.line)
    }

    fn step(&mut self) {
        match self.word(0) {
            "pub" if self.word(1) == "use" => self.skip_to(";"),
            "pub" if self.word(2) == "in" => self.skip_to(")"),
            "mod" if self.word(2) == "{" => {
                self.inline.push(Some(self.word(1).to_owned()));
                self.at += 3;
            }
            "use" => {
                self.at += 1;
                self.tree(&[]);
            }
            "{" => {
                self.inline.push(None);
                self.at += 1;
            }
            "}" => {
                self.inline.pop();
                self.at += 1;
            }
            "crate" | "super" if self.word(1) == "::" => self.expression(),
            _ => self.at += 1,
        }
    }

    fn skip_to(&mut self, end: &str) {
        while self.at < self.tokens.len() && self.word(0) != end {
            self.at += 1;
        }
    }

    /// `crate::a::b` outside `use`.
    fn expression(&mut self) {
        let (line, mut path) = (self.line(), vec![self.word(0).to_owned()]);
        self.at += 1;
        while self.word(0) == "::" && is_name(self.word(1)) {
            path.push(self.word(1).to_owned());
            self.at += 2;
        }
        self.record(&path, line);
    }

    /// A tree of `use`, behind `parent`: `a::b`, `a::{b, c::*}`, `a as b`.
    fn tree(&mut self, parent: &[String]) {
        let (line, mut path) = (self.line(), parent.to_vec());
        loop {
            match self.word(0) {
                "{" => return self.branches(&path),
                "::" | "*" => self.at += 1,
                "as" => self.at += 2,
                word if is_name(word) => {
                    path.push(word.to_owned());
                    self.at += 1;
                }
                _ => return self.record(&path, line),
            }
        }
    }

    fn branches(&mut self, parent: &[String]) {
        self.at += 1;
        while self.at < self.tokens.len() && self.word(0) != "}" {
            self.tree(parent);
            if self.word(0) != "}" {
                self.at += 1;
            }
        }
        self.at += 1;
    }

    /// Keeps a path, made to begin at the root.
    fn record(&mut self, path: &[String], line: usize) {
        let mut base: Vec<String> = match path.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("super") => self.module.iter().chain(self.inline.iter().flatten()).cloned().collect(),
            _ => return,
        };
        for segment in path.iter().filter(|segment| !matches!(segment.as_str(), "crate" | "self")) {
            if segment == "super" {
                base.pop();
            } else {
                base.push(segment.clone());
            }
        }
        self.found.push(Path { segments: base, line });
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<String> {
        let module = ["a".to_owned(), "b".to_owned()];
        of(source, &module).iter().map(|path| path.segments.join("::")).collect()
    }

    #[test]
    fn paths_of_use_are_found_in_every_branch() {
        assert_eq!(
            found("use crate::c::{self, d::E, f::*}; use crate::{g, h};"),
            ["c", "c::d::E", "c::f", "g", "h"]
        );
        assert_eq!(found("pub(crate) use crate::c as d; use std::fmt; use self::e; use f::g;"), ["c"]);
    }

    #[test]
    fn paths_elsewhere_are_found_up_to_what_they_name() {
        assert_eq!(found("fn x() -> crate::c::D<u8> { super::e::f::<u8>() }"), ["c::D", "a::e::f"]);
        assert_eq!(found("impl super::super::T {}"), ["T"]);
    }

    #[test]
    fn what_no_code_needs_is_no_arrow() {
        assert_eq!(
            found("mod c; pub use crate::d::E; pub(in crate::f) fn g() {} pub(crate) fn h() {}"),
            [""; 0]
        );
        assert_eq!(found("#[cfg(test)] mod tests { use super::c; }"), [""; 0]);
    }

    #[test]
    fn super_in_an_inline_module_is_the_file_itself() {
        assert_eq!(
            found("mod c { use super::d; fn e() { super::super::f() } } use super::g;"),
            ["a::b::d", "a::f", "a::g"]
        );
    }
}
