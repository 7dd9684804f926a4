//! Checks of requests that need no state: the edge runs them before it proposes anything.
//!
//! They follow etcd's order and etcd's quirks, which the differential tests hold them to. What the wire can say and the
//! domain types cannot (an unknown sort order, an operation without content) is refused where wire bytes become domain
//! types.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;

use crate::error::Error;
use crate::limits::TXN_DEPTH_MAX;
use crate::request::{Command, DeleteRange, KeyRange, Operation, Put, Range, Txn};

/// The bounds that requests are held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most compares, and most operations in a branch, of a transaction. A nested one has what its parent leaves.
    pub max_txn_ops: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { max_txn_ops: 128 }
    }
}

/// Checks a command.
pub fn check_command(command: &Command, limits: &Limits) -> Result<(), Error> {
    match command {
        Command::Put(put) => check_put(put),
        Command::DeleteRange(delete) => check_delete_range(delete),
        Command::Txn(txn) => check_txn(txn, limits),
        Command::Compact { .. }
        | Command::LeaseGrant { .. }
        | Command::LeaseRevoke { .. }
        | Command::AlarmActivate(_)
        | Command::AlarmDeactivate(_)
        | Command::Member(_) => Ok(()),
    }
}

/// Checks a read.
pub fn check_range(range: &Range) -> Result<(), Error> {
    check_keys(&range.keys)
}

/// Checks a put.
pub fn check_put(put: &Put) -> Result<(), Error> {
    if put.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    if put.ignore_value && !put.value.is_empty() {
        return Err(Error::ValueProvided);
    }
    if put.ignore_lease && put.lease != 0 {
        return Err(Error::LeaseProvided);
    }
    Ok(())
}

/// Checks a deletion.
pub fn check_delete_range(delete: &DeleteRange) -> Result<(), Error> {
    check_keys(&delete.keys)
}

/// Checks a transaction: number of operations, each operation, and that no branch writes a key twice.
pub fn check_txn(txn: &Txn, limits: &Limits) -> Result<(), Error> {
    check_operations(txn, limits.max_txn_ops, 0)?;
    check_writes(&txn.success)?;
    check_writes(&txn.failure)?;
    Ok(())
}

fn check_keys(keys: &KeyRange) -> Result<(), Error> {
    let start = match keys {
        KeyRange::Point(key) | KeyRange::FromKey(key) => key,
        KeyRange::Span { start, .. } => start,
        KeyRange::All => return Ok(()),
    };
    if start.is_empty() { Err(Error::EmptyKey) } else { Ok(()) }
}

/// Checks counts and operations. `budget` is what an enclosing transaction leaves: each level takes its largest list
/// from it. That bounds the depth, too, unless the limit is set very high.
fn check_operations(txn: &Txn, budget: usize, depth: usize) -> Result<(), Error> {
    let largest = txn.compares.len().max(txn.success.len()).max(txn.failure.len());
    let Some(rest) = budget.checked_sub(largest).filter(|_| depth < TXN_DEPTH_MAX) else {
        return Err(Error::TooManyOperations);
    };
    for compare in &txn.compares {
        check_keys(&compare.keys)?;
    }
    for operation in txn.success.iter().chain(&txn.failure) {
        match operation {
            Operation::Range(range) => check_range(range)?,
            Operation::Put(put) => check_put(put)?,
            Operation::DeleteRange(delete) => check_delete_range(delete)?,
            Operation::Txn(inner) => check_operations(inner, rest, depth + 1)?,
        }
    }
    Ok(())
}

/// The keys that a branch puts and the ranges that it deletes.
#[derive(Default)]
struct Writes<'a> {
    puts: HashSet<&'a Bytes>,
    deletes: Ranges,
}

/// Checks one branch for keys written twice, in etcd's order: this level's deletions, then the nested transactions one
/// after the other, then this level's puts. The order shows: a nested put conflicts with the deletions of nested
/// transactions before it, and not of those behind it.
fn check_writes(operations: &[Operation]) -> Result<Writes<'_>, Error> {
    let mut writes = Writes::default();
    for operation in operations {
        if let Operation::DeleteRange(delete) = operation {
            writes.deletes.insert_keys(&delete.keys);
        }
    }
    for operation in operations {
        let Operation::Txn(txn) = operation else { continue };
        let success = check_writes(&txn.success)?;
        let failure = check_writes(&txn.failure)?;
        for key in &success.puts {
            if writes.deletes.contains(key) || !writes.puts.insert(key) {
                return Err(Error::DuplicateKey);
            }
        }
        for key in &failure.puts {
            // Only one of the two branches runs, so that they may put the same key.
            let seen = !writes.puts.insert(key);
            if writes.deletes.contains(key) || (seen && !success.puts.contains(key)) {
                return Err(Error::DuplicateKey);
            }
        }
        writes.deletes.merge(success.deletes);
        writes.deletes.merge(failure.deletes);
    }
    for operation in operations {
        let Operation::Put(put) = operation else { continue };
        if writes.deletes.contains(&put.key) || !writes.puts.insert(&put.key) {
            return Err(Error::DuplicateKey);
        }
    }
    Ok(writes)
}

/// A union of key ranges. Invariant: the ranges are neither empty nor overlapping.
#[derive(Default)]
struct Ranges {
    /// Start to end.
    ranges: BTreeMap<Bytes, Bytes>,
}

impl Ranges {
    /// Adds the keys of a deletion. One "from key" never conflicts with a put in etcd: its end, a zero byte, sorts
    /// before every start. So does a range whose end is not behind its start.
    fn insert_keys(&mut self, keys: &KeyRange) {
        match keys {
            KeyRange::Point(key) => {
                let end = [key, [0].as_slice()].concat();
                self.insert(key.clone(), Bytes::from(end));
            }
            KeyRange::Span { start, end } if start < end => self.insert(start.clone(), end.clone()),
            KeyRange::Span { .. } | KeyRange::FromKey(_) | KeyRange::All => {}
        }
    }

    fn insert(&mut self, mut start: Bytes, mut end: Bytes) {
        assert!(start < end, "a range of keys is not empty");
        while let Some((other_start, other_end)) = self.ranges.range(..=end.clone()).next_back() {
            if *other_end < start {
                break;
            }
            let (other_start, other_end) = (other_start.clone(), other_end.clone());
            self.ranges.remove(&other_start);
            start = start.min(other_start);
            end = end.max(other_end);
        }
        self.ranges.insert(start, end);
    }

    fn contains(&self, key: &Bytes) -> bool {
        self.ranges.range::<Bytes, _>(..=key).next_back().is_some_and(|(_, end)| key < end)
    }

    fn merge(&mut self, other: Ranges) {
        for (start, end) in other.ranges {
            self.insert(start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Batch, Item, decode_entry, encode_entry};
    use crate::request::{Compare, CompareOperator, CompareTarget, KeyspaceId, Principal};

    fn key(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn put(name: &'static str) -> Operation {
        Operation::Put(plain_put(name))
    }

    fn plain_put(name: &'static str) -> Put {
        Put { key: key(name), value: key("value"), lease: 0, prev_kv: false, ignore_value: false, ignore_lease: false }
    }

    fn delete(keys: KeyRange) -> Operation {
        Operation::DeleteRange(DeleteRange { keys, prev_kv: false })
    }

    fn delete_key(name: &'static str) -> Operation {
        delete(KeyRange::Point(key(name)))
    }

    fn delete_span(start: &'static str, end: &'static str) -> Operation {
        delete(KeyRange::Span { start: key(start), end: key(end) })
    }

    fn nested(success: Vec<Operation>, failure: Vec<Operation>) -> Operation {
        Operation::Txn(Txn { compares: vec![], success, failure })
    }

    fn check(success: Vec<Operation>) -> Result<(), Error> {
        check_txn(&Txn { compares: vec![], success, failure: vec![] }, &Limits::default())
    }

    #[test]
    fn puts_are_checked_in_order() {
        let empty = Put { key: key(""), ..plain_put("a") };
        let value = Put { ignore_value: true, ignore_lease: true, lease: 1, ..plain_put("a") };
        let lease = Put { ignore_value: true, value: key(""), ignore_lease: true, lease: 1, ..plain_put("a") };
        let kept = Put { ignore_value: true, value: key(""), ..plain_put("a") };
        let table = [
            (empty, Err(Error::EmptyKey)),
            (value, Err(Error::ValueProvided)),
            (lease, Err(Error::LeaseProvided)),
            (kept, Ok(())),
            (plain_put("a"), Ok(())),
        ];
        for (put, expected) in table {
            assert_eq!(check_put(&put), expected, "{put:?}");
        }
    }

    #[test]
    fn an_empty_key_is_refused_wherever_it_stands() {
        for keys in
            [KeyRange::Point(key("")), KeyRange::FromKey(key("")), KeyRange::Span { start: key(""), end: key("z") }]
        {
            assert_eq!(check(vec![delete(keys.clone())]), Err(Error::EmptyKey));
            let compare = Compare { keys, operator: CompareOperator::Equal, target: CompareTarget::Version(0) };
            let txn = Txn { compares: vec![compare], ..Txn::default() };
            assert_eq!(check_txn(&txn, &Limits::default()), Err(Error::EmptyKey));
        }
        assert_eq!(check(vec![delete(KeyRange::All)]), Ok(()));
    }

    #[test]
    fn nested_transactions_have_what_their_parents_leave() {
        let limits = Limits { max_txn_ops: 3 };
        let inner = |count: usize| nested(vec![delete_key("a"); count], vec![]);
        let outer = |operation: Operation| Txn { success: vec![operation], ..Txn::default() };
        assert_eq!(check_txn(&outer(inner(2)), &limits), Ok(()));
        assert_eq!(check_txn(&outer(inner(3)), &limits), Err(Error::TooManyOperations));
        let wide = Txn { success: vec![delete_key("a"); 3], failure: vec![delete_key("a"); 3], ..Txn::default() };
        assert_eq!(check_txn(&wide, &limits), Ok(()));
        let wider = Txn { success: vec![delete_key("a"); 4], ..Txn::default() };
        assert_eq!(check_txn(&wider, &limits), Err(Error::TooManyOperations));
    }

    #[test]
    fn what_validation_lets_through_the_entry_decoder_reads() {
        let limits = Limits { max_txn_ops: usize::MAX };
        let nest = |levels: usize| {
            let inner = Txn { success: vec![put("a")], ..Txn::default() };
            (1..levels).fold(inner, |txn, _| Txn { success: vec![Operation::Txn(txn)], ..Txn::default() })
        };
        assert_eq!(check_txn(&nest(TXN_DEPTH_MAX + 1), &limits), Err(Error::TooManyOperations));
        let deepest = nest(TXN_DEPTH_MAX);
        assert_eq!(check_txn(&deepest, &limits), Ok(()));
        let item = Item { principal: Principal::Anonymous, command: Command::Txn(deepest) };
        assert!(
            decode_entry(&encode_entry(&Batch { keyspace: KeyspaceId(0), source: None, items: vec![item] })).is_ok()
        );
    }

    #[test]
    fn keys_written_twice_are_found_with_the_quirks_of_etcd() {
        let duplicate = Err(Error::DuplicateKey);
        let table = [
            ("put and put", vec![put("a"), put("a")], duplicate),
            ("put and other put", vec![put("a"), put("b")], Ok(())),
            ("put then delete", vec![put("a"), delete_key("a")], duplicate),
            ("delete then put", vec![delete_key("a"), put("a")], duplicate),
            ("put within deleted span", vec![put("b"), delete_span("a", "c")], duplicate),
            ("put at the end of a span", vec![put("c"), delete_span("a", "c")], Ok(())),
            ("put beside a point", vec![put("a\0"), delete_key("a")], Ok(())),
            ("overlapping deletions", vec![delete_span("a", "c"), delete_span("b", "d"), delete_key("b")], Ok(())),
            ("merged deletions", vec![delete_span("a", "c"), delete_span("b", "d"), put("c")], duplicate),
            ("from key", vec![put("b"), delete(KeyRange::FromKey(key("a")))], Ok(())),
            ("all keys", vec![put("b"), delete(KeyRange::All)], Ok(())),
            ("inverted span", vec![put("b"), delete_span("c", "a")], Ok(())),
            ("nested put and put", vec![nested(vec![put("a")], vec![]), put("a")], duplicate),
            ("put in then and else", vec![nested(vec![put("a")], vec![put("a")])], Ok(())),
            ("then, else, outer", vec![nested(vec![put("a")], vec![put("a")]), put("a")], duplicate),
            ("two nested puts", vec![nested(vec![put("a")], vec![]), nested(vec![], vec![put("a")])], duplicate),
            ("outer delete, nested put", vec![delete_key("a"), nested(vec![], vec![put("a")])], duplicate),
            ("nested delete, outer put", vec![nested(vec![], vec![delete_key("a")]), put("a")], duplicate),
            ("nested: put in then, delete in else", vec![nested(vec![put("a")], vec![delete_key("a")])], Ok(())),
            (
                "nested delete before nested put",
                vec![nested(vec![delete_key("a")], vec![]), nested(vec![put("a")], vec![])],
                duplicate,
            ),
            (
                "nested put before nested delete",
                vec![nested(vec![put("a")], vec![]), nested(vec![delete_key("a")], vec![])],
                Ok(()),
            ),
        ];
        for (name, operations, expected) in table {
            assert_eq!(check(operations), expected, "{name}");
        }
    }

    #[test]
    fn both_branches_may_write_the_same_key() {
        let txn = Txn { compares: vec![], success: vec![put("a")], failure: vec![put("a"), put("b")] };
        assert_eq!(check_txn(&txn, &Limits::default()), Ok(()));
        let txn = Txn { compares: vec![], success: vec![], failure: vec![put("a"), put("a")] };
        assert_eq!(check_txn(&txn, &Limits::default()), Err(Error::DuplicateKey));
    }
}
