//! Which connection managers the configuration leaves, and which of them two sides use.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

use cpc::manager::Component;
use cpc::registry::{choose, filter};
use cpc::{Advert, Config, Error};

const fn named(name: &'static str) -> Component {
    Component { name, serves_xrc: false, query: |_| Err(Error::Plan("a name only")) }
}

const ALL: &[Component] = &[named("rdmacm"), named("ibcm"), named("xrc")];

fn config(include: &[&str], exclude: &[&str]) -> Config {
    let own = |names: &[&str]| names.iter().map(|&n| n.to_owned()).collect();
    Config { include: own(include), exclude: own(exclude), ..Config::default() }
}

fn left(include: &[&str], exclude: &[&str]) -> Vec<&'static str> {
    filter(ALL, &config(include, exclude)).unwrap().iter().map(|c| c.name).collect()
}

#[test]
fn include_and_exclude_leave_what_they_say() {
    assert_eq!(left(&[], &[]), ["rdmacm", "ibcm", "xrc"]);
    assert_eq!(left(&["xrc", "ibcm"], &[]), ["ibcm", "xrc"]);
    assert_eq!(left(&[], &["rdmacm"]), ["ibcm", "xrc"]);
    assert_eq!(left(&["ibcm"], &["ibcm"]), [""; 0]);
}

#[test]
fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
    for (include, exclude) in [(vec!["ibmc"], vec![]), (vec![], vec!["ibmc"])] {
        let Err(error) = filter(ALL, &config(&include, &exclude)) else { panic!("accepted") };
        assert_eq!(
            error.to_string(),
            "there is no connection component \"ibmc\"; known are: rdmacm, ibcm, xrc"
        );
    }
}

fn adverts(list: &[(&str, u8)]) -> Vec<Advert> {
    list.iter()
        .map(|&(name, priority)| Advert { name: name.to_owned(), priority, blob: vec![priority] })
        .collect()
}

#[test]
fn the_highest_priority_of_either_side_wins_and_both_sides_agree() {
    let cases = [
        (vec![("ibcm", 40), ("rdmacm", 30)], vec![("rdmacm", 30), ("ibcm", 40)], "ibcm"),
        (vec![("ibcm", 40), ("rdmacm", 30)], vec![("ibcm", 40), ("rdmacm", 90)], "rdmacm"),
        (vec![("ibcm", 40), ("xrc", 99)], vec![("ibcm", 1), ("rdmacm", 100)], "ibcm"),
        (vec![("b", 50), ("a", 10)], vec![("a", 50), ("b", 20)], "a"),
    ];
    for (x, y, winner) in cases {
        let (x, y) = (adverts(&x), adverts(&y));
        assert_eq!(choose(&x, &y).unwrap().component, winner);
        assert_eq!(choose(&y, &x).unwrap().component, winner);
    }
}

#[test]
fn the_choice_carries_the_peers_blob() {
    let choice = choose(&adverts(&[("ibcm", 1)]), &adverts(&[("ibcm", 2)])).unwrap();
    assert_eq!(choice.peer_blob, [2]);
}

#[test]
fn nothing_in_common_names_both_sides() {
    let error = choose(&adverts(&[("ibcm", 1)]), &adverts(&[])).unwrap_err();
    assert!(error.to_string().contains("here ibcm, there none"), "{error}");
}

#[test]
fn a_component_at_an_alternate_port_is_the_second_choice_only_and_the_same_one_if_that_can_be() {
    let both = adverts(&[("ibcm", 40), ("rdmacm", 0), ("ibcm_alternate", 0), ("rdmacm_alternate", 7)]);
    let fewer = adverts(&[("rdmacm", 90), ("ibcm", 1), ("ibcm_alternate", 3)]);
    let names = |ours: &[Advert], theirs: &[Advert]| {
        let choice = choose(ours, theirs).unwrap();
        (choice.component, choice.alternate.map(|other| (other.component, other.peer_blob)))
    };
    let ibcm = |blob| Some(("ibcm_alternate".to_owned(), vec![blob]));
    assert_eq!(names(&both, &both), ("ibcm".to_owned(), ibcm(0)));
    assert_eq!(names(&both, &fewer), ("rdmacm".to_owned(), ibcm(3)));
    assert_eq!(names(&fewer, &both), ("rdmacm".to_owned(), ibcm(0)));
    assert_eq!(names(&both, &adverts(&[("ibcm", 0)])), ("ibcm".to_owned(), None));
    assert!(choose(&both, &adverts(&[("ibcm_alternate", 9)])).is_err());
}
