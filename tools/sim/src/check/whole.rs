//! The whole state of a member, at the end.

use garboard_replica::request::{KeyRange, KeyValue};
use garboard_replica::system;
use garboard_simdisk::Rng;
use garboard_storage::hash::KvHasher;
use garboard_storage::{Bounds, Paged, Revision, View};

use crate::model::{Change, Model};
use crate::node::{Node, read};
use crate::outcome::{Check, same, short, violated};

/// How many revisions of the past are compared whole.
const PAST_REVISIONS: usize = 12;
const HASH_STEP_REVISIONS: usize = 1_000;

/// Holds all that a member has against the model: the history, past states, hashes, leases; and has the index check
/// itself. Gives the revision.
///
/// # Errors
/// The first difference.
pub fn check_whole(node: &Node, model: &Model, rng: &mut Rng) -> Check<i64> {
    if let Err(error) = node.member.machine().index().check() {
        return violated("the index is whole", "", format!("{error:?}"));
    }
    let reader = node.reader();
    let (revision, floor) = read(&reader, |view| Ok((view.revision(), view.compacted())));
    same("the revision at the end", &(model.revision(), model.compacted()), &(revision, floor))?;
    let found = read(&reader, |view| history(view, floor));
    let from = model.position_of(floor.max(0) + 1);
    for (expected, found) in model.changes()[from..].iter().zip(&found) {
        same("the history at the end", &without_previous(expected), found)?;
    }
    same("the history's length at the end", &(model.changes().len() - from), &found.len())?;
    let first = floor.max(1);
    let mut revisions = vec![first, revision];
    revisions
        .extend((0..PAST_REVISIONS).map(|_| first + rng.below((revision - first + 1).unsigned_abs()).cast_signed()));
    for at in revisions {
        let expected: Vec<KeyValue> = model.within(&KeyRange::All, at).into_iter().cloned().collect();
        same(&format!("what is there at revision {at}"), &expected, &read(&reader, |view| live(view, at)))?;
        let mut hasher = None;
        let hash = read(&reader, |view| {
            let hasher = hasher.get_or_insert_with(|| KvHasher::new(view, at));
            loop {
                if let Some(hash) = hasher.step(view, HASH_STEP_REVISIONS)? {
                    return Ok(hash);
                }
            }
        });
        same(&format!("the hash at revision {at}"), &model.hash(floor, at), &hash.hash)?;
    }
    let leases = read(&reader, system::leases);
    let expected: Vec<(i64, i64)> = model.leases().iter().map(|(id, ttl)| (*id, *ttl)).collect();
    let mut found = match leases {
        Ok(leases) => leases,
        Err(error) => return violated("the leases can be read", "", short(&error)),
    };
    found.sort_unstable();
    same("the leases at the end", &expected, &found)?;
    for (id, _) in expected {
        let attached = read(&reader, |view| system::attached_keys(view, id));
        same(&format!("the keys of lease {id}"), &model.attached(id), &attached)?;
    }
    Ok(revision)
}

fn without_previous(change: &Change) -> Change {
    Change { previous: None, ..change.clone() }
}

/// Every change above the floor.
fn history(view: &View<'_>, floor: i64) -> Paged<Vec<Change>> {
    let mut events = view.events(Revision { main: floor.max(0) + 1, sub: 0 });
    let mut found = Vec::new();
    while let Some(record) = events.next()? {
        let kv = KeyValue {
            key: record.key,
            create_revision: record.create_revision,
            mod_revision: record.revision.main,
            version: record.version,
            value: record.value,
            lease: record.lease,
        };
        found.push(Change { revision: record.revision, deleted: record.deleted, kv, previous: None });
    }
    Ok(found)
}

fn live(view: &View<'_>, at: i64) -> Paged<Vec<KeyValue>> {
    let mut pairs = Vec::new();
    let mut cursor = view.cursor(Bounds::ALL, at);
    while let Some((key, version)) = cursor.next()? {
        let key = bytes::Bytes::copy_from_slice(key);
        let mut value = Vec::new();
        assert!(view.value(version.modified, &mut value)?, "a live version has its value");
        pairs.push(KeyValue {
            key,
            create_revision: version.create_revision,
            mod_revision: version.modified.main,
            version: version.version,
            value: value.into(),
            lease: version.lease,
        });
    }
    Ok(pairs)
}
