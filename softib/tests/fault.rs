//! The places of guarded mappings, which the handler of a signal reads while other threads map and unmap, in all interleavings.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p softib --test fault`

#![cfg(loom)]
#![allow(clippy::unwrap_used)]

use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use softib::shm::fault::Place;

fn place() -> Arc<Place<AtomicUsize>> {
    Arc::new(Place::of([0, 0, 0].map(AtomicUsize::new)))
}

/// A length that is not the mapping's would have the handler take the fault of another one for its own.
#[test]
fn a_handler_sees_a_mapping_whole_or_not_at_all() {
    loom::model(|| {
        let place = place();
        assert!(place.take());
        place.fill(0x1000, 0x10, 7);
        let mapper = {
            let place = place.clone();
            loom::thread::spawn(move || {
                assert!(place.give_back(0x1000) && place.take());
                place.fill(0x2000, 0x20, 8);
            })
        };
        let seen = place.range();
        assert!([0..0, 0x1000..0x1010, 0x2000..0x2020].contains(&seen), "{seen:x?}");
        mapper.join().unwrap();
        assert_eq!(place.range(), 0x2000..0x2020);
    });
}

#[test]
fn a_place_is_taken_by_one_of_two() {
    loom::model(|| {
        let place = place();
        let other = {
            let place = place.clone();
            loom::thread::spawn(move || place.take())
        };
        let ours = place.take();
        assert!(ours != other.join().unwrap());
    });
}
