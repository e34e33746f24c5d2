//! Budgets of work requests and completions: never more out than there is, everything comes back.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use mca_btl_oxib::protocol::budget::{CqBudget, NeedsDepth, SendBudget};
use proptest::prelude::*;

#[test]
fn data_leaves_the_reserve_to_control_messages() {
    let mut budget = SendBudget::new(3);
    assert!(budget.acquire_leaving(2));
    assert!(!budget.acquire_leaving(2), "two must remain");
    assert!(budget.acquire() && budget.acquire());
    assert!(!budget.acquire());
    budget.release(3);
    assert_eq!((budget.free(), budget.in_flight(), budget.total()), (3, 0, 3));
}

#[test]
fn a_completion_queue_that_is_too_small_says_what_it_needs() {
    let mut cq = CqBudget::new(10);
    assert_eq!(cq.reserve(8), Ok(()));
    assert_eq!(cq.reserve(4), Err(NeedsDepth(12)));
    assert_eq!((cq.reserved(), cq.free()), (8, 2), "nothing was reserved");
    assert!(!cq.resized(7), "completions that may come must fit");
    assert!(cq.resized(12));
    assert_eq!(cq.reserve(4), Ok(()));
    assert_eq!(cq.reserve(u32::MAX), Err(NeedsDepth(u32::MAX)));
}

proptest! {
    #[test]
    fn work_requests_are_conserved(total in 0..100_u32, steps: Vec<(bool, u16)>) {
        let mut budget = SendBudget::new(total);
        let mut out = 0_u16;
        for (acquire, count) in steps {
            if acquire {
                let ok = budget.acquire_leaving(count % 4);
                prop_assert_eq!(ok, u32::from(out + count % 4) < total);
                out += u16::from(ok);
            } else {
                let count = count % (out + 1);
                budget.release(count);
                out -= count;
            }
            prop_assert_eq!(budget.in_flight(), out);
            prop_assert_eq!(u32::from(budget.free() + out), total);
        }
    }

    #[test]
    fn completions_never_exceed_the_depth(depth in 0..1000_u32, steps: Vec<(bool, u8)>) {
        let mut cq = CqBudget::new(depth);
        let mut out = 0;
        for (reserve, count) in steps {
            let count = u32::from(count);
            if reserve {
                let ok = cq.reserve(count).is_ok();
                prop_assert_eq!(ok, out + count <= depth);
                out += if ok { count } else { 0 };
            } else {
                cq.release(count.min(out));
                out -= count.min(out);
            }
            prop_assert_eq!((cq.reserved(), cq.free()), (out, depth - out));
        }
    }
}
