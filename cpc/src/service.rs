//! The service: what the transport sees of this crate.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use verbs::Context;

use crate::driver::thread::{Handle, Shared, spawn};
use crate::manager::{Module, Query};
use crate::queues::{Command, lock};
use crate::registry::{self, BUILT_IN};
use crate::{
    Advert, Choice, Config, EndpointCommand, EndpointKey, EndpointPlan, Error, Event, ProcessName, QpPlan,
    SelectError,
};

/// How long a service that is dropped without a close may take.
const DROP_LIMIT: Duration = Duration::from_millis(200);

/// Connections of one port. Every method returns at once except `close`; all but [`Service::pending`] and
/// [`Service::next_event`] are for the connection path. It may be shared between threads.
#[derive(Debug)]
pub struct Service {
    adverts: Vec<Advert>,
    uses_cts: bool,
    /// Whose asynchronous events the helper thread reads.
    context: Arc<Context>,
    shared: Arc<Shared>,
    stage: Mutex<Stage>,
}

enum Stage {
    /// The modules are open, the thread does not run yet.
    Open(Vec<Box<dyn Module>>),
    Running(Handle),
    Closed,
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Stage::Open(_) => "open",
            Stage::Running(_) => "running",
            Stage::Closed => "closed",
        })
    }
}

impl Service {
    /// Asks the components about the plan's port. From now on datagrams of peers are kept, but they are not answered before
    /// [`Service::start`].
    ///
    /// # Errors
    /// The plan has no or too many queues, a component's name is unknown, or no component can serve the port.
    pub fn open(plan: Arc<QpPlan>, me: ProcessName, config: &Config) -> Result<Service, Error> {
        Service::open_with(plan, None, me, config)
    }

    /// The same; `alternate` is the plan of another port of the same device, whose queue pairs have the same domain and queues. Its
    /// components publish themselves, too: an endpoint can be connected over either ([`Choice::turn`]).
    ///
    /// # Errors
    /// As [`Service::open`]. That the other port can't be served is told in the log.
    pub fn open_with(
        plan: Arc<QpPlan>,
        alternate: Option<Arc<QpPlan>>,
        me: ProcessName,
        config: &Config,
    ) -> Result<Service, Error> {
        let open = |plan: &Arc<QpPlan>, alternate| {
            registry::open_modules(BUILT_IN, &Query { plan, me, config, alternate })
        };
        let mut modules = open(&plan, false)?;
        match alternate.map(|plan| open(&plan, true)).transpose() {
            Ok(others) => modules.extend(others.into_iter().flatten()),
            Err(error) => log::info!("no connections over the device's other port: {error}"),
        }
        Ok(Service {
            adverts: modules.iter().map(|m| m.advert()).collect(),
            uses_cts: modules.iter().any(|m| m.uses_cts()),
            context: plan.port.ctx.clone(),
            shared: Arc::new(Shared::default()),
            stage: Mutex::new(Stage::Open(modules)),
        })
    }

    /// What peers need to know to connect to this process, one for each manager that works, at the alternate port
    /// too, for the modex (protocol.md 1.2, 4.7).
    pub fn adverts(&self) -> &[Advert] {
        &self.adverts
    }

    /// True if endpoints with a per-peer queue need a [`crate::CtsRecv`] and the clear-to-send handshake.
    pub fn uses_cts(&self) -> bool {
        self.uses_cts
    }

    /// The component to use for a peer that has published `theirs`: the common one with the highest priority of either side; and one
    /// at the alternate ports of both, if there is one: the same where that can be.
    ///
    /// # Errors
    /// The two sides have no component in common.
    pub fn choose(&self, theirs: &[Advert]) -> Result<Choice, SelectError> {
        registry::choose(&self.adverts, theirs)
    }

    /// Starts the helper thread; a second call does nothing. After an error it can be called again.
    ///
    /// # Errors
    /// The thread can't be started, or the service is closed.
    pub fn start(&self) -> Result<(), Error> {
        let mut stage = lock(&self.stage);
        match &mut *stage {
            Stage::Open(modules) => *stage = Stage::Running(spawn(modules, &self.shared, &self.context)?),
            Stage::Running(_) => {}
            Stage::Closed => return Err(Error::Closed),
        }
        Ok(())
    }

    /// Makes a peer known: it may connect from now on. What is wrong with it is reported as [`Event::Failed`].
    pub fn add_endpoint(&self, choice: Choice, endpoint: EndpointPlan) {
        self.shared.inbox.push(Command::AddEndpoint(choice, endpoint));
    }

    /// There is something to send: connect. Does nothing if the connection is up or under way.
    pub fn connect(&self, key: EndpointKey) {
        self.command(key, EndpointCommand::Connect);
    }

    /// The endpoint is no longer wanted. The peer is told in the background; the QPs go with their last `Arc`.
    pub fn remove_endpoint(&self, key: EndpointKey) {
        self.command(key, EndpointCommand::Remove);
    }

    /// The endpoint is about to be removed: [`Event::Unlisted`] follows, unless its peer has asked, or has answered our request. Then there is,
    /// or may be, a connection that is up on its side, and other events tell of that; over X queues [`Event::Asked`] tells that the peer has asked.
    /// A request without an answer is withdrawn; the peer may not connect from then on.
    pub fn unlist(&self, key: EndpointKey) {
        self.command(key, EndpointCommand::Unlist);
    }

    /// The endpoint's send queue pair over XRC is broken, and it is to go on: [`Event::Routed`] comes again, with another one.
    pub fn renew(&self, key: EndpointKey) {
        self.command(key, EndpointCommand::Renew);
    }

    /// The endpoint has failed on this side, its QPs are of no use any more: the peer is told in the background, so that it does not wait
    /// for what never comes. The endpoint still has to be removed.
    pub fn abandon_endpoint(&self, key: EndpointKey) {
        self.command(key, EndpointCommand::Abandon);
    }

    /// A message has arrived on the endpoint's QPs before [`Event::Connected`]: that stands in for a late or lost RTU.
    pub fn first_data(&self, key: EndpointKey) {
        self.command(key, EndpointCommand::FirstData);
    }

    fn command(&self, key: EndpointKey, command: EndpointCommand) {
        self.shared.inbox.push(Command::Endpoint(key, command));
    }

    /// True if [`Service::next_event`] may have something. One relaxed load.
    #[inline]
    pub fn pending(&self) -> bool {
        self.shared.outbox.pending()
    }

    /// The oldest event that has not been taken; the helper thread has put it there. Those of an endpoint come in their order, and with those of
    /// the device in the order in which the thread has seen them.
    pub fn next_event(&self) -> Option<Event> {
        self.shared.outbox.pop()
    }

    /// What the modules count, by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        lock(&self.shared.counters).clone()
    }

    /// Takes every connection down and ends the helper thread. Returns when all peers have agreed and the last datagram has
    /// left, or after `deadline`: a peer that is gone is not waited for longer. Events that are still in the queue can be taken out
    /// afterwards, and should be: a [`Event::QpsCreated`] holds a buffer that the device owns.
    pub fn close(&self, deadline: Duration) {
        let stage = std::mem::replace(&mut *lock(&self.stage), Stage::Closed);
        if let Stage::Running(handle) = stage {
            self.shared.inbox.push(Command::Close { until: timing::now() + deadline });
            handle.join(deadline);
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.close(DROP_LIMIT);
    }
}
