//! The conditions of transactions.
//!
//! All conditions of a transaction, those of transactions within it included, are decided before it writes anything:
//! [`branches`] walks the taken branches and returns the decisions in the order in which execution meets them.

use std::cmp::Ordering;

use garboard_storage::{Paged, Version, View};

use super::fault::may_miss;
use super::range::NEWEST;
use super::rows::read_value;
use crate::limits::TXN_DEPTH_MAX;
use crate::request::{Compare, CompareOperator, CompareTarget, KeyRange, Operation, Txn};

/// Decides a transaction and every transaction within the branches it takes: whether each one's conditions hold, in
/// preorder. Apply and read-only evaluation both execute by this list, one decision for each transaction entered.
///
/// # Panics
/// If transactions nest deeper than [`TXN_DEPTH_MAX`]; the edge bounds nesting by the operations allowed.
pub fn branches(view: &View<'_>, txn: &Txn) -> Paged<Vec<bool>> {
    let mut taken = Vec::with_capacity(1);
    decide(view, txn, &mut taken, 0)?;
    Ok(taken)
}

fn decide(view: &View<'_>, txn: &Txn, taken: &mut Vec<bool>, depth: usize) -> Paged<()> {
    assert!(depth <= TXN_DEPTH_MAX, "the edge bounds how deep transactions nest");
    let succeeded = all_hold(view, &txn.compares)?;
    taken.push(succeeded);
    for operation in if succeeded { &txn.success } else { &txn.failure } {
        if let Operation::Txn(inner) = operation {
            decide(view, inner, taken, depth + 1)?;
        }
    }
    Ok(())
}

/// Whether every condition holds; without conditions it does.
pub fn all_hold(view: &View<'_>, compares: &[Compare]) -> Paged<bool> {
    for compare in compares {
        if !holds(view, compare)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a condition holds for every key of its range, at the newest state.
///
/// Where the range holds no key, a condition on the value never holds, whatever the operator, because the wire cannot
/// tell a missing value from an empty one; any other condition is held against a key of all zeros.
pub fn holds(view: &View<'_>, compare: &Compare) -> Paged<bool> {
    if let KeyRange::Point(key) = &compare.keys {
        may_miss()?;
        return match view.find(key, NEWEST)? {
            Some(version) => holds_for(view, compare, &version),
            None => Ok(holds_for_absent(compare)),
        };
    }
    let Some(bounds) = compare.keys.span().filter(|_| !compare.keys.is_empty()) else {
        return Ok(holds_for_absent(compare));
    };
    let mut cursor = view.cursor(bounds, NEWEST);
    let mut found = false;
    loop {
        may_miss()?;
        let Some((_, version)) = cursor.next()? else {
            break;
        };
        found = true;
        if !holds_for(view, compare, &version)? {
            return Ok(false);
        }
    }
    Ok(found || holds_for_absent(compare))
}

fn holds_for(view: &View<'_>, compare: &Compare, version: &Version) -> Paged<bool> {
    let equality = matches!(compare.operator, CompareOperator::Equal | CompareOperator::NotEqual);
    let ordering = match &compare.target {
        CompareTarget::Version(operand) => version.version.cmp(operand),
        CompareTarget::Create(operand) => version.create_revision.cmp(operand),
        CompareTarget::Mod(operand) => version.modified.main.cmp(operand),
        CompareTarget::Lease(operand) => version.lease.cmp(operand),
        // Values of different lengths differ, which needs no look at them.
        CompareTarget::Value(operand) if equality && usize::try_from(version.value_len) != Ok(operand.len()) => {
            return Ok(compare.operator == CompareOperator::NotEqual);
        }
        CompareTarget::Value(operand) => {
            let mut value = Vec::new();
            read_value(view, version, &mut value)?;
            value[..].cmp(&operand[..])
        }
    };
    Ok(satisfies(ordering, compare.operator))
}

fn holds_for_absent(compare: &Compare) -> bool {
    let ordering = match &compare.target {
        CompareTarget::Value(_) => return false,
        CompareTarget::Version(operand)
        | CompareTarget::Create(operand)
        | CompareTarget::Mod(operand)
        | CompareTarget::Lease(operand) => 0.cmp(operand),
    };
    satisfies(ordering, compare.operator)
}

fn satisfies(ordering: Ordering, operator: CompareOperator) -> bool {
    match operator {
        CompareOperator::Equal => ordering.is_eq(),
        CompareOperator::NotEqual => ordering.is_ne(),
        CompareOperator::Greater => ordering.is_gt(),
        CompareOperator::Less => ordering.is_lt(),
    }
}
