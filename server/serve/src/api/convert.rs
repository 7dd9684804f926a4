//! Wire messages to domain types, with etcd's checks in etcd's order, and results back.
//!
//! Wire bytes stop here: what comes out has been checked as far as that needs no state.

use bytes::Bytes;
use garboard_proto::etcdserverpb as pb;
use garboard_proto::mvccpb;
use garboard_replica::Error;
use garboard_replica::request::{
    Compare, CompareOperator, CompareTarget, DeleteRange, KeyRange, KeyValue, Operation, OperationResult, Put, Range,
    RangeResult, SortOrder, SortTarget, Txn, TxnResult,
};
use garboard_replica::validate::{self, Limits};
use pb::compare::{CompareResult as WireOperator, CompareTarget as WireTarget, TargetUnion};
use pb::range_request::{SortOrder as WireOrder, SortTarget as WireSortTarget};
use pb::request_op::Request as WireOperation;
use pb::response_op::Response as WireResponse;

use super::errors::Refusal;

/// The keys that `key` and `range_end` name. The key is not empty.
fn key_range(key: Bytes, range_end: Bytes) -> KeyRange {
    match (&key[..], &range_end[..]) {
        (_, []) => KeyRange::Point(key),
        ([0], [0]) => KeyRange::All,
        (_, [0]) => KeyRange::FromKey(key),
        _ => KeyRange::Span { start: key, end: range_end },
    }
}

/// The keys that a watch is about: an empty key stands for the smallest one.
pub fn watch_keys(key: Bytes, range_end: Bytes) -> KeyRange {
    let key = if key.is_empty() { Bytes::from_static(&[0]) } else { key };
    key_range(key, range_end)
}

/// A read.
///
/// # Errors
/// [`Error::EmptyKey`] and [`Error::InvalidSortOption`].
pub fn range(request: pb::RangeRequest) -> Result<Range, Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    let order = match WireOrder::try_from(request.sort_order) {
        Ok(WireOrder::None) => SortOrder::None,
        Ok(WireOrder::Ascend) => SortOrder::Ascend,
        Ok(WireOrder::Descend) => SortOrder::Descend,
        Err(_) => return Err(Error::InvalidSortOption),
    };
    let target = match WireSortTarget::try_from(request.sort_target) {
        Ok(WireSortTarget::Key) => SortTarget::Key,
        Ok(WireSortTarget::Version) => SortTarget::Version,
        Ok(WireSortTarget::Create) => SortTarget::Create,
        Ok(WireSortTarget::Mod) => SortTarget::Mod,
        Ok(WireSortTarget::Value) => SortTarget::Value,
        Err(_) => return Err(Error::InvalidSortOption),
    };
    Ok(Range {
        keys: key_range(request.key, request.range_end),
        limit: request.limit,
        revision: request.revision,
        order,
        target,
        serializable: request.serializable,
        keys_only: request.keys_only,
        count_only: request.count_only,
        min_mod_revision: request.min_mod_revision,
        max_mod_revision: request.max_mod_revision,
        min_create_revision: request.min_create_revision,
        max_create_revision: request.max_create_revision,
    })
}

/// Checks what a stream of a read's rows can't do.
///
/// # Errors
/// For another order than that of the keys, also where etcd lets a target without an order through and then repeats
/// rows; for filters.
pub fn check_range_stream(range: &Range) -> Result<(), Refusal> {
    let natural = matches!((range.target, range.order), (SortTarget::Key, SortOrder::None | SortOrder::Ascend));
    let filters =
        [range.min_mod_revision, range.max_mod_revision, range.min_create_revision, range.max_create_revision];
    match (natural, filters) {
        (false, _) => Err(Refusal::RangeStreamSorted),
        (true, [0, 0, 0, 0]) => Ok(()),
        (true, _) => Err(Refusal::RangeStreamFiltered),
    }
}

/// A write of one key.
///
/// # Errors
/// [`Error::EmptyKey`], [`Error::ValueProvided`] and [`Error::LeaseProvided`].
pub fn put(request: pb::PutRequest) -> Result<Put, Error> {
    let put = Put {
        key: request.key,
        value: request.value,
        lease: request.lease,
        prev_kv: request.prev_kv,
        ignore_value: request.ignore_value,
        ignore_lease: request.ignore_lease,
    };
    validate::check_put(&put)?;
    Ok(put)
}

/// A deletion.
///
/// # Errors
/// [`Error::EmptyKey`].
pub fn delete_range(request: pb::DeleteRangeRequest) -> Result<DeleteRange, Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    Ok(DeleteRange { keys: key_range(request.key, request.range_end), prev_kv: request.prev_kv })
}

/// A transaction of at most `max_ops` operations a list.
///
/// # Errors
/// [`Error::TooManyOperations`], those of the operations in their order, [`Error::KeyNotFound`] for an operation without
/// content, and then [`Error::DuplicateKey`].
pub fn txn(request: pb::TxnRequest, max_ops: usize) -> Result<Txn, Error> {
    let txn = txn_within(request, max_ops)?;
    validate::check_txn(&txn, &Limits { max_txn_ops: max_ops })?;
    Ok(txn)
}

/// The recursion of [`txn`]. What an enclosing transaction leaves of the budget bounds its depth.
fn txn_within(request: pb::TxnRequest, budget: usize) -> Result<Txn, Error> {
    let largest = request.compare.len().max(request.success.len()).max(request.failure.len());
    let rest = budget.checked_sub(largest).ok_or(Error::TooManyOperations)?;
    // All keys are checked before any operation is looked at; what else a condition says is never refused.
    let compares = request.compare.into_iter().map(compare).collect::<Result<_, _>>()?;
    let operations = |list: Vec<pb::RequestOp>| list.into_iter().map(|op| operation(op, rest)).collect();
    let success = operations(request.success)?;
    let failure: Result<_, Error> = operations(request.failure);
    Ok(Txn { compares, success, failure: failure? })
}

fn operation(request: pb::RequestOp, budget: usize) -> Result<Operation, Error> {
    match request.request {
        Some(WireOperation::RequestRange(request)) => range(*request).map(Operation::Range),
        Some(WireOperation::RequestPut(request)) => put(*request).map(Operation::Put),
        Some(WireOperation::RequestDeleteRange(request)) => delete_range(*request).map(Operation::DeleteRange),
        Some(WireOperation::RequestTxn(request)) => txn_within(*request, budget).map(Operation::Txn),
        None => Err(Error::KeyNotFound),
    }
}

/// A condition. The operand counts only if it is of the target's kind; another kind, or none, stands for zero.
///
/// etcd holds an unknown target for equal and an unknown relation for true, which conditions on the version, never
/// negative and above zero exactly for what exists, can say too.
fn compare(request: pb::Compare) -> Result<Compare, Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    let operand = request.target_union;
    let value_only = request.target == i32::from(WireTarget::Value);
    let operator = match WireOperator::try_from(request.result) {
        Ok(WireOperator::Equal) => Some(CompareOperator::Equal),
        Ok(WireOperator::Greater) => Some(CompareOperator::Greater),
        Ok(WireOperator::Less) => Some(CompareOperator::Less),
        Ok(WireOperator::NotEqual) => Some(CompareOperator::NotEqual),
        Err(_) => None,
    };
    let target = WireTarget::try_from(request.target).ok().map(|target| compare_target(target, operand));
    let (operator, target) = match (operator, target) {
        (Some(operator), Some(target)) => (operator, target),
        // A value is compared with what exists only.
        (None, Some(_)) if value_only => (CompareOperator::Greater, CompareTarget::Version(0)),
        (None, _) | (Some(CompareOperator::Equal), None) => (CompareOperator::Greater, CompareTarget::Version(-1)),
        (Some(_), None) => (CompareOperator::Less, CompareTarget::Version(0)),
    };
    Ok(Compare { keys: key_range(request.key, request.range_end), operator, target })
}

fn compare_target(target: WireTarget, operand: Option<TargetUnion>) -> CompareTarget {
    match (target, operand) {
        (WireTarget::Version, Some(TargetUnion::Version(version))) => CompareTarget::Version(version),
        (WireTarget::Version, _) => CompareTarget::Version(0),
        (WireTarget::Create, Some(TargetUnion::CreateRevision(revision))) => CompareTarget::Create(revision),
        (WireTarget::Create, _) => CompareTarget::Create(0),
        (WireTarget::Mod, Some(TargetUnion::ModRevision(revision))) => CompareTarget::Mod(revision),
        (WireTarget::Mod, _) => CompareTarget::Mod(0),
        (WireTarget::Value, Some(TargetUnion::Value(value))) => CompareTarget::Value(value),
        (WireTarget::Value, _) => CompareTarget::Value(Bytes::new()),
        (WireTarget::Lease, Some(TargetUnion::Lease(lease))) => CompareTarget::Lease(lease),
        (WireTarget::Lease, _) => CompareTarget::Lease(0),
    }
}

/// A pair as clients see it.
pub fn key_value(pair: KeyValue) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: pair.key,
        create_revision: pair.create_revision,
        mod_revision: pair.mod_revision,
        version: pair.version,
        value: pair.value,
        lease: pair.lease,
    }
}

/// What a read found, under a header.
pub fn range_response(header: pb::ResponseHeader, result: RangeResult) -> pb::RangeResponse {
    let kvs = result.kvs.into_iter().map(key_value).collect();
    pb::RangeResponse { header: Some(header), kvs, more: result.more, count: result.count }
}

/// What a transaction did, under a header.
pub fn txn_response(header: pb::ResponseHeader, result: TxnResult) -> pb::TxnResponse {
    let responses = result.responses.into_iter().map(operation_response).collect();
    pb::TxnResponse { header: Some(header), succeeded: result.succeeded, responses }
}

/// What an operation of a transaction did: its header has a revision only, that of a transaction within has nothing.
fn operation_response(result: OperationResult) -> pb::ResponseOp {
    let header = |revision| pb::ResponseHeader { revision, ..Default::default() };
    let response = match result {
        OperationResult::Range(revision, result) => {
            WireResponse::ResponseRange(range_response(header(revision), result))
        }
        OperationResult::Put(revision, previous) => WireResponse::ResponsePut(put_response(header(revision), previous)),
        OperationResult::DeleteRange(revision, deleted, previous) => {
            WireResponse::ResponseDeleteRange(delete_range_response(header(revision), deleted, previous))
        }
        OperationResult::Txn(result) => WireResponse::ResponseTxn(txn_response(pb::ResponseHeader::default(), result)),
    };
    pb::ResponseOp { response: Some(response) }
}

/// What a put did, under a header.
pub fn put_response(header: pb::ResponseHeader, previous: Option<KeyValue>) -> pb::PutResponse {
    pb::PutResponse { header: Some(header), prev_kv: previous.map(key_value) }
}

/// What a deletion did, under a header.
pub fn delete_range_response(
    header: pb::ResponseHeader,
    deleted: i64,
    previous: Vec<KeyValue>,
) -> pb::DeleteRangeResponse {
    let prev_kvs = previous.into_iter().map(key_value).collect();
    pb::DeleteRangeResponse { header: Some(header), deleted, prev_kvs }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn wire_range(key: &'static str) -> pb::RangeRequest {
        pb::RangeRequest { key: bytes(key), ..Default::default() }
    }

    fn wire_put(key: &'static str) -> pb::RequestOp {
        let put = pb::PutRequest { key: bytes(key), ..Default::default() };
        pb::RequestOp { request: Some(WireOperation::RequestPut(put.into())) }
    }

    fn wire_nested(txn: pb::TxnRequest) -> pb::RequestOp {
        pb::RequestOp { request: Some(WireOperation::RequestTxn(txn.into())) }
    }

    fn success(operations: Vec<pb::RequestOp>) -> pb::TxnRequest {
        pb::TxnRequest { success: operations, ..Default::default() }
    }

    fn refused(request: pb::TxnRequest) -> Error {
        txn(request, 3).expect_err("should be refused")
    }

    #[test]
    fn key_and_range_end_name_a_set_of_keys() {
        for (key, range_end, keys) in [
            ("a", "", KeyRange::Point(bytes("a"))),
            ("a", "b", KeyRange::Span { start: bytes("a"), end: bytes("b") }),
            ("b", "a", KeyRange::Span { start: bytes("b"), end: bytes("a") }),
            ("a", "\0", KeyRange::FromKey(bytes("a"))),
            ("\0", "\0", KeyRange::All),
            ("\0", "", KeyRange::Point(bytes("\0"))),
            ("\0\0", "\0", KeyRange::FromKey(bytes("\0\0"))),
            ("a", "\0\0", KeyRange::Span { start: bytes("a"), end: bytes("\0\0") }),
        ] {
            let request = pb::RangeRequest { range_end: bytes(range_end), ..wire_range(key) };
            assert_eq!(range(request).unwrap().keys, keys, "{key:?} to {range_end:?}");
            assert_eq!(watch_keys(bytes(key), bytes(range_end)), keys);
        }
        assert_eq!(watch_keys(bytes(""), bytes("")), KeyRange::Point(bytes("\0")));
        assert_eq!(watch_keys(bytes(""), bytes("\0")), KeyRange::All);
    }

    #[test]
    fn ranges_are_checked_for_their_key_before_their_order() {
        assert_eq!(range(pb::RangeRequest { sort_order: 9, ..wire_range("") }), Err(Error::EmptyKey));
        for (order, target) in [(3, 0), (-1, 0), (0, 5), (0, -1)] {
            let request = pb::RangeRequest { sort_order: order, sort_target: target, ..wire_range("a") };
            assert_eq!(range(request), Err(Error::InvalidSortOption), "{order} and {target}");
        }
        let request = pb::RangeRequest { sort_order: 2, sort_target: 4, limit: -1, revision: 7, ..wire_range("a") };
        let range = range(request).unwrap();
        assert_eq!((range.order, range.target), (SortOrder::Descend, SortTarget::Value));
        assert_eq!((range.limit, range.revision), (-1, 7));
    }

    #[test]
    fn range_streams_come_in_key_order_and_unfiltered() {
        let check = |request: pb::RangeRequest| check_range_stream(&range(request).unwrap());
        assert_eq!(check(wire_range("a")), Ok(()));
        assert_eq!(check(pb::RangeRequest { sort_order: 1, ..wire_range("a") }), Ok(()));
        for (order, target) in [(2, 0), (0, 3), (1, 1)] {
            let request = pb::RangeRequest { sort_order: order, sort_target: target, ..wire_range("a") };
            assert_eq!(check(request), Err(Refusal::RangeStreamSorted));
        }
        let filtered = pb::RangeRequest { max_create_revision: 1, ..wire_range("a") };
        assert_eq!(check(filtered.clone()), Err(Refusal::RangeStreamFiltered));
        // The order is looked at first.
        assert_eq!(check(pb::RangeRequest { sort_order: 2, ..filtered }), Err(Refusal::RangeStreamSorted));
    }

    #[test]
    fn transactions_are_checked_in_etcds_order() {
        let nameless = pb::Compare::default();
        let named = pb::Compare { key: bytes("a"), ..Default::default() };
        let badly_sorted = pb::RangeRequest { sort_order: 9, ..wire_range("a") };
        let badly_sorted = pb::RequestOp { request: Some(WireOperation::RequestRange(badly_sorted.into())) };
        // The number of operations, before anything about them.
        let many = pb::TxnRequest { compare: vec![nameless.clone(); 4], ..Default::default() };
        assert_eq!(refused(many), Error::TooManyOperations);
        // Conditions before operations.
        let condition = pb::TxnRequest { compare: vec![named, nameless], ..success(vec![badly_sorted.clone()]) };
        assert_eq!(refused(condition), Error::EmptyKey);
        // Operations in their order, whatever is wrong with them.
        assert_eq!(refused(success(vec![badly_sorted.clone(), wire_put("")])), Error::InvalidSortOption);
        assert_eq!(refused(success(vec![wire_put(""), badly_sorted.clone()])), Error::EmptyKey);
        assert_eq!(refused(success(vec![pb::RequestOp::default(), wire_put("")])), Error::KeyNotFound);
        // One branch before the other, and duplicates last of all.
        let both = pb::TxnRequest { failure: vec![wire_put("")], ..success(vec![badly_sorted]) };
        assert_eq!(refused(both), Error::InvalidSortOption);
        let twice = pb::TxnRequest { failure: vec![wire_put("")], ..success(vec![wire_put("a"), wire_put("a")]) };
        assert_eq!(refused(twice), Error::EmptyKey);
        assert_eq!(refused(success(vec![wire_put("a"), wire_put("a")])), Error::DuplicateKey);
    }

    #[test]
    fn transactions_within_have_what_those_around_them_leave() {
        let inner = |count: usize| wire_nested(success(vec![wire_nested(pb::TxnRequest::default()); count]));
        assert!(txn(success(vec![inner(2)]), 3).is_ok());
        assert_eq!(refused(success(vec![inner(3)])), Error::TooManyOperations);
    }

    #[test]
    fn an_operand_of_another_kind_stands_for_zero() {
        let convert = |target: i32, operand: Option<TargetUnion>| {
            compare(pb::Compare { target, key: bytes("a"), target_union: operand, ..Default::default() })
                .unwrap()
                .target
        };
        let operand = Some(TargetUnion::Lease(5));
        assert_eq!(convert(0, operand.clone()), CompareTarget::Version(0));
        assert_eq!(convert(1, operand.clone()), CompareTarget::Create(0));
        assert_eq!(convert(2, operand.clone()), CompareTarget::Mod(0));
        assert_eq!(convert(3, operand.clone()), CompareTarget::Value(Bytes::new()));
        assert_eq!(convert(4, operand), CompareTarget::Lease(5));
        assert_eq!(convert(2, None), CompareTarget::Mod(0));
    }

    #[test]
    fn conditions_of_unknown_kinds_hold_as_they_do_in_etcd() {
        let convert = |result: i32, target: i32| {
            let compare = compare(pb::Compare { result, target, key: bytes("a"), ..Default::default() }).unwrap();
            (compare.operator, compare.target)
        };
        let always = (CompareOperator::Greater, CompareTarget::Version(-1));
        let never = (CompareOperator::Less, CompareTarget::Version(0));
        let exists = (CompareOperator::Greater, CompareTarget::Version(0));
        assert_eq!(convert(9, 0), always);
        assert_eq!(convert(9, 3), exists);
        assert_eq!(convert(9, 9), always);
        assert_eq!(convert(0, 9), always);
        for operator in 1..=3 {
            assert_eq!(convert(operator, 9), never);
        }
        assert_eq!(convert(3, 1), (CompareOperator::NotEqual, CompareTarget::Create(0)));
    }

    #[test]
    fn headers_within_a_transaction_have_a_revision_and_those_of_one_within_it_nothing() {
        let pair = KeyValue { key: bytes("k"), value: bytes("v"), mod_revision: 4, ..Default::default() };
        let inner = TxnResult { succeeded: true, responses: vec![OperationResult::Put(5, Some(pair))] };
        let result = TxnResult {
            succeeded: false,
            responses: vec![OperationResult::DeleteRange(5, 2, vec![]), OperationResult::Txn(inner)],
        };
        let response = txn_response(pb::ResponseHeader { member_id: 1, ..Default::default() }, result);
        assert_eq!(response.header.unwrap().member_id, 1);
        let revision_only = |revision| Some(pb::ResponseHeader { revision, ..Default::default() });
        let Some(WireResponse::ResponseDeleteRange(deleted)) = &response.responses[0].response else {
            panic!("deleted")
        };
        assert_eq!((deleted.header, deleted.deleted), (revision_only(5), 2));
        let Some(WireResponse::ResponseTxn(nested)) = &response.responses[1].response else { panic!("nested") };
        assert_eq!((nested.header, nested.succeeded), (Some(pb::ResponseHeader::default()), true));
        let Some(WireResponse::ResponsePut(put)) = &nested.responses[0].response else { panic!("put") };
        assert_eq!(put.header, revision_only(5));
        assert_eq!(put.prev_kv.as_ref().map(|pair| pair.mod_revision), Some(4));
    }
}
