//! A `receive_queues` string, of the user or of a peer's address message.

use mca_btl_oxib::protocol::layout::{Layout, MAX_QUEUES};

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Layout::parse(text) {
        Ok(layout) => sane(&layout),
        Err(error) => {
            assert!(
                error.at() <= text.len() && text.is_char_boundary(error.at()),
                "the place is in the text"
            );
            assert!(!error.to_string().is_empty());
        }
    }
}

/// Every size up to the largest has a queue, which holds it.
fn sane(layout: &Layout) {
    assert!((1..=MAX_QUEUES).contains(&layout.queues().len()));
    assert_eq!(layout.fingerprint(), layout.fingerprint());
    for len in [0, 1, layout.largest_payload()] {
        let index = layout.for_payload(len).expect("a queue for a length that fits");
        assert!(layout.queues()[index].size as usize >= len);
    }
    assert!(layout.for_payload(layout.largest_payload() + 1).is_none());
}
