//! etcd's `HashKV`, in bounded steps.

use crate::View;
use crate::codec::put_varint;
use crate::limits;
use crate::types::{Paged, Record, Revision};

/// What etcd's `HashKV` answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashKv {
    /// CRC-32C of the history.
    pub hash: u32,
    /// The compaction floor that it was computed with.
    pub compact_revision: i64,
    /// The revision up to which it was computed.
    pub revision: i64,
}

/// Which hash it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    /// What `HashKV` answers.
    Answer,
    /// What a compaction to the revision computes: it keeps the tombstones of exactly that revision.
    Compaction,
}

/// Computes the hash of all revisions up to one, as etcd does.
///
/// It covers the bytes `key`, then for each stored revision up to the chosen one, in order, the revision as etcd
/// encodes it and the marshalled `mvccpb.KeyValue`. At or below the compaction floor only what a compaction at the
/// chosen revision would keep counts, which are the versions live then. If it would keep nothing, all versions live at
/// the floor count. A tombstone at the floor itself never does. So the value does not depend on how far physical
/// compaction is.
///
/// The floor and the revision are fixed at the start. Each step may be given a newer view, as long as nothing above
/// the chosen revision was compacted meanwhile: the floor must not have passed it. With
/// [`KvHasher::for_compaction`] nothing above the floor may have been removed.
///
/// A revision costs a read of its value, and at or below the floor one or two look-ups of its key.
#[derive(Debug)]
pub struct KvHasher {
    purpose: Purpose,
    /// As long as nothing that is kept was met, this one leaves out everything at or below the floor.
    crc: u32,
    /// The hash in case nothing is kept; not needed any more once something was met.
    all: u32,
    something_kept: bool,
    revision: i64,
    compacted: i64,
    next: Revision,
}

impl KvHasher {
    /// The hash that `HashKV` answers. The caller has checked that `compacted ≤ revision ≤ newest`.
    pub fn new(view: &View<'_>, revision: i64) -> KvHasher {
        KvHasher::start(Purpose::Answer, view.compacted(), revision)
    }

    /// The hash that a compaction to `revision` computes on its way, where an earlier one that is finished went up to
    /// `floor`. It is what `HashKV` would have answered before, but if no key is live at `revision` and one was
    /// deleted just then: the compaction keeps that tombstone, so that nothing below the floor counts.
    pub fn for_compaction(floor: i64, revision: i64) -> KvHasher {
        assert!(floor < revision, "a compaction raises the floor");
        KvHasher::start(Purpose::Compaction, floor, revision)
    }

    fn start(purpose: Purpose, compacted: i64, revision: i64) -> KvHasher {
        let crc = crc32c::crc32c(b"key");
        KvHasher { purpose, crc, all: crc, something_kept: false, revision, compacted, next: Revision::default() }
    }

    /// The revision up to which it hashes.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Goes on for at most `budget` revisions, fewer if they are large ([`limits::HASH_STEP_BYTES`]); gives the hash
    /// at the end.
    pub fn step(&mut self, view: &View<'_>, budget: usize) -> Paged<Option<HashKv>> {
        let mut events = view.events(self.next);
        let mut bytes = 0;
        for _ in 0..budget {
            let Some(record) = events.next()? else { return Ok(Some(self.finish())) };
            if record.revision.main > self.revision {
                return Ok(Some(self.finish()));
            }
            self.take(view, &record)?;
            self.next = Revision { main: record.revision.main, sub: record.revision.sub + 1 };
            bytes += record.key.len() + record.value.len();
            if bytes >= limits::HASH_STEP_BYTES {
                break;
            }
        }
        Ok(None)
    }

    fn take(&mut self, view: &View<'_>, record: &Record) -> Paged<()> {
        let above_floor = record.revision.main > self.compacted;
        let kept = if above_floor && self.something_kept { false } else { self.is_kept(view, record)? };
        if !self.something_kept && !kept {
            // Both are still possible.
            let at_floor = above_floor || is_live(view, record, self.compacted)?;
            if at_floor {
                self.all = absorb(self.all, record);
            }
        }
        self.something_kept |= kept;
        if above_floor || kept {
            self.crc = absorb(self.crc, record);
        }
        Ok(())
    }

    fn is_kept(&self, view: &View<'_>, record: &Record) -> Paged<bool> {
        let last_tombstone = record.deleted && record.revision.main == self.revision;
        if self.purpose == Purpose::Compaction && last_tombstone {
            return Ok(true);
        }
        is_live(view, record, self.revision)
    }

    fn finish(&self) -> HashKv {
        let hash = if self.something_kept { self.crc } else { self.all };
        HashKv { hash, compact_revision: self.compacted, revision: self.revision }
    }
}

/// Whether a key's version at revision `at` is this record, and the key exists then.
fn is_live(view: &View<'_>, record: &Record, at: i64) -> Paged<bool> {
    if record.deleted {
        return Ok(false);
    }
    let found = view.find(&record.key, at)?;
    Ok(found.is_some_and(|version| version.modified == record.revision))
}

/// Goes on with a record's key and value as etcd stores them.
fn absorb(mut crc: u32, record: &Record) -> u32 {
    let mut key = [0u8; 18];
    key[..8].copy_from_slice(&record.revision.main.to_be_bytes());
    key[8] = b'_';
    key[9..17].copy_from_slice(&record.revision.sub.to_be_bytes());
    key[17] = b't';
    crc = crc32c::crc32c_append(crc, &key[..if record.deleted { 18 } else { 17 }]);
    let mut head = Vec::with_capacity(record.key.len() + 64);
    put_bytes(&mut head, 1, &record.key);
    if !record.deleted {
        put_int(&mut head, 2, record.create_revision);
        put_int(&mut head, 3, record.revision.main);
        put_int(&mut head, 4, record.version);
        if !record.value.is_empty() {
            put_varint(&mut head, 5 << 3 | 2);
            put_varint(&mut head, u64::try_from(record.value.len()).expect("usize has at most 64 bits"));
            crc = crc32c::crc32c_append(crc, &head);
            crc = crc32c::crc32c_append(crc, &record.value);
            head.clear();
        }
        put_int(&mut head, 6, record.lease);
    }
    crc32c::crc32c_append(crc, &head)
}

fn put_int(into: &mut Vec<u8>, field: u64, value: i64) {
    if value != 0 {
        put_varint(into, field << 3);
        put_varint(into, value.cast_unsigned());
    }
}

fn put_bytes(into: &mut Vec<u8>, field: u64, value: &[u8]) {
    if !value.is_empty() {
        put_varint(into, field << 3 | 2);
        put_varint(into, u64::try_from(value.len()).expect("usize has at most 64 bits"));
        into.extend_from_slice(value);
    }
}
