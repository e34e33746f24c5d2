//! So many requests wait for their first answer at a time; later ones wait for a place.
//!
//! A request leaves its place when it has had its first answer, or its first silence: a peer that is slow or gone holds a place
//! for one time-out only.

use std::collections::VecDeque;

/// The places, and those that wait for one; `K` names a request.
#[derive(Debug)]
pub(crate) struct Window<K> {
    places: u32,
    taken: u32,
    waiting: VecDeque<K>,
}

impl<K> Window<K> {
    /// A window of so many places; at least one.
    pub(crate) fn new(places: u32) -> Self {
        Window { places: places.max(1), taken: 0, waiting: VecDeque::new() }
    }

    /// Puts a request at the end of the line.
    pub(crate) fn push(&mut self, request: K) {
        self.waiting.push_back(request);
    }

    /// Puts several there.
    pub(crate) fn extend(&mut self, requests: impl Iterator<Item = K>) {
        self.waiting.extend(requests);
    }

    /// The next in line, if there is a place for it. It has none before [`Window::enter`].
    pub(crate) fn next(&mut self) -> Option<K> {
        if self.taken < self.places { self.waiting.pop_front() } else { None }
    }

    pub(crate) fn enter(&mut self) {
        self.taken += 1;
    }

    pub(crate) fn leave(&mut self) {
        self.taken = self.taken.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_in_line_comes_when_there_is_a_place() {
        let mut window = Window::new(2);
        window.extend(1..=4);
        for expected in [Some(1), Some(2), None] {
            let next = window.next();
            assert_eq!(next, expected);
            next.into_iter().for_each(|_| window.enter());
        }
        window.leave();
        assert_eq!(window.next(), Some(3));
        assert_eq!(window.next(), Some(4), "the third has not entered: it had nothing to ask");
    }

    #[test]
    fn a_window_without_places_has_one() {
        let mut window = Window::new(0);
        window.push(());
        assert_eq!(window.next(), Some(()));
    }
}
