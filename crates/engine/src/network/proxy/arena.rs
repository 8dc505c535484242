//! Things by number. A number is never good for two things: a late event for something closed finds nothing.

#[derive(Debug)]
pub struct Arena<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    pub index: u32,
    /// 24 bits, so that a key and what kind of thing it names fit one word of an epoll event.
    pub generation: u32,
}

const GENERATIONS: u32 = 1 << 24;

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Arena { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Arena<T> {
    /// The key that the next thing will get.
    pub fn next(&mut self) -> Key {
        if self.free.is_empty() {
            self.slots.push(Slot { generation: 0, value: None });
            self.free.push((self.slots.len() - 1) as u32);
        }
        let index = self.free[self.free.len() - 1];
        Key { index, generation: self.slots[index as usize].generation }
    }

    pub fn insert(&mut self, value: T) -> Key {
        let key = self.next();
        self.free.pop();
        self.slots[key.index as usize].value = Some(value);
        key
    }

    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    pub fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_ref() } else { None }
    }

    pub fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize).filter(|slot| slot.generation == key.generation)?;
        let value = slot.value.take()?;
        slot.generation = (slot.generation + 1) % GENERATIONS;
        self.free.push(key.index);
        Some(value)
    }

    pub fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// The keys of all entries that match.
    pub fn keys(&self, mut wanted: impl FnMut(&T) -> bool) -> Vec<Key> {
        let slots = self.slots.iter().enumerate();
        slots
            .filter(|(_, slot)| slot.value.as_ref().is_some_and(&mut wanted))
            .map(|(index, slot)| Key { index: index as u32, generation: slot.generation })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_outlives_its_thing_and_finds_nothing() {
        let mut arena = Arena::default();
        let first = arena.insert("first");
        assert_eq!(arena.remove(first), Some("first"));
        assert!(arena.is_empty());
        let second = arena.insert("second");
        assert_eq!(second.index, first.index, "the place is used again");
        assert_eq!(arena.get(first), None);
        assert_eq!(arena.remove(first), None);
        assert_eq!(arena.get(second), Some(&"second"));
        assert_eq!(arena.keys(|_| true), [second]);
    }
}
