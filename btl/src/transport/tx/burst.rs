//! Whether a put or get is one of a burst: the upper layer begins others before it waits for it.
#![forbid(unsafe_code)]

/// Operations between two looks, or flushes. Programs do again what they have done before, so the first of them is taken for one of a burst where the
/// ones before it were.
#[derive(Debug, Default)]
pub struct Burst {
    /// The number of the last look before them.
    look: u32,
    /// How many there have been.
    count: u32,
    /// There was more than one of those before them.
    follows_burst: bool,
}

impl Burst {
    /// Whether an operation that begins behind this look is one of a burst.
    #[inline]
    pub fn is_on(&self, look: u32) -> bool {
        match self.count {
            0 => self.follows_burst,
            count => self.look == look || count > 1,
        }
    }

    /// An operation has begun behind this look.
    #[inline]
    pub fn count(&mut self, look: u32) {
        if self.look != look {
            self.end();
            self.look = look;
        }
        self.count += 1;
    }

    /// The upper layer waits for what has begun.
    #[inline]
    pub fn end(&mut self) {
        if self.count != 0 {
            (self.follows_burst, self.count) = (self.count > 1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of so many operations behind this look are taken for some of a burst.
    fn begin(burst: &mut Burst, look: u32, operations: usize) -> Vec<bool> {
        let one = |_| {
            let is_on = burst.is_on(look);
            burst.count(look);
            is_on
        };
        (0..operations).map(one).collect()
    }

    #[test]
    fn those_behind_the_first_are_and_the_first_one_behind_a_burst() {
        let mut burst = Burst::default();
        assert_eq!(begin(&mut burst, 1, 3), [false, true, true]);
        assert_eq!(begin(&mut burst, 2, 1), [true]);
        assert_eq!(begin(&mut burst, 3, 2), [false, true]);
    }

    #[test]
    fn a_flush_ends_it_without_a_look_and_looks_of_the_flush_change_nothing() {
        let mut burst = Burst::default();
        for _ in 0..3 {
            assert_eq!(begin(&mut burst, 7, 1), [false]);
            (0..4).for_each(|_| burst.end());
        }
        assert_eq!(begin(&mut burst, 7, 2), [false, true]);
        (0..4).for_each(|_| burst.end());
        assert_eq!(begin(&mut burst, 8, 1), [true]);
        burst.end();
        assert_eq!(begin(&mut burst, 8, 1), [false]);
    }
}
