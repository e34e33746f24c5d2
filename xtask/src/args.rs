//! The command line: `--flag`, `--option VALUE` or `--option=VALUE`, and words. Anything unknown is an error that says what is known.

use e2e::{Failure, Result};

/// What a command understands.
#[derive(Debug)]
pub struct Options {
    /// Names that stand alone, without the dashes.
    pub flags: &'static [&'static str],
    /// Names that take a value.
    pub values: &'static [&'static str],
    /// Whether words are welcome.
    pub words: bool,
}

/// A parsed command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Args {
    flags: Vec<String>,
    values: Vec<(String, String)>,
    words: Vec<String>,
}

impl Args {
    /// Sorts `words` into flags, values and words.
    pub fn parse(words: &[String], options: &Options) -> Result<Args> {
        let mut args = Args::default();
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            match word.strip_prefix("--") {
                Some(name) => args.option(name, &mut rest, options)?,
                None if options.words => args.words.push(word.clone()),
                None => return Err(Failure(format!("unexpected word `{word}`{}", known(options)))),
            }
        }
        Ok(args)
    }

    fn option<'a>(
        &mut self,
        name: &str,
        rest: &mut impl Iterator<Item = &'a String>,
        options: &Options,
    ) -> Result<()> {
        let (name, value) =
            name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value.to_owned())));
        if options.values.contains(&name) {
            let value = value.or_else(|| rest.next().cloned());
            let value = value.ok_or_else(|| Failure(format!("--{name} needs a value")))?;
            self.values.push((name.to_owned(), value));
            return Ok(());
        }
        if options.flags.contains(&name) && value.is_none() {
            self.flags.push(name.to_owned());
            return Ok(());
        }
        Err(Failure(format!("unknown option --{name}{}", known(options))))
    }

    /// Was `--name` given?
    pub fn flag(&self, name: &str) -> bool {
        self.flags.iter().any(|flag| flag == name)
    }

    /// The last value of `--name`.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The last value of `--name` as a number, or `default`.
    pub fn number(&self, name: &str, default: u64) -> Result<u64> {
        let Some(text) = self.value(name) else { return Ok(default) };
        text.parse().map_err(|_| Failure(format!("--{name} takes a number, not `{text}`")))
    }

    /// The words that belong to no option.
    pub fn words(&self) -> &[String] {
        &self.words
    }
}

fn known(options: &Options) -> String {
    let values = options.values.iter().map(|name| format!("--{name} VALUE"));
    let all: Vec<String> = options.flags.iter().map(|name| format!("--{name}")).chain(values).collect();
    format!("; this command knows {}", all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: Options = Options { flags: &["all"], values: &["json"], words: true };

    fn parse(line: &str) -> Result<Args> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Args::parse(&words, &OPTIONS)
    }

    #[test]
    fn options_and_words_may_come_in_any_order() {
        let args = parse("one --json a --all two --json=b").unwrap();
        assert!(args.flag("all"));
        assert_eq!(args.value("json"), Some("b"));
        assert_eq!(args.words(), ["one", "two"]);
    }

    #[test]
    fn mistakes_are_answered_with_what_is_known() {
        for line in ["--al", "--all=1", "--json", "--unknown"] {
            let error = parse(line).unwrap_err();
            assert!(error.0.contains("--json"), "{line}: {error}");
        }
    }
}
