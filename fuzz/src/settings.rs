//! What the environment asks of softib: `NAME=value` lines, as `env` prints them.

use softib::faults::{Plan, When};
use softib::port::Settings;

/// Ports of all devices together, at most.
const PORTS: usize = 8;

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let value = |name: &str| {
        let mut values = text.lines().filter_map(|line| line.split_once('='));
        values.find(|(its, value)| *its == name && !value.is_empty()).map(|(_, value)| value.to_owned())
    };
    match Settings::from_variables(value) {
        Ok(settings) => possible(&settings),
        Err(error) => assert!(error.to_string().starts_with("SOFTIB_"), "the variable is named: {error}"),
    }
    if let Some(text) = value("SOFTIB_FAULTS") {
        plan(&text);
    }
}

fn possible(settings: &Settings) {
    assert!(settings.devices >= 1 && settings.ports >= 1 && settings.devices * settings.ports <= PORTS);
    assert!((1..=16).contains(&settings.pkeys.len()) && !settings.link_layers.is_empty());
    assert!(settings.gids.len() <= PORTS && settings.gids.iter().all(|of_port| of_port.len() <= 6));
    assert!(settings.node.as_ref().is_none_or(|name| (1..=60).contains(&name.len())));
}

fn plan(text: &str) {
    match text.parse::<Plan>() {
        Ok(plan) => {
            let chances = [plan.drop, plan.duplicate, plan.reorder];
            assert!(chances.iter().all(|parts| *parts <= 1_000_000), "no chance is above all");
            let counted = [plan.rnr.map(|(when, _)| when), plan.error, plan.cut];
            let from_one = |when: &When| matches!(when, When::At(1..) | When::Every(1..) | When::About(1..));
            assert!(counted.iter().flatten().all(from_one), "counts are from 1");
            assert!(plan.fail.iter().all(|fault| fault.number >= 1 && fault.errno > 0));
        }
        Err(error) => assert!((1..=text.chars().count() + 1).contains(&error.at), "the place is in the text"),
    }
}
