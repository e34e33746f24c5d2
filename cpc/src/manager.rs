//! What a connection manager is to the rest of the crate: a [`Component`] that can be asked about a port, and the [`Module`] it
//! answers with, which does the work on the helper thread. `registry` lists the ones there are.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use verbs::AsyncEvent;

use crate::queues::Outbox;
use crate::{Config, EndpointCommand, EndpointKey, EndpointPlan, Error, ProcessName, QpPlan};

/// What a component is asked about.
#[derive(Debug)]
pub struct Query<'a> {
    /// The port and the queue pairs that it shall connect.
    pub plan: &'a Arc<QpPlan>,
    /// This process.
    pub me: ProcessName,
    /// The parameters of all components.
    pub config: &'a Config,
    /// The port is the alternate one of the service.
    pub alternate: bool,
}

/// One way to connect.
#[derive(Clone, Copy, Debug)]
pub struct Component {
    /// In parameters, in the modex, in messages.
    pub name: &'static str,
    /// It connects X queues, and those only.
    pub serves_xrc: bool,
    /// Opens it on a port, or says why it can't serve that.
    pub query: fn(&Query<'_>) -> Result<Box<dyn Module>, Error>,
}

/// A component at work on a port. After the service has started it lives on the helper thread; it must never wait for
/// a peer. Everything it has to say goes into the outbox.
pub trait Module: Send {
    /// What to publish.
    fn advert(&self) -> Advert;

    /// True if it posts the receive for the clear-to-send and the transport runs that handshake.
    fn uses_cts(&self) -> bool;

    /// File descriptors whose readability it wants to hear of.
    fn fds(&self) -> Vec<RawFd>;

    /// A peer may connect from now on.
    fn add_endpoint(&mut self, endpoint: EndpointPlan, now: Instant, out: &Outbox);

    /// The main thread wants something of an endpoint. For a key that is not known, or no longer,
    /// nothing happens.
    fn command(&mut self, key: EndpointKey, command: EndpointCommand, now: Instant, out: &Outbox);

    /// Takes over the next of what has come, without looking at it; true if there is something for `progress`. Called after the start, and
    /// whenever one of the descriptors became readable, until there is nothing more. Commands are obeyed between this and `progress`: one that was given
    /// before a peer sent something is obeyed before that is looked at.
    fn fetch(&mut self) -> bool;

    /// Looks at what was fetched.
    fn progress(&mut self, now: Instant, out: &Outbox);

    /// When `timeout` wants to be called at the latest.
    fn next_timeout(&self) -> Option<Instant>;

    /// Something is due.
    fn timeout(&mut self, now: Instant, out: &Outbox);

    /// Takes every connection down and takes no more requests in; [`Module::is_quiet`] tells when
    /// that is done.
    fn close(&mut self, now: Instant, out: &Outbox);

    /// True when `close` has nothing more to wait for.
    fn is_quiet(&self) -> bool;

    /// Whose an event of the device is. Each event that is read is shown once.
    fn claim(&mut self, event: &AsyncEvent) -> Claim;

    /// What it counts, by name.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

/// Who acts upon an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is not about one of the module's receive queue pairs: the transport.
    No,
    /// It is about one that this process has made: the transport, for all who share it.
    Owner,
    /// Another process does, or it has been told before.
    Other,
}

/// What a module publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advert {
    /// The component; with `_alternate` behind it, if the port is the alternate one of its service.
    pub name: String,
    /// 0 to 100.
    pub priority: u8,
    /// At most 255 bytes, meant for the peer's module of the same component.
    pub blob: Vec<u8>,
}
