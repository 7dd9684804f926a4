use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::request::{
    Alarm, AlarmKind, Compare, CompareOperator, CompareTarget, DeleteRange, KeyRange, Operation, Put, Range, SortOrder,
    SortTarget, Txn,
};

fn any_bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from)
}

fn any_keys() -> impl Strategy<Value = KeyRange> {
    prop_oneof![
        any_bytes().prop_map(KeyRange::Point),
        (any_bytes(), any_bytes()).prop_map(|(start, end)| KeyRange::Span { start, end }),
        any_bytes().prop_map(KeyRange::FromKey),
        Just(KeyRange::All),
    ]
}

fn any_put() -> impl Strategy<Value = Put> {
    (any_bytes(), any_bytes(), any::<i64>(), any::<[bool; 3]>()).prop_map(|(key, value, lease, flags)| Put {
        key,
        value,
        lease,
        prev_kv: flags[0],
        ignore_value: flags[1],
        ignore_lease: flags[2],
    })
}

fn any_range() -> impl Strategy<Value = Range> {
    let order = prop::sample::select(vec![SortOrder::None, SortOrder::Ascend, SortOrder::Descend]);
    let targets = vec![SortTarget::Key, SortTarget::Version, SortTarget::Create, SortTarget::Mod, SortTarget::Value];
    let target = prop::sample::select(targets);
    (any_keys(), order, target, any::<[bool; 3]>(), any::<[i64; 6]>()).prop_map(
        |(keys, order, target, flags, numbers)| Range {
            keys,
            limit: numbers[0],
            revision: numbers[1],
            order,
            target,
            serializable: flags[0],
            keys_only: flags[1],
            count_only: flags[2],
            min_mod_revision: numbers[2],
            max_mod_revision: numbers[3],
            min_create_revision: numbers[4],
            max_create_revision: numbers[5],
        },
    )
}

fn any_delete() -> impl Strategy<Value = DeleteRange> {
    (any_keys(), any::<bool>()).prop_map(|(keys, prev_kv)| DeleteRange { keys, prev_kv })
}

fn any_compare() -> impl Strategy<Value = Compare> {
    let operators =
        vec![CompareOperator::Equal, CompareOperator::Greater, CompareOperator::Less, CompareOperator::NotEqual];
    let target = prop_oneof![
        any::<i64>().prop_map(CompareTarget::Version),
        any::<i64>().prop_map(CompareTarget::Create),
        any::<i64>().prop_map(CompareTarget::Mod),
        any_bytes().prop_map(CompareTarget::Value),
        any::<i64>().prop_map(CompareTarget::Lease),
    ];
    (any_keys(), prop::sample::select(operators), target).prop_map(|(keys, operator, target)| Compare {
        keys,
        operator,
        target,
    })
}

fn any_txn() -> impl Strategy<Value = Txn> {
    let leaf = prop_oneof![
        any_range().prop_map(Operation::Range),
        any_put().prop_map(Operation::Put),
        any_delete().prop_map(Operation::DeleteRange),
    ];
    let operation = leaf.prop_recursive(3, 12, 3, |inner| {
        (prop::collection::vec(inner.clone(), 0..3), prop::collection::vec(inner, 0..3))
            .prop_map(|(success, failure)| Operation::Txn(Txn { compares: vec![], success, failure }))
    });
    let branch = prop::collection::vec(operation, 0..4);
    (prop::collection::vec(any_compare(), 0..3), branch.clone(), branch).prop_map(|(compares, success, failure)| Txn {
        compares,
        success,
        failure,
    })
}

fn any_alarm() -> impl Strategy<Value = Alarm> {
    let kinds = vec![AlarmKind::None, AlarmKind::NoSpace, AlarmKind::Corrupt];
    (any::<u64>(), prop::sample::select(kinds)).prop_map(|(member_id, kind)| Alarm { member_id, kind })
}

fn any_item() -> impl Strategy<Value = Item> {
    let command = prop_oneof![
        any_put().prop_map(Command::Put),
        any_delete().prop_map(Command::DeleteRange),
        any_txn().prop_map(Command::Txn),
        (any::<i64>(), any::<bool>()).prop_map(|(revision, physical)| Command::Compact { revision, physical }),
        (any::<i64>(), any::<i64>()).prop_map(|(id, ttl_seconds)| Command::LeaseGrant { id, ttl_seconds }),
        any::<i64>().prop_map(|id| Command::LeaseRevoke { id }),
        any_alarm().prop_map(Command::AlarmActivate),
        any_alarm().prop_map(Command::AlarmDeactivate),
    ];
    let principal = prop_oneof![
        Just(Principal::Anonymous),
        Just(Principal::Server),
        (any_bytes(), any::<u64>()).prop_map(|(name, auth_revision)| Principal::User { name, auth_revision }),
    ];
    (principal, command).prop_map(|(principal, command)| Item { principal, command })
}

fn any_source() -> impl Strategy<Value = Option<Source>> {
    let source = any::<[u64; 3]>().prop_map(|[member_id, session, first]| Source { member_id, session, first });
    prop::option::of(source)
}

fn any_batch(items: std::ops::Range<usize>) -> impl Strategy<Value = Batch> {
    (any::<u32>(), any_source(), prop::collection::vec(any_item(), items)).prop_map(|(keyspace, source, items)| Batch {
        keyspace: KeyspaceId(keyspace),
        source,
        items,
    })
}

fn one(command: Command) -> Batch {
    let items = vec![Item { principal: Principal::Anonymous, command }];
    Batch { keyspace: KeyspaceId(0), source: None, items }
}

proptest! {
    #[test]
    fn every_batch_reads_back_as_it_was_written(batch in any_batch(0..5)) {
        let data = encode_entry(&batch);
        prop_assert_eq!(decode_entry(&data), Ok(batch));
    }

    #[test]
    fn every_truncated_batch_is_refused(batch in any_batch(1..4), cut: prop::sample::Index) {
        let data = encode_entry(&batch);
        let cut = cut.index(data.len());
        prop_assert!(decode_entry(&data.slice(..cut)).is_err());
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused_without_a_panic(
        version in VERSION..=VERSION_SOURCED,
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut data = vec![version, 0, 0, 0, 0];
        data.extend(bytes);
        if let Ok(batch) = decode_entry(&Bytes::from(data.clone())) {
            prop_assert_eq!(encode_entry(&batch), Bytes::from(data));
        }
    }
}

#[test]
fn keys_and_values_are_slices_of_the_entry() {
    let put = Put {
        key: Bytes::from_static(b"key"),
        value: Bytes::from_static(b"value"),
        lease: 0,
        prev_kv: false,
        ignore_value: false,
        ignore_lease: false,
    };
    let data = encode_entry(&one(Command::Put(put)));
    let batch = decode_entry(&data).unwrap();
    let Command::Put(put) = &batch.items[0].command else { panic!("a put was encoded") };
    assert!(data.as_ptr_range().contains(&put.value.as_ptr()), "the value was copied");
}

#[test]
fn a_newer_version_is_named_and_refused() {
    assert_eq!(decode_entry(&Bytes::from_static(&[3, 0])), Err(DecodeError::UnknownVersion(3)));
}

#[test]
fn nesting_beyond_the_limit_is_refused_without_deep_recursion() {
    let mut txn = Txn::default();
    for _ in 0..400 {
        txn = Txn { success: vec![Operation::Txn(txn)], ..Txn::default() };
    }
    assert_eq!(decode_entry(&encode_entry(&one(Command::Txn(txn)))), Err(DecodeError::TooDeep));
}

#[test]
fn commands_are_carried_over_into_another_entry_as_they_are() {
    let source = Source { member_id: 1, session: 2, first: 3 };
    let mut builder = EntryBuilder::sourced(KeyspaceId(4));
    builder.push(&Principal::Server, &Command::LeaseRevoke { id: 5 });
    let end = builder.len();
    builder.push(&Principal::Anonymous, &Command::LeaseRevoke { id: 6 });
    let data = builder.finish_with(source);
    let mut other = EntryBuilder::sourced(KeyspaceId(4));
    other.push_encoded(&data[end..]);
    other.push_encoded(&data[EntryBuilder::SOURCED_HEADER_BYTES..end]);
    let batch = decode_entry(&other.finish_with(source)).unwrap();
    let ids = batch.items.iter().map(|item| item.command.clone()).collect::<Vec<_>>();
    assert_eq!(ids, [6, 5].map(|id| Command::LeaseRevoke { id }));
    assert_eq!(batch.source, Some(source));
}
