//! Waits for events and signals: a handler that was installed without SA_RESTART ends the wait with EINTR, as with libibverbs and
//! librdmacm; with it the wait goes on. qperf ends each of its tests by SIGALRM.
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "common/connections.rs"]
mod connections;

use common::*;
use connections::{Channel, cm, resolve};
use rdma_sys::*;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

static HANDLED: AtomicU32 = AtomicU32::new(0);
/// Handlers are the process'.
static TURN: Mutex<()> = Mutex::new(());
/// The event comes when the handler has run so often.
const ENOUGH: u32 = 20;

extern "C" fn handler(_: i32) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

/// SIGALRM for this thread, every millisecond.
struct Alarm<'a>(libc::timer_t, #[allow(dead_code)] MutexGuard<'a, ()>);

impl Alarm<'_> {
    fn start(flags: i32) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        HANDLED.store(0, Ordering::SeqCst);
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) = (handler as *const () as usize, flags);
            assert_eq!(libc::sigaction(libc::SIGALRM, &action, null_mut()), 0);
            let mut event: libc::sigevent = std::mem::zeroed();
            (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_THREAD_ID, libc::SIGALRM);
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer = null_mut();
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
            let each = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let times = libc::itimerspec { it_interval: each, it_value: each };
            assert_eq!(libc::timer_settime(timer, 0, &times, null_mut()), 0);
            Alarm(timer, turn)
        }
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Raw pointers for another thread.
struct Sent<T>(T);
unsafe impl<T> Send for Sent<T> {}

impl<T> Sent<T> {
    fn get(self) -> T {
        self.0
    }
}

/// Waits by `wait`, in which signals come, for what `raise` raises after a while: a wait that they end, and one that they do not.
fn wait_among_signals<T: Copy + 'static>(on: T, raise: fn(T), wait: impl Fn() -> i32) {
    for flags in [0, libc::SA_RESTART] {
        let alarm = Alarm::start(flags);
        let on = Sent(on);
        let raising = std::thread::spawn(move || {
            while HANDLED.load(Ordering::SeqCst) < ENOUGH {
                std::thread::yield_now();
            }
            raise(on.get());
        });
        let code = wait();
        let outcome = (code, if code == 0 { 0 } else { last_errno() });
        while HANDLED.load(Ordering::SeqCst) < ENOUGH {
            std::thread::yield_now();
        }
        drop(alarm);
        raising.join().unwrap();
        if flags == 0 {
            assert_eq!(outcome, (-1, libc::EINTR), "without SA_RESTART");
            assert_eq!(wait(), 0, "the event is not lost");
        } else {
            assert_eq!(outcome, (0, 0), "with SA_RESTART");
        }
    }
}

#[test]
fn a_wait_for_a_completion_event_ends_with_a_signal_as_its_handler_was_installed() {
    let dev = Dev::open();
    let channel = unsafe { (table().create_comp_channel)(dev.ctx) };
    let qp = dev.qp(IBV_QPT_RC, dev.cq_on(16, channel));
    qp.init(ALL_ACCESS);
    assert_eq!(qp.to_state(IBV_QPS_ERR), 0);
    // In ERR a receive is flushed at once.
    let flush = |qp: Qp| {
        assert_eq!(unsafe { ibv_req_notify_cq(qp.cq, 0) }, 0);
        assert_eq!(qp.recv(1, &[]), 0);
    };
    wait_among_signals(qp, flush, || {
        let (mut cq, mut context) = (null_mut(), null_mut());
        let code = unsafe { (table().get_cq_event)(channel, &mut cq, &mut context) };
        if code == 0 {
            unsafe { (table().ack_cq_events)(cq, 1) };
            while poll(qp.cq).is_some() {}
        }
        code
    });
}

#[test]
fn a_wait_for_an_asynchronous_event_ends_with_a_signal_as_its_handler_was_installed() {
    let dev = Dev::open();
    let qp = dev.qp(IBV_QPT_RC, dev.cq(16));
    qp.init(ALL_ACCESS);
    wait_among_signals(
        qp,
        |qp| softib::faults::kill_connection(qp.num()).unwrap(),
        || {
            let mut event = ibv_async_event::default();
            let code = unsafe { (table().get_async_event)(dev.ctx, &mut event) };
            if code == 0 {
                unsafe { (table().ack_async_event)(&mut event) };
            }
            code
        },
    );
}

#[test]
fn a_wait_for_a_connection_event_ends_with_a_signal_as_its_handler_was_installed() {
    // Its ids are not destroyed: the thread that has made one may still be about to return from its call.
    let channel = std::mem::ManuallyDrop::new(Channel::open());
    let raise = |channel: *mut rdma_cm_sys::rdma_event_channel| {
        let channel = std::mem::ManuallyDrop::new(Channel(channel));
        let code = resolve(channel.id(rdma_cm_sys::RDMA_PS_TCP), "127.0.0.1:9");
        assert_eq!((code, last_errno() * code), (0, 0));
    };
    wait_among_signals(channel.0, raise, || {
        let mut event = null_mut();
        let code = unsafe { (cm().get_cm_event)(channel.0, &mut event) };
        if code == 0 {
            unsafe { (cm().ack_cm_event)(event) };
        }
        code
    });
}
