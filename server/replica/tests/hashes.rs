//! The hashes that compactions leave behind.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use garboard_replica::envelope::{Request, Response};
use garboard_replica::limits::{COMPACTION_STEP_RECORDS, KEPT_HASHES_MAX};
use garboard_replica::request::{Command, DeleteRange, KeyRange, Put};
use garboard_sim::node::{Node, read};
use garboard_storage::hash::{HashKv, KvHasher};

fn put(name: &str, value: &str) -> Command {
    Command::Put(Put {
        key: Bytes::copy_from_slice(name.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
        lease: 0,
        prev_kv: false,
        ignore_value: false,
        ignore_lease: false,
    })
}

fn compact(revision: i64) -> Command {
    Command::Compact { revision, physical: true }
}

fn kept(sim: &mut Node, revision: i64) -> Option<HashKv> {
    match sim.call(Request::KeptHash { revision }) {
        Ok(Response::KeptHash(hash)) => hash,
        other => panic!("asked for a hash, answered {other:?}"),
    }
}

/// What `HashKV` answers without any kept hash.
fn computed(sim: &Node, revision: i64) -> HashKv {
    let mut hasher = read(&sim.reader(), |view| Ok(KvHasher::new(view, revision)));
    loop {
        if let Some(hash) = read(&sim.reader(), |view| hasher.step(view, 100)) {
            return hash;
        }
    }
}

/// Some puts; returns the newest revision.
fn write_some(sim: &mut Node, count: usize) -> i64 {
    let puts = (0..count).map(|n| Request::Write(put(&format!("k{}", n % 50), &format!("v{n}")))).collect::<Vec<_>>();
    let last = *sim.send(puts).last().unwrap();
    sim.wait(last).unwrap();
    sim.reader().revision()
}

#[test]
fn a_compaction_keeps_the_hash_that_was_answered_before_it() {
    let mut sim = Node::new(1);
    let mut floor = -1;
    let mut earlier: Vec<HashKv> = Vec::new();
    for round in 0..5 {
        let newest = write_some(&mut sim, 200 + round);
        let target = newest - 7;
        let expected = computed(&sim, target);
        assert_eq!(expected.compact_revision, floor);
        assert_eq!(kept(&mut sim, target), None);
        sim.execute(compact(target)).unwrap();
        assert_eq!(kept(&mut sim, target), Some(expected));
        assert_eq!(computed(&sim, target).compact_revision, target);
        earlier.push(expected);
        for hash in &earlier {
            assert_eq!(kept(&mut sim, hash.revision), Some(*hash), "it outlives the next compaction");
        }
        floor = target;
    }
    assert_eq!(kept(&mut sim, floor - 1), None);
}

#[test]
fn the_hash_is_waited_for_while_it_is_computed_and_writes_go_on() {
    let mut sim = Node::new(2);
    let newest = write_some(&mut sim, 20 * COMPACTION_STEP_RECORDS);
    let expected = computed(&sim, newest);
    sim.execute(Command::Compact { revision: newest, physical: false }).unwrap();
    let asked = sim.send([Request::KeptHash { revision: newest }])[0];
    assert_eq!(kept(&mut sim, newest - 1), None, "another revision's is not waited for");
    let delete = DeleteRange { keys: KeyRange::FromKey(Bytes::from_static(b"k")), prev_kv: false };
    sim.execute(Command::DeleteRange(delete)).unwrap();
    assert!(sim.answers.iter().all(|(ticket, _)| *ticket != asked), "the hash takes more steps than the write");
    assert_eq!(sim.wait(asked), Ok(Response::KeptHash(Some(expected))));
}

#[test]
fn a_compaction_that_follows_an_unfinished_one_leaves_no_hash() {
    let mut sim = Node::new(4);
    let newest = write_some(&mut sim, 1_000);
    let expected = computed(&sim, newest - 500);
    let both = [newest - 500, newest].map(|revision| Request::Write(Command::Compact { revision, physical: false }));
    let last = *sim.send(both).last().unwrap();
    sim.wait(last).unwrap();
    assert_eq!(kept(&mut sim, newest - 500), Some(expected), "the first one's is that of the state before either");
    sim.settle();
    assert_eq!(kept(&mut sim, newest), None);
    let newest = write_some(&mut sim, 10);
    let expected = computed(&sim, newest);
    sim.execute(compact(newest)).unwrap();
    assert_eq!(kept(&mut sim, newest), Some(expected), "the next one follows a finished one");
}

#[test]
fn only_the_newest_hashes_are_kept() {
    let mut sim = Node::new(5);
    let mut targets = Vec::new();
    for _ in 0..KEPT_HASHES_MAX + 3 {
        let target = write_some(&mut sim, 5);
        sim.execute(compact(target)).unwrap();
        targets.push(target);
    }
    let known: Vec<bool> = targets.iter().map(|target| kept(&mut sim, *target).is_some()).collect();
    assert_eq!(known, [vec![false; 3], vec![true; KEPT_HASHES_MAX]].concat());
}

#[test]
fn kept_hashes_are_gone_after_a_restart_even_where_the_log_holds_the_compaction() {
    for seed in 6..12 {
        let mut sim = Node::new(seed);
        let target = write_some(&mut sim, 300);
        sim.execute(compact(target)).unwrap();
        assert!(kept(&mut sim, target).is_some());
        sim.crash();
        sim.call(Request::ReadIndex).unwrap();
        sim.settle();
        assert_eq!(kept(&mut sim, target), None);
        let next = write_some(&mut sim, 3);
        let expected = computed(&sim, next);
        sim.execute(compact(next)).unwrap();
        assert_eq!(kept(&mut sim, next), Some(expected));
    }
}

#[test]
fn pages_that_are_not_resident_are_loaded_for_a_hash() {
    let mut sim = Node::new(20);
    sim.index_config.checkpoint_bytes = 64 << 10;
    sim.index_config.dirty_bytes_max = 128 << 10;
    sim.restart();
    sim.call(Request::ReadIndex).unwrap();
    for n in 0..40 {
        sim.execute(put(&format!("cold{n}"), &"v".repeat(10_000))).unwrap();
    }
    let first = sim.reader().revision();
    sim.execute(compact(first)).unwrap();
    sim.settle();
    sim.restart();
    sim.call(Request::ReadIndex).unwrap();
    let target = write_some(&mut sim, 2);
    sim.execute(compact(target)).unwrap();
    let hash = kept(&mut sim, target).unwrap();
    assert_eq!(hash.compact_revision, first);
}
