//! A connection manager at work: its machine, and the backend that carries out what the machine
//! asks for. The manager trait is implemented here, once for all of them. Nothing is decided here.
//!
//! ```text
//!   helper thread -- commands, time --> Opened -- inputs --> machine
//!        outbox  <-- news --               |    <-- actions --
//!                                          +--- calls --> backend: queue pairs, datagrams, ids
//! ```

use std::fmt::Debug;
use std::os::fd::RawFd;
use std::time::Instant;

use verbs::AsyncEvent;

use super::seed;
use crate::core::action::Action;
use crate::core::machine::{Core, Protocol};
use crate::manager::{Advert, Claim, Component, Module, Query};
use crate::plan::ALTERNATE;
use crate::queues::Outbox;
use crate::{Config, ConnectCause, ConnectError, EndpointCommand, EndpointKey, EndpointPlan, Error, Event};

pub(crate) type MachineOf<B> = Core<<B as Backend>::Protocol>;

/// Where a manager hears from its peers: the datagrams' queue pair, or the event channel of
/// RDMA-CM.
pub(crate) trait Port: Debug + Send {
    /// Turns readable when there is something to take in.
    fn fd(&self) -> RawFd;

    /// Takes over the next of what has come; true if there is something, news of a failure included.
    fn fetch(&mut self) -> bool;

    /// What becomes of messages to the endpoint's peer is of no consequence any more.
    fn remove_peer(&mut self, _: EndpointKey) {}

    /// The endpoint's connection is up.
    fn connected(&mut self, _: EndpointKey) {}

    /// Endpoints whose peers turned out not to be reachable. Each is named once.
    fn take_lost(&mut self) -> Vec<(EndpointKey, ConnectError)> {
        Vec::new()
    }

    /// True when everything has left.
    fn is_quiet(&self) -> bool {
        true
    }

    /// Messages that could not be sent, by the counter's name.
    fn unsent(&self) -> Option<(&'static str, u64)> {
        None
    }
}

/// A manager that has opened on a port.
#[derive(Debug)]
pub(crate) struct Opened<B: Backend> {
    machine: MachineOf<B>,
    // Before the port, which its ids may hold.
    backend: B,
    port: B::Port,
    /// What to publish: the priority, 0 to 100, and the address.
    priority: u8,
    blob: Vec<u8>,
    /// The port is the alternate one of the service.
    alternate: bool,
}

#[derive(Debug)]
pub(crate) struct Desk<'a, B: Backend> {
    pub(crate) machine: &'a mut MachineOf<B>,
    pub(crate) port: &'a mut B::Port,
    pub(crate) now: Instant,
    pub(crate) out: &'a Outbox,
}

#[derive(Debug)]
pub(crate) struct Parts<B: Backend> {
    pub(crate) backend: B,
    pub(crate) port: B::Port,
    pub(crate) local: <B::Protocol as Protocol>::Local,
    pub(crate) blob: Vec<u8>,
}

pub(crate) type ParamsOf<B> = <<B as Backend>::Protocol as Protocol>::Params;

/// What carries out the calls of one manager's machine.
pub(crate) trait Backend: Debug + Send + Sized {
    type Protocol: Protocol<Params: Clone>;
    type Port: Port;

    const NAME: &'static str;
    /// It connects X queues, and those only; then no receive for a clear-to-send is posted.
    const SERVES_XRC: bool;

    /// Its parameters; the priority and the seed among them.
    fn params(config: &Config) -> (&ParamsOf<Self>, u8, Option<u64>);

    /// Opens what the manager needs on a device's port.
    fn open(query: &Query<'_>, params: &ParamsOf<Self>, seed: u64) -> Result<Parts<Self>, Error>;

    /// A peer may connect from now on.
    ///
    /// # Errors
    /// What is wrong with its address.
    fn add_endpoint(&mut self, desk: Desk<'_, Self>, endpoint: EndpointPlan) -> Result<(), String>;

    /// The endpoint is removed, and its peer has been told.
    fn remove_endpoint(&mut self, _: EndpointKey) {}

    fn call(&mut self, desk: Desk<'_, Self>, call: <Self::Protocol as Protocol>::Call);

    /// Looks at what was fetched.
    fn progress(&mut self, desk: Desk<'_, Self>);

    /// Whose an event of the device is.
    fn claim(&mut self, _: &AsyncEvent) -> Claim {
        Claim::No
    }

    /// No more requests are taken in.
    fn close(&mut self) {}
}

pub(crate) const fn component<B: Backend + 'static>() -> Component
where
    MachineOf<B>: Send,
{
    let query = |query: &Query<'_>| -> Result<Box<dyn Module>, Error> {
        let (params, priority, seed) = B::params(query.config);
        let seed = seed.unwrap_or_else(seed::from_system);
        let Parts { backend, port, local, blob } = B::open(query, params, seed)?;
        let machine = Core::new(local, params.clone(), seed);
        Ok(Box::new(Opened { machine, backend, port, priority, blob, alternate: query.alternate }))
    };
    Component { name: B::NAME, serves_xrc: B::SERVES_XRC, query }
}

impl<B: Backend> Opened<B> {
    /// The backend, and what it works with.
    fn desk<'a>(&'a mut self, now: Instant, out: &'a Outbox) -> (&'a mut B, Desk<'a, B>) {
        (&mut self.backend, Desk { machine: &mut self.machine, port: &mut self.port, now, out })
    }

    /// Performs what the machine wants done, answers included, until it wants nothing more.
    fn perform_all(&mut self, now: Instant, out: &Outbox) {
        loop {
            while let Some(action) = self.machine.poll_action() {
                self.perform(action, now, out);
            }
            let lost = self.port.take_lost();
            if lost.is_empty() {
                return;
            }
            for (key, error) in lost {
                self.machine.command(key, EndpointCommand::Abandon, now);
                tell_times(&self.machine, key, out);
                out.push(Event::Failed { key, error });
            }
        }
    }

    fn perform(&mut self, action: Action<<B::Protocol as Protocol>::Call>, now: Instant, out: &Outbox) {
        match action {
            Action::Call(call) => {
                let (backend, desk) = self.desk(now, out);
                backend.call(desk, call);
            }
            Action::Agreed { key, stream } => out.push(Event::Agreed { key, stream }),
            Action::Connected { key } => {
                self.port.connected(key);
                tell_times(&self.machine, key, out);
                out.push(Event::Connected { key });
            }
            Action::Failed { key, error } => {
                tell_times(&self.machine, key, out);
                out.push(Event::Failed { key, error });
            }
            Action::Disconnected { key } => out.push(Event::Disconnected { key }),
            Action::Unlisted { key } => {
                self.port.remove_peer(key);
                self.backend.remove_endpoint(key);
                out.push(Event::Unlisted { key });
            }
            Action::Asked { key } => out.push(Event::Asked { key }),
            Action::Retracted { key } => out.push(Event::Retracted { key }),
            Action::UnknownPeer { peer } => {
                out.push(Event::UnknownPeer { peer, alternate: self.alternate });
            }
        }
    }
}

/// When the steps of the endpoint's connection happened; before the news that it is up or has
/// failed.
pub(crate) fn tell_times<P: Protocol>(machine: &Core<P>, key: EndpointKey, out: &Outbox) {
    if let Some(steps) = machine.timeline(key) {
        out.push(Event::Timeline { key, steps: Box::new(steps.clone()) });
    }
}

impl<B: Backend> Module for Opened<B>
where
    MachineOf<B>: Send,
{
    fn advert(&self) -> Advert {
        let (suffix, priority) = if self.alternate { (ALTERNATE, 0) } else { ("", self.priority.min(100)) };
        Advert { name: format!("{}{suffix}", B::NAME), priority, blob: self.blob.clone() }
    }

    fn uses_cts(&self) -> bool {
        !B::SERVES_XRC
    }

    fn fds(&self) -> Vec<RawFd> {
        vec![self.port.fd()]
    }

    fn add_endpoint(&mut self, endpoint: EndpointPlan, now: Instant, out: &Outbox) {
        let (key, peer) = (endpoint.key, endpoint.peer);
        let (backend, desk) = self.desk(now, out);
        match backend.add_endpoint(desk, endpoint) {
            Ok(()) => self.perform_all(now, out),
            Err(why) => {
                let error = ConnectError { peer, cause: ConnectCause::Address(why) };
                out.push(Event::Failed { key, error });
            }
        }
    }

    fn command(&mut self, key: EndpointKey, command: EndpointCommand, now: Instant, out: &Outbox) {
        if matches!(command, EndpointCommand::Remove | EndpointCommand::Abandon) {
            self.port.remove_peer(key);
        }
        self.machine.command(key, command, now);
        self.perform_all(now, out);
        if command == EndpointCommand::Remove {
            self.backend.remove_endpoint(key);
        }
    }

    fn fetch(&mut self) -> bool {
        self.port.fetch()
    }

    fn progress(&mut self, now: Instant, out: &Outbox) {
        let (backend, desk) = self.desk(now, out);
        backend.progress(desk);
        self.perform_all(now, out);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.machine.poll_timeout()
    }

    fn timeout(&mut self, now: Instant, out: &Outbox) {
        self.machine.handle_timeout(now);
        self.perform_all(now, out);
    }

    fn close(&mut self, now: Instant, out: &Outbox) {
        self.backend.close();
        self.machine.close(now);
        self.perform_all(now, out);
    }

    fn is_quiet(&self) -> bool {
        self.machine.leaving() == 0 && self.port.is_quiet()
    }

    fn claim(&mut self, event: &AsyncEvent) -> Claim {
        self.backend.claim(event)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let machine = self.machine.counters().into_iter();
        machine.chain(self.port.unsent()).collect()
    }
}
