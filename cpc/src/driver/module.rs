//! A connection manager at work: its machine, and the backend that carries out what the machine asks for. The manager trait is implemented
//! here, once for all of them. Nothing is decided here.
//!
//! ```text
//!   helper thread -- commands, time --> Driver -- inputs --> machine
//!        outbox  <-- news --               |    <-- actions --
//!                                          +--- calls --> backend: queue pairs, datagrams, ids
//! ```

use std::fmt::Debug;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::time::Instant;

use crate::core::action::Action;
use crate::core::machine::{Core, Protocol};
use crate::manager::{Advert, Component, Module, Query};
use crate::queues::Outbox;
use crate::{ConnectCause, ConnectError, EndpointCommand, EndpointKey, EndpointPlan, Error, Event};

/// The machine that a backend works for.
pub(crate) type MachineOf<B> = Core<<B as Backend>::Protocol>;

/// What carries out the calls of one manager's machine.
pub(crate) trait Backend: Debug + Send + Sized {
    /// The manager's protocol.
    type Protocol: Protocol;

    /// The manager's name.
    const NAME: &'static str;
    /// It connects X queues, and those only; then no receive for a clear-to-send is posted.
    const SERVES_XRC: bool;

    /// Opens what it needs on the port, and makes the machine.
    fn open(query: &Query<'_>) -> Result<(Self, MachineOf<Self>), Error>;

    /// What to publish: the priority, and the address.
    fn advert(&self) -> (u8, Vec<u8>);

    /// What turns readable when there is something to take in.
    fn fd(&self) -> RawFd;

    /// A peer may connect from now on.
    ///
    /// # Errors
    /// What is wrong with its address.
    fn add_endpoint(
        &mut self,
        machine: &mut MachineOf<Self>,
        endpoint: EndpointPlan,
        now: Instant,
    ) -> Result<(), String>;

    /// What becomes of messages to the endpoint's peer is of no consequence any more.
    fn silence(&mut self, key: EndpointKey);

    /// The endpoint is removed, and its peer has been told.
    fn remove_endpoint(&mut self, key: EndpointKey);

    /// Carries out a call of the machine.
    fn call(
        &mut self,
        machine: &mut MachineOf<Self>,
        call: <Self::Protocol as Protocol>::Call,
        now: Instant,
        out: &Outbox,
    );

    /// Takes in what has come; true if there may be more.
    fn progress(&mut self, machine: &mut MachineOf<Self>, now: Instant) -> bool;

    /// Endpoints whose peers turned out not to be reachable. Each is named once.
    fn take_lost(&mut self) -> Vec<(EndpointKey, ConnectError)>;

    /// No more requests are taken in.
    fn close(&mut self);

    /// True when everything has left.
    fn is_quiet(&self) -> bool;

    /// What it counts beside the machine.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

/// The component of a backend.
#[derive(Debug)]
pub(crate) struct Manager<B>(PhantomData<fn() -> B>);

impl<B> Manager<B> {
    pub(crate) const NEW: Manager<B> = Manager(PhantomData);
}

impl<B: Backend + 'static> Component for Manager<B>
where
    MachineOf<B>: Send,
{
    fn name(&self) -> &'static str {
        B::NAME
    }

    fn serves_xrc(&self) -> bool {
        B::SERVES_XRC
    }

    fn query(&self, query: &Query<'_>) -> Result<Box<dyn Module>, Error> {
        let (backend, machine) = B::open(query)?;
        Ok(Box::new(Driver { backend, machine }))
    }
}

/// A manager at work on a port.
struct Driver<B: Backend> {
    backend: B,
    machine: MachineOf<B>,
}

impl<B: Backend> Driver<B> {
    /// Performs what the machine wants done, answers included, until it wants nothing more.
    fn perform_all(&mut self, now: Instant, out: &Outbox) {
        loop {
            while let Some(action) = self.machine.poll_action() {
                self.perform(action, now, out);
            }
            let lost = self.backend.take_lost();
            if lost.is_empty() {
                return;
            }
            for (key, error) in lost {
                self.machine.abandon_endpoint(key, now);
                tell_times(&self.machine, key, out);
                out.push(Event::Failed { key, error });
            }
        }
    }

    fn perform(&mut self, action: Action<<B::Protocol as Protocol>::Call>, now: Instant, out: &Outbox) {
        match action {
            Action::Call(call) => self.backend.call(&mut self.machine, call, now, out),
            Action::Connected { key } => {
                tell_times(&self.machine, key, out);
                out.push(Event::Connected { key });
            }
            Action::Failed { key, error } => {
                tell_times(&self.machine, key, out);
                out.push(Event::Failed { key, error });
            }
            Action::Disconnected { key } => out.push(Event::Disconnected { key }),
            Action::UnknownPeer { peer } => out.push(Event::UnknownPeer { peer }),
        }
    }
}

/// When the steps of the endpoint's connection happened; before the news that it is up or has failed.
pub(crate) fn tell_times<P: Protocol>(machine: &Core<P>, key: EndpointKey, out: &Outbox) {
    if let Some(steps) = machine.timeline(key) {
        out.push(Event::Timeline { key, steps: Box::new(steps.clone()) });
    }
}

impl<B: Backend> Module for Driver<B>
where
    MachineOf<B>: Send,
{
    fn advert(&self) -> Advert {
        let (priority, blob) = self.backend.advert();
        Advert { name: B::NAME.to_owned(), priority: priority.min(100), blob }
    }

    fn uses_cts(&self) -> bool {
        !B::SERVES_XRC
    }

    fn fds(&self) -> Vec<RawFd> {
        vec![self.backend.fd()]
    }

    fn add_endpoint(&mut self, endpoint: EndpointPlan, now: Instant, out: &Outbox) {
        let (key, peer) = (endpoint.key, endpoint.peer);
        match self.backend.add_endpoint(&mut self.machine, endpoint, now) {
            Ok(()) => self.perform_all(now, out),
            Err(why) => {
                let error = ConnectError { peer, cause: ConnectCause::Address(why) };
                out.push(Event::Failed { key, error });
            }
        }
    }

    fn command(&mut self, key: EndpointKey, command: EndpointCommand, now: Instant, out: &Outbox) {
        if matches!(command, EndpointCommand::Remove | EndpointCommand::Abandon) {
            self.backend.silence(key);
        }
        self.machine.command(key, command, now);
        self.perform_all(now, out);
        if command == EndpointCommand::Remove {
            self.backend.remove_endpoint(key);
        }
    }

    fn progress(&mut self, now: Instant, out: &Outbox) {
        while {
            let more = self.backend.progress(&mut self.machine, now);
            self.perform_all(now, out);
            more
        } {}
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
        self.machine.leaving() == 0 && self.backend.is_quiet()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        [self.machine.counters(), self.backend.counters()].concat()
    }
}
