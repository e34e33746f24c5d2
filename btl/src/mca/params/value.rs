//! From the text of a parameter to its value. Human units are accepted: `500ms`, `8k`, `auto`.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::time::Duration;

/// What a parameter takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Whatever its reader understands; described by the row's own sentence.
    Text,
    /// Words separated by commas.
    Words,
    /// A whole number from `min` to `max`: 8192, 8k, 0x2000.
    Number { min: u64, max: u64 },
    /// -1 (or `auto`), which means a search, or a whole number from `min` to `max`.
    SearchOr { min: u64, max: u64 },
    /// A number of bytes from `min` to `max`: 4096, 4k, 1m.
    Bytes { min: u64, max: u64 },
    /// As `Bytes`, or `auto`.
    AutoBytes { min: u64, max: u64 },
    /// A time from `min` to `max`: 500ms, 1s.
    Time { min: Duration, max: Duration },
    /// IB coded delay for RNR NAKs, 0 to 31 (IBTA table 45), or the time itself.
    RnrTimer,
    /// IB coded timeout, 0 to 31: 4.096 µs times two to this power (IBTA 9.7.6.1.3), or the time
    /// itself.
    AckTimeout,
    /// 0 to 100, or a word of [`VERBOSITY`].
    Verbosity,
}

/// A parsed value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Of [`Kind::Text`]: as it was given.
    Text(String),
    /// Of [`Kind::Words`], in their order.
    Words(Vec<String>),
    /// A number, bytes, an IB code or a verbosity.
    Number(u64),
    /// Of [`Kind::Time`].
    Time(Duration),
    /// `auto`; also the -1 of [`Kind::SearchOr`].
    Auto,
}

/// Words for verbosity, with Open MPI's numbers where it has the word.
const VERBOSITY: [(&str, u64); 5] = [("error", 0), ("warn", 20), ("info", 40), ("debug", 80), ("trace", 100)];

/// Delays of the RNR timer codes in units of 10 µs (IBTA table 45); code 0 is the longest.
const RNR_DELAYS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl Kind {
    /// What the user may write, for messages and help.
    pub fn expected(self) -> String {
        match self {
            Self::Text => "text".into(),
            Self::Words => "words separated by commas, or nothing".into(),
            Self::Number { min, max } => format!("a number from {min} to {max}"),
            Self::SearchOr { min, max } => format!("-1, or a number from {min} to {max}"),
            Self::Bytes { min, max } => format!("a size from {} to {}", size(min), size(max)),
            Self::AutoBytes { min, max } => format!("auto, or a size from {} to {}", size(min), size(max)),
            Self::Time { min, max } => format!("a time such as 500ms, from {min:?} to {max:?}"),
            Self::RnrTimer => "a time such as 1ms, up to 655ms, or an IB code from 0 to 31".into(),
            Self::AckTimeout => "a time such as 1s, up to 8796s, or an IB code from 0 to 31".into(),
            Self::Verbosity => "error, warn, info, debug, trace, or a number from 0 to 100".into(),
        }
    }

    /// Parses what the user wrote.
    ///
    /// # Errors
    /// What is wrong with it, in a few words; [`expected`](Self::expected) says what would be
    /// right.
    pub fn parse(self, text: &str) -> Result<Value, String> {
        let text = text.trim();
        match self {
            Self::Text => Ok(Value::Text(text.into())),
            Self::Words => words(text),
            Self::Number { min, max } => within(count(text)?, min, max).map(Value::Number),
            Self::AutoBytes { .. } if text == "auto" => Ok(Value::Auto),
            Self::SearchOr { .. } if text == "auto" || text == "-1" => Ok(Value::Auto),
            Self::SearchOr { min, max } => within(count(text)?, min, max).map(Value::Number),
            Self::Bytes { min, max } | Self::AutoBytes { min, max } => {
                within(bytes(text)?, min, max).map(Value::Number)
            }
            Self::Time { min, max } => time_within(time(text)?, min, max).map(Value::Time),
            Self::RnrTimer => code(text, rnr_code),
            Self::AckTimeout => code(text, ack_code),
            Self::Verbosity => match VERBOSITY.iter().find(|(word, _)| *word == text) {
                Some(&(_, number)) => Ok(Value::Number(number)),
                None => within(number(text)?, 0, 100).map(Value::Number),
            },
        }
    }
}

impl Value {
    /// The number; 0 for `auto` and for what is none.
    pub fn number(&self) -> u64 {
        if let Self::Number(number) = self { *number } else { 0 }
    }

    /// The number in the type of its field. Rows keep their maximum within that type; what is above
    /// it saturates.
    pub fn narrow<T: TryFrom<u64> + Bounded>(&self) -> T {
        T::try_from(self.number()).unwrap_or(T::MAX)
    }

    /// The words.
    pub fn words(self) -> Vec<String> {
        if let Self::Words(words) = self { words } else { Vec::new() }
    }

    /// The text.
    pub fn text(self) -> String {
        if let Self::Text(text) = self { text } else { String::new() }
    }

    /// The time.
    pub fn time(&self) -> Duration {
        if let Self::Time(time) = self { *time } else { Duration::ZERO }
    }
}

/// Types with a largest value.
pub trait Bounded {
    /// The largest value.
    const MAX: Self;
}

impl Bounded for u8 {
    const MAX: Self = u8::MAX;
}

impl Bounded for u16 {
    const MAX: Self = u16::MAX;
}

impl Bounded for u32 {
    const MAX: Self = u32::MAX;
}

/// The delay that an RNR timer code stands for.
pub fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(u64::from(RNR_DELAYS[usize::from(code & 31)]) * 10)
}

/// The timeout that an acknowledgement timeout code stands for; code 0 means none.
pub fn ack_timeout(code: u8) -> Duration {
    Duration::from_nanos(4096 << (code & 31))
}

fn words(text: &str) -> Result<Value, String> {
    let words: Vec<String> = text.split(',').map(|word| word.trim().to_owned()).collect();
    match words.as_slice() {
        [only] if only.is_empty() => Ok(Value::Words(Vec::new())),
        all if all.iter().any(String::is_empty) => Err("there is an empty word between commas".into()),
        _ => Ok(Value::Words(words)),
    }
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16)
        }
        None if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse(),
        _ => return Err(not_a("number", text)),
    };
    parsed.map_err(|_| not_a("number", text))
}

/// A number that may be given in k, m or g.
fn count(text: &str) -> Result<u64, String> {
    number(text).or_else(|problem| bytes(text).map_err(|_| problem))
}

/// Number and unit of "1.5ms"; the unit may be empty.
fn split_unit(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

fn bytes(text: &str) -> Result<u64, String> {
    if text.starts_with("0x") {
        return number(text);
    }
    let (digits, unit) = split_unit(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err(not_a("size", text)),
    };
    let count = number(digits).map_err(|_| not_a("size", text))?;
    count.checked_mul(1 << shift).ok_or_else(|| not_a("size", text))
}

fn time(text: &str) -> Result<Duration, String> {
    let (digits, unit) = split_unit(text);
    let seconds = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "" => return Err(format!("\"{text}\" has no unit (us, ms, s, min)")),
        _ => return Err(not_a("time", text)),
    };
    let count: f64 = digits.parse().map_err(|_| not_a("time", text))?;
    Duration::try_from_secs_f64(count * seconds).map_err(|_| not_a("time", text))
}

/// An IB code, as a number or as the time that it stands for.
fn code(text: &str, of_time: impl Fn(Duration) -> Option<u8>) -> Result<Value, String> {
    if let Ok(code) = number(text) {
        return within(code, 0, 31).map(Value::Number);
    }
    let code = of_time(time(text)?).ok_or_else(|| format!("\"{text}\" is longer than any code"))?;
    Ok(Value::Number(u64::from(code)))
}

/// The code of the shortest delay that is not below `delay`.
fn rnr_code(delay: Duration) -> Option<u8> {
    (1..32).chain([0]).find(|&code| rnr_delay(code) >= delay)
}

/// The code of the shortest timeout that is not below `timeout`; never 0, which is no timeout at
/// all.
fn ack_code(timeout: Duration) -> Option<u8> {
    (1..32).find(|&code| ack_timeout(code) >= timeout)
}

fn within(number: u64, min: u64, max: u64) -> Result<u64, String> {
    if (min..=max).contains(&number) { Ok(number) } else { Err(format!("{number} is out of range")) }
}

fn time_within(time: Duration, min: Duration, max: Duration) -> Result<Duration, String> {
    if (min..=max).contains(&time) { Ok(time) } else { Err(format!("{time:?} is out of range")) }
}

fn not_a(what: impl Display, text: &str) -> String {
    if text.is_empty() { format!("the {what} is missing") } else { format!("\"{text}\" is no {what}") }
}

/// A size as a person writes it.
fn size(bytes: u64) -> String {
    match bytes {
        0 => "0".into(),
        _ if bytes.is_multiple_of(1 << 30) => format!("{}g", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}m", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}k", bytes >> 10),
        _ => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Kind = Kind::AutoBytes { min: 0, max: 1 << 30 };
    const INDEX: Kind = Kind::SearchOr { min: 0, max: 255 };
    const TIME: Kind = Kind::Time { min: Duration::from_millis(1), max: Duration::from_secs(60) };

    #[test]
    fn human_units_are_understood() {
        let sizes = ["512", "8k", "1 MiB", "0x100", "auto"].map(|text| SIZE.parse(text));
        let expected = [
            Value::Number(512),
            Value::Number(8192),
            Value::Number(1 << 20),
            Value::Number(256),
            Value::Auto,
        ];
        assert_eq!(sizes, expected.map(Ok));
        let times =
            ["500ms", "1.5s", "2000 us", "1min"].map(|text| TIME.parse(text).map(|value| value.time()));
        assert_eq!(times, [500, 1500, 2, 60_000].map(|ms| Ok(Duration::from_millis(ms))));
    }

    #[test]
    fn an_index_may_be_left_to_a_search() {
        let parsed = ["-1", "auto", "0", "255"].map(|text| INDEX.parse(text));
        assert_eq!(parsed, [Value::Auto, Value::Auto, Value::Number(0), Value::Number(255)].map(Ok));
        assert!(INDEX.parse("-2").is_err() && INDEX.parse("256").is_err());
        let slots = Kind::SearchOr { min: 4, max: 4096 };
        assert_eq!(["auto", "4"].map(|text| slots.parse(text)), [Ok(Value::Auto), Ok(Value::Number(4))]);
        assert!(slots.parse("3").is_err());
    }

    #[test]
    fn times_become_the_next_longer_ib_code() {
        let rnr = ["1ms", "0.01ms", "10us", "655ms", "13"].map(|text| Kind::RnrTimer.parse(text));
        assert_eq!(rnr, [14, 1, 1, 0, 13].map(|code| Ok(Value::Number(code))));
        let ack = ["1s", "1us", "20"].map(|text| Kind::AckTimeout.parse(text));
        assert_eq!(ack, [18, 1, 20].map(|code| Ok(Value::Number(code))));
    }

    #[test]
    fn verbosity_is_a_word_or_a_number() {
        let parsed = ["debug", "20"].map(|text| Kind::Verbosity.parse(text).map(|value| value.number()));
        assert_eq!(parsed, [Ok(80), Ok(20)]);
        assert!(Kind::Verbosity.parse("chatty").is_err() && Kind::Verbosity.parse("101").is_err());
    }

    #[test]
    fn wrong_values_are_named() {
        let error = |kind: Kind, text| kind.parse(text).expect_err("must be refused");
        assert_eq!(error(TIME, "5 parsecs"), "\"5 parsecs\" is no time");
        assert_eq!(error(TIME, "5"), "\"5\" has no unit (us, ms, s, min)");
        assert_eq!(error(TIME, "2min"), "120s is out of range");
        assert_eq!(error(SIZE, ""), "the size is missing");
        assert_eq!(error(SIZE, "99999999999g"), "\"99999999999g\" is no size");
        assert_eq!(error(Kind::Number { min: 1, max: 9 }, "-1"), "\"-1\" is no number");
        assert_eq!(error(Kind::Number { min: 1, max: 9 }, "0x0A"), "10 is out of range");
        assert_eq!(error(Kind::Words, "a,,b"), "there is an empty word between commas");
        assert_eq!(error(Kind::RnrTimer, "32"), "32 is out of range");
        assert_eq!(error(Kind::RnrTimer, "1s"), "\"1s\" is longer than any code");
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in ".{0,20}") {
            for kind in [Kind::Text, Kind::Words, SIZE, INDEX, TIME, Kind::RnrTimer, Kind::AckTimeout, Kind::Verbosity] {
                let _ = kind.parse(&text);
            }
        }
    }
}
