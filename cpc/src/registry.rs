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
use crate::driver::module::component;
use crate::driver::rdmacm::RdmaCmBackend;
use crate::driver::xrc::XrcBackend;
use crate::manager::{Advert, Component, Module, Query};
use crate::plan::ALTERNATE;
use crate::{Choice, Config, Error, SelectError};

/// The most bytes a component may publish (one length byte in the modex).
pub const MAX_BLOB: usize = 255;

/// Every component there is.
pub const BUILT_IN: &[Component] =
    &[component::<IbcmBackend>(), component::<RdmaCmBackend>(), component::<XrcBackend>()];

/// The components that include and exclude leave. An empty include list means all.
///
/// # Errors
/// A name that none of `all` has: a typing error must not silently select something else.
pub fn filter<'a>(all: &'a [Component], config: &Config) -> Result<Vec<&'a Component>, Error> {
    let known = |name: &str| all.iter().any(|c| c.name == name);
    if let Some(name) = config.include.iter().chain(&config.exclude).find(|name| !known(name)) {
        return Err(Error::UnknownComponent { name: name.clone(), known: names(all.iter().map(|c| c.name)) });
    }
    let listed = |list: &[String], c: &Component| list.iter().any(|name| name == c.name);
    let wanted = |c: &Component| config.include.is_empty() || listed(&config.include, c);
    Ok(all.iter().filter(|c| wanted(c) && !listed(&config.exclude, c)).collect())
}

/// Asks the components that the configuration leaves about a port.
///
/// # Errors
/// An unknown name, or no component can serve the port.
pub fn open_modules(all: &[Component], query: &Query<'_>) -> Result<Vec<Box<dyn Module>>, Error> {
    let (mut modules, mut reasons) = (Vec::new(), Vec::new());
    for component in filter(all, query.config)? {
        match fits(component, query).and_then(|()| (component.query)(query)) {
            Ok(module) if module.advert().blob.len() <= MAX_BLOB => modules.push(module),
            Ok(_) => reasons.push(format!("{}: it publishes too much", component.name)),
            Err(error) => reasons.push(format!("{}: {error}", component.name)),
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
fn fits(component: &Component, query: &Query<'_>) -> Result<(), Error> {
    match (component.serves_xrc, query.plan.xrc.is_some()) {
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
    let of_port = ours.iter().filter(|our| !our.name.ends_with(ALTERNATE));
    let pairs = of_port.flat_map(|our| theirs.iter().filter(|t| t.name == our.name).map(move |t| (our, t)));
    let best = pairs.max_by(|(a, x), (b, y)| {
        let rank = a.priority.max(x.priority).cmp(&b.priority.max(y.priority));
        rank.then_with(|| b.name.cmp(&a.name))
    });
    match best {
        Some((our, their)) => {
            let alternate = alternate(&our.name, ours, theirs).map(Box::new);
            Ok(Choice { component: our.name.clone(), peer_blob: their.blob.clone(), gids: None, alternate })
        }
        None => Err(SelectError::NothingInCommon {
            ours: names(ours.iter().map(|a| &*a.name)),
            theirs: names(theirs.iter().map(|a| &*a.name)),
        }),
    }
}

/// A component at the alternate ports of both sides: the same as at the others, else the one whose name comes first.
fn alternate(name: &str, ours: &[Advert], theirs: &[Advert]) -> Option<Choice> {
    let is_common =
        |their: &&Advert| their.name.ends_with(ALTERNATE) && ours.iter().any(|our| our.name == their.name);
    let same = format!("{name}{ALTERNATE}");
    let their = theirs.iter().filter(is_common).min_by_key(|their| (their.name != same, &their.name))?;
    Some(Choice { component: their.name.clone(), peer_blob: their.blob.clone(), gids: None, alternate: None })
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
