//! NetPIPE (Debian's netpipe-openmpi): sizes around every power of two, its own integrity check, two ranks, every layout.

use crate::layouts::{DEFAULT, Layout};
use crate::process::Limits;
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

const INTEGRITY: [&str; 5] = ["-i", "-l", "1", "-u", "1048576"];
const ANY_SOURCE: [&str; 6] = ["-i", "-z", "-l", "1", "-u", "131072"];
const TIMED: [&str; 4] = ["-p", "3", "-u", "1048576"];

/// The integrity check over every layout; with `all` also with wildcards, and the timed run, which bounces far more messages.
pub fn cases(setting: &Setting) -> Vec<Case> {
    let mut cases: Vec<Case> =
        setting.layouts.iter().map(|layout| case(layout, "bytes", &INTEGRITY)).collect();
    for layout in setting.layouts.iter().filter(|layout| setting.all || layout.name == DEFAULT) {
        cases.push(case(layout, "bytes from any source", &ANY_SOURCE));
    }
    if setting.all {
        cases.extend(setting.layouts.iter().map(|layout| case(layout, "timings", &TIMED)));
    }
    cases
}

fn case(layout: &Layout, what: &str, arguments: &'static [&'static str]) -> Case {
    let layout = layout.clone();
    let name = format!(
        "NetPIPE gets through its sizes and finds its {what} right (2 ranks, layout {})",
        layout.name
    );
    Case::new(name, move |setting| run(setting, &layout, arguments))
}

/// NetPIPE prints a line a size; a size whose check fails ends it. The results file is of no interest.
fn run(setting: &Setting, layout: &Layout, arguments: &[&str]) -> Result<()> {
    let job =
        setting.foreign_job(2, &setting.transport, "NPopenmpi").foreign().parameters(&layout.parameters());
    let job = job.arguments(arguments).arguments(["-o", "/dev/null"]);
    let finished = job.expect_success(Limits::deadline(240))?;
    // Not by lines: what the other rank prints may come between the two halves of one.
    let count = |words: &str| finished.output.matches(words).count();
    let (sizes, right) = (count(" times -->"), count("passed") + count("usec"));
    if sizes > 20 && right == sizes {
        return Ok(());
    }
    let Failure(text) = job.explain(&finished);
    Err(Failure(format!("{right} of {sizes} sizes were reported as right: {text}")))
}
