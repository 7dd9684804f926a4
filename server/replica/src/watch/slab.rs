//! Numbered slots that are reused, with names that are not.

/// Names an entry. A name is never given twice, so that a stale one finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    slot: u32,
    generation: u32,
}

/// Entries by name.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    entry: Option<T>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, entry: T) -> Key {
        if let Some(slot) = self.free.pop() {
            let place = &mut self.slots[index(slot)];
            assert!(place.entry.is_none(), "a free slot is empty");
            place.entry = Some(entry);
            return Key { slot, generation: place.generation };
        }
        let slot = u32::try_from(self.slots.len()).expect("the hub's limits are far below 2^32");
        self.slots.push(Slot { generation: 0, entry: Some(entry) });
        Key { slot, generation: 0 }
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.slots.get_mut(index(key.slot)).filter(|place| place.generation == key.generation)?;
        let entry = place.entry.take()?;
        // A slot whose names are used up is never used again.
        if let Some(generation) = place.generation.checked_add(1) {
            place.generation = generation;
            self.free.push(key.slot);
        }
        Some(entry)
    }

    pub(super) fn get(&self, key: Key) -> Option<&T> {
        self.slots.get(index(key.slot)).filter(|place| place.generation == key.generation)?.entry.as_ref()
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.slots.get_mut(index(key.slot)).filter(|place| place.generation == key.generation)?.entry.as_mut()
    }

    /// All names, in the order of their slots.
    pub(super) fn keys(&self) -> Vec<Key> {
        let slots = self.slots.iter().enumerate().filter(|(_, place)| place.entry.is_some());
        slots.map(|(slot, place)| Key { slot: to_slot(slot), generation: place.generation }).collect()
    }
}

fn index(slot: u32) -> usize {
    usize::try_from(slot).expect("a slot is an index")
}

fn to_slot(index: usize) -> u32 {
    u32::try_from(index).expect("slots are numbered in 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_entry_is_not_found_by_its_old_name_after_its_slot_is_reused() {
        let mut slab = Slab::new();
        let old = slab.insert("a");
        let other = slab.insert("b");
        assert_eq!(slab.remove(old), Some("a"));
        let new = slab.insert("c");
        assert_ne!(old, new);
        assert_eq!((slab.get(old), slab.get(new), slab.get(other)), (None, Some(&"c"), Some(&"b")));
        assert_eq!((slab.remove(old), slab.len(), slab.keys()), (None, 2, vec![new, other]));
    }
}
