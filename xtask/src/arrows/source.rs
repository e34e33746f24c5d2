//! Rust source as words, without what is no arrow: comments, literals, and items that only tests compile.

/// One word or sign of a source file: an identifier, `::`, or a single other character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    /// As it stands in the file.
    pub text: &'a str,
    /// Line of the file, from 1.
    pub line: usize,
}

/// The tokens of a file that a build without tests compiles.
pub fn tokens(source: &str) -> Vec<Token<'_>> {
    without_tests(&scan(source))
}

fn scan(source: &str) -> Vec<Token<'_>> {
    let (mut found, mut rest, mut line) = (Vec::new(), source, 1);
    while let Some(first) = rest.chars().next() {
        let len = skipped(rest);
        let (len, is_token) = if len > 0 { (len, false) } else { (word(rest), !first.is_whitespace()) };
        let (text, after) = rest.split_at(len);
        if is_token {
            found.push(Token { text, line });
        }
        line += text.matches('\n').count();
        rest = after;
    }
    found
}

/// Length of the token that the text begins with.
fn word(text: &str) -> usize {
    let name = |c: char| c.is_alphanumeric() || c == '_';
    match text.chars().next() {
        Some(first) if name(first) => text.find(|c| !name(c)).unwrap_or(text.len()),
        Some(':') if text.starts_with("::") => 2,
        Some(first) => first.len_utf8(),
        None => 0,
    }
}

/// Length of the comment or literal that the text begins with; 0 if it begins with neither.
fn skipped(text: &str) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return block_comment(text);
    }
    let name = word(text);
    let prefix = if ["b", "c", "r", "br", "cr"].contains(&&text[..name]) { name } else { 0 };
    let literal = &text[prefix..];
    if text[..prefix].ends_with('r') && literal.starts_with(['"', '#']) {
        return raw_string(literal).map_or(0, |len| prefix + len);
    }
    match literal.chars().next() {
        Some('"') => prefix + quoted(literal, '"'),
        Some('\'') => character(literal).map_or(0, |len| prefix + len),
        _ => 0,
    }
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// `"..."`, `#"..."#`, after the `r`; `None` for a raw identifier (`r#type`).
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text.len() - text.trim_start_matches('#').len();
    let body = text[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(body.find(&end).map_or(text.len(), |at| hashes + 1 + at + end.len()))
}

/// Length of a literal between quotes, escapes respected.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// `'x'` or `'\n'`; `None` for a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    let (_, first) = chars.next()?;
    let closed = chars.next().is_some_and(|(_, second)| second == '\'');
    (first == '\\' || closed).then(|| quoted(text, '\''))
}

/// Leaves out each item that stands behind a `#[cfg(...)]` which names `test`.
fn without_tests<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let end = attribute(tokens, at);
        if end > at && compiles_for_tests(&tokens[at..end]) {
            at = item_end(tokens, end);
        } else {
            let next = end.max(at + 1);
            kept.extend_from_slice(&tokens[at..next]);
            at = next;
        }
    }
    kept
}

/// End of the attribute `#[...]` at this place; the place itself if there is none.
fn attribute(tokens: &[Token<'_>], at: usize) -> usize {
    let is = |offset: usize, text: &str| tokens.get(at + offset).is_some_and(|token| token.text == text);
    if is(0, "#") && is(1, "[") { closing(tokens, at + 1) } else { at }
}

/// True for `cfg(test)` and `cfg(all(test, ...))`, not for `cfg(not(test))`.
fn compiles_for_tests(attribute: &[Token<'_>]) -> bool {
    let words: Vec<&str> = attribute.iter().map(|token| token.text).collect();
    let negated = words.windows(3).any(|three| three == ["not", "(", "test"]);
    words.get(2) == Some(&"cfg") && words.contains(&"test") && !negated
}

/// The place behind the item that begins here, its further attributes included.
fn item_end(tokens: &[Token<'_>], from: usize) -> usize {
    let mut at = from;
    while attribute(tokens, at) > at {
        at = attribute(tokens, at);
    }
    let is_use = tokens[at..].iter().take(6).any(|token| token.text == "use");
    while at < tokens.len() {
        match tokens[at].text {
            ";" => return at + 1,
            "{" if !is_use => return closing(tokens, at),
            "{" | "(" | "[" => at = closing(tokens, at),
            "}" => return at,
            _ => at += 1,
        }
    }
    at
}

/// The place behind the bracket that closes the one here.
fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> String {
        tokens(source).iter().map(|token| token.text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_and_literals_hold_no_words() {
        assert_eq!(words("a // crate::b\n/* c /* d */ e */ f"), "a f");
        assert_eq!(words(r##"a "crate::b \" c" r#"d " e"# b"f" 'g' '\'' '\u{41}' h"##), "a h");
        assert_eq!(words("fn a<'b>(c: &'b r#type) {}"), "fn a < ' b > ( c : & ' b r # type ) { }");
    }

    #[test]
    fn a_token_knows_its_line() {
        let lines: Vec<usize> = tokens("a\n/* \n */ b \"\n\" c").iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 3, 4]);
    }

    #[test]
    fn items_of_tests_are_left_out_and_what_follows_them_stays() {
        assert_eq!(words("#[cfg(test)]\nuse a::{b, c};\nd"), "d");
        assert_eq!(words("#[cfg(all(test, not(loom)))] #[allow(x)] mod tests { fn a() {} } b"), "b");
        assert_eq!(words("#[cfg(test)] pub(crate) fn a(b: [u8; 2]) -> c { d } e"), "e");
        assert_eq!(words("#[cfg(not(test))] fn a() {}"), "# [ cfg ( not ( test ) ) ] fn a ( ) { }");
        assert_eq!(words("#[cfg(test)] mod tests; a"), "a");
    }
}
