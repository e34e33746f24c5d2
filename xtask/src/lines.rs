//! An order of functions by which the lines of code that a message executes lie well in the first level instruction cache.
//!
//! ```text
//!   64 sets of eight lines; the set is bits 6 to 11 of the address
//!   set 12:  hand_up_found + 5 | post_longer + 3 | ... | mca_pml_ob1_send + 2 | ...       nine lines in turn: none of them stays
//! ```
//! A message of 1000 bytes executes some 200 lines of the plugin and 140 of Open MPI. Where functions lie as it comes, a set has ten of them here and
//! there, and the message takes up to a third longer (docs/results.md, 2026-11-27, seventh part). What callgrind counts by instruction tells which
//! lines these are; simulated annealing finds an order in which few sets have too many. That of Open MPI's functions is what it is on this machine;
//! so that an order is good elsewhere, too, they count also as if they lay in four other ways.

use std::collections::BTreeMap;

use crate::callgrind::Names;

/// Bytes of a line, sets, and bytes after which they come again.
const LINE: u64 = 64;
const SETS: usize = 64;
const PAGE: u64 = LINE * SETS as u64;

/// So many lines of a set do no harm: one or two are for what is executed now and then.
const HARMLESS: f64 = 6.5;

/// Ways in which the other objects may lie; the first, which is theirs here, counts as much as all others.
const WAYS: usize = 5;

/// Tries, and steps of each.
const TRIES: u64 = 3;
const STEPS: u32 = 5000;

/// Functions of the plugin: address and bytes, by their symbols.
pub type Symbols = BTreeMap<String, (u64, u64)>;

/// What `nm -S` says.
pub fn symbols(table: &str) -> Symbols {
    let row = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        [address, size, "t" | "T", name] => {
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some((name.to_owned(), (number(address)?, number(size)?)))
        }
        _ => None,
    };
    table.lines().filter_map(row).collect()
}

/// Lines of a function.
fn lines((address, size): (u64, u64)) -> u64 {
    (address % LINE + size).div_ceil(LINE)
}

/// What the messages of one kind execute.
#[derive(Debug, Default)]
pub struct Profile {
    /// By function of the plugin: its lines, and how much each counts.
    ours: BTreeMap<String, BTreeMap<u64, f64>>,
    /// What lines of others count, by object and set.
    others: BTreeMap<String, [f64; SETS]>,
    /// How much this kind counts beside others.
    weight: f64,
}

impl Profile {
    /// What callgrind has counted by instruction (`--dump-instr=yes`). `None`: no messages.
    pub fn of(counts: &Counts, symbols: &Symbols, weight: f64) -> Option<Profile> {
        let messages = Some(counts.messages as f64).filter(|messages| *messages > 0.0)?;
        let begin = counts.begin(symbols)?;
        let mut profile = Profile { weight, ..Profile::default() };
        let mut others = BTreeMap::<_, BTreeMap<u64, f64>>::new();
        for ((object, function), instructions) in &counts.executed {
            for (address, count) in instructions {
                // What one in three messages executes counts as much as what each does.
                let counts_for = (3.0 * *count as f64 / messages).min(1.0);
                let (lines, line) = match symbols.get(function) {
                    Some((first, _)) => {
                        let line = (address - begin) / LINE - first / LINE;
                        (profile.ours.entry(function.clone()).or_default(), line)
                    }
                    None => (others.entry(object.clone()).or_default(), address / LINE),
                };
                let at = lines.entry(line).or_default();
                *at = counts_for.max(*at);
            }
        }
        for (object, lines) in others {
            let sets = profile.others.entry(object).or_insert([0.0; SETS]);
            lines.into_iter().for_each(|(line, counts_for)| sets[line as usize % SETS] += counts_for);
        }
        Some(profile)
    }

    /// What the lines of others count in each set, if they lie in this way.
    fn others(&self, way: usize) -> [f64; SETS] {
        let mut all = [0.0; SETS];
        for (number, sets) in self.others.values().enumerate() {
            let by = way * (17 + 10 * number);
            sets.iter().enumerate().for_each(|(set, counts)| all[(set + by) % SETS] += counts);
        }
        all
    }

    /// The functions of which some lines count for this much.
    pub fn functions(&self) -> impl Iterator<Item = &String> {
        let is_hot = |lines: &BTreeMap<u64, f64>| lines.values().any(|counts| *counts > 0.3);
        self.ours.iter().filter(move |(_, lines)| is_hot(lines)).map(|(name, _)| name)
    }
}

/// How often instructions were executed, as callgrind writes it down.
#[derive(Debug, Default)]
pub struct Counts {
    /// By object and function: addresses.
    executed: BTreeMap<(String, String), BTreeMap<u64, u64>>,
    /// Calls of the function of MPI that was called most.
    messages: u64,
}

impl Counts {
    /// Those of a profile.
    pub fn of(profile: &str) -> Counts {
        let (mut counts, mut objects, mut functions) =
            (Counts::default(), Names::default(), Names::default());
        let (mut object, mut function, mut callee) = (String::new(), String::new(), String::new());
        let (mut address, mut is_call, mut calls) = (0, false, BTreeMap::<String, u64>::new());
        for line in profile.lines() {
            if let Some((key, value)) = line.split_once('=') {
                match key {
                    "ob" => object = objects.name(value),
                    "cob" => _ = objects.name(value),
                    "fn" => function = functions.name(value),
                    "cfn" => callee = functions.name(value),
                    "calls" => {
                        let number = value.split(' ').next().and_then(|number| number.parse().ok());
                        *calls.entry(callee.clone()).or_default() += number.unwrap_or(0);
                        is_call = true;
                    }
                    _ => {}
                }
                continue;
            }
            let mut columns = line.split(' ');
            let Some(position) = columns.next().and_then(|text| moved(address, text)) else { continue };
            address = position;
            let count = columns.nth(1).and_then(|count| count.parse::<u64>().ok());
            if let (false, Some(count)) = (std::mem::take(&mut is_call), count) {
                let of = counts.executed.entry((object.clone(), function.clone())).or_default();
                *of.entry(address).or_default() += count;
            }
        }
        let of_mpi = calls
            .iter()
            .filter(|(name, _)| ["PMPI_Send", "PMPI_Isend", "PMPI_Irecv"].contains(&name.as_str()));
        counts.messages = of_mpi.map(|(_, calls)| *calls).max().unwrap_or(0);
        counts
    }

    /// Where the plugin was mapped: what most of its functions say, whose first instruction is executed.
    fn begin(&self, symbols: &Symbols) -> Option<u64> {
        let mut said = BTreeMap::<u64, u32>::new();
        for ((_, function), instructions) in &self.executed {
            let first = instructions.keys().next().zip(symbols.get(function));
            if let Some(begin) = first.and_then(|(at, (address, _))| at.checked_sub(*address)) {
                *said.entry(begin).or_default() += u32::from(begin.is_multiple_of(PAGE));
            }
        }
        said.into_iter().max_by_key(|(_, times)| *times).map(|(begin, _)| begin)
    }
}

/// An address as it is written: itself, or how far it is from the one before.
fn moved(before: u64, text: &str) -> Option<u64> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    match text.split_at_checked(1)? {
        ("+", by) => before.checked_add(number(by)?),
        ("-", by) => before.checked_sub(number(by)?),
        ("*", "") => Some(before),
        _ => number(text),
    }
}

/// The names under which functions are placed, each with the functions that are called so.
pub type Units = BTreeMap<String, Vec<String>>;

/// These units in an order by which few sets have too many lines; the first one begins at a page.
pub fn arrange(units: &Units, symbols: &Symbols, profiles: &[Profile]) -> Vec<String> {
    let board = Board::new(units, symbols, profiles);
    let tried = (1..=TRIES).map(|seed| board.anneal(seed));
    let best = tried.min_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or_default();
    let names: Vec<&String> = units.keys().collect();
    best.1.into_iter().map(|unit| names[unit].clone()).collect()
}

/// What an order is judged by.
struct Board {
    /// Lines of each unit.
    sizes: Vec<u64>,
    kinds: Vec<Kind>,
}

/// A kind of message: its weight, the lines of each unit that count, and what others count in each set and way.
type Kind = (f64, Vec<Vec<(u64, f64)>>, [[f64; SETS]; WAYS]);

impl Board {
    fn new(units: &Units, symbols: &Symbols, profiles: &[Profile]) -> Board {
        let size = |function: &String| symbols.get(function).map_or(0, |at| lines(*at));
        let placed = |functions: &Vec<String>, profile: &Profile| {
            let (mut first, mut all) = (0, Vec::new());
            for function in functions {
                let of = profile.ours.get(function).into_iter().flatten();
                all.extend(of.map(|(line, counts)| (first + line, *counts)));
                first += size(function);
            }
            all
        };
        let kind = |profile: &Profile| {
            let ours = units.values().map(|functions| placed(functions, profile)).collect();
            (profile.weight, ours, std::array::from_fn(|way| profile.others(way)))
        };
        let sizes = units.values().map(|functions| functions.iter().map(size).sum()).collect();
        Board { sizes, kinds: profiles.iter().map(kind).collect() }
    }

    /// How much too much there is in sets.
    fn cost(&self, order: &[usize]) -> f64 {
        let mut first = vec![0; order.len()];
        let mut at = 0;
        for unit in order {
            first[*unit] = at;
            at += self.sizes[*unit];
        }
        let of_kind = |(weight, ours, others): &Kind| {
            let mut sets = [0.0; SETS];
            for (lines, first) in ours.iter().zip(&first) {
                lines.iter().for_each(|(line, counts)| sets[(first + line) as usize % SETS] += counts);
            }
            let too_much = |(one, other): (&f64, &f64)| (one + other - HARMLESS).max(0.0).powi(2);
            let of_way = |way: usize| sets.iter().zip(&others[way]).map(too_much).sum::<f64>();
            weight * (0..WAYS).map(|way| if way == 0 { 4.0 * of_way(way) } else { of_way(way) }).sum::<f64>()
        };
        self.kinds.iter().map(of_kind).sum()
    }

    /// Changes an order at random, to a worse one, too, at first.
    fn anneal(&self, seed: u64) -> (f64, Vec<usize>) {
        let mut random = Random(seed);
        let mut order: Vec<usize> = (0..self.sizes.len()).collect();
        let mut cost = self.cost(&order);
        let mut warmth = cost * 0.03;
        for _ in 0..if order.is_empty() { 0 } else { STEPS } {
            let (mut other, from, to) = (order.clone(), random.below(order.len()), random.below(order.len()));
            let unit = other.remove(from);
            other.insert(to, unit);
            let now = self.cost(&other);
            if now < cost || random.share() < (-(now - cost) / warmth.max(1e-9)).exp() {
                (order, cost) = (other, now);
            }
            warmth *= 0.9985;
        }
        (cost, order)
    }
}

/// The same numbers each time (Steele, Lea, Flood: SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Between 0 and 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "\
positions: instr line
events: Ir
ob=(1) /x/plugin.so
fn=(1) one
0x7000100 0 10
+4 0 10
cfn=(2) two
calls=10 0x7000200
* 0 70
+64 0 2

fn=(2)
0x7000200 0 10

ob=(2) libmpi.so
fn=(3) PMPI_Send
0x8000040 3 10
cob=(1)
cfn=(1)
calls=10 0x7000100
+8 3 100
cfn=(3)
calls=10 0x8000040
+4 3 1
";

    fn table() -> Symbols {
        symbols(
            "0000000000000100 0000000000000080 t one\n0000000000000200 0000000000000010 T two\n0 b data\n",
        )
    }

    #[test]
    fn lines_are_counted_from_the_begin_of_their_function_and_those_of_others_by_set() {
        assert_eq!(
            table().into_iter().collect::<Vec<_>>(),
            [("one".to_owned(), (0x100, 0x80)), ("two".to_owned(), (0x200, 0x10))]
        );
        let counts = Counts::of(PROFILE);
        assert_eq!((counts.messages, counts.begin(&table())), (10, Some(0x7000000)));
        let profile = Profile::of(&counts, &table(), 1.0).expect("messages");
        let lines =
            |name: &str| profile.ours[name].iter().map(|(line, counts)| (*line, *counts)).collect::<Vec<_>>();
        assert_eq!((lines("one"), lines("two")), (vec![(0, 1.0), (1, 0.6)], vec![(0, 1.0)]));
        assert_eq!((profile.others["libmpi.so"][1], profile.others["libmpi.so"][0]), (1.0, 0.0));
        assert_eq!(profile.functions().collect::<Vec<_>>(), ["one", "two"]);
    }

    /// Ten functions of a page each, of which one line is executed, and as many lines between them as there are sets.
    #[test]
    fn an_order_is_found_in_which_no_set_has_too_many() {
        let functions: Vec<String> = (0..10).map(|number| format!("hot{number}")).collect();
        let fill: Vec<String> = (0..30).map(|number| format!("fill{number:02}")).collect();
        let mut symbols = Symbols::new();
        functions.iter().for_each(|name| _ = symbols.insert(name.clone(), (0, PAGE)));
        fill.iter()
            .enumerate()
            .for_each(|(number, name)| _ = symbols.insert(name.clone(), (0, LINE * (1 + number as u64))));
        let ours = functions.iter().map(|name| (name.clone(), [(0, 1.0)].into())).collect();
        let profile = Profile { ours, weight: 1.0, ..Profile::default() };
        let units: Units = symbols.keys().map(|name| (name.clone(), vec![name.clone()])).collect();
        let board = Board::new(&units, &symbols, std::slice::from_ref(&profile));
        let all = |order: &[String]| {
            order
                .iter()
                .map(|name| units.keys().position(|unit| unit == name).expect("a unit"))
                .collect::<Vec<_>>()
        };
        let bad: Vec<String> = functions.iter().chain(&fill).cloned().collect();
        assert!(board.cost(&all(&bad)) > 0.0);
        let good = arrange(&units, &symbols, &[profile]);
        assert_eq!((good.len(), board.cost(&all(&good))), (units.len(), 0.0));
    }
}
