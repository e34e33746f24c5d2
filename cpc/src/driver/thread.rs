//! The helper thread: runs every module, so that connections come up while the application
//! computes.
//!
//! It sleeps in `epoll` (mio) on the modules' descriptors, the device's asynchronous events, the
//! waker of its command queue and the next timer. It calls nothing of Open MPI, posts none of the
//! transport's buffers, takes no signals and never waits for a peer: every step is a reaction. What
//! the transport has to know goes into the [`Outbox`].

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use verbs::{AsyncEvent, Context};

use crate::manager::{Claim, Module};
use crate::queues::{Command, Inbox, Outbox, lock};
use crate::{Choice, ConnectCause, ConnectError, EndpointCommand, EndpointKey, EndpointPlan, Event};

/// What both threads hold.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) inbox: Inbox,
    pub(crate) outbox: Outbox,
    /// The modules' counters, as of the helper's last turn.
    pub(crate) counters: Mutex<Vec<(&'static str, u64)>>,
}

/// Beyond the deadline of a close, the time for the last turn of the helper thread itself.
const GRACE: Duration = Duration::from_secs(1);

/// A running helper thread.
#[derive(Debug)]
pub(crate) struct Handle {
    thread: JoinHandle<()>,
    ended: Receiver<()>,
}

/// Starts the thread, which takes the modules; after an error they are where they were.
pub(crate) fn spawn(
    modules: &mut Vec<Box<dyn Module>>,
    shared: &Arc<Shared>,
    context: &Arc<Context>,
) -> io::Result<Handle> {
    let poll = Poll::new()?;
    let waker = Waker::new(poll.registry(), Token(modules.len()))?;
    let device = Device { context: context.clone(), token: Token(modules.len() + 1) };
    let fd = device.context.async_fd();
    poll.registry().register(&mut SourceFd(&fd), device.token, Interest::READABLE)?;
    for (index, module) in modules.iter().enumerate() {
        for fd in module.fds() {
            poll.registry().register(&mut SourceFd(&fd), Token(index), Interest::READABLE)?;
        }
    }
    let (ending, ended) = channel();
    let (start, started) = channel::<Helper>();
    let builder = std::thread::Builder::new().name("oxib-connect".to_owned());
    let body = move || started.recv().map_or((), Helper::run);
    let thread = verbs::signals::with_all_blocked(|| builder.spawn(body))?;
    // Nothing fails from here on.
    shared.inbox.attach(waker);
    let (modules, shared) = (std::mem::take(modules), shared.clone());
    let helper = Helper { poll, device, modules, owner: HashMap::new(), shared, closing: None, ending };
    if start.send(helper).is_err() {
        log::error!("the connection helper thread has ended before it began");
    }
    Ok(Handle { thread, ended })
}

impl Handle {
    /// Waits for the thread to end, which it does within `limit`; a thread that hangs in the device is left behind.
    pub(crate) fn join(self, limit: Duration) {
        match self.ended.recv_timeout(limit + GRACE) {
            Err(RecvTimeoutError::Timeout) => {
                log::error!("the connection helper thread does not end; it is left behind");
            }
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                if self.thread.join().is_err() {
                    log::error!("the connection helper thread has panicked");
                }
            }
        }
    }
}

/// What tells of the device's asynchronous events.
struct Device {
    context: Arc<Context>,
    token: Token,
}

/// The thread's own.
struct Helper {
    poll: Poll,
    device: Device,
    modules: Vec<Box<dyn Module>>,
    /// Which module serves an endpoint.
    owner: HashMap<EndpointKey, usize>,
    shared: Arc<Shared>,
    /// Set once the service closes: when to stop at the latest.
    closing: Option<Instant>,
    ending: Sender<()>,
}

impl Helper {
    fn run(mut self) {
        let mut events = Events::with_capacity(64);
        // What came before the start rang no waker and raised no edge.
        self.turn(&events);
        self.device_events();
        self.progress_all();
        while !self.is_done() {
            self.publish_counters();
            if let Err(error) = self.sleep(&mut events) {
                log::error!(
                    "the connection helper thread can't wait for events: {error}; no connection comes up any more"
                );
                break;
            }
            self.turn(&events);
        }
        // What came in the last turn is not lost for a transport that goes on.
        self.device_events();
        self.publish_counters();
        let Helper { modules, ending, .. } = self;
        drop(modules);
        // The receiver may be gone: close() does not wait for a thread for ever.
        let _ = ending.send(());
    }

    fn is_done(&self) -> bool {
        let quiet = || self.modules.iter().all(|m| m.is_quiet());
        self.closing.is_some_and(|until| Instant::now() >= until || quiet())
    }

    fn sleep(&mut self, events: &mut Events) -> io::Result<()> {
        let due = self.modules.iter().filter_map(|m| m.next_timeout()).chain(self.closing).min();
        let wait = due.map(|at| at.saturating_duration_since(Instant::now()));
        match self.poll.poll(events, wait) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            outcome => outcome,
        }
    }

    /// Commands first: an endpoint shall be known before its peer's datagram is looked at.
    fn turn(&mut self, events: &Events) {
        for command in self.shared.inbox.take() {
            self.obey(command);
        }
        if events.iter().any(|event| event.token() == self.device.token) {
            self.device_events();
        }
        let now = Instant::now();
        for event in events {
            if let Some(module) = self.modules.get_mut(event.token().0) {
                module.progress(now, &self.shared.outbox);
            }
        }
        for module in &mut self.modules {
            if module.next_timeout().is_some_and(|at| at <= now) {
                module.timeout(now, &self.shared.outbox);
            }
        }
    }

    /// Reads and acknowledges what the device has to say, until it would block, and hands it over
    /// to the thread that acts upon it. An event that is not read goes with its queue pair, and one
    /// that is read is in the queue before the thread makes another queue pair: none is taken for
    /// one of a later queue pair that has the same number.
    fn device_events(&mut self) {
        loop {
            match self.device.context.next_async_event() {
                Ok(Some(event)) => self.device_event(event),
                Ok(None) => return,
                Err(error) => {
                    log::warn!("{error}");
                    return;
                }
            }
        }
    }

    fn device_event(&mut self, event: AsyncEvent) {
        let mut claims = self.modules.iter_mut().map(|module| module.claim(&event));
        match claims.find(|claim| *claim != Claim::No).unwrap_or(Claim::No) {
            Claim::No => self.shared.outbox.push(Event::Device { event }),
            Claim::Owner => self.shared.outbox.push(Event::Receiver { event }),
            Claim::Other => log::trace!("{event:?}: the process that made the queue pair acts upon it"),
        }
    }

    fn progress_all(&mut self) {
        let now = Instant::now();
        self.modules.iter_mut().for_each(|module| module.progress(now, &self.shared.outbox));
    }

    fn obey(&mut self, command: Command) {
        let (now, out) = (Instant::now(), &self.shared.outbox);
        match command {
            Command::AddEndpoint(choice, endpoint) => self.add_endpoint(&choice, endpoint, now),
            Command::Endpoint(key, command) => {
                let owner = self.owner.get(&key).copied();
                if command == EndpointCommand::Remove {
                    self.owner.remove(&key);
                }
                if let Some(module) = owner.and_then(|index| self.modules.get_mut(index)) {
                    module.command(key, command, now, out);
                }
            }
            Command::Close { until } => {
                self.closing = Some(until);
                self.modules.iter_mut().for_each(|m| m.close(now, out));
            }
        }
    }

    fn add_endpoint(&mut self, choice: &Choice, mut endpoint: EndpointPlan, now: Instant) {
        if endpoint.peer_blob.is_empty() {
            endpoint.peer_blob.clone_from(&choice.peer_blob);
        }
        endpoint.gids = endpoint.gids.or(choice.gids.as_deref().copied());
        let Some(index) = self.modules.iter().position(|m| m.advert().name == choice.component) else {
            let cause = ConnectCause::Component(choice.component.clone());
            let error = ConnectError { peer: endpoint.peer, cause };
            return self.shared.outbox.push(Event::Failed { key: endpoint.key, error });
        };
        self.owner.insert(endpoint.key, index);
        self.modules[index].add_endpoint(endpoint, now, &self.shared.outbox);
    }

    fn publish_counters(&self) {
        *lock(&self.shared.counters) = self.modules.iter().flat_map(|m| m.counters()).collect();
    }
}
