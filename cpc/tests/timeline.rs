//! When the steps of a connection happened.

use std::time::{Duration, Instant};

use cpc::{Step, Timeline};

#[test]
fn the_first_time_of_a_step_counts_and_rows_are_in_the_order_of_time() {
    let begin = Instant::now();
    let us = |n| begin + Duration::from_micros(n);
    let mut timeline = Timeline::default();
    timeline.mark(Step::ReqSent, us(20));
    timeline.mark(Step::ReqSent, us(500));
    timeline.mark(Step::Created, us(5));
    assert_eq!(timeline.to_string(), "created 0, req_sent 15 us");
}

#[test]
fn a_step_that_is_the_only_one_is_known_by_its_name() {
    let begin = Instant::now();
    let mut timeline = Timeline::default();
    assert!(timeline.rows().is_empty());
    timeline.mark(Step::Created, begin);
    timeline.mark(Step::Created, begin + Duration::from_secs(1));
    assert_eq!((timeline.at(Step::Created), timeline.at(Step::Wanted)), (Some(begin), None));
    assert_eq!(timeline.rows(), [(Step::Created, Duration::ZERO)]);
    timeline.mark(Step::Wanted, begin);
    assert_eq!((timeline.at(Step::Created), timeline.at(Step::Wanted)), (Some(begin), Some(begin)));
}

#[test]
fn merging_keeps_what_is_there() {
    let begin = Instant::now();
    let (mut ours, mut helpers) = (Timeline::default(), Timeline::default());
    ours.mark(Step::Created, begin);
    helpers.mark(Step::Created, begin + Duration::from_secs(1));
    helpers.mark(Step::QpsUp, begin + Duration::from_micros(7));
    ours.merge(&helpers);
    assert_eq!(ours.rows(), [(Step::Created, Duration::ZERO), (Step::QpsUp, Duration::from_micros(7))]);
}

#[test]
fn every_step_has_a_name_of_its_own() {
    let names: std::collections::HashSet<&str> = Step::ALL.iter().map(|s| s.name()).collect();
    assert_eq!(names.len(), Step::ALL.len());
}
