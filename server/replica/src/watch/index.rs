//! Watchers by the keys they watch.

use std::collections::HashMap;

use bytes::Bytes;

use super::intervals::Intervals;
use super::slab::Key;
use crate::request::KeyRange;

/// Finds the watchers that watch a key: single keys by hash, ranges by their tree.
#[derive(Debug)]
pub(super) struct MatchIndex {
    points: HashMap<Bytes, Vec<Key>>,
    ranges: Intervals,
}

impl MatchIndex {
    pub(super) fn new() -> Self {
        Self { points: HashMap::new(), ranges: Intervals::new() }
    }

    pub(super) fn insert(&mut self, keys: &KeyRange, watcher: Key) {
        match keys {
            KeyRange::Point(key) => self.points.entry(key.clone()).or_default().push(watcher),
            range => self.ranges.insert(&range.first_key(), &range.end_key(), watcher),
        }
    }

    pub(super) fn remove(&mut self, keys: &KeyRange, watcher: Key) {
        let KeyRange::Point(key) = keys else {
            self.ranges.remove(&keys.first_key(), &keys.end_key(), watcher);
            return;
        };
        let watchers = self.points.get_mut(key).expect("a watcher's key is in the map");
        let position = watchers.iter().position(|other| *other == watcher).expect("the watcher is at its key");
        watchers.swap_remove(position);
        if watchers.is_empty() {
            self.points.remove(key);
        }
    }

    /// Shows every watcher of a key.
    pub(super) fn find(&self, key: &[u8], visit: &mut dyn FnMut(Key)) {
        if let Some(watchers) = self.points.get(key) {
            watchers.iter().for_each(|watcher| visit(*watcher));
        }
        self.ranges.stab(key, visit);
    }
}
