//! The helper thread: runs every module, so that connections come up while the application
//! computes.
//!
//! It sleeps in `epoll` (mio) on the modules' descriptors, the device's asynchronous events, the
//! waker of its command queue and the next timer. It calls nothing of Open MPI, posts none of the
//! transport's buffers, takes no signals and never waits for a peer: every step is a reaction. What
//! the transport has to know goes into the [`Outbox`].
//!
//! In a simulation (`timing`) there is no thread: a [`Helper`] is given a turn at a time, which does not sleep.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
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

/// What runs the helper.
#[derive(Debug)]
pub(crate) struct Handle {
    runner: Runner,
    ended: Receiver<()>,
}

#[derive(Debug)]
enum Runner {
    Thread(JoinHandle<()>),
    Simulation(timing::Employed),
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
    let thread = if timing::is_simulated() { None } else { Some(start_thread()?) };
    // Nothing fails from here on.
    shared.inbox.attach(waker);
    let (modules, shared) = (std::mem::take(modules), shared.clone());
    let events = Events::with_capacity(64);
    let helper = Helper {
        poll,
        events,
        device,
        modules,
        owner: HashMap::new(),
        shared,
        closing: None,
        ending: Some(ending),
    };
    let runner = match thread {
        None => Runner::Simulation(timing::employ(Box::new(Simulated { helper, has_begun: false }))),
        Some((thread, start)) => {
            if start.send(helper).is_err() {
                log::error!("the connection helper thread has ended before it began");
            }
            Runner::Thread(thread)
        }
    };
    Ok(Handle { runner, ended })
}

/// A thread that waits for its helper.
fn start_thread() -> io::Result<(JoinHandle<()>, Sender<Helper>)> {
    let (start, started) = channel::<Helper>();
    let builder = std::thread::Builder::new().name("oxib-connect".to_owned());
    let body = move || started.recv().map_or((), Helper::run);
    let thread = verbs::signals::with_all_blocked(|| builder.spawn(body))?;
    Ok((thread, start))
}

impl Handle {
    /// Waits for the thread to end, which it does within `limit`; a thread that hangs in the device is left behind.
    pub(crate) fn join(self, limit: Duration) {
        match self.runner {
            Runner::Thread(thread) => join(thread, &self.ended, limit),
            Runner::Simulation(_helper) => {
                while self.ended.try_recv() == Err(TryRecvError::Empty) {
                    timing::relax();
                }
            }
        }
    }
}

fn join(thread: JoinHandle<()>, ended: &Receiver<()>, limit: Duration) {
    match ended.recv_timeout(limit + GRACE) {
        Err(RecvTimeoutError::Timeout) => {
            log::error!("the connection helper thread does not end; it is left behind");
        }
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            if thread.join().is_err() {
                log::error!("the connection helper thread has panicked");
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
    events: Events,
    device: Device,
    modules: Vec<Box<dyn Module>>,
    /// Which module serves an endpoint.
    owner: HashMap<EndpointKey, usize>,
    shared: Arc<Shared>,
    /// Set once the service closes: when to stop at the latest.
    closing: Option<Instant>,
    /// Taken when it has ended.
    ending: Option<Sender<()>>,
}

impl Helper {
    fn run(mut self) {
        self.begin();
        while !self.is_done() {
            let wait = self.next_timeout().map(|at| at.saturating_duration_since(timing::now()));
            if let Err(error) = self.round(wait) {
                log::error!(
                    "the connection helper thread can't wait for events: {error}; no connection comes up any more"
                );
                break;
            }
        }
        self.end();
    }

    /// What came before the start rang no waker and raised no edge.
    fn begin(&mut self) {
        self.turn();
        self.device_events();
        self.progress_all();
    }

    /// Sleeps until something happens, for `wait` at most, and acts upon it.
    fn round(&mut self, wait: Option<Duration>) -> io::Result<()> {
        self.publish_counters();
        match self.poll.poll(&mut self.events, wait) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => outcome?,
        }
        self.turn();
        Ok(())
    }

    /// What came in the last turn is not lost for a transport that goes on.
    fn end(&mut self) {
        self.device_events();
        self.publish_counters();
        self.modules.clear();
        // The receiver may be gone: close() does not wait for a thread for ever.
        let _ = self.ending.take().map(|ending| ending.send(()));
    }

    fn is_done(&self) -> bool {
        let quiet = || self.modules.iter().all(|m| m.is_quiet());
        self.closing.is_some_and(|until| timing::now() >= until || quiet())
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.modules.iter().filter_map(|m| m.next_timeout()).chain(self.closing).min()
    }

    /// Commands first: an endpoint shall be known before its peer's datagram is looked at.
    fn turn(&mut self) {
        for command in self.shared.inbox.take() {
            self.obey(command);
        }
        if self.events.iter().any(|event| event.token() == self.device.token) {
            self.device_events();
        }
        let now = timing::now();
        for event in &self.events {
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
        let now = timing::now();
        self.modules.iter_mut().for_each(|module| module.progress(now, &self.shared.outbox));
    }

    fn obey(&mut self, command: Command) {
        let (now, out) = (timing::now(), &self.shared.outbox);
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

/// A helper in a simulation.
struct Simulated {
    helper: Helper,
    has_begun: bool,
}

impl timing::Worker for Simulated {
    fn turn(&mut self) -> Option<Instant> {
        let helper = &mut self.helper;
        helper.ending.as_ref()?;
        if !std::mem::replace(&mut self.has_begun, true) {
            helper.begin();
        }
        if let Err(error) = helper.round(Some(Duration::ZERO)) {
            log::error!("the connection helper can't look for events: {error}");
        }
        if helper.is_done() {
            helper.end();
            return None;
        }
        helper.next_timeout()
    }
}
