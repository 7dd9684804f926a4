//! Transactions: decide, check, then execute operation by operation.

use std::collections::VecDeque;

use garboard_storage::Paged;

use super::machine::Machine;
use crate::canary::{self, Canary};
use crate::error::Error;
use crate::read::compare::branches;
use crate::read::range::{NEWEST, evaluate_at};
use crate::request::{DeleteRange, KeyRange, Operation, OperationResult, Put, Range, Txn, TxnResult};

/// One step of a transaction's execution.
#[derive(Debug)]
enum Step {
    Range(Range),
    Put(Put),
    DeleteRange(DeleteRange),
    /// A nested transaction begins, whose conditions held or did not.
    Enter(bool),
    /// The innermost transaction ends.
    Leave,
}

/// A transaction that is decided and checked, and partly executed.
#[derive(Debug)]
pub(super) struct TxnRun {
    steps: VecDeque<Step>,
    /// The results of the transactions that are entered, the innermost last.
    open: Vec<TxnResult>,
}

impl Machine {
    /// Evaluates all conditions and checks every operation of the branches taken, all against the state before the
    /// transaction: from here on it can't fail.
    pub(super) fn begin_txn(&self, txn: &Txn) -> Paged<Result<TxnRun, Error>> {
        let view = self.index.view();
        let taken = branches(&view, txn)?;
        if let Err(error) = self.check_operations(txn, &taken)? {
            return Ok(Err(error));
        }
        let mut decisions = taken.into_iter();
        let mut steps = VecDeque::new();
        flatten(txn, &mut decisions, &mut steps);
        assert!(decisions.next().is_none(), "execution enters the transactions that were decided");
        let Some(Step::Enter(succeeded)) = steps.pop_front() else { unreachable!("a transaction is entered first") };
        Ok(Ok(TxnRun { steps, open: vec![TxnResult { succeeded, responses: Vec::new() }] }))
    }

    /// Checks the operations of the branches taken, in order. Errors come out in the order in which etcd finds them.
    fn check_operations(&self, txn: &Txn, taken: &[bool]) -> Paged<Result<(), Error>> {
        let mut decisions = taken.iter().copied();
        let mut check = Check { machine: self, deleted: Vec::new() };
        check.visit(txn, &mut decisions)
    }

    /// Executes what is left of a transaction.
    pub(super) fn go_on_with_txn(&mut self, run: &mut TxnRun) -> Paged<TxnResult> {
        while let Some(step) = run.steps.front() {
            let response = match step {
                Step::Range(range) => {
                    let at = if range.revision > 0 { range.revision } else { NEWEST };
                    let result = evaluate_at(&self.index.view(), range, at)?;
                    OperationResult::Range(self.seen_revision(), result)
                }
                Step::Put(put) => {
                    let (revision, previous) = self.put(put, false)?.expect("the key was checked to exist");
                    if canary::is_on(Canary::TxnEventTwice) {
                        self.repeat_event();
                    }
                    OperationResult::Put(revision, previous)
                }
                Step::DeleteRange(delete) => {
                    let (revision, count, previous) = self.delete_range(delete)?;
                    OperationResult::DeleteRange(revision, count, previous)
                }
                Step::Enter(succeeded) => {
                    run.open.push(TxnResult { succeeded: *succeeded, responses: Vec::new() });
                    run.steps.pop_front();
                    continue;
                }
                Step::Leave => {
                    let inner = run.open.pop().expect("every transaction that ends was entered");
                    if run.open.is_empty() {
                        assert_eq!(run.steps.len(), 1, "the outermost transaction ends last");
                        return Ok(inner);
                    }
                    OperationResult::Txn(inner)
                }
            };
            run.steps.pop_front();
            run.open.last_mut().expect("the outermost transaction is open").responses.push(response);
        }
        unreachable!("the last step ends the outermost transaction")
    }
}

fn flatten(txn: &Txn, decisions: &mut impl Iterator<Item = bool>, steps: &mut VecDeque<Step>) {
    let succeeded = decisions.next().expect("every transaction of a taken branch was decided");
    steps.push_back(Step::Enter(succeeded));
    for operation in if succeeded { &txn.success } else { &txn.failure } {
        match operation {
            Operation::Range(range) => steps.push_back(Step::Range(range.clone())),
            Operation::Put(put) => steps.push_back(Step::Put(put.clone())),
            Operation::DeleteRange(delete) => steps.push_back(Step::DeleteRange(delete.clone())),
            Operation::Txn(inner) => flatten(inner, decisions, steps),
        }
    }
    steps.push_back(Step::Leave);
}

/// The checks of a transaction, against the state before it.
struct Check<'a> {
    machine: &'a Machine,
    /// What deletions before the current operation take away. A put that keeps its value needs a key that is still
    /// there when its turn comes.
    deleted: Vec<&'a KeyRange>,
}

impl<'a> Check<'a> {
    fn visit(&mut self, txn: &'a Txn, decisions: &mut impl Iterator<Item = bool>) -> Paged<Result<(), Error>> {
        let succeeded = decisions.next().expect("every transaction of a taken branch was decided");
        for operation in if succeeded { &txn.success } else { &txn.failure } {
            let checked = match operation {
                Operation::Range(range) => self.range(range),
                Operation::Put(put) => self.put(put)?,
                Operation::DeleteRange(delete) => {
                    self.deleted.push(&delete.keys);
                    Ok(())
                }
                Operation::Txn(inner) => self.visit(inner, decisions)?,
            };
            if checked.is_err() {
                return Ok(checked);
            }
        }
        Ok(Ok(()))
    }

    fn range(&self, range: &Range) -> Result<(), Error> {
        if canary::is_on(Canary::CompactedReadInTxn) && range.revision <= self.machine.revision_before() {
            return Ok(());
        }
        let compacted = self.machine.index.view().compacted();
        crate::read::range::read_revision(self.machine.revision_before(), compacted, range.revision, true).map(|_| ())
    }

    /// The lease is looked for before the key, as for a put outside a transaction: a client sees the first error.
    fn put(&self, put: &Put) -> Paged<Result<(), Error>> {
        if put.lease != 0 && !self.machine.lessor.contains(put.lease) {
            return Ok(Err(Error::LeaseNotFound));
        }
        if put.ignore_value || put.ignore_lease {
            let exists = self.machine.index.view().find(&put.key, NEWEST)?.is_some();
            if !exists || self.deleted.iter().any(|keys| keys.contains(&put.key)) {
                return Ok(Err(Error::KeyNotFound));
            }
        }
        Ok(Ok(()))
    }
}
