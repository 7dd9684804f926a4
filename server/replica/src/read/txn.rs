//! Read-only transactions, evaluated on any core without going through the log.

use garboard_storage::{Paged, View};

use super::compare;
use super::range;
use crate::error::Error;
use crate::request::{Operation, OperationResult, Range, Txn, TxnResult};

/// Whether a transaction can write nothing, whichever branches it takes.
///
/// With `flat`, as etcd draws the line: a transaction within counts as a write, even if it only reads. What that
/// decides (an alarm refuses it, it goes through the log) stays as clients know it; what it returns is the same.
pub fn is_read_only(txn: &Txn, flat: bool) -> bool {
    txn.success.iter().chain(&txn.failure).all(|operation| match operation {
        Operation::Range(_) => true,
        Operation::Txn(inner) => !flat && is_read_only(inner, false),
        Operation::Put(_) | Operation::DeleteRange(_) => false,
    })
}

/// Evaluates a read-only transaction over one view: all conditions, then the checks of every range it will run, then
/// the ranges. After [`NeedPage`](garboard_storage::NeedPage) it is called again and starts anew.
///
/// # Errors
/// As [`check_ranges`].
///
/// # Panics
/// If the transaction holds a write ([`is_read_only`] is the caller's to ask).
pub fn evaluate(view: &View<'_>, txn: &Txn) -> Paged<Result<TxnResult, Error>> {
    assert!(is_read_only(txn, false), "a transaction that writes goes through the log");
    let taken = compare::branches(view, txn)?;
    if let Err(error) = check_ranges(view.revision(), view.compacted(), txn, &taken) {
        return Ok(Err(error));
    }
    let mut decisions = taken.iter().copied();
    let result = execute(view, txn, &mut decisions)?;
    assert!(decisions.next().is_none(), "execution enters the transactions that were decided");
    Ok(Ok(result))
}

/// Checks the revision of every range in the branches taken, in order, before anything is executed.
///
/// `current` and `compacted` are the store's revision and floor where the transaction begins; `taken` is what
/// [`compare::branches`] decided.
///
/// # Errors
/// Those of [`range::read_revision`], of the first range that is refused.
pub fn check_ranges(current: i64, compacted: i64, txn: &Txn, taken: &[bool]) -> Result<(), Error> {
    let check = |range: &Range| range::read_revision(current, compacted, range.revision, true);
    visit_ranges(txn, &mut taken.iter().copied(), &mut |range| check(range).map(|_| ()))
}

fn visit_ranges(
    txn: &Txn,
    decisions: &mut impl Iterator<Item = bool>,
    visit: &mut impl FnMut(&Range) -> Result<(), Error>,
) -> Result<(), Error> {
    for operation in branch(txn, decisions).1 {
        match operation {
            Operation::Range(range) => visit(range)?,
            Operation::Txn(inner) => visit_ranges(inner, decisions, visit)?,
            Operation::Put(_) | Operation::DeleteRange(_) => {}
        }
    }
    Ok(())
}

/// The next decision and the branch it takes.
fn branch<'t>(txn: &'t Txn, decisions: &mut impl Iterator<Item = bool>) -> (bool, &'t [Operation]) {
    let succeeded = decisions.next().expect("every transaction of a taken branch was decided");
    (succeeded, if succeeded { &txn.success } else { &txn.failure })
}

fn execute(view: &View<'_>, txn: &Txn, decisions: &mut impl Iterator<Item = bool>) -> Paged<TxnResult> {
    let (succeeded, operations) = branch(txn, decisions);
    let mut responses = Vec::with_capacity(operations.len());
    for operation in operations {
        responses.push(match operation {
            // A range's revision was checked above; one of 0 or less reads the newest state.
            Operation::Range(range) => {
                let at = if range.revision > 0 { range.revision } else { range::NEWEST };
                OperationResult::Range(view.revision(), range::evaluate_at(view, range, at)?)
            }
            Operation::Txn(inner) => OperationResult::Txn(execute(view, inner, decisions)?),
            Operation::Put(_) | Operation::DeleteRange(_) => unreachable!("the transaction only reads"),
        });
    }
    Ok(TxnResult { succeeded, responses })
}
