//! The connection managers there are, and which of them serves a port and a peer.
//!
//! A [`Component`] is asked once per port whether it can serve it; what it answers with is a [`Module`]: a priority, at most
//! 255 bytes for the modex, and the work itself, done on the helper thread. For a peer, the common component with the highest
//! priority *of either side* wins, so both sides choose alike without a word.
//!
//! ```text
//!   Config -- include/exclude --> components -- query(port) --> modules --> adverts --> modex
//!                                 theirs, from the modex ------------------> choose --> Choice
//! ```
//! Built in are `ibcm`, `rdmacm` and `xrc`. Another component is a type that implements `driver::module::Backend` and a line in [`BUILT_IN`].

use crate::driver::ibcm::IbcmBackend;
use crate::driver::module::Manager;
use crate::driver::rdmacm::RdmaCmBackend;
use crate::driver::xrc::XrcBackend;
use crate::manager::{Advert, Component, Module, Query};
use crate::{Choice, Config, Error, SelectError};

/// The most bytes a component may publish (one length byte in the modex).
pub const MAX_BLOB: usize = 255;

/// Every component there is.
pub const BUILT_IN: &[&dyn Component] =
    &[&Manager::<IbcmBackend>::NEW, &Manager::<RdmaCmBackend>::NEW, &Manager::<XrcBackend>::NEW];

/// The components that include and exclude leave. An empty include list means all.
///
/// # Errors
/// A name that none of `all` has: a typing error must not silently select something else.
pub fn filter(all: &[&'static dyn Component], config: &Config) -> Result<Vec<&'static dyn Component>, Error> {
    let known = |name: &str| all.iter().any(|c| c.name() == name);
    if let Some(name) = config.include.iter().chain(&config.exclude).find(|name| !known(name)) {
        return Err(Error::UnknownComponent {
            name: name.clone(),
            known: names(all.iter().map(|c| c.name())),
        });
    }
    let listed = |list: &[String], c: &dyn Component| list.iter().any(|name| name == c.name());
    let wanted = |c: &dyn Component| config.include.is_empty() || listed(&config.include, c);
    Ok(all.iter().copied().filter(|&c| wanted(c) && !listed(&config.exclude, c)).collect())
}

/// Asks the components that the configuration leaves about a port.
///
/// # Errors
/// An unknown name, or no component can serve the port.
pub fn open_modules(
    all: &[&'static dyn Component],
    query: &Query<'_>,
) -> Result<Vec<Box<dyn Module>>, Error> {
    let (mut modules, mut reasons) = (Vec::new(), Vec::new());
    for component in filter(all, query.config)? {
        match fits(component, query).and_then(|()| component.query(query)) {
            Ok(module) if module.advert().blob.len() <= MAX_BLOB => modules.push(module),
            Ok(_) => reasons.push(format!("{}: it publishes too much", component.name())),
            Err(error) => reasons.push(format!("{}: {error}", component.name())),
        }
    }
    if modules.is_empty() {
        let port = format!("{} port {}", query.plan.port.ctx.name(), query.plan.port.num);
        let reasons = if reasons.is_empty() { "all are excluded".to_owned() } else { reasons.join("; ") };
        return Err(Error::NoComponent { port, reasons });
    }
    reasons.iter().for_each(|reason| log::debug!("connection component passed over: {reason}"));
    Ok(modules)
}

/// X queues are connected by xrc, and xrc connects nothing else.
fn fits(component: &dyn Component, query: &Query<'_>) -> Result<(), Error> {
    match (component.serves_xrc(), query.plan.xrc.is_some()) {
        (true, false) => Err(Error::Queues("it connects X queues only, and receive_queues has none")),
        (false, true) => Err(Error::Queues("it does not connect X queues, xrc does")),
        _ => Ok(()),
    }
}

/// The common component with the highest priority of either side; of equals the one whose name comes first. Both sides
/// get the same answer.
///
/// # Errors
/// They have none in common.
pub fn choose(ours: &[Advert], theirs: &[Advert]) -> Result<Choice, SelectError> {
    let pairs =
        ours.iter().flat_map(|our| theirs.iter().filter(|t| t.name == our.name).map(move |t| (our, t)));
    let best = pairs.max_by(|(a, x), (b, y)| {
        let rank = a.priority.max(x.priority).cmp(&b.priority.max(y.priority));
        rank.then_with(|| b.name.cmp(&a.name))
    });
    match best {
        Some((our, their)) => Ok(Choice { component: our.name.clone(), peer_blob: their.blob.clone() }),
        None => Err(SelectError::NothingInCommon {
            ours: names(ours.iter().map(|a| &*a.name)),
            theirs: names(theirs.iter().map(|a| &*a.name)),
        }),
    }
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Named(&'static str);

    impl Component for Named {
        fn name(&self) -> &'static str {
            self.0
        }

        fn serves_xrc(&self) -> bool {
            false
        }

        fn query(&self, _: &Query<'_>) -> Result<Box<dyn Module>, Error> {
            Err(Error::Plan("a name only"))
        }
    }

    const ALL: &[&dyn Component] = &[&Named("rdmacm"), &Named("ibcm"), &Named("xrc")];

    fn config(include: &[&str], exclude: &[&str]) -> Config {
        let own = |names: &[&str]| names.iter().map(|&n| n.to_owned()).collect();
        Config { include: own(include), exclude: own(exclude), ..Config::default() }
    }

    fn left(include: &[&str], exclude: &[&str]) -> Vec<&'static str> {
        filter(ALL, &config(include, exclude)).unwrap().iter().map(|c| c.name()).collect()
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
}
