//! Single promises: the hash, learners, large trees, readers on other threads, damage found late.
#![allow(clippy::unwrap_used)]

mod support;

use garboard_simdisk::Rng;
use garboard_storage::hash::{CompactionHasher, HashKv, KvHasher, Survivors};
use garboard_storage::limits::HASH_RUN_RECORDS;
use garboard_storage::{Applied, Bounds, CompactionProgress, Index, PageFile, Record, Revision};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::model::Model;
use support::{Rig, SimFile, assert_same, config, empty_disk, open, settle};

fn varint(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    into.push(u8::try_from(value).unwrap());
}

/// The marshalled `mvccpb.KeyValue`, field by field.
fn marshal(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    let field = |bytes: &mut Vec<u8>, number: u8, value: i64| {
        if value != 0 {
            bytes.push(number << 3);
            varint(bytes, value.cast_unsigned());
        }
    };
    bytes.push(1 << 3 | 2);
    varint(&mut bytes, u64::try_from(record.key.len()).unwrap());
    bytes.extend_from_slice(&record.key);
    if record.deleted {
        return bytes;
    }
    field(&mut bytes, 2, record.create_revision);
    field(&mut bytes, 3, record.revision.main);
    field(&mut bytes, 4, record.version);
    if !record.value.is_empty() {
        bytes.push(5 << 3 | 2);
        varint(&mut bytes, u64::try_from(record.value.len()).unwrap());
        bytes.extend_from_slice(&record.value);
    }
    field(&mut bytes, 6, record.lease);
    bytes
}

/// What etcd computes, from all that a store with its compaction finished holds. A compaction keeps a tombstone of its
/// own revision.
fn expected(model: &Model, revision: i64, by_compaction: bool) -> HashKv {
    let mut newest: BTreeMap<&[u8], &Record> = BTreeMap::new();
    for record in model.records.values().filter(|record| record.revision.main <= revision) {
        newest.insert(&record.key, record);
    }
    let is_kept = |record: &&&Record| !record.deleted || (by_compaction && record.revision.main == revision);
    let keep: Vec<Revision> = newest.values().filter(is_kept).map(|record| record.revision).collect();
    let mut hash = crc32c::crc32c(b"key");
    for record in model.records.values().filter(|record| record.revision.main <= revision) {
        let below = record.revision.main <= model.compacted;
        if below && (record.deleted || !keep.is_empty() && !keep.contains(&record.revision)) {
            continue;
        }
        let mut key = record.revision.main.to_be_bytes().to_vec();
        key.push(b'_');
        key.extend_from_slice(&record.revision.sub.to_be_bytes());
        if record.deleted {
            key.push(b't');
        }
        hash = crc32c::crc32c_append(hash, &key);
        hash = crc32c::crc32c_append(hash, &marshal(record));
    }
    HashKv { hash, compact_revision: model.compacted, revision }
}

fn expected_hash(model: &Model, revision: i64) -> HashKv {
    expected(model, revision, false)
}

fn hash(rig: &Rig, revision: i64, budget: usize) -> HashKv {
    run(rig, KvHasher::new(&rig.reader.pin().view(), revision), budget)
}

/// Runs a hash to its end, each step over the newest root.
fn run(rig: &Rig, mut hasher: KvHasher, budget: usize) -> HashKv {
    loop {
        if let Some(hash) = settle(&rig.reader, || hasher.step(&rig.reader.pin().view(), budget)) {
            return hash;
        }
    }
}

#[test]
fn a_hash_in_steps_is_of_one_floor_although_the_floor_moves() {
    // With the floor at 10 it takes some 47 steps.
    for steps in 0..45 {
        let mut rig = Rig::create();
        for n in 0..60 {
            rig.put(format!("k{}", n % 7).as_bytes(), b"v", 0);
            rig.publish();
        }
        rig.compact(10);
        rig.finish_compaction();
        let mut hasher = KvHasher::new(&rig.reader.pin().view(), 50);
        for _ in 0..steps {
            settle(&rig.reader, || hasher.step(&rig.reader.pin().view(), 1));
        }
        rig.compact(40);
        for _ in 0..steps % 5 {
            rig.compaction_step(5);
        }
        let hash = run(&rig, hasher, 3);
        assert_eq!(hash, expected_hash(&rig.model, 50), "the floor moves after {steps} steps");
    }
}

#[test]
fn the_hash_is_that_of_the_history_whatever_physical_compaction_has_done() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::create();
        for _ in 0..120 {
            for _ in 0..1 + rng.below(3) {
                let key = format!("k{}", rng.below(12));
                if rng.chance(60) {
                    rig.put(key.as_bytes(), &vec![b'v'; rng.index(40)], rng.below(3).cast_signed() * 77);
                } else {
                    rig.delete(key.as_bytes());
                }
            }
            rig.publish();
        }
        for floor in [40, 41, 70, rig.model.revision] {
            let floor = floor.min(rig.model.revision);
            rig.compact(floor);
            for _ in 0..3 {
                for revision in floor..=rig.model.revision {
                    assert_eq!(hash(&rig, revision, 7), expected_hash(&rig.model, revision), "seed {seed}");
                }
                rig.compaction_step(10);
            }
            rig.finish_compaction();
        }
    }
}

#[test]
fn the_hash_of_a_store_where_nothing_is_live_leaves_out_the_tombstones_at_the_floor() {
    let mut rig = Rig::create();
    rig.put(b"a", b"1", 0);
    rig.publish();
    rig.put(b"b", b"1", 0);
    rig.publish();
    rig.delete(b"a");
    rig.delete(b"b");
    rig.publish();
    rig.compact(rig.model.revision);
    let revision = rig.model.revision;
    let nothing = HashKv { hash: crc32c::crc32c(b"key"), compact_revision: revision, revision };
    assert_eq!(hash(&rig, revision, 1), nothing);
    rig.finish_compaction();
    assert_eq!(hash(&rig, revision, 1), nothing);
    assert_eq!(hash(&rig, revision, 1), expected_hash(&rig.model, revision));
}

/// Puts and deletes at random among some keys; `live` in 100 changes are puts.
fn churn(rig: &mut Rig, rng: &mut Rng, keys: u64, revisions: u64, live: u64) {
    for _ in 0..revisions {
        for _ in 0..1 + rng.below(3) {
            // Some keys are hot, most are cold.
            let among = if rng.chance(50) { keys } else { keys.div_ceil(20) };
            let key = format!("k{}", rng.below(among));
            if rng.chance(live) {
                rig.put(key.as_bytes(), &vec![b'v'; rng.index(40)], rng.below(3).cast_signed() * 77);
            } else {
                rig.delete(key.as_bytes());
            }
        }
        rig.publish();
    }
}

/// Runs a compaction's hash to its end, each step over the newest root, with writes between.
fn run_compaction(
    rig: &mut Rig,
    mut hasher: CompactionHasher,
    budget: usize,
    mut between: impl FnMut(&mut Rig),
) -> (HashKv, Survivors) {
    loop {
        let reader = rig.reader.clone();
        if let Some(done) = settle(&reader, || hasher.step(&reader.pin().view(), budget)) {
            return done;
        }
        between(rig);
    }
}

#[test]
fn a_compactions_hash_is_what_was_answered_before_it() {
    let (mut differ, mut empty) = (0, 0);
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::create();
        let mut survivors = None;
        for _ in 0..6 {
            // From many live keys to none.
            let (live, revisions) = (rng.below(80), 1 + rng.below(12));
            churn(&mut rig, &mut rng, 6, revisions, live);
            let (newest, before) = (rig.model.revision, rig.model.compacted);
            let floor = newest - rng.below(3).cast_signed();
            if floor <= before.max(0) {
                continue;
            }
            let expected = expected(&rig.model, floor, true);
            let answered = hash(&rig, floor, 3);
            differ += u32::from(answered.hash != expected.hash);
            rig.compact(floor);
            let mut writes = 3;
            let hasher = CompactionHasher::new(before, floor, survivors.take().filter(|_| rng.chance(70)));
            let (hash, left) = run_compaction(&mut rig, hasher, 1, |rig| {
                if writes > 0 {
                    writes -= 1;
                    churn(rig, &mut rng, 6, 1, live);
                }
            });
            assert_eq!(hash, expected, "seed {seed}");
            survivors = Some(left);
            rig.finish_compaction();
            let nothing = rig.reader.pin().view().count(Bounds::ALL, floor);
            empty += u32::from(nothing == Ok(0));
        }
    }
    assert!(empty > 10, "some compactions leave nothing: {empty}");
    assert!(differ > 0, "a last tombstone makes a difference");
}

#[test]
fn a_compactions_hash_is_the_same_whether_survivors_are_read_or_remembered() {
    let keys = u64::try_from(HASH_RUN_RECORDS * 5).unwrap();
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::create();
        let mut survivors = None;
        churn(&mut rig, &mut rng, keys, keys, 95);
        for round in 0..12 {
            let (revisions, live) = (6 + rng.below(60), [95, 60][rng.index(2)]);
            churn(&mut rig, &mut rng, keys, revisions, live);
            let (floor, before) = (rig.model.revision - rng.below(5).cast_signed(), rig.model.compacted);
            if floor <= before {
                continue;
            }
            rig.compact(floor);
            let budget = 1 + rng.index(300);
            let fresh = CompactionHasher::new(before, floor, None);
            let (expected, _) = run_compaction(&mut rig, fresh, budget, |_| {});
            let hasher = CompactionHasher::new(before, floor, survivors.take());
            let (hash, left) = run_compaction(&mut rig, hasher, 64, |_| {});
            assert_eq!(hash, expected, "seed {seed}, round {round}");
            survivors = Some(left);
            rig.finish_compaction();
        }
    }
}

#[test]
fn a_compactions_hash_reads_only_what_changed_since_the_one_before() {
    let mut rig = Rig::create();
    let count = HASH_RUN_RECORDS * 20;
    for n in 0..count {
        rig.put(format!("k{n:05}").as_bytes(), b"v", 0);
        rig.publish();
    }
    let mut steps = Vec::new();
    let mut survivors = None;
    for _ in 0..2 {
        rig.put(b"k00000", b"w", 0);
        rig.publish();
        let (floor, before) = (rig.model.revision, rig.model.compacted);
        rig.compact(floor);
        let mut taken = 0;
        let hasher = CompactionHasher::new(before, floor, survivors.take());
        survivors = Some(run_compaction(&mut rig, hasher, 1, |_| taken += 1).1);
        rig.finish_compaction();
        steps.push(taken);
    }
    assert!(steps[0] >= count, "all of it is read at first: {steps:?}");
    assert!(steps[1] < 2 * HASH_RUN_RECORDS, "then one run and what is new: {steps:?}");
}

#[test]
fn a_learner_filled_with_revisions_and_system_entries_shows_the_same() {
    let mut rng = Rng::new(1);
    let mut rig = Rig::create();
    for i in 0..300 {
        let key = format!("k{}", rng.below(40));
        if rng.chance(70) {
            rig.put(key.as_bytes(), &vec![b'v'; rng.index(3_000)], 5)
        } else {
            rig.delete(key.as_bytes())
        }
        rig.system_put(format!("lease/{}", i % 7).as_bytes(), key.as_bytes());
        rig.publish();
    }
    rig.compact(200);
    rig.finish_compaction();
    let source = rig.reader.pin();
    let file = SimFile::new(empty_disk());
    let mut learner = Index::create(config(), file);
    let mut events = source.view().events(Revision::default());
    while let Some(record) = events.next().unwrap() {
        learner.import(&record).unwrap();
    }
    let mut system = source.view().system_scan(b"");
    while let Some((key, value)) = system.next().unwrap() {
        learner.system_put(&key, &value).unwrap();
    }
    learner.set_compacted(source.view().compacted());
    learner.publish(source.view().applied(), source.view().revision());
    let reader = learner.reader();
    assert_same(&reader, reader.pin().view(), &rig.model);
    learner.check().unwrap();
}

/// Trees of several levels, grown and emptied again: splits, merges, and roots that shrink.
#[test]
fn a_tree_of_many_keys_grows_and_shrinks_and_stays_sound() {
    let mut rng = Rng::new(2);
    let mut rig = Rig::create();
    let long = vec![b'/'; 600];
    let key = |number: u64| {
        let mut key = if number.is_multiple_of(3) { long.clone() } else { b"/registry/".to_vec() };
        key.extend_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        key
    };
    for batch in 0..60 {
        for i in 0..100 {
            rig.put(&key(batch * 100 + i), &vec![b'v'; rng.index(50)], 0);
            rig.end_txn();
        }
        rig.publish();
        if batch % 20 == 7 {
            rig.checkpoint(&mut rng);
        }
    }
    rig.assert_same();
    rig.index.check().unwrap();
    for number in 0..6_000 {
        if number % 60 != 0 {
            rig.delete(&key(number));
        }
        if number % 500 == 0 {
            rig.publish();
        }
    }
    rig.publish();
    rig.put(b"last", b"", 0);
    rig.publish();
    rig.compact(rig.model.revision);
    rig.finish_compaction();
    rig.assert_same();
    rig.index.check().unwrap();
    rig.checkpoint(&mut rng);
    let bytes = rig.index.size().in_use_bytes;
    assert!(bytes < 1 << 20, "{bytes} bytes hold 101 keys");
    let disk = rig.file.disk.lock().unwrap().clone();
    let (index, _, _) = open(disk).unwrap();
    let reader = index.reader();
    assert_same(&reader, reader.pin().view(), &rig.model);
}

#[test]
fn compaction_resumes_after_a_crash_where_a_checkpoint_left_it() {
    let mut rng = Rng::new(3);
    let mut rig = Rig::create();
    for i in 0..400u64 {
        rig.put(format!("k{}", i % 9).as_bytes(), &i.to_be_bytes(), 0);
        rig.publish();
    }
    rig.compact(350);
    let progress = rig.compaction_step(100);
    assert!(matches!(progress, CompactionProgress::Running { target: 350, .. }));
    rig.checkpoint(&mut rng);
    let disk = rig.file.disk.lock().unwrap().clone();
    let (mut index, _, _) = open(disk).unwrap();
    let reader = index.reader();
    assert!(index.compaction_pending());
    let again = settle(&reader, || index.compaction_step(1));
    assert!(matches!((progress, again), (CompactionProgress::Running { scanned_to: a, .. },
        CompactionProgress::Running { scanned_to: b, .. }) if b >= a));
    while index.compaction_pending() {
        settle(&reader, || index.compaction_step(100));
    }
    assert_same(&reader, reader.pin().view(), &rig.model);
    let stored = {
        let snapshot = reader.pin();
        let mut events = snapshot.view().events(Revision::default());
        std::iter::from_fn(|| settle(&reader, || events.next())).count()
    };
    assert_eq!(stored, rig.model.records.len());
    index.check().unwrap();
}

/// Readers on other threads see whole batches only, at roots that stay as they are while pinned.
#[test]
#[allow(clippy::disallowed_methods)]
fn readers_on_other_threads_see_whole_batches_while_pages_are_reused() {
    let file = SimFile::new(empty_disk());
    let mut index = Index::create(config(), Arc::clone(&file) as Arc<dyn PageFile>);
    let stop = AtomicBool::new(false);
    let keys: Vec<[u8; 8]> = (0..300u64).map(u64::to_be_bytes).collect();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (reader, stop) = (index.reader(), &stop);
            scope.spawn(move || {
                let mut walks = 0;
                let mut newest = 0;
                while !stop.load(Ordering::Relaxed) || walks < 10 {
                    let snapshot = reader.pin();
                    let view = snapshot.view();
                    assert!(view.revision() >= newest, "roots never go back");
                    newest = view.revision();
                    let mut cursor = view.cursor(Bounds::ALL, i64::MAX);
                    let mut count = 0;
                    let mut value = Vec::new();
                    while let Some((_, version)) = cursor.next().unwrap() {
                        assert_eq!(version.modified.main, view.revision(), "every batch writes every key");
                        value.clear();
                        assert!(view.value(version.modified, &mut value).unwrap());
                        assert_eq!(value, version.modified.main.to_be_bytes().repeat(20));
                        count += 1;
                    }
                    assert_eq!(view.count(Bounds::ALL, i64::MAX).unwrap(), count);
                    walks += 1;
                }
            });
        }
        for batch in 0..300u64 {
            let main = i64::try_from(batch).unwrap() + 2;
            for (sub, key) in keys.iter().enumerate() {
                let revision = Revision { main, sub: i64::try_from(sub).unwrap() };
                index.put(revision, key, &main.to_be_bytes().repeat(20), 0).unwrap();
            }
            index.publish(Applied { index: batch + 1, term: 1 }, main);
            if batch % 20 == 0 {
                index.set_compacted(main);
                index.publish(Applied { index: batch + 1, term: 1 }, main);
            }
            while index.compaction_pending() {
                index.compaction_step(1_000).unwrap();
            }
            if index.wants_checkpoint() || batch % 50 == 0 {
                index.start_checkpoint(b"", b"");
            }
            for _ in 0..20 {
                let Some(io) = index.poll_io() else { break };
                index.handle_io(io.id, file.perform(&io.op)).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    index.check().unwrap();
}

/// The figures are those of a real etcd 3.7.3 after the same calls.
#[test]
fn the_hash_is_etcds() {
    const LEASE: i64 = 3_761_246_952_932_402_179;
    let mut rig = Rig::create();
    let put = |rig: &mut Rig, key: &str, value: &str, lease: i64| {
        rig.put(key.as_bytes(), value.as_bytes(), lease);
        rig.publish();
    };
    let delete = |rig: &mut Rig, key: &str| {
        rig.delete(key.as_bytes());
        rig.publish();
    };
    put(&mut rig, "a", "v1", 0);
    put(&mut rig, "a", "v2", 0);
    put(&mut rig, "a", "v3", 0);
    put(&mut rig, "b", "", 0);
    put(&mut rig, "c", "x", LEASE);
    delete(&mut rig, "a");
    delete(&mut rig, "b");
    put(&mut rig, "a", "again", 0);
    put(&mut rig, "d", "1", 0);
    delete(&mut rig, "d");
    let hashes = |rig: &Rig, revisions: &[i64]| -> Vec<u32> {
        revisions.iter().map(|&revision| hash(rig, revision, 3).hash).collect()
    };
    assert_eq!(hashes(&rig, &[2, 5, 8, 11]), [4_163_037_948, 4_249_156_018, 3_079_830_534, 2_333_090_535]);
    rig.compact(8);
    for _ in 0..2 {
        assert_eq!(hashes(&rig, &[9, 10, 11]), [1_219_855_343, 871_822_946, 1_460_245_587]);
        rig.finish_compaction();
    }
    delete(&mut rig, "a");
    delete(&mut rig, "c");
    assert_eq!(hashes(&rig, &[13]), [134_489_224]);
    rig.compact(13);
    for _ in 0..2 {
        assert_eq!(hashes(&rig, &[13]), [1_084_519_789]);
        rig.finish_compaction();
    }
}
