//! etcd's `HashKV`, in bounded steps.

use crate::View;
use crate::codec::put_varint;
use crate::types::{Bounds, Paged, Record, Revision};

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

/// Computes the hash of all revisions up to one, as etcd does.
///
/// It covers the bytes `key`, then for each stored revision up to the chosen one, in order, the revision as etcd
/// encodes it and the marshalled `mvccpb.KeyValue`. At or below the compaction floor only what a compaction at the
/// chosen revision would keep counts, which are the versions live then. If nothing is live then, the versions live at
/// the floor count, which a finished compaction has kept (it keeps tombstones at the floor itself as well, but they
/// never count). So the value does not depend on how far physical compaction is.
///
/// The floor and the revision are fixed at the start. Each step may be given a newer view, as long as nothing above
/// the chosen revision was compacted meanwhile: the floor must not have passed it.
#[derive(Debug)]
pub struct KvHasher {
    crc: u32,
    revision: i64,
    compacted: i64,
    next: Revision,
    anything_live: Option<bool>,
}

impl KvHasher {
    /// Starts at a view. The caller has checked that `compacted ≤ revision ≤ newest`.
    pub fn new(view: &View<'_>, revision: i64) -> KvHasher {
        KvHasher {
            crc: crc32c::crc32c(b"key"),
            revision,
            compacted: view.compacted(),
            next: Revision::default(),
            anything_live: None,
        }
    }

    /// Goes on for at most `budget` revisions; gives the hash at the end.
    pub fn step(&mut self, view: &View<'_>, budget: usize) -> Paged<Option<HashKv>> {
        let anything_live = match self.anything_live {
            Some(known) => known,
            None => {
                let known = view.cursor(Bounds::ALL, self.revision).next()?.is_some();
                *self.anything_live.insert(known)
            }
        };
        let mut events = view.events(self.next);
        for _ in 0..budget {
            let Some(record) = events.next()? else { return Ok(Some(self.finish())) };
            if record.revision.main > self.revision {
                return Ok(Some(self.finish()));
            }
            if record.revision.main > self.compacted || self.keeps(view, &record, anything_live)? {
                self.absorb(&record);
            }
            self.next = Revision { main: record.revision.main, sub: record.revision.sub + 1 };
        }
        Ok(None)
    }

    fn keeps(&self, view: &View<'_>, record: &Record, anything_live: bool) -> Paged<bool> {
        if anything_live {
            let kept = view.find(&record.key, self.revision)?;
            return Ok(kept.is_some_and(|version| version.modified == record.revision));
        }
        let survivor = view.find(&record.key, self.compacted)?;
        Ok(survivor.is_some_and(|version| version.modified == record.revision))
    }

    fn absorb(&mut self, record: &Record) {
        let mut key = [0u8; 18];
        key[..8].copy_from_slice(&record.revision.main.to_be_bytes());
        key[8] = b'_';
        key[9..17].copy_from_slice(&record.revision.sub.to_be_bytes());
        key[17] = b't';
        self.crc = crc32c::crc32c_append(self.crc, &key[..if record.deleted { 18 } else { 17 }]);
        let mut head = Vec::with_capacity(record.key.len() + 64);
        put_bytes(&mut head, 1, &record.key);
        if !record.deleted {
            put_int(&mut head, 2, record.create_revision);
            put_int(&mut head, 3, record.revision.main);
            put_int(&mut head, 4, record.version);
            if !record.value.is_empty() {
                put_varint(&mut head, 5 << 3 | 2);
                put_varint(&mut head, u64::try_from(record.value.len()).expect("usize has at most 64 bits"));
                self.crc = crc32c::crc32c_append(self.crc, &head);
                self.crc = crc32c::crc32c_append(self.crc, &record.value);
                head.clear();
            }
            put_int(&mut head, 6, record.lease);
        }
        self.crc = crc32c::crc32c_append(self.crc, &head);
    }

    fn finish(&self) -> HashKv {
        HashKv { hash: self.crc, compact_revision: self.compacted, revision: self.revision }
    }
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
