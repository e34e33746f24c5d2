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

/// Beyond the deadline of a close, the time for the last turn of the helper thread itself: enough where it gets a processor every
/// 100 ms only. A thread that hangs in the device takes all of it.
const GRACE: Duration = Duration::from_secs(10);

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
        self.take_in(&(0..self.modules.len()).collect::<Vec<_>>());
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

    fn turn(&mut self) {
        self.obey_all();
        if self.events.iter().any(|event| event.token() == self.device.token) {
            self.device_events();
        }
        let readable: Vec<_> = self.events.iter().map(|event| event.token().0).collect();
        self.take_in(&readable);
        let now = timing::now();
        for module in &mut self.modules {
            if module.next_timeout().is_some_and(|at| at <= now) {
                module.timeout(now, &self.shared.outbox);
            }
        }
    }

    /// Takes in all that these modules' peers have sent. An endpoint shall be added, or removed, before that is looked at which its peer
    /// sent upon it: a command that was given before a message was sent is in the inbox when the message has been fetched.
    fn take_in(&mut self, readable: &[usize]) {
        while self.fetch(readable) {
            self.obey_all();
            let now = timing::now();
            for &index in readable {
                if let Some(module) = self.modules.get_mut(index) {
                    module.progress(now, &self.shared.outbox);
                }
            }
        }
    }

    fn fetch(&mut self, readable: &[usize]) -> bool {
        let mut fetched = false;
        for &index in readable {
            fetched |= self.modules.get_mut(index).is_some_and(|module| module.fetch());
        }
        fetched
    }

    fn obey_all(&mut self) {
        for command in self.shared.inbox.take() {
            self.obey(command);
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

#[cfg(test)]
mod tests {
    use verbs::Driver;

    use super::*;
    use crate::manager::Advert;
    use crate::{EndpointKey, ProcessName};

    const KEY: EndpointKey = EndpointKey { index: 0, generation: 1 };

    /// The application gives the next of these just before the peer sends the message that is fetched with it.
    type Commands = Vec<fn() -> Command>;

    struct Fake {
        commands: Commands,
        shared: Arc<Shared>,
        happened: Arc<Mutex<Vec<&'static str>>>,
    }

    impl Fake {
        fn note(&self, what: &'static str) {
            lock(&self.happened).push(what);
        }
    }

    impl Module for Fake {
        fn advert(&self) -> Advert {
            Advert { name: "fake".to_owned(), priority: 1, blob: Vec::new() }
        }

        fn uses_cts(&self) -> bool {
            false
        }

        fn fds(&self) -> Vec<std::os::fd::RawFd> {
            Vec::new()
        }

        fn add_endpoint(&mut self, _: EndpointPlan, _: Instant, _: &Outbox) {
            self.note("added");
        }

        fn command(&mut self, _: EndpointKey, _: EndpointCommand, _: Instant, _: &Outbox) {
            self.note("removed");
        }

        fn fetch(&mut self) -> bool {
            let next = (!self.commands.is_empty()).then(|| self.commands.remove(0));
            next.map(|command| self.shared.inbox.push(command())).is_some()
        }

        fn progress(&mut self, _: Instant, _: &Outbox) {
            self.note("message");
        }

        fn next_timeout(&self) -> Option<Instant> {
            None
        }

        fn timeout(&mut self, _: Instant, _: &Outbox) {}

        fn close(&mut self, _: Instant, _: &Outbox) {}

        fn is_quiet(&self) -> bool {
            true
        }

        fn claim(&mut self, _: &AsyncEvent) -> Claim {
            Claim::No
        }

        fn counters(&self) -> Vec<(&'static str, u64)> {
            Vec::new()
        }
    }

    fn add() -> Command {
        let choice =
            Choice { component: "fake".to_owned(), peer_blob: Vec::new(), gids: None, alternate: None };
        let plan = EndpointPlan {
            stream: crate::StreamNum::NONE,
            key: KEY,
            peer: ProcessName(2),
            peer_blob: Vec::new(),
            cts: None,
            gids: None,
            label: 0,
        };
        Command::AddEndpoint(choice, plan)
    }

    fn remove() -> Command {
        Command::Endpoint(KEY, EndpointCommand::Remove)
    }

    /// Found by fuzzing: a request was looked at before a removal that was given before it was sent, and the removal took its connection.
    #[test]
    fn a_command_that_was_given_before_a_message_was_sent_is_obeyed_before_the_message_is_looked_at() {
        let (shared, happened) = (Arc::new(Shared::default()), Arc::default());
        let commands: Commands = vec![add, remove, add];
        let fake = Fake { commands, shared: shared.clone(), happened: Arc::clone(&happened) };
        let context = Driver::from_table(softib::driver_table()).devices().unwrap()[0].open().unwrap();
        let mut helper = Helper {
            poll: Poll::new().unwrap(),
            events: Events::with_capacity(1),
            device: Device { context, token: Token(2) },
            modules: vec![Box::new(fake)],
            owner: HashMap::new(),
            shared,
            closing: None,
            ending: None,
        };
        helper.begin();
        let expected = ["added", "message", "removed", "message", "added", "message"];
        assert_eq!(*lock(&happened), expected);
    }
}
