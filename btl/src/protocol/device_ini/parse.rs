//! From bytes to sections, strictly. Every piece of text keeps its place ([`Span`]).

#![forbid(unsafe_code)]

use super::error::quoted;
use super::{IniError, MAX_FILE, Origin, Section, Setting, Settings, Whom};
use crate::protocol::layout::Layout;
use std::sync::Arc;

/// The section for all devices.
const DEFAULT: &str = "default";

/// Most bytes that a file may ask to have inline, as in the parameter `max_inline`.
const MAX_INLINE: u32 = 1 << 20;

/// A key, and what is done with its value.
#[derive(Debug)]
pub struct Key {
    /// As files write it, upper or lower case.
    pub name: &'static str,
    /// Why it is read and has no effect; `None`: it has one.
    pub ignored: Option<&'static str>,
    apply: fn(&mut Draft<'_>, Span<'_>) -> Result<(), IniError>,
}

/// Every key that there is.
pub static KEYS: &[Key] = &[
    key("vendor_id", |draft, value| draft.list(value, |draft| &mut draft.vendors)),
    key("vendor_part_id", |draft, value| draft.list(value, |draft| &mut draft.parts)),
    key("receive_queues", |draft, value| {
        draft.settings.receive_queues = Some(draft.setting(value, layout(value)?));
        Ok(())
    }),
    key("mtu", |draft, value| {
        draft.settings.mtu = Some(draft.setting(value, mtu(value)?));
        Ok(())
    }),
    key("max_inline_data", |draft, value| {
        draft.settings.max_inline = Some(draft.setting(value, inline(value)?));
        Ok(())
    }),
    key("ignore_device", |draft, value| {
        draft.settings.ignore = Some(draft.setting(value, flag(value)?));
        Ok(())
    }),
    key("use_eager_rdma", |draft, value| {
        draft.settings.use_eager_rdma = Some(draft.setting(value, flag(value)?));
        Ok(())
    }),
    without_effect("rdmacm_reject_causes_connect_error", "rdmacm tries again after either event"),
];

type Apply = fn(&mut Draft<'_>, Span<'_>) -> Result<(), IniError>;

const fn key(name: &'static str, apply: Apply) -> Key {
    Key { name, ignored: None, apply }
}

const fn without_effect(name: &'static str, why: &'static str) -> Key {
    Key { name, ignored: Some(why), apply: |_, _| Ok(()) }
}

/// A line of a file.
#[derive(Clone, Copy, Debug)]
struct Line<'a> {
    file: &'a Arc<str>,
    /// From 1.
    number: usize,
    text: &'a str,
}

/// A piece of a line, and the byte of the line where it begins.
#[derive(Clone, Copy, Debug)]
struct Span<'a> {
    line: Line<'a>,
    at: usize,
    text: &'a str,
}

impl<'a> Line<'a> {
    fn new(file: &'a Arc<str>, number: usize, bytes: &'a [u8]) -> Result<Self, IniError> {
        let known = |text| Line { file, number, text };
        str::from_utf8(bytes).map(known).map_err(|error| {
            let (good, bad) = bytes.split_at(error.valid_up_to());
            let text = str::from_utf8(good).unwrap_or_default();
            let byte = bad.first().copied().unwrap_or(0);
            let end = Span { line: known(text), at: text.len(), text: "" };
            end.error_about(format!("the byte {byte:#04x}"), "text in UTF-8")
        })
    }

    /// The line without its comment and the white space around.
    fn content(self) -> Span<'a> {
        let end = self.text.find('#').unwrap_or(self.text.len());
        Span { line: self, at: 0, text: self.text }.part(0, end).trim()
    }
}

impl<'a> Span<'a> {
    /// The bytes from `from` up to `to` of this one.
    fn part(self, from: usize, to: usize) -> Self {
        let text = self.text.get(from..to).unwrap_or_default();
        Span { at: self.at + from.min(self.text.len()), text, ..self }
    }

    fn from(self, from: usize) -> Self {
        self.part(from, self.text.len())
    }

    fn trim(self) -> Self {
        let begin = self.text.len() - self.text.trim_start().len();
        self.part(begin, begin + self.text.trim().len())
    }

    fn split_once(self, separator: char) -> Option<(Self, Self)> {
        let at = self.text.find(separator)?;
        Some((self.part(0, at).trim(), self.from(at + separator.len_utf8()).trim()))
    }

    /// The items of a list, trimmed.
    fn items(self) -> impl Iterator<Item = Self> {
        let mut from = 0;
        self.text.split(',').map(move |item| {
            let span = self.part(from, from + item.len()).trim();
            from += item.len() + 1;
            span
        })
    }

    fn error(self, expected: impl Into<String>) -> IniError {
        let rest = self.line.text.get(self.at..).unwrap_or_default().trim_start();
        let found = match self.text {
            "" if rest.is_empty() || rest.starts_with('#') => "the end of the line".to_owned(),
            "" => "nothing".to_owned(),
            text => quoted(text),
        };
        self.error_about(found, expected)
    }

    fn error_about(self, found: String, expected: impl Into<String>) -> IniError {
        let before = self.line.text.get(..self.at).unwrap_or_default();
        IniError {
            file: self.line.file.as_ref().into(),
            line: self.line.number,
            column: before.chars().count() + 1,
            found: found.into(),
            expected: expected.into().into(),
        }
    }
}

/// A section of which not all lines are read.
#[derive(Debug)]
struct Draft<'a> {
    header: Span<'a>,
    name: Arc<str>,
    vendors: Option<Vec<u32>>,
    parts: Option<Vec<u32>>,
    settings: Settings,
    /// The keys so far, and their lines.
    seen: Vec<(&'static str, usize)>,
}

/// The sections of a file.
pub(super) fn file(name: &str, content: &[u8]) -> Result<Vec<Section>, IniError> {
    let file: Arc<str> = name.into();
    let (mut sections, mut draft) = (Vec::new(), None);
    if content.len() > MAX_FILE {
        let start = Span { line: Line::new(&file, 1, b"")?, at: 0, text: "" };
        return Err(start.error_about("more".into(), format!("at most {MAX_FILE} bytes in all")));
    }
    for (index, bytes) in content.split(|byte| *byte == b'\n').enumerate() {
        let content = Line::new(&file, index + 1, bytes)?.content();
        match content.text.chars().next() {
            None => (),
            Some('[') => sections.extend(draft.replace(Draft::begin(content)?).map(Draft::end).transpose()?),
            Some(_) => assignment(content, draft.as_mut())?,
        }
    }
    sections.extend(draft.map(Draft::end).transpose()?);
    Ok(sections)
}

/// `key = value`.
fn assignment(content: Span<'_>, draft: Option<&mut Draft<'_>>) -> Result<(), IniError> {
    let draft = draft.ok_or_else(|| content.error("a [section] before the first key"))?;
    let (name, value) = content.split_once('=').ok_or_else(|| {
        let end = content.from(content.text.len());
        end.error(format!("= and a value after {}", quoted(content.text)))
    })?;
    let key = KEYS.iter().find(|key| key.name.eq_ignore_ascii_case(name.text));
    let key = key.ok_or_else(|| name.error(format!("a key, one of {}", names().join(", "))))?;
    if let Some((_, line)) = draft.seen.iter().find(|(seen, _)| *seen == key.name) {
        return Err(name.error(format!("each key once in a section; this one has it on line {line}")));
    }
    draft.seen.push((key.name, name.line.number));
    if value.text.is_empty() {
        return Err(value.error(format!("a value for {}", key.name)));
    }
    (key.apply)(draft, value)
}

fn names() -> Vec<&'static str> {
    KEYS.iter().map(|key| key.name).collect()
}

impl<'a> Draft<'a> {
    /// `[name]`.
    fn begin(header: Span<'a>) -> Result<Self, IniError> {
        let close = header.text.find(']').ok_or_else(|| {
            let end = header.from(header.text.len());
            end.error(format!("] after {}", quoted(header.text)))
        })?;
        let name = header.part(1, close).trim();
        let rest = header.from(close + 1).trim();
        if !rest.text.is_empty() {
            return Err(rest.error("the end of the line after ]"));
        }
        if name.text.is_empty() {
            return Err(header.error("a name between [ and ]"));
        }
        let blank = (None, None, Settings::default(), Vec::new());
        let (vendors, parts, settings, seen) = blank;
        Ok(Self { header, name: name.text.into(), vendors, parts, settings, seen })
    }

    fn is_default(&self) -> bool {
        self.name.eq_ignore_ascii_case(DEFAULT)
    }

    fn end(self) -> Result<Section, IniError> {
        let origin = self.origin(self.header);
        let devices = match (self.is_default(), self.vendors, self.parts) {
            (true, ..) => Whom::All,
            (false, Some(vendors), Some(parts)) => Whom::Listed { vendors, parts },
            (false, None, _) => return Err(self.header.error("a vendor_id in the section")),
            (false, _, None) => return Err(self.header.error("a vendor_part_id in the section")),
        };
        Ok(Section { origin, devices, settings: self.settings })
    }

    fn origin(&self, place: Span<'_>) -> Origin {
        let Line { file, number, .. } = place.line;
        Origin { file: file.clone(), line: number, section: self.name.clone() }
    }

    fn setting<T>(&self, place: Span<'_>, value: T) -> Setting<T> {
        Setting { value, origin: self.origin(place) }
    }

    fn list(
        &mut self,
        value: Span<'_>,
        field: fn(&mut Self) -> &mut Option<Vec<u32>>,
    ) -> Result<(), IniError> {
        if self.is_default() {
            return Err(value.error("no numbers of devices in [default]: it is for all"));
        }
        let ids: Result<Vec<u32>, IniError> = value.items().map(id).collect();
        *field(self) = Some(ids?);
        Ok(())
    }
}

/// Decimal, or hexadecimal with `0x`; signs are none.
fn number(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = digits.map_or((text, 10), |digits| (digits, 16));
    u32::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'))
}

fn id(value: Span<'_>) -> Result<u32, IniError> {
    number(value.text).ok_or_else(|| value.error("a number from 0 to 0xffffffff, such as 4119 or 0x1017"))
}

fn layout(value: Span<'_>) -> Result<Layout, IniError> {
    Layout::parse(value.text).map_err(|error| {
        let found = value.part(error.at(), error.at() + error.found().len());
        found.error(format!("{}, as {} of queue {}", error.expected(), error.field(), error.queue()))
    })
}

fn mtu(value: Span<'_>) -> Result<Option<u32>, IniError> {
    let known = |bytes: &u32| bytes.is_power_of_two() && (256..=4096).contains(bytes);
    match number(value.text).filter(known) {
        None if value.text != "auto" => Err(value.error("256, 512, 1024, 2048, 4096 or auto")),
        bytes => Ok(bytes),
    }
}

fn inline(value: Span<'_>) -> Result<Option<u32>, IniError> {
    match number(value.text).filter(|bytes| *bytes <= MAX_INLINE) {
        None if !["auto", "-1"].contains(&value.text) => {
            Err(value.error(format!("bytes from 0 to {MAX_INLINE}, or auto (-1)")))
        }
        bytes => Ok(bytes),
    }
}

fn flag(value: Span<'_>) -> Result<bool, IniError> {
    match value.text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(value.error("0 (the device is used) or 1 (it is not)")),
    }
}
