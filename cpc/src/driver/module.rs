//! A connection manager at work: its machine, and the backend that carries out what the machine
//! asks for. The manager trait is implemented here, once for all of them. Nothing is decided here.
//!
//! ```text
//!   helper thread -- commands, time --> Opened -- inputs --> machine
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

/// Where a manager hears from its peers: the datagrams' queue pair, or the event channel of
/// RDMA-CM.
pub(crate) trait Port: Debug + Send {
    /// Turns readable when there is something to take in.
    fn fd(&self) -> RawFd;

    /// What becomes of messages to the endpoint's peer is of no consequence any more.
    fn remove_peer(&mut self, key: EndpointKey);

    /// Endpoints whose peers turned out not to be reachable. Each is named once.
    fn take_lost(&mut self) -> Vec<(EndpointKey, ConnectError)>;

    /// True when everything has left.
    fn is_quiet(&self) -> bool;

    /// Messages that could not be sent, by the counter's name.
    fn unsent(&self) -> Option<(&'static str, u64)>;
}

/// A manager that has opened on a port.
#[derive(Debug)]
pub(crate) struct Opened<B: Backend> {
    pub(crate) machine: MachineOf<B>,
    // Before the port, which its ids may hold.
    pub(crate) backend: B,
    pub(crate) port: B::Port,
    /// What to publish: the priority, 0 to 100, and the address.
    pub(crate) priority: u8,
    pub(crate) blob: Vec<u8>,
}

/// What carries out the calls of one manager's machine.
pub(crate) trait Backend: Debug + Send + Sized {
    /// The manager's protocol.
    type Protocol: Protocol;
    /// Where it hears from its peers.
    type Port: Port;

    /// The manager's name.
    const NAME: &'static str;
    /// It connects X queues, and those only; then no receive for a clear-to-send is posted.
    const SERVES_XRC: bool;

    /// Opens what the manager needs on a device's port.
    fn open(query: &Query<'_>) -> Result<Opened<Self>, Error>;

    /// A peer may connect from now on.
    ///
    /// # Errors
    /// What is wrong with its address.
    fn add_endpoint(
        &mut self,
        machine: &mut MachineOf<Self>,
        port: &mut Self::Port,
        endpoint: EndpointPlan,
        now: Instant,
    ) -> Result<(), String>;

    /// The endpoint is removed, and its peer has been told.
    fn remove_endpoint(&mut self, key: EndpointKey);

    /// Carries out a call of the machine.
    fn call(
        &mut self,
        machine: &mut MachineOf<Self>,
        port: &mut Self::Port,
        call: <Self::Protocol as Protocol>::Call,
        now: Instant,
        out: &Outbox,
    );

    /// Takes in what has come; true if there may be more.
    fn progress(&mut self, machine: &mut MachineOf<Self>, port: &mut Self::Port, now: Instant) -> bool;

    /// No more requests are taken in.
    fn close(&mut self);
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
        Ok(Box::new(B::open(query)?))
    }
}

impl<B: Backend> Opened<B> {
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
                self.machine.abandon_endpoint(key, now);
                tell_times(&self.machine, key, out);
                out.push(Event::Failed { key, error });
            }
        }
    }

    fn perform(&mut self, action: Action<<B::Protocol as Protocol>::Call>, now: Instant, out: &Outbox) {
        match action {
            Action::Call(call) => {
                self.backend.call(&mut self.machine, &mut self.port, call, now, out);
            }
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
        let (name, priority) = (B::NAME.to_owned(), self.priority.min(100));
        Advert { name, priority, blob: self.blob.clone() }
    }

    fn uses_cts(&self) -> bool {
        !B::SERVES_XRC
    }

    fn fds(&self) -> Vec<RawFd> {
        vec![self.port.fd()]
    }

    fn add_endpoint(&mut self, endpoint: EndpointPlan, now: Instant, out: &Outbox) {
        let (key, peer) = (endpoint.key, endpoint.peer);
        match self.backend.add_endpoint(&mut self.machine, &mut self.port, endpoint, now) {
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

    fn progress(&mut self, now: Instant, out: &Outbox) {
        while {
            let more = self.backend.progress(&mut self.machine, &mut self.port, now);
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
        self.machine.leaving() == 0 && self.port.is_quiet()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let machine = self.machine.counters().into_iter();
        machine.chain(self.port.unsent()).collect()
    }
}
