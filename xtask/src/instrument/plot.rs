//! The ratios over the size as a picture (SVG): a line a transport through the medians, a band between the quartiles, the bounds
//! dashed. Both axes are logarithmic; 0 bytes stand where half a byte would.

use std::fmt::Write;
use std::path::Path;

use super::aims::{Aim, bound};
use super::samples::{Samples, Spread};
use e2e::failure::Context;
use e2e::measured::Kind;
use e2e::{Result, tell};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 480.0;
/// Of the area with the lines: left, right, top, bottom.
const AREA: [f64; 4] = [60.0, 840.0, 70.0, 430.0];
/// Told apart with any kind of sight (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const TICKS: [f64; 13] = [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0];
/// Sizes with a name below the axis.
const MARKED: [u64; 12] =
    [0, 1, 8, 64, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Ratios beyond these are drawn at the border.
const EXTREMES: [f64; 2] = [0.1, 8.0];
/// Room between the figures' extremes and the border of the area.
const MARGIN: f64 = 1.1;

/// A logarithmic axis: values between `low` and `high` lie between `first` and `last`.
#[derive(Debug, Clone, Copy)]
struct Scale {
    low: f64,
    high: f64,
    first: f64,
    last: f64,
}

impl Scale {
    fn at(self, value: f64) -> f64 {
        let part = (value / self.low).ln() / (self.high / self.low).ln();
        self.first + (self.last - self.first) * part.clamp(0.0, 1.0)
    }
}

/// A transport's line: bytes, ratio, bound.
struct Line<'a> {
    name: &'a str,
    colour: &'static str,
    points: Vec<(u64, Spread, Option<f64>)>,
}

/// Writes the picture.
///
/// # Errors
/// There is nothing to draw a line through, or the file cannot be written.
pub fn draw(path: &Path, samples: &Samples, aims: &[Aim], about: &str) -> Result<()> {
    let text = svg(samples, aims, about).context("there is nothing to draw a line through")?;
    std::fs::write(path, text).context(format_args!("cannot write {}", path.display()))?;
    tell!("wrote {}", path.display());
    Ok(())
}

/// `None` when there is nothing to draw a line through.
fn svg(samples: &Samples, aims: &[Aim], about: &str) -> Option<String> {
    let lines = lines(samples, aims);
    let (across, up) = (sizes(&lines)?, ratios(&lines)?);
    let mut text = head(samples.columns.first()?, about);
    grid(&mut text, &lines, across, up);
    for (index, line) in lines.iter().enumerate() {
        band(&mut text, line, across, up);
        bounds(&mut text, line, across, up);
        medians(&mut text, line, across, up);
        legend(&mut text, line, index);
    }
    text.push_str("</svg>\n");
    Some(text)
}

/// Of the transports that have bounds; of all if none has.
fn lines<'a>(samples: &'a Samples, aims: &[Aim]) -> Vec<Line<'a>> {
    let all: Vec<Line<'a>> =
        (1..samples.columns.len()).filter_map(|column| line(samples, aims, column)).collect();
    let bounded = |line: &Line<'_>| line.points.iter().any(|(_, _, bound)| bound.is_some());
    let some = all.iter().any(bounded);
    all.into_iter().filter(|line| bounded(line) || !some).collect()
}

fn line<'a>(samples: &'a Samples, aims: &[Aim], column: usize) -> Option<Line<'a>> {
    let name = samples.columns.get(column)?;
    let rows = samples.rows.iter().enumerate().filter(|(_, what)| what.kind == Kind::HalfRoundTrip);
    let point = |(row, what)| Some((what, samples.ratio(row, column)?));
    let points: Vec<_> =
        rows.filter_map(point).map(|(what, ratio)| (what.bytes, ratio, bound(aims, *what, name))).collect();
    let colour = COLOURS.get((column - 1) % COLOURS.len())?;
    (points.len() > 1).then_some(Line { name, colour, points })
}

/// Where a payload stands.
fn place(bytes: u64) -> f64 {
    if bytes == 0 { 0.5 } else { bytes as f64 }
}

fn sizes(lines: &[Line<'_>]) -> Option<Scale> {
    let all = || lines.iter().flat_map(|line| &line.points).map(|(bytes, ..)| *bytes);
    Some(Scale { low: place(all().min()?), high: place(all().max()?), first: AREA[0], last: AREA[1] })
}

fn ratios(lines: &[Line<'_>]) -> Option<Scale> {
    let all = || lines.iter().flat_map(|line| &line.points);
    let low = all().map(|(_, ratio, _)| ratio.low).min_by(f64::total_cmp)?.clamp(EXTREMES[0], 0.7);
    let high = all().map(|(_, ratio, _)| ratio.high).max_by(f64::total_cmp)?.clamp(1.5, EXTREMES[1]);
    Some(Scale { low: low / MARGIN, high: high * MARGIN, first: AREA[3], last: AREA[2] })
}

fn head(first: &str, about: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"{left}\" y=\"22\" font-size=\"15\">Half round trip of {} by that of the others, over the size in bytes</text>\n\
         <text x=\"{left}\" y=\"{low}\" fill=\"#666\" font-size=\"11\">{}</text>\n",
        escaped(first),
        escaped(about),
        left = AREA[0],
        low = HEIGHT - 8.0,
    )
}

fn grid(text: &mut String, lines: &[Line<'_>], across: Scale, up: Scale) {
    let [left, right, top, bottom] = AREA;
    for tick in TICKS.into_iter().filter(|tick| (up.low..=up.high).contains(tick)) {
        let (y, one) = (up.at(tick), tick == 1.0);
        let (colour, width) = if one { ("#000", 1.5) } else { ("#ddd", 1.0) };
        let line =
            format!("<path d=\"M{left} {y:.1}H{right}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>\n");
        let name =
            format!("<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>\n", left - 6.0, y + 4.0);
        text.extend([line, name]);
    }
    for bytes in marked(lines) {
        let x = across.at(place(bytes));
        let line = format!("<path d=\"M{x:.1} {top}V{bottom}\" stroke=\"#eee\"/>\n");
        let name = format!(
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
            bottom + 18.0,
            short(bytes)
        );
        text.extend([line, name]);
    }
}

/// Those of the marked sizes that were measured.
fn marked(lines: &[Line<'_>]) -> impl Iterator<Item = u64> {
    let measured = |bytes: &u64| lines.iter().flat_map(|line| &line.points).any(|(other, ..)| other == bytes);
    MARKED.into_iter().filter(measured)
}

/// 4096: "4k".
fn short(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{}M", b >> 20),
        b if b >= 1 << 10 => format!("{}k", b >> 10),
        b => b.to_string(),
    }
}

fn band(text: &mut String, line: &Line<'_>, across: Scale, up: Scale) {
    let corner = |bytes: u64, ratio: f64| format!("{:.1},{:.1}", across.at(place(bytes)), up.at(ratio));
    let there = line.points.iter().map(|(bytes, ratio, _)| corner(*bytes, ratio.high));
    let back = line.points.iter().rev().map(|(bytes, ratio, _)| corner(*bytes, ratio.low));
    let corners = there.chain(back).collect::<Vec<_>>().join(" ");
    push(text, format_args!("<polygon points=\"{corners}\" fill=\"{}\" opacity=\"0.15\"/>\n", line.colour));
}

/// Steps that lie half way between two sizes.
fn bounds(text: &mut String, line: &Line<'_>, across: Scale, up: Scale) {
    let mut path = String::new();
    for pair in line.points.windows(2) {
        let [(from, _, Some(bound)), (to, _, next)] = pair else { continue };
        let (start, end) = (across.at(place(*from)), across.at(place(*to)));
        let (end, y) = (if *next == Some(*bound) { end } else { (start + end) / 2.0 }, up.at(*bound));
        push(&mut path, format_args!("M{start:.1} {y:.1}H{end:.1}"));
    }
    push(
        text,
        format_args!(
            "<path d=\"{path}\" stroke=\"{}\" stroke-dasharray=\"3 4\" opacity=\"0.7\"/>\n",
            line.colour
        ),
    );
}

fn medians(text: &mut String, line: &Line<'_>, across: Scale, up: Scale) {
    let point = |(bytes, ratio, _): &(u64, Spread, _)| {
        format!("{:.1},{:.1}", across.at(place(*bytes)), up.at(ratio.median))
    };
    let points = line.points.iter().map(point).collect::<Vec<_>>().join(" ");
    push(
        text,
        format_args!(
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n",
            line.colour
        ),
    );
}

fn legend(text: &mut String, line: &Line<'_>, index: usize) {
    let x = AREA[0] + 120.0 * index as f64;
    push(
        text,
        format_args!(
            "<path d=\"M{x} 48h22\" stroke=\"{}\" stroke-width=\"3\"/>\n<text x=\"{}\" y=\"52\">/ {}</text>\n",
            line.colour,
            x + 28.0,
            escaped(line.name)
        ),
    );
}

fn push(text: &mut String, words: std::fmt::Arguments<'_>) {
    let _a_string_takes_all = text.write_fmt(words);
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::aims::HERE;
    use super::super::samples::tests::samples;
    use super::*;

    #[test]
    fn equal_ratios_of_values_lie_equally_far_apart() {
        let scale = Scale { low: 0.25, high: 4.0, first: 400.0, last: 0.0 };
        assert_eq!([0.25, 1.0, 4.0].map(|value| scale.at(value)), [400.0, 200.0, 0.0]);
        assert!((scale.at(0.5) - 300.0).abs() < 1e-9);
        assert_eq!([0.1, 9.0].map(|value| scale.at(value)), [400.0, 0.0], "what is outside is at the border");
    }

    #[test]
    fn bands_lines_and_bounds_are_drawn_of_transports_with_bounds() {
        let all = samples(
            &["oxib", "vader", "tcp"],
            &[
                (0, &[&[1.0], &[2.0], &[9.0]]),
                (8, &[&[1.0], &[1.0], &[9.0]]),
                (1 << 20, &[&[2.0], &[1.0], &[9.0]]),
            ],
        );
        let text = svg(&all, HERE, "a <test>").unwrap();
        assert_eq!(text.matches("<polyline").count(), 1);
        assert_eq!(text.matches("<polygon").count(), 1);
        assert!(text.contains("/ vader") && !text.contains("/ tcp"), "{text}");
        assert!(text.contains("a &lt;test&gt;") && text.contains(">1M</text>") && text.contains(">0</text>"));
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
    }

    #[test]
    fn a_single_size_is_no_line() {
        assert_eq!(svg(&samples(&["oxib", "vader"], &[(8, &[&[1.0], &[2.0]])]), HERE, ""), None);
    }

    #[test]
    fn sizes_have_short_names() {
        assert_eq!([0, 8, 4096, 4 << 20].map(short), ["0", "8", "4k", "4M"]);
    }
}
