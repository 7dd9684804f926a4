use core::time::Duration;
use std::sync::Arc;

use bytes::Bytes;
use garboard_storage::{Applied, Bounds, Index, IndexConfig, NoFile};

use super::*;
use crate::alarm::Alarms;
use crate::error::Error;
use crate::lease::Lessor;
use crate::members::Members;
use crate::quota::Quota;
use crate::read::fault::{miss_one_in, whole};
use crate::request::{
    Command, Compare, CompareOperator, CompareTarget, DeleteRange, KeyRange, KeyValue, Operation, OperationResult,
    Outcome, Put, Range, Reply, SortOrder, SortTarget, Txn, TxnResult,
};
use crate::sessions::Sessions;
use crate::system;

struct Store {
    machine: Machine,
    index: u64,
}

impl Store {
    fn new() -> Store {
        let index = Index::create(IndexConfig::new(1, 1), Arc::new(NoFile::new(1 << 30).unwrap()));
        let lessor = Lessor::new(Duration::from_secs(1), Duration::from_millis(100), []);
        Store {
            machine: Machine::new(
                index,
                lessor,
                Alarms::default(),
                Members::default(),
                Sessions::default(),
                Quota::from_flag(-1),
            ),
            index: 0,
        }
    }

    fn apply(&mut self, command: &Command) -> Result<Reply, Error> {
        whole(|| self.machine.apply(Duration::ZERO, command))
    }

    fn publish(&mut self) -> Published {
        self.index += 1;
        let applied = Applied { index: self.index, term: 1 };
        whole(|| self.machine.publish(applied))
    }

    fn run(&mut self, command: Command) -> Result<Reply, Error> {
        let result = self.apply(&command);
        self.publish();
        result
    }

    /// A store that has put these keys, in order, from revision 2 on.
    fn with(names: &[&'static str]) -> Store {
        let mut store = Store::new();
        for name in names {
            store.run(Command::Put(plain_put(name, name))).unwrap();
        }
        store
    }

    fn txn(&mut self, txn: Txn) -> Result<(i64, TxnResult), Error> {
        let reply = self.run(Command::Txn(txn))?;
        match reply.outcome {
            Outcome::Txn(result) => Ok((reply.revision, result)),
            other => panic!("a transaction returned {other:?}"),
        }
    }

    fn live(&self) -> Vec<(Bytes, i64, i64)> {
        let view = self.machine.index().view();
        let mut cursor = view.cursor(Bounds::ALL, i64::MAX);
        let mut live = Vec::new();
        while let Some((key, version)) = cursor.next().unwrap() {
            live.push((Bytes::copy_from_slice(key), version.modified.main, version.modified.sub));
        }
        live
    }
}

fn key(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn plain_put(name: &'static str, value: &'static str) -> Put {
    Put { key: key(name), value: key(value), lease: 0, prev_kv: false, ignore_value: false, ignore_lease: false }
}

fn put(name: &'static str, value: &'static str) -> Operation {
    Operation::Put(plain_put(name, value))
}

fn delete(keys: KeyRange) -> Operation {
    Operation::DeleteRange(DeleteRange { keys, prev_kv: false })
}

fn delete_key(name: &'static str) -> Operation {
    delete(KeyRange::Point(key(name)))
}

fn range_at(keys: KeyRange, revision: i64) -> Operation {
    Operation::Range(Range {
        keys,
        limit: 0,
        revision,
        order: SortOrder::None,
        target: SortTarget::Key,
        serializable: false,
        keys_only: false,
        count_only: false,
        min_mod_revision: 0,
        max_mod_revision: 0,
        min_create_revision: 0,
        max_create_revision: 0,
    })
}

fn then(success: Vec<Operation>) -> Txn {
    Txn { success, ..Txn::default() }
}

fn keys_of(result: &OperationResult) -> (i64, Vec<Bytes>) {
    match result {
        OperationResult::Range(revision, range) => (*revision, range.kvs.iter().map(|kv| kv.key.clone()).collect()),
        other => panic!("a range returned {other:?}"),
    }
}

#[test]
fn a_transaction_has_one_revision_and_its_changes_are_numbered() {
    let mut store = Store::with(&["a", "b", "c"]);
    let operations = vec![put("x", "1"), delete(KeyRange::Span { start: key("a"), end: key("c") }), put("y", "2")];
    let (revision, result) = store.txn(then(operations)).unwrap();
    assert_eq!(revision, 5);
    let expected =
        [OperationResult::Put(5, None), OperationResult::DeleteRange(5, 2, vec![]), OperationResult::Put(5, None)];
    assert_eq!(result.responses, expected);
    assert_eq!(store.live(), [(key("c"), 4, 0), (key("x"), 5, 0), (key("y"), 5, 3)]);
}

#[test]
fn what_changes_nothing_takes_no_revision() {
    let table = [
        ("deletes nothing", then(vec![delete_key("none")])),
        ("reads", then(vec![range_at(KeyRange::All, 0)])),
        ("does nothing", Txn::default()),
        ("nested nothing", then(vec![Operation::Txn(Txn::default())])),
    ];
    for (name, txn) in table {
        let mut store = Store::with(&["a"]);
        let (revision, _) = store.txn(txn).unwrap();
        assert_eq!((revision, store.machine.revision()), (2, 2), "{name}");
        assert!(store.publish().events.is_none(), "{name}");
    }
    let mut store = Store::with(&["a"]);
    let failing = Put { ignore_value: true, value: key(""), ..plain_put("none", "") };
    assert_eq!(store.txn(then(vec![put("b", "1"), Operation::Put(failing)])), Err(Error::KeyNotFound));
    assert_eq!(store.live(), [(key("a"), 2, 0)], "a transaction that fails leaves nothing behind");
}

#[test]
fn reads_within_a_transaction_see_its_earlier_writes_and_say_so_in_their_header() {
    let mut store = Store::with(&["a", "b"]);
    let all = || range_at(KeyRange::All, 0);
    let operations = vec![all(), delete_key("a"), all(), put("c", "1"), all(), range_at(KeyRange::All, 3)];
    let (_, result) = store.txn(then(operations)).unwrap();
    assert_eq!(keys_of(&result.responses[0]), (3, vec![key("a"), key("b")]));
    assert_eq!(keys_of(&result.responses[2]), (4, vec![key("b")]));
    assert_eq!(keys_of(&result.responses[4]), (4, vec![key("b"), key("c")]));
    assert_eq!(keys_of(&result.responses[5]), (4, vec![key("a"), key("b")]), "a revision of the past stays as it was");
}

#[test]
fn all_conditions_hold_or_fail_against_the_state_before_the_transaction() {
    let created = |name, revision| Compare {
        keys: KeyRange::Point(key(name)),
        operator: CompareOperator::Equal,
        target: CompareTarget::Create(revision),
    };
    let mut store = Store::with(&["a"]);
    let inner = Txn {
        compares: vec![created("b", 0)],
        success: vec![put("inner", "then")],
        failure: vec![put("inner", "else")],
    };
    let outer =
        Txn { compares: vec![created("a", 2)], success: vec![put("b", "1"), Operation::Txn(inner)], failure: vec![] };
    let (revision, result) = store.txn(outer).unwrap();
    assert!(result.succeeded);
    let OperationResult::Txn(inner) = &result.responses[1] else { panic!("{result:?}") };
    assert!(inner.succeeded, "\"b\" did not exist before the transaction");
    assert_eq!(revision, 3);
    assert_eq!(store.live().len(), 3);
}

#[test]
fn revisions_of_ranges_are_checked_before_anything_is_written() {
    let table = [
        (1, Err(Error::Compacted)),
        (-1, Err(Error::Compacted)),
        (2, Ok(())),
        (3, Ok(())),
        (0, Ok(())),
        (4, Err(Error::FutureRevision)),
    ];
    for (revision, expected) in table {
        let mut store = Store::with(&["a", "b"]);
        store.run(Command::Compact { revision: 2, physical: false }).unwrap();
        let txn = then(vec![put("c", "1"), range_at(KeyRange::All, revision)]);
        assert_eq!(store.txn(txn).map(|_| ()), expected, "revision {revision}");
        assert_eq!(store.live().len(), if expected.is_ok() { 3 } else { 2 });
    }
    let mut store = Store::with(&["a"]);
    let txn = then(vec![range_at(KeyRange::All, -1)]);
    assert!(store.txn(txn).is_ok(), "−1 is the floor before any compaction");
}

#[test]
fn a_put_keeps_what_it_is_told_to_keep() {
    let mut store = Store::new();
    store.run(Command::LeaseGrant { id: 1, ttl_seconds: 10 }).unwrap();
    store.run(Command::Put(Put { lease: 1, ..plain_put("a", "old") })).unwrap();
    let keep_value = Put { value: key(""), ignore_value: true, prev_kv: true, ..plain_put("a", "") };
    let reply = store.run(Command::Put(keep_value)).unwrap();
    let Outcome::Put(Some(previous)) = reply.outcome else { panic!("{reply:?}") };
    assert_eq!((&previous.value[..], previous.lease, previous.version), (&b"old"[..], 1, 1));
    let view = store.machine.index().view();
    assert_eq!(view.find(b"a", i64::MAX).unwrap().unwrap().lease, 0, "a put without a lease detaches");
    assert_eq!(view.find(b"a", i64::MAX).unwrap().unwrap().value_len, 3);
    assert!(system::attached_keys(&view, 1).unwrap().is_empty());
    store.run(Command::Put(Put { lease: 1, ..plain_put("a", "old") })).unwrap();
    store.run(Command::Put(Put { ignore_lease: true, ..plain_put("a", "new") })).unwrap();
    let view = store.machine.index().view();
    assert_eq!(view.find(b"a", i64::MAX).unwrap().unwrap().lease, 1);
    for put in [
        Put { ignore_value: true, value: key(""), ..plain_put("none", "") },
        Put { ignore_lease: true, ..plain_put("none", "v") },
    ] {
        assert_eq!(store.run(Command::Put(put.clone())), Err(Error::KeyNotFound));
        assert_eq!(store.txn(then(vec![Operation::Put(put)])), Err(Error::KeyNotFound));
    }
    let neither = Put { ignore_value: true, lease: 9, ..plain_put("none", "") };
    assert_eq!(store.run(Command::Put(neither.clone())), Err(Error::LeaseNotFound), "the lease is looked for first");
    assert_eq!(store.txn(then(vec![Operation::Put(neither)])), Err(Error::LeaseNotFound));
}

#[test]
fn a_put_that_keeps_the_value_of_a_key_deleted_within_the_transaction_finds_none() {
    let mut store = Store::with(&["a"]);
    let keep = Put { ignore_value: true, value: key(""), ..plain_put("a", "") };
    let txn = then(vec![delete(KeyRange::FromKey(key("a"))), Operation::Put(keep)]);
    assert_eq!(store.txn(txn), Err(Error::KeyNotFound));
    assert_eq!(store.live().len(), 1);
}

#[test]
fn an_unknown_lease_is_found_out_before_anything_is_written() {
    let mut store = Store::with(&["a"]);
    let put_leased = Put { lease: 9, ..plain_put("b", "v") };
    assert_eq!(store.run(Command::Put(put_leased.clone())), Err(Error::LeaseNotFound));
    let txn = then(vec![put("c", "1"), Operation::Txn(then(vec![Operation::Put(put_leased)]))]);
    assert_eq!(store.txn(txn), Err(Error::LeaseNotFound));
    assert_eq!(store.live(), [(key("a"), 2, 0)]);
}

#[test]
fn a_revocation_deletes_what_is_attached_in_one_revision_in_key_order() {
    let mut store = Store::new();
    for id in [1, 2] {
        store.run(Command::LeaseGrant { id, ttl_seconds: 10 }).unwrap();
    }
    for name in ["c", "a", "moved", "b"] {
        store.run(Command::Put(Put { lease: 1, ..plain_put(name, "v") })).unwrap();
    }
    store.run(Command::Put(Put { lease: 2, ..plain_put("moved", "v") })).unwrap();
    store.run(Command::DeleteRange(DeleteRange { keys: KeyRange::Point(key("b")), prev_kv: false })).unwrap();
    let reply = store.apply(&Command::LeaseRevoke { id: 1 }).unwrap();
    assert_eq!((reply.revision, reply.outcome), (8 + 1 - 1, Outcome::LeaseRevoke));
    let events = store.publish().events.unwrap();
    let deleted: Vec<_> = events.events.iter().map(|event| (event.kv.key.clone(), event.revision.sub)).collect();
    assert_eq!(deleted, [(key("a"), 0), (key("c"), 1)]);
    assert_eq!(store.live().len(), 1);
    assert_eq!(store.run(Command::LeaseRevoke { id: 1 }), Err(Error::LeaseNotFound));
    let reply = store.run(Command::LeaseRevoke { id: 2 }).unwrap();
    assert_eq!(reply.revision, 9);
    store.run(Command::LeaseGrant { id: 3, ttl_seconds: 10 }).unwrap();
    let reply = store.run(Command::LeaseRevoke { id: 3 }).unwrap();
    assert_eq!(reply.revision, 9, "a lease without keys takes no revision with it");
}

#[test]
fn an_operation_over_the_quota_is_executed_and_answered_as_refused() {
    let mut store = Store::new();
    let lessor = Lessor::new(Duration::from_secs(1), Duration::from_millis(100), []);
    let index = Index::create(IndexConfig::new(1, 1), Arc::new(NoFile::new(1 << 30).unwrap()));
    store.machine =
        Machine::new(index, lessor, Alarms::default(), Members::default(), Sessions::default(), Quota::from_flag(10));
    assert_eq!(store.run(Command::Put(plain_put("a", "v"))), Err(Error::NoSpace));
    assert_eq!(store.live(), [(key("a"), 2, 0)]);
    let deletion = DeleteRange { keys: KeyRange::All, prev_kv: false };
    assert!(store.run(Command::DeleteRange(deletion)).is_ok());
}

#[test]
fn events_carry_what_watchers_see() {
    let mut store = Store::with(&["a"]);
    store.apply(&Command::Put(plain_put("a", "2"))).unwrap();
    store.apply(&Command::DeleteRange(DeleteRange { keys: KeyRange::All, prev_kv: false })).unwrap();
    let batch = store.publish().events.unwrap();
    assert_eq!((batch.first_revision, batch.last_revision), (3, 4));
    let [written, deleted] = &batch.events[..] else { panic!("{batch:?}") };
    assert!(!written.is_create() && !written.deleted);
    assert_eq!((written.kv.version, written.kv.create_revision, written.kv.mod_revision), (2, 2, 3));
    assert_eq!(written.previous.unwrap().main, 2);
    assert_eq!(deleted.kv, KeyValue { key: key("a"), mod_revision: 4, ..KeyValue::default() });
    assert_eq!(deleted.previous.unwrap().main, 3);
}

/// A small generator: the commands need not make sense.
fn commands(seed: u64) -> Vec<Command> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut below = move |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from((state >> 20) % u64::try_from(bound).unwrap()).unwrap()
    };
    let names = ["a", "b", "c", "d", "e"];
    let mut commands = Vec::new();
    for _ in 0..60 {
        let name = names[below(names.len())];
        let lease = [0, 0, 1, 2][below(4)];
        let put = Put { prev_kv: below(2) == 0, lease, ignore_value: below(4) == 0, ..plain_put(name, name) };
        let keys = [KeyRange::All, KeyRange::FromKey(key(name)), KeyRange::Point(key(name))][below(3)].clone();
        let deletion = DeleteRange { keys: keys.clone(), prev_kv: below(2) == 0 };
        let compare = Compare {
            keys: keys.clone(),
            operator: CompareOperator::Greater,
            target: CompareTarget::Version(i64::from(u8::try_from(below(3)).unwrap())),
        };
        let operations = vec![
            range_at(keys.clone(), 0),
            Operation::DeleteRange(deletion.clone()),
            Operation::Put(put.clone()),
            range_at(KeyRange::All, 0),
        ];
        let inner = Txn { compares: vec![compare.clone()], success: operations.clone(), failure: vec![] };
        commands.push(match below(9) {
            0..=2 => Command::Put(put),
            3 => Command::DeleteRange(deletion),
            4 => Command::Txn(Txn { compares: vec![compare], success: operations, failure: vec![] }),
            5 => Command::Txn(then(vec![Operation::Txn(inner), Operation::Put(put)])),
            6 => Command::LeaseGrant { id: [1, 2][below(2)], ttl_seconds: 10 },
            7 => Command::LeaseRevoke { id: [1, 2][below(2)] },
            _ => Command::Compact { revision: i64::try_from(commands.len()).unwrap() / 2, physical: false },
        });
    }
    commands
}

#[test]
fn missing_pages_change_no_result_wherever_they_are_missing() {
    for seed in 1..=200 {
        let (mut plain, mut paged) = (Store::new(), Store::new());
        for command in commands(seed) {
            miss_one_in(0, 0);
            let expected = plain.apply(&command);
            let events = plain.publish().events;
            miss_one_in(3, seed);
            let result = paged.apply(&command);
            let paged_events = paged.publish().events;
            miss_one_in(0, 0);
            assert_eq!(result, expected, "seed {seed}: {command:?}");
            assert_eq!(paged_events, events, "seed {seed}: {command:?}");
        }
        assert_eq!(paged.live(), plain.live(), "seed {seed}");
        for id in [1, 2] {
            let attached = |store: &Store| system::attached_keys(&store.machine.index().view(), id).unwrap();
            assert_eq!(attached(&paged), attached(&plain), "seed {seed}");
        }
    }
}
