//! The `receive_queues` grammar: text to queues, strictly.
//!
//! Every piece of text keeps its byte position ([`Span`]), so that each error can point at it.
//! Rules between fields (`rd_win <= rd_num`, ascending sizes) are the bounds of the later field.

#![forbid(unsafe_code)]

use super::{Field, Kind, LayoutError, MAX_QUEUES, MAX_TEXT, Queue, Srq};
use crate::protocol::credits::{MAX_RD_NUM, MAX_RD_RSV, MIN_RD_RSV};
use crate::protocol::wire::MAX_CONTROL_PAYLOAD;

/// No buffer may be smaller than the largest control message.
const MIN_SIZE: u32 = MAX_CONTROL_PAYLOAD as u32;
/// Half of the longest message that verbs know (2^31 bytes): the header must fit, too.
const MAX_SIZE: u32 = 1 << 30;
const DEFAULT_RD_NUM: u32 = 256;
/// Least default of a P queue's `rd_init`.
const MIN_RD_INIT: u32 = 4;

const PER_PEER_FIELDS: &str = "at most 7 fields: P,size,rd_num,rd_low,rd_win,rd_rsv,rd_init";
const SHARED_FIELDS: &str = "at most 7 fields: type,size,rd_num,rd_low,sd_max,rd_init,srq_limit";

/// A piece of the text and where it begins.
#[derive(Clone, Copy)]
struct Span<'a> {
    at: usize,
    text: &'a str,
}

impl<'a> Span<'a> {
    fn split(self, separator: char) -> impl Iterator<Item = Span<'a>> {
        let mut at = self.at;
        self.text.split(separator).map(move |text| {
            let span = Span { at, text };
            at += text.len() + separator.len_utf8();
            span
        })
    }

    fn end(self) -> Span<'a> {
        Span { at: self.at + self.text.len(), text: "" }
    }
}

/// Parses the whole list.
pub(super) fn parse(text: &str) -> Result<Vec<Queue>, LayoutError> {
    let list = List { text };
    if text.len() > MAX_TEXT {
        let at = char_boundary(text, MAX_TEXT);
        let rest = Span { at, text: text.get(at..).unwrap_or_default() };
        return Err(list.error(1, Field::List, rest, format!("at most {MAX_TEXT} bytes in all")));
    }
    let mut queues = Vec::new();
    for (index, span) in (Span { at: 0, text }).split(':').enumerate() {
        if index == MAX_QUEUES {
            return Err(list.error(index + 1, Field::List, span, format!("at most {MAX_QUEUES} queues")));
        }
        queues.push(list.queue(span, &queues)?);
    }
    Ok(queues)
}

/// The last character boundary at or before `at`.
fn char_boundary(text: &str, at: usize) -> usize {
    (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

/// The text that errors quote.
#[derive(Clone, Copy)]
struct List<'a> {
    text: &'a str,
}

impl<'a> List<'a> {
    fn error(
        self,
        queue: usize,
        field: Field,
        found: Span<'_>,
        expected: impl Into<Box<str>>,
    ) -> LayoutError {
        let (at, len) = (found.at, found.text.len());
        LayoutError { text: self.text.into(), at, len, queue, field, expected: expected.into() }
    }

    fn queue(self, span: Span<'a>, before: &[Queue]) -> Result<Queue, LayoutError> {
        let mut pieces = span.split(',');
        let letter = pieces.next().unwrap_or(span);
        let mut fields = Fields { list: self, queue: before.len() + 1, pieces, end: span.end() };
        match letter.text {
            "P" => {
                fields.no_mix(letter, before, false)?;
                per_peer(&mut fields, before)
            }
            "S" => {
                fields.no_mix(letter, before, false)?;
                shared(&mut fields, before, Kind::Shared)
            }
            "X" => {
                fields.no_mix(letter, before, true)?;
                shared(&mut fields, before, Kind::Xrc)
            }
            _ => Err(fields.error(Field::Type, letter, "P, S or X (upper case, no spaces)")),
        }
    }
}

fn per_peer<'a>(
    fields: &mut Fields<'a, impl Iterator<Item = Span<'a>>>,
    before: &[Queue],
) -> Result<Queue, LayoutError> {
    let Depth { size, rd_num, rd_low } = depth(fields, before)?;
    let rd_win = fields.number(Field::RdWin, (rd_num - rd_low) * 2, 1, rd_num, " (rd_num)")?;
    let widest = format!(" ({MIN_RD_RSV} keep credits moving, the header counts to {MAX_RD_RSV})");
    let (least, most) = (u32::from(MIN_RD_RSV), u32::from(MAX_RD_RSV));
    let rd_rsv = fields.number(Field::RdRsv, rd_num * 2 / rd_win, least, most, &widest)?;
    let rd_init = fields.number(Field::RdInit, (rd_num / 8).max(MIN_RD_INIT), 1, rd_num, " (rd_num)")?;
    fields.finish(PER_PEER_FIELDS)?;
    let rd_rsv = u8::try_from(rd_rsv).unwrap_or(MAX_RD_RSV);
    let kind = Kind::PerPeer { rd_win: narrow(rd_win), rd_rsv, rd_init: narrow(rd_init) };
    Ok(Queue { kind, size, rd_num: narrow(rd_num), rd_low: narrow(rd_low) })
}

fn shared<'a>(
    fields: &mut Fields<'a, impl Iterator<Item = Span<'a>>>,
    before: &[Queue],
    kind: fn(Srq) -> Kind,
) -> Result<Queue, LayoutError> {
    let Depth { size, rd_num, rd_low } = depth(fields, before)?;
    let sd_max = fields.number(Field::SdMax, rd_low / 4, 1, u32::from(MAX_RD_NUM), "")?;
    let rd_init = fields.number(Field::RdInit, rd_num / 4, 1, rd_num, " (rd_num)")?;
    let limit = ((rd_init - rd_init / 4) / 4).max(u32::from(rd_num > 1));
    let srq_limit = fields.number(Field::SrqLimit, limit, 0, rd_num, " (rd_num)")?;
    fields.finish(SHARED_FIELDS)?;
    let srq = Srq { sd_max: narrow(sd_max), rd_init: narrow(rd_init), srq_limit: narrow(srq_limit) };
    Ok(Queue { kind: kind(srq), size, rd_num: narrow(rd_num), rd_low: narrow(rd_low) })
}

/// The fields that all kinds begin with.
struct Depth {
    size: u32,
    rd_num: u32,
    rd_low: u32,
}

fn depth<'a>(
    fields: &mut Fields<'a, impl Iterator<Item = Span<'a>>>,
    before: &[Queue],
) -> Result<Depth, LayoutError> {
    let size = fields.size(before.last().map(|queue| queue.size))?;
    let rd_num = fields.rd_num()?;
    let usual = rd_num - rd_num / 4;
    let rd_low = fields.number(Field::RdLow, usual, 0, rd_num - 1, " (less than rd_num)")?;
    Ok(Depth { size, rd_num, rd_low })
}

/// The bounds were checked: no value above `MAX_RD_NUM` comes here.
fn narrow(value: u32) -> u16 {
    u16::try_from(value).unwrap_or(MAX_RD_NUM)
}

/// The fields of one queue, read from left to right.
struct Fields<'a, I> {
    list: List<'a>,
    queue: usize,
    pieces: I,
    end: Span<'a>,
}

impl<'a, I: Iterator<Item = Span<'a>>> Fields<'a, I> {
    fn error(&self, field: Field, found: Span<'_>, expected: impl Into<Box<str>>) -> LayoutError {
        self.list.error(self.queue, field, found, expected)
    }

    fn no_mix(&self, letter: Span<'_>, before: &[Queue], xrc: bool) -> Result<(), LayoutError> {
        let first = before.first().map(|queue| matches!(queue.kind, Kind::Xrc(_)));
        match first {
            Some(true) if !xrc => Err(self.error(Field::Type, letter, "X: it does not mix with P or S")),
            Some(false) if xrc => Err(self.error(Field::Type, letter, "P or S: they do not mix with X")),
            _ => Ok(()),
        }
    }

    /// Mandatory, and above the size of the queue before.
    fn size(&mut self, previous: Option<u32>) -> Result<u32, LayoutError> {
        let why = match previous {
            Some(size) => format!(" bytes (sizes ascend, queue {} has {size})", self.queue - 1),
            None => " bytes".to_owned(),
        };
        let least = previous.map_or(MIN_SIZE, |size| size.saturating_add(1));
        let span = self.pieces.next().unwrap_or(self.end);
        self.parse(Field::Size, span, least, MAX_SIZE, &why)
    }

    /// Must be there; may be empty.
    fn rd_num(&mut self) -> Result<u32, LayoutError> {
        let most = u32::from(MAX_RD_NUM);
        match self.pieces.next() {
            None => Err(self.error(Field::RdNum, self.end, "a comma and the number of buffers")),
            Some(Span { text: "", .. }) => Ok(DEFAULT_RD_NUM),
            Some(span) => self.parse(Field::RdNum, span, 1, most, " (the header's credit field)"),
        }
    }

    /// Optional; `usual`, moved into its bounds, when missing or empty.
    fn number(
        &mut self,
        field: Field,
        usual: u32,
        least: u32,
        most: u32,
        why: &str,
    ) -> Result<u32, LayoutError> {
        match self.pieces.next() {
            None | Some(Span { text: "", .. }) => Ok(usual.clamp(least, most)),
            Some(span) => self.parse(field, span, least, most, why),
        }
    }

    fn parse(
        &self,
        field: Field,
        span: Span<'_>,
        least: u32,
        most: u32,
        why: &str,
    ) -> Result<u32, LayoutError> {
        let digits = !span.text.is_empty() && span.text.bytes().all(|byte| byte.is_ascii_digit());
        span.text
            .parse()
            .ok()
            .filter(|value| digits && (least..=most).contains(value))
            .ok_or_else(|| self.error(field, span, format!("a number from {least} to {most}{why}")))
    }

    fn finish(&mut self, expected: &str) -> Result<(), LayoutError> {
        match self.pieces.next() {
            Some(span) => Err(self.error(Field::Extra, span, expected)),
            None => Ok(()),
        }
    }
}
