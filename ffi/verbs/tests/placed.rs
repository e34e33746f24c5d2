//! Messages that the software device has left where they were, through the safe layer.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

mod common;

use common::*;
use std::time::{Duration, Instant};
use verbs::*;

const LEN: usize = 600;

fn text(seed: u64) -> Vec<u8> {
    (0..LEN as u64).map(|at| (at * 7 + seed) as u8).collect()
}

/// Sends messages until one has been left where it was; the others are for `copied`. Which message that was.
fn sent_until_placed(
    pair: &mut Pair,
    mut copied: impl FnMut(&Pair, Completion, Vec<u8>),
) -> (u64, Completion) {
    let begin = Instant::now();
    let mut batch = Completions::<1>::new();
    for seed in 0.. {
        // A device that is polled leaves messages where they are; one that is not copies them.
        (0..600).for_each(|_| assert_eq!(pair.recv_cq.poll(&mut batch).unwrap(), 0));
        let message = pair.buf(&text(seed));
        let sent = pair.from.post_send(0, message, LEN as u32, SendFlags::empty()).unwrap();
        let done = wait(&pair.recv_cq);
        pair.pool.put(sent.completed(wait(&pair.send_cq)).unwrap());
        assert_eq!((done.is_ok(), done.byte_len() as usize), (true, LEN));
        if done.is_placed() {
            return (seed, done);
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "none stays");
        copied(pair, done, text(seed));
    }
    unreachable!()
}

/// The same; a receive whose message has been copied is posted again.
fn placed(pair: &mut Pair, receives: &mut [Recv]) -> (u64, Completion) {
    sent_until_placed(pair, |pair, done, text| {
        let recv = &mut receives[done.wr_id() as usize];
        let bytes = recv.completed(done).unwrap();
        assert_eq!(bytes.as_slice()[..LEN], text);
        recv.back(bytes).unwrap();
        post(pair, std::slice::from_mut(recv));
    })
}

fn post(pair: &Pair, receives: &mut [Recv]) {
    let mut list = RecvList::<_, 4>::new(&*pair.to);
    assert!(receives.iter_mut().all(|recv| list.push(recv)));
    list.post().unwrap();
}

/// One test: a process reads one message in place at a time.
#[test]
fn a_message_in_its_place_is_read_given_back_kept_and_put_into_its_buffer() {
    let mut pair = Pair::connected(16);
    assert!(pair.recv_cq.place_messages(500));
    let mut receives = held(&mut pair, 0..3);
    post(&pair, &mut receives);

    // Read and given back; to another receive it is not.
    let (seed, done) = placed(&mut pair, &mut receives);
    let own = done.wr_id() as usize;
    let bytes = receives[own].completed(done).unwrap();
    assert_eq!((bytes.capacity(), bytes.as_slice()), (LEN, &text(seed)[..]));
    let bytes = receives[(own + 1) % 3].back(bytes).unwrap_err();
    receives[own].back(bytes).unwrap();
    let buf = receives[own].take().unwrap();
    assert!(buf.as_slice()[..LEN] != text(seed), "its buffer has not got it");
    receives[own].hold(buf).unwrap();
    post(&pair, &mut receives[own..=own]);

    // Of no receive that is known: its buffer stays with the device, and the place is free for another one.
    let (_, done) = placed(&mut pair, &mut receives);
    assert!(Recv::new(done.wr_id()).completed(done).is_none());

    // Kept: in its own buffer, and the place is free for another one.
    let (seed, done) = placed(&mut pair, &mut receives);
    let own = done.wr_id() as usize;
    let bytes = receives[own].completed(done).unwrap();
    let kept = receives[own].settle(bytes);
    assert_eq!((kept.capacity(), &kept.as_slice()[..LEN]), (BUF_LEN as usize, &text(seed)[..]));
    let kept = receives[own].settle(kept);
    let (next, mut done) = placed(&mut pair, &mut receives);

    // A completion that is kept.
    let other = done.wr_id() as usize;
    receives[other].settle_completion(&mut done);
    assert!(!done.is_placed());
    let bytes = receives[other].completed(done).unwrap();
    assert_eq!((&kept.as_slice()[..LEN], &bytes.as_slice()[..LEN]), (&text(seed)[..], &text(next)[..]));
    receives[own].back(kept).unwrap();
    receives[other].back(bytes).unwrap();

    // Of a receive that gives its buffer back itself.
    let buf = pair.pool.take().unwrap();
    let mut posted = Some(pair.to.post_recv(9, buf).unwrap());
    let (seed, done) = sent_until_placed(&mut pair, |pair, done, text| {
        let buf = posted.take().unwrap().completed(done).unwrap();
        assert_eq!(buf.as_slice()[..LEN], text);
        posted = Some(pair.to.post_recv(9, buf).unwrap());
    });
    assert_eq!(posted.unwrap().completed(done).unwrap().as_slice()[..LEN], text(seed));
}
