//! The promises of short reads.

use super::fault::{miss_one_in, whole};
use super::fixture::{Change, Dice, Store, bytes, read, seeds, span};
use super::range::evaluate;
use super::{compare, txn};
use crate::error::Error;
use crate::request::{
    Compare, CompareOperator, CompareTarget, KeyRange, KeyValue, Operation, OperationResult, Range, RangeResult,
    SortOrder, SortTarget, Txn,
};

fn range(store: &Store, range: &Range) -> Result<RangeResult, Error> {
    let snapshot = store.snapshot();
    whole(|| evaluate(&snapshot.view(), range, false))
}

fn keys(result: &RangeResult) -> Vec<&str> {
    result.kvs.iter().map(|kv| std::str::from_utf8(&kv.key).unwrap()).collect()
}

#[test]
fn a_point_a_span_from_key_and_all_select_their_keys() {
    let store = Store::with(&[("a", "1"), ("b", "2"), ("b\0", "3"), ("c", "4")]);
    let select = |keys_asked| {
        let result = range(&store, &read(keys_asked)).unwrap();
        (keys(&result).join(","), result.count, result.more)
    };
    assert_eq!(select(KeyRange::Point(bytes("b"))), ("b".into(), 1, false));
    assert_eq!(select(KeyRange::Point(bytes("x"))), (String::new(), 0, false));
    assert_eq!(select(span("a", "b\0")), ("a,b".into(), 2, false));
    assert_eq!(select(span("b", "a")), (String::new(), 0, false));
    assert_eq!(select(KeyRange::FromKey(bytes("b\0"))), ("b\0,c".into(), 2, false));
    assert_eq!(select(KeyRange::All), ("a,b,b\0,c".into(), 4, false));
}

#[test]
fn the_count_covers_the_range_whatever_limit_and_filters() {
    let store = Store::with(&[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]);
    let limited = range(&store, &Range { limit: 2, ..read(KeyRange::All) }).unwrap();
    assert_eq!((keys(&limited), limited.count, limited.more), (vec!["a", "b"], 4, true));
    let exact = range(&store, &Range { limit: 4, ..read(KeyRange::All) }).unwrap();
    assert_eq!((exact.kvs.len(), exact.count, exact.more), (4, 4, false));
    let filtered = range(&store, &Range { limit: 1, min_mod_revision: 3, ..read(KeyRange::All) }).unwrap();
    assert_eq!((keys(&filtered), filtered.count, filtered.more), (vec!["b"], 4, true));
    let last = range(&store, &Range { limit: 1, min_mod_revision: 5, ..read(KeyRange::All) }).unwrap();
    assert_eq!((keys(&last), last.count, last.more), (vec!["d"], 4, false));
    let largest = range(&store, &Range { limit: i64::MAX, ..read(KeyRange::All) }).unwrap();
    assert_eq!((largest.kvs.len(), largest.more), (4, false));
    let counted = range(&store, &Range { limit: 1, count_only: true, ..read(KeyRange::All) }).unwrap();
    assert_eq!(counted, RangeResult { kvs: vec![], more: false, count: 4 });
}

#[test]
fn filters_hold_revisions_within_inclusive_bounds() {
    let mut store = Store::with(&[("a", "1"), ("b", "2"), ("c", "3")]);
    store.put("a", "4");
    let select = |filtered: Range| keys(&range(&store, &filtered).unwrap()).join(",");
    assert_eq!(select(Range { max_mod_revision: 4, ..read(KeyRange::All) }), "b,c");
    assert_eq!(select(Range { min_mod_revision: 4, ..read(KeyRange::All) }), "a,c");
    assert_eq!(select(Range { max_create_revision: 2, ..read(KeyRange::All) }), "a");
    assert_eq!(select(Range { min_create_revision: 3, ..read(KeyRange::All) }), "b,c");
    assert_eq!(select(Range { max_mod_revision: -1, ..read(KeyRange::All) }), "");
}

#[test]
fn a_sort_orders_the_whole_range_before_the_limit_cuts_it() {
    let store = Store::with(&[("a", "3"), ("b", "1"), ("c", "2"), ("d", "0")]);
    let select = |order, target, limit| {
        let result = range(&store, &Range { order, target, limit, ..read(KeyRange::All) }).unwrap();
        (keys(&result).join(","), result.more)
    };
    assert_eq!(select(SortOrder::Descend, SortTarget::Key, 2), ("d,c".into(), true));
    assert_eq!(select(SortOrder::Ascend, SortTarget::Value, 0), ("d,b,c,a".into(), false));
    assert_eq!(select(SortOrder::Ascend, SortTarget::Value, 1), ("d".into(), true));
    assert_eq!(select(SortOrder::Descend, SortTarget::Mod, 1), ("d".into(), true));
    assert_eq!(select(SortOrder::Ascend, SortTarget::Key, 3), ("a,b,c".into(), true));
}

#[test]
fn a_sort_of_no_order_is_ascending_and_sees_only_the_first_keys_beyond_the_limit() {
    let mut store = Store::with(&[("a", "9"), ("b", "5"), ("c", "1")]);
    store.put("a", "9");
    let by_mod = |limit, order| {
        let asked = Range { target: SortTarget::Mod, order, limit, ..read(KeyRange::All) };
        keys(&range(&store, &asked).unwrap()).join(",")
    };
    assert_eq!(by_mod(0, SortOrder::None), "b,c,a");
    // Only a and b were read: b was modified first of the two.
    assert_eq!(by_mod(1, SortOrder::None), "b");
    let by_value = |limit, order| {
        let asked = Range { target: SortTarget::Value, order, limit, ..read(KeyRange::All) };
        keys(&range(&store, &asked).unwrap()).join(",")
    };
    assert_eq!(by_value(1, SortOrder::None), "b");
    assert_eq!(by_value(1, SortOrder::Ascend), "c");
}

#[test]
fn keys_only_leaves_out_value_and_lease_but_keeps_the_lease_when_it_sorts_by_value() {
    let mut store = Store::new();
    store.put_leased("a", "value", 7);
    let select = |order, target| {
        let asked = Range { keys_only: true, order, target, ..read(KeyRange::All) };
        range(&store, &asked).unwrap().kvs.remove(0)
    };
    let plain = select(SortOrder::None, SortTarget::Key);
    assert_eq!((plain.value.len(), plain.lease, plain.mod_revision, plain.version), (0, 0, 2, 1));
    let sorted = select(SortOrder::None, SortTarget::Value);
    assert_eq!((sorted.value.len(), sorted.lease), (0, 7));
}

#[test]
fn revisions_are_checked_outside_and_inside_transactions_as_etcd_does() {
    let mut store = Store::with(&[("a", "1"), ("a", "2"), ("a", "3")]);
    let value = |store: &Store, revision, inside| {
        let snapshot = store.snapshot();
        let asked = Range { revision, ..read(KeyRange::Point(bytes("a"))) };
        let result = whole(|| evaluate(&snapshot.view(), &asked, inside));
        result.map(|result| result.kvs.first().map(|kv| String::from_utf8(kv.value.to_vec()).unwrap()))
    };
    let found = |text: &str| Ok(Some(text.to_owned()));
    for inside in [false, true] {
        assert_eq!(value(&store, 0, inside), found("3"));
        assert_eq!(value(&store, 4, inside), found("3"));
        assert_eq!(value(&store, 2, inside), found("1"));
        assert_eq!(value(&store, 1, inside), Ok(None));
        assert_eq!(value(&store, 5, inside), Err(Error::FutureRevision));
        assert_eq!(value(&store, -1, inside), found("3"), "-1 before the first compaction");
    }
    assert_eq!(value(&store, -2, false), found("3"));
    assert_eq!(value(&store, -2, true), Err(Error::Compacted));
    store.compact(3, true);
    assert_eq!(value(&store, 3, false), found("2"), "the floor itself is served");
    for inside in [false, true] {
        assert_eq!(value(&store, 2, inside), Err(Error::Compacted));
    }
    assert_eq!(value(&store, -1, false), found("3"));
    assert_eq!(value(&store, -1, true), Err(Error::Compacted));
}

#[test]
fn a_compare_of_an_absent_key_is_against_zero_and_never_holds_for_a_value() {
    let store = Store::with(&[("a", "1")]);
    let snapshot = store.snapshot();
    let holds = |key: &str, operator, target| {
        let compare = Compare { keys: KeyRange::Point(bytes(key)), operator, target };
        whole(|| compare::holds(&snapshot.view(), &compare))
    };
    use CompareOperator::{Equal, Greater, Less, NotEqual};
    for operator in [Equal, NotEqual, Greater, Less] {
        assert!(!holds("x", operator, CompareTarget::Value(bytes(""))));
        assert!(!holds("x", operator, CompareTarget::Value(bytes("1"))));
    }
    for target in [CompareTarget::Version, CompareTarget::Create, CompareTarget::Mod, CompareTarget::Lease] {
        assert!(holds("x", Equal, target(0)));
        assert!(holds("x", Less, target(1)));
        assert!(holds("x", NotEqual, target(1)));
        assert!(holds("x", Greater, target(-1)));
    }
    assert!(holds("a", Equal, CompareTarget::Value(bytes("1"))));
    assert!(holds("a", NotEqual, CompareTarget::Value(bytes("12"))));
    assert!(holds("a", Less, CompareTarget::Value(bytes("12"))));
    assert!(holds("a", Greater, CompareTarget::Value(bytes("0zz"))));
    assert!(!holds("a", Equal, CompareTarget::Value(bytes("2"))));
}

#[test]
fn a_compare_of_a_range_must_hold_for_all_its_keys_and_an_empty_range_counts_as_absent() {
    let store = Store::with(&[("a", "1"), ("b", "1"), ("c", "2")]);
    let snapshot = store.snapshot();
    let holds = |keys, operator, target| {
        let compare = Compare { keys, operator, target };
        whole(|| compare::holds(&snapshot.view(), &compare))
    };
    let one = || CompareTarget::Value(bytes("1"));
    assert!(holds(span("a", "c"), CompareOperator::Equal, one()));
    assert!(!holds(span("a", "d"), CompareOperator::Equal, one()));
    assert!(holds(KeyRange::All, CompareOperator::Greater, CompareTarget::Create(1)));
    for empty in [span("x", "y"), span("b", "a")] {
        assert!(!holds(empty.clone(), CompareOperator::NotEqual, one()));
        assert!(holds(empty, CompareOperator::Equal, CompareTarget::Mod(0)));
    }
}

#[test]
fn a_read_only_transaction_takes_its_branch_and_checks_every_range_first() {
    let store = Store::with(&[("a", "1"), ("b", "2")]);
    let snapshot = store.snapshot();
    let get = |key: &str, revision| Operation::Range(Range { revision, ..read(KeyRange::Point(bytes(key))) });
    let equal = |key: &str, value: &str| Compare {
        keys: KeyRange::Point(bytes(key)),
        operator: CompareOperator::Equal,
        target: CompareTarget::Value(bytes(value)),
    };
    let inner = Txn { compares: vec![equal("a", "9")], success: vec![get("a", 99)], failure: vec![get("b", 3)] };
    let outer =
        Txn { compares: vec![equal("a", "1")], success: vec![Operation::Txn(inner), get("a", 0)], failure: vec![] };
    assert!(txn::is_read_only(&outer, false) && !txn::is_read_only(&outer, true));
    let result = whole(|| txn::evaluate(&snapshot.view(), &outer)).unwrap();
    assert!(result.succeeded && result.responses.len() == 2);
    let OperationResult::Txn(inner) = &result.responses[0] else { panic!("a transaction") };
    let OperationResult::Range(3, range) = &inner.responses[0] else { panic!("a range at revision 3") };
    assert_eq!((inner.succeeded, keys(range)), (false, vec!["b"]));

    let refused = Txn { success: vec![get("a", 0), get("a", 4)], ..Txn::default() };
    assert_eq!(whole(|| txn::evaluate(&snapshot.view(), &refused)), Err(Error::FutureRevision));
}

/// What a range must return, computed from the whole history in the plainest way.
pub(super) fn model(store: &Store, asked: &Range) -> RangeResult {
    let at = if asked.revision > 0 { asked.revision } else { i64::MAX };
    let mut all = store.pairs_at(at);
    all.retain(|kv| asked.keys.contains(&kv.key));
    let count = i64::try_from(all.len()).unwrap();
    if asked.count_only {
        return RangeResult { kvs: vec![], more: false, count };
    }
    let bounds = |low: i64, high: i64, value: i64| (low == 0 || value >= low) && (high == 0 || value <= high);
    let filtered =
        [asked.min_mod_revision, asked.max_mod_revision, asked.min_create_revision, asked.max_create_revision]
            .iter()
            .any(|revision| *revision != 0);
    let limit = usize::try_from(asked.limit).ok().filter(|limit| *limit > 0);
    if let Some(limit) = limit.filter(|_| !filtered && asked.order == SortOrder::None) {
        all.truncate(limit + 1);
    }
    all.retain(|kv| bounds(asked.min_mod_revision, asked.max_mod_revision, kv.mod_revision));
    all.retain(|kv| bounds(asked.min_create_revision, asked.max_create_revision, kv.create_revision));
    let by = |a: &KeyValue, b: &KeyValue| match asked.target {
        SortTarget::Key => a.key.cmp(&b.key),
        SortTarget::Version => a.version.cmp(&b.version),
        SortTarget::Create => a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => a.value.cmp(&b.value),
    };
    all.sort_by(|a, b| if asked.order == SortOrder::Descend { by(b, a) } else { by(a, b) });
    let more = limit.is_some_and(|limit| all.len() > limit);
    all.truncate(limit.unwrap_or(usize::MAX));
    for kv in all.iter_mut().filter(|_| asked.keys_only) {
        kv.value = bytes("");
        kv.lease = if asked.target == SortTarget::Value { kv.lease } else { 0 };
    }
    RangeResult { kvs: all, more, count }
}

/// A store of some hundred random changes of few keys, perhaps compacted.
pub(super) fn random_store(dice: &mut Dice) -> Store {
    let mut store = Store::new();
    for _ in 0..dice.below(80) {
        let txn: Vec<Change> = (0..=dice.below(3)).map(|sub| random_change(dice, sub)).collect();
        store.apply(&[txn]);
        if dice.one_in(30) {
            let floor = dice.between(store.compacted.max(1), store.revision);
            if floor > store.compacted {
                store.compact(floor, dice.one_in(2));
            }
        }
    }
    store
}

/// `sub` keeps the keys of one transaction apart, which may not put a key twice.
fn random_change(dice: &mut Dice, sub: u64) -> Change {
    let key = bytes(&format!("{}{sub}", ["a", "b", "bb", "c\u{7f}", "d"][usize::try_from(dice.below(5)).unwrap()]));
    if dice.one_in(4) {
        return Change::Delete(key);
    }
    let value = "v".repeat(usize::try_from(dice.below(300)).unwrap());
    Change::Put(key, bytes(&format!("{}{value}", dice.below(10))), dice.between(0, 2))
}

/// A random read that the store does not refuse.
pub(super) fn random_range(dice: &mut Dice, store: &Store) -> Range {
    let keys = match dice.below(5) {
        0 => KeyRange::Point(bytes("bb1")),
        1 => span("b", "c"),
        2 => span("c", "a"),
        3 => KeyRange::FromKey(bytes("b1")),
        _ => KeyRange::All,
    };
    let orders = [SortOrder::None, SortOrder::Ascend, SortOrder::Descend];
    let targets = [SortTarget::Key, SortTarget::Version, SortTarget::Create, SortTarget::Mod, SortTarget::Value];
    let mut revision =
        |one_in| if dice.one_in(one_in) { dice.between(store.compacted.max(1), store.revision) } else { 0 };
    Range {
        keys,
        revision: revision(2),
        min_mod_revision: revision(6),
        max_mod_revision: revision(6),
        min_create_revision: revision(6),
        max_create_revision: revision(6),
        limit: if dice.one_in(2) { dice.between(-1, 8) } else { 0 },
        order: orders[usize::try_from(dice.below(3)).unwrap()],
        target: targets[usize::try_from(dice.below(5)).unwrap()],
        serializable: false,
        keys_only: dice.one_in(4),
        count_only: dice.one_in(8),
    }
}

#[test]
fn any_range_at_any_revision_is_what_the_history_says_whatever_pages_are_missing() {
    seeds(60, |seed| {
        let mut dice = Dice::new(seed);
        let store = random_store(&mut dice);
        for _ in 0..60 {
            let asked = random_range(&mut dice, &store);
            miss_one_in(if dice.one_in(2) { 50 } else { 0 }, dice.next());
            let found = range(&store, &asked);
            miss_one_in(0, 0);
            assert_eq!(found, Ok(model(&store, &asked)), "{asked:?}");
        }
    });
}
