//! What was measured, and what it comes to: medians, quartiles, and ratios within a round, where both transports saw the same machine.

use e2e::measured::Measurement;

/// A cache line that takes so many times as long as the fastest one goes another way.
const APART: f64 = 2.0;

/// Counting that takes so many times as long as the fastest has a core that another thread uses, too.
const SHARED: f64 = 1.2;

/// A median and the quartiles around it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The lower quartile.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// The upper quartile.
    pub high: f64,
}

impl Spread {
    /// Of these figures, between neighbours in proportion; `None` of none.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| quantile(&sorted, part);
        Some(Spread { low: at(0.25)?, median: at(0.5)?, high: at(0.75)? })
    }
}

/// The figure below which this part of the sorted ones lies.
fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let place = sorted.len().checked_sub(1)? as f64 * part;
    let (below, above) = (sorted.get(place.floor() as usize)?, sorted.get(place.ceil() as usize)?);
    Some(below + (above - below) * place.fract())
}

/// Microseconds a message: of every measurement, over every transport, in every round.
#[derive(Debug)]
pub struct Samples {
    /// Names of the transports; the first is compared with the others.
    pub columns: Vec<String>,
    /// What was measured, in the order of the plan.
    pub rows: Vec<Measurement>,
    /// Rounds that have begun.
    pub rounds: usize,
    /// By row, column, round; `None` where a job failed.
    us: Vec<Vec<Vec<Option<f64>>>>,
    /// By round, at its begin and its end.
    pub ends: Vec<Option<[Processors; 2]>>,
}

/// The ranks' processors at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Processors {
    /// The way of a cache line from one to another, in us.
    pub line_us: f64,
    /// Counting on all of them at the same time, in us.
    pub core_us: f64,
}

/// What a virtual machine's processors are to each other changes: the host moves them, and runs other threads on their cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Cores of their own, near each other.
    Near,
    /// Cores of their own, far from each other.
    Far,
    /// Another thread uses a core of theirs: one of another machine, or two ranks have one core.
    Shared,
}

impl State {
    /// All of them.
    const ALL: [State; 3] = [State::Near, State::Far, State::Shared];

    /// In words, for tables.
    pub fn name(self) -> &'static str {
        match self {
            State::Near => "near",
            State::Far => "far",
            State::Shared => "shared",
        }
    }
}

/// Rounds in which the ranks' processors were in the same state from begin to end.
#[derive(Debug, PartialEq)]
pub struct Alike {
    /// Which one.
    pub state: State,
    /// The median way of a cache line in them, in us.
    pub line_us: f64,
    /// By number.
    pub rounds: Vec<usize>,
}

impl Samples {
    /// Nothing measured yet.
    pub fn new(columns: Vec<String>, rows: Vec<Measurement>) -> Self {
        let us = vec![vec![Vec::new(); columns.len()]; rows.len()];
        Samples { columns, rows, rounds: 0, us, ends: Vec::new() }
    }

    /// A round in which nothing has been measured yet.
    pub fn begin_round(&mut self) {
        self.rounds += 1;
        self.ends.push(None);
        self.us.iter_mut().flatten().for_each(|cell| cell.push(None));
    }

    /// A figure of the last round.
    pub fn set(&mut self, row: usize, column: usize, us: f64) {
        let cell = self.us.get_mut(row).and_then(|cells| cells.get_mut(column));
        if let Some(last) = cell.and_then(|rounds| rounds.last_mut()) {
            *last = Some(us);
        }
    }

    /// The processors at begin and end of the last round.
    pub fn set_ends(&mut self, ends: [Processors; 2]) {
        if let Some(last) = self.ends.last_mut() {
            *last = Some(ends);
        }
    }

    /// The way of a cache line over all rounds.
    pub fn line(&self) -> Option<Spread> {
        Spread::of(self.known_ends().map(|end| end.line_us))
    }

    fn known_ends(&self) -> impl Iterator<Item = &Processors> {
        self.ends.iter().flatten().flatten()
    }

    /// Rounds by the state of the processors, those of one state together. Rounds in which it changed are in none.
    pub fn states(&self) -> Vec<Alike> {
        State::ALL.into_iter().filter_map(|state| self.alike(state)).collect()
    }

    fn alike(&self, state: State) -> Option<Alike> {
        let is_it = |ends: &[Processors; 2]| ends.iter().all(|end| self.state_of(end) == Some(state));
        let known = self.ends.iter().enumerate().filter_map(|(round, ends)| Some((round, (*ends)?)));
        let (rounds, ends): (Vec<usize>, Vec<[Processors; 2]>) =
            known.filter(|(_, ends)| is_it(ends)).unzip();
        let lines = ends.into_iter().flatten().map(|end| end.line_us);
        Some(Alike { state, line_us: Spread::of(lines)?.median, rounds })
    }

    /// Beside the best of all rounds.
    fn state_of(&self, end: &Processors) -> Option<State> {
        let least = |of: fn(&Processors) -> f64| self.known_ends().map(of).min_by(f64::total_cmp);
        let (line, core) = (least(|end| end.line_us)?, least(|end| end.core_us)?);
        Some(match end {
            _ if end.core_us > core * SHARED => State::Shared,
            _ if end.line_us < line * APART => State::Near,
            _ => State::Far,
        })
    }

    /// The ratio in these rounds only.
    pub fn ratio_in(&self, rounds: &[usize], row: usize, column: usize) -> Option<Spread> {
        let at = |column, round: usize| self.cell(row, column).get(round).copied().flatten();
        Spread::of(rounds.iter().filter_map(|round| Some(at(0, *round)? / at(column, *round)?)))
    }

    /// One figure a round.
    pub fn cell(&self, row: usize, column: usize) -> &[Option<f64>] {
        self.us.get(row).and_then(|cells| cells.get(column)).map_or(&[], Vec::as_slice)
    }

    /// Time of a message over this transport.
    pub fn time(&self, row: usize, column: usize) -> Option<Spread> {
        Spread::of(self.cell(row, column).iter().flatten().copied())
    }

    /// How many times as long the first transport takes as this one, round by round.
    pub fn ratios(&self, row: usize, column: usize) -> Vec<f64> {
        let pairs = self.cell(row, 0).iter().zip(self.cell(row, column));
        pairs.filter_map(|(first, other)| Some((*first)? / (*other)?)).collect()
    }

    /// The same as median and quartiles.
    pub fn ratio(&self, row: usize, column: usize) -> Option<Spread> {
        Spread::of(self.ratios(row, column))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// One round a figure; columns in turn.
    pub fn samples(columns: &[&str], rows: &[(u64, &[&[f64]])]) -> Samples {
        let names = columns.iter().map(|&name| name.to_owned()).collect();
        let what = rows.iter().map(|(bytes, _)| Measurement::half_round_trip(*bytes)).collect();
        let mut samples = Samples::new(names, what);
        for round in 0..rows[0].1[0].len() {
            samples.begin_round();
            for (row, (_, columns)) in rows.iter().enumerate() {
                for (column, figures) in columns.iter().enumerate() {
                    samples.set(row, column, figures[round]);
                }
            }
        }
        samples
    }

    #[test]
    fn quartiles_lie_between_neighbours() {
        let of = |figures: &[f64]| Spread::of(figures.iter().copied());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[3.0]), Some(Spread { low: 3.0, median: 3.0, high: 3.0 }));
        assert_eq!(of(&[4.0, 1.0, 3.0, 2.0]), Some(Spread { low: 1.75, median: 2.5, high: 3.25 }));
        assert_eq!(of(&[5.0, 1.0, 4.0, 2.0, 3.0]), Some(Spread { low: 2.0, median: 3.0, high: 4.0 }));
    }

    #[test]
    fn ratios_are_taken_within_a_round_and_not_between_medians() {
        let all = samples(&["ours", "theirs"], &[(8, &[&[1.0, 20.0, 3.0], &[2.0, 10.0, 1.0]])]);
        assert_eq!(all.ratios(0, 1), [0.5, 2.0, 3.0]);
        assert_eq!(all.ratio(0, 1).unwrap().median, 2.0, "of medians it were 1.5");
        assert_eq!(all.time(0, 0).unwrap().median, 3.0);
    }

    #[test]
    fn rounds_are_told_apart_by_the_state_of_the_processors() {
        let mut all =
            Samples::new(vec!["ours".to_owned(), "theirs".to_owned()], vec![Measurement::half_round_trip(8)]);
        for (ends, ours) in [
            ([(0.03, 0.31), (0.03, 0.32)], 2.0),
            ([(0.03, 0.31), (0.17, 0.31)], 9.0),
            ([(0.16, 0.31), (0.17, 0.31)], 1.2),
            ([(0.03, 0.61), (0.17, 0.45)], 1.4),
            ([(0.03, 0.61), (0.03, 0.31)], 9.0),
        ] {
            all.begin_round();
            all.set_ends(ends.map(|(line_us, core_us)| Processors { line_us, core_us }));
            all.set(0, 0, ours);
            all.set(0, 1, 1.0);
        }
        all.begin_round();
        let states = all.states();
        let found: Vec<_> = states.iter().map(|alike| (alike.state, alike.rounds.as_slice())).collect();
        let wanted = [(State::Near, [0].as_slice()), (State::Far, &[2]), (State::Shared, &[3])];
        assert_eq!(found, wanted, "in the others it changed, or is not known");
        assert!((states[1].line_us - 0.165).abs() < 1e-9);
        assert_eq!(all.ratio_in(&states[1].rounds, 0, 1).unwrap().median, 1.2);
    }

    #[test]
    fn a_round_without_one_of_the_two_has_no_ratio() {
        let mut all = samples(&["ours", "theirs"], &[(8, &[&[1.0], &[2.0]])]);
        all.begin_round();
        all.set(0, 0, 5.0);
        assert_eq!(all.ratios(0, 1), [0.5]);
        assert_eq!(all.cell(0, 1), [Some(2.0), None]);
        assert_eq!(all.rounds, 2);
    }
}
