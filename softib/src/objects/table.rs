//! A table of objects of fixed addresses, which remembers the one that was asked for last: a caller that asks for that again does not wait for the table.
//!
//! ```text
//!   recent: index and address ───────────────────────┐
//!   entries: [ none | address | address | ... ] ──> object
//! ```

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// The table, by index.
#[derive(Debug)]
#[repr(C)] // in this order
pub struct Table<T> {
    /// The object that was [asked for again](Self::get_again) last, and its index. It is in the table.
    recent: Option<(usize, NonNull<T>)>,
    entries: Vec<Option<Entry<T>>>,
}

/// An object, which the entry owns. Not a box, beside which nothing else may know the address.
#[derive(Debug)]
struct Entry<T>(NonNull<T>);

// SAFETY: it owns the object, as a box does.
unsafe impl<T: Send> Send for Entry<T> {}
// SAFETY: `recent` is the address of one of the entries, and used under a borrow of the whole table only.
unsafe impl<T: Send> Send for Table<T> {}

impl<T> Entry<T> {
    fn new(object: Box<T>) -> Entry<T> {
        Entry(NonNull::from(Box::leak(object)))
    }

    fn into_box(self) -> Box<T> {
        let Entry(object) = *ManuallyDrop::new(self);
        // SAFETY: `new` has taken it out of a box; `self` is not dropped, so it is put into one once.
        unsafe { Box::from_raw(object.as_ptr()) }
    }

    #[inline(always)] // with every message
    fn get(&self) -> &T {
        // SAFETY: it lives as long as the entry, which is borrowed.
        unsafe { self.0.as_ref() }
    }

    #[inline(always)] // with every message
    fn get_mut(&mut self) -> &mut T {
        // SAFETY: it lives as long as the entry, which is borrowed exclusively, and with it the table.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Entry<T> {
    fn drop(&mut self) {
        // SAFETY: `new` has taken it out of a box, and the entry, which is its only user, is gone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<T> Table<T> {
    /// So many places without an object.
    pub fn of_empty(places: usize) -> Table<T> {
        Table { recent: None, entries: std::iter::repeat_with(|| None).take(places).collect() }
    }

    /// Places.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// One more place without an object.
    pub fn grow(&mut self) {
        self.entries.push(None);
    }

    /// Puts an object in its place, of those that there are.
    pub fn insert(&mut self, index: usize, object: Box<T>) {
        self.forget(index);
        self.entries[index] = Some(Entry::new(object));
    }

    /// Takes an object out.
    pub fn take(&mut self, index: usize) -> Option<Box<T>> {
        self.forget(index);
        self.entries.get_mut(index)?.take().map(Entry::into_box)
    }

    fn forget(&mut self, index: usize) {
        self.recent.take_if(|(recent, _)| *recent == index);
    }

    /// The object at an index.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.entries.get_mut(index)?.as_mut().map(Entry::get_mut)
    }

    /// The same, which is most often the one that was asked for in this way last.
    #[inline(always)] // with every message
    pub fn get_again(&mut self, index: usize) -> Option<&mut T> {
        match &mut self.recent {
            // SAFETY: it is in the table, for who takes it out or puts another one in its place forgets it here. It is borrowed as if it were found there.
            Some((recent, object)) if *recent == index => Some(unsafe { object.as_mut() }),
            _ => self.look_up(index),
        }
    }

    #[inline(never)]
    fn look_up(&mut self, index: usize) -> Option<&mut T> {
        let entry = self.entries.get_mut(index)?.as_mut()?;
        self.recent = Some((index, entry.0));
        Some(entry.get_mut())
    }

    /// All objects, by index.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().flatten().map(Entry::get)
    }

    /// All objects, by index.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().flatten().map(Entry::get_mut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_recent_object_is_the_one_that_is_in_its_place() {
        let mut table = Table::of_empty(2);
        table.grow();
        table.insert(1, Box::new(10));
        table.insert(2, Box::new(20));
        for (index, is) in
            [(1, Some(10)), (1, Some(10)), (2, Some(20)), (1, Some(10)), (0, None), (3, None), (1, Some(10))]
        {
            assert_eq!(table.get_again(index).copied(), is, "object {index}");
        }
        *table.get_again(1).unwrap() += 1;
        assert_eq!(table.get_mut(1).copied(), Some(11), "one object, however it is found");
        assert_eq!(table.take(1).as_deref(), Some(&11));
        assert_eq!(table.get_again(1), None, "what has been taken out is not found");
        table.insert(1, Box::new(12));
        assert_eq!(table.get_again(1).copied(), Some(12), "nor in place of what has come there");
        table.insert(1, Box::new(13));
        assert_eq!(table.get_again(1).copied(), Some(13));
        assert_eq!(table.iter().copied().collect::<Vec<_>>(), [13, 20]);
        table.iter_mut().for_each(|object| *object += 1);
        assert_eq!((table.get_again(1).copied(), table.len()), (Some(14), 3));
    }

    #[test]
    fn each_object_is_dropped_once() {
        let counted = Arc::new(());
        let mut table = Table::of_empty(3);
        for index in 0..3 {
            table.insert(index, Box::new(Arc::clone(&counted)));
        }
        assert!(table.get_again(0).is_some());
        table.insert(1, Box::new(Arc::clone(&counted)));
        drop(table.take(0));
        assert_eq!(Arc::strong_count(&counted), 3, "one was replaced, one taken out");
        drop(table);
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
