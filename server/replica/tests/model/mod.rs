//! What an etcd keyspace is, as simply as it can be said: every version of every key, in order.

use std::collections::BTreeMap;

use bytes::Bytes;
use garboard_replica::Error;
use garboard_replica::request::{
    Command, Compare, CompareOperator, CompareTarget, DeleteRange, KeyRange, KeyValue, Operation, OperationResult,
    Outcome, Put, Range, RangeResult, Reply, Txn, TxnResult,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub main: i64,
    pub sub: i64,
    pub create: i64,
    pub version: i64,
    pub lease: i64,
    /// None: deleted.
    pub value: Option<Bytes>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    pub keys: BTreeMap<Bytes, Vec<Version>>,
    pub revision: i64,
    pub compacted: i64,
    pub leases: BTreeMap<i64, i64>,
    /// Changes of the command in progress.
    changes: i64,
}

impl Model {
    pub fn new() -> Model {
        Model { keys: BTreeMap::new(), revision: 1, compacted: -1, leases: BTreeMap::new(), changes: 0 }
    }

    /// The pairs that are live at a revision, in key order.
    pub fn live(&self, at: i64) -> Vec<KeyValue> {
        let newest = |versions: &Vec<Version>| versions.iter().rev().find(|version| version.main <= at).cloned();
        let pairs = self.keys.iter().filter_map(|(key, versions)| {
            let version = newest(versions)?;
            Some(KeyValue {
                key: key.clone(),
                create_revision: version.create,
                mod_revision: version.main,
                version: version.version,
                value: version.value?,
                lease: version.lease,
            })
        });
        pairs.collect()
    }

    fn find(&self, key: &[u8]) -> Option<KeyValue> {
        self.live(i64::MAX).into_iter().find(|pair| pair.key == key)
    }

    fn within(&self, keys: &KeyRange, at: i64) -> Vec<KeyValue> {
        self.live(at).into_iter().filter(|pair| contains(keys, &pair.key)).collect()
    }

    /// Executes a command.
    pub fn execute(&mut self, command: &Command) -> Result<Reply, Error> {
        self.changes = 0;
        let outcome = self.outcome(command)?;
        if self.changes > 0 {
            self.revision += 1;
        }
        Ok(Reply { revision: self.revision, outcome })
    }

    fn outcome(&mut self, command: &Command) -> Result<Outcome, Error> {
        match command {
            Command::Put(put) => {
                if put.lease != 0 && !self.leases.contains_key(&put.lease) {
                    return Err(Error::LeaseNotFound);
                }
                if (put.ignore_value || put.ignore_lease) && self.find(&put.key).is_none() {
                    return Err(Error::KeyNotFound);
                }
                Ok(Outcome::Put(self.put(put)))
            }
            Command::DeleteRange(delete) => {
                let (count, previous) = self.delete(delete);
                Ok(Outcome::DeleteRange(count, previous))
            }
            Command::Txn(txn) => {
                let decided = self.decide(txn);
                self.check(&decided)?;
                Ok(Outcome::Txn(self.run(&decided)))
            }
            Command::Compact { revision, .. } => {
                if *revision <= self.compacted.max(0) {
                    return Err(Error::Compacted);
                }
                if *revision > self.revision {
                    return Err(Error::FutureRevision);
                }
                self.compacted = *revision;
                Ok(Outcome::Compact)
            }
            Command::LeaseGrant { id, ttl_seconds } => {
                if self.leases.contains_key(id) {
                    return Err(Error::LeaseExists);
                }
                self.leases.insert(*id, (*ttl_seconds).max(2));
                Ok(Outcome::LeaseGrant(*id, (*ttl_seconds).max(2)))
            }
            Command::LeaseRevoke { id } => {
                self.leases.remove(id).ok_or(Error::LeaseNotFound)?;
                let attached: Vec<Bytes> =
                    self.live(i64::MAX).into_iter().filter(|pair| pair.lease == *id).map(|pair| pair.key).collect();
                for key in attached {
                    self.write(key, None, 0);
                }
                Ok(Outcome::LeaseRevoke)
            }
            Command::AlarmActivate(_) | Command::AlarmDeactivate(_) => panic!("the model knows no alarms"),
        }
    }

    fn write(&mut self, key: Bytes, value: Option<Bytes>, lease: i64) {
        let (main, sub) = (self.revision + 1, self.changes);
        self.changes += 1;
        let versions = self.keys.entry(key).or_default();
        let before = versions.last().filter(|version| version.value.is_some());
        let (create, version) = match (&value, before) {
            (None, _) => (0, 0),
            (Some(_), None) => (main, 1),
            (Some(_), Some(before)) => (before.create, before.version + 1),
        };
        versions.push(Version { main, sub, create, version, lease, value });
    }

    fn put(&mut self, put: &Put) -> Option<KeyValue> {
        let before = self.find(&put.key);
        let value = match &before {
            Some(pair) if put.ignore_value => pair.value.clone(),
            _ => put.value.clone(),
        };
        let lease = match &before {
            Some(pair) if put.ignore_lease => pair.lease,
            _ => put.lease,
        };
        self.write(put.key.clone(), Some(value), lease);
        before.filter(|_| put.prev_kv)
    }

    fn delete(&mut self, delete: &DeleteRange) -> (i64, Vec<KeyValue>) {
        let pairs = self.within(&delete.keys, i64::MAX);
        for pair in &pairs {
            self.write(pair.key.clone(), None, 0);
        }
        let count = i64::try_from(pairs.len()).unwrap();
        (count, if delete.prev_kv { pairs } else { Vec::new() })
    }

    fn decide<'a>(&self, txn: &'a Txn) -> Decided<'a> {
        let succeeded = txn.compares.iter().all(|compare| self.holds(compare));
        let branch = if succeeded { &txn.success } else { &txn.failure };
        let operations = branch.iter().map(|operation| match operation {
            Operation::Txn(inner) => DecidedOperation::Txn(self.decide(inner)),
            other => DecidedOperation::Plain(other),
        });
        Decided { succeeded, operations: operations.collect() }
    }

    fn holds(&self, compare: &Compare) -> bool {
        let pairs = self.within(&compare.keys, i64::MAX);
        if pairs.is_empty() {
            return !matches!(compare.target, CompareTarget::Value(_)) && relates(compare, &KeyValue::default());
        }
        pairs.iter().all(|pair| relates(compare, pair))
    }

    fn check(&self, txn: &Decided<'_>) -> Result<(), Error> {
        let mut deleted = Vec::new();
        self.check_within(txn, &mut deleted)
    }

    fn check_within<'a>(&self, txn: &Decided<'a>, deleted: &mut Vec<&'a KeyRange>) -> Result<(), Error> {
        for operation in &txn.operations {
            match operation {
                DecidedOperation::Plain(Operation::Range(range)) => {
                    let asked = range.revision;
                    if asked > self.revision {
                        return Err(Error::FutureRevision);
                    }
                    if asked != 0 && asked < self.compacted {
                        return Err(Error::Compacted);
                    }
                }
                DecidedOperation::Plain(Operation::Put(put)) => {
                    let gone = deleted.iter().any(|keys| contains(keys, &put.key));
                    if put.lease != 0 && !self.leases.contains_key(&put.lease) {
                        return Err(Error::LeaseNotFound);
                    }
                    if (put.ignore_value || put.ignore_lease) && (gone || self.find(&put.key).is_none()) {
                        return Err(Error::KeyNotFound);
                    }
                }
                DecidedOperation::Plain(Operation::DeleteRange(delete)) => deleted.push(&delete.keys),
                DecidedOperation::Plain(Operation::Txn(_)) => unreachable!(),
                DecidedOperation::Txn(inner) => self.check_within(inner, deleted)?,
            }
        }
        Ok(())
    }

    fn run(&mut self, txn: &Decided<'_>) -> TxnResult {
        let mut responses = Vec::new();
        for operation in &txn.operations {
            let response = match operation {
                DecidedOperation::Plain(Operation::Range(range)) => {
                    OperationResult::Range(self.header(), self.range(range))
                }
                DecidedOperation::Plain(Operation::Put(put)) => {
                    let previous = self.put(put);
                    OperationResult::Put(self.header(), previous)
                }
                DecidedOperation::Plain(Operation::DeleteRange(delete)) => {
                    let (count, previous) = self.delete(delete);
                    OperationResult::DeleteRange(self.header(), count, previous)
                }
                DecidedOperation::Plain(Operation::Txn(_)) => unreachable!(),
                DecidedOperation::Txn(inner) => OperationResult::Txn(self.run(inner)),
            };
            responses.push(response);
        }
        TxnResult { succeeded: txn.succeeded, responses }
    }

    fn header(&self) -> i64 {
        self.revision + i64::from(self.changes > 0)
    }

    /// A range in key order with a limit; no sorts or filters.
    fn range(&self, range: &Range) -> RangeResult {
        let at = if range.revision > 0 { range.revision } else { i64::MAX };
        let mut kvs = self.within(&range.keys, at);
        let count = i64::try_from(kvs.len()).unwrap();
        if range.count_only {
            return RangeResult { kvs: Vec::new(), more: false, count };
        }
        let limit = usize::try_from(range.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        let more = kvs.len() > limit;
        kvs.truncate(limit);
        RangeResult { kvs, more, count }
    }
}

struct Decided<'a> {
    succeeded: bool,
    operations: Vec<DecidedOperation<'a>>,
}

enum DecidedOperation<'a> {
    Plain(&'a Operation),
    Txn(Decided<'a>),
}

pub fn contains(keys: &KeyRange, key: &Bytes) -> bool {
    match keys {
        KeyRange::Point(point) => key == point,
        KeyRange::Span { start, end } => start <= key && key < end,
        KeyRange::FromKey(start) => start <= key,
        KeyRange::All => true,
    }
}

fn relates(compare: &Compare, pair: &KeyValue) -> bool {
    let order = match &compare.target {
        CompareTarget::Version(operand) => pair.version.cmp(operand),
        CompareTarget::Create(operand) => pair.create_revision.cmp(operand),
        CompareTarget::Mod(operand) => pair.mod_revision.cmp(operand),
        CompareTarget::Value(operand) => pair.value.cmp(operand),
        CompareTarget::Lease(operand) => pair.lease.cmp(operand),
    };
    match compare.operator {
        CompareOperator::Equal => order.is_eq(),
        CompareOperator::Greater => order.is_gt(),
        CompareOperator::Less => order.is_lt(),
        CompareOperator::NotEqual => order.is_ne(),
    }
}
