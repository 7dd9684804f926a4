//! Ordered maps that behave as the index should.

use garboard_storage::{Bounds, Record, Revision, Version};
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    pub records: BTreeMap<Revision, Record>,
    pub current: BTreeMap<Vec<u8>, Version>,
    pub system: BTreeMap<Vec<u8>, Vec<u8>>,
    pub revision: i64,
    pub compacted: i64,
    pub applied: u64,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            records: BTreeMap::new(),
            current: BTreeMap::new(),
            system: BTreeMap::new(),
            revision: 1,
            compacted: -1,
            applied: 0,
        }
    }
}

impl Model {
    pub fn put(&mut self, revision: Revision, key: &[u8], value: &[u8], lease: i64) -> (Option<Version>, Version) {
        let newest = self.current.get(key).copied();
        let live = newest.filter(|version| !version.deleted);
        let record = Record {
            revision,
            key: key.to_vec().into(),
            value: value.to_vec().into(),
            create_revision: live.map_or(revision.main, |version| version.create_revision),
            version: live.map_or(0, |version| version.version) + 1,
            lease,
            deleted: false,
            previous: newest.map(|version| version.modified),
        };
        let version = record.version();
        self.add(record);
        (live, version)
    }

    pub fn delete(&mut self, revision: Revision, key: &[u8]) -> Option<Version> {
        let live = self.current.get(key).copied().filter(|version| !version.deleted)?;
        self.add(Record {
            revision,
            key: key.to_vec().into(),
            value: Default::default(),
            create_revision: 0,
            version: 0,
            lease: 0,
            deleted: true,
            previous: Some(live.modified),
        });
        Some(live)
    }

    fn add(&mut self, record: Record) {
        self.current.insert(record.key.to_vec(), record.version());
        self.revision = record.revision.main;
        self.records.insert(record.revision, record);
    }

    pub fn version_at(&self, key: &[u8], at: i64) -> Option<Version> {
        let mut version = *self.current.get(key)?;
        while version.modified.main > at {
            let previous = self.records[&version.modified].previous?;
            version = self.records.get(&previous)?.version();
        }
        Some(version)
    }

    pub fn find(&self, key: &[u8], at: i64) -> Option<Version> {
        self.version_at(key, at).filter(|version| !version.deleted)
    }

    pub fn range(&self, bounds: Bounds<'_>, at: i64) -> Vec<(Vec<u8>, Version)> {
        let inside = self.current.keys().filter(|key| bounds.contains(key));
        inside.filter_map(|key| Some((key.clone(), self.find(key, at)?))).collect()
    }

    /// Moves the floor and does the whole physical work at once.
    pub fn compact(&mut self, floor: i64) {
        self.compacted = floor;
        let mut kept: BTreeMap<Vec<u8>, Revision> = BTreeMap::new();
        for (revision, record) in self.records.range(..=Revision { main: floor, sub: i64::MAX }) {
            kept.insert(record.key.to_vec(), *revision);
        }
        self.records.retain(|revision, record| {
            revision.main > floor
                || (kept[record.key.as_ref()] == *revision && (!record.deleted || revision.main == floor))
        });
        let records = &self.records;
        self.current.retain(|_, version| records.contains_key(&version.modified));
    }
}
