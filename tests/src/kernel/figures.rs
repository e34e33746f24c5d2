//! Half round trips of the same program over oxib, UCX and tcp in the same guest. Emulated, on a machine that may be busy: good for
//! comparing columns of one run, and for nothing else.

use std::collections::BTreeMap;

use super::report::Outcome;
use super::table::{FIGURES, Job, World};
use crate::measured::Measured;

/// Transports, and the median and minimum of their batches in microseconds, by size.
type Sizes = BTreeMap<u64, Vec<(&'static str, f64, f64)>>;

/// What was measured in each world.
#[derive(Debug, Default)]
pub struct Figures(Vec<(String, Sizes)>);

impl Figures {
    /// Keeps what a ping-pong has measured.
    pub fn take(&mut self, world: &World, job: &Job, outcome: &Outcome) {
        if job.program != FIGURES || outcome.verdict.is_err() {
            return;
        }
        let world = world.to_string();
        if self.0.last().is_none_or(|(last, _)| *last != world) {
            self.0.push((world, BTreeMap::new()));
        }
        let Some((_, sizes)) = self.0.last_mut() else { return };
        let measured = outcome.output.lines().filter_map(Measured::parse);
        for Measured { what, median_us, least_us, .. } in measured {
            sizes.entry(what.bytes).or_default().push((job.over.name(), median_us, least_us));
        }
    }

    /// A table for each world: its name, then rows of cells, the first of them the head.
    pub fn tables(&self) -> Vec<(String, Vec<Vec<String>>)> {
        let table = |(world, sizes): &(String, Sizes)| {
            let names =
                sizes.values().next().into_iter().flatten().map(|(name, ..)| format!("{name} us (least)"));
            let head = std::iter::once("bytes".to_owned()).chain(names).collect();
            let row = |(size, cells): (&u64, &Vec<(&str, f64, f64)>)| {
                let cells = cells.iter().map(|(_, median, least)| format!("{median:.0} ({least:.0})"));
                std::iter::once(size.to_string()).chain(cells).collect()
            };
            (world.clone(), std::iter::once(head).chain(sizes.iter().map(row)).collect())
        };
        self.0.iter().map(table).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::table;
    use super::*;

    #[test]
    fn figures_of_one_world_become_one_table_with_a_column_for_each_transport() {
        let (world, jobs) = table::worlds().remove(0);
        let mut figures = Figures::default();
        for (job, us) in jobs.iter().filter(|job| job.program == FIGURES).zip([10, 20, 30]) {
            let output = format!(
                "size 8 batches 5 median_us {us}.2 min_us 1.0\nsize 0 batches 5 median_us 5.4 min_us 1\n"
            );
            figures.take(&world, job, &Outcome { output, seconds: 1.0, verdict: Ok(()) });
        }
        let tables = figures.tables();
        assert_eq!(tables.len(), 1);
        assert_eq!(tables[0].1[0], ["bytes", "oxib us (least)", "ucx rc_v us (least)", "tcp us (least)"]);
        assert_eq!(tables[0].1[2], ["8", "10 (1)", "20 (1)", "30 (1)"]);
    }
}
