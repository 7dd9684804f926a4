//! Ordered maps behind the index's interface: the model that the real trees are tested against.

use crate::file::PageFile;
use crate::io::{CheckpointDone, IndexConfig, IndexFailure, IndexIo, IoFailure, IoId, OpenError, OpenFacts, PageError};
use crate::types::*;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, RwLock};

#[derive(Clone, Debug)]
struct State {
    revisions: Arc<BTreeMap<Revision, Record>>,
    current: Arc<BTreeMap<Bytes, Version>>,
    system: Arc<BTreeMap<Vec<u8>, Vec<u8>>>,
    applied: Applied,
    revision: i64,
    compacted: i64,
    finished: i64,
    scanned_to: i64,
}

/// What a pinned root or the writer's working state shows.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    state: &'a State,
}

impl<'a> View<'a> {
    /// The newest main revision; 1 in an empty store.
    pub fn revision(&self) -> i64 {
        self.state.revision
    }

    /// The logical compaction floor; −1 before any compaction.
    pub fn compacted(&self) -> i64 {
        self.state.compacted
    }

    /// What the log had applied.
    pub fn applied(&self) -> Applied {
        self.state.applied
    }

    /// The version of `key` that is live at revision `at` (`i64::MAX` for the newest).
    pub fn find(&self, key: &[u8], at: i64) -> Paged<Option<Version>> {
        Ok(self.version_at(key, at)?.filter(|version| !version.deleted))
    }

    /// The newest version of `key`, tombstones included.
    pub fn newest(&self, key: &[u8]) -> Paged<Option<Version>> {
        Ok(self.state.current.get(key).copied())
    }

    /// The newest version of `key` at revision `at`, tombstones included.
    pub fn version_at(&self, key: &[u8], at: i64) -> Paged<Option<Version>> {
        let Some(newest) = self.state.current.get(key) else { return Ok(None) };
        let mut version = *newest;
        while version.modified.main > at {
            let previous = self.state.revisions.get(&version.modified).and_then(|record| record.previous);
            let Some(record) = previous.and_then(|revision| self.state.revisions.get(&revision)) else {
                return Ok(None);
            };
            version = record.version();
        }
        Ok(Some(version))
    }

    /// How many keys are live inside `bounds` at revision `at`.
    pub fn count(&self, bounds: Bounds<'_>, at: i64) -> Paged<u64> {
        let mut counter = self.counter(bounds, at);
        loop {
            if let Some(count) = counter.step(usize::MAX)? {
                return Ok(count);
            }
        }
    }

    /// Counts in bounded steps.
    pub fn counter(&self, bounds: Bounds<'_>, at: i64) -> Counter<'a> {
        Counter { cursor: self.cursor(bounds, at), count: 0 }
    }

    /// The live keys inside `bounds` at revision `at`, in key order.
    pub fn cursor(&self, bounds: Bounds<'_>, at: i64) -> Cursor<'a> {
        let end = bounds.end.map(<[u8]>::to_vec);
        Cursor { view: *self, from: Bound::Included(bounds.start.to_vec()), end, at, key: Vec::new() }
    }

    /// Appends the value of a revision to `into`; false when the revision is gone.
    pub fn value(&self, revision: Revision, into: &mut Vec<u8>) -> Paged<bool> {
        let Some(record) = self.state.revisions.get(&revision) else { return Ok(false) };
        into.extend_from_slice(&record.value);
        Ok(true)
    }

    /// One revision.
    pub fn record(&self, revision: Revision) -> Paged<Option<Record>> {
        Ok(self.state.revisions.get(&revision).cloned())
    }

    /// The revisions from `from` on, in order.
    pub fn events(&self, from: Revision) -> EventCursor<'a> {
        EventCursor { view: *self, from }
    }

    /// An entry of the system tree.
    pub fn system_get(&self, key: &[u8]) -> Paged<Option<Vec<u8>>> {
        Ok(self.state.system.get(key).cloned())
    }

    /// The entries of the system tree whose keys begin with `prefix`, in order.
    pub fn system_scan(&self, prefix: &[u8]) -> SystemCursor<'a> {
        SystemCursor { view: *self, prefix: prefix.to_vec(), from: Bound::Included(prefix.to_vec()) }
    }
}

/// Counts live keys in bounded steps.
#[derive(Debug)]
pub struct Counter<'a> {
    cursor: Cursor<'a>,
    count: u64,
}

impl Counter<'_> {
    /// Goes on for at most `budget` keys or revisions; gives the count at the end.
    pub fn step(&mut self, budget: usize) -> Paged<Option<u64>> {
        for _ in 0..budget {
            if self.cursor.next()?.is_none() {
                return Ok(Some(self.count));
            }
            self.count += 1;
        }
        Ok(None)
    }
}

/// Walks live keys in key order.
#[derive(Debug)]
pub struct Cursor<'a> {
    view: View<'a>,
    from: Bound<Vec<u8>>,
    end: Option<Vec<u8>>,
    at: i64,
    key: Vec<u8>,
}

impl Cursor<'_> {
    /// The next live key and its version. After [`NeedPage`] the cursor stands where it stood.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Paged<Option<(&[u8], Version)>> {
        let from = match &self.from {
            Bound::Included(key) => Bound::Included(key.as_slice()),
            Bound::Excluded(key) => Bound::Excluded(key.as_slice()),
            Bound::Unbounded => Bound::Unbounded,
        };
        for (key, _) in self.view.state.current.range::<[u8], _>((from, Bound::Unbounded)) {
            if self.end.as_ref().is_some_and(|end| key.as_ref() >= end.as_slice()) {
                return Ok(None);
            }
            if let Some(version) = self.view.find(key, self.at)? {
                self.from = Bound::Excluded(key.to_vec());
                self.key = key.to_vec();
                return Ok(Some((&self.key, version)));
            }
        }
        Ok(None)
    }
}

/// Walks revisions in order.
#[derive(Debug)]
pub struct EventCursor<'a> {
    view: View<'a>,
    from: Revision,
}

impl EventCursor<'_> {
    /// The next revision. After [`NeedPage`] the cursor stands where it stood.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Paged<Option<Record>> {
        let Some((revision, record)) = self.view.state.revisions.range(self.from..).next() else { return Ok(None) };
        self.from = Revision { main: revision.main, sub: revision.sub + 1 };
        Ok(Some(record.clone()))
    }
}

/// Walks entries of the system tree.
#[derive(Debug)]
pub struct SystemCursor<'a> {
    view: View<'a>,
    prefix: Vec<u8>,
    from: Bound<Vec<u8>>,
}

impl SystemCursor<'_> {
    /// The next entry. After [`NeedPage`] the cursor stands where it stood.
    #[allow(clippy::should_implement_trait, clippy::type_complexity)]
    pub fn next(&mut self) -> Paged<Option<(Vec<u8>, Vec<u8>)>> {
        let next = self.view.state.system.range((self.from.clone(), Bound::Unbounded)).next();
        let Some((key, value)) = next.filter(|(key, _)| key.starts_with(&self.prefix)) else { return Ok(None) };
        self.from = Bound::Excluded(key.clone());
        Ok(Some((key.clone(), value.clone())))
    }
}

/// Pins published roots, on any core.
#[derive(Clone, Debug)]
pub struct Reader {
    published: Arc<RwLock<State>>,
}

impl Reader {
    /// Pins the newest published root.
    pub fn pin(&self) -> Snapshot {
        Snapshot { state: self.published.read().expect("no holder panics").clone() }
    }

    /// Reads and verifies a page; blocks.
    pub fn load(&self, _page: PageId) -> Result<(), PageError> {
        Ok(())
    }

    /// The revision of the newest published root.
    pub fn revision(&self) -> i64 {
        self.published.read().expect("no holder panics").revision
    }
}

/// A pinned root; dropping it unpins.
#[derive(Debug)]
pub struct Snapshot {
    state: State,
}

impl Snapshot {
    /// What the root shows.
    pub fn view(&self) -> View<'_> {
        View { state: &self.state }
    }
}

/// The writer.
#[derive(Debug)]
pub struct Index {
    state: State,
    published: Arc<RwLock<State>>,
}

impl Index {
    /// A fresh index in an empty file.
    pub fn create(_config: IndexConfig, _file: Arc<dyn PageFile>) -> Index {
        let state = State {
            revisions: Arc::default(),
            current: Arc::default(),
            system: Arc::default(),
            applied: Applied::default(),
            revision: 1,
            compacted: -1,
            finished: -1,
            scanned_to: 0,
        };
        Index { published: Arc::new(RwLock::new(state.clone())), state }
    }

    /// Opens what the newest durable checkpoint left.
    pub fn open(config: IndexConfig, file: Arc<dyn PageFile>) -> Result<(Index, OpenFacts), OpenError> {
        let facts = OpenFacts {
            cluster_id: config.cluster_id,
            member_id: config.member_id,
            revision: 1,
            compacted: -1,
            ..OpenFacts::default()
        };
        Ok((Index::create(config, file), facts))
    }

    /// The working state, including what is not published yet.
    pub fn view(&self) -> View<'_> {
        View { state: &self.state }
    }

    /// A handle that pins published roots.
    pub fn reader(&self) -> Reader {
        Reader { published: Arc::clone(&self.published) }
    }

    /// Whether everything that a put or delete of `key` will touch is resident.
    pub fn prefetch(&self, _key: &[u8]) -> Paged<()> {
        Ok(())
    }

    /// Writes a version of `key` at `revision`, which is above every revision used so far.
    pub fn put(&mut self, revision: Revision, key: &[u8], value: &[u8], lease: i64) -> Paged<PutOutcome> {
        let newest = self.state.current.get(key).copied();
        let live = newest.filter(|version| !version.deleted);
        let record = Record {
            revision,
            key: Bytes::copy_from_slice(key),
            value: Bytes::copy_from_slice(value),
            create_revision: live.map_or(revision.main, |version| version.create_revision),
            version: live.map_or(0, |version| version.version) + 1,
            lease,
            deleted: false,
            previous: newest.map(|version| version.modified),
        };
        let current = record.version();
        Arc::make_mut(&mut self.state.current).insert(record.key.clone(), current);
        Arc::make_mut(&mut self.state.revisions).insert(revision, record);
        self.state.revision = revision.main;
        Ok(PutOutcome { previous: live, current })
    }

    /// Writes a tombstone of `key` at `revision` if the key is live; gives the version that was.
    pub fn delete(&mut self, revision: Revision, key: &[u8]) -> Paged<Option<Version>> {
        let Some(live) = self.state.current.get(key).copied().filter(|version| !version.deleted) else {
            return Ok(None);
        };
        let record = Record {
            revision,
            key: Bytes::copy_from_slice(key),
            value: Bytes::new(),
            create_revision: 0,
            version: 0,
            lease: 0,
            deleted: true,
            previous: Some(live.modified),
        };
        Arc::make_mut(&mut self.state.current).insert(record.key.clone(), record.version());
        Arc::make_mut(&mut self.state.revisions).insert(revision, record);
        self.state.revision = revision.main;
        Ok(Some(live))
    }

    /// Writes an entry of the system tree.
    pub fn system_put(&mut self, key: &[u8], value: &[u8]) -> Paged<()> {
        Arc::make_mut(&mut self.state.system).insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    /// Removes an entry of the system tree; false when there was none.
    pub fn system_delete(&mut self, key: &[u8]) -> Paged<bool> {
        Ok(Arc::make_mut(&mut self.state.system).remove(key).is_some())
    }

    /// Moves the logical compaction floor up; the physical work follows in steps.
    pub fn set_compacted(&mut self, revision: i64) {
        assert!(revision >= self.state.compacted, "the floor never falls");
        self.state.compacted = revision;
    }

    /// Publishes the working state as one new root.
    pub fn publish(&mut self, applied: Applied, revision: i64) {
        assert!(revision >= self.state.revision, "the revision never falls");
        self.state.applied = applied;
        self.state.revision = revision;
        *self.published.write().expect("no holder panics") = self.state.clone();
    }

    /// Whether physical compaction has work left.
    pub fn compaction_pending(&self) -> bool {
        self.state.finished < self.state.compacted
    }

    /// Compacts at most `budget` revisions.
    pub fn compaction_step(&mut self, budget: usize) -> Paged<CompactionProgress> {
        let target = self.state.compacted;
        let from = Revision { main: self.state.scanned_to, sub: 0 };
        let below = self.state.revisions.range(from..).take_while(|(revision, _)| revision.main <= target);
        let whole_mains = below.take(budget.max(1)).map(|(revision, _)| revision.main);
        let Some(last) = whole_mains.last() else {
            self.state.finished = target;
            self.state.scanned_to = target.max(0);
            return Ok(CompactionProgress::Finished(target));
        };
        let batch: Vec<Record> = self
            .state
            .revisions
            .range(from..=Revision { main: last, sub: i64::MAX })
            .map(|(_, record)| record.clone())
            .collect();
        let revisions = Arc::make_mut(&mut self.state.revisions);
        for record in batch {
            if let Some(previous) = record.previous {
                revisions.remove(&previous);
            }
            if record.deleted && record.revision.main < target {
                revisions.remove(&record.revision);
                if self.state.current.get(&record.key).is_some_and(|version| version.modified == record.revision) {
                    Arc::make_mut(&mut self.state.current).remove(&record.key);
                }
            }
        }
        self.state.scanned_to = last + 1;
        Ok(CompactionProgress::Running { scanned_to: last + 1, target })
    }

    /// Bytes of changed pages held in memory.
    pub fn dirty_bytes(&self) -> u64 {
        0
    }

    /// Whether a checkpoint should start.
    pub fn wants_checkpoint(&self) -> bool {
        false
    }

    /// Whether new writes must wait for a checkpoint.
    pub fn must_wait(&self) -> bool {
        false
    }

    /// Pins the published root for a checkpoint, which carries the log's anchor and the membership.
    pub fn start_checkpoint(&mut self, _anchor: &[u8], _conf: &[u8]) {}

    /// The next effect, if one may start now.
    pub fn poll_io(&mut self) -> Option<IndexIo> {
        None
    }

    /// Tells the outcome of an effect.
    pub fn handle_io(&mut self, _id: IoId, _result: Result<(), IoFailure>) -> Result<(), IndexFailure> {
        Ok(())
    }

    /// A checkpoint that became durable.
    pub fn poll_checkpoint_done(&mut self) -> Option<CheckpointDone> {
        None
    }

    /// How large the index is.
    pub fn size(&self) -> IndexSize {
        IndexSize::default()
    }
}
