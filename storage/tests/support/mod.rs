//! An index on a simulated disk, driven from one thread.
#![allow(dead_code, clippy::unwrap_used)]

pub mod images;
pub mod model;
pub mod random;

use garboard_simdisk::{Disk, DiskError, Rng};
use garboard_storage::{
    Applied, Bounds, CompactionProgress, Index, IndexConfig, IndexIo, IoFailure, IoOp, Map, OpenError, OpenFacts,
    PageFile, Paged, Reader, Record, Revision, View,
};
use model::Model;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

pub const NAME: &str = "index";
/// Addresses of a test's file.
pub const RESERVE: usize = 256 << 20;

pub struct SimFile {
    pub disk: Mutex<Disk>,
    /// The disk in the middle of what is done at once; recorded only if a test asks for it.
    pub steps: Mutex<Option<Vec<Disk>>>,
    map: Map,
}

fn failure(error: DiskError) -> IoFailure {
    match error {
        DiskError::Full => IoFailure::NoSpace,
        _ => IoFailure::Errno(5),
    }
}

impl SimFile {
    pub fn new(disk: Disk) -> Arc<SimFile> {
        Arc::new(SimFile { disk: Mutex::new(disk), steps: Mutex::new(None), map: Map::anonymous(RESERVE).unwrap() })
    }

    pub fn perform(&self, op: &IoOp) -> Result<(), IoFailure> {
        let mut disk = self.disk.lock().unwrap();
        match op {
            IoOp::Write { offset, bytes } => {
                disk.write(NAME, *offset, bytes).map_err(failure)?;
                self.map.store(*offset, bytes);
                Ok(())
            }
            IoOp::Sync => disk.sync(NAME).map_err(failure),
            IoOp::Grow { new_size } => {
                disk.allocate(NAME, *new_size).map_err(failure)?;
                if let Some(steps) = self.steps.lock().unwrap().as_mut() {
                    steps.push(disk.clone());
                }
                disk.sync(NAME).map_err(failure)
            }
        }
    }
}

impl PageFile for SimFile {
    fn map(&self) -> &Map {
        &self.map
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), IoFailure> {
        self.disk.lock().unwrap().read(NAME, offset, into).map_err(failure)?;
        self.map.store(offset, into);
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        self.disk.lock().unwrap().size(NAME).unwrap_or(0)
    }
}

pub fn config() -> IndexConfig {
    let mut config = IndexConfig::new(11, 22);
    config.checkpoint_bytes = 1 << 20;
    config.dirty_bytes_max = 8 << 20;
    config
}

pub fn empty_disk() -> Disk {
    let mut disk = Disk::new();
    disk.create(NAME, 0).unwrap();
    disk.sync_folder().unwrap();
    disk.sync(NAME).unwrap();
    disk
}

pub fn open(disk: Disk) -> Result<(Index, OpenFacts, Arc<SimFile>), OpenError> {
    let file = SimFile::new(disk);
    let (index, facts) = Index::open(config(), Arc::clone(&file) as Arc<dyn PageFile>)?;
    Ok((index, facts, file))
}

/// Repeats a walk, loading what it needs. A page that cannot be loaded fails the test.
pub fn settle<T>(reader: &Reader, mut walk: impl FnMut() -> Paged<T>) -> T {
    loop {
        match walk() {
            Ok(found) => return found,
            Err(need) => reader.load(need.0).unwrap(),
        }
    }
}

/// An index with its model: what was published, and what each checkpoint holds.
pub struct Rig {
    pub file: Arc<SimFile>,
    pub index: Index,
    pub reader: Reader,
    pub model: Model,
    /// The model at each checkpoint started, by what was applied.
    pub checkpoints: BTreeMap<u64, Model>,
    pub durable: Option<u64>,
    out: Vec<(IndexIo, Result<(), IoFailure>)>,
    next_sub: i64,
}

impl Rig {
    pub fn create() -> Rig {
        let file = SimFile::new(empty_disk());
        let index = Index::create(config(), Arc::clone(&file) as Arc<dyn PageFile>);
        let mut rig = Rig::around(index, file, Model::default());
        rig.start_checkpoint();
        rig
    }

    pub fn around(index: Index, file: Arc<SimFile>, model: Model) -> Rig {
        let reader = index.reader();
        let checkpoints = BTreeMap::from([(model.applied, model.clone())]);
        Rig { file, index, reader, model, checkpoints, durable: None, out: Vec::new(), next_sub: 0 }
    }

    /// The disk as it is.
    pub fn disk(&self) -> Disk {
        self.file.disk.lock().unwrap().clone()
    }

    fn next(&mut self) -> Revision {
        self.next_sub += 1;
        Revision { main: self.model.revision.max(1) + i64::from(self.next_sub == 1), sub: self.next_sub - 1 }
    }

    pub fn put(&mut self, key: &[u8], value: &[u8], lease: i64) {
        let revision = self.next();
        let reader = self.reader.clone();
        settle(&reader, || self.index.prefetch(key));
        let outcome = self.index.put(revision, key, value, lease).unwrap();
        let expected = self.model.put(revision, key, value, lease);
        assert_eq!((outcome.previous, outcome.current), expected);
    }

    pub fn delete(&mut self, key: &[u8]) {
        let revision = self.next();
        let reader = self.reader.clone();
        settle(&reader, || self.index.prefetch(key));
        let outcome = self.index.delete(revision, key).unwrap();
        assert_eq!(outcome, self.model.delete(revision, key));
        if outcome.is_none() {
            self.next_sub -= 1;
        }
    }

    pub fn system_put(&mut self, key: &[u8], value: &[u8]) {
        self.index.system_put(key, value).unwrap();
        self.model.system.insert(key.to_vec(), value.to_vec());
    }

    pub fn system_delete(&mut self, key: &[u8]) {
        assert_eq!(self.index.system_delete(key).unwrap(), self.model.system.remove(key).is_some());
    }

    /// Ends a transaction: the next change has a new main revision.
    pub fn end_txn(&mut self) {
        self.next_sub = 0;
    }

    pub fn publish(&mut self) {
        self.end_txn();
        self.model.applied += 1;
        self.index.publish(Applied { index: self.model.applied, term: 1 }, self.model.revision);
    }

    /// Moves the floor, publishes, and lets the model do all the work at once.
    pub fn compact(&mut self, floor: i64) {
        self.index.set_compacted(floor);
        self.model.compact(floor);
        self.publish();
    }

    pub fn compaction_step(&mut self, budget: usize) -> CompactionProgress {
        let reader = self.reader.clone();
        settle(&reader, || self.index.compaction_step(budget))
    }

    pub fn finish_compaction(&mut self) {
        while self.index.compaction_pending() {
            self.compaction_step(100);
        }
    }

    pub fn start_checkpoint(&mut self) {
        let applied = self.model.applied;
        self.index.start_checkpoint(&applied.to_le_bytes(), b"conf");
        self.checkpoints.insert(applied, self.model.clone());
    }

    /// Does at most one thing with the disk; false when there is nothing to do. Effects complete in any order.
    pub fn io_step(&mut self, rng: &mut Rng) -> bool {
        if let Some(io) = self.index.poll_io() {
            let result = self.file.perform(&io.op);
            self.out.push((io, result));
            if rng.chance(50) {
                return true;
            }
        }
        if self.out.is_empty() {
            return false;
        }
        let (io, result) = self.out.swap_remove(rng.index(self.out.len()));
        self.index.handle_io(io.id, result).unwrap();
        if let Some(done) = self.index.poll_checkpoint_done() {
            self.durable = Some(done.applied.index);
        }
        true
    }

    pub fn finish_io(&mut self, rng: &mut Rng) {
        while self.io_step(rng) {}
    }

    /// A whole checkpoint, after the one under way.
    pub fn checkpoint(&mut self, rng: &mut Rng) {
        self.finish_io(rng);
        self.start_checkpoint();
        self.finish_io(rng);
        assert_eq!(self.durable, Some(self.model.applied));
    }

    pub fn assert_same(&self) {
        let snapshot = self.reader.pin();
        assert_same(&self.reader, snapshot.view(), &self.model);
    }
}

/// Everything that a view shows is what the model holds. Physical compaction may be behind: what the model has removed
/// may still be stored, but must not show.
pub fn assert_same(reader: &Reader, view: View<'_>, model: &Model) {
    assert_eq!(view.revision(), model.revision);
    assert_eq!(view.compacted(), model.compacted);
    assert_eq!(view.applied().index, model.applied);
    assert_eq!(range(reader, view, Bounds::ALL, i64::MAX), model.range(Bounds::ALL, i64::MAX));
    let count = settle(reader, || view.count(Bounds::ALL, i64::MAX));
    assert_eq!(count, u64::try_from(model.range(Bounds::ALL, i64::MAX).len()).unwrap());
    let mut events = view.events(Revision { main: model.compacted.max(0), sub: 0 });
    let mut expected =
        model.records.range(Revision { main: model.compacted.max(0), sub: 0 }..).map(|(_, record)| record);
    while let Some(record) = settle(reader, || events.next()) {
        // Only at the floor itself may the trees still hold what the model has removed.
        if record.revision.main <= model.compacted && !model.records.contains_key(&record.revision) {
            continue;
        }
        assert_eq!(Some(visible(record, model)), expected.next().map(|record| visible(record.clone(), model)));
    }
    assert_eq!(expected.next(), None);
    let mut system = view.system_scan(b"");
    let mut expected = model.system.iter();
    while let Some((key, value)) = settle(reader, || system.next()) {
        assert_eq!(Some((&key, &value)), expected.next());
    }
    assert_eq!(expected.next(), None);
}

/// A record without a pointer to what compaction has taken, or will take, away.
pub fn visible(mut record: Record, model: &Model) -> Record {
    record.previous = record.previous.filter(|previous| model.records.contains_key(previous));
    record
}

pub fn range(
    reader: &Reader,
    view: View<'_>,
    bounds: Bounds<'_>,
    at: i64,
) -> Vec<(Vec<u8>, garboard_storage::Version)> {
    let mut found = Vec::new();
    let mut cursor = view.cursor(bounds, at);
    while let Some(entry) =
        settle(reader, || cursor.next().map(|next| next.map(|(key, version)| (key.to_vec(), version))))
    {
        found.push(entry);
    }
    found
}
