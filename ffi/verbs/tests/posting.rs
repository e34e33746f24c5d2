//! Posting through the safe layer, over the software device: chains of receives, and what gives buffers back.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

mod common;

use common::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use verbs::*;

#[test]
fn receives_of_a_list_complete_in_its_order_and_can_be_posted_again() {
    let mut pair = Pair::connected(16);
    let mut receives = held(&mut pair, 10..14);
    let texts = [&b"first"[..], b"second", b"third", b"last"];
    for _ in 0..3 {
        let mut list = RecvList::<_, 4>::new(&*pair.to);
        assert!(receives.iter_mut().all(|recv| list.push(recv)));
        assert_eq!((list.post().unwrap(), list.len()), (4, 0));
        for text in texts {
            pair.from.post_send_inline(20, text, SendFlags::empty()).unwrap();
        }
        for (text, recv) in texts.into_iter().zip(&mut receives) {
            let wc = wait(&pair.recv_cq);
            assert_eq!((wc.wr_id(), wc.is_ok()), (recv.wr_id(), true));
            let len = wc.byte_len() as usize;
            let bytes = recv.completed(wc).unwrap();
            assert_eq!(&bytes.as_slice()[..len], text);
            assert!(recv.is_lent() && recv.take().is_none(), "its bytes are lent");
            recv.back(bytes).unwrap();
        }
    }
}

#[test]
fn a_list_takes_what_has_a_buffer_and_no_more_than_it_has_room_for() {
    let mut pair = Pair::connected(16);
    let (mut receives, mut empty) = (held(&mut pair, 0..4), Recv::new(9));
    let mut list = RecvList::<_, 3>::new(&*pair.to);
    assert!(!list.push(&mut empty), "it has no buffer");
    assert_eq!(
        receives.iter_mut().map(|recv| list.push(recv)).collect::<Vec<_>>(),
        [true, true, true, false]
    );
    assert!(!list.push(&mut receives[0]), "it is in the list");
    assert_eq!((list.post().unwrap(), receives[3].is_held()), (3, true));
}

#[test]
fn what_a_full_queue_refuses_of_a_list_comes_back_to_its_receives() {
    let mut pair = Pair::connected(4);
    let depth = pair.to.cap().max_recv_wr as usize;
    let mut receives = held(&mut pair, 0..depth as u64 + 2);
    let mut list = RecvList::<_, 64>::new(&*pair.to);
    assert!(receives.iter_mut().all(|recv| list.push(recv)));
    let (went, error) = list.post().unwrap_err();
    assert_eq!((error.call(), error.errno(), went), ("ibv_post_recv", libc::ENOMEM, depth));
    let rest: Vec<u64> = std::iter::from_fn(|| list.pop())
        .map(|unposted| {
            let recv = &mut receives[unposted.wr_id() as usize];
            assert!(recv.refused(&unposted) && !recv.refused(&unposted), "once");
            unposted.wr_id()
        })
        .collect();
    assert_eq!(rest, [depth as u64 + 1, depth as u64]);
    assert_eq!(receives.iter().filter(|recv| recv.is_posted()).count(), depth);
    assert_eq!(receives.iter().filter(|recv| recv.is_held()).count(), 2);
}

#[test]
fn bytes_come_back_to_the_receive_that_lent_them_alone() {
    let mut pair = Pair::connected(8);
    let mut receives = held(&mut pair, 0..2);
    let mut list = RecvList::<_, 2>::new(&*pair.to);
    assert!(receives.iter_mut().all(|recv| list.push(recv)));
    list.post().unwrap();
    for _ in 0..2 {
        pair.from.post_send_inline(0, b"text", SendFlags::empty()).unwrap();
    }
    let (first, second) = (wait(&pair.recv_cq), wait(&pair.recv_cq));
    assert!(receives[0].completed(second).is_none(), "the completion of the other");
    let bytes = receives[0].completed(first).unwrap();
    let bytes = receives[1].back(bytes).unwrap_err();
    receives[0].back(bytes).unwrap();
    assert!(receives[0].take().is_some() && receives[0].take().is_none());
}

#[test]
fn a_chain_of_sends_arrives_in_its_order_and_what_is_inline_comes_back_at_once() {
    let mut pair = Pair::with(8, false);
    let texts = [&b"first"[..], b"second", b"third", b"last"];
    let posted: Vec<Posted> =
        (0..4).map(|wr_id| pair.to.post_recv(wr_id, pair.pool.take().unwrap()).unwrap()).collect();
    let mut chain = SendChain::<4>::new();
    for (wr_id, text) in (30..).zip(texts) {
        let (buf, flags) =
            (pair.buf(text), if wr_id == 33 { SendFlags::SIGNALED } else { SendFlags::empty() });
        chain.push(wr_id, (buf, text.len() as u32), (flags, wr_id == 31), None).unwrap();
    }
    let mut went = Vec::new();
    pair.from.post_sends(&mut chain, |wr_id, sent| went.push((wr_id, sent))).unwrap();
    assert!(chain.is_empty());
    let inline: Vec<u64> =
        went.iter().filter(|(_, sent)| matches!(sent, Sent::Copied(_))).map(|(wr_id, _)| *wr_id).collect();
    assert_eq!((went.len(), inline), (4, vec![31]));
    for (text, buf) in texts.into_iter().zip(posted) {
        let wc = wait(&pair.recv_cq);
        let len = wc.byte_len() as usize;
        assert_eq!(&buf.completed(wc).unwrap().as_slice()[..len], text);
    }
    assert_eq!(wait(&pair.send_cq).wr_id(), 33);
}

#[test]
fn what_a_full_send_queue_refuses_of_a_chain_stays_in_it() {
    let mut pair = Pair::connected(4);
    let depth = pair.from.cap().max_send_wr as usize;
    let (mut went, mut chain) = (0, SendChain::<64>::new());
    for wr_id in 0..depth + 2 {
        chain.push(wr_id as u64, (pair.buf(b"text"), 4), (SendFlags::SIGNALED, false), None).unwrap();
    }
    let error = pair.from.post_sends(&mut chain, |_, _| went += 1).unwrap_err();
    assert_eq!((error.call(), error.errno(), went), ("ibv_post_send", libc::ENOMEM, depth));
    let rest: Vec<u64> = std::iter::from_fn(|| chain.pop()).map(|(wr_id, _)| wr_id).collect();
    assert_eq!(rest, [depth as u64 + 1, depth as u64]);
}

#[test]
fn buffers_that_are_posted_stay_with_the_device_when_the_caller_panics() {
    let mut pair = Pair::connected(8);
    let mut chain = SendChain::<3>::new();
    for wr_id in 0..3 {
        chain.push(wr_id, (pair.buf(b"text"), 4), (SendFlags::SIGNALED, false), None).unwrap();
    }
    let post = || pair.from.post_sends(&mut chain, |_, _| panic!("on purpose"));
    assert!(catch_unwind(AssertUnwindSafe(post)).is_err());
    assert!(chain.pop().is_none(), "the device has them all");
}

#[test]
fn a_completion_gives_back_the_buffer_of_its_own_receive_alone() {
    let mut pair = Pair::connected(8);
    let mut post = |wr_id| pair.to.post_recv(wr_id, pair.pool.take().unwrap()).unwrap();
    let (first, second) = (post(1), post(2));
    post(3);
    for _ in 0..3 {
        pair.from.post_send_inline(0, b"text", SendFlags::empty()).unwrap();
    }
    let (one, two, three) = (wait(&pair.recv_cq), wait(&pair.recv_cq), wait(&pair.recv_cq));
    let first = first.completed(two).expect_err("of the next one");
    assert!(first.completed(one).is_ok(), "its own");
    assert!(second.completed(three).is_err(), "of a later one");
}

/// The id of the `count`-th send of a queue pair.
fn send_id(name: u64, count: u16) -> u64 {
    name | u64::from(count) << SEND_COUNT
}

#[test]
fn a_completion_gives_back_the_buffers_of_the_sends_up_to_its_own() {
    let mut pair = Pair::connected(8);
    for wr_id in 0..5 {
        pair.to.post_recv(wr_id, pair.pool.take().unwrap()).unwrap();
    }
    // Counts wrap on the way.
    let ids = [send_id(7, u16::MAX), send_id(7, 0), send_id(7, 1), send_id(8, 0)];
    let mut sent: Vec<Posted> = Vec::new();
    for id in ids {
        let buf = pair.pool.take().unwrap();
        sent.push(pair.from.post_send(id, buf, 4, SendFlags::empty()).unwrap());
    }
    let done: Vec<Completion> = ids.iter().map(|_| wait(&pair.send_cq)).collect();
    let other = sent.pop().unwrap();
    assert!(other.completed_up_to(&done[2]).is_none(), "of another name");
    assert!(sent.pop().unwrap().completed_up_to(&done[1]).is_none(), "posted behind it");
    assert!(sent.into_iter().all(|buf| buf.completed_up_to(&done[1]).is_some()));
}

/// Its completion is the only one of sends that are not signalled, and on a queue pair in the error state it is flushed.
#[test]
fn an_empty_write_completes_behind_sends_that_are_not_signalled() {
    let mut pair = Pair::with(8, false);
    for count in 0..3 {
        let buf = pair.buf(b"");
        let _posted = pair.to.post_recv(count, buf).map_err(|(_, error)| error).unwrap();
        pair.from.post_send_inline(count, b"text", SendFlags::empty()).unwrap();
    }
    pair.from.post_empty_write(7, SendFlags::SIGNALED).unwrap();
    let done = wait(&pair.send_cq);
    assert_eq!((done.wr_id(), done.status()), (7, WcStatus::Success));
    let arrived: Vec<_> = (0..3).map(|_| wait(&pair.recv_cq).wr_id()).collect();
    assert_eq!(arrived, [0, 1, 2]);
    pair.from.to_error().unwrap();
    pair.from.post_empty_write(8, SendFlags::SIGNALED).unwrap();
    let done = wait(&pair.send_cq);
    assert_eq!((done.wr_id(), done.status()), (8, WcStatus::Flushed));
}

#[test]
fn a_shared_queue_that_is_gone_gives_back_its_own_receives() {
    let mut pair = Pair::connected(4);
    let pd = Pd::alloc(pair.pd.context()).unwrap();
    let (gone, stays) = (Srq::create(&pd, 4, 1).unwrap(), Srq::create(&pd, 4, 1).unwrap());
    let ours = gone.post_recv(1, pair.pool.take().unwrap()).unwrap();
    let other = stays.post_recv(1, pair.pool.take().unwrap()).unwrap();
    let gone = Arc::into_inner(gone).unwrap().destroy().unwrap();
    assert!(ours.outlived(&gone).is_some());
    assert!(other.outlived(&gone).is_none());
}

fn written<'a>(outbox: &'a mut Outbox, at: usize, text: &[u8]) -> Part<'a> {
    let mut room = outbox.room(at, text.len()).unwrap();
    room.bytes().copy_from_slice(text);
    room.written()
}

#[test]
fn messages_of_an_outbox_are_sent_from_where_they_lie() {
    let mut pair = Pair::connected(16);
    let mut receives = held(&mut pair, 0..3);
    let mut list = RecvList::<_, 3>::new(&*pair.to);
    assert!(receives.iter_mut().all(|recv| list.push(recv)));
    list.post().unwrap();
    let mut outbox = Outbox::registered(&pair.from, 4096).unwrap();
    assert_eq!((outbox.is_registered(), outbox.len(), outbox.is_empty()), (true, 4096, false));
    assert_eq!(outbox.bytes(4000, 96).unwrap(), [0; 96], "zero at first");
    for (at, len) in [(4000, 97), (4097, 0), (0, 4097), (usize::MAX, 2)] {
        assert!(outbox.bytes(at, len).is_none() && outbox.room(at, len).is_none(), "{at} and {len}");
    }
    let texts = [(0, &b"the first of them"[..]), (2000, b"another"), (4090, b"at end")];
    for (wr_id, (at, text)) in (1..).zip(texts) {
        let part = written(&mut outbox, at, text);
        assert_eq!(part.as_slice(), text);
        pair.from.post_send_part(wr_id, part, SendFlags::empty()).unwrap();
    }
    for ((_, text), recv) in texts.into_iter().zip(&mut receives) {
        let wc = wait(&pair.recv_cq);
        let len = wc.byte_len() as usize;
        assert_eq!(&recv.completed(wc).unwrap().as_slice()[..len], text);
    }
    let done: Vec<u64> = (1..=3).map(|_| wait(&pair.send_cq).wr_id()).collect();
    assert_eq!(done, [1, 2, 3]);
}

#[test]
fn an_outbox_serves_its_own_queue_pair_alone() {
    let pair = Pair::connected(4);
    let refused = |qp: &Qp, outbox: &mut Outbox| {
        let part = written(outbox, 0, b"whatever");
        let error = qp.post_send_part(1, part, SendFlags::empty()).unwrap_err();
        assert_eq!((error.call(), error.errno()), ("ibv_post_send", libc::EINVAL));
    };
    refused(&pair.from, &mut Outbox::registered(&pair.to, 64).unwrap());
    let mut plain = Outbox::unregistered(64);
    assert_eq!((plain.is_registered(), plain.bytes(56, 8)), (false, Some(&[0; 8][..])));
    refused(&pair.from, &mut plain);
    assert!(Outbox::unregistered(0).is_empty());
}

/// The device reads a message when the peer has a receive for it.
#[test]
fn what_an_outbox_has_posted_is_there_until_the_queue_pair_goes() {
    let mut pair = Pair::connected(4);
    let text = b"longer than anything inline";
    let mut outbox = Outbox::registered(&pair.from, 1 << 16).unwrap();
    let part = written(&mut outbox, 60_000, text);
    pair.from.post_send_part(1, part, SendFlags::empty()).unwrap();
    drop(outbox);
    let mut receives = held(&mut pair, 0..1);
    let mut list = RecvList::<_, 1>::new(&*pair.to);
    assert!(list.push(&mut receives[0]));
    list.post().unwrap();
    let wc = wait(&pair.recv_cq);
    assert_eq!((wc.is_ok(), wc.byte_len() as usize), (true, text.len()));
    assert_eq!(&receives[0].completed(wc).unwrap().as_slice()[..text.len()], text);
    assert!(wait(&pair.send_cq).is_ok());
}
