//! etcd's `HashKV`, from the whole history.

use garboard_replica::request::KeyValue;

use super::wire::encode_pair;
use super::{Change, Model};

impl Model {
    /// What `HashKV` answers at a revision while the floor is at `floor`.
    pub fn hash(&self, floor: i64, at: i64) -> u32 {
        self.hash_of(floor, at, false)
    }

    /// What a compaction to a revision computes on its way, while the floor is still at `floor`. It keeps the
    /// tombstones of exactly its revision.
    pub fn compaction_hash(&self, floor: i64, at: i64) -> u32 {
        let last = &self.changes[self.position_of(at)..self.position_of(at + 1)];
        self.hash_of(floor, at, last.iter().any(|change| change.deleted))
    }

    fn hash_of(&self, floor: i64, at: i64, keeps_something: bool) -> u32 {
        let changes = &self.changes[..self.position_of(at.saturating_add(1))];
        let is_live = |change: &Change, at: i64| {
            !change.deleted
                && self.get(&change.kv.key, at).is_some_and(|pair| pair.mod_revision == change.kv.mod_revision)
                && self.is_last_of_its_revision(change)
        };
        let keeps = keeps_something || changes.iter().any(|change| is_live(change, at));
        let mut crc = crc32c::crc32c(b"key");
        let mut bytes = Vec::new();
        for change in changes {
            let counts = change.revision.main > floor || is_live(change, if keeps { at } else { floor });
            if counts {
                bytes.clear();
                encode(change, &mut bytes);
                crc = crc32c::crc32c_append(crc, &bytes);
            }
        }
        crc
    }

    /// Whether the key did not change again within the same transaction.
    pub fn is_last_of_its_revision(&self, change: &Change) -> bool {
        let later = self.changes[self.position_of(change.revision.main)..self.position_of(change.revision.main + 1)]
            .iter()
            .filter(|other| other.revision.sub > change.revision.sub);
        later.into_iter().all(|other| other.kv.key != change.kv.key)
    }
}

/// The revision as etcd's keys hold it, then the pair.
fn encode(change: &Change, out: &mut Vec<u8>) {
    out.extend_from_slice(&change.revision.main.to_be_bytes());
    out.push(b'_');
    out.extend_from_slice(&change.revision.sub.to_be_bytes());
    if change.deleted {
        out.push(b't');
        encode_pair(&KeyValue { key: change.kv.key.clone(), ..KeyValue::default() }, out);
    } else {
        encode_pair(&change.kv, out);
    }
}
