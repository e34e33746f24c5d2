//! What `valgrind --tool=callgrind` has counted: the instructions of calls from one function to another.
//!
//! ```text
//!   ob=(3) /usr/lib/libmpi.so        the object, and the function, of the lines that follow; a name stands
//!   fn=(12) PMPI_Send                behind its number where it comes first
//!   37 4                             line, instructions
//!   cob=(4) .../mca_btl_oxib.so      the callee's object, if it is another
//!   cfn=(15) softib::abi::ops::post_send
//!   calls=1 20                       the next line counts all that the callee did, with what it called
//!   38 180
//! ```

use std::collections::HashMap;

/// Calls from one function to another, all together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calls {
    /// The function that calls, and its object.
    pub from: (String, String),
    /// The function that is called, and its object.
    pub to: (String, String),
    /// Instructions of the callee and of what it called.
    pub instructions: u64,
}

/// Names by their numbers.
#[derive(Debug, Default)]
pub struct Names(HashMap<String, String>);

impl Names {
    /// `(12) main`, or `(12)` for a name that is known.
    pub fn name(&mut self, text: &str) -> String {
        let Some((number, name)) = text.split_once(')') else { return text.to_owned() };
        match name.trim() {
            "" => self.0.get(number).cloned().unwrap_or_default(),
            name => {
                self.0.insert(number.to_owned(), name.to_owned());
                name.to_owned()
            }
        }
    }
}

/// All calls of a profile.
pub fn calls(profile: &str) -> Vec<Calls> {
    let (mut functions, mut objects) = (Names::default(), Names::default());
    let (mut from, mut to) = ((String::new(), String::new()), (String::new(), None));
    let (mut is_call, mut found) = (false, Vec::new());
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            from.1 = objects.name(name);
        } else if let Some(name) = line.strip_prefix("fn=") {
            from.0 = functions.name(name);
        } else if let Some(name) = line.strip_prefix("cob=") {
            to.1 = Some(objects.name(name));
        } else if let Some(name) = line.strip_prefix("cfn=") {
            to.0 = functions.name(name);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if is_call {
            let instructions = line.split(' ').nth(1).and_then(|count| count.parse().ok()).unwrap_or(0);
            let object = to.1.take().unwrap_or_else(|| from.1.clone());
            found.push(Calls { from: from.clone(), to: (to.0.clone(), object), instructions });
            is_call = false;
        }
    }
    found
}

/// Instructions of the calls that `is_wanted`.
pub fn sum(calls: &[Calls], is_wanted: impl Fn(&Calls) -> bool) -> u64 {
    calls.iter().filter(|call| is_wanted(call)).map(|call| call.instructions).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "\
ob=(1) libmpi.so
fl=(1) send.c
fn=(1) PMPI_Send
10 4
cob=(2) plugin.so
cfi=(2) callbacks.rs
cfn=(2) sendi
calls=2 5
11 300

ob=(2)
fl=(2)
fn=(2)
5 100
cfn=(3) post_send
calls=2 9
+1 200

ob=(1)
fn=(1)
12 1
cfn=(4) helper
calls=1 0
12 7
";

    #[test]
    fn calls_have_the_instructions_of_the_line_behind_them_and_names_are_known_by_number() {
        let calls = calls(PROFILE);
        let of = |name: &str| {
            calls.iter().find(|call| call.to.0 == name).cloned().unwrap_or_else(|| panic!("{name}"))
        };
        assert_eq!(calls.len(), 3);
        let (sendi, post, helper) = (of("sendi"), of("post_send"), of("helper"));
        assert_eq!(
            (sendi.from.0.as_str(), sendi.to.1.as_str(), sendi.instructions),
            ("PMPI_Send", "plugin.so", 300)
        );
        assert_eq!(
            (post.from.0.as_str(), post.to.1.as_str(), post.instructions),
            ("sendi", "plugin.so", 200)
        );
        assert_eq!(
            (helper.to.1.as_str(), helper.instructions),
            ("libmpi.so", 7),
            "the callee's object is the caller's again"
        );
        assert_eq!(sum(&calls, |call| call.from.1 == "libmpi.so"), 307);
    }
}
