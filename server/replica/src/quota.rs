//! The space that a keyspace may take.
//!
//! The size that a quota is held against is what the index *uses*: bytes of pages that its state occupies, history not
//! yet compacted included, free pages within the file not. Deleting and compacting therefore lowers it, without
//! defragmentation. As in etcd the quota is checked twice. Before a command is proposed, one that would go over is
//! refused and raises the NOSPACE alarm. Where it is applied, one that goes over is executed all the same and answered
//! as refused: sizes are local, and members that refused by them would differ. From then on the alarm refuses.

use crate::limits::{QUOTA_COST_LEASE, QUOTA_COST_PAIR, QUOTA_DEFAULT_BYTES};
use crate::request::{Command, Operation, Put, Txn};

/// A bound of the index's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// None: no bound.
    bytes: Option<u64>,
}

impl Quota {
    /// From the flag: 0 is the default, a negative number switches it off.
    pub fn from_flag(bytes: i64) -> Quota {
        Quota { bytes: if bytes == 0 { Some(QUOTA_DEFAULT_BYTES) } else { u64::try_from(bytes).ok() } }
    }

    /// The bound for reports; 0 when there is none.
    pub fn bytes(&self) -> u64 {
        self.bytes.unwrap_or(0)
    }

    /// Whether a command of this cost still fits.
    pub fn allows(&self, in_use_bytes: u64, cost: u64) -> bool {
        cost == 0 || self.bytes.is_none_or(|bytes| in_use_bytes.saturating_add(cost) < bytes)
    }
}

/// What a command may add to the store, by etcd's estimate; 0 when it adds nothing. Puts of nested transactions count,
/// which etcd forgets.
pub fn cost(command: &Command) -> u64 {
    match command {
        Command::Put(put) => cost_of_put(put),
        Command::Txn(txn) => cost_of_txn(txn),
        Command::LeaseGrant { .. } => QUOTA_COST_LEASE,
        Command::DeleteRange(_)
        | Command::Compact { .. }
        | Command::LeaseRevoke { .. }
        | Command::AlarmActivate(_)
        | Command::AlarmDeactivate(_)
        | Command::Member(_) => 0,
    }
}

fn cost_of_put(put: &Put) -> u64 {
    let content = put.key.len() + put.value.len();
    QUOTA_COST_PAIR + u64::try_from(content).expect("a request fits in memory")
}

fn cost_of_txn(txn: &Txn) -> u64 {
    let branch = |operations: &[Operation]| -> u64 {
        operations
            .iter()
            .map(|operation| match operation {
                Operation::Put(put) => cost_of_put(put),
                Operation::Txn(inner) => cost_of_txn(inner),
                Operation::Range(_) | Operation::DeleteRange(_) => 0,
            })
            .sum()
    };
    branch(&txn.success).max(branch(&txn.failure))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn put(value_bytes: usize) -> Put {
        Put {
            key: Bytes::from_static(b"four"),
            value: Bytes::from(vec![0; value_bytes]),
            lease: 0,
            prev_kv: false,
            ignore_value: false,
            ignore_lease: false,
        }
    }

    #[test]
    fn a_transaction_costs_its_dearer_branch() {
        let txn = Txn {
            compares: vec![],
            success: vec![Operation::Put(put(10)), Operation::Put(put(10))],
            failure: vec![Operation::Put(put(100))],
        };
        assert_eq!(cost(&Command::Txn(txn.clone())), 2 * (256 + 4 + 10));
        let outer = Txn { success: vec![Operation::Txn(txn)], ..Txn::default() };
        assert_eq!(cost(&Command::Txn(outer)), 2 * (256 + 4 + 10));
        assert_eq!(cost(&Command::LeaseGrant { id: 1, ttl_seconds: 1 }), 64);
        assert_eq!(cost(&Command::LeaseRevoke { id: 1 }), 0);
    }

    #[test]
    fn the_quota_is_reached_before_it_is_exceeded() {
        let quota = Quota::from_flag(1_000);
        assert!(quota.allows(0, 999));
        assert!(!quota.allows(0, 1_000));
        assert!(!quota.allows(1_000, 1));
        assert!(quota.allows(2_000, 0), "what costs nothing always fits");
        assert!(Quota::from_flag(-1).allows(u64::MAX, u64::MAX));
        assert_eq!(Quota::from_flag(-1).bytes(), 0);
        assert_eq!(Quota::from_flag(0).bytes(), QUOTA_DEFAULT_BYTES);
    }
}
