//! MPI_Init, traffic and MPI_Finalize, a thousand times: jobs one after another, over every layout with every connection manager that connects it. After
//! each nothing of it is left.
//!
//! Quick: one job each. All: a thousand in all.

use std::time::Duration;

use crate::layouts::Layout;
use crate::process::Limits;
use crate::suite::case::passes_within;
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

/// Of all jobs together, at least.
const LIVES: usize = 1000;
/// What they do, in turns: programs that are short, and end in different ways.
const PROGRAMS: [&str; 5] = ["everyone", "sendrecv", "lastwords", "parting", "collectives"];
/// How many ranks they have, in turns.
const RANKS: [usize; 3] = [2, 3, 4];
const LIMITS: Limits = Limits { deadline: Duration::from_secs(120), silence: None };

/// A layout, what connects it, and on which kind of device.
#[derive(Debug, Clone)]
struct Life {
    layout: Layout,
    manager: &'static str,
    is_iwarp: bool,
}

impl Life {
    fn name(&self) -> String {
        let device = if self.is_iwarp { " on iWARP" } else { "" };
        format!("layout {} by {}{device}", self.layout.name, self.manager)
    }

    /// The `number`-th job.
    fn live(&self, setting: &Setting, number: usize) -> Result<()> {
        let (program, ranks) = (PROGRAMS[number % PROGRAMS.len()], RANKS[number % RANKS.len()]);
        let job = setting.job(ranks, program)?.parameters(&self.layout.parameters());
        let job = job.parameter("btl_oxib_cpc_include", self.manager);
        let job = if self.is_iwarp { job.variable("SOFTIB_LINK_LAYER", "iwarp") } else { job };
        let told = |Failure(text)| Failure(format!("job {number} with {}: {text}", self.name()));
        passes_within(&job, program, LIMITS).map_err(told)?;
        match setting.segments.contents() {
            left if left.is_empty() => Ok(()),
            left => Err(Failure(format!("job {number}, {program} with {}, left {left:?}", self.name()))),
        }
    }
}

/// One for all, or one for each layout with each manager.
pub fn cases(setting: &Setting) -> Vec<Case> {
    if !setting.transport.needs_plugin() {
        return Vec::new();
    }
    let lives = lives(setting);
    if !setting.all {
        let name =
            format!("{} jobs start, talk, end and leave nothing: every layout by every manager", lives.len());
        return vec![Case::new(name, move |setting| {
            lives.iter().enumerate().try_for_each(|(number, life)| life.live(setting, number))
        })];
    }
    let each = LIVES.div_ceil(lives.len());
    let case = |life: Life| {
        let name = format!("{each} jobs start, talk, end and leave nothing: {}", life.name());
        Case::new(name, move |setting| (0..each).try_for_each(|number| life.live(setting, number)))
    };
    lives.into_iter().map(case).collect()
}

fn lives(setting: &Setting) -> Vec<Life> {
    let of = |layout: &Layout| {
        let managers: &[(&'static str, bool)] = match layout.name.as_str() {
            "x-only" => &[("xrc", false)],
            "iwarp" => &[("rdmacm", true)],
            _ => &[("ibcm", false), ("rdmacm", false)],
        };
        let layout = layout.clone();
        managers.iter().map(move |(manager, is_iwarp)| Life {
            layout: layout.clone(),
            manager,
            is_iwarp: *is_iwarp,
        })
    };
    setting.layouts.iter().flat_map(of).collect()
}
