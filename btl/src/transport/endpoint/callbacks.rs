//! The callbacks that the upper layer is owed.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

/// The callbacks that are owed to the upper layer for one endpoint.
#[derive(Debug, Default)]
pub struct Callbacks {
    /// Ticket of the first that has not returned.
    first: u64,
    /// From that one on: whether it has returned.
    over: VecDeque<bool>,
}

impl Callbacks {
    /// One more; its ticket.
    #[inline]
    pub fn add(&mut self) -> u64 {
        self.over.push_back(false);
        self.next() - 1
    }

    /// The ticket of the next one.
    pub fn next(&self) -> u64 {
        self.first + self.over.len() as u64
    }

    /// The callback has returned.
    #[inline]
    pub fn returned(&mut self, ticket: u64) {
        if let Some(over) = ticket.checked_sub(self.first).and_then(|at| self.over.get_mut(at as usize)) {
            *over = true;
        }
        while self.over.front() == Some(&true) {
            self.over.pop_front();
            self.first += 1;
        }
    }

    /// All have returned.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.over.is_empty()
    }

    /// One before `end` has not returned, those `but` left aside.
    pub fn any_before(&self, end: u64, but: &[u64]) -> bool {
        let before = (self.first..end).zip(&self.over);
        before.into_iter().any(|(ticket, over)| !over && !but.contains(&ticket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_callback_is_owed_until_it_has_returned(
            steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..200),
            end in 0u64..200,
        ) {
            let (mut owed, mut open) = (Callbacks::default(), Vec::new());
            for (add, which) in steps {
                if add || open.is_empty() {
                    open.push(owed.add());
                } else {
                    owed.returned(open.swap_remove(which.index(open.len())));
                }
                prop_assert_eq!(owed.is_empty(), open.is_empty());
                prop_assert_eq!(owed.any_before(end, &[]), open.iter().any(|ticket| *ticket < end));
                prop_assert!(!owed.any_before(end, &open));
            }
            open.iter().for_each(|ticket| owed.returned(*ticket));
            prop_assert!(owed.over.is_empty(), "what has returned costs nothing");
        }
    }
}
