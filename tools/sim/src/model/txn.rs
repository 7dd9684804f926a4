//! Transactions: everything is decided and checked before anything is written.

use garboard_replica::Error;
use garboard_replica::request::{
    Compare, CompareOperator, CompareTarget, KeyRange, KeyValue, Operation, OperationResult, Txn, TxnResult,
};

use super::{Model, contains};

/// A transaction whose conditions, and those of the transactions in it, were evaluated.
struct Decided<'a> {
    succeeded: bool,
    operations: Vec<Step<'a>>,
}

enum Step<'a> {
    Plain(&'a Operation),
    Txn(Decided<'a>),
}

impl Model {
    pub(super) fn txn(&mut self, txn: &Txn) -> Result<TxnResult, Error> {
        let decided = self.decide(txn);
        self.check(&decided, &mut Vec::new())?;
        Ok(self.run(&decided))
    }

    /// Executes a transaction that only reads, on the state of a revision and a floor.
    ///
    /// # Errors
    /// Those that its ranges are refused with.
    pub fn read_txn(&mut self, txn: &Txn, revision: i64, compacted: i64) -> Result<TxnResult, Error> {
        let before = self.changes.len();
        let newest = (self.revision, self.compacted);
        (self.revision, self.compacted, self.sub) = (revision, compacted, 0);
        let result = self.txn(txn);
        (self.revision, self.compacted) = newest;
        assert_eq!(before, self.changes.len(), "the transaction only reads");
        result
    }

    fn decide<'a>(&self, txn: &'a Txn) -> Decided<'a> {
        let succeeded = txn.compares.iter().all(|compare| self.holds(compare));
        let branch = if succeeded { &txn.success } else { &txn.failure };
        let operations = branch.iter().map(|operation| match operation {
            Operation::Txn(inner) => Step::Txn(self.decide(inner)),
            other => Step::Plain(other),
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

    fn check<'a>(&self, txn: &Decided<'a>, deleted: &mut Vec<&'a KeyRange>) -> Result<(), Error> {
        for operation in &txn.operations {
            match operation {
                Step::Plain(Operation::Range(range)) => {
                    if range.revision > self.revision {
                        return Err(Error::FutureRevision);
                    }
                    if range.revision != 0 && range.revision < self.compacted {
                        return Err(Error::Compacted);
                    }
                }
                Step::Plain(Operation::Put(put)) => {
                    let gone = deleted.iter().any(|keys| contains(keys, &put.key));
                    if put.lease != 0 && !self.leases.contains_key(&put.lease) {
                        return Err(Error::LeaseNotFound);
                    }
                    if (put.ignore_value || put.ignore_lease) && (gone || self.get(&put.key, i64::MAX).is_none()) {
                        return Err(Error::KeyNotFound);
                    }
                }
                Step::Plain(Operation::DeleteRange(delete)) => deleted.push(&delete.keys),
                Step::Plain(Operation::Txn(_)) => unreachable!("it was decided"),
                Step::Txn(inner) => self.check(inner, deleted)?,
            }
        }
        Ok(())
    }

    fn run(&mut self, txn: &Decided<'_>) -> TxnResult {
        let mut responses = Vec::new();
        for operation in &txn.operations {
            responses.push(match operation {
                Step::Plain(Operation::Range(range)) => {
                    let at = if range.revision > 0 { range.revision } else { i64::MAX };
                    OperationResult::Range(self.seen_revision(), self.range(range, at))
                }
                Step::Plain(Operation::Put(put)) => {
                    let previous = self.put(put);
                    OperationResult::Put(self.seen_revision(), previous)
                }
                Step::Plain(Operation::DeleteRange(delete)) => {
                    let (count, previous) = self.delete(delete);
                    OperationResult::DeleteRange(self.seen_revision(), count, previous)
                }
                Step::Plain(Operation::Txn(_)) => unreachable!("it was decided"),
                Step::Txn(inner) => OperationResult::Txn(self.run(inner)),
            });
        }
        TxnResult { succeeded: txn.succeeded, responses }
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
