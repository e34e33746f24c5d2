//! What the driver, and through it the main thread, calls on a manager's machine.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use slab::Slab;

use super::action::Action;
use super::kinds::Kinds;
use super::machine::{Core, Dismissal, Protocol};
use super::parking::Parking;
use super::rng::Rng;
use super::stats::Stats;
use super::timers::{Timer, Timers};
use super::window::Window;
use crate::{EndpointCommand, EndpointKey, ProcessName, Timeline};

impl<P: Protocol> Core<P> {
    /// A machine without endpoints. `seed` decides ids, PSNs and jitter.
    pub fn new(local: P::Local, params: P::Params, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let (me, places) = (P::HOOKS.basics)(&local, &params);
        Core {
            own: (P::HOOKS.new)(&mut rng),
            me,
            local,
            window: Window::new(places),
            params,
            rng,
            endpoints: HashMap::new(),
            by_peer: HashMap::new(),
            links: Slab::new(),
            parked: Parking::new(),
            timers: Timers::default(),
            actions: VecDeque::new(),
            stats: Stats::default(),
        }
    }

    /// The next thing to do; call until `None` after every other call.
    pub fn poll_action(&mut self) -> Option<Action<P::Call>> {
        self.actions.pop_front()
    }

    /// When [`Core::handle_timeout`] wants to be called at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// The counters that this manager uses, by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        (P::HOOKS.counters)(&self.stats)
    }

    /// Events counted since the machine was made; they never go down. [`Core::counters`] has them by their names.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// How many links of removed or failed endpoints still wait for the peer to let go.
    pub fn leaving(&self) -> usize {
        self.links.iter().filter(|(_, link)| link.state.kind() == P::LEAVING).count()
    }

    /// When the steps of the endpoint's connection happened; `None` once it is removed.
    pub fn timeline(&self, key: EndpointKey) -> Option<&Timeline> {
        self.endpoints.get(&key).map(|endpoint| &endpoint.steps)
    }

    /// Carries out a command of the endpoint's owner. One about an endpoint that is not known, or no longer, changes nothing. The actions that
    /// follow are taken from `poll_action`; `now` begins the deadlines that the command sets.
    pub fn command(&mut self, key: EndpointKey, command: EndpointCommand, now: Instant) {
        let gone = self.endpoints.get(&key).map(|endpoint| endpoint.peer);
        (P::HOOKS.command)(self, key, command, now);
        if let Some(peer) = gone.filter(|_| command == EndpointCommand::Remove) {
            self.tell_parked(peer);
        }
    }

    /// The endpoint of this peer is gone: a request that waited for the next one is told again, for the word of it may have come to the one
    /// that is gone.
    fn tell_parked(&mut self, peer: ProcessName) {
        if self.parked.of(peer).is_some() {
            self.actions.push_back(Action::UnknownPeer { peer });
        }
    }

    /// Removes every endpoint and refuses the requests that wait for one.
    pub fn close(&mut self, now: Instant) {
        let keys: Vec<EndpointKey> = self.endpoints.keys().copied().collect();
        keys.into_iter().for_each(|key| self.command(key, EndpointCommand::Remove, now));
        self.parked.peers().into_iter().for_each(|peer| self.dismiss(peer, Dismissal::Closing));
    }

    /// Acts on everything that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(timer) = self.timers.take_due(now) {
            match timer {
                Timer::Link(slot) => {
                    self.links[slot].deadline = None;
                    self.input(slot, &P::TIMEOUT, now);
                }
                Timer::Parked(peer) => self.dismiss(peer, Dismissal::Late),
            }
        }
    }
}
