//! A store for the tests of reads and watches: the index with the revisions assigned as apply assigns them, and a plain
//! list of everything that ever happened, which the tests hold the reads against.

use std::sync::Arc;

use bytes::Bytes;
use garboard_storage::{Applied, Index, IndexConfig, NoFile, Revision, Snapshot};

use crate::events::{Event, EventBatch};
use crate::request::{KeyRange, KeyValue, Range, SortOrder, SortTarget};

/// One change to make in a transaction.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Put(Bytes, Bytes, i64),
    Delete(Bytes),
}

pub(crate) struct Store {
    pub(crate) index: Index,
    pub(crate) revision: i64,
    pub(crate) compacted: i64,
    /// Every change since the beginning, compacted or not.
    pub(crate) history: Vec<Event>,
}

impl Store {
    pub(crate) fn new() -> Self {
        let index =
            Index::create(IndexConfig::new(1, 1), Arc::new(NoFile::new(1 << 30).expect("addresses are plenty")));
        Self { index, revision: 1, compacted: -1, history: Vec::new() }
    }

    /// A store with `key → value` put in order, each a revision of its own, from revision 2 on.
    pub(crate) fn with(pairs: &[(&str, &str)]) -> Self {
        let mut store = Self::new();
        for (key, value) in pairs {
            store.put(key, value);
        }
        store
    }

    pub(crate) fn put(&mut self, key: &str, value: &str) -> Arc<EventBatch> {
        self.put_leased(key, value, 0)
    }

    pub(crate) fn put_leased(&mut self, key: &str, value: &str, lease: i64) -> Arc<EventBatch> {
        self.apply(&[vec![Change::Put(bytes(key), bytes(value), lease)]]).expect("a put changes something")
    }

    /// Applies transactions as one batch and publishes it; `None` when nothing changed.
    pub(crate) fn apply(&mut self, txns: &[Vec<Change>]) -> Option<Arc<EventBatch>> {
        let first_revision = self.revision + 1;
        let start = self.history.len();
        for changes in txns {
            let main = self.revision + 1;
            let mut sub = 0;
            for change in changes {
                sub += i64::from(self.change(Revision { main, sub }, change));
            }
            if sub > 0 {
                self.revision = main;
            }
        }
        self.publish();
        let events = self.history[start..].to_vec();
        (!events.is_empty()).then(|| Arc::new(EventBatch { first_revision, last_revision: self.revision, events }))
    }

    fn change(&mut self, revision: Revision, change: &Change) -> bool {
        let (event, changed) = match change {
            Change::Put(key, value, lease) => {
                let outcome = self.index.put(revision, key, value, *lease).expect("everything is resident");
                let kv = KeyValue {
                    key: key.clone(),
                    create_revision: outcome.current.create_revision,
                    mod_revision: revision.main,
                    version: outcome.current.version,
                    value: value.clone(),
                    lease: *lease,
                };
                (Event { deleted: false, kv, revision, previous: live(outcome.previous) }, true)
            }
            Change::Delete(key) => {
                let previous = self.index.delete(revision, key).expect("everything is resident");
                let kv = KeyValue { key: key.clone(), mod_revision: revision.main, ..KeyValue::default() };
                (Event { deleted: true, kv, revision, previous: live(previous) }, previous.is_some())
            }
        };
        if changed {
            self.history.push(event);
        }
        changed
    }

    fn publish(&mut self) {
        let index = u64::try_from(self.revision).expect("revisions are positive");
        self.index.publish(Applied { index, term: 1 }, self.revision);
    }

    /// Moves the floor; with `physical` also does the work.
    pub(crate) fn compact(&mut self, revision: i64, physical: bool) {
        self.compacted = revision;
        self.index.set_compacted(revision);
        while physical && self.index.compaction_pending() {
            self.index.compaction_step(7).expect("everything is resident");
        }
        self.publish();
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.index.reader().pin()
    }

    /// The live pairs at a revision, by key, from the history alone.
    pub(crate) fn pairs_at(&self, at: i64) -> Vec<KeyValue> {
        let mut pairs = std::collections::BTreeMap::new();
        for event in self.history.iter().filter(|event| event.kv.mod_revision <= at) {
            if event.deleted {
                pairs.remove(&event.kv.key);
            } else {
                pairs.insert(event.kv.key.clone(), event.kv.clone());
            }
        }
        pairs.into_values().collect()
    }
}

fn live(version: Option<garboard_storage::Version>) -> Option<garboard_storage::Revision> {
    version.map(|version| version.modified)
}

pub(crate) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

pub(crate) fn span(start: &str, end: &str) -> KeyRange {
    KeyRange::Span { start: bytes(start), end: bytes(end) }
}

/// A plain read of `keys`: the newest revision, no limit, key order.
pub(crate) fn read(keys: KeyRange) -> Range {
    Range {
        keys,
        limit: 0,
        revision: 0,
        order: SortOrder::None,
        target: SortTarget::Key,
        serializable: false,
        keys_only: false,
        count_only: false,
        min_mod_revision: 0,
        max_mod_revision: 0,
        min_create_revision: 0,
        max_create_revision: 0,
    }
}

/// Small seeded dice for random tests.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: i64, high: i64) -> i64 {
        let width = u64::try_from(high - low + 1).expect("low <= high");
        low + i64::try_from(self.below(width)).expect("below the width")
    }
}

/// Runs a random test over seeds, or over the one in `GARBOARD_SEED`; the seed of a failure is printed.
/// `GARBOARD_SEEDS` makes it run over more.
pub(crate) fn seeds(count: u64, test: impl Fn(u64)) {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("replay with GARBOARD_SEED={}", self.0);
            }
        }
    }
    let number = |name| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a seed is a number"));
    let count = number("GARBOARD_SEEDS").unwrap_or(count);
    for seed in number("GARBOARD_SEED").map_or(0..count, |seed| seed..seed + 1) {
        let named = Named(seed);
        test(seed);
        drop(named);
    }
}
