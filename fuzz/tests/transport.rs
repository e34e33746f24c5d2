//! The inputs of `transport`, in a binary of their own: a plan of faults is the whole process'.

#![allow(clippy::expect_used, clippy::panic, reason = "a test may fail anywhere")]

mod replay;

#[test]
fn every_kept_order_of_operations_delivers_what_it_was_given() {
    replay::replay("transport");
}
